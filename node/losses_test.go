package node

import (
	"strings"
	"testing"

	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/protocol"
)

// TestLostPageIsKnown: a program that has caught a fault learns whether the page is lost, and who
// had it; and no rank is lost as long as no node is.
func TestLostPageIsKnown(t *testing.T) {
	c := start(t, setup{nodes: 1, before: func(n *Node) { n.losses.pages[5] = 2 }})
	p := c.members[0].join()
	if r := p.do(attach.Call{Op: attach.OpLostPage, Object: 5}); r.Status != attach.StatusOK || r.Rank != 2 {
		t.Errorf("a page that was lost with node 2: %v, node %d", r.Status, r.Rank)
	}
	for _, page := range []uint64{4, testPages, 1 << 63} {
		if r := p.do(attach.Call{Op: attach.OpLostPage, Object: page}); r.Status != attach.StatusUnknown {
			t.Errorf("page %d, which is not lost: %v", page, r.Status)
		}
	}
	r := p.ok(attach.Call{Op: attach.OpLostRanks})
	if ranks, err := attach.DecodeRanks(r.Payload); err != nil || len(ranks) != 0 {
		t.Errorf("ranks %v are lost, %v", ranks, err)
	}
	p.ok(attach.Call{Op: attach.OpArrive, Object: 1, Parties: 1})
	c.quiet()
}

// TestLostPagesAreForgotten: freed memory is not lost any more, and its neighbours are.
func TestLostPagesAreForgotten(t *testing.T) {
	l := losses{pages: map[pagetable.Page]protocol.NodeID{3: 1, 4: 1, 5: 2, 6: 2}}
	l.forget(4, 2)
	if len(l.pages) != 2 || l.pages[3] != 1 || l.pages[6] != 2 {
		t.Errorf("pages 4 and 5 were freed, and lost are %v", l.pages)
	}
}

// TestWhoIsLost: what people are told names the nodes, and the ranks that were lost with each.
func TestWhoIsLost(t *testing.T) {
	names := nodeNames{"a:1", "", "c:3"}
	var p program
	if text := names.whoIsLost(&p); !strings.Contains(text, "not known") {
		t.Errorf("without a rank that is lost: %q", text)
	}
	p.rankLost(7, 2)
	p.rankLost(4, 1)
	p.rankLost(2, 2)
	p.rankLost(5, noNode)
	if text, want := names.whoIsLost(&p), "node 1, with rank 4; node 2 (c:3), with ranks 2, 7; the program of rank 5 has died"; text != want {
		t.Errorf("got %q, want %q", text, want)
	}
	p.rankLost(6, noNode)
	if text, want := names.whoIsLost(&p), "; the programs of ranks 5, 6 have died"; !strings.HasSuffix(text, want) {
		t.Errorf("got %q, want %q at its end", text, want)
	}
	for rank := range uint32(2000) {
		p.rankLost(rank, protocol.NodeID(rank))
	}
	if text := names.whoIsLost(&p); len(text) != attach.MaxText {
		t.Errorf("of thousands that are lost %d bytes are said, want %d", len(text), attach.MaxText)
	}
}
