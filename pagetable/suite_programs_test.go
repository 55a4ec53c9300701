package pagetable_test

import (
	"dsmd/pagetable"
	"fmt"
)

func programsShareOneCopy(r *Rig) {
	p, pid := r.Start()
	q, qid := r.Start()
	r.Value(r.Installed(p, pid, 4, 1, true))
	load := q.Load(4, 0)
	r.Fault(qid, 4, false) // the page is here, but not mapped there
	r.Map(4, qid)
	r.Want(r.Value(load), 1, "the word in the second program")
	r.Value(p.Store(4, 0, 2))
	r.Want(r.Value(q.Load(4, 0)), 2, "the word that the first stored")
	r.Value(q.Store(4, 8, 3))
	r.Want(r.Value(p.Load(4, 8)), 3, "the word that the second stored")
}

func operationsReachAllPrograms(r *Rig) {
	p, pid := r.Start()
	q, qid := r.Start()
	late, lateID := r.Start() // has not touched the page
	r.Value(r.Installed(p, pid, 4, 1, true))
	r.Value(q.Store(4, 8, 2))

	r.Downgrade(4)
	a, b, c := p.Store(4, 0, 3), q.Store(4, 8, 4), late.Store(4, 16, 5)
	for _, id := range []pagetable.ProcID{pid, qid, lateID} {
		r.Fault(id, 4, true)
	}
	page := r.Read(4)
	r.Want(Word(page, 0), 1, "the first program's word")
	r.Want(Word(page, 8), 2, "the second program's word")

	r.MakeWritable(4)
	r.Value(a)
	r.Value(b)
	r.Value(c)

	page = r.Revoke(4)
	r.Want(Word(page, 0), 3, "the first program's word")
	r.Want(Word(page, 8), 4, "the second program's word")
	r.Want(Word(page, 16), 5, "the third program's word")
	for _, at := range []struct {
		Program
		id pagetable.ProcID
	}{{p, pid}, {q, qid}, {late, lateID}} {
		load := at.Load(4, 0)
		r.Fault(at.id, 4, false)
		r.StillWaits(load, "the page was revoked")
	}
}

func mapOfAbsentPageWakes(r *Rig) {
	p, id := r.Start()
	load := p.Load(4, 0)
	r.Fault(id, 4, false)
	for _, writable := range []bool{false, true} {
		out, err := r.table.Map(4, writable, id)
		r.Finish(pagetable.OpMap, 4, out, err)
		r.Fault(id, 4, false)
	}
	r.StillWaits(load, "the page is absent")
}

func mapTwice(r *Rig) {
	p, pid := r.Start()
	q, qid := r.Start()
	r.Value(r.Installed(p, pid, 4, 1, false))
	a, b := q.Load(4, 0), q.Load(4, 8)
	r.Fault(qid, 4, false)
	r.Fault(qid, 4, false)
	r.Map(4, qid)
	r.Map(4, qid)
	r.Map(4, pid)
	r.Want(r.Value(a)+r.Value(b), 2, "the sum of two words")
	store := q.Store(4, 0, 2)
	r.Fault(qid, 4, true)
	r.StillWaits(store, "the page is read-only")
	r.MakeWritable(4)
	r.Map(4, qid)
	r.Map(4, qid)
	r.Value(store)
	r.Want(r.Value(p.Load(4, 0)), 2, "the word stored")
}

func mapForAllWakesOnly(r *Rig) {
	p, pid := r.Start()
	q, qid := r.Start()
	a, b := p.Load(4, 0), q.Load(4, 0)
	r.Fault(pid, 4, false)
	r.Fault(qid, 4, false)
	out, err := r.table.Map(4, false, pagetable.AllProcs)
	r.Finish(pagetable.OpMap, 4, out, err)
	r.Fault(pid, 4, false)
	r.Fault(qid, 4, false)
	r.StillWaits(a, "the page is absent")
	r.StillWaits(b, "the page is absent")
}

func restartedFaultIsReportedAgain(r *Rig) {
	p, id := r.Start()
	load := p.Load(4, 0)
	first := r.Fault(id, 4, false)
	p.Restart()
	again := r.Fault(id, 4, false)
	if first.Thread != again.Thread {
		r.Errorf("the fault of thread %d was restarted and came from thread %d", first.Thread, again.Thread)
	}
	p.Restart()
	r.Install(4, r.Filled(1), false, id)
	r.Want(r.Value(load), 1, "the word loaded")
	store := p.Store(4, 0, 2)
	r.Fault(id, 4, true)
	p.Restart()
	r.Fault(id, 4, true)
	r.MakeWritable(4)
	r.Value(store)
	r.Want(Word(r.Read(4), 0), 2, "the word stored")
}

