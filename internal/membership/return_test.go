package membership

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestReturn: a node that was killed comes back at the address that it had, and gets the same
// number and table; when it is killed again that is a loss. Two that have left come back at the
// same time.
func TestReturn(t *testing.T) {
	t.Parallel()
	l := newLAN()
	all := cluster(t, l, 4, nil)
	for _, a := range all {
		a.formed(t)
	}
	table := all[0].group.Table()
	again := func(i int) *attempt {
		c := l.config(i, 4)
		c.Returns = true
		return begin(t, c)
	}
	same := func(a *attempt, id int) {
		t.Helper()
		if g := a.formed(t); g.Self() != id || g.Table().Digest() != table.Digest() {
			t.Fatalf("it is node %d of %v, want node %d of %v", g.Self(), g.Table(), id, table)
		}
	}
	former := all[2].group.self.name()
	all[2].group.crash()
	second := again(2)
	same(second, 2)
	eventually(t, "the first incarnation is known to be dead", func() bool { return !all[0].group.has(former) })

	heard := make(chan Loss, 16)
	all[0].group.Watch(func(loss Loss) {
		if loss.Left || loss.Node.ID != 2 || !all[0].group.has(second.group.self.name()) {
			// but not that of the first incarnation, which on a machine that is busy may have been
			// a loss
			heard <- loss
		}
	})
	all[1].group.Leave(nil)
	all[3].group.Leave(nil)
	for range 2 {
		if loss := <-heard; !loss.Left || loss.Node.ID != 1 && loss.Node.ID != 3 {
			t.Errorf("the loss of %+v, want those of nodes 1 and 3, which have left", loss)
		}
	}
	first, third := again(1), again(3)
	same(first, 1)
	same(third, 3)
	second.group.crash()
	if loss := <-heard; loss.Left || loss.Node.ID != 2 {
		t.Errorf("the loss of %+v, want that of node 2", loss)
	}
}

// has reports whether a node is known, by its name.
func (g *Group) has(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, known := g.formation.known[name]
	return known
}

// TestSuccessor: the death of a node of which a later incarnation is known is no loss, whether it
// is heard before or after that one. The death of the later one is.
func TestSuccessor(t *testing.T) {
	at := func(incarnation uint64, data string) member {
		return member{incarnation: incarnation, id: Auto, cluster: "c", data: data}
	}
	self, former, later := at(1, "10.0.0.1:7400"), at(3, "10.0.0.2:7400"), at(4, "10.0.0.2:7400")
	behind := at(2, "10.0.0.2:7400") // was started later, by a clock that had been set back
	for _, test := range []struct {
		name string
		does func(g gossip)
		want int // losses
	}{
		{"nobody has come", func(g gossip) { g.gone(former.name()) }, 1},
		{"it has come before", func(g gossip) { g.formation.join(later); g.gone(former.name()) }, 0},
		{"it has come before, by its clock earlier", func(g gossip) { g.formation.join(behind); g.gone(former.name()) }, 0},
		{"it comes before the death is certain, by its clock earlier", func(g gossip) { g.gone(former.name()); g.formation.join(behind) }, 0},
		{"it comes before the death is certain", func(g gossip) { g.gone(former.name()); g.formation.join(later) }, 0},
		{"it has come before the other left", func(g gossip) {
			g.formation.join(later)
			g.ends[former.name()] = &end{said: true, why: "enough"}
			g.gone(former.name())
		}, 0},
		{"it dies, and the former one is known still", func(g gossip) { g.formation.join(later); g.gone(later.name()) }, 1},
	} {
		g := withoutGossip(t, self, nil)
		g.formation.join(former)
		g.formation.table = assign("c", []member{self, former})
		test.does(g)
		for _, d := range g.doubtful {
			d.since = d.since.Add(-objectionTime)
		}
		g.loseDoubtful()
		if len(g.lost) != test.want || len(g.doubtful) != 0 {
			t.Errorf("%s: %d losses, want %d; %d are doubtful", test.name, len(g.lost), test.want, len(g.doubtful))
		}
	}
}

// TestWrongReturns: who says that it comes back, and has no place to come back to, is told so.
// Nobody is harmed.
func TestWrongReturns(t *testing.T) {
	t.Parallel()
	l := newLAN()
	forming := begin(t, l.config(0, 2))
	forming.said(t, "gossiping")
	c := l.config(5, 2)
	c.Returns = true
	c.Timeout = patience / 9
	early := begin(t, c)
	<-early.done
	if !errors.Is(early.err, ErrTimeout) || !strings.Contains(early.err.Error(), "not complete yet") {
		t.Errorf("coming back to a cluster that is not complete: %v", early.err)
	}
	c.Timeout = patience
	forming.said(t, "it comes back to a cluster (--rejoin)")
	other := begin(t, l.config(1, 2))
	forming.formed(t)
	other.formed(t)
	if why := begin(t, c).refused(t); !strings.Contains(why, "a node comes back at the address that it had") {
		t.Errorf("coming back from another address: %s", why)
	}
	c = l.config(1, 2)
	other.group.crash()
	c.Returns, c.ID = true, 0
	if why := begin(t, c).refused(t); !strings.Contains(why, fmt.Sprintf("the node at %s is number 1", c.Data)) {
		t.Errorf("coming back under another number: %s", why)
	}
	if n := forming.group.Table().Nodes; len(n) != 2 {
		t.Errorf("the table has the nodes %v", n)
	}
}
