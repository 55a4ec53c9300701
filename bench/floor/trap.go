package floor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
)

// trap registers m with a new userfaultfd. The caller says later how it wants to wait: uffd's
// descriptors do not block.
func (m mapping) trap() (*uffd.FD, error) {
	fd, err := uffd.Open()
	if err != nil {
		return nil, fmt.Errorf("opening a userfaultfd (`dsmd doctor` says what is missing): %w", err)
	}
	if err := fd.Register(m.addr(), uintptr(m.bytes)); err != nil {
		return nil, err
	}
	return fd, nil
}

// A trapReader is D's side of a userfaultfd.
type trapReader struct {
	fd     *uffd.FD
	spin   bool
	buffer uffd.Buffer
}

// newTrapReader takes over a descriptor.
func newTrapReader(n int, spin bool) *trapReader {
	return &trapReader{fd: uffd.From(n), spin: spin}
}

// next waits for the next fault. Reads of uffd do not block, so one that does not spin polls first.
func (t *trapReader) next() (uffd.Fault, error) {
	wait := newWait(t.spin)
	for {
		if wait.exhausted() {
			if err := pollIn(t.fd.Sysfd()); err != nil {
				return uffd.Fault{}, err
			}
		}
		faults, err := t.read(1)
		if err != nil {
			return uffd.Fault{}, err
		}
		if len(faults) > 0 {
			return faults[0], nil
		}
	}
}

// read returns up to limit faults that are there, by the addresses of their pages.
func (t *trapReader) read(limit int) ([]uffd.Fault, error) {
	faults, err := t.fd.ReadFaults(&t.buffer, limit)
	if err != nil {
		return nil, fmt.Errorf("reading the userfaultfd: %w", err)
	}
	for i := range faults {
		faults[i].Addr &^= PageBytes - 1
	}
	return faults, nil
}

// install copies pages to addr and wakes who waits for them.
func (t *trapReader) install(addr uintptr, pages []byte, mode uint64) error {
	for {
		_, errno := t.fd.Copy(addr, pages, mode)
		switch errno {
		case 0:
			return nil
		case unix.EAGAIN: // The address space is changing; the fault is still there.
		default:
			return fmt.Errorf("UFFDIO_COPY to %#x: %w", addr, errno)
		}
	}
}

// installer returns what installs pages in a fresh mapping of so many, one behind the other.
func installer(pages int) (put func(pages []byte) error, err error) {
	m, err := mapFresh(pages)
	if err != nil {
		return nil, err
	}
	fd, err := m.trap()
	if err != nil {
		return nil, err
	}
	t, next := trapReader{fd: fd}, m.addr()
	return func(pages []byte) error {
		at := next
		next += uintptr(len(pages))
		return t.install(at, pages, 0)
	}, nil
}

// unprotect allows stores to the page at addr and wakes the program.
func (t *trapReader) unprotect(addr uintptr) error {
	for {
		switch errno := t.fd.WriteProtect(addr, PageBytes, false, false); errno {
		case 0:
			return nil
		case unix.EAGAIN:
		default:
			return fmt.Errorf("UFFDIO_WRITEPROTECT at %#x: %w", addr, errno)
		}
	}
}
