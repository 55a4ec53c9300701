package node

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"

	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport/sim"
)

// everyHost runs a test on page tables that finish at once and on such that finish later, over a
// network without and with delays.
func everyHost(t *testing.T, nodes int, f func(t *testing.T, c *cluster)) {
	for name, s := range map[string]setup{
		"direct":         {nodes: nodes},
		"pending":        {nodes: nodes, async: true},
		"delays":         {nodes: nodes, net: sim.Options{Seed: 1, MaxDelay: 40}},
		"delays,pending": {nodes: nodes, async: true, net: sim.Options{Seed: 2, MaxDelay: 40}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each has a cluster of its own
			f(t, start(t, s))
		})
	}
}

// TestPagesTravel follows one page through every kind of fault, for each of its possible homes, and
// looks at what the nodes count.
func TestPagesTravel(t *testing.T) {
	for home, name := range []string{"home is the first", "home is the second", "home is a third"} {
		t.Run(name, func(t *testing.T) {
			everyHost(t, 3, func(t *testing.T, c *cluster) {
				a, b := c.members[0].join(), c.members[1].join()
				page := c.pageAt(home, 0)
				a.store(page, 8, 7)     // first touch
				b.wantLoad(page, 8, 7)  // read miss
				a.wantLoad(page, 8, 7)  // a kept its copy
				b.store(page, 16, 9)    // upgrade; a's copy is invalidated
				a.store(page, 8, 8)     // write miss
				b.wantLoad(page, 8, 8)  // read miss
				b.wantLoad(page, 16, 9) // b has a copy
				c.members[0].want(map[string]uint64{
					"zero_installs": 1, "faults_write": 2, "faults_read": 0, "faults_upgrade": 0, "pages_sent": 2, "pages_received": 1,
					"invalidations": 1, "downgrades": 2, "revokes": 1, "zero_pages": 0,
				})
				c.members[1].want(map[string]uint64{
					"zero_installs": 0, "faults_write": 0, "faults_read": 2, "faults_upgrade": 1, "pages_sent": 1, "pages_received": 2,
					"invalidations": 0, "downgrades": 0, "revokes": 1, "zero_pages": 0,
				})
				c.quiet()
			})
		})
	}
}

// TestInvalidation makes a writer wait for every reader.
func TestInvalidation(t *testing.T) {
	everyHost(t, 4, func(t *testing.T, c *cluster) {
		var ps []*prog
		for _, m := range c.members {
			ps = append(ps, m.join())
		}
		page := c.pageAt(1, 3)
		for round := range uint64(12) {
			ps[round%4].store(page, 0, round)
			for _, p := range ps {
				p.wantLoad(page, 0, round)
			}
		}
		c.quiet()
	})
}

// countersOfLargeClusters are those that TestPageThatManyRead moves.
var countersOfLargeClusters = []string{"multicasts"}

// TestPageThatManyRead: where many nodes read a page at the same time it comes through a tree, and
// everybody has what was stored last.
func TestPageThatManyRead(t *testing.T) {
	t.Parallel()
	const nodes, rounds, stores = protocol.DefaultTreeFrom + 3, 6, 11
	for name, s := range map[string]setup{"delays": {nodes: nodes, net: sim.Options{Seed: 4, MaxDelay: 40}}, "pending": {nodes: nodes, async: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// On a slow machine the readers do not come within the moment that is looked at: each
			// has the page sent to all.
			s.before = func(n *Node) {
				r := rules(&n.cfg, lone(), testPages)
				r.ManyReaders = 1
				n.drive.engine = protocol.New(r)
			}
			c := start(t, s)
			var ps []*prog
			for _, m := range c.members {
				ps = append(ps, m.join())
			}
			page := c.pageAt(5, 0)
			for round := range uint64(rounds) {
				writer := round * 5 % nodes // once the home
				ps[writer].store(page, 8, round)
				var loaded []chan error
				found := make([]uint64, nodes)
				for i, p := range ps {
					loaded = append(loaded, p.access(page, false, func(b []byte) { found[i] = binary.LittleEndian.Uint64(b[8:]) }))
				}
				// one of them stores as soon as it has the page
				ps[stores].settled(loaded[stores])
				loaded[stores] = nil
				stored := ps[stores].access(page, true, func(b []byte) { b[100]++ })
				for i, done := range loaded {
					if done != nil {
						ps[i].settled(done)
					}
					if found[i] != round {
						t.Fatalf("node %d finds %d in round %d", i, found[i], round)
					}
				}
				ps[stores].settled(stored)
			}
			if gained := c.members[stores].counter("faults_write") + c.members[stores].counter("faults_upgrade"); gained < rounds {
				t.Errorf("a node that has stored in %d rounds counts %d faults for that", rounds, gained)
			}
			c.settle()
			sent := uint64(0)
			for _, m := range c.members {
				sent += m.counter("multicasts")
			}
			if sent < rounds {
				t.Errorf("%d pages were passed on in %d rounds", sent, rounds)
			}
			c.quiet()
		})
	}
}

