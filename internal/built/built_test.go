package built_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"dsmd/internal/built"
)

// TestDsmd: what has not changed is not built again, and who has it at a path of its own keeps it.
func TestDsmd(t *testing.T) {
	module, err := built.Module(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	build := func() os.FileInfo {
		path, err := built.Dsmd(t.Context(), module)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	first := build()
	if !os.SameFile(first, build()) {
		t.Error("it was built again")
	}
	own := filepath.Join(t.TempDir(), "dsmd")
	if err := built.DsmdAt(t.Context(), own, module); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(own); err != nil || info.Size() != first.Size() || info.Mode()&0o111 == 0 {
		t.Errorf("its own is %v, %v", info, err)
	}
	if err := built.Copy(own, own); !errors.Is(err, os.ErrExist) {
		t.Errorf("a copy onto what is there: %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := built.Dsmd(ended, module); !errors.Is(err, context.Canceled) {
		t.Errorf("a build that was ended: %v", err)
	}
	if _, err := built.Dsmd(t.Context(), module, "-no-such-flag"); err == nil {
		t.Error("a flag that go build does not have")
	}
}
