package pagetable

import "dsmd/internal/uffd"

// Traps is the seam over the kernel, for tests that inject its rarer answers.
type Traps = traps

// WrapTraps puts wrap around the kernel interface of an attached program.
func (u *Uffd) WrapTraps(proc ProcID, wrap func(Traps) Traps) {
	pr := u.program(proc)
	pr.traps = wrap(pr.traps)
}

// FDOf is the userfaultfd of an attached program.
func (u *Uffd) FDOf(proc ProcID) *uffd.FD { return u.program(proc).traps.(*uffd.FD) }

// AddrOf is where an attached program has a page.
func (u *Uffd) AddrOf(proc ProcID, p Page) uintptr { return u.addr(u.program(proc), p) }

// PutBehindItsBack writes a page into the memory file, as only something outside the table could.
func (u *Uffd) PutBehindItsBack(p Page, data []byte) error {
	if errno := u.mem.writeAt(data, u.offset(p)); errno != 0 {
		return errno
	}
	return nil
}

// PendingCount is how many operations wait for Poll.
func (u *Uffd) PendingCount() int { return len(u.pending) }

// The bounds that tests exceed.
const (
	EagainTries = eagainTries
	MaxPending  = maxPending
)