// TestZeroPagesTravelWithoutContents checks that a page of zeros costs no more on the network than
// the message.
func TestZeroPagesTravelWithoutContents(t *testing.T) {
	c := start(t, setup{nodes: 2})
	a, b := c.members[0].join(), c.members[1].join()
	page := c.pageAt(0, 0)
	a.load(page, 0)
	b.wantLoad(page, 0, 0)
	b.store(page, 0, 1)
	b.store(page, 0, 0)
	a.wantLoad(page, 0, 0)
	c.members[0].want(map[string]uint64{"zero_pages": 1, "pages_sent": 0, "pages_received": 0})
	c.members[1].want(map[string]uint64{"zero_pages": 1, "pages_sent": 0, "pages_received": 0, "zero_installs": 1})
	if sent := c.members[0].counter("bytes_sent"); sent >= 4096 {
		t.Errorf("%d bytes were sent although no page had contents", sent)
	}
	c.quiet()
}

// TestHoldDefersThenServes makes two nodes want one page all the time. Each access gets through,
// because a page that was just gained is kept for a moment.
func TestHoldDefersThenServes(t *testing.T) {
	c := start(t, setup{nodes: 2, change: func(cfg *Config) { cfg.Hold = MaxHold }})
	a, b := c.members[0].join(), c.members[1].join()
	page := c.pageAt(0, 0)
	// On a machine that is very slow at the moment a hold is over before the page is wanted
	// elsewhere.
	eventually(t, "a page that had just been gained is kept from others", func() bool {
		a.store(page, 0, 1)
		b.store(page, 0, 2)
		return c.members[0].counter("holds") > 0 && c.members[1].counter("holds") > 0
	})
	a.wantLoad(page, 0, 2)
	c.quiet()
}

// TestStash makes the acknowledgement of an invalidation come after the page.
func TestStash(t *testing.T) {
	c := start(t, setup{nodes: 4})
	a, b, w := c.members[0].join(), c.members[1].join(), c.members[3].join()
	page := c.pageAt(2, 0)
	a.store(page, 0, 5)
	b.wantLoad(page, 0, 5)
	// The page comes from its owner, node 0. The acknowledgement of the other reader is held back.
	c.net.Stall(1, 3)
	store := w.access(page, true, func(b []byte) { binary.NativeEndian.PutUint64(b[8:], 6) })
	eventually(t, "the page arrives", func() bool { return c.members[3].counter("pages_received") == 1 })
	w.sync()
	select {
	case err := <-store:
		t.Fatalf("the store got through before the last reader had given up its copy: %v", err)
	default:
	}
	c.net.Resume(1, 3)
	w.settled(store)
	w.wantLoad(page, 0, 5)
	w.wantLoad(page, 8, 6)
	c.quiet()
}

// TestProgramsOfOneNode share its copies: a page that is here needs no other node.
func TestProgramsOfOneNode(t *testing.T) {
	everyHost(t, 2, func(t *testing.T, c *cluster) {
		m := c.members[0]
		a, b := m.joinAs(0), m.joinAs(1)
		page := c.pageAt(1, 0)
		a.store(page, 0, 1)
		misses := m.counter("faults_write") + m.counter("faults_read")
		b.wantLoad(page, 0, 1)
		b.store(page, 0, 2)
		a.wantLoad(page, 0, 2)
		if now := m.counter("faults_write") + m.counter("faults_read"); now != misses {
			t.Errorf("%d faults needed another node although the page was here", now-misses)
		}
		if m.counter("faults_map") == 0 {
			t.Error("the second program's fault was not counted as one that only had to be mapped")
		}
		// Both wait for one page; one of them leaves and comes back.
		other := c.pageAt(1, 1)
		one, two := a.access(other, false, func([]byte) {}), b.access(other, true, func([]byte) {})
		a.settled(one)
		b.settled(two)
		a.leave()
		b.wantLoad(page, 0, 2)
		a = m.joinAs(0)
		a.wantLoad(page, 0, 2)
		c.quiet()
	})
}

// TestDuplicateFaults: the kernel reports a fault again whenever a signal comes.
func TestDuplicateFaults(t *testing.T) {
	everyHost(t, 2, func(t *testing.T, c *cluster) {
		a, b := c.members[0].join(), c.members[1].join()
		page := c.pageAt(0, 0)
		a.store(page, 0, 1)
		c.net.Stall(1, 0)
		store := b.access(page, true, func(b []byte) { binary.NativeEndian.PutUint64(b, 2) })
		eventually(t, "the fault is counted", func() bool { return c.members[1].counter("faults_write") == 1 })
		for range 5 {
			b.table.Restart(b.id)
		}
		eventually(t, "the duplicates are counted", func() bool { return c.members[1].counter("faults_duplicate") == 5 })
		c.net.Resume(1, 0)
		b.settled(store)
		c.members[1].want(map[string]uint64{"faults_write": 1})
		a.wantLoad(page, 0, 2)
		c.quiet()
	})
}

