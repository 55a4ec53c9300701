package dsm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"

	"dsmd/internal/attach"
	"dsmd/internal/uffd"
	"dsmd/internal/uffd/uffdtest"
)

// lostTestPage is the page of the region that is lost in these tests; the others are zeros.
const lostTestPage = 2

// losePages is a daemon to which one page was lost with node 3.
func losePages(t *testing.T) func(*fake) {
	return func(f *fake) {
		f.answer = func(call attach.Call) (attach.Reply, bool) {
			r := attach.Reply{Ticket: call.Ticket, Status: attach.StatusUnknown}
			if call.Object == lostTestPage {
				r.Status, r.Rank = attach.StatusOK, 3
			}
			return r, call.Op == attach.OpLostPage
		}
		f.trapped = serve(t, testBase+lostTestPage*testPage)
	}
}

// programGuard says, a line each, how Guards end.
func programGuard(c *Cluster) {
	must(Alloc[byte](context.Background(), c, "before", testPage))
	// pages 1 to 4 of the region
	grid := must(Alloc[int64](context.Background(), c, "grid", 4*testPage/8))
	say := func(what string, err error) {
		var lost *PageLostError
		if !errors.As(err, &lost) {
			fmt.Println(what, err)
			return
		}
		fmt.Println(what, lost.Name, lost.Offset, lost.Node, lost.Addr == addressOf(&grid[lost.Offset/8]), errors.Is(err, ErrPageLost))
	}
	at := testPage / 8 // the first element of the lost page
	say("fine", Guard(func() { grid[0] = 5 }))
	say("load", Guard(func() { sink = byte(grid[at]) }))
	say("store", Guard(func() { grid[at+7] = 1 }))
	say("copy", Guard(func() { copy(make([]int64, len(grid)), grid[at+3:]) }))
	unwound := 0
	say("outer", Guard(func() {
		say("inner", Guard(func() {
			defer func() { unwound++ }()
			grid[0], grid[at], grid[1] = 6, 1, 7
		}))
		unwound += 10
		sink = byte(grid[at+1])
		unwound += 100
	}))
	fmt.Println("unwound", unwound, grid[0], grid[1])
	other := make(chan error)
	go func() { other <- Guard(func() { grid[at] = 1 }) }()
	say("goroutine", <-other)
	fmt.Println("setting", debug.SetPanicOnFault(false))
	func() {
		defer func() { fmt.Println("panic", recover()) }()
		Guard(func() { panic("of f") })
	}()
	func() {
		defer func() { fmt.Println("nil", recover()) }()
		Guard(func() { *(*int)(nil) = 1 })
	}()
	freed := must(Alloc[byte](context.Background(), c, "freed", 1))
	must(0, Free(context.Background(), c, freed))
	func() {
		defer func() { fmt.Println("freed", recover() != nil) }()
		Guard(func() { freed[0] = 1 })
	}()
	func() {
		defer func() { fmt.Println("after Guard", recover()) }()
		debug.SetPanicOnFault(true)
		grid[at] = 1
	}()
	_ = c.end(ErrClosed) // Close has begun
	fmt.Println("closing", errors.Is(Guard(func() { grid[at] = 1 }), ErrClosed))
}

const guarded = `fine <nil>
load grid 4096 3 true true
store grid 4152 3 true true
copy grid 4120 3 true true
inner grid 4096 3 true true
outer grid 4104 3 true true
unwound 11 6 0
goroutine grid 4096 3 true true
setting false
panic of f
nil runtime error: invalid memory address or nil pointer dereference
freed true
after Guard runtime error: invalid memory address or nil pointer dereference
closing true
`

func requirePoison(t *testing.T) {
	t.Helper()
	uffdtest.Require(t)
	fd, err := uffd.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	if fd.Features()&uffd.FeaturePoison == 0 {
		t.Skip("this kernel has no UFFDIO_POISON, so a program that touches a lost page is ended: Linux 6.6 is needed")
	}
}

func TestGuard(t *testing.T) {
	requirePoison(t)
	f := newFake(t, 1, losePages(t))
	status, out, stderr := f.start("guard").end()
	if status != 0 || out != guarded {
		t.Errorf("status %d, output\n%swant\n%s%s", status, out, guarded, stderr)
	}
}

