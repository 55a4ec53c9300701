package node

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"dsmd/internal/agreement"
	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/pagetable/pagetabletest"
	"dsmd/transport"
	"dsmd/transport/sim"
)

// surviving is a cluster that goes on when nodes are lost.
func surviving(nodes int, net sim.Options) setup {
	return setup{nodes: nodes, net: net, change: func(c *Config) { c.Survive = true }}
}

// recovered waits until these nodes have gone on without all others, in the given epoch.
func (c *cluster) recovered(epoch uint64, members ...int) {
	c.Helper()
	for _, i := range members {
		m := c.members[i]
		eventually(c, fmt.Sprintf("node %d has recovered in epoch %d", i, epoch), func() bool {
			stats := m.ask()
			return stats["epoch"] == epoch && stats["members"] == uint64(len(members)) && stats["recoveries"] == uint64(epoch)
		})
	}
}

// sever cuts a node off from all others, in one blow: no node acts on a part of it.
func (c *cluster) sever(node int) {
	self := transport.NodeID(node)
	each := func(do func(from, to transport.NodeID)) {
		for other := range transport.NodeID(c.members[0].node.cfg.Nodes) {
			if other != self {
				do(self, other)
				do(other, self)
			}
		}
	}
	each(c.net.Stall)
	c.net.Crash(self)
	each(c.net.Resume)
}

// without takes a node out of what the test looks at in the end: it is cut off for good.
func (c *cluster) without(i int) *member {
	c.lossy = true
	m := c.members[i]
	c.Cleanup(func() { m.cancel(); m.ended() })
	c.members = append(c.members[:i:i], c.members[i+1:]...)
	return m
}

// TestOthersGoOn: one of three nodes is cut off for good. The others keep their pages, also those
// that had their homes there, their locks and names, and leave nothing behind. The one that is cut
// off serves nobody any more.
func TestOthersGoOn(t *testing.T) {
	c := start(t, surviving(3, sim.Options{}))
	a, b, lost := c.members[0].join(), c.members[1].join(), c.members[2].join()
	const pages = 6 * HomeStripe
	first := a.bind("x", pages)
	for i := range pagetable.Page(pages) {
		a.store(first+i, 8, uint64(i)+1)
		if i%2 == 0 {
			lost.wantLoad(first+i, 8, uint64(i)+1)
		}
		if i%3 == 0 {
			b.store(first+i, 16, uint64(i)+2)
		}
	}
	if r := lost.acquire(5, attach.Write); r.Status != attach.StatusOK {
		t.Fatal(r.Status)
	}
	_, waiting := a.call(attach.Call{Op: attach.OpRepair, Object: 5, Access: attach.Write})

	c.sever(2)
	c.recovered(1, 0, 1)
	if r := a.answer(waiting); r.Status != attach.StatusOwnerDied {
		t.Errorf("the lock of a program that is lost is granted with %v", r.Status)
	}
	a.release(5, attach.Write)
	for i := range pagetable.Page(pages) {
		b.wantLoad(first+i, 8, uint64(i)+1)
		if i%3 == 0 {
			a.wantLoad(first+i, 16, uint64(i)+2)
		}
		b.store(first+i, 24, uint64(i)+3)
		a.wantLoad(first+i, 24, uint64(i)+3)
	}
	if got := b.bind("x", pages); got != first {
		t.Errorf("the memory is at page %d now, and was at %d", got, first)
	}
	b.bind("y", 3*HomeStripe)
	for _, m := range c.members[:2] {
		m.want(map[string]uint64{"nodes_lost": 1, "no_quorum": 0, "pages_lost": 0})
	}

	alone := c.without(2)
	eventually(t, "the node that is cut off knows it", func() bool { return alone.counter("no_quorum") == 1 })
	stuck := lost.access(first+1, true, func([]byte) { t.Error("the node that is cut off grants a page") })
	fresh := lost.access(first+pagetable.Page(2*HomeStripe), true, func([]byte) { t.Error("the node that is cut off grants a page of its own") })
	_, name := lost.call(bindCall("z", 1))
	ticket, lock := lost.call(attach.Call{Op: attach.OpAcquire, Object: 2, Access: attach.Read})
	lost.sync()
	lost.cancel(ticket)
	if r := lost.answer(lock); r.Status != attach.StatusCanceled {
		t.Errorf("a call that waits for a quorum is cancelled with %v", r.Status)
	}
	select {
	case <-name:
		t.Error("the node that is cut off binds a name")
	case <-stuck:
	case <-fresh:
	case <-time.After(20 * time.Millisecond):
	}
	lost.die()
	c.quiet()
}

