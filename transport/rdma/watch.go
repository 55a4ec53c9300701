package rdma

import (
	"fmt"
	"time"
)

const (
	// watchPause is between two looks at the queue pairs on which something is not acknowledged.
	watchPause = time.Second
	// silentLooks is after how many looks without an acknowledgement a queue pair is given up. The
	// peer is asked for one at the first of them, so it has had the time of the others to answer,
	// which it does whenever its daemon runs.
	silentLooks = 5
)

// A device reports a request that it cannot carry out, and then the queue pair is given up at once.
// But some don't always: Linux's Soft-RoCE may stop to send, without a word and for good, after its
// link was down. So whoever has sent something sees to it that it is acknowledged.

// watch begins to look at the queue pairs, if nobody does.
func (s *sender) watch() {
	if s.watchAt.IsZero() {
		s.watchAt = time.Now().Add(s.watchPause)
		s.clock.ringAt(s.watchAt)
	}
}

// watched looks at all queue pairs, if it is time, and goes on as long as something is not
// acknowledged.
func (r *router) watched(now time.Time) {
	switch {
	case r.watchAt.IsZero():
		return
	case now.Before(r.watchAt):
		r.clock.ringAt(r.watchAt)
		return
	}
	r.watchAt = time.Time{}
	for _, p := range r.peers {
		if p != nil && p.lost == nil && p.path == pathLink && p.acked < p.sent {
			r.lookAt(p)
			r.watch()
		}
	}
}

// lookAt sees whether a peer has acknowledged something since the last look, asks it to, or gives
// the queue pair up.
func (r *router) lookAt(p *peer) {
	l := p.link
	if p.acked != l.seen {
		l.seen, l.silent = p.acked, 0
		return
	}
	l.silent++
	switch {
	case l.silent >= silentLooks:
		r.breakLink(p, fmt.Errorf("rdma: node %d has acknowledged nothing for %v", p.id, silentLooks*r.watchPause), true)
	case p.acked >= l.asked && r.sendAck(p, flagAck):
		l.asked = p.sent
	}
}
