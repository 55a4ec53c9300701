package pagetable

import "dsmd/internal/uffd"

// Traps is the seam over the kernel, for tests that inject its rarer answers.
type Traps = traps

// WrapTraps puts wrap around the kernel interface of an attached program.
func (u *Uffd) WrapTraps(proc ProcID, wrap func(Traps) Traps) {
	pr := u.programs.find(proc)
	pr.traps = wrap(pr.traps)
}

// FDOf is the userfaultfd of an attached program.
func (u *Uffd) FDOf(proc ProcID) *uffd.FD { return u.programs.find(proc).traps.(*uffd.FD) }

// AddrOf is where an attached program has a page.
func (u *Uffd) AddrOf(proc ProcID, p Page) uintptr { return u.programs.addr(u.programs.find(proc), p) }

// PutBehindItsBack writes a page into the memory file, as only something outside the table could.
func (u *Uffd) PutBehindItsBack(p Page, data []byte) error {
	if errno := u.mem.writeAt(data, u.offset(p)); errno != 0 {
		return errno
	}
	return nil
}

// InFile reports whether the memory file has a page.
func (u *Uffd) InFile(p Page) bool { return u.mem.present(u.offset(p)) }

// LeftCount is how many programs are detached and may live, and how many of those have something
// left to protect.
func (u *Uffd) LeftCount() (left, sealing int) { return len(u.programs.left), u.programs.sealing }

// PendingCount is how many operations wait for Poll.
func (u *Uffd) PendingCount() int { return len(u.pending) }

// The bounds that tests exceed.
const (
	EagainTries = eagainTries
	MaxPending  = maxPending

	StretchBytes = stretchBytes
	SealAtOnce   = sealAtOnce
)

// ProgramCount is how many programs are known, those among them that are leaving.
func (s *Sigsegv) ProgramCount() int { return len(s.programs) }

// BreakFile makes the memory file unusable, and returns what mends it.
func (u *Uffd) BreakFile() (mend func()) {
	fd := u.mem.fd
	u.mem.fd = -1
	return func() { u.mem.fd = fd }
}

// Scatter reads the file from a page on.
func (u *Uffd) Scatter(p Page, into ...[]byte) error {
	if errno := u.mem.scatterAt(into, u.offset(p)); errno != 0 {
		return errno
	}
	return nil
}
