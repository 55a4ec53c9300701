package spill

import (
	"errors"
	"fmt"

	"dsmd/internal/netio"
	"dsmd/pagetable"
)

// mostLeaving is how many pages are on their way to the file at a time.
const mostLeaving = 1 << 10

// Table is a page table some of whose pages are on a disk. Its methods belong to the goroutine of
// the table beneath it, except WaitFD and Close, as with every Table.
type Table struct {
	pagetable.Table // in memory
	file            *file
	poller          *netio.Poller // of both

	stored  map[pagetable.Page]uint32 // pages in the file, and their slots
	moving  map[pagetable.Page]*move
	pending map[pagetable.Page]bool // pages with an operation of the caller that is pending beneath
	writing int                     // pages that are on their way to the file
	loading int                     // pages that are on their way back
	failed  error                   // why nothing is written any more
	ready   []pagetable.Event       // for Poll

	bufs     [mostInRun][]byte // room for arguments
	outcomes [mostInRun]pagetable.Outcome

	// Left is called when a page has left memory, and Came when it is back. nil: nobody wants to
	// know.
	Left, Came func(pagetable.Page)
}

// mostInRun is how many pages a run has, where they have the least size.
const mostInRun = pagetable.MaxRunBytes / (4 << 10)

// New puts pages that table has no room for into a file in dir, which is on a disk. It takes table
// over unless it fails. direct is whether reads and writes bypass the page cache, which not every
// file system can; without that they take some more memory for a while. Errors: dir cannot be
// written to, or is in memory.
func New(table pagetable.Table, dir string) (t *Table, direct bool, err error) {
	f, direct, err := create(dir, table.PageBytes())
	if err != nil {
		return nil, false, fmt.Errorf("spill: %w", err)
	}
	t = &Table{Table: table, file: f, stored: map[pagetable.Page]uint32{}, moving: map[pagetable.Page]*move{}, pending: map[pagetable.Page]bool{}}
	t.Left, t.Came = func(pagetable.Page) {}, func(pagetable.Page) {}
	if t.poller, err = netio.NewPoller(); err != nil {
		return nil, false, errors.Join(fmt.Errorf("spill: %w", err), f.close())
	}
	if err := errors.Join(t.poller.Add(table.WaitFD(), 1), t.poller.Add(f.event.FD(), 2)); err != nil {
		return nil, false, errors.Join(fmt.Errorf("spill: %w", err), t.poller.Close(), f.close())
	}
	return t, direct, nil
}

// WaitFD implements pagetable.Table.
func (t *Table) WaitFD() int { return t.poller.FD() }

// Close implements pagetable.Table. The file is removed.
func (t *Table) Close() error {
	err := t.Table.Close()
	if t.file != nil {
		err = errors.Join(err, t.poller.Close(), t.file.close())
		t.file = nil
		clear(t.stored)
		clear(t.moving)
	}
	return err
}

// Spilled reports whether a page is not in memory although it is present, or is just leaving.
func (t *Table) Spilled(p pagetable.Page) bool {
	if m := t.moving[p]; m != nil {
		return m.stage < reading
	}
	_, is := t.stored[p]
	return is
}

// Stored is how many pages are in the file, and Loading how many are on their way back.
func (t *Table) Stored() int { return len(t.stored) }

// Loading is how many pages are on their way back into memory.
func (t *Table) Loading() int { return t.loading }

// Operate implements pagetable.Table.
func (t *Table) Operate(run *pagetable.Run, outcomes []pagetable.Outcome) error {
	if !t.touches(run.First, run.Count) {
		err := t.Table.Operate(run, outcomes)
		for i, out := range outcomes {
			t.note(run.First+pagetable.Page(i), out)
		}
		return err
	}
	pageBytes := t.PageBytes()
	for i := range outcomes {
		o := operation{op: run.Op, page: run.First + pagetable.Page(i), writable: run.Writable || run.Op == pagetable.OpMakeWritable, proc: run.Proc}
		if run.Data != nil {
			o.data = run.Data[i*pageBytes:][:pageBytes]
		}
		if run.Into != nil {
			o.into = run.Into[i]
		}
		var err error
		if outcomes[i], err = t.operate(o); err != nil {
			return err
		}
	}
	return nil
}

// touches is whether one of neighbouring pages is not in memory.
func (t *Table) touches(first pagetable.Page, count int) bool {
	if len(t.stored)+len(t.moving) == 0 {
		return false
	}
	for p := first; p < first+pagetable.Page(count); p++ {
		if _, stored := t.stored[p]; stored || t.moving[p] != nil {
			return true
		}
	}
	return false
}

// note notes the outcome of an operation beneath.
func (t *Table) note(p pagetable.Page, out pagetable.Outcome) {
	if out == pagetable.Pending {
		t.pending[p] = true
	}
}

