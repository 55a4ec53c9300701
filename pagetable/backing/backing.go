package backing

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"dsmd/internal/diskio"
	"dsmd/internal/netio"
	"dsmd/pagetable"
)

// mostLeaving is how many pages are on their way to the spill file at a time.
const mostLeaving = 1 << 10

// Table is a page table some of whose pages are on a disk, or come from there. Its methods belong
// to the goroutine of the table beneath it, except WaitFD and Close, as with every Table.
type Table struct {
	pagetable.Table               // in memory
	queue           *diskio.Queue // between memory and files
	file            *file         // the spill file; nil: there is none
	poller          *netio.Poller // of the table beneath and the queue

	stored   map[pagetable.Page]uint32 // pages in the spill file, and their slots
	unloaded pagetable.PageSet         // pages that are where Origin says
	moving   map[pagetable.Page]*move
	pending  map[pagetable.Page]bool // where an operation of the caller is pending beneath
	writing  int                     // pages that are on their way to the file
	loading  int                     // pages that are on their way back
	failed   error                   // why nothing is written any more
	ready    []pagetable.Event       // for Poll
	polling  bool                    // which tells what is ready, or has itself called again
	reads    []*diskio.Transfer      // that wait for Flush
	// delivered are contents that were awaited, for Poll, and overs what is called then.
	delivered []*diskio.Transfer
	overs     []func()

	bufs     [mostInRun][]byte // room for arguments
	outcomes [mostInRun]pagetable.Outcome
	data     []byte

	// Left is called when a page has left memory, and Came when it is back. nil: nobody wants to
	// know.
	Left, Came func(pagetable.Page)
	// Origin is where the contents of a page are that has left by Unload, or Elsewhere. What is
	// there is fetched by Fetch, which calls Deliver later, or at once.
	Origin func(pagetable.Page) Location
	Fetch  func(pagetable.Page)
}

// mostInRun is how many pages a run has, where they have the least size.
const mostInRun = pagetable.MaxRunBytes / (4 << 10)

// New lets the pages of table be elsewhere than in memory. It takes table over unless it fails.
// What there is no room for can go to a file in dir, which is on a disk; without a dir ("") pages
// can't leave memory, but still come from files. direct is whether reads and writes of the spill
// file bypass the page cache, which not every file system can; without that they take some more
// memory for a while. Errors: dir cannot be written to, or is in memory.
func New(table pagetable.Table, dir string) (t *Table, direct bool, err error) {
	var f *file
	if dir != "" {
		if f, direct, err = create(dir, table.PageBytes()); err != nil {
			return nil, false, err
		}
	}
	t = &Table{Table: table, file: f, stored: map[pagetable.Page]uint32{}, moving: map[pagetable.Page]*move{}, pending: map[pagetable.Page]bool{}}
	t.Left, t.Came = func(pagetable.Page) {}, func(pagetable.Page) {}
	if err := t.open(); err != nil {
		return nil, false, errors.Join(fmt.Errorf("backing: %w", err), f.close())
	}
	return t, direct, nil
}

// open makes the queue, and one descriptor of what it and the table beneath have to report.
func (t *Table) open() (err error) {
	if t.queue, err = diskio.New(t.PageBytes()); err != nil {
		return err
	}
	if t.poller, err = netio.NewPoller(); err != nil {
		return errors.Join(err, t.queue.Close())
	}
	if err = errors.Join(t.poller.Add(t.Table.WaitFD(), 1), t.poller.Add(t.queue.FD(), 2)); err != nil {
		return errors.Join(err, t.poller.Close(), t.queue.Close())
	}
	return nil
}

// WaitFD implements pagetable.Table.
func (t *Table) WaitFD() int { return t.poller.FD() }

// Close implements pagetable.Table. The spill file is removed.
func (t *Table) Close() error {
	err := t.Table.Close()
	if t.queue != nil {
		err = errors.Join(err, t.poller.Close(), t.queue.Close(), t.file.close())
		t.queue, t.ready = nil, nil
		clear(t.stored)
		t.unloaded.Clear()
		clear(t.moving)
	}
	return err
}

