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
// as much as one of them may have, which each writes and all read. Everything is found as it was
// written, and at no time does a node have more than it may.
func TestRoom(t *testing.T) {
	for _, trap := range []string{"uffd", "sigsegv"} {
		t.Run(trap, func(t *testing.T) {
			if trap == "sigsegv" {
				requireCgo(t)
			}
			const room = 4 << 20
			c := serve(t, 3, 3, "--trap", trap, "--memory", "4MiB")
			var all []*testcluster.Process
			stop := make(chan struct{})
			var watching sync.WaitGroup
			for node := range 3 {
				all = append(all, join(t, c, node, node, 3))
				file := pageFile(t, c.Daemons[node].PID())
				watching.Go(func() {
					for {
						var st syscall.Stat_t
						if err := syscall.Stat(file, &st); err == nil && st.Blocks*512 > room {
							t.Errorf("node %d has %d bytes of pages, and room for %d", node, st.Blocks*512, room)
							return
						}
						select {
						case <-stop:
							return
						case <-time.After(time.Millisecond):
						}
					}
				})
			}
			for _, p := range all {
				p.Do(t, "ok", "alloc data %d", 9<<20/os.Getpagesize())
			}
			for i, writer := range all {
				writer.Do(t, "ok", "fill data %d", 7+i)
				for _, p := range all {
					p.Do(t, "ok", "check data %d", 7+i)
				}
			}
			close(stop)
			watching.Wait()
			for node, p := range all {
				if counter(t, p, "pages_evicted") == 0 {
					t.Errorf("node %d has dropped no copy", node)
				}
				p.Succeed(t)
			}
		})
	}
}