// TestLostPages: a page that was only on the node that is lost fails whoever touches it, by thread
// or by call, until it is freed; its neighbours do not.
func TestLostPages(t *testing.T) {
	c := start(t, surviving(3, sim.Options{}))
	a, lost := c.members[0].join(), c.members[2].join()
	first := a.bind("x", 3*HomeStripe)
	for i := range pagetable.Page(3) { // each node is the home of one
		lost.store(first+i*HomeStripe, 0, 1)
		a.store(first+i*HomeStripe+1, 0, 2)
	}
	c.sever(2)
	for i := range pagetable.Page(3) {
		// Whoever asks while the recovery is under way waits for its end, and is told then.
		if err := <-a.access(first+i*HomeStripe, i == 1, func([]byte) {}); !errors.Is(err, pagetabletest.ErrLost) {
			t.Errorf("page %d: %v", first+i*HomeStripe, err)
		}
		a.wantLoad(first+i*HomeStripe+1, 0, 2)
	}
	c.recovered(1, 0, 1)
	b := c.members[1].join()
	call := attach.Call{Op: attach.OpPrefetch, Object: uint64(first), Count: HomeStripe, Access: attach.Read}
	if r := b.do(call); r.Status != attach.StatusNodeLost {
		t.Errorf("a prefetch of pages of which one is lost ends with %v", r.Status)
	}
	call.Op = attach.OpPin
	if r := b.do(call); r.Status != attach.StatusNodeLost {
		t.Errorf("a pin of pages of which one is lost ends with %v", r.Status)
	}
	c.members[0].want(map[string]uint64{"pages_lost": 3})
	c.without(2)
	c.quiet()
}

// countersOfLoss are what moves only where nodes are lost.
var countersOfLoss = []string{"epoch", "epoch_handed_over", "nodes_lost", "recoveries", "pages_lost", "pages_gone_back", "no_quorum"}

// TestCountersOfLoss lists what does not move when a node is lost.
func TestCountersOfLoss(t *testing.T) {
	c := start(t, surviving(3, sim.Options{}))
	a, lost := c.members[0].join(), c.members[2].join()
	first, second := a.bind("x", HomeStripe), a.bind("y", 10)
	lost.store(first, 0, 1)
	lost.store(second, 0, 1)
	a.ok(a.fallback(second, 10, 1, 0))
	a.fallsBack(1)
	c.sever(2)
	c.recovered(1, 0, 1)
	a.wantLoad(second, 0, 0)
	if err := <-a.access(first, false, func([]byte) {}); !errors.Is(err, pagetabletest.ErrLost) {
		t.Error(err)
	}
	eventually(t, "the node that is cut off knows it", func() bool { return c.members[2].counter("no_quorum") == 1 })
	for _, name := range countersOfLoss {
		if c.members[0].counter(name)+c.members[2].counter(name) == 0 {
			t.Errorf("nothing moves %s", name)
		}
	}
}

