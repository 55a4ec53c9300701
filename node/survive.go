package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"dsmd/internal/agreement"
	"dsmd/internal/netio"
	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport"

	"go.uber.org/zap"
)

// Going on without a peer that is lost (Config.Survive). The nodes that are left agree on who they are (internal/agreement), part with everybody else, and their
// engines recover. All of it travels over the same connections as the protocol, in frames whose first byte has
// agreement.Mark, so that everybody has heard of a view before it hears anything said in it.

// NoQuorumPolicies are what Config.NoQuorum can be.
var NoQuorumPolicies = []string{noQuorumBlock, noQuorumEnd}

const (
	noQuorumBlock = "block" // programs wait
	noQuorumEnd   = "end"   // they are ended
)

var (
	// ErrNoQuorum is wrapped by Run's error when so many nodes are lost that those that are left might not be the only ones that go on.
	ErrNoQuorum = errors.New("node: too few nodes are left to go on")
	// ErrExcluded is wrapped by Run's error when the others go on without this node, because one of them has lost it.
	ErrExcluded = errors.New("node: the other nodes go on without this one")
)

// A cluster that the protocol can have is one that can agree.
const _ = uint(agreement.MaxNodes - protocol.MaxNodes)

// tickEvery is how often the agreement is told that time has passed, while something depends on it: several round trips, also where the
// network or the cores are busy.
const tickEvery = 25 * time.Millisecond

// survival is what a node knows of who is left.
type survival struct {
	agreement *agreement.State // nil: the loss of a peer ends the node
	members   []agreement.NodeID
	why       map[transport.NodeID]error // of each peer that was lost
	tick      time.Duration              // when the agreement is told that time has passed; 0: it need not be
	parting   []parting                  // from nodes that are left out, the oldest first

	recovering bool
	began      time.Duration // when the recovery did
	roster     roster
	dead       map[uint32]bool // ranks that are lost and whose nodes may live: of all jobs, see RankLost

	comings

	blocked bool          // there is no quorum: nothing is granted
	served  bool          // this node has gone on with a view
	decide  time.Duration // until when one that has not, and is blocked, waits for what the others decide; 0: it does not
	faults  []pagetable.Event
	held    map[heldFault]bool // what is in faults
	events  []protocol.Event   // calls
}

// parting is the end of the connection to a node that was left out. It comes a while after the view, because such a node may be there all the
// same, and must be told that the others go on without it.
type parting struct {
	peer transport.NodeID
	at   time.Duration
}

// partAfter is how long that while is. Until then nothing that the node says counts but questions of who is left.
const partAfter = time.Second

// heldFault tells faults apart that wait for a quorum. Each thread waits for one page, so their number is bounded by that of the threads.
type heldFault struct {
	page   pagetable.Page
	proc   pagetable.ProcID
	thread uint32
	write  bool
}

func newSurvival(cfg *Config) survival {
	if !cfg.Survive {
		return survival{comings: newComings()}
	}
	var all []agreement.NodeID
	for id := range cfg.Nodes {
		all = append(all, agreement.NodeID(id))
	}
	s := survival{agreement: agreement.New(agreement.NodeID(cfg.Self), all), members: all, why: map[transport.NodeID]error{},
		held: map[heldFault]bool{}, roster: roster{}, dead: map[uint32]bool{}, comings: newComings()}
	if cfg.Rejoin {
		s.agreement, s.members = agreement.NewOutside(agreement.NodeID(cfg.Self)), nil
	}
	return s
}

// survives says whether this node goes on when a peer is lost.
func (n *Node) survives() bool { return n.survival.agreement != nil }

// suspect deals with the loss of a peer: the others are asked to go on without it.
func (n *Node) suspect(peer transport.NodeID, why error) {
	s := &n.survival
	if slices.Contains(s.members, agreement.NodeID(peer)) {
		s.why[peer] = why
		n.log.Warn("a node is lost; those that are left agree on how to go on", zap.Uint16("peer", uint16(peer)), zap.Error(why))
	}
	n.agreed(s.agreement.Suspect(agreement.NodeID(peer), nil))
}

// agreed carries out what the agreement wants done.
func (n *Node) agreed(out []agreement.Output) {
	for i := range out {
		switch o := &out[i]; o.Kind {
		case agreement.Send:
			n.tell(o.To, o.Message)
		case agreement.View:
			n.enterView(o)
		case agreement.NoQuorum:
			n.block()
		case agreement.Quorum:
			n.unblock()
		case agreement.Excluded:
			if n.isLeaving() {
				n.left()
				continue
			}
			n.breakDown(fmt.Errorf("%w: they are the nodes %s since epoch %d; start this node again", ErrExcluded, list(o.Members), o.Epoch))
		default:
			panic(fmt.Sprintf("node: an agreement puts out kind %d", o.Kind))
		}
	}
	if s := &n.survival; s.agreement.Idle() {
		s.tick = 0
	} else if s.tick == 0 {
		s.tick = n.now + tickEvery
	}
}