// programGuardAtLast touches a lost page.
func programGuardAtLast(c *Cluster) {
	s := must(Alloc[byte](context.Background(), c, "s", 4*testPage))
	fmt.Println("guarded", Guard(func() { s[lostTestPage*testPage] = 1 }))
}

// TestGuardWithoutDaemon: when the daemon has ended before it could say that a page is lost, the
// program ends as it does at every access then.
func TestGuardWithoutDaemon(t *testing.T) {
	requirePoison(t)
	f := newFake(t, 1, losePages(t), func(f *fake) {
		f.answer = func(call attach.Call) (attach.Reply, bool) {
			if call.Op == attach.OpLostPage {
				go f.die()
			}
			return attach.Reply{}, call.Op == attach.OpLostPage // it is not answered
		}
	})
	status, out, stderr := f.start("guard at last").end()
	if status != ExitLost || out != "" {
		t.Errorf("status %d, output %q\n%s", status, out, stderr)
	}
}

// programUnguarded touches a lost page without a Guard.
func programUnguarded(c *Cluster) {
	s := must(Alloc[byte](context.Background(), c, "s", 4*testPage))
	fmt.Println("before")
	s[lostTestPage*testPage+5] = 1
	fmt.Println("after")
}

// TestUnguarded: the program ends at the access, with a report that names the address.
func TestUnguarded(t *testing.T) {
	requirePoison(t)
	f := newFake(t, 1, losePages(t))
	status, out, stderr := f.start("unguarded").end()
	want := fmt.Sprintf("unexpected fault address %#x", testBase+lostTestPage*testPage+5)
	if status != 2 || out != "before\n" || !strings.Contains(stderr, want) || !strings.Contains(stderr, "fatal error: fault") {
		t.Errorf("status %d, output %q\n%s", status, out, stderr)
	}
}

// unservedPage is the page of the region for which programs wait in vain in TestGuardAtClose.
const unservedPage = 1

// programGuardedClose closes the cluster while one goroutine reads and another waits for a page.
func programGuardedClose(c *Cluster) {
	s := must(Alloc[byte](context.Background(), c, "s", 2*testPage))
	errs := make(chan error)
	var reads atomic.Int64
	go func() {
		errs <- Guard(func() {
			for {
				sink = s[0]
				reads.Add(1)
			}
		})
	}()
	go func() { errs <- Guard(func() { sink = s[unservedPage*testPage] }) }()
	must(io.ReadAll(os.NewFile(3, "the other waits")))
	for reads.Load() == 0 {
		runtime.Gosched()
	}
	must(0, c.Close())
	for range 2 {
		err := <-errs
		fmt.Println(errors.Is(err, ErrClosed), errors.Is(err, ErrPageLost))
	}
	fmt.Println("later", errors.Is(Guard(func() { s[0] = 1 }), ErrClosed))
	defer func() { fmt.Println("beyond", recover() != nil) }()
	beyond := sliceAt[byte](c.region.at(c.region.bytes), 1)
	Guard(func() { sink = beyond[0] })
}

// TestGuardAtClose: who touches memory when the cluster is closed gets an error. Addresses that
// were not the cluster's are no such error.
func TestGuardAtClose(t *testing.T) {
	uffdtest.Require(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f := newFake(t, 1, func(f *fake) {
		f.trapped = func(fd *uffd.FD, stop <-chan struct{}) {
			eachFault(fd, stop, func(fault uffd.Fault) {
				if page := fault.Addr &^ (testPage - 1); page == testBase+unservedPage*testPage {
					w.Close() // the second time it is an error that nobody minds
				} else {
					settle(t, fd, page, false)
				}
			})
		}
	})
	p := f.start("guarded close", r)
	status, out, stderr := p.end()
	if want := "true false\ntrue false\nlater true\nbeyond true\n"; status != 0 || out != want {
		t.Errorf("status %d, output %q, want %q\n%s", status, out, want, stderr)
	}
}

func TestPageLostErrorSaysWhatToDo(t *testing.T) {
	err := &PageLostError{Addr: 0x4000_0000_1008, Name: "grid", Offset: 8, Node: 3}
	for _, want := range []string{`"grid"`, "byte 8", "node 3", "0x400000001008", "free"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}