// CanSpill is whether there is a spill file.
func (t *Table) CanSpill() bool { return t.file != nil }

// Spilled reports whether a page is not in memory although it is present, or is just leaving. A
// page that comes by Bring is not present before it is in memory.
func (t *Table) Spilled(p pagetable.Page) bool {
	if m := t.moving[p]; m != nil {
		return m.stage < reading
	}
	_, is := t.stored[p]
	return is || t.unloaded.Has(p)
}

// Unloaded reports whether a page has left by Unload, or is just leaving or coming back.
func (t *Table) Unloaded(p pagetable.Page) bool {
	m := t.moving[p]
	return t.unloaded.Has(p) || m != nil && m.unloaded && m.stage <= reading
}

// Stored is how many pages are in the spill file.
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
	for i := range outcomes {
		var err error
		if outcomes[i], err = t.operate(run.At(i, t.PageBytes())); err != nil {
			return err
		}
	}
	return nil
}

// touches is whether one of neighbouring pages is not in memory.
func (t *Table) touches(first pagetable.Page, count int) bool {
	if len(t.stored)+len(t.moving) == 0 && t.unloaded.IsEmpty() {
		return false
	}
	for p := first; p < first+pagetable.Page(count); p++ {
		if _, stored := t.stored[p]; stored || t.moving[p] != nil || t.unloaded.Has(p) {
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
	return t.operate(pagetable.Operation{Op: pagetable.OpInstall, Page: p, Writable: writable, Proc: proc, Data: data})
}

// MakeWritable implements pagetable.Table.
func (t *Table) MakeWritable(p pagetable.Page) (pagetable.Outcome, error) {
	return t.operate(pagetable.Operation{Op: pagetable.OpMakeWritable, Page: p})
}

// Downgrade implements pagetable.Table.
func (t *Table) Downgrade(p pagetable.Page) (pagetable.Outcome, error) {
	return t.operate(pagetable.Operation{Op: pagetable.OpDowngrade, Page: p})
}

// Revoke implements pagetable.Table.
func (t *Table) Revoke(p pagetable.Page, into []byte) (pagetable.Outcome, error) {
	return t.operate(pagetable.Operation{Op: pagetable.OpRevoke, Page: p, Into: into})
}

// Map implements pagetable.Table.
func (t *Table) Map(p pagetable.Page, writable bool, proc pagetable.ProcID) (pagetable.Outcome, error) {
	return t.operate(pagetable.Operation{Op: pagetable.OpMap, Page: p, Writable: writable, Proc: proc})
}

// errElsewhere is the error of a Read that can't be made at once.
var errElsewhere = errors.New("backing: the contents of the page are elsewhere")

// Writing is how many pages of a table are on their way to the file.
func Writing(t *Table) int { return t.writing }

// Read implements pagetable.Table. What is in a file is read at once; what is Elsewhere can't be.
func (t *Table) Read(first pagetable.Page, into ...[]byte) error {
	if !t.touches(first, len(into)) {
		return t.Table.Read(first, into...)
	}
	for i, b := range into {
		if err := t.readOne(first+pagetable.Page(i), b); err != nil {
			return fmt.Errorf("backing: read page %d: %w", int(first)+i, err)
		}
	}
	return nil
}

func (t *Table) readOne(p pagetable.Page, into []byte) error {
	var at Location
	slot, stored := t.stored[p]
	switch m := t.moving[p]; {
	case stored:
		at = t.file.at(slot)
	case t.unloaded.Has(p), m != nil && m.unloaded && m.stage == leaving:
		at = t.Origin(p) // memory may have it no longer
	case m != nil && m.stage == reading:
		at = m.at
	case m != nil && m.buf != nil:
		copy(into, m.buf)
		return nil
	default:
		return t.Table.Read(p, into)
	}
	if at == Elsewhere {
		return errElsewhere
	}
	buf, err := t.queue.Buffer()
	if err != nil {
		return err
	}
	defer t.queue.Recycle(buf)
	tr := at.transfer(buf)
	tr.Do()
	copy(into, buf)
	return t.file.check(p, &at, tr)
}

// Drop implements pagetable.Table.
func (t *Table) Drop(first pagetable.Page, count uint64) (pagetable.Outcome, error) {
	d := &drop{first: first, count: count}
	for p := range within(t.stored, first, count) {
		t.file.slots.free(t.stored[p])
		delete(t.stored, p)
	}
	t.unloaded.RemoveRun(first, count)
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

// Poll implements pagetable.Table. What has ended before comes first, so that the events of a page
// come in the order in which its operations have ended.
func (t *Table) Poll(events []pagetable.Event) (n int, err error) {
	if t.queue != nil {
		t.Flush()
		t.polling = true
		for list := arrivals(t); len(list) > 0; {
			if together := alike(t, list); together > 1 {
				installRun(t, list[:together])
				list = list[together:]
				continue
			}
			t.landed(list[0])
			list = list[1:]
		}
		for _, over := range t.overs {
			over()
		}
		t.overs = t.overs[:0]
		t.polling = false
	}
	n = report(&t.ready, events)
	got := 0
	if n < len(events) {
		got, err = t.Table.Poll(events[n:])
	}
	for _, ev := range events[n:][:got] {
		if ev.Kind == pagetable.Completed {
			delete(t.pending, ev.Page)
			if t.completed(&ev) {
				continue
			}
		}
		events[n] = ev
		n++
	}
	n += report(&t.ready, events[n:])
	if len(t.ready) > 0 {
		t.queue.Tell() // WaitFD is readable as long as there is something to report
	}
	return n, err
}

// arrivals are the transfers that are over, and what was delivered, neighbours together.
func arrivals(t *Table) []*diskio.Transfer {
	list := t.queue.Take()
	if len(t.delivered) == 0 {
		return list
	}
	slices.SortStableFunc(t.delivered, func(a, b *diskio.Transfer) int {
		return cmp.Compare(a.Owner.(*move).page, b.Owner.(*move).page)
	})
	list = append(list, t.delivered...)
	clear(t.delivered)
	t.delivered = t.delivered[:0]
	return list
}

// report moves what is ready to be reported to events.
func report(ready *[]pagetable.Event, events []pagetable.Event) int {
	n := copy(events, *ready)
	*ready = append((*ready)[:0], (*ready)[n:]...)
	return n
}

// ErrFull is wrapped by the error of Spill when the file can take no more, and errNoFile is its
// error when there is no file.
var (
	ErrFull   = errors.New("backing: the spill file takes no more pages")
	errNoFile = errors.New("backing: pages can't leave memory: this table was made without a directory for a spill file")
)

// Spill has pages leave memory, and returns how many do: none that has left already, or about which
// something is under way, and no more at a time than can be written soon. Neighbours in ascending
// order take fewer system calls. Preconditions: the pages are present. It fails if the file can
// take no more; what is in the file stays available. It fails, too, if there is no file. After an
// error that is neither, pages may be neither here nor there, and the table is of no more use.
func (t *Table) Spill(pages ...pagetable.Page) (leave int, err error) {
	switch {
	case t.file == nil:
		return 0, errNoFile
	case t.failed != nil:
		return 0, fmt.Errorf("%w: %w", ErrFull, t.failed)
	}
	var writes []*diskio.Transfer
	for len(pages) > 0 && t.writing < mostLeaving {
		n := t.neighbours(pages)
		if n == 0 {
			pages = pages[1:]
			continue
		}
		list, err := t.leave(pages[0], n)
		writes = append(writes, list...)
		if err != nil {
			t.queue.Submit(writes...)
			return leave, err
		}
		leave += n
		pages = pages[n:]
	}
	t.queue.Submit(writes...)
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
