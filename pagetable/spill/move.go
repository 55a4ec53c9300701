package spill

import (
	"fmt"
	"iter"
	"slices"

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
	// On the way back. reading: its contents are on their way to the buffer; installing: from
	// there into memory. waking: it is revoked, and threads that waited for it are woken.
	reading
	installing
	waking
)

// move is a page on its way between memory and the file.
type move struct {
	page  pagetable.Page
	stage stage
	buf   []byte      // the contents, from leaving on
	slot  uint32      // from writing on
	ops   []operation // that wait, in order
	drop  *drop       // that waits
}

// isBeneath is whether an operation on the page is under way beneath.
func (m *move) isBeneath() bool {
	return m.stage != writing && m.stage != stuck && m.stage != reading
}

// operation is one of the caller's.
type operation struct {
	op       pagetable.Op
	page     pagetable.Page
	writable bool
	proc     pagetable.ProcID
	data     []byte // OpInstall
	into     []byte // OpRevoke
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
func (t *Table) operate(o operation) (pagetable.Outcome, error) {
	m := t.moving[o.page]
	slot, stored := t.stored[o.page]
	switch {
	case m == nil && !stored, o.op == pagetable.OpMap && o.proc == pagetable.AllProcs:
		// It is in memory or absent, or threads are only to be woken.
		return t.beneath(o)
	case o.op == pagetable.OpInstall:
		panic(fmt.Sprintf("spill: install of page %d, which is in the spill file", o.page))
	case m != nil && (m.stage == writing || m.stage == stuck):
		return t.serve(m, o)
	case m != nil:
		m.ops = append(m.ops, o)
	case o.op == pagetable.OpDowngrade: // it can't be stored to
		return pagetable.Done, nil
	case o.op == pagetable.OpRevoke && o.into == nil:
		delete(t.stored, o.page)
		t.file.slots.free(slot)
		return t.wake(&move{page: o.page, stage: writing}, o)
	default:
		return pagetable.Pending, t.fetch(o)
	}
	return pagetable.Pending, nil
}

// beneath does an operation on a page that is in memory, or absent.
func (t *Table) beneath(o operation) (out pagetable.Outcome, err error) {
	switch o.op {
	case pagetable.OpInstall:
		out, err = t.Table.Install(o.page, o.data, o.writable, o.proc)
	case pagetable.OpMakeWritable:
		out, err = t.Table.MakeWritable(o.page)
	case pagetable.OpDowngrade:
		out, err = t.Table.Downgrade(o.page)
	case pagetable.OpRevoke:
		out, err = t.Table.Revoke(o.page, o.into)
	case pagetable.OpMap:
		out, err = t.Table.Map(o.page, o.writable, o.proc)
	}
	t.note(o.page, out)
	return out, err
}

// wake ends the revocation of a page that is not in memory: threads that wait for it look again.
func (t *Table) wake(m *move, revoke operation) (pagetable.Outcome, error) {
	out, err := t.Table.Map(m.page, false, pagetable.AllProcs)
	if out == pagetable.Pending && err == nil {
		t.waitBeneath(m, waking, revoke)
	}
	return out, err
}

// waitBeneath notes that the end of an operation depends on one beneath.
func (t *Table) waitBeneath(m *move, s stage, o operation) {
	if m.stage != reading {
		t.loading++
	}
	m.stage, m.ops = s, slices.Insert(m.ops, 0, o)
	t.moving[m.page] = m
}

// fetch reads a page from the file for an operation.
func (t *Table) fetch(o operation) error {
	buf, err := t.file.buffer()
	if err != nil {
		return err
	}
	m := &move{page: o.page, stage: reading, slot: t.stored[o.page], ops: []operation{o}}
	delete(t.stored, o.page)
	t.moving[o.page] = m
	t.loading++
	t.file.submit(&transfer{slot: m.slot, buf: buf, move: m})
	return nil
}

// serve does an operation on a page whose contents are in the buffer.
func (t *Table) serve(m *move, o operation) (pagetable.Outcome, error) {
	switch o.op {
	case pagetable.OpDowngrade: // it can't be stored to
		return pagetable.Done, nil
	case pagetable.OpRevoke:
		copy(o.into, m.buf)
		out, err := t.wake(m, o)
		if m.stage != waking {
			t.end(m)
		}
		return out, err
	}
	// A program or the caller needs it in memory: OpMap, OpMakeWritable.
	out, err := t.Table.Install(m.page, m.buf, o.writable, o.proc)
	if out == pagetable.Pending && err == nil {
		m.buf = slices.Clone(m.buf) // the buffer is the transfer's
		t.waitBeneath(m, installing, o)
		return out, nil
	}
	t.end(m)
	if err == nil {
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
	if m.stage >= reading {
		t.loading--
	}
}

// forget ends the move of a page that is freed.
func (t *Table) forget(m *move) {
	t.end(m)
	for _, o := range m.ops {
		t.tell(o, nil)
	}
}

// tell reports the end of an operation that was pending.
func (t *Table) tell(o operation, err error) {
	t.ready = append(t.ready, pagetable.Event{Kind: pagetable.Completed, Op: o.op, Page: o.page, Err: err})
	t.file.tell()
}

// leave has neighbouring pages leave memory that nothing is under way about. It returns the
// transfers to be made.
func (t *Table) leave(first pagetable.Page, count int) (writes []*transfer, err error) {
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
func (t *Table) save(first pagetable.Page, count int) (writes []*transfer, err error) {
	bufs := t.bufs[:count]
	for i := range bufs {
		if bufs[i], err = t.file.buffer(); err != nil {
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
func (t *Table) left(m *move) []*transfer {
	t.Left(m.page)
	m.stage = writing
	buf := m.buf
	t.goOn(m)
	if t.moving[m.page] != m || m.stage != writing {
		t.writing--
		t.file.recycle(buf)
		return nil
	}
	m.slot = t.file.slots.take()
	return []*transfer{{write: true, slot: m.slot, buf: buf, move: m}}
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
		t.forgetBeneath(m)
	case m.stage == protecting:
		var writes []*transfer
		writes, err = t.save(m.page, 1)
		t.file.submit(writes...)
	case m.stage == leaving:
		t.file.submit(t.left(m)...)
	default: // installing, waking
		t.end(m)
		if m.stage == installing {
			t.Came(m.page)
		}
		t.tell(m.ops[0], nil)
		m.ops, m.stage = m.ops[1:], protecting
		t.goOn(m)
	}
	if err != nil { // the caller's end
		t.tell(operation{op: ev.Op, page: ev.Page}, err)
	}
	return true
}

// forgetBeneath ends the move of a page that is freed when nothing is under way beneath any more,
// and goes on with the Drop if it was the last one.
func (t *Table) forgetBeneath(m *move) {
	if m.stage < writing {
		t.writing--
	}
	t.forget(m)
	d := m.drop
	if d.waits--; d.waits > 0 {
		return
	}
	if out, err := t.Table.Drop(d.first, d.count); out == pagetable.Done || err != nil {
		t.tell(operation{op: pagetable.OpDrop, page: d.first}, err)
	}
}

// landed deals with the end of a transfer.
func (t *Table) landed(tr *transfer) {
	m := tr.move
	wanted := t.moving[m.page] == m
	switch {
	case tr.write:
		t.writing--
		switch {
		case wanted && m.stage == writing && tr.err == nil:
			delete(t.moving, m.page)
			t.stored[m.page] = tr.slot
		case wanted && m.stage == writing:
			m.stage, t.failed = stuck, tr.err
			t.file.slots.free(tr.slot)
			return // the buffer is all that there is
		default: // it has come back, or is freed
			t.file.slots.free(tr.slot)
		}
	case !wanted:
		t.file.slots.free(tr.slot)
	case tr.err != nil:
		t.tell(m.ops[0], fmt.Errorf("spill: read the spill file: %w", tr.err))
		return
	default:
		m.buf = tr.buf
		t.goOn(m)
		t.file.slots.free(tr.slot)
	}
	t.file.recycle(tr.buf)
}
