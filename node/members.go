package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"dsmd/internal/agreement"
	"dsmd/internal/netio"
	"dsmd/protocol"
	"dsmd/transport"

	"go.uber.org/zap"
)

var (
	// ErrNoQuorum is wrapped by Run's error when so many nodes are lost that those that are left
	// might not be the only ones that go on.
	ErrNoQuorum = errors.New("node: too few nodes are left to go on")
	// ErrExcluded is wrapped by Run's error when the others go on without this node, because one of
	// them has lost it, or the process that was this node before.
	ErrExcluded = errors.New("node: the other nodes go on without this one")
)

// A cluster that the protocol can have is one that can agree.
const _ = uint(agreement.MaxNodes - protocol.MaxNodes)

// tickEvery is how often the agreement is told that time has passed, while something depends on it:
// several round trips, also where the network or the cores are busy.
const tickEvery = 25 * time.Millisecond

// members are the nodes that go on together. Where nodes survive the loss of others
// (Config.Survive), those that are left agree on who they are (internal/agreement), expel everybody
// else, and their engines recover. All of it travels over the same connections as the protocol, in
// frames whose first byte has agreement.Mark, so that everybody has heard of a view before it hears
// anything said in it.
type members struct {
	cfg      *Config
	log      *zap.Logger
	drive    *driver
	out      *outbox
	end      *ending
	meter    *meter
	calls    *calls
	door     *door
	news     *news
	quorum   *quorum
	programs *programs

	// agreement is of the reactor that leads, where the loss of a peer does not end the node. The
	// others are told what it decides, see followers.go.
	agreement *agreement.State
	list      []agreement.NodeID         // empty: this node was not let in yet
	why       map[transport.NodeID]error // of each peer that was lost
	// tickAt is when the agreement is told that time has passed; 0: it need not be.
	tickAt    time.Duration
	expelling []expelling // nodes that are left out, the oldest first
	followers followers

	recovering bool
	began      time.Duration // when the recovery did
	served     bool          // this node has gone on with a view

	roster  roster
	joins   joins
	leaving leaving
}

// expelling is a node that was left out and whose connection has not ended yet. That comes a while
// after the view, because such a node may be there all the same, and must be told that the others
// go on without it.
type expelling struct {
	peer    transport.NodeID
	process uint64 // which one was left out: 0 if it was there from the start
	at      time.Duration
}

// expelAfter is how long that while is. Until then nothing that the node says counts but questions
// of who is left.
const expelAfter = time.Second

func newMembers(cfg *Config, of *partition) *members {
	m := &members{cfg: cfg, log: cfg.Log, why: map[transport.NodeID]error{}, followers: newFollowers(of)}
	m.roster, m.joins, m.leaving = newRoster(m), newJoins(m), newLeaving(m)
	for id := 0; id < cfg.Nodes && cfg.Survive && !cfg.Rejoin; id++ {
		m.list = append(m.list, agreement.NodeID(id))
	}
	switch {
	case !cfg.Survive || of.number > 0:
	case cfg.Rejoin:
		m.agreement = agreement.NewOutside(agreement.NodeID(cfg.Self), m.joins.process)
	default:
		m.agreement = agreement.New(agreement.NodeID(cfg.Self), m.list)
	}
	return m
}

// survives is whether this node goes on when a peer is lost.
func (m *members) survives() bool { return m.cfg.Survive }

// outside is whether this node was not let in yet.
func (m *members) outside() bool { return m.survives() && len(m.list) == 0 }

// stayers are the nodes that go on together and do not leave.
func (m *members) stayers() []protocol.NodeID {
	if !m.survives() {
		all := make([]protocol.NodeID, m.cfg.Nodes)
		for n := range all {
			all[n] = protocol.NodeID(n)
		}
		return all
	}
	var stay []protocol.NodeID
	for _, n := range without(m.list, m.leaving.nodes) {
		stay = append(stay, protocol.NodeID(n))
	}
	return stay
}

