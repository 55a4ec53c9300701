package dsm

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"dsmd/internal/attach"
)

// PageLostError is the error of Guard when an access met a page that is lost: its only copy was on
// a node that is lost. Nobody has its contents any more, and no access to it, in any program,
// returns anything. The other pages of the allocation may be there. When all programs have freed
// the memory it can be allocated again, and is zero then. With `dsmd run --lost checkpoint` there
// is no such error about pages that the job's last checkpoint has. It wraps ErrPageLost.
type PageLostError struct {
	Addr   uintptr // that was touched
	Name   string  // of the allocation, as Alloc was given it
	Offset uint64  // of Addr in the allocation, in bytes
	Node   int     // that had the only copy
}

func (e *PageLostError) Error() string {
	return fmt.Sprintf("dsm: %v: byte %d of %q, at %#x; node %d had the only copy. Compute it anew in other memory, or free %q everywhere and allocate it again",
		ErrPageLost, e.Offset, e.Name, e.Addr, e.Node, e.Name)
}

// Unwrap makes errors.Is find ErrPageLost.
func (e *PageLostError) Unwrap() error { return ErrPageLost }

// Guard calls f and returns nil when that returns, or a *PageLostError as soon as f touches a page
// that is lost. Then f has ended in the middle, as if the access had panicked: its deferred calls
// have run, and what it has stored until then stays stored. In the same way f ends, with an error
// that wraps ErrClosed, when it touches memory of a Cluster that this process has closed, or waits
// for a page while another goroutine calls Close. That holds until the process joins again at these
// addresses.
//
// It is about the calling goroutine only: goroutines that f starts need Guards of their own. Guards
// may be nested; the innermost returns the error. It costs about as much as a deferred call, so put
// it around a step of the computation and not around each access.
//
// Inside Guard the calling goroutine's memory faults are panics (runtime/debug.SetPanicOnFault).
// Those that have another reason than these two, and all other panics, pass through it. A fault in
// C code ends the program as ever.
//
// Without Guard, touching a lost page, or memory of a closed Cluster, ends the program with Go's
// own report: "unexpected fault address", which lies in the shared region, and "fatal error:
// fault". System calls that are given such a page return EFAULT, with Guard or without.
func Guard(f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		what := recover()
		if what == nil {
			return
		}
		if fault, ok := what.(interface{ Addr() uintptr }); ok {
			if err = whyFault(fault.Addr()); err != nil {
				return
			}
		}
		panic(what)
	}()
	f()
	return nil
}

// whyFault is the error of an access to shared memory that has failed at addr: its page is lost, or
// its cluster closed. It returns nil if the fault has another reason.
func whyFault(addr uintptr) error {
	c := clusterAt(addr)
	switch {
	case c == nil && isReserved(addr):
		return closedAt(addr)
	case c == nil:
		return nil
	}
	offset := addr - uintptr(c.region.base)
	m := c.memoryAt(offset)
	if m == nil {
		return nil // freed, or never allocated: a mistake of the program
	}
	r, err := c.do(context.Background(), attach.Call{Op: attach.OpLostPage, Object: uint64(offset) / uint64(c.welcome.PageBytes)})
	if errors.Is(err, ErrLost) {
		// By now all is lost, and nobody knows why the access failed. It waits for the end of the
		// program, as any access does, or for Close.
		<-c.closing
		return closedAt(addr)
	}
	switch {
	case errors.Is(err, ErrClosed):
		return closedAt(addr)
	case err != nil || r.Status != attach.StatusOK:
		return nil
	}
	return &PageLostError{Addr: addr, Name: m.name, Offset: uint64(offset - m.offset), Node: int(r.Rank)}
}

func closedAt(addr uintptr) error {
	return failure("Guard", fmt.Errorf("%w, and %#x was memory of it", ErrClosed, addr))
}

// joined are the clusters of this process that are not closed, so that Guard finds the one to which
// an address belongs.
var joined struct {
	sync.Mutex // nothing else is taken under it
	all        []*Cluster
}

// clusterAt is the cluster in whose region an address lies, or nil.
func clusterAt(addr uintptr) *Cluster {
	joined.Lock()
	defer joined.Unlock()
	for _, c := range joined.all {
		if addr-uintptr(c.region.base) < c.region.bytes {
			return c
		}
	}
	return nil
}
