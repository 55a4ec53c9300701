// Package snapshot has what pages hold at one moment, while programs go on.
//
// A Table takes write access away from the pages of a snapshot, which takes hardly any time, and
// hands over their contents one after the other. A page that is to change before its turn comes is
// handed over at once: who stores to it waits for a copy of one page. So a snapshot costs no second
// memory, but for what its taker has not yet disposed of.
//
// To everybody above, nothing of this can be seen: a page that is writable is so, and is only not
// written to. From that the Table also knows which pages have stayed as they were, and the next
// snapshot can leave those out.
//
// The Table stands on another. Its taker, a Sink, is given contents and does with them what it
// wants.
package snapshot

import (
	"fmt"

	"dsmd/pagetable"
)

// Sink takes the contents of pages.
type Sink interface {
	// Buffer is where the contents of a page go next; nil: there is no room now. urgent: somebody
	// waits to store to the page. Who returned nil calls Table.Resume when there is room.
	Buffer(urgent bool) []byte
	// Recycle gives a Buffer back whose page could not be read, or is not wanted any more.
	Recycle(buf []byte)
	// Take takes a page that was read into a Buffer. It may end the snapshot (Table.End).
	Take(p pagetable.Page, buf []byte)
	// Fetch is asked first, and reports whether the page is one that can't be read at once. Then
	// the sink has it read into the Buffer, as it is now whatever is done to it later, and Take is
	// not called.
	Fetch(p pagetable.Page, buf []byte) (is bool, err error)
	// Lost says that a page was freed before it was handed over.
	Lost(p pagetable.Page)
}

// Table is a page table that can be asked what pages hold at a moment. Its methods belong to the
// goroutine of the table beneath it, except WaitFD and Close, as with every Table.
type Table struct {
	pagetable.Table // beneath

	// A page is in unsaved from the moment of the snapshot until it is handed over, and then in
	// kept until it may change. It is in sealed while it is read-only beneath and writable above.
	unsaved, kept, sealed pagetable.PageSet
	// unchanged are pages that are as they began, see Begins. They are read-only beneath.
	unchanged pagetable.PageSet
	// written are sealed pages that a program is about to store to.
	written pagetable.PageSet
	// pending are pages with an operation of the caller that is pending beneath. In opening are
	// those where it is a MakeWritable there, and a Map to the caller.
	pending, opening pagetable.PageSet
	// sealing are pages that are being made read-only, and what waits for that.
	sealing map[pagetable.Page][]pagetable.Operation
	full    []pagetable.Operation // wait for room in the sink, in order
	drops   []pagetable.Run       // Drops that wait until nothing is being sealed

	sink  Sink
	turns []pagetable.Run // that are to be handed over, in order; some pages of them may be already
	batch pagetable.Run   // that is to be sealed
	ready []pagetable.Event

	bufs     [mostInRun][]byte
	outcomes [mostInRun]pagetable.Outcome
}

// mostInRun is how many pages a run has, where they have the least size.
const mostInRun = pagetable.MaxRunBytes / (4 << 10)

// New makes a Table that stands on another, and takes it over.
func New(beneath pagetable.Table) *Table {
	return &Table{Table: beneath, sealing: map[pagetable.Page][]pagetable.Operation{}}
}

// Begins notes that a page is being made present beneath, read-only, with contents that it has
// elsewhere, too; and that it is writable to the caller, if it is.
func (t *Table) Begins(p pagetable.Page, writable bool) {
	t.unchanged.Add(p)
	if writable {
		t.sealed.Add(p)
	}
}

// Withhold makes a page writable that is read-only, to the caller only: as after MakeWritable, but
// the next store of a program is reported, and Map is the answer. It reports whether it could: not
// if something is under way about the page.
func (t *Table) Withhold(p pagetable.Page) bool {
	_, sealing := t.sealing[p]
	if sealing || t.pending.Has(p) {
		return false
	}
	t.sealed.Add(p)
	return true
}

// IsUnchanged reports whether a page has what it had when it Begins: nobody could change it since.
func (t *Table) IsUnchanged(p pagetable.Page) bool { return t.unchanged.Has(p) }

// SomeUnchanged reports whether one of count pages from first on IsUnchanged.
func (t *Table) SomeUnchanged(first pagetable.Page, count uint64) bool {
	for range t.unchanged.Within(first, count) {
		return true
	}
	return false
}

// Begin begins a snapshot, of which there can be one at a time. whole: all that is taken will be
// handed over; else pages are left out that have not changed since they were handed over last.
func (t *Table) Begin(sink Sink, whole bool) {
	t.sink = sink
	if whole {
		t.kept.Clear()
	}
}

// Take makes a page part of the snapshot, with what it holds now; Seal follows before anything else
// is done. Nothing may be stored to the page until all is Sealed. It reports whether it could: not
// if something is under way about the page. writable is as the page is to the caller. Neighbours in
// ascending order take fewer system calls. Preconditions: the page is present.
func (t *Table) Take(p pagetable.Page, writable bool) (bool, error) {
	switch {
	case t.pending.Has(p):
		return false, nil
	case t.kept.Has(p) || t.unsaved.Has(p):
		return true, nil
	}
	t.unsaved.Add(p)
	if last := len(t.turns) - 1; last >= 0 && t.turns[last].First+pagetable.Page(t.turns[last].Count) == p {
		t.turns[last].Count++
	} else {
		t.turns = append(t.turns, pagetable.Run{First: p, Count: 1})
	}
	if !writable || t.sealed.Has(p) {
		return true, nil
	}
	if t.batch.Count > 0 && (t.batch.First+pagetable.Page(t.batch.Count) != p || t.batch.Count == t.longest()) {
		if err := t.Seal(); err != nil {
			return false, err
		}
	}
	if t.batch.Count == 0 {
		t.batch.First = p
	}
	t.batch.Count++
	return true, nil
}

