package pagetabletest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"dsmd/pagetable"
)

// Run checks that a Table keeps its contract, one subtest for each promise. newFixture makes a table for each.
func Run(t *testing.T, newFixture func(t testing.TB) Fixture) {
	for _, c := range []struct {
		name string
		run  func(*Rig)
	}{
		{"InstallReadOnly", installReadOnly},
		{"InstallWritable", installWritable},
		{"InstallZeros", installZeros},
		{"InstallWakesAllWaiters", installWakesAllWaiters},
		{"InstallForNobody", installForNobody},
		{"InstallForUnknownProgram", installForUnknownProgram},
		{"FaultSaysWhetherItWrites", faultSaysWhetherItWrites},
		{"MakeWritableWakes", makeWritableWakes},
		{"DowngradeStopsStores", downgradeStopsStores},
		{"RevokeReturnsLastContents", revokeReturnsLastContents},
		{"RevokeWithoutReader", revokeWithoutReader},
		{"RevokeWakesWaiters", revokeWakesWaiters},
		{"PagesAreSeparate", pagesAreSeparate},
		{"ProgramsShareOneCopy", programsShareOneCopy},
		{"OperationsReachAllPrograms", operationsReachAllPrograms},
		{"MapOfAbsentPageWakes", mapOfAbsentPageWakes},
		{"MapTwice", mapTwice},
		{"MapForAllWakesOnly", mapForAllWakesOnly},
		{"RestartedFaultIsReportedAgain", restartedFaultIsReportedAgain},
		{"DetachKeepsPages", detachKeepsPages},
		{"KilledProgram", killedProgram},
		{"DropRun", dropRun},
		{"LoseFailsWaiters", loseFailsWaiters},
		{"LoseFailsLaterAccesses", loseFailsLaterAccesses},
		{"LoseOfPageThatWasHere", loseOfPageThatWasHere},
		{"LostPagesAreSeparate", lostPagesAreSeparate},
		{"InstallUndoesLose", installUndoesLose},
		{"DropUndoesLose", dropUndoesLose},
		{"ReadOfAbsentPage", readOfAbsentPage},
		{"PollFillsWhatFits", pollFillsWhatFits},
		{"WaitFD", waitFD},
		{"AttachTwice", attachTwice},
		{"BadArgumentsPanic", badArgumentsPanic},
		{"AfterClose", afterClose},
		{"RandomHistory", randomHistory},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(NewRig(t, newFixture(t))) })
	}
	testRuns(t, newFixture)
}

func installReadOnly(r *Rig) {
	p, id := r.Start()
	load := p.Load(3, 16)
	r.Fault(id, 3, false)
	r.Install(3, r.Filled(7), false, id)
	r.Want(r.Value(load), 7, "the word loaded")
	store := p.Store(3, 16, 8)
	r.Fault(id, 3, true)
	r.StillWaits(store, "the page is read-only")
	r.Want(Word(r.Read(3), 16), 7, "the word in the table")
}

func installWritable(r *Rig) {
	p, id := r.Start()
	store := p.Store(3, 8, 1)
	r.Fault(id, 3, true)
	r.Install(3, r.Filled(7), true, id)
	r.Value(store)
	page := r.Read(3)
	r.Want(Word(page, 8), 1, "the word stored")
	r.Want(Word(page, 16), 7, "the word beside it")
	r.Value(p.Store(3, 16, 2))
	r.Want(r.Value(p.Load(3, 16)), 2, "the second word stored")
}

func installZeros(r *Rig) {
	p, id := r.Start()
	for i, writable := range []bool{false, true} {
		page := pagetable.Page(i)
		load := p.Load(page, 0)
		r.Fault(id, page, false)
		r.Install(page, nil, writable, id)
		r.Want(r.Value(load), 0, "the word loaded")
		store := p.Store(page, 0, 5)
		if !writable {
			r.Fault(id, page, true)
			r.StillWaits(store, "zeros were installed read-only")
			r.MakeWritable(page)
		}
		r.Value(store)
		r.Want(Word(r.Read(page), 0), 5, "the word stored")
	}
}

func installWakesAllWaiters(r *Rig) {
	p, pid := r.Start()
	q, qid := r.Start()
	var loads []*Access
	for i := range 4 {
		loads = append(loads, p.Load(5, 8*i), q.Load(5, 8*i))
	}
	for range 4 {
		r.Fault(pid, 5, false)
		r.Fault(qid, 5, false)
	}
	r.Install(5, r.Filled(9), false, pid)
	for _, a := range loads {
		r.Want(r.Value(a), 9, "the word loaded")
	}
}