// tickAgreement tells the agreement that time has passed, if it must know and it has, and says so. It also ends connections to nodes that are left out.
func (n *Node) tickAgreement() bool {
	s := &n.survival
	for len(s.parting) > 0 && n.now >= s.parting[0].at {
		n.net.Disconnect(s.parting[0].peer, fmt.Errorf("the nodes that go on are %s", list(s.members)))
		s.parting = s.parting[1:]
	}
	n.tickComings()
	if s.decide != 0 && n.now >= s.decide {
		s.decide = 0
		n.goNoFurther()
	}
	if s.tick == 0 || n.now < s.tick {
		return false
	}
	s.tick = 0
	n.agreed(s.agreement.Tick(nil))
	return true
}

// tickIn is for how long the reactor may sleep for the sake of the agreement.
func (n *Node) tickIn(now time.Duration) time.Duration {
	in := netio.Forever
	if s := &n.survival; s.tick != 0 {
		in = max(0, s.tick-now)
	}
	if s := &n.survival; len(s.parting) > 0 {
		in = sooner(in, max(0, s.parting[0].at-now))
	}
	if s := &n.survival; s.decide != 0 {
		in = sooner(in, max(0, s.decide-now))
	}
	return sooner(in, n.comingsIn(now))
}

// leftOut says whether a peer is one of those without which this node has gone on.
func (n *Node) leftOut(peer transport.NodeID) bool {
	return n.survives() && !slices.Contains(n.survival.members, agreement.NodeID(peer))
}

// tell sends a frame that is not the protocol's to another node, unless that is down.
func (n *Node) tell(to agreement.NodeID, frame []byte) {
	err := n.net.Send(transport.NodeID(to), frame, nil)
	if err == nil {
		n.unsent, n.urgent = true, true
		return
	}
	n.unsendable(transport.NodeID(to), fmt.Errorf("node: send to node %d: %w", to, err))
}

// unsendable deals with a frame that cannot be sent, where nodes may be lost.
func (n *Node) unsendable(to transport.NodeID, err error) {
	switch {
	case errors.Is(err, transport.ErrPeerDown):
		// Poll says so too, if it has not yet. Whoever waits for what should have followed is helped by the recovery.
	case errors.Is(err, transport.ErrBacklog):
		n.part(to, err)
	default:
		n.breakDown(err)
	}
}

// survivalFrame deals with a frame that is not the protocol's.
func (n *Node) survivalFrame(from transport.NodeID, control []byte, payload transport.Payload) {
	if !n.survives() {
		n.part(from, fmt.Errorf("node: node %d was started to survive the loss of others and this node was not; start all nodes with --survive, or none", from))
		return
	}
	var out []agreement.Output
	err := errors.New("it came with a page")
	switch {
	case payload != nil:
	case n.leftOut(from) && control[0] == rosterMark, n.outside() && control[0] >= rosterMark:
		return
	case control[0] == rosterMark:
		err = n.rosterFrame(from, control)
	case control[0] >= joinMark && control[0] <= heardMark:
		err = n.comingFrame(from, control)
	default:
		out, err = n.survival.agreement.Message(agreement.NodeID(from), control, nil)
	}
	if err != nil {
		n.part(from, fmt.Errorf("node: from node %d: %w", from, err))
		return
	}
	n.agreed(out)
}

