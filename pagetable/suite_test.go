package pagetable_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"dsmd/pagetable"
)

// notInShort leaves out a suite that has the same code meet another kernel, or other sizes. With
// -race each takes more than a minute.
func notInShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("a suite of the long tests")
	}
}

// longer is how many times as long the tests are that do things at random, or in any order.
var longer = flag.Int("pagetable.longer", 1, "how many times as long tests are that do things at random")

// runSuite checks that a Table keeps its contract, one subtest for each promise. newFixture makes a
// table for each.
func runSuite(t *testing.T, newFixture func(t testing.TB) Fixture) {
	t.Parallel() // most of it waits for programs
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
		{"LockedMemoryTraps", lockedMemoryTraps},
		{"DetachKeepsPages", detachKeepsPages},
		{"DetachedProgramStoresNothing", detachedProgramStoresNothing},
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
		{"WaitFDUntilTheLast", waitFDUntilTheLast},
		{"AttachTwice", attachTwice},
		{"BadArgumentsPanic", badArgumentsPanic},
		{"AfterClose", afterClose},
		{"RandomHistory", randomHistory},
		{"RunInstalled", runInstalled},
		{"RunOfZeros", runOfZeros},
		{"RunForNobody", runForNobody},
		{"RunUpgradedAndDowngraded", runUpgradedAndDowngraded},
		{"RunRevoked", runRevoked},
		{"RunRead", runRead},
		{"BadRunsPanic", badRunsPanic},
		{"RunAfterClose", runAfterClose},
		{"RandomRuns", randomRuns},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(NewRig(t, newFixture(t))) })
	}
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
	if one.Offset != 0 && one.Offset != 16 || two.Offset != 0 && two.Offset != 24 {
		// 0: before Linux 5.18
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

// revokeWakesWaiters: a store that waits for an upgrade when the page is taken away must be
// reported as a fault on an absent page, or nobody would fetch the page for it.
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
	awaitReadable(r, r.table.WaitFD(), "a thread faulted")
	// again, and not at once: a signal takes the fault back for a moment
	awaitReadable(r, r.table.WaitFD(), "nobody polled, and it must be level-triggered")
	r.Fault(id, 4, false)
	r.Install(4, r.Filled(1), false, id)
	r.Value(load) // until here a signal could restart the fault
	r.until("nothing to be polled", true, func() bool { return r.pump(true) == 0 && !waitReadable(r, r.table.WaitFD(), 0) })
}

// waitFDUntilTheLast: a caller who polls only when the descriptor says so, and never has room for
// all, hears of everything. It matters how the program's answers and the polls meet, so this is
// done many times.
func waitFDUntilTheLast(r *Rig) {
	p, id := r.Start()
	for page := range pagetable.Page(RegionPages) {
		r.Value(r.Installed(p, id, page, 1, true))
	}
	rounds := 8 * *longer
	if _, is := p.(fakeProgram); is {
		rounds = *longer // nothing happens at the same time, so one round shows what eight do
	}
	for round := range rounds {
		var stores [RegionPages]*Access
		for page := range pagetable.Page(RegionPages) {
			stores[page] = p.Store(page, 0, uint64(round))
		}
		for _, store := range stores {
			r.Value(store)
		}
		left := 0
		for page := range pagetable.Page(RegionPages) {
			switch out, err := r.table.Downgrade(page); {
			case err != nil:
				r.Fatal(err)
			case out == pagetable.Pending:
				left++
			}
		}
		if left == 0 {
			return // this table has nothing pending, if the program does not hinder it
		}
		for total := left; left > 0; {
			awaitReadable(r, r.table.WaitFD(), fmt.Sprintf("round %d: %d of %d operations are not reported", round, left, total))
			var events [3]pagetable.Event
			n, err := r.table.Poll(events[:])
			if err != nil {
				r.Fatal(err)
			}
			left -= n
		}
		for page := range pagetable.Page(RegionPages) {
			r.MakeWritable(page)
		}
	}
}

func attachTwice(r *Rig) {
	_, id := r.Start()
	for _, proc := range []pagetable.ProcID{id, pagetable.AllProcs} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			r.Fatal(err)
		}
		if err := r.table.Attach(proc, pair[0], 0); !errors.Is(err, pagetable.ErrAttached) {
			r.Errorf("Attach as %d: %v, want ErrAttached", proc, err)
		}
		// not at once: a child that another test starts has a copy until it runs its program
		awaitReadable(r, pair[1], "a failed Attach left the descriptor open")
		unix.Close(pair[1])
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
	out, install := r.table.Install(1, nil, true, id)
	if out != pagetable.Done {
		r.Errorf("Install after Close is %d", out)
	}
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
	r.table.Detach(id, false)
}