// TestBarriersOfTheLost: who waits at a barrier with a rank that is lost is told, and so is who
// comes later. Jobs that have lost nobody meet as before.
func TestBarriersOfTheLost(t *testing.T) {
	c := start(t, surviving(3, sim.Options{}))
	a, b := c.members[0].join(), c.members[1].join()
	c.members[2].join()
	x, y := c.members[0].joinWith(helloOf("other", 2, 0)), c.members[1].joinWith(helloOf("other", 2, 1))
	arrive := func(barrier uint64, parties uint32) attach.Call {
		return attach.Call{Op: attach.OpArrive, Object: barrier, Parties: parties}
	}
	var waiting []chan attach.Reply
	for barrier := range uint64(6) { // of which each node is the home of some
		_, at := a.call(arrive(barrier, 3))
		waiting = append(waiting, at)
	}
	_, early := b.call(arrive(0, 3))
	waiting = append(waiting, early)
	_, other := x.call(arrive(9, 2)) // its home is node 0
	a.sync()
	b.sync()
	x.sync()
	c.settle() // everybody knows where which rank runs

	c.sever(2)
	c.recovered(1, 0, 1)
	for _, at := range waiting {
		if r := a.answer(at); r.Status != attach.StatusNodeLost || !strings.Contains(string(r.Payload), "node 2, with rank 2") {
			t.Errorf("the wait ends with %v %q", r.Status, r.Payload)
		}
	}
	for barrier := range uint64(6) {
		if r := b.do(arrive(barrier, 3)); r.Status != attach.StatusNodeLost {
			t.Errorf("who comes late is told %v", r.Status)
		}
	}
	among := arrive(77, 2) // those that are left, and know it
	among.Count = 1
	_, rest := a.call(among)
	b.ok(among)
	if r := a.answer(rest); r.Status != attach.StatusOK {
		t.Errorf("those that are left meet with %v", r.Status)
	}
	y.ok(arrive(9, 2))
	if r := x.answer(other); r.Status != attach.StatusOK {
		t.Errorf("a barrier of which nobody is lost ends with %v", r.Status)
	}
	c.without(2)
	c.quiet()
}

// TestBarrierWhoseHomeIsLost: no program runs on the node that is lost, so nobody hears of that at
// a barrier: neither who waits there, nor who was released and had not been told.
func TestBarrierWhoseHomeIsLost(t *testing.T) {
	for _, heard := range []bool{false, true} {
		c := start(t, surviving(3, sim.Options{}))
		a, b := c.members[0].join(), c.members[1].join()
		meet := attach.Call{Op: attach.OpArrive, Object: 5, Parties: 2}
		c.net.Stall(2, 1)
		_, late := b.call(meet)
		b.sync()
		_, early := a.call(meet)
		if heard {
			wantOK(t, "who hears of the release", a.answer(early))
		} else {
			c.net.Stall(2, 0)
			a.sync()
		}
		c.sever(2)
		c.recovered(1, 0, 1)
		if !heard {
			wantOK(t, "who has waited", a.answer(early))
		}
		wantOK(t, "who hears of nothing", b.answer(late))
		_, early = a.call(meet)
		b.ok(meet)
		wantOK(t, "who comes again", a.answer(early))
		c.without(2)
		c.quiet()
	}
}

func wantOK(t *testing.T, who string, r attach.Reply) {
	t.Helper()
	if r.Status != attach.StatusOK {
		t.Errorf("%s is told %v %q", who, r.Status, r.Payload)
	}
}

// TestAllocationsOfTheLost: who waits for memory is answered, where the node is lost that keeps the
// names, and where one is lost that had not let go yet of what is being freed.
func TestAllocationsOfTheLost(t *testing.T) {
	for _, doomed := range []int{0, 2} {
		c := start(t, surviving(3, sim.Options{}))
		var left []int
		for i, m := range c.members {
			m.join()
			if i != doomed {
				left = append(left, i)
			}
		}
		a := c.members[1].programs[0]
		if doomed != 0 {
			a.bind("x", testPages)
			c.members[doomed].programs[0].bind("x", testPages)
			c.members[doomed].programs[0].ok(unbindCall("x"))
			c.settle()
		}
		for _, i := range left {
			c.net.Stall(transport.NodeID(doomed), transport.NodeID(i))
		}
		if doomed != 0 {
			a.call(unbindCall("x"))
		}
		_, bound := a.call(bindCall("y", testPages*512))
		a.sync()
		select {
		case r := <-bound:
			t.Fatalf("without node %d memory is granted with %v", doomed, r.Status)
		default:
		}
		c.sever(doomed)
		c.recovered(1, left...)
		if r := a.answer(bound); r.Status != attach.StatusOK {
			t.Errorf("when node %d is lost memory is granted with %v", doomed, r.Status)
		}
		c.without(doomed)
		c.quiet()
	}
}

