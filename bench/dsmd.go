package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// module is the path of the module that contains dsmd.
const module = "dsmd"

// buildGrace is how long an interrupted build may take to clean up.
const buildGrace = 2 * time.Second

var errNoDsmd = errors.New("no dsmd executable: run this inside the module, put dsmd on PATH, or name it with --dsmd")

// findDsmd returns the path of a dsmd executable: the one that was asked for, else the one beside
// this executable, else one built into dir if the current directory is inside the module, else the
// one on PATH.
func findDsmd(ctx context.Context, asked, dir string) (string, error) {
	if asked != "" {
		path, err := exec.LookPath(asked)
		if err != nil {
			return "", fmt.Errorf("--dsmd: %w", err)
		}
		return filepath.Abs(path)
	}
	if self, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), "dsmd")); err == nil {
			return path, nil
		}
	}
	if insideModule(ctx) {
		return buildDsmd(ctx, dir)
	}
	if path, err := exec.LookPath("dsmd"); err == nil {
		return path, nil
	}
	return "", errNoDsmd
}

func insideModule(ctx context.Context) bool {
	out, err := exec.CommandContext(ctx, "go", "list", "-m").Output()
	return err == nil && strings.TrimSpace(string(out)) == module
}

func buildDsmd(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "dsmd")
	// Without the state of the repository in it, the executable depends on the code only: a report
	// asks whether it is the same.
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", path, module+"/cmd/dsmd")
	// Interrupted, go removes its own temporary files; killed, it could not.
	build.Cancel = func() error { return build.Process.Signal(os.Interrupt) }
	build.WaitDelay = buildGrace
	out, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building dsmd: %w:\n%s", err, strings.TrimRight(string(out), "\n"))
	}
	return path, nil
}
