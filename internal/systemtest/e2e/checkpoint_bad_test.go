package e2e

import (
	"fmt"
	"strings"
	"testing"

	"dsmd/internal/require"

	"golang.org/x/sys/unix"
)

// smallDisk mounts a file system with so many bytes.
func smallDisk(t *testing.T, bytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("checkpoints", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		require.Missing(t, "root", "mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestCheckpointOnFullDisk: a checkpoint that does not fit ends with an error, whatever programs
// store meanwhile. The one before stays, and the next one has room if there is less to save.
func TestCheckpointOnFullDisk(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, 6<<20)
	all := engage(t, 2, 2)
	all.do(t, "ok", "words few %d", words)
	all[0].Do(t, "ok", "stamp few 1 0 %d", words)
	all.do(t, "ok", "save %s", dir)
	const n = 8 << 20 / 8
	all.do(t, "ok", "words data %d", n)
	for rank, p := range all {
		p.Say(t, "stamp data 2 %d %d", rank*n/2, (rank+1)*n/2)
	}
	for _, p := range all {
		p.Expect(t, "ok")
	}
	for round := range 3 {
		answers := all.ask(t, "begin %s", dir) // may fail itself
		for rank, p := range all {
			p.Say(t, "scatter data %d %d %d", round, rank*n/2, (rank+1)*n/2)
		}
		for _, p := range all {
			p.Expect(t, "ok")
		}
		if answers[0] == "ok" {
			answers = all.ask(t, "finish")
		}
		for rank, a := range answers {
			if !strings.HasPrefix(a, "error: no checkpoint: ") {
				t.Errorf("round %d: rank %d is told %q", round, rank, a)
			}
		}
		if !strings.Contains(strings.Join(answers, " "), "no space left on device") {
			t.Errorf("round %d: nobody is told why: %q", round, answers)
		}
	}
	verified(t, dir)
	noRemains(t, dir)
	all.do(t, "ok", "free data")
	all.do(t, "ok", "save %s", dir)
	verified(t, dir)
	noRemains(t, dir)
	all.end(t)
}

// TestCheckpointOnFullDiskWhileStoring: pages travel while a checkpoint looks for them, and there
// is no room for it. All are told that something is wrong, and somebody what. Nobody is told that a
// page is lost.
func TestCheckpointOnFullDiskWhileStoring(t *testing.T) {
	dir := smallDisk(t, 1<<20)
	all := engage(t, 2, 2)
	const n = 1024 * 512
	all.do(t, "ok", "words data %d", n)
	all.do(t, "ok", "words noise %d", 64*512)
	for rank, p := range all {
		p.Do(t, "ok", "stamp data 1 %d %d", rank*n/2, (rank+1)*n/2)
	}
	all.do(t, "ok", "noise noise")
	for range unlessShort(3, 1) {
		answers := all.ask(t, "during %s data 1", dir)
		for rank, a := range answers {
			if !strings.HasPrefix(a, "error: no checkpoint: ") {
				t.Errorf("rank %d is told %q", rank, a)
			}
		}
		if !strings.Contains(strings.Join(answers, " "), "no space left on device") {
			t.Errorf("nobody is told why: %q", answers)
		}
	}
	all.do(t, "ok", "quiet")
	all.do(t, "ok", "save %s only=noise", dir)
	verified(t, dir)
	noRemains(t, dir)
	all.end(t)
}
