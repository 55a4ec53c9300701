package backing

import (
	"errors"
	"fmt"
	"math"
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
	Keep   any // is not garbage before the page has come: what holds FD open
	Least  int // diskio.Transfer.Least
}

// Elsewhere is no place that a Table can read: its caller does, and calls Deliver.
var Elsewhere = Location{FD: math.MinInt32}

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

// Await is Bring for contents that the caller reads, and gives to Deliver. If the page is freed
// meanwhile they are not wanted any more.
func (t *Table) Await(p pagetable.Page, writable bool, proc pagetable.ProcID) error {
	switch {
	case t.queue == nil:
		return pagetable.ErrClosed
	case t.touches(p, 1):
		panic(fmt.Sprintf("backing: page %d is awaited, and it is in the spill file or on its way", p))
	}
	t.moving[p] = &move{page: p, stage: reading, at: Elsewhere, brought: true,
		ops: []pagetable.Operation{{Op: pagetable.OpInstall, Page: p, Writable: writable, Proc: proc}}}
	return nil
}

// Deliver brings the contents of a page that is awaited, or why they don't come. They are used by
// the next Poll, and then over is called. Neighbours that are delivered together are installed
// together. It does nothing but call over if the page is not awaited.
func (t *Table) Deliver(p pagetable.Page, contents []byte, why error, over func()) {
	m := t.moving[p]
	if m == nil || m.stage != reading || m.at != Elsewhere {
		over()
		return
	}
	if t.delivered = append(t.delivered, &diskio.Transfer{FD: Elsewhere.FD, Buf: contents, Owner: m, Err: why}); len(t.delivered) == 1 {
		t.queue.Tell()
	}
	t.overs = append(t.overs, over)
}

// InFile reports whether a page is in the spill file, and not in memory.
func InFile(t *Table, p pagetable.Page) bool {
	_, is := slotOf(t, p)
	return is
}

func slotOf(t *Table, p pagetable.Page) (slot uint32, is bool) {
	if m := t.moving[p]; m != nil && m.stage == reading && t.file.has(&m.at) {
		return t.file.slot(&m.at), true
	}
	slot, is = t.stored[p]
	return slot, is
}

// Copy reads a page that is in the spill file. The page does not come back into memory for that.
// over gets what the page holds now, whatever is done to it meanwhile, or why that can't be read; a
// later Poll calls it. The contents are valid until it returns. Each page has a buffer; the caller
// bounds how many there are. Precondition: InFile. Errors: out of memory.
func Copy(t *Table, p pagetable.Page, over func(contents []byte, why error)) error {
	buf, err := t.queue.Buffer()
	if err != nil {
		return err
	}
	slot, _ := slotOf(t, p)
	t.file.slots.lend(slot)
	read(t, &move{page: p, stage: reading, at: t.file.at(slot), over: over}, buf)
	return nil
}

// Unload has pages leave memory without being written anywhere: whenever they are wanted, they are
// read from where Origin says. It returns how many leave, as Spill. Preconditions: the pages are
// present and read-only, and what is in them is what is there.
func (t *Table) Unload(pages ...pagetable.Page) (leave int, err error) {
	for len(pages) > 0 {
		n := t.neighbours(pages)
		if n == 0 {
			pages = pages[1:]
			continue
		}
		for i := range n {
			m := &move{page: pages[i], stage: leaving, unloaded: true}
			t.moving[m.page] = m
			t.writing++
		}
		outcomes := t.outcomes[:n]
		run := pagetable.Run{Op: pagetable.OpRevoke, First: pages[0], Count: n}
		if err := t.Table.Operate(&run, outcomes); err != nil {
			return leave, err
		}
		for i, out := range outcomes {
			if out == pagetable.Done {
				unload(t, t.moving[pages[i]])
			}
		}
		leave += n
		pages = pages[n:]
	}
	return leave, nil
}

// unload notes that a page is in memory no longer, and does what has waited for that.
func unload(t *Table, m *move) {
	t.Left(m.page)
	t.writing--
	delete(t.moving, m.page)
	t.unloaded.Add(m.page)
	for _, o := range m.ops {
		if out, err := t.operate(o); out == pagetable.Done || err != nil {
			t.tell(o, err)
		}
	}
}

// transfer is the read of a page's contents.
func (at *Location) transfer(buf []byte) *diskio.Transfer {
	return &diskio.Transfer{FD: at.FD, Offset: at.Offset, Buf: buf, Least: at.Least, Sum: at.Check}
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
		recycle(t, tr)
	}
}

// recycle gives back the buffer of a transfer that is over. That of contents which were delivered
// is the caller's.
func recycle(t *Table, tr *diskio.Transfer) {
	if tr.FD != Elsewhere.FD {
		t.queue.Recycle(tr.Buf)
	}
}