func installForNobody(r *Rig) {
	p, id := r.Start()
	waits := p.Load(1, 0)
	r.Fault(id, 1, false)
	r.Install(1, r.Filled(4), false, pagetable.AllProcs) // somebody waits
	r.Want(r.Value(waits), 4, "the word that was waited for")
	r.Install(2, r.Filled(5), true, pagetable.AllProcs) // nobody does
	r.Want(Word(r.Read(2), 0), 5, "the word in the table")
	r.Value(p.Store(2, 8, 6))
	r.Want(Word(r.Read(2), 8), 6, "the word stored")
	store := p.Store(1, 0, 9)
	r.Fault(id, 1, true)
	r.StillWaits(store, "the page was installed read-only")
}

func installForUnknownProgram(r *Rig) {
	r.Install(1, r.Filled(4), false, 77) // it left between its fault and the answer
	p, _ := r.Start()
	r.Want(r.Value(p.Load(1, 0)), 4, "the word loaded")
}

func faultSaysWhetherItWrites(r *Rig) {
	p, id := r.Start()
	p.Load(1, 16)
	p.Store(2, 24, 1)
	one, two := r.Fault(id, 1, false), r.Fault(id, 2, true)
	if one.Offset != 0 && one.Offset != 16 || two.Offset != 0 && two.Offset != 24 { // 0: before Linux 5.18
		r.Errorf("the faults are at bytes %d and %d of their pages, want 16 and 24", one.Offset, two.Offset)
	}
	if one.Thread == two.Thread {
		r.Errorf("two threads wait, and both faults name thread %d", one.Thread)
	}
}

func makeWritableWakes(r *Rig) {
	p, id := r.Start()
	r.Value(r.Installed(p, id, 4, 1, false))
	a, b := p.Store(4, 0, 2), p.Store(4, 8, 3)
	r.Fault(id, 4, true)
	r.Fault(id, 4, true)
	r.MakeWritable(4)
	r.Value(a)
	r.Value(b)
	page := r.Read(4)
	r.Want(Word(page, 0), 2, "the first word stored")
	r.Want(Word(page, 8), 3, "the second word stored")
	r.Want(Word(page, 16), 1, "the word beside them")
}

// Installed has a program load from an absent page and installs that; the access ends soon.
func (r *Rig) Installed(p Program, id pagetable.ProcID, page pagetable.Page, v uint64, writable bool) *Access {
	r.Helper()
	a := p.Load(page, 0)
	r.Fault(id, page, false)
	r.Install(page, r.Filled(v), writable, id)
	return a
}

func downgradeStopsStores(r *Rig) {
	p, id := r.Start()
	r.Value(r.Installed(p, id, 4, 1, true))
	r.Value(p.Store(4, 0, 2))
	r.Downgrade(4)
	r.Want(r.Value(p.Load(4, 0)), 2, "the word after the downgrade")
	store := p.Store(4, 0, 3)
	r.Fault(id, 4, true)
	r.StillWaits(store, "the page was downgraded")
	r.Want(Word(r.Read(4), 0), 2, "the word in the table")
	r.MakeWritable(4)
	r.Value(store)
	r.Want(Word(r.Read(4), 0), 3, "the word stored at last")
}

func revokeReturnsLastContents(r *Rig) {
	p, id := r.Start()
	for round := range uint64(3) {
		r.Value(r.Installed(p, id, 4, 10*round, true))
		r.Value(p.Store(4, 8, 10*round+1))
		page := r.Revoke(4)
		r.Want(Word(page, 0), 10*round, "the word installed")
		r.Want(Word(page, 8), 10*round+1, "the word stored")
		r.Want(Word(r.Read(4), 8), 0, "a word of the absent page")
	}
	load := p.Load(4, 8)
	r.Fault(id, 4, false)
	r.StillWaits(load, "the page was revoked")
}

func revokeWithoutReader(r *Rig) {
	p, id := r.Start()
	r.Value(r.Installed(p, id, 4, 1, false))
	out, err := r.table.Revoke(4, nil)
	r.Finish(pagetable.OpRevoke, 4, out, err)
	delete(r.pages, 4)
	load := p.Load(4, 0)
	r.Fault(id, 4, false)
	r.StillWaits(load, "the page was revoked")
	r.Install(4, r.Filled(2), false, id)
	r.Want(r.Value(load), 2, "the word of the new copy")
}

// revokeWakesWaiters: a store that waits for an upgrade when the page is taken away must be reported as a fault on an
// absent page, or nobody would fetch the page for it.
func revokeWakesWaiters(r *Rig) {
	p, id := r.Start()
	r.Value(r.Installed(p, id, 4, 1, false))
	store := p.Store(4, 0, 2)
	r.Fault(id, 4, true)
	r.Revoke(4)
	r.Fault(id, 4, true)
	r.StillWaits(store, "the page was revoked")
	r.Install(4, r.Filled(3), true, id)
	r.Value(store)
	page := r.Read(4)
	r.Want(Word(page, 0), 2, "the word stored")
	r.Want(Word(page, 8), 3, "the word beside it")
}

