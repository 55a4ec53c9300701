package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/protocol"

	"go.uber.org/zap"
)

// lostPages are the pages of which a program of this node has learned that they are lost, and the nodes that had their only copies. Programs ask
// for them when they have caught the fault. There are no more than programs have touched, and they end with the memory that they are part of.
type lostPages map[pagetable.Page]protocol.NodeID

// forget drops what is known of a run of pages that is freed.
func (l lostPages) forget(first pagetable.Page, count uint64) {
	maps.DeleteFunc(l, func(p pagetable.Page, _ protocol.NodeID) bool { return p >= first && uint64(p-first) < count })
}

// losePage has all accesses to a page fail whose only copy was on a node that is lost.
func (n *Node) losePage(page pagetable.Page, with protocol.NodeID) {
	if _, known := n.lostPages[page]; !known {
		n.lostPages[page] = with
		n.count.pagesLost.Add(1)
		// One line for each recovery: programs may touch thousands.
		if epoch, _ := n.engine.Epoch(); epoch != n.lossLogged {
			n.lossLogged = epoch
			n.log.Warn("a page is lost that a program wants: its only copy was on a node that is lost; accesses to it, and to others like it, fail",
				zap.Uint64("page", uint64(page)), zap.String("allocation", plainName(n.extents.of(page).name)), zap.String("node", n.nameOf(with)), zap.Uint32("epoch", epoch))
		}
	}
	for _, f := range n.fetching.byPage[page] {
		f.lost = fmt.Sprintf("%s had the only copy of page %d", n.nameOf(with), page)
	}
	n.perform()
	out, err := n.table.Lose(page)
	n.operated(page, protocol.EffectLost, out, err)
}

// plainName is what a program has called memory, without the job that it is of.
func plainName(name string) string { return name[strings.LastIndexByte(name, 0)+1:] }

// loseRank notes that a rank of p's job was lost, since p attached, with its node or, with noNode, alone. From now on p waits at no barrier unless it knows of that.
func (p *program) loseRank(rank uint32, with protocol.NodeID) {
	if p.lost == nil {
		p.lost = map[uint32]protocol.NodeID{}
	}
	p.lost[rank] = with
}

// answerLostPage tells a program whether a page is lost.
func (n *Node) answerLostPage(p *program, c *attach.Call) {
	node, lost := n.lostPages[pagetable.Page(c.Object)]
	if !lost {
		n.answer(p, &attach.Reply{Ticket: c.Ticket, Status: attach.StatusUnknown})
		return
	}
	n.answer(p, &attach.Reply{Ticket: c.Ticket, Rank: uint32(node)})
}

// answerLostRanks tells a program which ranks of its job are lost.
func (n *Node) answerLostRanks(p *program, c *attach.Call) {
	n.answer(p, &attach.Reply{Ticket: c.Ticket, Payload: attach.AppendRanks(nil, slices.Sorted(maps.Keys(p.lost)))})
}

// arrivesInVain says whether a program arrives at a barrier for which it may wait for a rank that is lost, and tells it.
func (n *Node) arrivesInVain(p *program, c *attach.Call) bool {
	if c.Count >= uint64(len(p.lost)) {
		return false
	}
	n.answer(p, &attach.Reply{Ticket: c.Ticket, Status: attach.StatusNodeLost, Payload: []byte(n.whoIsLost(p))})
	return true
}

// whoIsLost says which ranks of p's job are lost, for people.
func (n *Node) whoIsLost(p *program) string {
	if len(p.lost) == 0 {
		return "it had a part in this call, and whether that was done is not known"
	}
	with := map[protocol.NodeID][]string{}
	for _, rank := range slices.Sorted(maps.Keys(p.lost)) {
		with[p.lost[rank]] = append(with[p.lost[rank]], fmt.Sprint(rank))
	}
	var text []string
	for _, id := range slices.Sorted(maps.Keys(with)) {
		if id == noNode {
			text = append(text, "the program of rank "+strings.Join(with[id], ", ")+" has died")
			continue
		}
		text = append(text, fmt.Sprintf("%s, with rank %s", n.nameOf(id), strings.Join(with[id], ", ")))
	}
	return clip(strings.Join(text, "; "))
}

// nameOf is a node for people: its number and where it is, or was.
func (n *Node) nameOf(id protocol.NodeID) string {
	if int(id) < len(n.cfg.Peers) && n.cfg.Peers[id] != "" {
		return fmt.Sprintf("node %d (%s)", id, n.cfg.Peers[id])
	}
	return fmt.Sprintf("node %d", id)
}

// clip shortens a text to what an answer should have.
func clip(s string) string { return s[:min(len(s), attach.MaxText)] }
