package backing

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"dsmd/internal/diskio"
	"dsmd/pagetable"
)

// stage says how far a page has got on its way.
type stage uint8

const (
	// On the way out. protecting: it is made read-only in memory; leaving: it is revoked there,
	// and its contents are in the buffer.
	protecting stage = iota
	leaving
	// writing: it is in the buffer alone, and is being written; stuck: that has failed.
	writing
	stuck
	// On the way in. reading: its contents are on their way to the buffer; installing: from
	// there into memory. waking: it is revoked, and threads that waited for it are woken.
	reading
	installing
	waking
)

// move is a page on its way between memory and a file.
type move struct {
	page    pagetable.Page
	stage   stage
	brought bool // by Bring or Await: the caller counts it
	// unloaded: it leaves by Unload, or comes back after that.
	unloaded bool
	buf      []byte                // the contents, from leaving on
	at       Location              // its place in a file, from writing on
	ops      []pagetable.Operation // that wait, in order
	drop     *drop                 // that waits
	over     func([]byte, error)   // of Copy: the page stays where it is
}

// isBeneath is whether an operation on the page is under way beneath.
func (m *move) isBeneath() bool {
	return m.stage != writing && m.stage != stuck && m.stage != reading
}

// drop is a Drop that waits until nothing is under way beneath on its pages.
type drop struct {
	first pagetable.Page
	count uint64
	waits int
}

// within goes over the keys that are among count pages from first on. The body may delete them.
func within[V any](m map[pagetable.Page]V, first pagetable.Page, count uint64) iter.Seq[pagetable.Page] {
	return func(yield func(pagetable.Page) bool) {
		if count < uint64(len(m)) {
			for p := first; p < first+pagetable.Page(count); p++ {
				if _, in := m[p]; in && !yield(p) {
					return
				}
			}
			return
		}
		for p := range m {
			if p >= first && uint64(p-first) < count && !yield(p) {
				return
			}
		}
	}
}

// operate does an operation on a page, wherever that is.
func (t *Table) operate(o pagetable.Operation) (pagetable.Outcome, error) {
	m := t.moving[o.Page]
	slot, stored := t.stored[o.Page]
	unloaded := t.unloaded.Has(o.Page)
	switch {
	case m == nil && !stored && !unloaded, o.Op == pagetable.OpMap && o.Proc == pagetable.AllProcs:
		// It is in memory or absent, or threads are only to be woken.
		out, err := pagetable.Perform(t.Table, &o)
		t.note(o.Page, out)
		return out, err
	case o.Op == pagetable.OpInstall:
		panic(fmt.Sprintf("backing: install of page %d, which is in the spill file or on its way", o.Page))
	case m != nil && (m.stage == writing || m.stage == stuck):
		return t.serve(m, o)
	case m != nil:
		m.ops = append(m.ops, o)
	case o.Op == pagetable.OpDowngrade: // it can't be stored to
		return pagetable.Done, nil
	case o.Op == pagetable.OpRevoke && o.Into == nil:
		if !t.unloaded.Remove(o.Page) {
			delete(t.stored, o.Page)
			t.file.slots.free(slot)
		}
		return wake(t, &move{page: o.Page, stage: writing}, o)
	default:
		if m = (&move{page: o.Page, unloaded: unloaded}); unloaded {
			m.at = t.Origin(o.Page)
		} else {
			m.at = t.file.at(slot)
		}
		if err := t.fetch(m, o); err != nil {
			return pagetable.Pending, err
		}
		delete(t.stored, o.Page)
		t.unloaded.Remove(o.Page)
	}
	return pagetable.Pending, nil
}

// wake ends the revocation of a page that is not in memory: threads that wait for it look again.
func wake(t *Table, m *move, revoke pagetable.Operation) (pagetable.Outcome, error) {
	out, err := t.Table.Map(m.page, false, pagetable.AllProcs)
	if out == pagetable.Pending && err == nil {
		t.waitBeneath(m, waking, revoke)
	}
	return out, err
}

// waitBeneath notes that the end of an operation depends on one beneath.
func (t *Table) waitBeneath(m *move, s stage, o pagetable.Operation) {
	if m.stage != reading {
		t.loading++
	}
	m.stage, m.ops = s, slices.Insert(m.ops, 0, o)
	t.moving[m.page] = m
}

// fetch reads the contents of a page for an operation.
func (t *Table) fetch(m *move, o pagetable.Operation) error {
	var buf []byte
	var err error
	if m.at != Elsewhere {
		if buf, err = t.queue.Buffer(); err != nil {
			return err
		}
	}
	m.stage, m.ops = reading, append(m.ops, o)
	t.moving[m.page] = m
	if !m.brought {
		t.loading++
	}
	if m.at == Elsewhere {
		t.Fetch(m.page)
		return nil
	}
	read(t, m, buf)
	return nil
}

