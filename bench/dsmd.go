package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"dsmd/internal/built"
)

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
	if own, err := built.Module(ctx, ""); err == nil && insideModule(ctx) {
		path := filepath.Join(dir, "dsmd")
		return path, built.DsmdAt(ctx, path, own)
	}
	if path, err := exec.LookPath("dsmd"); err == nil {
		return path, nil
	}
	return "", errNoDsmd
}

func insideModule(ctx context.Context) bool {
	out, err := exec.CommandContext(ctx, "go", "list", "-m").Output()
	return err == nil && strings.TrimSpace(string(out)) == "dsmd"
}