// enterView goes on with those who are left.
func (n *Node) enterView(o *agreement.Output) {
	s := &n.survival
	gone, came, left := without(s.members, o.Members), without(o.Members, s.members), s.leaving
	wasOutside := len(s.members) == 0
	s.members, s.leaving = o.Members, o.Leaving
	clear(s.handed)
	clear(s.hearers)
	if !s.recovering {
		s.recovering, s.began = true, n.now
	}
	n.count.epoch.Store(int64(o.Epoch))
	n.count.members.Store(int64(len(o.Members)))
	n.count.nodesLost.Add(uint64(len(without(gone, left))))
	n.log.Warn("recovery begins", zap.Uint32("epoch", o.Epoch), zap.String("members", list(o.Members)), zap.String("lost", list(without(gone, left))),
		zap.String("leaving", list(o.Leaving)), zap.String("came", list(came)))
	for _, id := range gone {
		peer := transport.NodeID(id)
		if s.down[peer] {
			n.readmit(peer)
		} else {
			s.parting = append(s.parting, parting{peer, n.now + partAfter})
		}
		n.bereave(peer)
	}
	n.welcome(came)
	n.step(epochEvent(o))
	if wasOutside {
		n.openDoor()
	}
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
func (n *Node) resumed(epoch uint32) {
	s := &n.survival
	if epoch != s.agreement.Epoch() {
		return
	}
	s.recovering, s.served = false, true
	n.count.recoveries.Add(1)
	took := n.clock() - s.began
	n.latency.recovery.Observe(took.Seconds())
	n.log.Info("recovery is over", zap.Uint32("epoch", epoch), zap.String("members", list(s.members)), zap.Duration("took", took))
	n.endBarriers()
	n.dropStash()
	n.agreed(s.agreement.Resumed(epoch, nil))
}

// dropStash gives up contents that were kept for grants which the recovery has cut short.
func (n *Node) dropStash() {
	for page, payload := range n.stash {
		if !n.engine.Waiting(protocol.PageObject(uint64(page))) {
			payload.Release()
			delete(n.stash, page)
		}
	}
}

// block stops granting. Programs go on with the pages that they have, and wait with the next fault or call.
func (n *Node) block() {
	s := &n.survival
	s.blocked = true
	if n.cfg.Rejoin && !s.served {
		s.decide = n.now + n.patienceWithPeers()
		n.log.Warn("a node is lost, and this one, which has just come, cannot tell whether enough are left; it waits for what the others decide", zap.Error(n.noQuorum()))
		return
	}
	n.goNoFurther()
}

// goNoFurther ends this node, or has its programs wait, because too few are left.
func (n *Node) goNoFurther() {
	n.count.noQuorum.Store(1)
	err := n.noQuorum()
	if n.cfg.NoQuorum == noQuorumEnd {
		n.breakDown(err)
		return
	}
	n.log.Error("nothing is granted any more; programs wait, and if the others go on without this node they wait in vain: then end them, and start this daemon anew with --rejoin, once the others can be reached", zap.Error(err))
	n.idleWithoutQuorum()
}

// idleWithoutQuorum has a node that cannot go on and has no programs end, after its farewell.
func (n *Node) idleWithoutQuorum() {
	if s := &n.survival; s.blocked && s.decide == 0 && n.gone == nil && n.attached() == 0 {
		n.gone, n.goneAt = n.noQuorum(), n.now
	}
}

// noQuorum says who is lost, and why.
func (n *Node) noQuorum() error {
	s := &n.survival
	var reasons []error
	for _, id := range s.members {
		if why := s.why[transport.NodeID(id)]; why != nil {
			reasons = append(reasons, why)
		}
	}
	return fmt.Errorf("%w: the cluster had the nodes %s in epoch %d: %w", ErrNoQuorum, list(s.members), s.agreement.Epoch(), errors.Join(reasons...))
}

// unblock grants again, because others that can be reached have found a quorum.
func (n *Node) unblock() {
	s := &n.survival
	s.blocked, s.decide, n.gone = false, 0, nil
	n.count.noQuorum.Store(0)
	n.log.Info("there are enough nodes again; programs go on")
	faults, events := s.faults, s.events
	s.faults, s.events = nil, nil
	clear(s.held)
	for i := range faults {
		if n.programs[protocol.ClientID(faults[i].Proc)] != nil {
			n.fault(&faults[i])
		}
	}
	for i := range events {
		n.step(events[i])
	}
}

// holdFault keeps a fault until there is a quorum, and says whether it did.
func (n *Node) holdFault(ev *pagetable.Event) bool {
	s := &n.survival
	if !s.blocked {
		return false
	}
	key := heldFault{ev.Page, ev.Proc, ev.Thread, ev.Write}
	if !s.held[key] {
		s.held[key] = true
		s.faults = append(s.faults, *ev)
	}
	return true
}

// putCall puts a call to the engine, or keeps it until there is a quorum. What is kept is bounded by maxCalls for each program.
func (n *Node) putCall(ev protocol.Event) {
	if n.survival.blocked {
		n.survival.events = append(n.survival.events, ev)
		return
	}
	n.step(ev)
}

// cancelHeld ends a call that waits for a quorum, and says whether there was one.
func (n *Node) cancelHeld(ticket protocol.Ticket) bool {
	s := &n.survival
	i := slices.IndexFunc(s.events, func(ev protocol.Event) bool { return ev.Ticket == ticket })
	if i < 0 {
		return false
	}
	s.events = slices.Delete(s.events, i, i+1)
	n.reply(&protocol.Effect{Kind: protocol.EffectComplete, Ticket: ticket, Status: protocol.StatusCanceled})
	return true
}

// dropHeld forgets what a program waits for that has gone.
func (n *Node) dropHeld(id protocol.ClientID) {
	s := &n.survival
	s.events = slices.DeleteFunc(s.events, func(ev protocol.Event) bool { return ev.Client == id })
	s.faults = slices.DeleteFunc(s.faults, func(ev pagetable.Event) bool {
		mine := protocol.ClientID(ev.Proc) == id
		if mine {
			delete(s.held, heldFault{ev.Page, ev.Proc, ev.Thread, ev.Write})
		}
		return mine
	})
}

// list writes nodes for people.
func list(nodes []agreement.NodeID) string {
	var text []string
	for _, id := range nodes {
		text = append(text, fmt.Sprint(uint16(id)))
	}
	return strings.Join(text, ",")
}