// Install implements pagetable.Table.
func (t *Table) Install(p pagetable.Page, data []byte, writable bool, proc pagetable.ProcID) (pagetable.Outcome, error) {
	return t.operate(operation{op: pagetable.OpInstall, page: p, writable: writable, proc: proc, data: data})
}

// MakeWritable implements pagetable.Table.
func (t *Table) MakeWritable(p pagetable.Page) (pagetable.Outcome, error) {
	return t.operate(operation{op: pagetable.OpMakeWritable, page: p, writable: true})
}

// Downgrade implements pagetable.Table.
func (t *Table) Downgrade(p pagetable.Page) (pagetable.Outcome, error) {
	return t.operate(operation{op: pagetable.OpDowngrade, page: p})
}

// Revoke implements pagetable.Table.
func (t *Table) Revoke(p pagetable.Page, into []byte) (pagetable.Outcome, error) {
	return t.operate(operation{op: pagetable.OpRevoke, page: p, into: into})
}

// Map implements pagetable.Table.
func (t *Table) Map(p pagetable.Page, writable bool, proc pagetable.ProcID) (pagetable.Outcome, error) {
	return t.operate(operation{op: pagetable.OpMap, page: p, writable: writable, proc: proc})
}

// Read implements pagetable.Table. What is in the file is read at once.
func (t *Table) Read(first pagetable.Page, into ...[]byte) error {
	if !t.touches(first, len(into)) {
		return t.Table.Read(first, into...)
	}
	for i, b := range into {
		if err := t.readOne(first+pagetable.Page(i), b); err != nil {
			return fmt.Errorf("spill: read page %d: %w", int(first)+i, err)
		}
	}
	return nil
}

func (t *Table) readOne(p pagetable.Page, into []byte) error {
	slot, stored := t.stored[p]
	switch m := t.moving[p]; {
	case stored:
		return t.file.read(slot, into)
	case m != nil && m.stage == reading:
		return t.file.read(m.slot, into)
	case m != nil && m.buf != nil:
		copy(into, m.buf)
		return nil
	}
	return t.Table.Read(p, into)
}

// Drop implements pagetable.Table.
func (t *Table) Drop(first pagetable.Page, count uint64) (pagetable.Outcome, error) {
	d := &drop{first: first, count: count}
	for p := range within(t.stored, first, count) {
		t.file.slots.free(t.stored[p])
		delete(t.stored, p)
	}
	for p := range within(t.moving, first, count) {
		if m := t.moving[p]; m.isBeneath() {
			m.drop = d
			d.waits++
		} else {
			t.forget(m)
		}
	}
	if d.waits > 0 {
		return pagetable.Pending, nil
	}
	return t.Table.Drop(first, count)
}

// Poll implements pagetable.Table.
func (t *Table) Poll(events []pagetable.Event) (int, error) {
	got, err := t.Table.Poll(events)
	n := 0
	for _, ev := range events[:got] {
		if ev.Kind == pagetable.Completed {
			delete(t.pending, ev.Page)
			if t.completed(&ev) {
				continue
			}
		}
		events[n] = ev
		n++
	}
	if t.file != nil {
		for _, tr := range t.file.take() {
			t.landed(tr)
		}
	}
	told := copy(events[n:], t.ready)
	if t.ready = append(t.ready[:0], t.ready[told:]...); len(t.ready) > 0 {
		t.file.tell() // WaitFD is readable as long as there is something to report
	}
	return n + told, err
}

// errFailed is wrapped by the error of Spill when the file can take no more.
var errFailed = errors.New("spill: the spill file takes no more pages")

// Spill has pages leave memory, and returns how many do: none that has left already, or about which
// something is under way, and no more at a time than can be written soon. Neighbours in ascending
// order take fewer system calls. Preconditions: the pages are present. It fails if the file can
// take no more; what is in the file stays available.
func (t *Table) Spill(pages ...pagetable.Page) (leave int, err error) {
	if t.failed != nil {
		return 0, fmt.Errorf("%w: %w", errFailed, t.failed)
	}
	var writes []*transfer
	for len(pages) > 0 && t.writing < mostLeaving {
		n := t.neighbours(pages)
		if n == 0 {
			pages = pages[1:]
			continue
		}
		list, err := t.leave(pages[0], n)
		writes = append(writes, list...)
		if err != nil {
			t.file.submit(writes...)
			return leave, err
		}
		leave += n
		pages = pages[n:]
	}
	t.file.submit(writes...)
	return leave, nil
}

// neighbours is how many of the first pages are neighbours that can leave together.
func (t *Table) neighbours(pages []pagetable.Page) (n int) {
	for ; n < min(len(pages), mostInRun, pagetable.MaxRunBytes/t.PageBytes()); n++ {
		p := pages[n]
		if p != pages[0]+pagetable.Page(n) || t.pending[p] || t.touches(p, 1) {
			break
		}
	}
	return n
}
