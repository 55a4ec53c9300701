package node

import (
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/node/readahead"
	"dsmd/pagetable"
	"dsmd/protocol"

	"github.com/prometheus/client_golang/prometheus"
)

// faultsBy is how many faults a node has settled alone, and how many waited for others, by why.
func (m *member) faultsBy() map[string]uint64 {
	m.Helper()
	all := m.ask()
	by := map[string]uint64{"alone": all["faults_alone"]}
	for name, n := range all {
		if cause, is := strings.CutPrefix(name, "remote_faults_"); is {
			by[cause] = n
		}
	}
	if asked := by["alone"] + by["cold"] + by["retaken"] + by["unpredicted"]; asked != all["faults_read"]+all["faults_write"]+all["faults_upgrade"] {
		m.Errorf("node %d: of %d read misses, %d write misses and %d upgrades the causes are %v", m.node.cfg.Self, all["faults_read"], all["faults_write"], all["faults_upgrade"], by)
	}
	return by
}

// TestCauses: each fault that waits for another node has the cause that it should have.
func TestCauses(t *testing.T) {
	p := startPartners(t, false)
	a, b := p.members[0], p.members[1]
	first := p.a.bind("memory", 4*HomeStripe)
	p.b.bind("memory", 4*HomeStripe)
	page := p.homeIn(0, first, 4*HomeStripe)
	far := p.homeIn(1, first, 4*HomeStripe)
	lock := func(who *prog) {
		who.acquire(lockName, attach.Write)
		who.release(lockName, attach.Write)
	}
	anew := func() {
		for _, who := range []*prog{p.a, p.b} {
			p.free(who)
		}
		for _, who := range []*prog{p.a, p.b} {
			if who.bind("memory", 4*HomeStripe) != first {
				t.Fatal("the memory is elsewhere now")
			}
		}
	}
	for _, step := range []struct {
		what  string
		at    *member
		do    func()
		cause string // "": there is no fault
	}{
		{"the first store, at home", a, func() { p.a.store(page, 0, 1) }, "alone"},
		{"a page that the node has never had", b, func() { p.b.load(page, 0) }, "cold"},
		{"a store after the other has read it", a, func() { p.a.store(page, 0, 2) }, "retaken"},
		{"a page that the other has stored to", b, func() { p.b.load(page, 0) }, "retaken"},
		{"a barrier", b, func() { p.meet(1) }, ""},
		{"a store after the other had read it", a, func() { p.a.store(page, 0, 3) }, "unpredicted"},
		{"a page that has left since the barrier", b, func() { p.b.load(page, 0) }, "retaken"},
		{"another store", a, func() { p.a.store(page, 0, 4) }, "retaken"},
		{"a lock", b, func() { lock(p.b) }, ""},
		{"a page that had left before the lock", b, func() { p.b.load(page, 0) }, "unpredicted"},
		{"a store to what was read", b, func() { p.b.store(page, 0, 5) }, "unpredicted"},
		{"the first store, far from home", a, func() { p.a.store(far, 0, 1) }, "cold"},
		{"a page that others have touched, at home", b, func() { p.b.load(far, 0) }, "cold"},
		{"new memory", a, anew, ""},
		{"the first store to it", a, func() { p.a.store(page, 0, 1) }, "alone"},
		{"a page that the node has had in another allocation", b, func() { p.b.load(page, 0) }, "cold"},
	} {
		before, other := step.at.faultsBy(), p.members[1-step.at.node.cfg.Self]
		others := other.faultsBy()
		step.do()
		for cause, n := range step.at.faultsBy() {
			want := uint64(0)
			if cause == step.cause {
				want = 1
			}
			if n-before[cause] != want {
				t.Errorf("%s: %d %s faults, want %d", step.what, n-before[cause], cause, want)
			}
		}
		for cause, n := range other.faultsBy() {
			if n != others[cause] {
				t.Errorf("%s: a %s fault on the other node", step.what, cause)
			}
		}
	}
	p.quiet()
}

