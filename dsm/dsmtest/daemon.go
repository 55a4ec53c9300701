package dsmtest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// envDsmd is the environment variable with the path of a dsmd, which is built without it.
const envDsmd = "DSMTEST_DSMD"

// daemon is the path of dsmd, of the version that this test is built with.
var daemon = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(envDsmd); path != "" {
		return exec.LookPath(path)
	}
	path, err := build()
	if err != nil {
		return "", fmt.Errorf("%w; %s can name a dsmd of the version that the test uses", err, envDsmd)
	}
	return path, nil
})

// build builds dsmd from the module that the test uses. It lies in the user's cache, because the go
// command builds a file again only if something has changed, and since nobody tells a package when
// its tests are over.
func build() (path string, err error) {
	module, err := outputOf(home, "go", "list", "-m", "-f", "{{.Dir}}", "dsmd")
	if err != nil {
		return "", err
	}
	if module == "" {
		return "", errors.New("the source of module dsmd is not here")
	}
	// What is built otherwise lies elsewhere, so that no test takes another's away.
	settings, err := outputOf(module, "go", "env", "GOVERSION", "GOFLAGS", "GOEXPERIMENT", "CGO_ENABLED")
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "dsmtest", fmt.Sprintf("%x", sha256.Sum256([]byte(module+"\n"+settings)))[:16])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	// Tests of several packages build it at the same time. The lock ends with the descriptor.
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	path = filepath.Join(dir, "dsmd")
	// In its own folder the module has all that it depends on; the test's module may not.
	_, err = outputOf(module, "go", "build", "-buildvcs=false", "-o", path, "./cmd/dsmd")
	return path, err
}

// outputOf is what a command prints, in a folder; in others than home without a workspace.
func outputOf(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if dir != home {
		cmd.Env = append(os.Environ(), "GOWORK=off")
	}
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, said.String())
	}
	return strings.TrimSpace(string(out)), nil
}
