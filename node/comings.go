package node

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"dsmd/internal/agreement"
	"dsmd/internal/attach"
	"dsmd/protocol"
	"dsmd/transport"
	"dsmd/transport/tcp"

	"go.uber.org/zap"
)

// Nodes that leave and nodes that come, among nodes that survive the loss of others.
//
// A node is told to leave by OpDrain. The nodes agree on a view in which it is leaving: it is home of nothing any more, and when all homes have fetched
// what it alone had, all members have copied the backups that others keep from then on, and have told it so, it asks a home to be left out. Then it ends, and
// nothing with it.
//
// A node comes (Config.Rejoin) as a process that knows nothing, in the place of one that was left out. It asks whom it reaches to be let in. Members tell each other whom they have heard, and
// the nodes agree on a view with it when all members have: one that does not reach it yet would hold up the recovery, and one that is still connected to the process which was there before
// would take the end of that for the loss of the new one. Once they have agreed, it is told what the others know like any member of a new view: see package protocol, epoch.go.

// First bytes of frames about that. agreement's messages have none like them.
const (
	joinMark   = agreement.Mark | 0x71 // let me in
	handedMark = agreement.Mark | 0x72 // what I have to take from those that leave, or to copy for their sake, is where it belongs, in the epoch that follows
	emptyMark  = agreement.Mark | 0x73 // I have nothing alone, in the epoch that follows: leave me out
	heardMark  = agreement.Mark | 0x74 // in the epoch that follows I was asked to let in the node that follows
)

// askEvery is how often a node that wants to come in asks for it.
const askEvery = time.Second

// errLeft is why a node is left out that wanted to leave.
var errLeft = errors.New("it has left, with nothing that others need")

// comings is what a node knows of who comes and goes.
type comings struct {
	up      map[transport.NodeID]bool          // connected peers
	down    map[transport.NodeID]bool          // peers that are lost, and whose successor may not come yet
	missing map[transport.NodeID]time.Duration // members without a connection, and until when each is waited for
	asked   time.Duration                      // when this node has asked last to be let in
	// hearers are, by the node that asks to be let in, the members that were asked, as far as is known in this epoch.
	hearers map[agreement.NodeID]map[agreement.NodeID]bool

	leaving []agreement.NodeID        // members of the view that are
	drain   *drain                    // this node is told to leave
	handed  map[agreement.NodeID]bool // members that have said, in this epoch, that all is handed over
}

// drain is a call that waits until this node has left.
type drain struct {
	program protocol.ClientID
	ticket  uint64
}

func newComings() comings {
	return comings{up: map[transport.NodeID]bool{}, down: map[transport.NodeID]bool{}, missing: map[transport.NodeID]time.Duration{},
		hearers: map[agreement.NodeID]map[agreement.NodeID]bool{}, handed: map[agreement.NodeID]bool{}}
}

// outside says whether this node was not let in yet.
func (n *Node) outside() bool { return n.survives() && n.survival.agreement.Outside() }

// startDrain has this node leave.
func (n *Node) startDrain(p *program, c *attach.Call) {
	s := &n.survival
	refusal := ""
	switch {
	case !n.survives():
		refusal = "the nodes were started without --survive: each of them holds memory without which the others cannot go on"
	case s.drain != nil:
		refusal = "it is leaving already"
	case s.blocked:
		refusal = n.noQuorum().Error()
	case n.attached() > 0:
		refusal = fmt.Sprintf("programs are attached (%s); end them, or wait for their end, and try again", n.whoIsAttached())
	case len(s.members)-len(s.leaving) == 1:
		refusal = "it is the last node that keeps memory, and there is nobody to hand it over to; end it by SIGTERM"
	}
	if refusal != "" {
		n.answer(p, &attach.Reply{Ticket: c.Ticket, Status: attach.StatusUnknown, Payload: []byte(clip(refusal))})
		return
	}
	s.drain = &drain{p.id, c.Ticket}
	n.log.Info("this node leaves; no program can attach any more")
	n.agreed(s.agreement.Retire(agreement.NodeID(n.cfg.Self), nil))
}

