package node

import (
	"slices"
	"strings"
	"testing"

	"dsmd/internal/attach"
	"dsmd/transport/sim"
)

// TestRanksLostAlone: the program of a rank has died and its node lives. Who waits for it at a
// barrier is told, who comes later too, and whoever attaches after that; those that are left meet,
// and nothing else is lost.
func TestRanksLostAlone(t *testing.T) {
	c := start(t, surviving(3, sim.Options{}))
	a, b, doomed := c.members[0].join(), c.members[1].join(), c.members[2].join()
	page := doomed.bind("x", 1)
	doomed.store(page, 8, 5)
	a.bind("x", 1)
	arrive := func(barrier uint64, parties uint32, losses uint64) attach.Call {
		return attach.Call{Op: attach.OpArrive, Object: barrier, Parties: parties, Count: losses}
	}
	wantLost := func(r attach.Reply) {
		t.Helper()
		if r.Status != attach.StatusNodeLost || !strings.Contains(string(r.Payload), "the program of rank 2 has died") {
			t.Errorf("the wait ends with %v %q", r.Status, r.Payload)
		}
	}
	var waiting, others []chan attach.Reply
	for barrier := range uint64(6) { // of which each node is the home of some
		_, at := a.call(arrive(barrier, 3, 0))
		_, bt := b.call(arrive(barrier, 3, 0))
		waiting, others = append(waiting, at), append(others, bt)
	}
	a.sync()
	b.sync()
	doomed.die()
	for _, m := range c.members {
		m.node.RankLost(2)
		m.node.RankLost(2)
		m.node.RankLost(-1)
		m.node.RankLost(MaxRanks)
	}
	for i := range waiting {
		wantLost(a.answer(waiting[i]))
		wantLost(b.answer(others[i]))
	}
	wantLost(b.do(arrive(7, 3, 0)))
	late := c.members[0].joinAs(1) // knows what those do that were there
	for _, p := range []*prog{a, b, late} {
		ranks, err := attach.DecodeRanks(p.ok(attach.Call{Op: attach.OpLostRanks}).Payload)
		if err != nil || !slices.Equal(ranks, []uint32{2}) {
			t.Errorf("lost are the ranks %v, %v", ranks, err)
		}
	}
	_, rest := a.call(arrive(77, 2, 1))
	b.ok(arrive(77, 2, 1))
	if r := a.answer(rest); r.Status != attach.StatusOK {
		t.Errorf("those that are left meet with %v", r.Status)
	}
	a.wantLoad(page, 8, 5)
	c.quiet()
}

// TestRankLostThenNode: a rank that was lost alone is lost with its node when that is lost too, and
// counts once.
func TestRankLostThenNode(t *testing.T) {
	c := start(t, surviving(3, sim.Options{}))
	a := c.members[0].join()
	c.members[2].join()
	c.settle() // node 0 knows who runs on node 2
	barrier := attach.Call{Op: attach.OpArrive, Object: 3, Parties: 3}
	_, at := a.call(barrier)
	a.sync()
	c.members[0].node.RankLost(2)
	if r := a.answer(at); r.Status != attach.StatusNodeLost {
		t.Errorf("the wait ends with %v", r.Status)
	}
	c.sever(2)
	c.recovered(1, 0, 1)
	if r := a.do(barrier); r.Status != attach.StatusNodeLost || !strings.Contains(string(r.Payload), "node 2, with rank 2") {
		t.Errorf("the wait ends with %v %q", r.Status, r.Payload)
	}
	barrier.Count, barrier.Parties = 1, 1
	a.ok(barrier)
	c.without(2)
	c.quiet()
}