func (m *members) has(id agreement.NodeID) bool { return slices.Contains(m.list, id) }

// leftOut is whether a peer is one of those without which this node has gone on.
func (m *members) leftOut(peer transport.NodeID) bool {
	return m.survives() && !m.has(agreement.NodeID(peer))
}

// closed is why no program can attach any more; nil if it can.
func (m *members) closed() error {
	if m.leaving.under() {
		return errLeaving
	}
	return m.end.gone
}

// peerDown deals with the loss of a peer: the others are asked to go on without it, if they can.
func (m *members) peerDown(peer transport.NodeID, why error) {
	switch {
	case !m.survives():
		m.end.peerLost(peer, why)
		return
	case m.agreement == nil:
		m.channelDown(peer, why)
		return
	}
	if m.has(agreement.NodeID(peer)) {
		m.why[peer] = why
		m.log.Warn("a node is lost; those that are left agree on how to go on", zap.Uint16("peer", uint16(peer)), zap.Error(why))
	}
	m.agreed(m.agreement.Suspect(agreement.NodeID(peer), nil))
	m.joins.lost(peer)
}

// agreed carries out what the agreement wants done.
func (m *members) agreed(out []agreement.Output) {
	for i := range out {
		switch o := &out[i]; o.Kind {
		case agreement.Send:
			m.out.tell(o.To, o.Message)
		case agreement.View:
			m.enterView(o)
		case agreement.NoQuorum:
			m.block()
		case agreement.Quorum:
			m.unblock()
		case agreement.Stays:
			m.leaving.stay()
		case agreement.Excluded:
			m.excluded(o)
		default:
			panic(fmt.Sprintf("node: an agreement puts out kind %d", o.Kind))
		}
	}
	if m.agreement.Idle() {
		m.tickAt = 0
	} else if m.tickAt == 0 {
		m.tickAt = m.drive.clock.now + tickEvery
	}
}

// excluded ends a node that is in a view no more: because it has left, or because one of the others
// has lost it, which may happen while it leaves.
func (m *members) excluded(o *agreement.Output) {
	if m.leaving.empty {
		m.leaving.left()
		return
	}
	leaving := ""
	if m.leaving.under() {
		leaving = "; it was leaving, and had not handed over yet all that it had, so what was on it alone is lost"
	}
	m.end.breakDown(fmt.Errorf("%w: they are the nodes %s since epoch %d%s; start this node again", ErrExcluded, list(o.Members), o.Epoch, leaving))
}

// tick does what is due: it tells the agreement that time has passed, if it must know, and ends
// connections to nodes that are left out.
func (m *members) tick() bool {
	now := m.drive.clock.now
	for len(m.expelling) > 0 && now >= m.expelling[0].at {
		m.joins.part(m.expelling[0])
		m.expelling = m.expelling[1:]
	}
	m.joins.tick()
	if m.quorum.state == quorumDeciding && now >= m.quorum.until {
		m.quorum.state = quorumLost
		m.goNoFurther()
	}
	if m.tickAt == 0 || now < m.tickAt { // always so where another reactor leads
		return false
	}
	m.tickAt = 0
	m.agreed(m.agreement.Tick(nil))
	m.drive.end()
	return true
}

// tickIn is for how long the reactor may sleep for the sake of tick.
func (m *members) tickIn(now time.Duration) time.Duration {
	in := netio.Forever
	if m.tickAt != 0 {
		in = max(0, m.tickAt-now)
	}
	if len(m.expelling) > 0 {
		in = sooner(in, max(0, m.expelling[0].at-now))
	}
	if m.quorum.state == quorumDeciding {
		in = sooner(in, max(0, m.quorum.until-now))
	}
	return sooner(in, m.joins.tickIn(now))
}