// lockedMemoryTraps: a program locks its memory, so that the kernel would rather have its pages at
// once. It gets none but those that are installed, neither in what it has mapped nor in what it
// maps afterwards.
func lockedMemoryTraps(r *Rig) {
	p, id := r.Start()
	r.Value(r.Installed(p, id, 4, 1, true))
	lock := p.Lock()
	r.until("a program to lock its memory", true, func() bool {
		faults := r.faults
		r.faults = nil // Install may find more
		for _, ev := range faults {
			if _, present := r.pages[ev.Page]; present { // it has left to a file meanwhile, say
				r.faults = append(r.faults, ev)
				continue
			}
			r.Install(ev.Page, r.Filled(uint64(ev.Page)), ev.Write, id)
		}
		select {
		case res := <-lock.done:
			if res.err != nil {
				r.Fatalf("lock memory: %v", res.err)
			}
			return true
		default:
			return false
		}
	})
	for page := pagetable.Page(5); page < 8; page++ {
		if _, present := r.pages[page]; present {
			r.Want(Word(r.Revoke(page), 0), uint64(page), "a word of a page that was locked")
		}
		load := p.Load(page, 0)
		r.Fault(id, page, false)
		r.StillWaits(load, "its page is absent")
		r.Install(page, r.Filled(10), false, id)
		r.Want(r.Value(load), 10, "the word installed")
		store := p.Store(page, 0, 11)
		r.Fault(id, page, true)
		r.StillWaits(store, "its page is read-only")
		r.Revoke(page)
	}
	p.Remap()
	for page := pagetable.Page(5); page < 8; page++ {
		load := p.Load(page, 0)
		r.Fault(id, page, false)
		r.StillWaits(load, "its page is absent, though it was mapped anew by a program that locks all that it maps")
		r.Want(Word(r.Read(page), 0), 0, "a word of an absent page")
	}
	r.Want(r.Value(p.Load(4, 0)), 1, "the word that was there before")
}

func detachKeepsPages(r *Rig) {
	p, pid := r.Start()
	r.Value(r.Installed(p, pid, 4, 1, true))
	r.Value(p.Store(4, 0, 2))
	r.table.Detach(pid, false)
	r.table.Detach(pid, false)
	q, _ := r.Start()
	r.Want(r.Value(q.Load(4, 0)), 2, "the word that the first program left")
}

// detachedProgramStoresNothing: a program lives on after it was detached. Once an operation is done
// that takes stores away, none of its own happens any more, whatever others are allowed later.
func detachedProgramStoresNothing(r *Rig) {
	p, pid := r.Start()
	q, _ := r.Start()
	for page := pagetable.Page(4); page < 8; page++ {
		r.Value(r.Installed(p, pid, page, 1, page < 6)) // the first two writable
		r.Value(q.Load(page, 0))
	}
	r.Value(p.Store(4, 0, 2))
	r.Value(p.Store(5, 0, 2))
	waits := p.Load(9, 0)
	r.Fault(pid, 9, false)

	r.faults = r.faults[:0] // repeats of what has just been settled
	r.table.Detach(pid, false)
	r.Downgrade(4)
	dead := []*Access{waits, p.Store(4, 0, 99), p.Store(6, 0, 99), p.Store(10, 0, 99)}
	r.NoEffect(dead, "its program was detached")
	for page := pagetable.Page(4); page < 8; page++ {
		r.MakeWritable(page)
		r.Value(q.Store(page, 0, 3))
	}
	r.Want(Word(r.Revoke(5), 0), 3, "a word that was writable when its program was detached")
	r.Install(5, r.Filled(4), true, pagetable.AllProcs)
	r.Install(9, r.Filled(4), true, pid)
	r.Install(10, r.Filled(4), true, pagetable.AllProcs)
	r.Map(10, pid)
	dead = append(dead, p.Store(5, 0, 99), p.Store(7, 0, 99))
	r.NoEffect(dead[1:], "its program was detached")
	p.Restart()
	r.NoEffect(dead[1:], "its program was detached")
	for page, want := range map[pagetable.Page]uint64{4: 3, 5: 4, 6: 3, 7: 3, 9: 4, 10: 4} {
		r.Want(r.Value(q.Load(page, 0)), want, fmt.Sprintf("the word of page %d in another program", page))
		r.Want(Word(r.Read(page), 0), want, fmt.Sprintf("the word of page %d in the table", page))
	}
	r.pump(false)
	for _, ev := range r.faults {
		if ev.Proc == pid {
			r.Errorf("a fault of a detached program was reported: %+v", ev)
		}
	}
	p.Kill()
	again, _ := r.Start()
	r.Want(r.Value(again.Load(4, 0)), 3, "the word in a program that was attached afterwards")
}

func killedProgram(r *Rig) {
	p, pid := r.Start()
	q, qid := r.Start()
	r.Value(r.Installed(p, pid, 4, 1, true))
	r.Value(p.Store(4, 0, 2))
	p.Load(5, 0)
	r.Fault(pid, 5, false)
	p.Kill()
	r.Install(5, r.Filled(3), false, pid) // the answer to the dead thread's fault
	r.Want(Word(r.Read(4), 0), 2, "the dead program's word")
	r.Want(r.Value(q.Load(4, 0)), 2, "the dead program's word, in another program")
	r.Want(r.Value(q.Load(5, 0)), 3, "the page that the dead program waited for")
	r.Downgrade(4)
	store := q.Store(4, 0, 4)
	r.Fault(qid, 4, true)
	r.MakeWritable(4)
	r.Value(store)
	r.Want(Word(r.Revoke(4), 0), 4, "the last word")
	r.until("the dead program to be reported", true, func() bool { return r.Gone(pid) > 0 })
	r.Revoke(5)
	r.pump(true)
	if n := r.Gone(pid); n != 1 {
		r.Errorf("the end of program %d was reported %d times", pid, n)
	}
	if n := r.Gone(qid); n != 0 {
		r.Errorf("the living program %d was reported gone", qid)
	}
	r.table.Detach(pid, false)
}
