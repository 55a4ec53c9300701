package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"dsmd/internal/checkpoint"
	"dsmd/internal/launch"
)

// checkpoints makes a directory with a whole checkpoint of two pages, and one that is incremental.
func checkpoints(t *testing.T) string {
	t.Helper()
	store, err := checkpoint.Create(filepath.Join(t.TempDir(), "job"))
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := store.Lock()
	if err != nil {
		t.Fatal(err)
	}
	var parts []checkpoint.Part
	for i := range uint64(2) {
		p, err := store.CreatePart(i+1, 0)
		if err != nil {
			t.Fatal(err)
		}
		pages := slices.Repeat([]byte{byte(i + 1)}, 2*4096)
		if _, err := p.File().WriteAt(pages, 0); err != nil {
			t.Fatal(err)
		}
		crc := checkpoint.CRC(pages[:4096])
		part, err := p.Finish(4096, 2, slices.Values([]checkpoint.Entry{{Page: i, Slot: 0, CRC: crc}, {Page: i + 1, Slot: 1, CRC: crc}}))
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, part)
		m := &checkpoint.Manifest{Sequence: i + 1, Base: i, PageBytes: 4096, Ranks: 1, Parts: parts, Memories: []checkpoint.Memory{{Name: "grid", Type: "float64", ElemBytes: 8, Count: 1500}}}
		if err := store.Commit(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	return store.Dir()
}

func TestCheckpoint(t *testing.T) {
	dir := checkpoints(t)
	status, stdout, stderr := finish(t, "checkpoint", "ls", dir)
	lines := strings.Split(stdout, "\n")
	if status != 0 || stderr != "" || len(lines) != 4 || !strings.HasPrefix(lines[1], "checkpoint-000001.json  ") || !strings.Contains(lines[2], "  to 1 ") || strings.Count(stdout, "complete") != 2 {
		t.Errorf("status %d, stderr %q, stdout:\n%s", status, stderr, stdout)
	}
	status, stdout, _ = finish(t, "checkpoint", "ls", dir, "--json")
	var list []checkpoint.Summary
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || status != 0 || len(list) != 2 || list[1].Base != 1 || list[1].Parts != 2 || list[1].MemoryBytes != 12000 {
		t.Errorf("status %d, %v:\n%s", status, err, stdout)
	}
	manifest := filepath.Join(dir, checkpoint.ManifestName(2))
	for _, path := range []string{dir, manifest} {
		status, stdout, stderr = finish(t, "checkpoint", "verify", path)
		if want := manifest + " is whole: 12.0KiB of pages, each as it was written\n"; status != 0 || stderr != "" || stdout != want {
			t.Errorf("status %d, stderr %q, stdout %q, want %q", status, stderr, stdout, want)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "pages-000002-0000.dsm"), make([]byte, 2*4096+2*checkpoint.EntryBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	damagedCheckpoint(t, dir)
}

// damagedCheckpoint looks at a directory of which the newest checkpoint is damaged.
func damagedCheckpoint(t *testing.T, dir string) {
	t.Helper()
	older := filepath.Join(dir, checkpoint.ManifestName(1))
	status, stdout, stderr := finish(t, "checkpoint", "verify", dir)
	if status != 1 || stdout != "" || !strings.HasPrefix(stderr, "dsmd: checkpoint: ") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "pages-000002-0000.dsm") || !strings.Contains(stderr, "what could be tried is "+older) {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
	status, stdout, stderr = finish(t, "checkpoint", "verify", dir, "--json")
	var v verified
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || status != 1 || v.OK || v.Damaged != 1 || len(v.Damage) != 1 || v.Older != older || strings.Count(stderr, "\n") != 1 {
		t.Errorf("status %d, stderr %q, %v:\n%s", status, stderr, err, stdout)
	}
	if status, _, stderr := finish(t, "checkpoint", "verify", older); status != 0 {
		t.Errorf("the older one: status %d, %s", status, stderr)
	}
	if err := os.WriteFile(filepath.Join(dir, checkpoint.ManifestName(3)), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr = finish(t, "checkpoint", "ls", dir)
	if status != 1 || !strings.Contains(stdout, "damaged") || strings.Count(stdout, "\n") != 4 || !strings.Contains(stderr, checkpoint.ManifestName(3)) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("status %d, stderr %q, stdout:\n%s", status, stderr, stdout)
	}
}

func TestCheckpointMistakes(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"list"}, launch.StatusUsage, `unknown command "list"`},
		{[]string{"verfiy"}, launch.StatusUsage, "did you mean verify?"},
		{[]string{"ls"}, launch.StatusUsage, "an argument is missing"},
		{[]string{"verify", "a", "b"}, launch.StatusUsage, `unexpected argument "b"`},
		{[]string{"ls", dir}, 1, "there is none in " + dir},
		{[]string{"verify", dir}, 1, "there is none in " + dir},
		{[]string{"ls", dir + "/none"}, 1, "does not exist: is the name right"},
		{[]string{"verify", dir + "/none"}, 1, "no such file or directory"},
	} {
		status, stdout, stderr := finish(t, append([]string{"checkpoint"}, test.args...)...)
		if status != test.status || stdout != "" || !strings.Contains(stderr, test.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("dsmd checkpoint %q: status %d, stdout %q, stderr %q; want one line with %q", test.args, status, stdout, stderr, test.want)
		}
	}
	if status, stdout, stderr := finish(t, "checkpoint", "ls", dir, "--json"); status != 1 || stdout != "[]\n" || !strings.Contains(stderr, "there is none") {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
	for _, args := range [][]string{{"checkpoint"}, {"checkpoint", "ls", "--help"}, {"checkpoint", "verify", "-h"}} {
		if status, stdout, stderr := finish(t, args...); status != 0 || stderr != "" || !strings.Contains(stdout, "Usage:") {
			t.Errorf("dsmd %q: status %d, stderr %q, stdout:\n%s", args, status, stderr, stdout)
		}
	}
}