// TestHalfHeardOfTheLost: that a rank had attached to the node that is lost has reached only one of
// the others, and all are told.
func TestHalfHeardOfTheLost(t *testing.T) {
	c := start(t, surviving(4, sim.Options{}))
	a, b, d := c.members[0].join(), c.members[1].join(), c.members[3].join()
	for _, deaf := range []transport.NodeID{1, 3} {
		c.net.Stall(2, deaf)
	}
	c.members[2].join().bind("x", 1) // by node 0, which has heard of the rank before
	c.net.Stall(2, 0)                // it does not say which nodes it has lost
	for _, deaf := range []int{1, 3} {
		// and what is held back never arrives
		c.members[deaf].node.PeerFailed(2, errors.New("it is deaf"))
	}
	c.recovered(1, 0, 1, 3)
	for _, p := range []*prog{a, b, d} {
		if r := p.do(attach.Call{Op: attach.OpArrive, Object: 5, Parties: 4}); r.Status != attach.StatusNodeLost || !strings.Contains(string(r.Payload), "node 2, with rank 2") {
			t.Errorf("the barrier ends with %v %q", r.Status, r.Payload)
		}
	}
	c.without(2)
	c.quiet()
}

// TestTwoOfThreeAreLost: one of three is no quorum. By the one policy its programs wait, and it
// ends when the last has gone; by the other it ends.
func TestTwoOfThreeAreLost(t *testing.T) {
	for _, policy := range NoQuorumPolicies {
		t.Run(policy, func(t *testing.T) {
			s := surviving(3, sim.Options{})
			s.change = func(c *Config) { c.Survive, c.NoQuorum = true, policy }
			s.before = func(n *Node) { n.end.farewell = 10 * time.Millisecond }
			c := start(t, s)
			m := c.members[0]
			p := m.join()
			c.sever(0)
			if policy == noQuorumBlock {
				eventually(t, "the node stops", func() bool { return m.counter("no_quorum") == 1 })
				select {
				case <-m.done:
					t.Error("the node has ended under its program")
				case <-time.After(50 * time.Millisecond):
				}
				p.leave()
			} else {
				p.wantLost("too few nodes are left")
			}
			if err := m.ended(); !errors.Is(err, ErrNoQuorum) || !strings.Contains(err.Error(), "node 1 is lost") || !strings.Contains(err.Error(), "node 2 is lost") {
				t.Errorf("the node ended with %v", err)
			}
			// The other two have gone on, and node 1 was never lost to node 2.
			for _, m := range c.members[1:] {
				eventually(t, "the others have gone on", func() bool { return m.counter("members") == 2 })
			}
		})
	}
}

// TestTwoNodesSurvive: of two nodes, the one with the lower number goes on alone.
func TestTwoNodesSurvive(t *testing.T) {
	c := start(t, surviving(2, sim.Options{}))
	p := c.members[0].join()
	first := p.bind("x", 4*HomeStripe)
	p.store(first+HomeStripe, 0, 7)
	p.store(first+2*HomeStripe, 0, 7)
	c.net.Cut(0, 1)
	c.recovered(1, 0)
	p.wantLoad(first+HomeStripe, 0, 7)
	p.store(first+2*HomeStripe, 0, 8)
	c.without(1)
	c.quiet()
}

// TestWronglyLostNodeEnds: a node that only one other has lost is left out, is told so by the
// third, and ends.
func TestWronglyLostNodeEnds(t *testing.T) {
	c := start(t, surviving(3, sim.Options{}))
	p := c.members[2].join()
	c.net.Cut(0, 2)
	// Either may be quicker. If node 2 is, it goes on with node 1 without node 0.
	var out *member
	eventually(t, "one of the two is out", func() bool {
		for _, i := range []int{0, 2} {
			select {
			case <-c.members[i].done:
				out = c.members[i]
				return true
			default:
			}
		}
		return false
	})
	if err := out.ended(); !errors.Is(err, ErrExcluded) {
		t.Errorf("the node ended with %v", err)
	}
	if out == c.members[2] {
		p.wantLost("go on without this one")
	}
	eventually(t, "node 1 goes on", func() bool { return c.members[1].counter("members") == 2 })
}

// TestLossesOneByOne: of five nodes three are lost, one after the other has been recovered from.
func TestLossesOneByOne(t *testing.T) {
	c := start(t, surviving(5, sim.Options{}))
	a, b := c.members[0].join(), c.members[3].join()
	first := a.bind("x", 10*HomeStripe)
	left := []int{0, 1, 2, 3, 4}
	for round, lost := range []int{1, 4, 2} {
		for i := range pagetable.Page(10) {
			[]*prog{a, b}[(int(i)+round)%2].store(first+i*HomeStripe, round*8, uint64(i)+100)
		}
		for at, i := range left {
			if i == lost {
				left = append(left[:at:at], left[at+1:]...)
			}
		}
		c.sever(lost)
		c.recovered(uint64(round+1), left...)
		for i := range pagetable.Page(10) {
			for before := range round + 1 {
				a.wantLoad(first+i*HomeStripe, before*8, uint64(i)+100)
				b.wantLoad(first+i*HomeStripe, before*8, uint64(i)+100)
			}
		}
	}
	for _, i := range []int{4, 2, 1} {
		c.without(i)
	}
	c.quiet()
}

