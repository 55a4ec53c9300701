package node

import (
	"math/rand/v2"
	"testing"

	"dsmd/internal/attach"
	"dsmd/pagetable"
)

var countersOfPrediction = []string{"predicted_pages", "predicted_beyond", "predicted_used", "predicted_late", "predicted_in_vain"}

// partners are two programs that meet at a barrier, at one of several places in the program.
type partners struct {
	*cluster
	a, b *prog
}

func startPartners(t *testing.T, predict bool) partners {
	c := start(t, setup{nodes: 2, change: func(cfg *Config) { cfg.Predict = predict }})
	return partners{c, c.members[0].join(), c.members[1].join()}
}

func (p partners) meet(place uint64) {
	p.Helper()
	_, one := p.a.call(attach.Call{Op: attach.OpArrive, Object: 5, Site: place, Parties: 2})
	_, two := p.b.call(attach.Call{Op: attach.OpArrive, Object: 5, Site: place, Parties: 2})
	p.a.answer(one)
	p.b.answer(two)
}

// visit lets a thread touch pages in this order, and checks what it finds.
func (p partners) visit(who *prog, pages []pagetable.Page, write bool, was, becomes byte) {
	p.Helper()
	for _, page := range pages {
		err := who.table.AccessBy(1<<31+7, who.id, page, write, func(b []byte) {
			if b[0] != was {
				p.Errorf("page %d holds %d, want %d", page, b[0], was)
			}
			if write {
				b[0] = becomes
			}
		})
		if err != nil {
			p.Fatal(err)
		}
	}
}

func (p partners) free(who *prog) {
	p.Helper()
	who.ok(attach.Call{Op: attach.OpUnbind, Name: "memory", Object: attach.NameHash(attach.NameMemory, "memory")})
}

// TestPrediction: two programs take turns at the same pages, in an order that is no run. From the
// second round on hardly any of them is missed, whether they are loaded or stored to, and what is
// read is right. With prediction off all are missed each time.
func TestPrediction(t *testing.T) {
	const rounds, pages = 5, 40
	var order []pagetable.Page
	for _, i := range rand.New(rand.NewPCG(3, 3)).Perm(pages) {
		order = append(order, pagetable.Page(10*i))
	}
	for _, predict := range []bool{false, true} {
		p := startPartners(t, predict)
		p.a.bind("memory", 10*pages)
		p.b.bind("memory", 10*pages)
		var missed []uint64
		for round := range byte(rounds) {
			before := p.members[0].misses() + p.members[1].misses()
			p.visit(p.a, order, true, round, round+1)
			p.meet(1)
			p.visit(p.b, order, false, round+1, 0)
			p.meet(2)
			missed = append(missed, p.members[0].misses()+p.members[1].misses()-before)
		}
		for round, n := range missed[2:] {
			if few := n <= pages/10; few != predict {
				t.Errorf("prediction %v: in round %d %d of %d accesses are missed (%d)", predict, round+2, n, 2*pages, missed)
			}
		}
		for _, m := range p.members {
			used, late, asked := m.counter("predicted_used"), m.counter("predicted_late"), m.counter("predicted_pages")
			if !predict && asked > 0 || predict && (used == 0 || used+late+m.counter("predicted_in_vain") > asked) {
				t.Errorf("prediction %v: node %d has asked for %d pages, of which %d were used and %d late", predict, m.node.cfg.Self, asked, used, late)
			}
		}
		p.quiet()
	}
}

// TestPredictionOfChanges: pages that are loaded from and then stored to are neither missed nor
// upgraded, in each of many rounds.
func TestPredictionOfChanges(t *testing.T) {
	const rounds, pages = 9, 20
	p := startPartners(t, true)
	first := p.a.bind("memory", 800)
	p.b.bind("memory", 800)
	var order []pagetable.Page
	for i := range pagetable.Page(pages) {
		order = append(order, first+(i*7)%pages*10)
	}
	turn := func(who *prog, was byte) {
		for _, page := range order {
			p.visit(who, []pagetable.Page{page}, false, was, 0)
			p.visit(who, []pagetable.Page{page}, true, was, was+1)
		}
	}
	for round := range byte(rounds) {
		before := p.members[0].misses() + p.members[1].misses()
		turn(p.a, 2*round)
		p.meet(1)
		turn(p.b, 2*round+1)
		p.meet(2)
		if n := p.members[0].misses() + p.members[1].misses() - before; round > 1 && n > pages/5 {
			t.Errorf("in round %d %d of %d accesses are missed", round, n, 4*pages)
		}
	}
	p.quiet()
}

