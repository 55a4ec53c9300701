package pagetable_test

import "dsmd/pagetable"

func dropRun(r *Rig) {
	p, id := r.Start()
	for page := pagetable.Page(3); page < 9; page++ {
		r.Value(r.Installed(p, id, page, uint64(page), true))
	}
	out, err := r.table.Drop(4, 4)
	r.Finish(pagetable.OpDrop, 4, out, err)
	out, err = r.table.Drop(4, 0)
	r.Finish(pagetable.OpDrop, 4, out, err)
	for page := pagetable.Page(4); page < 8; page++ {
		delete(r.pages, page)
		load := p.Load(page, 0)
		r.Fault(id, page, false)
		r.StillWaits(load, "its page was dropped")
		r.Want(Word(r.Read(page), 0), 0, "a word of a dropped page")
	}
	r.Want(r.Value(p.Load(3, 0)), 3, "the word before the run")
	r.Want(r.Value(p.Load(8, 0)), 8, "the word after it")
	out, err = r.table.Drop(0, RegionPages)
	r.Finish(pagetable.OpDrop, 0, out, err)
	for page := pagetable.Page(4); page < 8; page++ { // woken, and still without a page
		r.Fault(id, page, false)
	}
}

// loseFailsWaiters: threads of several programs wait for a page when it turns out that nobody has
// it any more.
func loseFailsWaiters(r *Rig) {
	p, pid := r.Start()
	q, qid := r.Start()
	var waiting []*Access
	for i := range 3 {
		waiting = append(waiting, p.Load(4, 8*i), q.Store(4, 8*i, 1))
	}
	for range 3 {
		r.Fault(pid, 4, false)
		r.Fault(qid, 4, true)
	}
	r.Lose(4)
	for _, a := range waiting {
		r.Fails(a, "an access that waited")
	}
	r.Want(Word(r.Read(4), 0), 0, "a word of the table's lost page")
}

// loseFailsLaterAccesses: so does whoever comes later, a program that is attached afterwards
// included, and as often as it comes; and nobody is asked.
func loseFailsLaterAccesses(r *Rig) {
	p, _ := r.Start()
	r.Lose(4)
	r.Lose(4)
	r.Fails(p.Load(4, 0), "the first load")
	r.Fails(p.Store(4, r.table.PageBytes()-8, 1), "a store")
	r.Fails(p.Load(4, 0), "the second load")
	late, _ := r.Start()
	r.Fails(late.Store(4, 8, 1), "a store of a program that was attached afterwards")
	r.Fails(late.Load(4, 8), "a load after it")
	load := p.Load(4, 0)
	p.Restart()
	r.Fails(load, "a load that a signal may have met")
	r.pump(false)
	if len(r.faults) != 0 {
		r.Errorf("accesses to a lost page were reported: %+v", r.faults)
	}
}

// loseOfPageThatWasHere: what programs had of the page, readable or writable, leaves nothing that
// could answer an access.
func loseOfPageThatWasHere(r *Rig) {
	p, pid := r.Start()
	q, _ := r.Start()
	for page := pagetable.Page(4); page < 7; page++ {
		r.Value(r.Installed(p, pid, page, 1, page > 4))
		r.Value(q.Load(page, 8))
	}
	r.Downgrade(6)
	for page := pagetable.Page(4); page < 7; page++ {
		r.Revoke(page)
		r.Lose(page)
		r.Fails(q.Load(page, 0), "a load")
		r.Fails(p.Store(page, 0, 2), "a store")
		r.Fails(p.Load(page, 0), "a load after the store")
		r.Fails(q.Store(page, 0, 2), "a store after the load")
	}
}

