package node

import (
	"encoding/binary"
	"fmt"
	"slices"

	"dsmd/internal/agreement"
	"dsmd/internal/attach"
	"dsmd/protocol"
	"dsmd/transport"
)

// A barrier waits for ranks, and the engine does not know where they run. So where nodes may be lost, each tells the others which ranks of which jobs
// attach to it and leave it, and when it is lost, those whose job has lost a rank with it are told at their barriers.

// rosterMark is the first byte of a frame that says where a rank runs. agreement's messages have none like it: their kinds are small.
const rosterMark = agreement.Mark | 0x70

// What becomes of the rank of a roster frame.
const (
	rankAttached = iota + 1
	rankLeft
)

// rosterHeader is the length of a roster frame without the name of the job: mark, what happened, rank.
const rosterHeader = 1 + 1 + 4

// rankOf is a rank of a job.
type rankOf struct {
	job  string
	rank uint32
}

// roster has the ranks that run at each peer, at most maxPrograms of each.
type roster map[transport.NodeID]map[rankOf]bool

func appendRoster(b []byte, what byte, r rankOf) []byte {
	b = append(b, rosterMark, what)
	return append(binary.LittleEndian.AppendUint32(b, r.rank), r.job...)
}

// note learns from a peer's frame.
func (r roster) note(from transport.NodeID, frame []byte) error {
	if len(frame) < rosterHeader || len(frame) > rosterHeader+attach.MaxJob {
		return fmt.Errorf("a frame of %d bytes about a rank", len(frame))
	}
	of := rankOf{job: string(frame[rosterHeader:]), rank: binary.LittleEndian.Uint32(frame[2:])}
	switch what := frame[1]; {
	case of.rank >= MaxRanks:
		return fmt.Errorf("rank %d; there are 0 to %d", of.rank, MaxRanks-1)
	case what == rankAttached && len(r[from]) >= maxPrograms:
		return fmt.Errorf("more than %d ranks are attached there", maxPrograms)
	case what == rankAttached:
		if r[from] == nil {
			r[from] = map[rankOf]bool{}
		}
		r[from][of] = true
	case what == rankLeft:
		delete(r[from], of)
	default:
		return fmt.Errorf("a rank to which %d happened", what)
	}
	return nil
}

// announce tells the others what has become of a program's rank, where it matters to them.
func (n *Node) announce(p *program, what byte) {
	if !n.survives() {
		return
	}
	frame := appendRoster(nil, what, rankOf{p.job, p.rank})
	for _, id := range n.survival.members {
		if int(id) != n.cfg.Self {
			n.tell(id, frame)
		}
	}
}

// bereave tells the programs of this node which ranks of their jobs are lost with a peer.
func (n *Node) bereave(peer transport.NodeID) {
	for of := range n.survival.roster[peer] {
		for _, p := range n.programs {
			if p.ranked && p.job == of.job && p.rank != of.rank {
				p.loseRank(of.rank, protocol.NodeID(peer))
			}
		}
	}
	delete(n.survival.roster, peer)
}

// endBarriers ends the waits of programs that did not know yet which ranks of their job are lost. Where the barrier has its home it is known whether the
// arrival was counted; if it was, the call ends as if nothing had happened.
func (n *Node) endBarriers() {
	var tickets []protocol.Ticket
	for ticket, c := range n.calls {
		if c.op == attach.OpArrive && c.losses < uint64(len(c.p.lost)) {
			c.ended = true
			n.calls[ticket] = c
			tickets = append(tickets, ticket)
		}
	}
	slices.Sort(tickets)
	for _, ticket := range tickets {
		n.step(protocol.Event{Kind: protocol.EventCancel, Client: n.calls[ticket].p.id, Ticket: ticket})
	}
}
