package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"dsmd/internal/systemtest/testcluster"
)

// pageFile finds the file in which a daemon has its pages.
func pageFile(t *testing.T, pid int) string {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if name, err := os.Readlink(f); err == nil && strings.Contains(name, "memfd:dsmd-pages") {
			return f
		}
	}
	t.Fatalf("process %d has no file of pages among %d", pid, len(files))
	return ""
}

// TestRoom has nodes with room for less than what their programs use: an array of more than twice
// as much as one of them may have, which two write and all read. Everything is found as it was
// written, and at no time does a node have more than it may.
func TestRoom(t *testing.T) {
	t.Parallel()
	if testing.Short() && os.Getenv(testcluster.FlagsEnv) == "" {
		t.Skip("TestSpill has nodes with no more room")
	}
	for _, p := range writeAndRead(t, 9<<20) {
		if counter(t, p, "pages_evicted") == 0 {
			t.Error("a node has dropped no copy")
		}
		p.Succeed(t)
	}
}

// TestSpill is TestRoom with more than all nodes may have together. What does not fit is on a disk,
// in files that nobody can see.
func TestSpill(t *testing.T) {
	t.Parallel()
	// Other temporary files may be in memory.
	dir, err := os.MkdirTemp("/var/tmp", "dsmd-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	spilled := uint64(0)
	for _, p := range writeAndRead(t, 14<<20, "--spill", dir) {
		spilled += counter(t, p, "pages_spilled")
		p.Succeed(t)
	}
	if least := uint64(2 << 20 / os.Getpagesize()); spilled < least {
		t.Errorf("%d pages are in files, want %d", spilled, least)
	}
	if names, err := os.ReadDir(dir); len(names) > 0 || err != nil {
		t.Errorf("in the directory are %v, %v", names, err)
	}
}

// writeAndRead has two of three programs fill an array of so many bytes, and the next one read it.
// All read what was stored last. Each is at a node with room for 4 MiB, which is watched. It
// returns the programs.
func writeAndRead(t *testing.T, bytes int, flags ...string) (all []*testcluster.Process) {
	const room = 4 << 20
	c := serve(t, 3, 3, append(flags, "--memory", "4MiB")...)
	for node := range 3 {
		all = append(all, join(t, c, node, node, 3))
	}
	stop := watch(t, c, 3, room)
	for _, p := range all {
		p.Do(t, "ok", "alloc data %d", bytes/os.Getpagesize())
	}
	writers := all[:unlessShort(2, 1)]
	for i, writer := range writers {
		writer.Do(t, "ok", "fill data %d", 7+i)
		all[(i+1)%len(all)].Do(t, "ok", "check data %d", 7+i)
	}
	for i, p := range all {
		if i != len(writers)%len(all) { // who has just checked it
			p.Do(t, "ok", "check data %d", 6+len(writers))
		}
	}
	stop()
	return all
}

// watch looks that no node has more bytes of pages in memory than room, until stop is called.
func watch(t *testing.T, c *testcluster.Cluster, nodes int, room int64) (stop func()) {
	over := make(chan struct{})
	var watching sync.WaitGroup
	for node := range nodes {
		file := pageFile(t, c.Daemons[node].PID())
		watching.Go(func() {
			for {
				var st syscall.Stat_t
				if err := syscall.Stat(file, &st); err == nil && st.Blocks*512 > room {
					t.Errorf("node %d has %d bytes of pages, and room for %d", node, st.Blocks*512, room)
					return
				}
				select {
				case <-over:
					return
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	return func() {
		close(over)
		watching.Wait()
	}
}

// TestAllocOfMoreThanFits: memory that all nodes together can never have is refused at once, and
// the program is told what there is.
func TestAllocOfMoreThanFits(t *testing.T) {
	c := serve(t, 2, 2, "--memory", "4MiB")
	p := join(t, c, 0, 0, 2)
	pages := 9 << 20 / os.Getpagesize()
	answer := p.Ask(t, "alloc data %d", pages)
	for _, part := range []string{"9 MiB", "8 MiB", "node 0 for 4 MiB, node 1 for 4 MiB", "--memory", "--spill"} {
		if !strings.Contains(answer, part) {
			t.Errorf("the program is told %q, without %q", answer, part)
		}
	}
	p.Do(t, "ok", "alloc data %d", pages/9*8)
	p.Succeed(t)
}
