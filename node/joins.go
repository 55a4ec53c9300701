package node

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"dsmd/internal/agreement"
	"dsmd/transport"
	"dsmd/transport/tcp"

	"go.uber.org/zap"
)

// First bytes of frames about who joins and who leaves. agreement's messages have none like them.
const (
	joinMark = agreement.Mark | 0x71 // let me in
	// handedMark: what I have to take from those that leave, or to copy for their sake, is where it
	// belongs, in the epoch that follows.
	handedMark = agreement.Mark | 0x72
	// emptyMark: I have nothing alone, in the epoch that follows: leave me out.
	emptyMark = agreement.Mark | 0x73
	// heardMark: in the epoch that follows I was asked to let in the node that follows.
	heardMark = agreement.Mark | 0x74
)

// askEvery is how often a node that wants to come in asks for it.
const askEvery = time.Second

// joins is who is connected, and who comes.
//
// A node joins (Config.Rejoin) as a process that knows nothing, in the place of one that was left
// out. It asks whom it reaches to be let in. Members tell each other whom they have heard, and the
// nodes agree on a view with it when all members have. One that does not reach it yet would hold up
// the recovery, and one that is still connected to the process which was there before would take
// the end of that for the loss of the new one. Once they have agreed, it is told what the others
// know like any member of a new view: see package protocol, epoch.go.
type joins struct {
	members *members

	up map[transport.NodeID]bool // connected peers
	// down are peers that are lost, and whose successor may not come yet.
	down map[transport.NodeID]bool
	// missing are members without a connection, and until when each is waited for.
	missing map[transport.NodeID]time.Duration
	asked   time.Duration // when this node has asked last to be let in
	// hearers are, by the node that asks to be let in, the members that were asked, as far as is
	// known in this epoch.
	hearers map[agreement.NodeID]map[agreement.NodeID]bool
}

func newJoins(m *members) joins {
	return joins{members: m, up: map[transport.NodeID]bool{}, down: map[transport.NodeID]bool{}, missing: map[transport.NodeID]time.Duration{},
		hearers: map[agreement.NodeID]map[agreement.NodeID]bool{}}
}

// connected notes that a peer is up.
func (j *joins) connected(peer transport.NodeID) {
	j.members.log.Info("peer is up", zap.Uint16("peer", uint16(peer)))
	j.up[peer] = true
	delete(j.missing, peer)
	if j.members.outside() {
		j.askIn(agreement.NodeID(peer))
	}
}

// lost notes that a peer is lost, and lets a successor come as soon as it is left out.
func (j *joins) lost(peer transport.NodeID) {
	delete(j.up, peer)
	delete(j.missing, peer)
	j.down[peer] = true
	delete(j.hearers, agreement.NodeID(peer))
	j.members.agreement.Dismiss(agreement.NodeID(peer))
	if j.members.leftOut(peer) {
		j.members.readmit(peer)
	}
}

// newView forgets what counts in one epoch only.
func (j *joins) newView() { clear(j.hearers) }

// welcome waits for a member that was none in the view before, if it has not connected yet.
func (j *joins) welcome(id agreement.NodeID) {
	if peer := transport.NodeID(id); !j.up[peer] {
		j.missing[peer] = j.members.drive.clock.now + j.patience()
	}
}

// patience is how long a member is waited for that has no connection to this node yet.
func (j *joins) patience() time.Duration { return cmp.Or(j.members.cfg.GiveUp, tcp.DefaultGiveUp) }

// askIn asks a peer to let this node in.
func (j *joins) askIn(peer agreement.NodeID) {
	j.asked = j.members.drive.clock.now
	j.members.out.tell(peer, []byte{joinMark})
}

// tick asks again to be let in, and gives up members that do not come.
func (j *joins) tick() {
	now := j.members.drive.clock.now
	if j.members.outside() && now-j.asked >= askEvery {
		for peer := range j.up {
			j.askIn(agreement.NodeID(peer))
		}
		j.asked = now
	}
	for peer, until := range j.missing {
		if now >= until {
			j.members.out.net.Disconnect(peer, fmt.Errorf("it was let in and has not connected to this node for %v", j.patience()))
			delete(j.missing, peer)
		}
	}
}

// tickIn is for how long the reactor may sleep for the sake of tick; less than 0: for ever.
func (j *joins) tickIn(now time.Duration) time.Duration {
	in := time.Duration(-1)
	if j.members.outside() {
		in = max(0, j.asked+askEvery-now)
	}
	for _, until := range j.missing {
		in = sooner(in, max(0, until-now))
	}
	return in
}

// frame deals with a frame about a node that joins.
func (j *joins) frame(from agreement.NodeID, frame []byte) error {
	if frame[0] == heardMark {
		return j.heardFrame(from, frame)
	}
	if len(frame) != 1 {
		return fmt.Errorf("%d bytes that ask to be let in", len(frame))
	}
	j.asks(from)
	return nil
}

// asks deals with a node that asks to be let in. It asks again and again, in every epoch until one
// has it as a member.
func (j *joins) asks(id agreement.NodeID) {
	m := j.members
	if m.has(id) {
		m.agreed(m.agreement.Admit(id, nil)) // which tells it so
		return
	}
	m.tellOthers(binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint32([]byte{heardMark}, m.agreement.Epoch()), uint16(id)))
	j.heard(agreement.NodeID(m.cfg.Self), id)
}

// heardFrame deals with what a peer says of a node that asks to be let in.
func (j *joins) heardFrame(from agreement.NodeID, frame []byte) error {
	m := j.members
	if len(frame) != 7 {
		return fmt.Errorf("%d bytes about a node that asks to be let in", len(frame))
	}
	id := agreement.NodeID(binary.LittleEndian.Uint16(frame[5:]))
	if int(id) >= m.cfg.Nodes {
		return fmt.Errorf("node %d asks to be let in; there are %d", id, m.cfg.Nodes)
	}
	if binary.LittleEndian.Uint32(frame[1:]) == m.agreement.Epoch() && m.has(from) && !m.has(id) {
		j.heard(from, id)
	}
	return nil
}

// heard notes that a member was asked to let a node in, which comes in when all were.
func (j *joins) heard(member, id agreement.NodeID) {
	if j.hearers[id] == nil {
		j.hearers[id] = map[agreement.NodeID]bool{}
	}
	j.hearers[id][member] = true
	m := j.members
	if !slices.ContainsFunc(m.list, func(member agreement.NodeID) bool { return !j.hearers[id][member] }) {
		m.agreed(m.agreement.Admit(id, nil))
	}
}
