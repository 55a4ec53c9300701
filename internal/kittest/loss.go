package kittest

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"dsmd/dsm"
)

// NodeWithoutRank ends the program of rank 2 of three, and returns the ranks that are left. Their
// lose has the daemon of that node lost, too, and waits until they know of every page that was
// lost with it.
func NodeWithoutRank(t *testing.T, ctx context.Context, c *dsm.Cluster) (left *dsm.Survivors, lose func()) {
	t.Helper()
	// Every node is the home of some of these pages.
	untouched := Must[[]byte](t)(dsm.Alloc[byte](ctx, c, "untouched", 64*c.PageBytes()))
	killed := Must[*atomic.Int64](t)(dsm.Isolate[atomic.Int64](ctx, c, "killed"))
	switch c.Rank() {
	case 0:
		killed.Store(0) // so that it is here, and can't be lost
	case 2:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	if err := c.Barrier(ctx); !errors.Is(err, dsm.ErrNodeLost) {
		t.Fatal("the rank is not lost: ", err)
	}
	left = Must[*dsm.Survivors](t)(c.Survivors(ctx))
	return left, func() {
		t.Helper()
		if left.Index() == 0 {
			killDaemon(t, "2")
			killed.Store(1)
		}
		for killed.Load() == 0 {
			if ctx.Err() != nil {
				t.Fatal(ctx.Err())
			}
			time.Sleep(time.Millisecond)
		}
		lost, sum := 0, byte(0) // who touches a page waits until it is known
		for at := 0; at < len(untouched); at += c.PageBytes() {
			if dsm.Guard(func() { sum += untouched[at] }) != nil {
				lost++
			}
		}
		if lost == 0 || sum != 0 {
			t.Fatalf("%d pages are lost, the sum is %d", lost, sum)
		}
	}
}

// killDaemon kills the daemon of a node, which `dsmd run` has started, as it has this rank.
func killDaemon(t *testing.T, node string) {
	t.Helper()
	for _, p := range Must[procfs.Procs](t)(procfs.AllProcs()) {
		stat, _ := p.Stat() // of one that has ended there is none
		line, _ := p.CmdLine()
		if at := slices.Index(line, "--id"); stat.PPID == os.Getppid() && at >= 0 && line[at+1] == node {
			Must[any](t)(nil, syscall.Kill(p.PID, syscall.SIGKILL))
			return
		}
	}
	t.Fatal("no daemon was found")
}