// TestPredictionKeepsAway: where a thread stores to pages that are here for reading, up to those of
// another node, these are not taken.
func TestPredictionKeepsAway(t *testing.T) {
	const mine = 60
	p := startPartners(t, true)
	first := p.a.bind("memory", 2*mine)
	p.b.bind("memory", 2*mine)
	var own, theirs []pagetable.Page
	for i := range pagetable.Page(mine) {
		own, theirs = append(own, first+i), append(theirs, first+mine+i)
	}
	for round := range byte(6) {
		p.visit(p.b, theirs, true, round, round+1)
		p.visit(p.a, own, true, round, round+1)
		p.meet(1)
		p.visit(p.b, own, false, round+1, 0)
		p.meet(2)
		if round == 0 {
			p.members[0].node.meter.count.pagesReceived.Store(0)
		}
	}
	if n := p.members[0].counter("pages_received"); n != 0 {
		t.Errorf("node 0 has taken %d pages that only node 1 uses", n)
	}
	p.quiet()
}

// TestPredictionInVain: pages that are no longer wanted are asked for once or twice more, and not
// each time that they come by; and runs of pages are asked for together.
func TestPredictionInVain(t *testing.T) {
	const pages = 20
	p := startPartners(t, true)
	first := p.a.bind("memory", 800)
	p.b.bind("memory", 800)
	var order, run []pagetable.Page
	for i := range pagetable.Page(pages) {
		order = append(order, first+(i*37)%pages*10)
	}
	for i := range pagetable.Page(200) {
		run = append(run, first+500+i)
	}
	round := func(visits bool) {
		p.visit(p.a, order, true, 0, 0)
		p.visit(p.a, run, true, 0, 0)
		p.meet(1)
		if visits {
			p.visit(p.b, order, false, 0, 0)
			p.visit(p.b, run, false, 0, 0)
		}
		p.meet(2)
	}
	for range 3 {
		round(true)
	}
	b := p.members[1]
	if b.counter("predicted_beyond") == 0 {
		t.Error("a run of pages that is read in each round is not asked for together")
	}
	for range 20 {
		round(false)
	}
	if vain := b.counter("predicted_in_vain"); vain == 0 || vain > 2*(pages+20) {
		t.Errorf("%d pages have come in vain, want some, and none more than twice", vain)
	}
	p.quiet()
}

// TestPredictedPageIsFreed: memory that is freed while a predicted page of it is untouched is new
// when it is given out again.
func TestPredictedPageIsFreed(t *testing.T) {
	p := startPartners(t, true)
	order := func(first pagetable.Page) []pagetable.Page {
		return []pagetable.Page{first + 7, first + 3, first + 12, first}
	}
	for range 6 {
		first := p.a.bind("memory", 16)
		p.b.bind("memory", 16)
		for round := range byte(3) {
			p.visit(p.a, order(first), true, round, round+1)
			p.meet(1)
			if round < 2 {
				p.visit(p.b, order(first), false, round+1, 0)
			}
			p.meet(2)
		}
		p.free(p.a)
		p.free(p.b)
	}
	p.quiet()
}

// TestPredictionIsLate: a page that a thread comes for while it is on its way is mapped at once
// when it comes.
func TestPredictionIsLate(t *testing.T) {
	p := startPartners(t, true)
	first := p.a.bind("memory", 100)
	p.b.bind("memory", 100)
	order := []pagetable.Page{first + 70, first + 30, first + 90}
	for range 2 {
		p.visit(p.a, order, true, 0, 0)
		p.meet(1)
		p.visit(p.b, order, false, 0, 0)
		p.meet(2)
	}
	p.visit(p.a, order, true, 0, 0)
	p.meet(3) // a new place: nothing is predicted there
	b := p.members[1]
	asked, used, late := b.counter("predicted_pages"), b.counter("predicted_used"), b.counter("predicted_late")
	p.net.Stall(0, 1)
	one := p.b.access(order[0], false, func([]byte) {})
	eventually(t, "the others are predicted", func() bool { return b.counter("predicted_pages") == asked+2 })
	two := p.b.access(order[1], false, func([]byte) {})
	eventually(t, "one is late", func() bool { return b.counter("predicted_late") == late+1 })
	p.net.Resume(0, 1)
	p.b.settled(one)
	p.b.settled(two)
	p.b.load(order[2], 0)
	if n := b.counter("predicted_used") - used; n != 1 {
		t.Errorf("%d predicted pages were here when a thread came for them, want the last of three", n)
	}
	p.quiet()
}