func pagesAreSeparate(r *Rig) {
	p, id := r.Start()
	last := r.table.PageBytes() - 8
	for _, page := range []pagetable.Page{0, 1, 2, RegionPages - 1} {
		r.Value(r.Installed(p, id, page, uint64(100+page), true))
	}
	r.Revoke(1)
	r.Want(r.Value(p.Load(0, last)), 100, "the last word before the revoked page")
	r.Want(r.Value(p.Load(2, 0)), 102, "the first word after it")
	r.Downgrade(2)
	r.Value(p.Store(0, last, 7))
	r.Value(p.Store(RegionPages-1, last, 8))
	r.Want(Word(r.Read(RegionPages-1), last), 8, "the last word of the region")
	load := p.Load(1, last)
	r.Fault(id, 1, false)
	r.StillWaits(load, "its page was revoked")
}

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

func detachKeepsPages(r *Rig) {
	p, pid := r.Start()
	r.Value(r.Installed(p, pid, 4, 1, true))
	r.Value(p.Store(4, 0, 2))
	r.table.Detach(pid)
	r.table.Detach(pid)
	q, _ := r.Start()
	r.Want(r.Value(q.Load(4, 0)), 2, "the word that the first program left")
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
	r.until("the dead program to be reported", true, func() bool { return r.gone[pid] > 0 })
	r.Revoke(5)
	r.pump(true)
	if n := r.gone[pid]; n != 1 {
		r.Errorf("the end of program %d was reported %d times", pid, n)
	}
	if n := r.gone[qid]; n != 0 {
		r.Errorf("the living program %d was reported gone", qid)
	}
	r.table.Detach(pid)
}

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

// loseFailsWaiters: threads of several programs wait for a page when it turns out that nobody has it any more.
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

// loseFailsLaterAccesses: so does whoever comes later, a program that is attached afterwards included, and as often as it comes; and nobody is asked.
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

// loseOfPageThatWasHere: what programs had of the page, readable or writable, leaves nothing that could answer an access.
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

// installUndoesLose: should somebody have the page after all, every program gets it, also those that were told that it was lost.
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

func readOfAbsentPage(r *Rig) {
	if !bytes.Equal(r.Read(6), r.Filled(0)) {
		r.Error("an absent page does not read as zeros")
	}
	p, id := r.Start()
	load := p.Load(6, 0)
	r.Fault(id, 6, false)
	r.StillWaits(load, "reading a page from the table does not make it present")
}

func pollFillsWhatFits(r *Rig) {
	p, id := r.Start()
	for page := range pagetable.Page(5) {
		p.Load(page, 0)
	}
	seen := make(map[pagetable.Page]bool)
	r.until("five faults, one at a time", false, func() bool {
		var one [1]pagetable.Event
		n, err := r.table.Poll(one[:])
		if err != nil || n > 1 {
			r.Fatalf("Poll of one event: %d, %v", n, err)
		}
		if n == 1 && one[0].Kind == pagetable.Fault && one[0].Proc == id {
			seen[one[0].Page] = true
		}
		for _, ev := range r.faults {
			seen[ev.Page] = true
		}
		return len(seen) == 5
	})
	if n, err := r.table.Poll(nil); n != 0 || err != nil {
		r.Errorf("Poll of no events: %d, %v", n, err)
	}
}

func waitFD(r *Rig) {
	p, id := r.Start()
	r.Start() // a second one, so that the descriptor stands for several
	if waitReadable(r, r.table.WaitFD(), 0) {
		r.Error("readable before anything happened")
	}
	load := p.Load(4, 0)
	if !waitReadable(r, r.table.WaitFD(), int(limit.Milliseconds())) {
		r.Fatal("not readable although a thread faulted")
	}
	if !waitReadable(r, r.table.WaitFD(), 0) {
		r.Error("no longer readable although nobody polled: it must be level-triggered")
	}
	r.Fault(id, 4, false)
	r.Install(4, r.Filled(1), false, id)
	r.Value(load) // until here a signal could restart the fault
	r.pump(true)
	if waitReadable(r, r.table.WaitFD(), 0) {
		r.Error("readable although everything was polled")
	}
}