var lossSeeds = flag.Uint("loss.seeds", 4, "how many runs TestLossAtAnyTime has; four have each kind of page table, with and without reading ahead")

// TestLossAtAnyTime cuts a node off while three programs load and store as fast as they can, each
// storing ever greater numbers into pages of its own. The survivors never see a number fall, and
// what is lost is lost for ever. Where nothing is read ahead a page is only taken from who stores
// into it to be read, so that the survivors lose none of what they have stored. Reading ahead of
// stores asks for pages to be written, and moves them to nodes that never store into them; then
// they may be lost with those.
func TestLossAtAnyTime(t *testing.T) {
	t.Parallel()
	seeds := *lossSeeds
	if testing.Short() {
		seeds = min(seeds, 3)
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			s := surviving(3, simDelays(seed))
			s.async = seed%2 == 1
			readsAhead := seed/2%2 == 0
			if !readsAhead {
				s.table = func(_ int, f pagetable.Table) pagetable.Table { return anonymous{f} }
			}
			c := start(t, s)
			var all []*walker
			for i, m := range c.members {
				all = append(all, &walker{prog: m.join(), id: i, anyLost: readsAhead, rng: rand.New(rand.NewPCG(seed, uint64(i)))})
			}
			first := all[0].bind("x", walked)
			for page := range walked {
				all[page%3].store(first+pagetable.Page(page), 8, 1)
			}
			rounds, half := 200+rng.IntN(100), make(chan struct{})
			var running sync.WaitGroup
			for _, w := range all[:2] {
				running.Go(func() {
					for round := range rounds {
						if round == rounds/2 && w.id == 0 {
							close(half)
						}
						if err := w.step(first, uint64(round)+2); err != nil {
							t.Error(err)
						}
					}
				})
			}
			doomed := make(chan struct{})
			go func() {
				defer close(doomed)
				for round := uint64(2); all[2].step(first, round) == nil; round++ {
				}
			}()
			<-half
			c.sever(2)
			running.Wait()
			c.recovered(1, 0, 1)
			all[2].die()
			<-doomed
			c.without(2)
			c.quiet()
		})
	}
}

// walked is how many pages the walkers share: some stripes of each home.
const walked = 6 * HomeStripe

// walker is a program that stores into the pages which have its number, and loads all.
type walker struct {
	*prog
	id   int
	rng  *rand.Rand
	seen [walked]uint64
	lost [walked]bool
	// anyLost says that any page may be lost, and not only those into which the node stores that is
	// cut off.
	anyLost bool
}

// anonymous is a page table that does not know which thread has faulted. Nothing is read ahead
// then.
type anonymous struct{ pagetable.Table }

func (a anonymous) Poll(events []pagetable.Event) (int, error) {
	n, err := a.Table.Poll(events)
	for i := range events[:n] {
		events[i].Thread = 0
	}
	return n, err
}

// step stores a number into one of the own pages and loads another page. The error says what is
// wrong with what it found.
func (w *walker) step(first pagetable.Page, number uint64) error {
	own := 3*w.rng.IntN(walked/3) + w.id
	err := <-w.access(first+pagetable.Page(own), true, func(b []byte) { binary.NativeEndian.PutUint64(b[8:], number) })
	switch {
	case errors.Is(err, pagetabletest.ErrLost) && w.anyLost:
		w.lost[own] = true
	case err != nil:
		return fmt.Errorf("program %d stores into its page %d: %w", w.id, own, err)
	case w.lost[own]:
		return fmt.Errorf("program %d: its page %d was lost, and can be stored into now", w.id, own)
	default:
		w.seen[own] = number
	}
	page, got := w.rng.IntN(walked), uint64(0)
	err = <-w.access(first+pagetable.Page(page), false, func(b []byte) { got = binary.NativeEndian.Uint64(b[8:]) })
	switch {
	case errors.Is(err, pagetabletest.ErrLost) && (w.anyLost || page%3 == 2):
		w.lost[page] = true
	case err != nil:
		return fmt.Errorf("program %d loads page %d: %w", w.id, page, err)
	case w.lost[page]:
		return fmt.Errorf("program %d: page %d was lost, and is %d now", w.id, page, got)
	case got == 0 || got < w.seen[page] || got > w.seen[page] && page%3 == w.id && w.seen[page] != 0:
		return fmt.Errorf("program %d: page %d is %d, after %d", w.id, page, got, w.seen[page])
	}
	w.seen[page] = got
	return nil
}