// TestLateFaults: the first thread that comes for a page which nobody waited for, but was on its
// way, is late. The second one waits with it.
func TestLateFaults(t *testing.T) {
	c := start(t, setup{nodes: 2})
	a, b := c.members[0].join(), c.members[1].join()
	page := c.pageAt(0, 0)
	a.fill(page, 4)
	_, early := b.prefetch(page+3, 1, attach.Read)
	b.answer(early)
	a.store(page+3, 0, 1) // it has come in time, and has left
	c.net.Stall(0, 1)
	_, answer := b.prefetch(page, 2, attach.Read)
	eventually(t, "the pages are asked for", func() bool { return c.members[1].counter("prefetched_pages") == 3 })
	var loads []chan error
	load := func(page pagetable.Page, cause, counter string, want uint64) {
		t.Helper()
		loads = append(loads, b.access(page, false, func([]byte) {}))
		eventually(t, cause, func() bool { return c.members[1].counter(counter) == want })
	}
	load(page, "the first thread is late", "remote_faults_late", 1)
	load(page, "the second one waits, too", "faults_duplicate", 1)
	load(page+2, "a page that was not prefetched", "remote_faults_cold", 1)
	_, another := b.prefetch(page+2, 1, attach.Read)
	eventually(t, "it is prefetched, too", func() bool { return c.members[1].counter("prefetched_pages") == 4 })
	load(page+2, "a page that was prefetched when a thread waited already", "faults_duplicate", 2)
	load(page+3, "a page that was prefetched, and has left", "remote_faults_retaken", 1)
	load(page+3, "a second thread that waits for it", "faults_duplicate", 3)
	c.net.Resume(0, 1)
	for _, done := range loads {
		b.settled(done)
	}
	b.answer(answer)
	b.answer(another)
	if by := c.members[1].faultsBy(); by["late"] != 1 || by["cold"] != 1 {
		t.Errorf("faults by cause: %v", by)
	}
	c.quiet()
}

// TestCauseOfAPinnedPage: a page that another node has come to take is retaken for a thread that
// comes for it, also while a pin still keeps it here.
func TestCauseOfAPinnedPage(t *testing.T) {
	c := start(t, setup{nodes: 2})
	a, b := c.members[0].join(), c.members[1].join()
	page := c.pageAt(0, 0)
	a.store(page, 0, 1)
	b.load(page, 0)
	ticket := b.pin(page, 1, attach.Read)
	before := c.members[1].faultsBy()
	taken := a.access(page, true, func([]byte) {})
	eventually(t, "the other node waits for the pin", func() bool { return c.members[1].counter("pin_waits") == 1 })
	store := b.access(page, true, func([]byte) {})
	eventually(t, "a fault", func() bool { return c.members[1].counter("faults_write")+c.members[1].counter("faults_upgrade") == 1 })
	if by := c.members[1].faultsBy(); by["retaken"] != before["retaken"]+1 {
		t.Errorf("faults by cause: %v, before %v", by, before)
	}
	b.unpin(ticket)
	a.settled(taken)
	b.settled(store)
	c.quiet()
}

// TestCauseOfAnOfferedPage: the first thread that comes for a page which another node has offered,
// and that is on its way, is late.
func TestCauseOfAnOfferedPage(t *testing.T) {
	late := uint64(0)
	c := start(t, setup{nodes: 2, before: func(n *Node) {
		if n.cfg.Self != 1 {
			return
		}
		in := n.intake
		in.room.consider(&protocol.Effect{Object: protocol.PageObject(0), Heir: 0})
		in.drive.drain()
		in.fault(&pagetable.Event{Kind: pagetable.Fault, Page: 0, Proc: 7, Thread: 7})
		late = in.meter.count.remote[readahead.Late].Load()
	}})
	if late != 1 {
		t.Errorf("%d threads are late, want 1", late)
	}
	c.quiet()
}

// requested is the most access to a page that the node has asked for, or will when what is under
// way is over.
func (m *member) requested(page pagetable.Page) protocol.Access {
	m.Helper()
	answer := make(chan protocol.Access, 1)
	m.node.news.tell(func() { answer <- protocol.Requested(m.node.drive.engine, protocol.PageObject(uint64(page))) })
	select {
	case access := <-answer:
		return access
	case <-time.After(patience):
		m.Fatal("the reactor does not answer")
		return protocol.None
	}
}

