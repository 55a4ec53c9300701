package dsm

import (
	"errors"
	"fmt"

	"dsmd/internal/attach"
	"dsmd/internal/sigsegv"
	"dsmd/internal/uffd"
)

// trap is how accesses to pages that are not here are caught in this process: a back end's side of
// the program. The daemon says which one.
type trap interface {
	// handover is the descriptors that the daemon gets, one for each reactor, and the frame that
	// they come with.
	handover() (fds []int, frame attach.Trap)
	// handedOver is called when the daemon has it.
	handedOver()
	// register puts a run under the trap that was just mapped without access. In a readOnly run a
	// store is an ordinary segmentation fault, and the daemon is not told. unregister is called
	// before the run is unmapped.
	register(addr, bytes uintptr, readOnly bool) error
	unregister(addr, bytes uintptr) error
	// here reports whether all pages of a run are known to be here at this moment: for stores if
	// write is set, else for loads.
	here(addr, bytes uintptr, write bool) bool
	// fetched is called when the daemon has fetched the pages of a run, so that system calls can
	// use them at once.
	fetched(addr, bytes uintptr)
	// retire is called before the whole region is unmapped.
	retire()
	// close is called after that, and before the daemon is told of the end. Threads that still wait
	// get their segmentation fault.
	close() error
}

// Names of the back ends in Welcome.Trap.
const (
	trapUffd    = "uffd"
	trapSigsegv = "sigsegv"
)

// openTrap opens the trap that the daemon wants.
func openTrap(w *attach.Welcome, r *region) (trap, error) {
	if w.Trap == trapSigsegv {
		t, err := sigsegv.Open(sigsegv.Config{Base: uintptr(w.RegionBase), Bytes: uintptr(w.RegionBytes), PageBytes: uintptr(w.PageBytes)})
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoTrap, err)
		}
		return segvTrap{t}, nil
	}
	t := uffdTrap{region: r}
	for range w.Reactors {
		fd, err := uffd.Open()
		if err == nil {
			t.fds = append(t.fds, fd)
			continue
		}
		_ = t.close() // nothing was done by them
		return nil, fmt.Errorf("%w: %w; or start the daemon with --trap sigsegv; `dsmd doctor` says what this machine allows", ErrNoTrap, err)
	}
	pages, err := uffd.OpenPagemap()
	if err == nil { // else the daemon knows, too
		t.pages = pages
	}
	return t, nil
}

// uffdTrap traps by userfaultfd: the kernel tells the daemon.
type uffdTrap struct {
	region *region
	fds    []*uffd.FD    // one for each reactor of the daemon
	pages  *uffd.Pagemap // nil where there is none
}

func (t uffdTrap) handover() (fds []int, frame attach.Trap) {
	for _, fd := range t.fds {
		fds = append(fds, fd.Sysfd())
	}
	return fds, attach.Trap{UserModeOnly: !t.fds[0].Mode().KernelFaults(), Features: uint64(t.fds[0].Features())}
}
func (t uffdTrap) handedOver() {} // its copies keep the registrations alive
func (t uffdTrap) register(addr, bytes uintptr, readOnly bool) error {
	return t.region.eachPart(addr, bytes, func(reactor int, addr, bytes uintptr) error {
		if readOnly {
			return t.fds[reactor].RegisterReadOnly(addr, bytes)
		}
		return t.fds[reactor].Register(addr, bytes)
	})
}
func (t uffdTrap) unregister(addr, bytes uintptr) error { return nil } // unmapping does it
func (t uffdTrap) here(addr, bytes uintptr, write bool) bool {
	return t.pages != nil && t.pages.Maps(addr, bytes, write)
}
func (t uffdTrap) fetched(addr, bytes uintptr) {} // the daemon has mapped them
func (t uffdTrap) retire()                     {}

// The kernel wakes threads that still wait in the region: they fault again, now without the trap.
func (t uffdTrap) close() error {
	var errs []error
	if t.pages != nil {
		errs = append(errs, t.pages.Close())
	}
	for _, fd := range t.fds {
		errs = append(errs, fd.Close())
	}
	return errors.Join(errs...)
}

// segvTrap traps by memory protection: a signal handler tells the daemon.
type segvTrap struct{ t *sigsegv.Trap }

func (t segvTrap) handover() ([]int, attach.Trap) {
	return []int{t.t.Handover()}, attach.Trap{Sigsegv: true, UserModeOnly: true}
}
func (t segvTrap) handedOver() { t.t.HandedOver() }
func (t segvTrap) register(addr, bytes uintptr, readOnly bool) error {
	return t.t.Register(addr, bytes, readOnly)
}
func (t segvTrap) unregister(addr, bytes uintptr) error      { return t.t.Unregister(addr, bytes) }
func (t segvTrap) here(addr, bytes uintptr, write bool) bool { return false } // the daemon knows
func (t segvTrap) fetched(addr, bytes uintptr)               { t.t.Map(addr, bytes) }
func (t segvTrap) retire()                                   { t.t.Retire() }
func (t segvTrap) close() error                              { return t.t.Close() }
