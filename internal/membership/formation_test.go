package membership

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// world runs formations against each other, with a network that delays, loses, repeats and reorders
// messages, and with nodes that come, crash and come back. Everything is decided by one seed.
type world struct {
	rng   *rand.Rand
	nodes int
	clock uint64
	alive []*formation
	all   []*formation // also the dead
	mail  []outgoing
	// news are what a node will hear of another: that it is there, what it says of itself now, or
	// that it is gone.
	news []news
	met  map[*formation]map[string]bool // whom each node has ever found
	// Of ten things that happen, so many are a message that arrives, and so many news; the rest are
	// ticks.
	mails, heard int
	peace        bool // nobody crashes any more
}

type news struct {
	to    *formation
	about *formation
	gone  bool
}

const simulatedPatience = 40

// start adds a node, whose clock may be off.
func (w *world) start(place, id int) {
	w.clock += 10
	incarnation := (w.clock+w.rng.Uint64N(30))<<16 + uint64(len(w.all)) // no two are the same
	f := newFormation(member{incarnation: incarnation, id: id, cluster: "c", data: fmt.Sprintf("10.0.0.%d:7400", place)}, w.nodes, simulatedPatience)
	for _, other := range w.alive {
		w.news = append(w.news, news{to: f, about: other}, news{to: other, about: f})
	}
	w.alive, w.all = append(w.alive, f), append(w.all, f)
}

// crash removes a node; the others will hear of it. What it has sent may still arrive.
func (w *world) crash(i int) {
	dead := w.alive[i]
	w.alive = slices.Delete(w.alive, i, i+1)
	w.news = slices.DeleteFunc(w.news, func(n news) bool { return n.to == dead })
	for _, f := range w.alive {
		w.news = append(w.news, news{to: f, about: dead, gone: true})
	}
}

// step lets one random thing happen. calm leaves out what only does damage.
func (w *world) step(t *testing.T, calm bool) {
	switch what := w.rng.IntN(10); {
	case what < w.mails && len(w.mail) > 0:
		i := w.rng.IntN(len(w.mail))
		o := w.mail[i]
		if calm || w.rng.IntN(5) > 0 { // else it comes again
			w.mail = slices.Delete(w.mail, i, i+1)
		}
		if !calm && w.rng.IntN(5) == 0 {
			return // lost
		}
		decoded, err := decodeMessage(appendMessage(nil, &o.message))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range w.alive {
			if f.self.name() == o.to {
				f.receive(&decoded)
				w.collect(f)
				break // it may have crashed
			}
		}
	case what < w.mails+w.heard && len(w.news) > 0:
		w.hear(w.rng.IntN(len(w.news)))
	case len(w.alive) > 0:
		f := w.alive[w.rng.IntN(len(w.alive))]
		f.tick()
		w.collect(f)
	}
}

// hear delivers news. Of one node they come in their order: a node is not found after it was lost.
func (w *world) hear(i int) {
	n := w.news[i]
	for j := range i {
		if w.news[j].to == n.to && w.news[j].about == n.about {
			i, n = j, w.news[j]
			break
		}
	}
	w.news = slices.Delete(w.news, i, i+1)
	if n.gone {
		n.to.leave(n.about.self.name())
	} else {
		m := n.about.self
		if n.about.table != nil {
			m.sealed = n.about.table.digest
		}
		if w.met[n.to] == nil {
			w.met[n.to] = map[string]bool{n.to.self.name(): true}
		}
		w.met[n.to][m.name()] = true
		n.to.join(m)
	}
	w.collect(n.to)
}

// collect takes what a node sends, and spreads that it has started.
func (w *world) collect(f *formation) {
	w.mail = append(w.mail, f.out...)
	f.out = nil
	if f.table == nil || f.self.sealed != (digest{}) {
		return
	}
	f.self.sealed = f.table.digest
	if i := slices.Index(w.alive, f); i >= 0 && !w.peace && w.rng.IntN(3) == 0 {
		w.crash(i) // before anybody hears that it has started, perhaps
		return
	}
	for _, other := range w.alive {
		if other != f {
			w.news = append(w.news, news{to: other, about: f})
		}
	}
}

// safe checks what must always hold: of all tables with which nodes have started, also nodes that
// are dead, no two have a node in common, and everybody in a table that has started with another
// one has not started; and who has started has met all of its table.
func (w *world) safe(t *testing.T) {
	t.Helper()
	owner := map[string]digest{}
	for _, f := range w.all {
		if f.table == nil {
			continue
		}
		if f.table.find(f.self.name()) == nil {
			t.Fatalf("%s has started with a table that it is not in", f.self.name())
		}
		for id, n := range f.table.Nodes {
			if d, ok := owner[n.name]; ok && d != f.table.digest {
				t.Fatalf("%s is in two tables", n.name)
			}
			owner[n.name] = f.table.digest
			if n.ID != id {
				t.Fatalf("node %d has id %d", id, n.ID)
			}
			if w.nodes > 1 && !w.met[f][n.name] {
				t.Fatalf("%s has started with %s, which it has never met", f.self.name(), n.name)
			}
		}
	}
}

