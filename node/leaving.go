package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"dsmd/internal/agreement"
	"dsmd/internal/attach"
	"dsmd/protocol"

	"go.uber.org/zap"
)

// errLeaving is why programs cannot attach to a node that leaves.
var errLeaving = errors.New("node: this node was told to leave the cluster (dsmd drain); attach at another, or start its daemon anew")

// leaving is who leaves.
//
// A node is told to leave by OpDrain. The nodes agree on a view in which it is leaving: it is home
// of nothing any more. When all homes have fetched what it alone had, all members have copied the
// backups that others keep from then on, and have told it so, it tells them that it has nothing
// alone. When all know, so that none of them takes it for lost, it has the first home leave it out.
// Then it ends, and nothing with it.
type leaving struct {
	members *members

	nodes []agreement.NodeID // members of the view that are
	drain *drain             // this node is told to
	// handed are members that have said, in this epoch, that all is handed over.
	handed map[agreement.NodeID]bool
	// known are members that know, in this epoch, that this node has nothing alone.
	known map[agreement.NodeID]bool
	// gone are members that leave, and have said, in this epoch, that all has been handed over.
	gone map[agreement.NodeID]bool
	// empty: all have, in some epoch of this node's leaving, and no member was lost since.
	empty bool
}

// drain is a call that waits until this node has left.
type drain struct {
	program protocol.ClientID
	ticket  uint64
}

func newLeaving(m *members) leaving {
	return leaving{members: m, handed: map[agreement.NodeID]bool{}, known: map[agreement.NodeID]bool{}, gone: map[agreement.NodeID]bool{}}
}

// under is whether this node is leaving. Then it takes no programs any more.
func (l *leaving) under() bool { return l.drain != nil }

// newView notes who leaves in a new view. What a lost node had taken may be here alone again.
func (l *leaving) newView(nodes []agreement.NodeID, someLost bool) {
	l.nodes = nodes
	clear(l.handed)
	clear(l.known)
	clear(l.gone)
	l.empty = l.empty && !someLost
}

// start has this node leave.
func (l *leaving) start(p *program, c *attach.Call) {
	m := l.members
	refusal := ""
	switch {
	case !m.survives():
		refusal = "the nodes were started without --survive: each of them holds memory without which the others cannot go on"
	case l.under():
		refusal = "it is leaving already"
	case m.quorum.lost():
		refusal = m.noQuorum().Error()
	case len(m.drive.origins.list) > 0:
		refusal = "programs of other nodes have mapped files or restored memory which this node has pages of; wait for their end, and try again"
	case m.end.attached > 0:
		refusal = fmt.Sprintf("programs are attached (%s); end them, or wait for their end, and try again", m.programs.whoIsAttached())
	}
	if refusal != "" {
		refuseDrain(p, c.Ticket, refusal)
		return
	}
	l.drain = &drain{p.id, c.Ticket}
	m.log.Info("this node leaves; no program can attach any more")
	m.agreed(m.agreement.Retire(agreement.NodeID(m.cfg.Self), nil))
}

// refuseDrain tells whoever has told this node to leave why it does not.
func refuseDrain(p *program, ticket uint64, why string) {
	p.answer(&attach.Reply{Ticket: ticket, Status: attach.StatusUnknown, Payload: []byte(clip(why))})
}

// stay has this node, which was to leave, go on: all others leave, or have left. Programs can
// attach again.
func (l *leaving) stay() {
	d := l.drain
	l.drain = nil
	const why = "it is the last node that keeps memory, and there is nobody to hand it over to; it goes on. End it by SIGTERM, and what it has is gone"
	l.members.log.Warn("this node was told to leave, and does not: " + why)
	if p := l.members.programs.byID[d.program]; p != nil {
		refuseDrain(p, d.ticket, why)
	}
}

// handedOver notes that this node has copied what it had to, and has what leaving members alone had
// of what has its home here, and tells those so.
func (l *leaving) handedOver(epoch uint32) {
	m := l.members
	if epoch == m.agreement.Epoch() {
		m.meter.count.handedOver.Store(int64(epoch))
		m.log.Info("all is handed over", zap.Uint32("epoch", epoch))
	}
	for _, id := range l.nodes {
		if int(id) == m.cfg.Self {
			l.handed[id] = true
			l.leaveIfEmpty()
			continue
		}
		l.tell(id, handedMark, epoch)
	}
}

// frame deals with a frame about a node that leaves.
func (l *leaving) frame(from agreement.NodeID, frame []byte) error {
	m := l.members
	if len(frame) != 5 {
		return fmt.Errorf("%d bytes about what a node that leaves has", len(frame))
	}
	if epoch := binary.LittleEndian.Uint32(frame[1:]); epoch != m.agreement.Epoch() {
		return nil // it is said again in the next one
	}
	switch {
	case frame[0] == emptyMark && slices.Contains(l.nodes, from):
		l.gone[from] = true
		if int(l.firstHome()) != m.cfg.Self {
			l.tell(from, knownMark, m.agreement.Epoch())
			break
		}
		m.agreed(m.agreement.Suspect(from, nil))
	case frame[0] == handedMark && l.under() && m.has(from):
		l.handed[from] = true
		l.leaveIfEmpty()
	case frame[0] == knownMark && l.under() && m.has(from):
		l.known[from] = true
		l.leaveIfKnown()
	default:
		return fmt.Errorf("%#x about what a node that leaves has, and it does not leave", frame)
	}
	return nil
}

// tell tells a member something about what a node that leaves has, in an epoch.
func (l *leaving) tell(id agreement.NodeID, mark byte, epoch uint32) {
	l.members.out.tell(id, binary.LittleEndian.AppendUint32([]byte{mark}, epoch))
}

// leaveIfEmpty tells the others, but not the first home yet, once nothing is on this node alone.
func (l *leaving) leaveIfEmpty() {
	if !l.all(l.handed) {
		return
	}
	l.empty = true
	l.known[agreement.NodeID(l.members.cfg.Self)], l.known[l.firstHome()] = true, true
	for _, id := range l.members.list {
		if !l.known[id] {
			l.tell(id, emptyMark, l.members.agreement.Epoch())
		}
	}
	l.leaveIfKnown()
}

// leaveIfKnown asks to be left out once all others know that nothing is on this node alone.
func (l *leaving) leaveIfKnown() {
	if l.all(l.known) {
		l.tell(l.firstHome(), emptyMark, l.members.agreement.Epoch())
	}
}

// all is whether something is so of all members.
func (l *leaving) all(is map[agreement.NodeID]bool) bool {
	return !slices.ContainsFunc(l.members.list, func(id agreement.NodeID) bool { return !is[id] })
}

// firstHome is the member that has those left out which have handed over all.
func (l *leaving) firstHome() agreement.NodeID {
	return l.members.list[slices.IndexFunc(l.members.list, func(id agreement.NodeID) bool { return !slices.Contains(l.nodes, id) })]
}

// lost are those of members that are no longer which have not left in order, as far as this node
// has heard.
func (l *leaving) lost(gone []agreement.NodeID) []agreement.NodeID {
	return slices.DeleteFunc(slices.Clone(gone), func(id agreement.NodeID) bool { return l.gone[id] })
}

// left ends a node that the others have left out because it wanted to leave.
func (l *leaving) left() {
	m, d := l.members, l.drain
	m.log.Info("this node has left; all that it had is on the others")
	if p := m.programs.byID[d.program]; p != nil {
		p.files.abandon()
		p.answer(&attach.Reply{Ticket: d.ticket})
	}
	m.end.stopped = true
}