func (t *Table) longest() int { return max(pagetable.MaxRunBytes/t.PageBytes(), 1) }

// Copy hands a page over at once, which stays as writable as it is and counts as changed from here
// on: for pages that must not become read-only. It reports whether it could, as Take.
func (t *Table) Copy(p pagetable.Page) (bool, error) {
	if t.unsaved.Has(p) {
		return true, nil
	}
	if t.pending.Has(p) {
		return false, nil
	}
	if t.bufs[0] = t.sink.Buffer(true); t.bufs[0] == nil {
		return false, nil
	}
	err := t.hand(p, 1)
	t.kept.Remove(p)
	return true, err
}

// Forget has a page count as changed since it was handed over.
func (t *Table) Forget(p pagetable.Page) { t.kept.Remove(p) }

// Seal ends a series of Takes.
func (t *Table) Seal() error {
	run := pagetable.Run{Op: pagetable.OpDowngrade, First: t.batch.First, Count: t.batch.Count}
	t.batch = pagetable.Run{}
	if run.Count == 0 {
		return nil
	}
	outcomes := t.outcomes[:run.Count]
	if err := t.Table.Operate(&run, outcomes); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	for i, out := range outcomes {
		p := run.First + pagetable.Page(i)
		if t.sealed.Add(p); out == pagetable.Pending {
			t.sealing[p] = nil
		}
	}
	return nil
}

// Sealed reports whether no program can store to any page that was taken, before it is handed over.
// If not, a later Poll changes that.
func (t *Table) Sealed() bool { return len(t.sealing) == 0 }

// More hands over some neighbouring pages, if the sink has room, and reports whether any are left.
func (t *Table) More() (left bool, err error) {
	for len(t.turns) > 0 {
		turn := &t.turns[0]
		if turn.Count == 0 {
			t.turns = t.turns[1:]
			continue
		}
		n := 0
		for n < min(turn.Count, t.longest()) && t.unsaved.Has(turn.First+pagetable.Page(n)) {
			if t.bufs[n] = t.sink.Buffer(false); t.bufs[n] == nil {
				break
			}
			n++
		}
		if n == 0 {
			if t.unsaved.Has(turn.First) {
				return true, nil
			}
			turn.First, turn.Count = turn.First+1, turn.Count-1
			continue
		}
		first := turn.First
		turn.First, turn.Count = first+pagetable.Page(n), turn.Count-n
		return true, t.hand(first, n)
	}
	return !t.unsaved.IsEmpty(), nil
}

// hand hands over neighbouring pages, whose buffers are there. A sink that ends the snapshot
// meanwhile gets the other buffers back.
func (t *Table) hand(first pagetable.Page, n int) error {
	bufs, sink := t.bufs[:n], t.sink
	defer clear(bufs)
	err := t.fetch(first, bufs)
	if err == nil {
		err = t.read(first, bufs)
	}
	for _, b := range bufs {
		if b != nil {
			sink.Recycle(b)
		}
	}
	if err != nil {
		return fmt.Errorf("snapshot: read pages from %d on: %w", first, err)
	}
	return nil
}

// fetch hands over those of neighbouring pages that can't be read at once. What is handed over has
// no buffer any more.
func (t *Table) fetch(first pagetable.Page, bufs [][]byte) error {
	for i, b := range bufs {
		p := first + pagetable.Page(i)
		is, err := t.sink.Fetch(p, b)
		if err != nil {
			return err
		}
		if is {
			bufs[i] = nil
			t.handed(p)
		}
	}
	return nil
}

// read reads and hands over those of neighbouring pages that have buffers, until the sink has
// enough.
func (t *Table) read(first pagetable.Page, bufs [][]byte) error {
	for i := 0; i < len(bufs) && t.sink != nil; i++ {
		end := i
		for end < len(bufs) && bufs[end] != nil {
			end++
		}
		if end == i {
			continue
		}
		if err := t.Table.Read(first+pagetable.Page(i), bufs[i:end]...); err != nil {
			return err
		}
		for ; i < end && t.sink != nil; i++ {
			b, p := bufs[i], first+pagetable.Page(i)
			bufs[i] = nil
			t.handed(p)
			t.sink.Take(p, b)
		}
	}
	return nil
}

// handed notes that a page is handed over.
func (t *Table) handed(p pagetable.Page) {
	t.unsaved.Remove(p)
	t.kept.Add(p)
}

// End ends the snapshot: what was not handed over is not, and counts as changed. If forget, all
// pages do. Programs get their access back as they store.
func (t *Table) End(forget bool) error {
	t.unsaved.Clear()
	t.turns, t.batch = nil, pagetable.Run{}
	if forget {
		t.kept.Clear()
	}
	err := t.Resume()
	t.sink = nil
	return err
}

// Due reports whether Poll has something to tell of which WaitFD says nothing: operations that
// Resume or End has ended, or for which the last Poll had no room.
func (t *Table) Due() bool { return len(t.ready) > 0 }

// Resume goes on with what has waited for room in the sink. What it ends, the next Poll tells; see
// Due.
func (t *Table) Resume() error {
	waiting := t.full
	t.full = nil
	for i := range waiting {
		out, err := t.operate(&waiting[i])
		if err != nil {
			return err
		}
		if out == pagetable.Done {
			t.tell(waiting[i].Op, waiting[i].Page)
		}
	}
	return nil
}

// tell reports the end of an operation that was pending.
func (t *Table) tell(op pagetable.Op, p pagetable.Page) {
	t.ready = append(t.ready, pagetable.Event{Kind: pagetable.Completed, Op: op, Page: p})
}