// TestFormationIsSafe runs many small worlds in which everything goes wrong, and then leaves enough
// nodes in peace: some start with one table.
func TestFormationIsSafe(t *testing.T) {
	for seed := range uint64(1500) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := &world{rng: rng, nodes: 1 + rng.IntN(4), mails: 1 + rng.IntN(7), met: map[*formation]map[string]bool{}}
		w.heard = 1 + rng.IntN(9-w.mails)
		for range 1 + rng.IntN(2*w.nodes) {
			w.start(len(w.all), Auto)
		}
		for range 40 + rng.IntN(200) {
			w.step(t, false)
			w.safe(t)
			switch {
			case rng.IntN(50) == 0 && len(w.alive) > 0:
				i := rng.IntN(len(w.alive))
				w.crash(i)
				w.start(rng.IntN(w.nodes), Auto)
			case rng.IntN(30) == 0 && len(w.alive) < 3*w.nodes:
				w.start(len(w.all), Auto)
			}
		}
		w.settle(t, seed)
	}
}

// settle ends all nodes that have given up or started with somebody who is gone, as the daemon
// does, starts others, and waits until a cluster is complete.
func (w *world) settle(t *testing.T, seed uint64) {
	t.Helper()
	w.peace = true
	for round := range 20000 {
		w.step(t, true)
		w.safe(t)
		for i := len(w.alive) - 1; i >= 0; i-- {
			if f := w.alive[i]; f.err != nil || f.table != nil && w.incomplete(f) {
				w.crash(i)
			}
		}
		if len(w.alive) < w.nodes && round%50 == 0 {
			w.start(20+len(w.all), Auto)
		}
		if w.complete() {
			return
		}
	}
	var states []string
	for _, f := range w.alive {
		states = append(states, fmt.Sprintf("%s: %s, error %v", f.self.name(), f.status(), f.err))
	}
	t.Fatalf("seed %d: no cluster of %d nodes has come to be:\n%s", seed, w.nodes, strings.Join(states, "\n"))
}

func (w *world) incomplete(f *formation) bool {
	for _, n := range f.table.Nodes {
		if !slices.ContainsFunc(w.alive, func(o *formation) bool { return o.self.name() == n.name && o.err == nil }) {
			return true
		}
	}
	return false
}

// complete reports whether all nodes of some table have started.
func (w *world) complete() bool {
	started := map[digest]int{}
	for _, f := range w.alive {
		if f.table != nil {
			started[f.table.digest]++
		}
	}
	for _, n := range started {
		if n == w.nodes {
			return true
		}
	}
	return false
}

// TestIDs: numbers that nodes bring are theirs, the rest go by address, whoever was started first;
// and there are as many reactors as all can have.
func TestIDs(t *testing.T) {
	at := func(incarnation uint64, id int, data string) member {
		return member{incarnation: incarnation, id: id, cluster: "c", data: data, reactors: uint32(incarnation) + 1}
	}
	members := []member{at(5, Auto, "10.0.0.10:7400"), at(9, 1, "10.0.0.1:7400"), at(7, Auto, "10.0.0.9:7400"), at(1, Auto, "10.0.0.9:10400")}
	for range 10 {
		rand.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		var got []string
		table := assign("c", members)
		if table.Reactors() != 2 {
			t.Fatalf("%d reactors, where the nodes can have 2, 6, 8 and 10", table.Reactors())
		}
		for _, n := range table.Nodes {
			got = append(got, n.Data)
		}
		if want := []string{"10.0.0.9:7400", "10.0.0.1:7400", "10.0.0.9:10400", "10.0.0.10:7400"}; !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	}
}

// TestTakenPlaces: of two nodes with one number or one address the one that was started later gives
// up, after it has waited for the other to be found dead.
func TestTakenPlaces(t *testing.T) {
	first := member{incarnation: 1, id: 0, cluster: "c", data: "10.0.0.1:7400"}
	for want, second := range map[string]member{
		"id 0 is that of the node at 10.0.0.1:7400":    {incarnation: 2, id: 0, cluster: "c", data: "10.0.0.2:7400"},
		"the address 10.0.0.1:7400 is that of a node":  {incarnation: 2, id: Auto, cluster: "c", data: "10.0.0.1:7400"},
		"id 2 in a cluster of 2 nodes: ids are 0 to 1": {incarnation: 2, id: 2, cluster: "c", data: "10.0.0.3:7400"},
	} {
		f := newFormation(second, 2, 3)
		f.join(first)
		for range 3 {
			f.tick()
		}
		if f.err != nil {
			t.Errorf("%q: it gave up at once: %v", want, f.err)
		}
		f.tick()
		if !errors.Is(f.err, ErrRefused) || !strings.Contains(f.err.Error(), want) {
			t.Errorf("%v, want %q", f.err, want)
		}
	}
}

// TestAuthorLost: who has accepted a plan whose author dies cannot know whether it was committed.
func TestAuthorLost(t *testing.T) {
	author := newFormation(member{incarnation: 1, id: Auto, cluster: "c", data: "10.0.0.1:7400"}, 2, 3)
	other := newFormation(member{incarnation: 2, id: Auto, cluster: "c", data: "10.0.0.2:7400"}, 2, 3)
	author.join(other.self)
	other.join(author.self)
	if len(author.out) != 1 {
		t.Fatalf("%d messages", len(author.out))
	}
	other.receive(&author.out[0].message)
	other.leave(author.self.name())
	if !errors.Is(other.err, errAuthorLost) {
		t.Error(other.err)
	}
}
