package backing

import (
	"errors"
	"fmt"

	"dsmd/internal/diskio"
	"dsmd/pagetable"
)

// Location is the place of a page's contents in a file.
type Location struct {
	FD     int
	Offset int64  // in bytes; with O_DIRECT a multiple of the system's page size
	CRC    uint32 // what the CRC-32C of the contents must be, if Check is set
	Check  bool
	Keep   any  // is not garbage before the page has come: what holds FD open
	Pad    bool // what lies behind the end of the file reads as zeros; else it is an error
}

// ErrDamaged is wrapped by the errors of contents whose checksum is not the one that Location
// names.
var ErrDamaged = errors.New("the contents are damaged: their checksum is another")

// Bring makes an absent page present with contents from a file. It is an Install whose contents
// come later: it returns Pending, and Completed with OpInstall follows when the page is present.
// If the contents can't be read, or are damaged, that event says so, and the page is absent as
// before. Until then operations on the page wait. The file must stay open as long: see Keep. Each
// page that is on its way has a buffer; the caller bounds how many there are. Errors: out of
// memory, or the table is closed.
//
// A page that comes so counts neither for Loading nor for Came: to the caller its arrival is the
// end of an Install.
func (t *Table) Bring(p pagetable.Page, from Location, writable bool, proc pagetable.ProcID) (pagetable.Outcome, error) {
	switch {
	case t.queue == nil:
		return pagetable.Done, pagetable.ErrClosed
	case t.touches(p, 1):
		panic(fmt.Sprintf("backing: page %d is brought, and it is in the spill file or on its way", p))
	}
	m := &move{page: p, at: from, brought: true}
	return pagetable.Pending, t.fetch(m, pagetable.Operation{Op: pagetable.OpInstall, Page: p, Writable: writable, Proc: proc})
}

// transfer is the read of a page's contents.
func (at *Location) transfer(buf []byte) *diskio.Transfer {
	return &diskio.Transfer{FD: at.FD, Offset: at.Offset, Buf: buf, Pad: at.Pad, Sum: at.Check}
}
