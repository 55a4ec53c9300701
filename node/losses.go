package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"dsmd/internal/attach"
	"dsmd/node/readahead"
	"dsmd/pagetable"
	"dsmd/protocol"

	"go.uber.org/zap"
)

// losses are the pages of which a program of this node has learned that they are lost, and the
// nodes that had their only copies. Programs ask for them when they have caught the fault. There
// are no more than programs have touched, and they end with the memory that they are part of.
type losses struct {
	log   *zap.Logger
	meter *meter
	names nodeNames

	pages      map[pagetable.Page]protocol.NodeID
	logged     uint32 // the last epoch in which a lost page was logged
	loggedBack uint32 // the same of one that went back
}

// note notes a loss. epoch is the present one.
func (l *losses) note(page pagetable.Page, with protocol.NodeID, in readahead.Extent, epoch uint32) {
	if _, known := l.pages[page]; known {
		return
	}
	l.pages[page] = with
	l.meter.count.pagesLost.Add(1)
	// One line for each recovery: programs may touch thousands.
	if epoch != l.logged {
		l.logged = epoch
		l.log.Warn("a page is lost that a program wants: its only copy was on a node that is lost; accesses to it, and to others like it, fail",
			zap.Uint64("page", uint64(page)), zap.String("allocation", plainName(in.Name)), zap.String("node", l.names.of(with)), zap.Uint32("epoch", epoch))
	}
}

// wentBack notes that a page that was lost begins anew. epoch is the present one.
func (l *losses) wentBack(page pagetable.Page, in readahead.Extent, epoch uint32) {
	delete(l.pages, page)
	l.meter.count.wentBack.Add(1)
	if epoch != l.loggedBack {
		l.loggedBack = epoch
		l.log.Warn("a page is lost that a program wants: it goes back to what it had in the last checkpoint, as others like it do",
			zap.Uint64("page", uint64(page)), zap.String("allocation", plainName(in.Name)), zap.Uint32("epoch", epoch))
	}
}

// forget drops what is known of pages that are freed.
func (l *losses) forget(first pagetable.Page, count uint64) {
	maps.DeleteFunc(l.pages, func(p pagetable.Page, _ protocol.NodeID) bool { return p >= first && uint64(p-first) < count })
}

// answer tells a program whether a page is lost.
func (l *losses) answer(p *program, c *attach.Call) {
	node, lost := l.pages[pagetable.Page(c.Object)]
	if !lost {
		p.answer(&attach.Reply{Ticket: c.Ticket, Status: attach.StatusUnknown})
		return
	}
	p.answer(&attach.Reply{Ticket: c.Ticket, Rank: uint32(node)})
}

// plainName is what a program has called memory, without the job that it is of.
func plainName(name string) string { return name[strings.LastIndexByte(name, 0)+1:] }

// nodeNames are where nodes are, by their numbers.
type nodeNames []string

// of is a node for people: its number and where it is, or was.
func (l nodeNames) of(id protocol.NodeID) string {
	if int(id) < len(l) && l[id] != "" {
		return fmt.Sprintf("node %d (%s)", id, l[id])
	}
	return fmt.Sprintf("node %d", id)
}

// whoIsLost names the ranks of p's job that are lost, for people.
func (l nodeNames) whoIsLost(p *program) string {
	if len(p.lost) == 0 {
		return "it had a part in this call, and whether that was done is not known"
	}
	with := map[protocol.NodeID][]string{}
	for _, rank := range slices.Sorted(maps.Keys(p.lost)) {
		with[p.lost[rank]] = append(with[p.lost[rank]], fmt.Sprint(rank))
	}
	var text []string
	for _, id := range slices.Sorted(maps.Keys(with)) {
		ranks := strings.Join(with[id], ", ")
		switch one := len(with[id]) == 1; {
		case id == noNode && one:
			text = append(text, "the program of rank "+ranks+" has died")
		case id == noNode:
			text = append(text, "the programs of ranks "+ranks+" have died")
		case one:
			text = append(text, l.of(id)+", with rank "+ranks)
		default:
			text = append(text, l.of(id)+", with ranks "+ranks)
		}
	}
	return clip(strings.Join(text, "; "))
}

// clip shortens a text to what an answer should have.
func clip(s string) string { return s[:min(len(s), attach.MaxText)] }
