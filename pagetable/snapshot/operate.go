package snapshot

import "dsmd/pagetable"

// concerns is whether one of neighbouring pages is part of a snapshot or has been, or is as it
// began.
func (t *Table) concerns(first pagetable.Page, count int) bool {
	n := uint64(count)
	return t.unsaved.HasSome(first, n) || t.kept.HasSome(first, n) || t.sealed.HasSome(first, n) ||
		t.unchanged.HasSome(first, n)
}

// Operate implements pagetable.Table.
func (t *Table) Operate(run *pagetable.Run, outcomes []pagetable.Outcome) error {
	if t.concerns(run.First, run.Count) {
		return pagetable.OneByOne(t, run, outcomes)
	}
	err := t.Table.Operate(run, outcomes)
	for i, out := range outcomes {
		if out == pagetable.Pending {
			t.pending.Add(run.First + pagetable.Page(i))
		}
	}
	return err
}

// Install implements pagetable.Table.
func (t *Table) Install(p pagetable.Page, data []byte, writable bool, proc pagetable.ProcID) (pagetable.Outcome, error) {
	return t.operate(&pagetable.Operation{Op: pagetable.OpInstall, Page: p, Writable: writable, Proc: proc, Data: data})
}

// MakeWritable implements pagetable.Table.
func (t *Table) MakeWritable(p pagetable.Page) (pagetable.Outcome, error) {
	return t.operate(&pagetable.Operation{Op: pagetable.OpMakeWritable, Page: p})
}

// Downgrade implements pagetable.Table.
func (t *Table) Downgrade(p pagetable.Page) (pagetable.Outcome, error) {
	return t.operate(&pagetable.Operation{Op: pagetable.OpDowngrade, Page: p})
}

// Revoke implements pagetable.Table.
func (t *Table) Revoke(p pagetable.Page, into []byte) (pagetable.Outcome, error) {
	return t.operate(&pagetable.Operation{Op: pagetable.OpRevoke, Page: p, Into: into})
}

// Map implements pagetable.Table.
func (t *Table) Map(p pagetable.Page, writable bool, proc pagetable.ProcID) (pagetable.Outcome, error) {
	return t.operate(&pagetable.Operation{Op: pagetable.OpMap, Page: p, Writable: writable, Proc: proc})
}

// operate does an operation of the caller.
func (t *Table) operate(o *pagetable.Operation) (pagetable.Outcome, error) {
	p := o.Page
	if !t.concerns(p, 1) {
		return t.beneath(o)
	}
	if waiting, is := t.sealing[p]; is {
		t.sealing[p] = append(waiting, *o)
		return pagetable.Pending, nil
	}
	switch o.Op {
	case pagetable.OpDowngrade:
		if t.sealed.Remove(p) {
			t.written.Remove(p)
			return pagetable.Done, nil // it is read-only beneath already
		}
		return t.beneath(o)
	case pagetable.OpMap:
		switch {
		case !o.Writable || !t.sealed.Has(p):
			return t.beneath(o)
		case !t.written.Has(p): // somebody loads from it
			return t.beneath(&pagetable.Operation{Op: pagetable.OpMap, Page: p, Proc: o.Proc})
		}
	case pagetable.OpInstall, pagetable.OpLose: // it is absent, and was forgotten when it left
		return t.beneath(o)
	}
	return t.change(o)
}

// change does an operation by which a page may change, or leaves.
func (t *Table) change(o *pagetable.Operation) (pagetable.Outcome, error) {
	p := o.Page
	if t.unsaved.Has(p) {
		if t.bufs[0] = t.sink.Buffer(true); t.bufs[0] == nil {
			t.full = append(t.full, *o)
			return pagetable.Pending, nil
		}
		if err := t.hand(p, 1); err != nil {
			return pagetable.Done, err
		}
	}
	t.kept.Remove(p)
	t.unchanged.Remove(p)
	t.sealed.Remove(p)
	t.written.Remove(p)
	if o.Op != pagetable.OpMap {
		return t.beneath(o)
	}
	out, err := t.beneath(&pagetable.Operation{Op: pagetable.OpMakeWritable, Page: p})
	if out == pagetable.Pending && err == nil {
		t.opening.Add(p)
	}
	return out, err
}

// beneath does an operation on the table beneath.
func (t *Table) beneath(o *pagetable.Operation) (pagetable.Outcome, error) {
	out, err := pagetable.Perform(t.Table, o)
	if out == pagetable.Pending && err == nil {
		t.pending.Add(o.Page)
	}
	return out, err
}

// Drop implements pagetable.Table.
func (t *Table) Drop(first pagetable.Page, count uint64) (pagetable.Outcome, error) {
	for p := range t.unsaved.Within(first, count) {
		if t.sink == nil {
			break // it has ended the snapshot for the page before
		}
		t.sink.Lost(p)
	}
	t.forget(first, count)
	if len(t.sealing) > 0 {
		t.drops = append(t.drops, pagetable.Run{First: first, Count: int(count)})
		return pagetable.Pending, nil
	}
	return t.Table.Drop(first, count)
}

// Poll implements pagetable.Table.
func (t *Table) Poll(events []pagetable.Event) (int, error) {
	got, err := t.Table.Poll(events)
	n := 0
	for _, ev := range events[:got] {
		switch {
		case ev.Kind == pagetable.Fault && ev.Write && t.sealed.Has(ev.Page):
			t.written.Add(ev.Page)
		case ev.Kind == pagetable.Completed:
			if _, is := t.sealing[ev.Page]; is && ev.Op == pagetable.OpDowngrade && ev.Err == nil {
				if err := t.isSealed(ev.Page); err != nil {
					return n, err
				}
				continue
			}
			t.pending.Remove(ev.Page)
			if t.opening.Remove(ev.Page) {
				ev.Op = pagetable.OpMap
			}
		}
		events[n] = ev
		n++
	}
	told := copy(events[n:], t.ready)
	t.ready = append(t.ready[:0], t.ready[told:]...)
	return n + told, err
}

// isSealed goes on with what has waited until a page was read-only.
func (t *Table) isSealed(p pagetable.Page) error {
	waiting := t.sealing[p]
	delete(t.sealing, p)
	for i := range waiting {
		out, err := t.operate(&waiting[i])
		if err != nil {
			return err
		}
		if out == pagetable.Done {
			t.tell(waiting[i].Op, p)
		}
	}
	if len(t.sealing) > 0 {
		return nil
	}
	drops := t.drops
	t.drops = nil
	for _, d := range drops {
		out, err := t.Table.Drop(d.First, uint64(d.Count))
		if err != nil {
			return err
		}
		if out == pagetable.Done {
			t.tell(pagetable.OpDrop, d.First)
		}
	}
	return nil
}

// Close implements pagetable.Table.
func (t *Table) Close() error {
	t.forget(0, t.Pages())
	clear(t.sealing)
	return t.Table.Close()
}

// forget takes pages out of the snapshot, and out of all before.
func (t *Table) forget(first pagetable.Page, count uint64) {
	for _, set := range [...]*pagetable.PageSet{&t.unsaved, &t.kept, &t.unchanged, &t.sealed, &t.written, &t.opening} {
		set.RemoveRun(first, count)
	}
}
