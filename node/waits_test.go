package node

import (
	"maps"
	"slices"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport/sim"
)

// threeOf starts two nodes, of which the second has three programs and page 0 for reading. What it
// asks for from now on does not come, and it may ask for so many pages at a time.
func threeOf(t *testing.T, h *heldMaps, window int) (c *cluster, b *asked, d, e *prog) {
	c = start(t, setup{nodes: 2, ranks: 4,
		before: func(n *Node) { n.intake.window.most = window },
		table: func(i int, table pagetable.Table) pagetable.Table {
			if i == 0 {
				return table
			}
			h.Table = table
			return h
		}})
	m := c.members[1]
	a, b, d, e := c.members[0].joinAs(0), m.joinAsked(1), m.joinAs(2), m.joinAs(3)
	a.fill(0, 4)
	b.load(0, 0)
	c.settle()
	c.net.Stall(0, 1)
	return c, b, d, e
}

func (m *member) memoryWaits() uint64 { return m.waits().All[attach.WaitMemory].Count }

// TestGoroutineThatMoves: Go interrupts a goroutine that waits for a page, and it goes on on
// another thread, where it waits for the same page. That is one wait. Threads that wait beside it,
// and those of other programs, count as well.
func TestGoroutineThatMoves(t *testing.T) {
	const period = 20 * time.Millisecond // at which Go interrupts
	var q queue
	comes := func(proc pagetable.ProcID, thread uint32, now time.Duration) bool {
		return q.join(&pagetable.Event{Proc: proc, Thread: thread}, now)
	}
	check := func(now time.Duration, threads uint64, waited time.Duration) {
		t.Helper()
		if got, want := q.until(now), (attach.Cost{Count: threads, Time: waited}); got != want {
			t.Errorf("at %v: %+v, want %+v", now, got, want)
		}
	}
	for i := range time.Duration(100) {
		if counts := comes(1, 7+uint32(i*i%5), i*period); counts != (i == 0) {
			t.Errorf("at %v it counts: %v", i*period, counts)
		}
	}
	now := 100 * period
	check(now, 1, now)
	comes(1, 20, now-period+time.Millisecond) // another one, which comes between
	check(now, 2, now+period-time.Millisecond)
	comes(2, 30, now)
	for i := range time.Duration(100) { // one that moves, and two that are only interrupted
		comes(1, 7+uint32(i*i%5), now+i*period)
		comes(1, 20, now+i*period+time.Millisecond)
		comes(2, 30, now+i*period+7*time.Millisecond)
	}
	check(2*now, 3, 2*now+now+period-time.Millisecond+now)
}

// TestThreadsThatAreParked: threads of a program that come one after the other to a page that may
// not be asked for yet, and come again as Go interrupts them, are as many waits.
func TestThreadsThatAreParked(t *testing.T) {
	n := newPair(t).nodes[0]
	n.intake.quorum.state = quorumLost
	comes := func(thread uint32, at time.Duration) {
		n.clock.now = at
		n.intake.fault(&pagetable.Event{Kind: pagetable.Fault, Proc: 1, Thread: thread, Page: 1})
	}
	for i := range time.Duration(5) {
		comes(7, i*12*time.Millisecond)
		comes(8, i*12*time.Millisecond+2*time.Millisecond)
		if i > 0 { // it has begun when the others had waited for long
			comes(9, i*12*time.Millisecond+3*time.Millisecond)
		}
	}
	if q := n.meter.waits.away[1]; q.threads != 3 {
		t.Errorf("%d threads wait", q.threads)
	}
}

// TestReadersBesideAnUpgrade: one thread waits until it may store to a page. One that loads from it
// meanwhile waits until the page is in its program, and no longer.
func TestReadersBesideAnUpgrade(t *testing.T) {
	t.Parallel()
	h := &heldMaps{}
	c, b, d, e := threeOf(t, h, 10)
	m := c.members[1]
	store := d.access(0, true, func([]byte) {})
	eventually(t, "the upgrade is asked for", func() bool { return m.counter("faults_upgrade") == 1 })
	before := m.memoryWaits()
	e.load(0, 0)
	if now := m.memoryWaits(); now != before {
		t.Errorf("%d waits of a thread that has its page at once", now-before)
	}
	e.leave()
	e = m.joinAs(3)
	h.hold.Store(true)
	load := e.access(0, false, func([]byte) {})
	here := map[uint64]attach.PageStage{0: attach.PageHere}
	eventually(t, "the wait for the map is known", func() bool { return maps.Equal(b.pagesOf(3), here) })
	h.hold.Store(false)
	eventually(t, "it has ended", func() bool { return len(b.pagesOf(3)) == 0 })
	e.settled(load)
	if got := b.pagesOf(2); !maps.Equal(got, map[uint64]attach.PageStage{0: attach.PageAsked}) {
		t.Errorf("who stores waits for %v", got)
	}
	if now := m.memoryWaits(); now != before+1 {
		t.Errorf("%d waits of a thread that has waited for a map", now-before)
	}
	c.net.Resume(0, 1)
	d.settled(store)
	c.quiet()
}

