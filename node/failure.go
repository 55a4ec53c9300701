package node

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"dsmd/internal/netio"
	"dsmd/transport"

	"go.uber.org/zap"
)

// failure is a peer that somebody else than the transport has found lost.
type failure struct {
	peer transport.NodeID
	err  error
}

// failures hands the reactor what other goroutines have to tell it: which peers are lost, which ranks, and that it is to end.
type failures struct {
	mu      sync.Mutex
	list    []failure                 // at most one for each peer; guarded by mu
	known   map[transport.NodeID]bool // guarded by mu
	ranks   []uint32                  // that are lost without their node; guarded by mu
	stopped bool                      // the reactor is to end; guarded by mu
	ended   bool                      // there is no reactor any more; guarded by mu
	now     func(failure)             // is told at once, while there is no reactor yet; guarded by mu
}

// during has tell called for each failure, also for those that are known already, until it is replaced; nil replaces it by nothing.
func (f *failures) during(tell func(failure)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = tell
	for _, x := range f.list {
		if tell != nil {
			tell(x)
		}
	}
}

func (f *failures) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = true
}

func (f *failures) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
}

// take returns what has come since the last take.
func (f *failures) take() (list []failure, ranks []uint32, stopped bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list, f.list = f.list, nil
	ranks, f.ranks = f.ranks, nil
	return list, ranks, f.stopped
}

// PeerFailed tells a node that another one is lost for good, in the opinion of somebody who knows more than its transport, which
// may still hope that the connection comes back. err says who it is, and why. It may be called from any goroutine, before and
// during Run and after it, and as often as one likes: the first call for each peer counts.
func (n *Node) PeerFailed(peer transport.NodeID, err error) {
	f := &n.failures
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || f.known[peer] || int(peer) >= n.cfg.Nodes || int(peer) == n.cfg.Self {
		return
	}
	if f.known == nil {
		f.known = map[transport.NodeID]bool{}
	}
	f.known[peer] = true
	f.list = append(f.list, failure{peer, err})
	if f.now != nil {
		f.now(failure{peer, err})
	}
	n.wake.Signal() // under the lock: the descriptor is closed after end
}

// RankLost tells a node that the program of a rank has died and will not come again, in the opinion of whoever has started it. With that, all other programs of
// this node have lost the rank, those that are attached and those that attach later: they wait for it at no barrier. It means something only where
// nodes survive the loss of others, and where all programs are of one job. rank is from 0 to MaxRanks-1; others are ignored, and so is a rank that is lost already. It may be
// called from any goroutine, before and during Run and after it.
func (n *Node) RankLost(rank int) {
	f := &n.failures
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || rank < 0 || rank >= MaxRanks || slices.Contains(f.ranks, uint32(rank)) {
		return
	}
	f.ranks = append(f.ranks, uint32(rank))
	n.wake.Signal() // under the lock: the descriptor is closed after end
}

// forget has the loss of a peer's successor count again.
func (f *failures) forget(peer transport.NodeID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.known, peer)
}

// woken deals with what other goroutines have to tell.
func (n *Node) woken() {
	n.wake.Clear()
	list, ranks, stopped := n.failures.take()
	n.stopped = n.stopped || stopped
	if n.survives() {
		n.loseRanks(ranks)
	}
	for _, f := range list {
		// The transport reports the loss, with this reason, unless it has done so before.
		n.net.Disconnect(f.peer, f.err)
	}
}

// PeerDown implements transport.Handler.
func (n *Node) PeerDown(peer transport.NodeID, err error) {
	n.lose(peer, fmt.Errorf("node: node %d is lost: %w", peer, err))
	if n.survives() {
		n.peerGone(peer)
	}
}

// part parts with a peer that does not keep to the protocol: nothing that it says from here on can be believed.
func (n *Node) part(peer transport.NodeID, why error) {
	n.log.Error("a peer has broken the protocol, and is parted with", zap.Uint16("peer", uint16(peer)), zap.Error(why))
	n.net.Disconnect(peer, why)
	if !n.survives() {
		n.lose(peer, why) // at once: the transport reports the loss later, and others might be blamed before
	}
}

// farewell is how long a node without programs stays when a peer is lost. Where all nodes of a cluster are told to end, one is
// the first, and the others should end because they were told to, not with an error because of the first.
const farewell = 2 * time.Second

// lose deals with the loss of a peer. Unless it can go on without it, a node with programs ends at once, so that they do. One without programs hurts nobody by staying until farewell is
// over; it takes no programs any more, and then it ends too, so that whoever watches over it starts it anew.
func (n *Node) lose(peer transport.NodeID, err error) {
	switch {
	case n.survives():
		n.suspect(peer, err)
	case n.attached() > 0:
		n.breakDown(err)
	case n.gone == nil:
		n.gone, n.goneAt = err, n.now
		n.log.Info("a peer has left; no program can attach any more", zap.Uint16("peer", uint16(peer)), zap.Error(err))
	}
}

// errIdle is why a node ends that had nothing to lose.
var errIdle = errors.New("no program was attached, and none can be without all nodes: start this node again, as soon as the others are")

// sayFarewell ends a node whose farewell is over.
func (n *Node) sayFarewell() {
	if n.gone != nil && n.now-n.goneAt >= n.farewell {
		n.breakDown(fmt.Errorf("%w (%w)", n.gone, errIdle))
	}
}

// farewellIn is for how long the reactor may sleep for the sake of farewell.
func (n *Node) farewellIn(now time.Duration) time.Duration {
	if n.gone == nil {
		return netio.Forever
	}
	return max(0, n.goneAt+n.farewell-now)
}