// frame deals with a frame that is not the protocol's.
func (m *members) frame(from transport.NodeID, control []byte, payload transport.Payload) {
	if !m.survives() {
		m.out.expel(from, fmt.Errorf("node: node %d was started to survive the loss of others and this node was not; start all nodes with --survive, or none", from))
		return
	}
	if m.agreement == nil {
		m.out.expel(from, fmt.Errorf("node: node %d says to a reactor what is only for the one that leads", from))
		return
	}
	var out []agreement.Output
	err := errors.New("it came with a page")
	switch {
	case payload != nil:
	case m.leftOut(from) && control[0] == rosterMark, m.outside() && control[0] >= rosterMark:
		return
	case control[0] == rosterMark:
		err = m.roster.frame(from, control)
	case control[0] == joinMark || control[0] == heardMark:
		err = m.joins.frame(agreement.NodeID(from), control)
	case control[0] == handedMark || control[0] == emptyMark || control[0] == knownMark:
		err = m.leaving.frame(agreement.NodeID(from), control)
	default:
		out, err = m.agreement.Message(agreement.NodeID(from), control, nil)
	}
	if err != nil {
		m.out.expel(from, fmt.Errorf("node: from node %d: %w", from, err))
		return
	}
	m.agreed(out)
}

// tellOthers sends a frame that is not the protocol's to all other members.
func (m *members) tellOthers(frame []byte) {
	for _, id := range m.list {
		if int(id) != m.cfg.Self {
			m.out.tell(id, frame)
		}
	}
}

// enterView goes on with those who are left.
func (m *members) enterView(o *agreement.Output) {
	gone, came := without(m.list, o.Members), without(o.Members, m.list)
	lost, ev := m.leaving.lost(gone), epochEvent(o)
	ev.Orderly = len(lost) == 0
	wasOutside := m.outside()
	m.list = o.Members
	m.joins.newView()
	m.leaving.newView(o.Leaving, len(lost) > 0)
	if !m.recovering {
		m.recovering, m.began = true, m.drive.clock.now
	}
	m.meter.count.epoch.Store(int64(o.Epoch))
	m.meter.count.members.Store(int64(len(o.Members)))
	m.meter.count.nodesLost.Add(uint64(len(lost)))
	m.log.Warn("recovery begins", zap.Uint32("epoch", o.Epoch), zap.String("members", list(o.Members)), zap.String("lost", list(lost)),
		zap.String("leaving", list(o.Leaving)), zap.String("came", list(came)))
	for _, id := range gone {
		peer := transport.NodeID(id)
		if m.joins.down[peer] {
			m.readmit(peer)
		} else {
			m.expelling = append(m.expelling, expelling{peer, m.joins.processes[id], m.drive.clock.now + expelAfter})
		}
		m.roster.announceLost(peer)
	}
	for _, id := range came {
		if int(id) != m.cfg.Self {
			delete(m.why, transport.NodeID(id))
			m.joins.welcome(id)
			m.roster.tellAll(id)
		}
	}
	m.drive.put(ev)
	m.tellView(ev, o, came)
	if wasOutside {
		m.letIn()
	}
}

// letIn has a node that was outside begin to serve.
func (m *members) letIn() {
	m.belong()
	m.followers.of.open()
	if err := m.door.open(); err != nil {
		m.end.breakDown(err)
	}
}

// belong has peers know that this node is one of a cluster that runs.
func (m *members) belong() {
	if m.out.net.belong != nil {
		m.out.net.belong()
	}
}

// readmit lets a successor of a peer come that is lost and left out.
func (m *members) readmit(peer transport.NodeID) {
	m.drive.loads.readNow() // some pages may be for the one that is lost
	m.drive.exec.sendPages()
	delete(m.joins.down, peer)
	// The connection to its successor does not end.
	m.expelling = slices.DeleteFunc(m.expelling, func(e expelling) bool { return e.peer == peer })
	m.news.forget(peer)
	m.out.net.Readmit(peer)
}

