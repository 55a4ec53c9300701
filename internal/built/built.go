// Package built builds dsmd for those who need the one that belongs to their own code: tests, and
// bench.
package built

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// grace is how long an interrupted build may take to clean up.
const grace = 2 * time.Second

// Dsmd builds dsmd from the module in a folder, with some flags of go build, and returns its path.
// It lies in the user's cache, because the go command builds a file again only if something has
// changed. Another call for the same folder and flags replaces the file if the code has changed
// meanwhile: who starts it more than once uses DsmdAt. Several processes may call it at the same
// time. If ctx ends the build is interrupted.
func Dsmd(ctx context.Context, module string, flags ...string) (path string, err error) {
	// What is built otherwise lies elsewhere, so that nobody takes another's away.
	settings, err := output(ctx, module, withoutWorkspace, "go", "env", "GOVERSION", "GOFLAGS", "GOEXPERIMENT", "CGO_ENABLED")
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	key := sha256.Sum256([]byte(module + "\n" + settings + "\n" + strings.Join(flags, "\n")))
	dir := filepath.Join(cache, "dsmd-built", fmt.Sprintf("%x", key)[:16])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	// The lock ends with the descriptor.
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	path = filepath.Join(dir, "dsmd")
	// Without the state of the repository in it, the executable depends on the code only: reports
	// of bench ask whether it is the same.
	args := append([]string{"build", "-buildvcs=false", "-o", path}, flags...)
	if _, err = output(ctx, module, withoutWorkspace, "go", append(args, "./cmd/dsmd")...); err != nil {
		return "", fmt.Errorf("building dsmd: %w", err)
	}
	return path, nil
}

// DsmdAt is Dsmd, and has the executable at a path that was free, for who calls it alone.
func DsmdAt(ctx context.Context, path, module string, flags ...string) error {
	cached, err := Dsmd(ctx, module, flags...)
	if err != nil || os.Link(cached, path) == nil {
		return err
	}
	return Copy(cached, path) // another file system
}

// Copy makes an executable of what a file has.
func Copy(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// Module is the folder of dsmd's module for the package in a folder, or empty if its source is not
// here.
func Module(ctx context.Context, dir string) (string, error) {
	return output(ctx, dir, "", "go", "list", "-m", "-f", "{{.Dir}}", "dsmd")
}

// withoutWorkspace is for the folder of dsmd's module, which has all that it depends on.
const withoutWorkspace = "GOWORK=off"

// output is what a command prints in a folder, with one variable more in its environment.
func output(ctx context.Context, dir, variable, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if variable != "" {
		cmd.Env = append(os.Environ(), variable)
	}
	// Interrupted, go removes its own temporary files; killed, it could not.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = grace
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, strings.TrimRight(said.String(), "\n"))
	}
	return strings.TrimSpace(string(out)), nil
}
