package launch

import (
	"os"
	"path/filepath"
	"testing"
)

// claimed is a claim of a file that is closed.
func claimed(t *testing.T, path string) *Claim {
	t.Helper()
	c, f, err := openClaim(path)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	return c
}

// TestClaimAtTheEndOfLinks: symbolic links to where there is no file stay, and the file goes.
func TestClaimAtTheEndOfLinks(t *testing.T) {
	d := t.TempDir()
	link, second, target := filepath.Join(d, "link"), filepath.Join(d, "second"), filepath.Join(d, "target")
	for from, to := range map[string]string{link: "second", second: target} {
		if err := os.Symlink(to, from); err != nil {
			t.Fatal(err)
		}
	}
	c := claimed(t, link)
	if _, err := os.Stat(target); err != nil {
		t.Fatalf("the claim has made no file: %v", err)
	}
	c.GiveBack()
	if list, err := os.ReadDir(d); err != nil || len(list) != 2 || list[0].Name() != "link" || list[1].Name() != "second" {
		t.Errorf("after the claim there is %v, %v", list, err)
	}
	if _, _, err := openClaim(filepath.Join(d, "no", "folder")); err == nil {
		t.Error("a file in no folder can be written")
	}
}

// TestClaimOfAnother: what was there before, or is not what the claim has made, stays.
func TestClaimOfAnother(t *testing.T) {
	for what, another := range map[string]func(path string) error{
		"a file that another job has put there, empty yet": func(path string) error {
			if err := os.WriteFile(path+".new", nil, 0o666); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		},
		"a file that another job has written to": func(path string) error { return os.WriteFile(path, []byte("x"), 0o666) },
	} {
		path := filepath.Join(t.TempDir(), "trace")
		c := claimed(t, path)
		if err := another(path); err != nil {
			t.Fatal(err)
		}
		claimed(t, path).GiveBack()
		if c.GiveBack(); !isThere(path) {
			t.Errorf("%s is gone", what)
		}
	}
	path := filepath.Join(t.TempDir(), "trace")
	if c := claimed(t, path); !isThere(path) {
		t.Error("there is no file")
	} else if c.GiveBack(); isThere(path) {
		t.Error("the file that the claim has made is there")
	}
}

func isThere(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// TestTwoClaims: a file that another claim still has open stays, for what that writes.
func TestTwoClaims(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	first := claimed(t, path)
	second, f, err := openClaim(path)
	if err != nil {
		t.Fatal(err)
	}
	first.GiveBack()
	if _, err := f.WriteString("a trace"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	second.GiveBack()
	if text, err := os.ReadFile(path); string(text) != "a trace" {
		t.Errorf("the file has %q, %v", text, err)
	}
}