// without returns the nodes of a list that are not in another.
func without(all, some []agreement.NodeID) []agreement.NodeID {
	return slices.DeleteFunc(slices.Clone(all), func(id agreement.NodeID) bool { return slices.Contains(some, id) })
}

// epochEvent is a view in the engine's words.
func epochEvent(o *agreement.Output) protocol.Event {
	ev := protocol.Event{Kind: protocol.EventEpoch, Epoch: o.Epoch}
	for _, id := range o.Members {
		ev.Members = append(ev.Members, protocol.NodeID(id))
		if !slices.Contains(o.Leaving, id) {
			ev.Homes = append(ev.Homes, protocol.NodeID(id))
		}
	}
	return ev
}

// resumed deals with the end of a recovery, unless another one has begun meanwhile.
func (m *members) resumed(epoch uint32) {
	if epoch != m.agreement.Epoch() {
		return
	}
	m.recovering, m.served = false, true
	m.meter.count.recoveries.Add(1)
	took := m.drive.clock.read() - m.began
	m.meter.latency.recovery.Observe(took.Seconds())
	m.log.Info("recovery is over", zap.Uint32("epoch", epoch), zap.String("members", list(m.list)), zap.Duration("took", took))
	m.calls.endBarriers()
	m.agreed(m.agreement.Resumed(epoch, nil))
}

// block stops granting.
func (m *members) block() {
	m.quorum.state = quorumLost
	m.tellQuorum()
	m.calls.block()
	if m.cfg.Rejoin && !m.served {
		m.quorum.state, m.quorum.until = quorumDeciding, m.drive.clock.now+m.joins.patience()
		m.log.Warn("a node is lost, and this one, which has just come, cannot tell whether enough are left; it waits for what the others decide", zap.Error(m.noQuorum()))
		return
	}
	m.goNoFurther()
}

// goNoFurther ends this node, or has its programs wait, because too few are left. A node that was
// leaving, and of which the others have said that they have all that it had, has left: it was cut
// off before they could say that it is out.
func (m *members) goNoFurther() {
	if m.leaving.empty {
		m.leaving.left()
		return
	}
	m.meter.count.noQuorum.Store(1)
	err := m.noQuorum()
	if m.cfg.NoQuorum == noQuorumEnd {
		m.end.breakDown(err)
		return
	}
	m.log.Error("nothing is granted any more; programs wait, and if the others go on without this node they wait in vain: then end them, and start this daemon anew with --rejoin, once the others can be reached", zap.Error(err))
	m.idleWithoutQuorum()
}

// idleWithoutQuorum has a node that cannot go on and has no programs end, after its farewell.
func (m *members) idleWithoutQuorum() {
	if m.quorum.state == quorumLost && m.end.gone == nil && m.end.attached == 0 {
		m.end.sayFarewell(m.noQuorum())
	}
}

// noQuorum says who is lost, and why.
func (m *members) noQuorum() error {
	var reasons []error
	for _, id := range m.list {
		if why := m.why[transport.NodeID(id)]; why != nil {
			reasons = append(reasons, why)
		}
	}
	return fmt.Errorf("%w: the cluster had the nodes %s in epoch %d: %w", ErrNoQuorum, list(m.list), m.agreement.Epoch(), errors.Join(reasons...))
}

// unblock grants again, because others that can be reached have found a quorum. Parked faults go on
// by themselves.
func (m *members) unblock() {
	m.quorum.state, m.end.gone = quorumHas, nil
	m.tellQuorum()
	m.meter.count.noQuorum.Store(0)
	m.log.Info("there are enough nodes again; programs go on")
	m.calls.unblock()
}

// list writes nodes for people.
func list(nodes []agreement.NodeID) string {
	var text []string
	for _, id := range nodes {
		text = append(text, fmt.Sprint(uint16(id)))
	}
	return strings.Join(text, ",")
}