// TestSurvivalOfOne: a node that was not started to survive expels one that was.
func TestSurvivalOfOne(t *testing.T) {
	c, rogues := among(t)
	c.members[0].join()
	rogues[1].sayBytes(appendRoster(nil, rankAttached, 1, rankOf{"job", 1}), false)
	if err := c.members[0].ended(); err == nil || !strings.Contains(err.Error(), "--survive") {
		t.Errorf("the node ended with %v", err)
	}
}

// noteFrame has a roster learn from a frame of node 1.
func noteFrame(r ranks, frame []byte) error {
	what, at, of, err := decodeRoster(frame)
	if err != nil {
		return err
	}
	return r.note(1, what, at, of)
}

// TestRosterFrames: what is no frame about a rank is an error that says why, and a peer cannot name
// more ranks than it can have.
func TestRosterFrames(t *testing.T) {
	r := ranks{}
	for _, test := range []struct {
		frame []byte
		want  string
	}{
		{appendRoster(nil, rankAttached, 1, rankOf{"j", 3}), ""},
		{appendRoster(nil, rankLeft, 1, rankOf{"k", 3}), ""},
		{appendRoster(nil, 4, 1, rankOf{"j", 3}), "to which 4 happened"},
		{appendRoster(nil, rankAttached, 2, rankOf{"j", 3}), "a rank at node 2"},
		{appendRoster(nil, rankAttached, 1, rankOf{"j", MaxRanks}), "rank 65536; there are 0 to 65535"},
		{appendRoster(nil, rankAttached, 1, rankOf{strings.Repeat("j", attach.MaxJob+1), 3}), "a frame of 72 bytes"},
		{appendRoster(nil, rankAttached, 1, rankOf{})[:5], "a frame of 5 bytes"},
	} {
		if err := noteFrame(r, test.frame); test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%x: %v; want %q", test.frame, err, test.want)
		}
	}
	if len(r[1]) != 1 || !r[1][rankOf{"j", 3}] {
		t.Errorf("the ranks are %v", r)
	}
	var err error
	for rank := uint32(0); err == nil && rank <= maxPrograms; rank++ {
		err = noteFrame(r, appendRoster(nil, rankAttached, 1, rankOf{"many", rank}))
	}
	if err == nil || len(r[1]) != maxPrograms {
		t.Errorf("%d ranks of one peer: %v", len(r[1]), err)
	}
}

// FuzzRosterFrame: any bytes with the mark are dealt with or refused.
func FuzzRosterFrame(f *testing.F) {
	f.Add(appendRoster(nil, rankAttached, 1, rankOf{"job", 3}))
	f.Add(appendRoster(nil, rankLeft, 1, rankOf{"", MaxRanks - 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		frame := append([]byte{rosterMark}, b...)
		r := ranks{}
		if err := noteFrame(r, frame); err == nil && frame[1] == rankAttached {
			for of := range r[1] {
				if string(appendRoster(nil, rankAttached, 1, of)) != string(frame) {
					t.Fatalf("%x is %+v, which is written otherwise", frame, of)
				}
			}
		}
	})
}

// TestMarksDiffer: a roster frame is none of the agreement's messages, and no message of the
// protocol has the mark.
func TestMarksDiffer(t *testing.T) {
	s := agreement.New(0, []agreement.NodeID{0, 1})
	if _, err := s.Message(1, appendRoster(nil, rankAttached, 1, rankOf{strings.Repeat("x", 17), 0}), nil); !errors.Is(err, agreement.ErrMalformed) {
		t.Errorf("to the agreement it is %v", err)
	}
}
