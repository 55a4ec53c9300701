package backing

import (
	"errors"
	"fmt"
	"slices"

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

// alike is how many of the first transfers have brought neighbouring pages that can be installed
// together: nobody wants anything else of them.
func alike(t *Table, list []*diskio.Transfer) (n int) {
	var first pagetable.Operation
	for ; n < min(len(list), mostInRun, pagetable.MaxRunBytes/t.PageBytes()); n++ {
		m := list[n].Owner.(*move)
		if list[n].Write || !m.brought || t.moving[m.page] != m || len(m.ops) != 1 || t.file.check(m.page, &m.at, list[n]) != nil {
			break
		}
		o := m.ops[0]
		if n == 0 {
			first = o
		}
		if o.Op != pagetable.OpInstall || o.Page != first.Page+pagetable.Page(n) || o.Writable != first.Writable || o.Proc != first.Proc {
			break
		}
	}
	return n
}

// installRun installs pages that have been read, all at once.
func installRun(t *Table, list []*diskio.Transfer) {
	o := list[0].Owner.(*move).ops[0]
	t.data = t.data[:0]
	for _, tr := range list {
		t.data = append(t.data, tr.Buf...)
	}
	outcomes := t.outcomes[:len(list)]
	err := t.Table.Operate(&pagetable.Run{Op: o.Op, First: o.Page, Count: len(list), Writable: o.Writable, Proc: o.Proc, Data: t.data}, outcomes)
	for i, tr := range list {
		m := tr.Owner.(*move)
		o, m.ops = m.ops[0], nil
		if err == nil && outcomes[i] == pagetable.Pending {
			m.buf = slices.Clone(tr.Buf)
			t.waitBeneath(m, installing, o)
		} else {
			t.end(m)
			t.tell(o, err)
		}
		t.queue.Recycle(tr.Buf)
	}
}