func (n *Node) whoIsAttached() string {
	var pids []string
	for _, p := range n.programs {
		if p.ranked {
			pids = append(pids, fmt.Sprintf("process %d", p.pid))
		}
	}
	slices.Sort(pids)
	return strings.Join(pids, ", ")
}

// isLeaving says whether this node takes no programs any more.
func (n *Node) isLeaving() bool { return n.survival.drain != nil }

// handedOver notes that this node has copied what it had to, and has what leaving members alone had of what has its home here, and tells those so.
func (n *Node) handedOver(epoch uint32) {
	if epoch == n.survival.agreement.Epoch() {
		n.count.handedOver.Store(int64(epoch))
		n.log.Info("all is handed over", zap.Uint32("epoch", epoch))
	}
	for _, id := range n.survival.leaving {
		if int(id) == n.cfg.Self {
			n.survival.handed[id] = true
			n.leaveIfEmpty()
			continue
		}
		n.tell(id, binary.LittleEndian.AppendUint32([]byte{handedMark}, epoch))
	}
}

// comingFrame deals with a frame about who comes and goes.
func (n *Node) comingFrame(from transport.NodeID, frame []byte) error {
	s, id := &n.survival, agreement.NodeID(from)
	if frame[0] == joinMark {
		if len(frame) != 1 {
			return fmt.Errorf("%d bytes that ask to be let in", len(frame))
		}
		n.asksIn(id)
		return nil
	}
	if frame[0] == heardMark {
		return n.heardFrame(id, frame)
	}
	if len(frame) != 5 {
		return fmt.Errorf("%d bytes about what a node that leaves has", len(frame))
	}
	if epoch := binary.LittleEndian.Uint32(frame[1:]); epoch != s.agreement.Epoch() {
		return nil // it is said again in the next one
	}
	switch {
	case frame[0] == emptyMark && slices.Contains(s.leaving, id):
		n.agreed(s.agreement.Suspect(id, nil))
	case frame[0] == handedMark && s.drain != nil && slices.Contains(s.members, id):
		s.handed[id] = true
		n.leaveIfEmpty()
	default:
		return fmt.Errorf("%#x about what a node that leaves has, and it does not leave", frame)
	}
	return nil
}

// asksIn deals with a node that asks to be let in. It asks again and again, in every epoch until one has it as a member.
func (n *Node) asksIn(id agreement.NodeID) {
	s := &n.survival
	if slices.Contains(s.members, id) {
		n.agreed(s.agreement.Admit(id, nil)) // which tells it so
		return
	}
	n.tellOthers(binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint32([]byte{heardMark}, s.agreement.Epoch()), uint16(id)))
	n.heard(agreement.NodeID(n.cfg.Self), id)
}

// heardFrame deals with what a peer says of a node that asks to be let in.
func (n *Node) heardFrame(from agreement.NodeID, frame []byte) error {
	s := &n.survival
	if len(frame) != 7 {
		return fmt.Errorf("%d bytes about a node that asks to be let in", len(frame))
	}
	id := agreement.NodeID(binary.LittleEndian.Uint16(frame[5:]))
	if int(id) >= n.cfg.Nodes {
		return fmt.Errorf("node %d asks to be let in; there are %d", id, n.cfg.Nodes)
	}
	if binary.LittleEndian.Uint32(frame[1:]) == s.agreement.Epoch() && slices.Contains(s.members, from) && !slices.Contains(s.members, id) {
		n.heard(from, id)
	}
	return nil
}

// heard notes that a member was asked to let a node in, which comes in when all were.
func (n *Node) heard(member, id agreement.NodeID) {
	s := &n.survival
	if s.hearers[id] == nil {
		s.hearers[id] = map[agreement.NodeID]bool{}
	}
	s.hearers[id][member] = true
	if !slices.ContainsFunc(s.members, func(m agreement.NodeID) bool { return !s.hearers[id][m] }) {
		n.agreed(s.agreement.Admit(id, nil))
	}
}