func lostPagesAreSeparate(r *Rig) {
	p, id := r.Start()
	last := r.table.PageBytes() - 8
	for _, page := range []pagetable.Page{0, 4, 6, RegionPages - 1} {
		r.Lose(page)
	}
	for _, page := range []pagetable.Page{1, 3, 5, 7, RegionPages - 2} {
		r.Value(r.Installed(p, id, page, uint64(page), true))
		r.Want(r.Value(p.Load(page, last)), uint64(page), "the last word of a page beside a lost one")
		r.Value(p.Store(page, 0, 100))
	}
	for _, page := range []pagetable.Page{0, 4, 6, RegionPages - 1} {
		r.Fails(p.Load(page, last), "a load of the last word")
		r.Fails(p.Store(page, 0, 1), "a store to the first word")
	}
	r.Revoke(5)
	load := p.Load(5, 0)
	r.Fault(id, 5, false)
	r.StillWaits(load, "its page is absent, and not lost")
}

// installUndoesLose: should somebody have the page after all, every program gets it, also those
// that were told that it was lost.
func installUndoesLose(r *Rig) {
	p, pid := r.Start()
	q, qid := r.Start()
	untouched, _ := r.Start()
	for i, writable := range []bool{false, true} {
		page := pagetable.Page(4 + i)
		r.Lose(page)
		r.Fails(p.Load(page, 0), "a load")
		r.Fails(q.Store(page, 0, 1), "a store")
		r.Install(page, r.Filled(7), writable, pid)
		r.Want(r.Value(p.Load(page, 0)), 7, "the word for which it was installed")
		r.Want(r.Value(q.Load(page, 8)), 7, "the word in another program")
		r.Want(r.Value(untouched.Load(page, 8)), 7, "the word in a program that had not touched it")
		store := q.Store(page, 0, 8)
		if !writable {
			r.Fault(qid, page, true)
			r.StillWaits(store, "the page was installed read-only")
			r.MakeWritable(page)
		}
		r.Value(store)
		r.Want(r.Value(p.Load(page, 0)), 8, "the word stored")
		r.Revoke(page)
		load := q.Load(page, 0)
		r.Fault(qid, page, false)
		r.StillWaits(load, "the page was revoked, and is not lost any more")
	}
	r.Lose(6)
	r.Fails(p.Load(6, 0), "a load")
	r.Install(6, nil, true, pagetable.AllProcs)
	r.Want(r.Value(p.Load(6, 0)), 0, "the word installed for nobody")

	n := r.runPages()
	r.Lose(20)
	r.Fails(q.Load(20, 0), "a load")
	r.Operate(pagetable.Run{Op: pagetable.OpInstall, First: 20 - pagetable.Page(n) + 1, Count: n, Data: r.filledRun(30, n), Proc: pid})
	for i := range n {
		r.Want(r.Value(q.Load(20-pagetable.Page(n-1-i), 0)), 30+uint64(i), "a word of a run of which the last page was lost")
	}
}

// dropUndoesLose: memory that was freed is as good as new for those who map it anew.
func dropUndoesLose(r *Rig) {
	p, id := r.Start()
	for page := pagetable.Page(3); page < 7; page++ {
		r.Lose(page)
		r.Fails(p.Load(page, 0), "a load")
	}
	out, err := r.table.Drop(4, 2)
	r.Finish(pagetable.OpDrop, 4, out, err)
	p.Remap()
	for page := pagetable.Page(3); page < 7; page++ {
		if page == 3 || page == 6 {
			r.Fails(p.Load(page, 0), "a load beside the run that was dropped")
			continue
		}
		load := p.Load(page, 0)
		r.Fault(id, page, false)
		r.StillWaits(load, "its page is absent, and not lost any more")
		r.Install(page, r.Filled(9), false, id)
		r.Want(r.Value(load), 9, "the word of the new page")
	}
	out, err = r.table.Drop(0, RegionPages)
	r.Finish(pagetable.OpDrop, 0, out, err)
	clear(r.pages)
	p.Remap()
	load := p.Load(3, 0)
	r.Fault(id, 3, false)
	r.StillWaits(load, "its page is absent, and not lost any more")
}