// read has the contents of a page read.
func read(t *Table, m *move, buf []byte) {
	tr := m.at.transfer(buf)
	tr.Owner = m
	if t.reads = append(t.reads, tr); len(t.reads) == 1 {
		t.queue.Tell() // Poll begins them, if Flush does not
	}
}

// Flush begins the reads of pages that were asked for. Those of neighbours in a file are made
// together. Poll does so, too; but who has asked for all that it wants knows it earlier.
func (t *Table) Flush() {
	if len(t.reads) == 0 {
		return
	}
	slices.SortFunc(t.reads, func(a, b *diskio.Transfer) int {
		return cmp.Or(cmp.Compare(a.FD, b.FD), cmp.Compare(a.Offset, b.Offset))
	})
	t.queue.Submit(t.reads...)
	clear(t.reads)
	t.reads = t.reads[:0]
}

// serve does an operation on a page whose contents are in the buffer.
func (t *Table) serve(m *move, o pagetable.Operation) (pagetable.Outcome, error) {
	if o.Op == pagetable.OpDowngrade { // it can't be stored to
		return pagetable.Done, nil
	}
	if m.stage == stuck { // no transfer has the buffer
		defer t.queue.Recycle(m.buf)
	}
	if o.Op == pagetable.OpRevoke {
		copy(o.Into, m.buf)
		out, err := wake(t, m, o)
		if m.stage != waking {
			t.end(m)
		}
		return out, err
	}
	// A program or the caller needs it in memory: OpMap, OpMakeWritable, OpInstall by Bring.
	out, err := t.Table.Install(m.page, m.buf, o.Writable || o.Op == pagetable.OpMakeWritable, o.Proc)
	if out == pagetable.Pending && err == nil {
		m.buf = slices.Clone(m.buf) // the buffer is the transfer's
		t.waitBeneath(m, installing, o)
		return out, nil
	}
	t.end(m)
	if err == nil && !m.brought {
		t.Came(m.page)
	}
	return out, err
}

// goOn does what waits for the contents of a page, which are in the buffer.
func (t *Table) goOn(m *move) {
	for len(m.ops) > 0 && m.stage < installing {
		o := m.ops[0]
		m.ops = m.ops[1:]
		var out pagetable.Outcome
		var err error
		if t.moving[m.page] == m {
			out, err = t.serve(m, o)
		} else {
			out, err = t.operate(o)
		}
		if out == pagetable.Done || err != nil {
			t.tell(o, err)
		}
	}
}

// end ends the move of a page: it is in memory again, or absent.
func (t *Table) end(m *move) {
	delete(t.moving, m.page)
	if m.stage >= reading && !m.brought {
		t.loading--
	}
}

// forget ends the move of a page that is freed.
func (t *Table) forget(m *move) {
	if t.end(m); m.stage == stuck {
		t.queue.Recycle(m.buf)
	}
	for _, o := range m.ops {
		t.tell(o, nil)
	}
}

// tell reports the end of an operation that was pending.
func (t *Table) tell(o pagetable.Operation, err error) {
	t.ready = append(t.ready, pagetable.Event{Kind: pagetable.Completed, Op: o.Op, Page: o.Page, Err: err})
	if !t.polling {
		t.queue.Tell()
	}
}

// leave has neighbouring pages leave memory that nothing is under way about. It returns the
// transfers to be made.
func (t *Table) leave(first pagetable.Page, count int) (writes []*diskio.Transfer, err error) {
	outcomes := t.outcomes[:count]
	run := pagetable.Run{Op: pagetable.OpDowngrade, First: first, Count: count}
	if err := t.Table.Operate(&run, outcomes); err != nil {
		return nil, err
	}
	for i := range count {
		m := &move{page: first + pagetable.Page(i), stage: protecting}
		t.moving[m.page] = m
		t.writing++
	}
	for i := 0; i < count; i++ {
		from := i
		for i < count && outcomes[i] == pagetable.Done {
			i++
		}
		if i > from {
			list, err := t.save(first+pagetable.Page(from), i-from)
			if err != nil {
				return writes, err
			}
			writes = append(writes, list...)
		}
	}
	return writes, nil
}