// leaveIfEmpty asks to be left out once nothing is on this node alone.
func (n *Node) leaveIfEmpty() {
	s := &n.survival
	if slices.ContainsFunc(s.members, func(id agreement.NodeID) bool { return !s.handed[id] }) {
		return
	}
	home := slices.IndexFunc(s.members, func(id agreement.NodeID) bool { return !slices.Contains(s.leaving, id) })
	n.tell(s.members[home], binary.LittleEndian.AppendUint32([]byte{emptyMark}, s.agreement.Epoch()))
}

// left ends a node that the others have left out because it wanted to leave.
func (n *Node) left() {
	d := n.survival.drain
	n.log.Info("this node has left; all that it had is on the others")
	if p := n.programs[d.program]; p != nil {
		n.answer(p, &attach.Reply{Ticket: d.ticket})
	}
	n.stopped = true
}

// PeerUp implements transport.Handler.
func (n *Node) PeerUp(peer transport.NodeID) {
	n.log.Info("peer is up", zap.Uint16("peer", uint16(peer)))
	n.survival.up[peer] = true
	delete(n.survival.missing, peer)
	if n.outside() {
		n.askIn(agreement.NodeID(peer))
	}
}

// askIn asks a peer to let this node in.
func (n *Node) askIn(peer agreement.NodeID) {
	n.survival.asked = n.now
	n.tell(peer, []byte{joinMark})
}

// peerGone notes that a peer is lost, and lets a successor come as soon as it is left out.
func (n *Node) peerGone(peer transport.NodeID) {
	s := &n.survival
	delete(s.up, peer)
	delete(s.missing, peer)
	s.down[peer] = true
	delete(s.hearers, agreement.NodeID(peer))
	s.agreement.Dismiss(agreement.NodeID(peer))
	if n.leftOut(peer) {
		n.readmit(peer)
	}
}

// readmit lets a successor of a peer come that is lost and left out.
func (n *Node) readmit(peer transport.NodeID) {
	s := &n.survival
	delete(s.down, peer)
	s.parting = slices.DeleteFunc(s.parting, func(p parting) bool { return p.peer == peer }) // not its successor
	n.failures.forget(peer)
	n.net.Readmit(peer)
}

// welcome deals with members that were none in the view before.
func (n *Node) welcome(came []agreement.NodeID) {
	s := &n.survival
	for _, id := range came {
		peer := transport.NodeID(id)
		if int(id) == n.cfg.Self {
			continue
		}
		delete(s.why, peer)
		if !s.up[peer] {
			s.missing[peer] = n.now + n.patienceWithPeers()
		}
		for _, p := range n.programs {
			if p.ranked {
				n.tell(id, appendRoster(nil, rankAttached, transport.NodeID(n.cfg.Self), rankOf{p.job, p.rank}))
			}
		}
	}
}

// patienceWithPeers is how long a member is waited for that has no connection to this node yet.
func (n *Node) patienceWithPeers() time.Duration {
	return cmp.Or(n.cfg.GiveUp, tcp.DefaultGiveUp)
}

// tickComings asks again to be let in, and gives up members that do not come.
func (n *Node) tickComings() {
	s := &n.survival
	if n.outside() && n.now-s.asked >= askEvery {
		for peer := range s.up {
			n.askIn(agreement.NodeID(peer))
		}
		s.asked = n.now
	}
	for peer, until := range s.missing {
		if n.now >= until {
			n.net.Disconnect(peer, fmt.Errorf("it was let in and has not connected to this node for %v", n.patienceWithPeers()))
			delete(s.missing, peer)
		}
	}
}

// comingsIn is for how long the reactor may sleep for the sake of them; less than 0: for ever.
func (n *Node) comingsIn(now time.Duration) time.Duration {
	s := &n.survival
	in := time.Duration(-1)
	if n.outside() {
		in = max(0, s.asked+askEvery-now)
	}
	for _, until := range s.missing {
		in = sooner(in, max(0, until-now))
	}
	return in
}

// errLeaving is why programs cannot attach to a node that leaves.
var errLeaving = errors.New("node: this node was told to leave the cluster (dsmd drain); attach at another, or start its daemon anew")

// closed says why no program can attach any more; nil if it can.
func (n *Node) closed() error {
	if n.isLeaving() {
		return errLeaving
	}
	return n.gone
}