// TestAtomicAcrossNodes: indivisible operations of several threads on each of several nodes lose
// nothing, although the pages are torn from hand to hand and faults are restarted all along.
func TestAtomicAcrossNodes(t *testing.T) {
	t.Parallel()
	const threads, rounds, pages = 2, 60, 3
	everyHost(t, 3, func(t *testing.T, c *cluster) {
		var ps []*prog
		for _, m := range c.members {
			ps = append(ps, m.join())
		}
		var wg sync.WaitGroup
		for i := range 3 * threads {
			p, rng := ps[i%3], rand.New(rand.NewPCG(7, uint64(i)))
			wg.Go(func() {
				for range rounds {
					page := c.pageAt(rng.IntN(pages), 0)
					if err := p.table.Access(p.id, page, true, func(b []byte) {
						binary.NativeEndian.PutUint64(b, binary.NativeEndian.Uint64(b)+1)
					}); err != nil {
						t.Error(err)
						return
					}
					if rng.IntN(4) == 0 {
						p.table.Restart(p.id)
					}
				}
			})
		}
		wg.Wait()
		sum := uint64(0)
		for page := range pages {
			sum += ps[page%3].load(c.pageAt(page, 0), 0)
		}
		if sum != 3*threads*rounds {
			t.Errorf("%d increments add up to %d", 3*threads*rounds, sum)
		}
		c.quiet()
	})
}

// TestOperationsEndWithoutPrograms: an operation that is pending when the last program of a node
// leaves ends nevertheless, and the node sleeps again.
func TestOperationsEndWithoutPrograms(t *testing.T) {
	c := start(t, setup{nodes: 2, async: true})
	a, b := c.members[0].join(), c.members[1].join()
	page := c.pageAt(0, 0)
	a.store(page, 0, 4)
	a.leave()
	eventually(t, "the program is gone", func() bool { return c.members[0].counter("programs") == 0 })
	b.store(page, 8, 5) // node 0 must revoke the page, which takes until its table says so
	b.wantLoad(page, 0, 4)
	c.quiet()
}

// TestDeadProgramsPages: pages of a program that was killed stay, and threads of others get them.
func TestDeadProgramsPages(t *testing.T) {
	everyHost(t, 2, func(t *testing.T, c *cluster) {
		a, b := c.members[0].join(), c.members[1].join()
		page := c.pageAt(1, 0)
		a.store(page, 0, 4)
		waiting := a.access(c.pageAt(1, 1), true, func([]byte) {})
		a.die()
		if err := <-waiting; err != nil && err != pagetable.ErrProcGone {
			t.Error(err)
		}
		b.wantLoad(page, 0, 4)
		b.store(page, 0, 5)
		eventually(t, "the program is gone", func() bool { return c.members[0].counter("programs") == 0 })
		c.quiet()
	})
}

// TestMigration: pages that one node after another reads and writes are soon granted for both at
// once; pages that one node writes and another reads never are.
func TestMigration(t *testing.T) {
	t.Parallel()
	const rounds = 40
	everyHost(t, 3, func(t *testing.T, c *cluster) {
		a, b := c.members[0].join(), c.members[1].join()
		for home := range 3 {
			page := c.pageAt(home, 0)
			before := c.members[1].counter("faults_upgrade")
			for i := range uint64(rounds) {
				for turn, p := range []*prog{a, b} {
					v := p.load(page, 0)
					if want := 2*i + uint64(turn); v != want {
						t.Fatalf("round %d: %d, want %d", i, v, want)
					}
					p.store(page, 0, v+1)
				}
			}
			if n := c.members[1].counter("faults_upgrade") - before; n > rounds/3 {
				t.Errorf("home %d: %d upgrades in %d rounds of reading and writing in turns", home, n, rounds)
			}

			// The page has migrated; now b only reads, and must not cost a its copy each time.
			for i := range uint64(rounds) {
				a.store(page, 0, i)
				b.wantLoad(page, 0, i)
			}
			misses := c.members[0].counter("faults_write")
			for i := range uint64(rounds) {
				a.store(page, 0, i)
				b.wantLoad(page, 0, i)
			}
			if n := c.members[0].counter("faults_write") - misses; n != 0 {
				t.Errorf("home %d: a lost the page %d times to one who only reads", home, n)
			}
		}
		c.quiet()
	})
}