// TestReadersBesideAParkedUpgrade: who waits until more access to a page may be asked for waits on
// when another program gets the page as it is.
func TestReadersBesideAParkedUpgrade(t *testing.T) {
	t.Parallel()
	c, b, d, e := threeOf(t, &heldMaps{}, 1)
	m := c.members[1]
	load := b.access(1, false, func([]byte) {})
	eventually(t, "another page is asked for", func() bool { return m.counter("faults_read") == 2 })
	store := d.access(0, true, func([]byte) {})
	eventually(t, "the upgrade is held back", func() bool { return m.counter("faults_held_back") == 1 })
	before := m.memoryWaits()
	e.load(0, 0)
	if now := m.memoryWaits(); now != before {
		t.Errorf("%d waits, before the map of a page there were %d", now, before)
	}
	if got := b.pagesOf(2); !maps.Equal(got, map[uint64]attach.PageStage{0: attach.PageParked}) {
		t.Errorf("who stores waits for %v", got)
	}
	c.net.Resume(0, 1)
	b.settled(load)
	d.settled(store)
	c.quiet()
}

// TestParkedAgain: a fault that is parked again, because the window has filled up since it was let
// in, counts once, and keeps its place.
func TestParkedAgain(t *testing.T) {
	var in *intake
	var counted [2]int
	var first uint32
	c := start(t, setup{nodes: 1, before: func(n *Node) {
		in = n.intake
		in.window.most = 0
		for thread := range uint32(3) {
			in.fault(&pagetable.Event{Kind: pagetable.Fault, Page: pagetable.Page(thread / 2), Proc: 1, Thread: 7 + thread})
		}
		in.retry()
		counted, first = [2]int{in.meter.waits.away[0].threads, int(in.meter.count.parkedFaults.Load())}, in.parked[0].Thread
		in.dropProgram(1)
	}})
	if counted != [2]int{2, 3} || first != 7 {
		t.Errorf("%d threads wait, %d faults were parked, thread %d is first; want 2, 3 and 7", counted[0], counted[1], first)
	}
	c.quiet()
}

// TestParkedThreadMoves: a thread that comes for another page does not wait for the first any more.
// So no more faults are parked than there are threads, in whatever order goroutines take turns. How
// long the first was waited for counts.
func TestParkedThreadMoves(t *testing.T) {
	const threads, goroutines = 3, 50
	var in *intake
	var parked, waited []int
	c := start(t, setup{nodes: 1, before: func(n *Node) {
		in = n.intake
		in.window.most = 0
		for turn := range goroutines * threads {
			page := pagetable.Page(turn % goroutines)
			in.fault(&pagetable.Event{Kind: pagetable.Fault, Page: page, Proc: 1, Thread: 7 + uint32(turn%threads), Write: turn%2 == 0})
			parked, waited = append(parked, len(in.parked)), append(waited, len(in.meter.waits.away))
		}
		in.dropProgram(1)
	}})
	if got := max(slices.Max(parked), slices.Max(waited)); got != threads {
		t.Errorf("of %d threads %d faults are parked, and pages waited for", threads, got)
	}
	if got := in.meter.count.parkedFaults.Load(); got != goroutines*threads {
		t.Errorf("%d faults were parked, want %d", got, goroutines*threads)
	}
	c.quiet()
}

// TestStages: a page is said to have been asked for only where somebody was asked.
func TestStages(t *testing.T) {
	for _, x := range []struct {
		what string
		p    progress
		want attach.PageStage
	}{
		{"asked for", progress{wanted: true, asking: true}, attach.PageAsked},
		{"wanted in a recovery", progress{wanted: true}, attach.PageParked},
		{"parked", progress{parked: true, asking: true}, attach.PageParked},
		{"being committed", progress{under: protocol.EffectBackup, wanted: true, asking: true}, attach.PageBusy},
		{"pinned, and to be taken away", progress{under: protocol.EffectRevoke, wanted: true, asking: true}, attach.PageBusy},
		{"being read from a file", progress{under: protocol.EffectInstall, wanted: true, asking: true}, attach.PageHere},
		{"being read from a file of another node", progress{under: protocol.EffectInstall, wanted: true, asking: true, elsewhere: true}, attach.PageAsked},
		{"on its way into a program", progress{under: protocol.EffectMap, asking: true}, attach.PageHere},
	} {
		if got := x.p.stage(); got != x.want {
			t.Errorf("%s: stage %d, want %d", x.what, got, x.want)
		}
	}
}

