package node

import (
	"encoding/binary"
	"fmt"

	"dsmd/internal/agreement"
	"dsmd/internal/attach"
	"dsmd/protocol"
	"dsmd/transport"
)

// roster is which ranks run at which peer, and which are lost.
//
// A barrier waits for ranks, and the engine does not know where they run. So where nodes may be
// lost, each tells the others which ranks of which jobs attach to it and leave it. When it is lost,
// those whose job has lost a rank with it are told at their barriers.
//
// What the lost node has told may have reached only some. So whoever enters a view passes on what
// it has heard of those that are left out, before the first message of the recovery. Everybody has
// heard it from all when the recovery is over, and the barriers of all end that have to.
type roster struct {
	members *members

	at   ranks
	dead map[uint32]bool // ranks that are lost and whose nodes may live: of all jobs, see RankLost
}

// ranks are the ranks that run at each peer, at most maxPrograms of each.
type ranks map[transport.NodeID]map[rankOf]bool

// rankOf is a rank of a job.
type rankOf struct {
	job  string
	rank uint32
}

// rosterMark is the first byte of a frame that says where a rank runs. agreement's messages have
// none like it: their kinds are small.
const rosterMark = agreement.Mark | 0x70

// What becomes of the rank of a roster frame.
const (
	rankAttached = iota + 1
	rankLeft
	rankLost // its node is lost; said by those that go on
)

// rosterHeader is the length of a roster frame without the name of the job: mark, what happened,
// rank, node.
const rosterHeader = 1 + 1 + 4 + 2

func newRoster(m *members) roster { return roster{members: m, at: ranks{}, dead: map[uint32]bool{}} }

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

// frame deals with what a peer says of a rank.
func (r *roster) frame(from transport.NodeID, frame []byte) error {
	what, at, of, err := decodeRoster(frame)
	switch {
	case err != nil:
		return err
	case what != rankLost:
		return r.at.note(from, what, at, of)
	case int(at) >= r.members.cfg.Nodes || !r.members.leftOut(at):
		// Whoever says so has told this node before in which view it is.
		return fmt.Errorf("a rank that is lost with node %d, which is not", at)
	}
	r.rankLost(of, at)
	return nil
}

// note learns what has happened to a rank at a peer.
func (r ranks) note(from transport.NodeID, what byte, at transport.NodeID, of rankOf) error {
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

func (r *roster) about(p *program, what byte) []byte {
	return appendRoster(nil, what, transport.NodeID(r.members.cfg.Self), rankOf{p.job, p.rank})
}

// announce tells the others what has become of a program's rank, where it matters to them.
func (r *roster) announce(p *program, what byte) {
	if r.members.survives() {
		r.members.tellOthers(r.about(p, what))
	}
}

// tellAll tells a new member which ranks run here.
func (r *roster) tellAll(id agreement.NodeID) {
	for _, p := range r.members.programs.byID {
		if p.ranked {
			r.members.out.tell(id, r.about(p, rankAttached))
		}
	}
}

// announceLost tells the programs of this node, and the other members, which ranks are lost with a
// peer.
func (r *roster) announceLost(peer transport.NodeID) {
	for of := range r.at[peer] {
		r.rankLost(of, peer)
		r.members.tellOthers(appendRoster(nil, rankLost, peer, of))
	}
	delete(r.at, peer)
}

// rankLost tells the programs of a job that one of its ranks is lost with a peer.
func (r *roster) rankLost(of rankOf, peer transport.NodeID) {
	for _, p := range r.members.programs.byID {
		if p.ranked && p.job == of.job && p.rank != of.rank {
			p.rankLost(of.rank, protocol.NodeID(peer))
		}
	}
}

// died tells all programs of this node, those that attach later included, that ranks are lost whose
// nodes may live. It means something only where nodes survive the loss of others.
func (r *roster) died(ranks []uint32) {
	m := r.members
	if !m.survives() || len(ranks) == 0 {
		return
	}
	for _, rank := range ranks {
		r.dead[rank] = true
		for _, p := range m.programs.byID {
			if p.ranked {
				p.rankDied(rank)
			}
		}
	}
	if !m.recovering { // which ends with the same
		m.calls.endBarriers()
		m.drive.end()
	}
}

// introduce tells a program that attaches which ranks have died.
func (r *roster) introduce(p *program) {
	for rank := range r.dead {
		p.rankDied(rank)
	}
}