func attachTwice(r *Rig) {
	_, id := r.Start()
	for _, proc := range []pagetable.ProcID{id, pagetable.AllProcs} {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			r.Fatal(err)
		}
		if err := r.table.Attach(proc, fd, 0); !errors.Is(err, pagetable.ErrAttached) {
			r.Errorf("Attach as %d: %v, want ErrAttached", proc, err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
			r.Errorf("a failed Attach left the descriptor open (%v)", err)
		}
	}
}

func badArgumentsPanic(r *Rig) {
	for name, call := range map[string]func(){
		"Install of a page beyond the region":      func() { r.table.Install(RegionPages, nil, true, 0) },
		"Install of half a page":                   func() { r.table.Install(0, make([]byte, r.table.PageBytes()/2), true, 0) },
		"Revoke of a page beyond the region":       func() { r.table.Revoke(RegionPages, nil) },
		"MakeWritable of a page beyond the region": func() { r.table.MakeWritable(RegionPages) },
		"Downgrade of a page beyond the region":    func() { r.table.Downgrade(RegionPages) },
		"Map of a page beyond the region":          func() { r.table.Map(RegionPages, true, 1) },
		"Drop of a run beyond the region":          func() { r.table.Drop(1, RegionPages) },
		"Lose of a page beyond the region":         func() { r.table.Lose(RegionPages) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					r.Errorf("%s did not panic", name)
				}
			}()
			call()
		}()
	}
}

func afterClose(r *Rig) {
	p, id := r.Start()
	r.Value(r.Installed(p, id, 4, 1, true))
	p.Kill()
	for range 2 {
		if err := r.table.Close(); err != nil {
			r.Fatalf("Close: %v", err)
		}
	}
	var events [1]pagetable.Event
	_, poll := r.table.Poll(events[:])
	_, install := r.table.Install(1, nil, true, id)
	_, makeWritable := r.table.MakeWritable(4)
	_, downgrade := r.table.Downgrade(4)
	_, revoke := r.table.Revoke(4, nil)
	_, mapped := r.table.Map(4, true, id)
	_, dropped := r.table.Drop(0, 1)
	_, lost := r.table.Lose(5)
	for name, err := range map[string]error{
		"Poll": poll, "Install": install, "MakeWritable": makeWritable, "Downgrade": downgrade, "Revoke": revoke, "Map": mapped,
		"Read": r.table.Read(4, r.Filled(0)), "Drop": dropped, "Lose": lost, "Attach": r.table.Attach(99, -1, 0),
	} {
		if !errors.Is(err, pagetable.ErrClosed) {
			r.Errorf("%s after Close: %v, want ErrClosed", name, err)
		}
	}
	r.table.Detach(id)
}

// chance starts the programs 1 and 2 of a random test, and returns them by their numbers with a source of randomness, whose seed is printed if
// the test fails.
func (r *Rig) chance(stream uint64) (*rand.Rand, []Program) {
	seed := rand.Uint64()
	r.Cleanup(func() {
		if r.Failed() {
			r.Logf("seed %d", seed)
		}
	})
	progs := []Program{nil}
	for range 2 {
		p, _ := r.Start()
		progs = append(progs, p)
	}
	return rand.New(rand.NewPCG(seed, stream)), progs
}

// randomHistory does random accesses and operations one after the other and compares every value with a plain array.
func randomHistory(r *Rig) {
	const pages, steps = 6, 400
	rng, progs := r.chance(0)
	var model [pages]uint64
	for step := range steps {
		page, proc := pagetable.Page(rng.IntN(pages)), pagetable.ProcID(1+rng.IntN(2))
		off := 8 * int(page)
		writable, present := r.pages[page]
		switch op := rng.IntN(6); {
		case op == 0 && present:
			r.Want(Word(r.Revoke(page), off), model[page], fmt.Sprintf("step %d: revoked page %d", step, page))
		case op == 1 && present && writable:
			r.Downgrade(page)
		case op == 2 && present:
			r.MakeWritable(page)
		case op == 3:
			store := progs[proc].Store(page, off, uint64(step))
			r.grant(page, proc, true, model[page])
			model[page] = uint64(step)
			r.Value(store)
		default:
			load := progs[proc].Load(page, off)
			r.grant(page, proc, false, model[page])
			r.Want(r.Value(load), model[page], fmt.Sprintf("step %d: page %d in program %d", step, page, proc))
		}
	}
}

// grant gives an access that was just made the page that it needs.
func (r *Rig) grant(page pagetable.Page, proc pagetable.ProcID, write bool, v uint64) {
	r.Helper()
	writable, present := r.pages[page]
	switch {
	case !present:
		r.Fault(proc, page, write)
		r.Install(page, r.Filled(v), write, proc)
	case write && !writable:
		r.Fault(proc, page, true)
		r.MakeWritable(page)
	}
	r.faults = r.faults[:0] // repeats of what has just been settled
}
