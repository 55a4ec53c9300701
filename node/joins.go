package node

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"dsmd/internal/agreement"
	"dsmd/transport"
	"dsmd/transport/tcp"

	"go.uber.org/zap"
)

// First bytes of frames about who joins and who leaves. agreement's messages have none like them.
const (
	joinMark = agreement.Mark | 0x71 // let me in, the process that follows
	// handedMark: what I have to take from those that leave, or to copy for their sake, is where it
	// belongs, in the epoch that follows.
	handedMark = agreement.Mark | 0x72
	// emptyMark: I have nothing alone, in the epoch that follows. The first home is told when all
	// others know it, and has me left out.
	emptyMark = agreement.Mark | 0x73
	// heardMark: in the epoch that follows I was asked to let in the node and process that follow.
	heardMark = agreement.Mark | 0x74
	// knownMark: I know that you have nothing alone, in the epoch that follows.
	knownMark = agreement.Mark | 0x75
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
	process uint64        // what tells this process from others that come in its place
	// processes are which processes those members are, or were, that have come.
	processes map[agreement.NodeID]uint64
	// askers are the connected peers that have asked to be let in, and as which process.
	askers map[transport.NodeID]uint64
	// hearers are, by the node that asks to be let in, the members that were asked, and by which
	// process last, as far as is known in this epoch.
	hearers map[agreement.NodeID]map[agreement.NodeID]uint64
}

// applicant is a process that asks to be let in as a node.
type applicant struct {
	id      agreement.NodeID
	process uint64
}

func newJoins(m *members) joins {
	return joins{members: m, up: map[transport.NodeID]bool{}, down: map[transport.NodeID]bool{}, missing: map[transport.NodeID]time.Duration{},
		process: 1 + rand.Uint64N(1<<64-1), processes: map[agreement.NodeID]uint64{}, askers: map[transport.NodeID]uint64{}, hearers: map[agreement.NodeID]map[agreement.NodeID]uint64{}}
}

// connected notes that a peer is up.
func (j *joins) connected(peer transport.NodeID) {
	j.members.log.Info("peer is up", zap.Uint16("peer", uint16(peer)))
	j.up[peer] = true
	delete(j.missing, peer)
	if j.seeks() {
		j.askIn(agreement.NodeID(peer))
	}
}

// seeks is whether this node, by this reactor, asks to be let in.
func (j *joins) seeks() bool { return j.members.agreement != nil && j.members.outside() }

// lost notes that a peer is lost, and lets a successor come as soon as it is left out.
func (j *joins) lost(peer transport.NodeID) {
	delete(j.up, peer)
	delete(j.askers, peer)
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
	j.processes[id] = j.members.agreement.ProcessOf(id)
	j.await(transport.NodeID(id))
}

// await waits for a member for as long as patience says, if it has not connected yet.
func (j *joins) await(peer transport.NodeID) {
	if !j.up[peer] {
		j.missing[peer] = j.members.drive.clock.now + j.patience()
	}
}

// part ends the connection to a process that is left out. Another one in its place may be connected
// already, if this node was late to hear that the one was let in and then lost.
func (j *joins) part(e expelling) {
	if asker := j.askers[e.peer]; asker == 0 || asker == e.process {
		j.members.part(e.peer)
		j.members.tellPart(e.peer)
	}
}

// patience is how long a member is waited for that has no connection to this node yet.
func (j *joins) patience() time.Duration { return cmp.Or(j.members.cfg.GiveUp, tcp.DefaultGiveUp) }

// askIn asks a peer to let this node in.
func (j *joins) askIn(peer agreement.NodeID) {
	j.asked = j.members.drive.clock.now
	j.members.out.tell(peer, binary.LittleEndian.AppendUint64([]byte{joinMark}, j.process))
}

// tick asks again to be let in, and gives up members that do not come.
func (j *joins) tick() {
	now := j.members.drive.clock.now
	if j.seeks() && now-j.asked >= askEvery {
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
	if j.seeks() {
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
	if len(frame) != 9 {
		return fmt.Errorf("%d bytes that ask to be let in", len(frame))
	}
	return j.asks(applicant{from, binary.LittleEndian.Uint64(frame[1:])})
}

// asks deals with a node that asks to be let in. It asks again and again, in every epoch until one
// has it as a member.
func (j *joins) asks(a applicant) error {
	m := j.members
	if a.process == 0 {
		return errors.New("a process called 0 asks to be let in")
	}
	j.askers[transport.NodeID(a.id)] = a.process
	if m.has(a.id) {
		m.agreed(m.agreement.Admit(a.id, a.process, nil)) // which tells it so
		return nil
	}
	frame := binary.LittleEndian.AppendUint32([]byte{heardMark}, m.agreement.Epoch())
	m.tellOthers(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint16(frame, uint16(a.id)), a.process))
	j.heard(agreement.NodeID(m.cfg.Self), a)
	return nil
}

// heardFrame deals with what a peer says of a node that asks to be let in.
func (j *joins) heardFrame(from agreement.NodeID, frame []byte) error {
	m := j.members
	if len(frame) != 15 {
		return fmt.Errorf("%d bytes about a node that asks to be let in", len(frame))
	}
	a := applicant{agreement.NodeID(binary.LittleEndian.Uint16(frame[5:])), binary.LittleEndian.Uint64(frame[7:])}
	if int(a.id) >= m.cfg.Nodes || a.process == 0 {
		return fmt.Errorf("node %d asks to be let in, as process %d; there are %d nodes", a.id, a.process, m.cfg.Nodes)
	}
	if binary.LittleEndian.Uint32(frame[1:]) == m.agreement.Epoch() && m.has(from) && !m.has(a.id) {
		j.heard(from, a)
	}
	return nil
}

// heard notes that a member was asked to let a process in, which comes in when all were.
func (j *joins) heard(member agreement.NodeID, a applicant) {
	if j.hearers[a.id] == nil {
		j.hearers[a.id] = map[agreement.NodeID]uint64{}
	}
	by := j.hearers[a.id]
	by[member] = a.process
	m := j.members
	if !slices.ContainsFunc(m.list, func(member agreement.NodeID) bool { return by[member] != a.process }) {
		m.agreed(m.agreement.Admit(a.id, a.process, nil))
	}
}