// save reads neighbouring pages that nobody can store to, and revokes them. It returns the
// transfers to be made.
func (t *Table) save(first pagetable.Page, count int) (writes []*diskio.Transfer, err error) {
	bufs := t.bufs[:count]
	for i := range bufs {
		if bufs[i], err = t.queue.Buffer(); err != nil {
			return nil, err
		}
	}
	if err := t.Table.Read(first, bufs...); err != nil {
		return nil, err
	}
	var outcomes [mostInRun]pagetable.Outcome
	run := pagetable.Run{Op: pagetable.OpRevoke, First: first, Count: count}
	if err := t.Table.Operate(&run, outcomes[:count]); err != nil {
		return nil, err
	}
	for i := range count {
		m := t.moving[first+pagetable.Page(i)]
		m.stage, m.buf = leaving, bufs[i]
		if outcomes[i] == pagetable.Done {
			writes = append(writes, t.left(m)...)
		}
	}
	return writes, nil
}

// left notes that a page is in memory no longer. It returns the transfer to be made, if nobody
// wants the page back already.
func (t *Table) left(m *move) []*diskio.Transfer {
	t.Left(m.page)
	m.stage = writing
	buf := m.buf
	t.goOn(m)
	if t.moving[m.page] != m || m.stage != writing {
		t.writing--
		t.queue.Recycle(buf)
		return nil
	}
	m.at = t.file.at(t.file.slots.take())
	return []*diskio.Transfer{{FD: m.at.FD, Offset: m.at.Offset, Buf: buf, Write: true, Owner: m}}
}

// completed deals with the end of an operation beneath, if it is this table's own.
func (t *Table) completed(ev *pagetable.Event) bool {
	m := t.moving[ev.Page]
	if m == nil || !m.isBeneath() {
		return false
	}
	err := ev.Err
	switch {
	case err != nil:
	case m.drop != nil:
		forgetBeneath(t, m)
	case m.stage == protecting:
		var writes []*diskio.Transfer
		writes, err = t.save(m.page, 1)
		t.queue.Submit(writes...)
	case m.stage == leaving && m.unloaded:
		unload(t, m)
	case m.stage == leaving:
		t.queue.Submit(t.left(m)...)
	default: // installing, waking
		t.end(m)
		if m.stage == installing && !m.brought {
			t.Came(m.page)
		}
		t.tell(m.ops[0], nil)
		m.ops, m.stage = m.ops[1:], protecting
		t.goOn(m)
	}
	if err != nil { // the caller's end
		t.tell(pagetable.Operation{Op: ev.Op, Page: ev.Page}, err)
	}
	return true
}

// forgetBeneath ends the move of a page that is freed when nothing is under way beneath any more,
// and goes on with the Drop if it was the last one.
func forgetBeneath(t *Table, m *move) {
	if m.stage < writing {
		t.writing--
	}
	if m.stage == leaving && m.buf != nil {
		t.queue.Recycle(m.buf)
	}
	t.forget(m)
	d := m.drop
	if d.waits--; d.waits > 0 {
		return
	}
	if out, err := t.Table.Drop(d.first, d.count); out == pagetable.Done || err != nil {
		t.tell(pagetable.Operation{Op: pagetable.OpDrop, Page: d.first}, err)
	}
}

// landed deals with the end of a transfer.
func (t *Table) landed(tr *diskio.Transfer) {
	m := tr.Owner.(*move)
	if tr.Write {
		written(t, m, tr)
		return
	}
	err := t.file.check(m.page, &m.at, tr)
	switch {
	case m.over != nil:
		m.over(tr.Buf, err)
		t.file.slots.giveBack(t.file.slot(&m.at))
	case t.moving[m.page] != m: // it is freed
		t.file.free(&m.at)
	case err != nil:
		unreadable(t, m, err)
	default:
		m.buf = tr.Buf
		t.goOn(m)
		t.file.free(&m.at)
	}
	recycle(t, tr)
}

// written deals with the end of a write to the spill file.
func written(t *Table, m *move, tr *diskio.Transfer) {
	t.writing--
	switch wanted := t.moving[m.page] == m && m.stage == writing; {
	case wanted && tr.Err == nil:
		delete(t.moving, m.page)
		t.stored[m.page] = t.file.slot(&m.at)
	case wanted:
		m.stage, t.failed = stuck, tr.Err
		t.file.free(&m.at)
		return // the buffer is all that there is
	default: // it has come back, or is freed
		t.file.free(&m.at)
	}
	t.queue.Recycle(tr.Buf)
}

// unreadable ends the move of a page whose contents can't be read: it is where it was before, in
// the spill file or absent. What waits for it fails.
func unreadable(t *Table, m *move, err error) {
	t.end(m)
	switch {
	case t.file.has(&m.at):
		t.stored[m.page] = t.file.slot(&m.at)
	case m.unloaded:
		t.unloaded.Add(m.page)
	}
	for _, o := range m.ops {
		t.tell(o, err)
	}
}
