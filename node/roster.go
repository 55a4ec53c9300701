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
//
// What the lost node has told may have reached only some. So whoever enters a view passes on what it has heard of those that are left out, before the first message of the recovery:
// everybody has heard it from all when the recovery is over, and the barriers of all end that have to.

// rosterMark is the first byte of a frame that says where a rank runs. agreement's messages have none like it: their kinds are small.
const rosterMark = agreement.Mark | 0x70

// What becomes of the rank of a roster frame.
const (
	rankAttached = iota + 1
	rankLeft
	rankLost // its node is lost; said by those that go on
)

// rosterHeader is the length of a roster frame without the name of the job: mark, what happened, rank, node.
const rosterHeader = 1 + 1 + 4 + 2

// rankOf is a rank of a job.
type rankOf struct {
	job  string
	rank uint32
}

// roster has the ranks that run at each peer, at most maxPrograms of each.
type roster map[transport.NodeID]map[rankOf]bool

// appendRoster is a frame about a rank that runs at a node, or did.
func appendRoster(b []byte, what byte, at transport.NodeID, r rankOf) []byte {
	b = binary.LittleEndian.AppendUint32(append(b, rosterMark, what), r.rank)
	return append(binary.LittleEndian.AppendUint16(b, uint16(at)), r.job...)
}

// decodeRoster reads a frame that begins with rosterMark.
func decodeRoster(frame []byte) (what byte, at transport.NodeID, of rankOf, err error) {
	if len(frame) < rosterHeader || len(frame) > rosterHeader+attach.MaxJob {
		return 0, 0, of, fmt.Errorf("a frame of %d bytes about a rank", len(frame))
	}
	of = rankOf{job: string(frame[rosterHeader:]), rank: binary.LittleEndian.Uint32(frame[2:])}
	if of.rank >= MaxRanks {
		return 0, 0, of, fmt.Errorf("rank %d; there are 0 to %d", of.rank, MaxRanks-1)
	}
	return frame[1], transport.NodeID(binary.LittleEndian.Uint16(frame[6:])), of, nil
}

// rosterFrame deals with what a peer says of a rank.
func (n *Node) rosterFrame(from transport.NodeID, frame []byte) error {
	what, at, of, err := decodeRoster(frame)
	switch {
	case err != nil:
		return err
	case what != rankLost:
		return n.survival.roster.note(from, what, at, of)
	case int(at) >= n.cfg.Nodes || !n.leftOut(at):
		// Whoever says so has told this node before in which view it is.
		return fmt.Errorf("a rank that is lost with node %d, which is not", at)
	}
	n.loseRank(of, at)
	return nil
}

// note learns what has happened to a rank at a peer.
func (r roster) note(from transport.NodeID, what byte, at transport.NodeID, of rankOf) error {
	switch {
	case at != from:
		return fmt.Errorf("a rank at node %d", at)
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
	n.tellOthers(appendRoster(nil, what, transport.NodeID(n.cfg.Self), rankOf{p.job, p.rank}))
}

// tellOthers sends a frame that is not the protocol's to all other members.
func (n *Node) tellOthers(frame []byte) {
	for _, id := range n.survival.members {
		if int(id) != n.cfg.Self {
			n.tell(id, frame)
		}
	}
}

// bereave tells the programs of this node, and the other members, which ranks are lost with a peer.
func (n *Node) bereave(peer transport.NodeID) {
	for of := range n.survival.roster[peer] {
		n.loseRank(of, peer)
		n.tellOthers(appendRoster(nil, rankLost, peer, of))
	}
	delete(n.survival.roster, peer)
}

// loseRank tells the programs of a job that one of its ranks is lost with a peer.
func (n *Node) loseRank(of rankOf, peer transport.NodeID) {
	for _, p := range n.programs {
		if p.ranked && p.job == of.job && p.rank != of.rank {
			p.loseRank(of.rank, protocol.NodeID(peer))
		}
	}
}

// noNode stands for the node of a rank that is lost without it.
const noNode = protocol.NodeID(protocol.MaxNodes)

// loseRanks tells all programs of this node, those that attach later included, that ranks are lost whose nodes may live.
func (n *Node) loseRanks(ranks []uint32) {
	for _, rank := range ranks {
		n.survival.dead[rank] = true
		for _, p := range n.programs {
			if p.ranked {
				p.loseAlone(rank)
			}
		}
	}
	if len(ranks) > 0 && !n.survival.recovering { // which ends with the same
		n.endBarriers()
	}
}

// loseAlone notes that a rank is lost, perhaps without its node. If it is with its node, p knows already or is told.
func (p *program) loseAlone(rank uint32) {
	if _, known := p.lost[rank]; !known && rank != p.rank {
		p.loseRank(rank, noNode)
	}
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
		if n.cancelHeld(ticket) {
			continue
		}
		n.step(protocol.Event{Kind: protocol.EventCancel, Client: n.calls[ticket].p.id, Ticket: ticket})
	}
}
