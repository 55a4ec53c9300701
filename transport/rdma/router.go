package rdma

import (
	"fmt"
	"slices"
	"time"

	"dsmd/transport"
)

// router decides which path the messages of each peer take, and makes and gives up queue pairs.
type router struct {
	sender
	peers    []*peer // by node; nil at self
	required bool
	handler  transport.Handler // of the Poll that runs; nil: none does
	// ready are those whose first parked message is the next one (peer.isReady).
	ready    []*peer
	indirect int // how many peers frames are exchanged with on the base transport
	// sinceBase is how many Polls there were since the base transport was asked.
	sinceBase int
}

// initiates reports whether this node is the one of the pair that makes queue pairs.
func (r *router) initiates(p *peer) bool { return r.self > p.id }

// setPath changes the path, and counts the peers that use the base transport.
func (r *router) setPath(p *peer, to path) {
	if was, is := p.path != pathLink && p.path != pathNone, to != pathLink && to != pathNone; is != was {
		if is {
			r.indirect++
		} else {
			r.indirect--
		}
	}
	p.path = to
}

// report calls PeerUp, once.
func (r *router) report(p *peer) {
	if p.reported || p.cut {
		return
	}
	p.reported = true
	r.handler.PeerUp(p.id)
	r.list(p)
}

func (r *router) discardQueue(p *peer) {
	for !p.queue.empty() {
		r.recycle(p.queue.pop())
	}
	for i := range p.ring {
		r.freeFlight(&p.ring[i])
	}
	r.counts.QueuedBytes.Add(-int64(p.queued))
	p.queued, p.sent = 0, p.last
	for _, h := range p.parked {
		r.spend(h.block)
	}
	p.parked = nil
	if p.isReady {
		p.isReady = false
		r.ready = slices.DeleteFunc(r.ready, func(other *peer) bool { return other == p })
	}
}

// misbehaves parts with a peer that has sent what it must not.
func (r *router) misbehaves(p *peer, err error) {
	reason := fmt.Errorf("rdma: node %d: %w; is it a node of another version, or broken?", p.id, err)
	r.log(reason.Error())
	r.disconnect(p, reason)
}

// setDue makes tick look at the peer after a while.
func (r *router) setDue(p *peer, after time.Duration) {
	p.due = time.Now().Add(after)
	r.clock.ringAt(p.due)
}

// tick does what is due.
func (r *router) tick() {
	r.clock.taken()
	now := time.Now()
	for _, p := range r.peers {
		if p == nil || p.lost != nil {
			continue
		}
		if !p.due.IsZero() && !now.Before(p.due) {
			p.due = time.Time{}
			r.overdue(p)
		}
		if p.decide {
			p.decide = false
			r.choosePath(p, now)
		}
		if !p.due.IsZero() {
			r.clock.ringAt(p.due)
		}
	}
	r.watched(now)
	for _, l := range r.links {
		switch {
		case l.until.IsZero():
		case now.Before(l.until):
			r.clock.ringAt(l.until)
		default:
			r.drained(l)
		}
	}
}

// overdue sees to a peer whose time has come: for the next attempt, or because the last one takes
// too long.
func (r *router) overdue(p *peer) {
	switch {
	case p.link != nil && !p.link.up:
		r.breakLink(p, fmt.Errorf("rdma: node %d: no queue pair has carried anything in time", p.id), true)
	case p.link != nil:
	case r.initiates(p) && !p.silent:
		r.offer(p)
	default:
		p.decide = true
	}
}

// choosePath lets a peer's frames take the base transport, because there will be no queue pair
// soon. If RDMA is required it parts with the peer.
func (r *router) choosePath(p *peer, now time.Time) {
	if p.path != pathChoose {
		return
	}
	if r.required {
		if now.Before(p.since.Add(requiredPatience)) {
			if p.due.IsZero() {
				r.setDue(p, requiredPatience)
			}
			return
		}
		r.disconnect(p, fmt.Errorf("rdma: node %d: %w: %s", p.id, ErrRequired, p.complaint))
		return
	}
	r.log(fmt.Sprintf("rdma: node %d is reached by TCP for now", p.id))
	r.setPath(p, pathBase)
	r.report(p)
}

func (r *router) disconnect(p *peer, reason error) {
	if p.cut || p.gone {
		return
	}
	p.cut = true
	if p.lost != nil { // that is to be reported, and what waits before it is not delivered any more
		r.discardQueue(p)
		return
	}
	p.lost = reason
	r.unlink(p)
	r.discardQueue(p)
	r.base.Disconnect(p.id, reason)
	r.sinceBase = basePause
}
