package node

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"dsmd/internal/netio"
	"dsmd/transport"

	"go.uber.org/zap"
)

// ending is whether, when and why the node ends.
type ending struct {
	log   *zap.Logger
	clock *clock

	stopped  bool          // the reactor was asked to end
	broken   error         // why the cluster cannot go on
	gone     error         // why a peer is lost; no program can attach any more
	goneAt   time.Duration // when it was lost
	farewell time.Duration // how long a node without programs stays after that
	// attached counts programs that have a rank. Others only ask questions, or are about to attach.
	attached int
}

// farewell is how long a node without programs stays when a peer is lost. Where all nodes of a
// cluster are told to end, one is the first, and the others should end because they were told to,
// not with an error because of the first.
const farewell = 2 * time.Second

// errIdle is why a node ends that had nothing to lose.
var errIdle = errors.New("no program was attached, and none can be without all nodes: start this node again, as soon as the others are")

func (e *ending) goesOn() bool { return e.broken == nil && !e.stopped }

// breakDown ends the node because the cluster cannot go on. The first reason is the one that
// counts.
func (e *ending) breakDown(err error) {
	if e.broken == nil {
		e.broken = err
		e.log.Error("the cluster is broken", zap.Error(err))
	}
}

// peerLost deals with the loss of a peer without which this node cannot go on. A node with programs
// ends at once, so that they do. One without programs hurts nobody by staying until farewell is
// over; it takes no programs any more, and then it ends too, so that whoever watches over it starts
// it anew.
func (e *ending) peerLost(peer transport.NodeID, err error) {
	switch {
	case e.attached > 0:
		e.breakDown(err)
	case e.gone == nil:
		e.sayFarewell(err)
		e.log.Info("a peer has left; no program can attach any more", zap.Uint16("peer", uint16(peer)), zap.Error(err))
	}
}

// sayFarewell begins the farewell of a node that has no programs, for a reason.
func (e *ending) sayFarewell(why error) { e.gone, e.goneAt = why, e.clock.now }

// tick ends a node whose farewell is over.
func (e *ending) tick() {
	if e.gone != nil && !e.stopped && e.clock.now-e.goneAt >= e.farewell {
		e.breakDown(fmt.Errorf("%w (%w)", e.gone, errIdle))
	}
}

// tickIn is for how long the reactor may sleep for the sake of the farewell.
func (e *ending) tickIn(now time.Duration) time.Duration {
	if e.gone == nil {
		return netio.Forever
	}
	return max(0, e.goneAt+e.farewell-now)
}

// lastWords is what the other nodes are told, in one line, of why this one ends; "" if it was told
// to.
func (e *ending) lastWords(why error) string {
	switch {
	case why == nil:
		return ""
	case errors.Is(why, errIdle) && e.gone != nil: // errIdle is about this node alone
		why = e.gone
	}
	return strings.TrimPrefix(strings.ReplaceAll(why.Error(), "\n", "; "), "node: ")
}