// waitsFor asks until a program is told that threads of a rank wait for just this page.
func (a *asked) waitsFor(rank uint32, page pagetable.Page, stage attach.PageStage, from uint32) {
	a.Helper()
	var last []attach.PageWait
	eventually(a, "the wait is known", func() bool {
		last = nil
		a.ask(attach.NoRank)
		a.answer("asks")
		for _, s := range a.told() {
			if s.Rank == rank {
				last = append(last, s.Pages...)
			}
		}
		return len(last) > 0
	})
	if len(last) != 1 || last[0].Page != uint64(page) || last[0].Stage != stage || last[0].From != from {
		a.Errorf("told %+v, want page %d at stage %d, of node %d", last, page, stage, from)
	}
}

// TestStageOfAPageInAFile: a page comes out of a file of another node. That is the one that was
// asked, also where the home of the page is this node.
func TestStageOfAPageInAFile(t *testing.T) {
	t.Parallel()
	c := start(t, setup{nodes: 2, ranks: 2})
	c.members[0].joinAs(0)
	b := c.members[1].joinAsked(1)
	const pages = 2 * HomeStripe
	first, _ := c.mapped("x", pages, attach.Contents{Bytes: pages * 4096, Readers: []uint16{0}}, laid(t, pages*4096, same))
	page, homes := first, protocol.Config{Nodes: 2, HomeStripe: HomeStripe}
	for homes.Home(protocol.PageObject(uint64(page))) != 1 {
		page++
	}
	c.net.Stall(0, 1)
	load := b.access(page, false, func([]byte) {})
	b.waitsFor(1, page, attach.PageAsked, 0)
	c.net.Resume(0, 1)
	b.settled(load)
	c.quiet()
}

// TestStageOfACommit: a thread that stores to a page which is being copied to its backups waits for
// that, and no node was asked for the page. The commit is a wait as well.
func TestStageOfACommit(t *testing.T) {
	t.Parallel()
	c := start(t, surviving(3, sim.Options{}))
	b := c.members[1].joinAsked(1)
	page, homes := b.bindAs(replicatedCall("x", 1, 2)), protocol.Config{Nodes: 3, HomeStripe: HomeStripe}
	b.store(page, 0, 1)
	c.settle()
	c.net.Stall(0, 1)
	c.net.Stall(2, 1)
	_, committed := b.call(attach.Call{Op: attach.OpCommit})
	b.sync()
	store := b.access(page, true, func([]byte) {})
	b.waitsFor(1, page, attach.PageBusy, uint32(homes.Home(protocol.PageObject(uint64(page)))))
	w := c.members[1].waits()
	if all := w.All[attach.WaitCommit]; all.Count != 1 || all.Time <= 0 || !slices.ContainsFunc(w.List, func(x attach.Awaited) bool {
		return x.Kind == attach.WaitCommit && x.Name == "replicated memory" && x.Count == 1
	}) {
		t.Errorf("while the commit waits: %+v", w)
	}
	c.net.Resume(0, 1)
	c.net.Resume(2, 1)
	if r := b.prog.answer(committed); r.Status != attach.StatusOK {
		t.Error(r.Status)
	}
	b.settled(store)
	c.quiet()
}

// TestParkedOnAPageThatHasLeft: a thread that waits for a page which is here, and leaves before it
// is let in, waits for it from then on.
func TestParkedOnAPageThatHasLeft(t *testing.T) {
	var w wait
	here := 0
	c := start(t, setup{nodes: 2, before: func(n *Node) {
		if n.cfg.Self != 1 {
			return
		}
		in := n.intake
		ev := &pagetable.Event{Kind: pagetable.Fault, Page: 0, Proc: 7, Thread: 7}
		in.park(ev, protocol.Read, protocol.Read, false) // as one that is here, and spilled
		in.retry()
		w, here = in.meter.waits.away[0], len(in.meter.waits.here)
	}})
	if here != 0 || w.threads != 1 || !w.missed || w.proc != 7 {
		t.Errorf("the wait is %+v, want one of thread 7", w)
	}
	c.quiet()
}

// TestAskedAtHome: the home of a page is this node itself. Then the one that has the page was
// asked, and has not answered; or others have to give up their copies.
func TestAskedAtHome(t *testing.T) {
	t.Parallel()
	c := start(t, setup{nodes: 2, ranks: 2})
	a, b := c.members[0].joinAs(0), c.members[1].joinAsked(1)
	page := c.pageAt(1, 0)
	a.store(page, 0, 1)
	c.settle()
	c.net.Stall(0, 1)
	load := b.access(page, false, func([]byte) {})
	b.waitsFor(1, page, attach.PageAsked, 0)
	c.net.Resume(0, 1)
	b.settled(load)
	c.settle()
	c.net.Stall(0, 1)
	store := b.access(page, true, func([]byte) {})
	b.waitsFor(1, page, attach.PageAsked, 1)
	c.net.Resume(0, 1)
	b.settled(store)
	c.quiet()
}