// TestStoreToWhatIsAskedForToRead: a thread stores to a page that is on its way for reading, for
// another thread or because it was prefetched. That is an upgrade, and has a cause of its own.
func TestStoreToWhatIsAskedForToRead(t *testing.T) {
	for _, prefetched := range []bool{false, true} {
		c := start(t, setup{nodes: 2})
		m := c.members[1]
		a, b := c.members[0].join(), m.join()
		page := c.pageAt(0, 0)
		a.store(page, 0, 1)
		c.settle()
		c.net.Stall(0, 1)
		want := map[string]uint64{"alone": 0, "cold": 1, "retaken": 0, "unpredicted": 1, "late": 0}
		var waits []chan error
		var answer func()
		if prefetched {
			want["cold"], want["late"] = 0, 1
			_, ticket := b.prefetch(page, 1, attach.Read)
			answer = func() { b.answer(ticket) }
			eventually(t, "it is asked for", func() bool { return m.counter("prefetched_pages") == 1 })
		} else {
			waits = append(waits, b.access(page, false, func([]byte) {}))
			eventually(t, "it is asked for", func() bool { return m.counter("faults_read") == 1 })
		}
		waits = append(waits, b.access(page, true, func([]byte) {}))
		eventually(t, "the store is known", func() bool { return m.requested(page) == protocol.Write })
		c.net.Resume(0, 1)
		for _, done := range waits {
			b.settled(done)
		}
		if prefetched {
			answer()
		}
		if by := m.faultsBy(); !maps.Equal(by, want) || m.counter("faults_upgrade") != 1 {
			t.Errorf("prefetched %v: %d upgrades, faults by cause %v, want 1 and %v", prefetched, m.counter("faults_upgrade"), by, want)
		}
		c.quiet()
	}
}

// TestCausesAddUp: whatever programs do, each fault that waits for another node has one cause. At a
// node that is the home of no page these are the faults whose pages others have granted.
func TestCausesAddUp(t *testing.T) {
	for _, predict := range []bool{false, true} {
		registry := prometheus.NewRegistry()
		c := start(t, setup{nodes: 2, change: func(cfg *Config) {
			if cfg.Predict = predict; cfg.Self == 1 {
				cfg.Metrics = registry
			}
		}})
		p := partners{c, c.members[0].join(), c.members[1].join()}
		const stripes = 8
		p.a.bind("memory", 2*stripes*HomeStripe)
		p.b.bind("memory", 2*stripes*HomeStripe)
		random := rand.New(rand.NewPCG(5, 6))
		for round := range uint64(400) {
			who, page, thread := p.a, c.pageAt(0, random.IntN(stripes*HomeStripe)), random.Uint32N(3)
			if random.IntN(2) == 0 {
				who = p.b
			}
			switch random.IntN(8) {
			case 0:
				p.meet(round % 5)
			case 1:
				who.acquire(lockName, attach.Write)
				who.release(lockName, attach.Write)
			case 2: // and go on before they have come
				_, answer := who.prefetch(page, uint64(1+random.IntN(5)), attach.Access(1+random.IntN(2)))
				who.walk(thread, page, 1, random.IntN(2) == 0, func(int, []byte) {})
				who.answer(answer)
			case 3:
				who.walk(thread, page/HomeStripe*HomeStripe, HomeStripe, random.IntN(2) == 0, func(int, []byte) {})
			default:
				who.walk(thread, page, 1, random.IntN(2) == 0, func(int, []byte) {})
			}
		}
		c.settle()
		for _, m := range p.members {
			by := m.faultsBy()
			if by["cold"] == 0 || by["retaken"] == 0 || by["unpredicted"] == 0 {
				t.Errorf("prediction %v: faults of node %d by cause: %v", predict, m.node.cfg.Self, by)
			}
		}
		by := p.members[1].faultsBy()
		if sum, granted := by["cold"]+by["retaken"]+by["late"]+by["unpredicted"], samples(t, registry, "dsmd_fault_remote_seconds"); sum != granted || by["alone"] != 0 {
			t.Errorf("prediction %v: node 1 has waited for %d pages of node 0; faults by cause: %v", predict, granted, by)
		}
		p.quiet()
	}
}

// samples is how many samples a histogram has.
func samples(t *testing.T, registry *prometheus.Registry, name string) uint64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	t.Fatalf("no metric is called %s", name)
	return 0
}
