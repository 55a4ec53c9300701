package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// maxHandshakes bounds how many callers are answered at once. Who has waited longest makes room for the next, because a
// handshake that is meant takes milliseconds: callers who say nothing cannot keep out those who do.
const maxHandshakes = 64

// lobby holds the callers whose handshake runs.
type lobby struct {
	mu      sync.Mutex
	callers []net.Conn // oldest first; guarded by mu
}

// enter adds a caller and shows the door to the one who has waited longest if there are too many.
func (l *lobby) enter(caller net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.callers) == maxHandshakes {
		l.callers[0].Close() // Its handshake fails, and then it leaves.
		l.callers = l.callers[1:]
	}
	l.callers = append(l.callers, caller)
}

// leave removes a caller, who may have been removed before.
func (l *lobby) leave(caller net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.callers = slices.DeleteFunc(l.callers, func(other net.Conn) bool { return other == caller })
}

// errAsked is how a handshake ends whose caller only wanted to know.
var errAsked = errors.New("it has got its answer")

// accept answers whoever connects, until Close.
func (t *Transport) accept() {
	c := &t.connect
	var callers lobby
	for pause := firstPause; ; {
		conn, err := c.listener.Accept()
		if err != nil {
			if c.ctx.Err() != nil {
				return
			}
			// Out of descriptors, say. It may pass.
			t.log(fmt.Sprintf("tcp: accept on %v: %v", c.listener.Addr(), err))
			select {
			case <-time.After(pause):
			case <-c.ctx.Done():
				return
			}
			pause = min(2*pause, longestPause)
			continue
		}
		pause = firstPause
		callers.enter(conn)
		c.work.Go(func() {
			defer callers.leave(conn)
			t.welcomeCaller(conn)
		})
	}
}

// welcomeCaller is the accepting side of the handshake, with its outcome.
func (t *Transport) welcomeCaller(raw net.Conn) {
	c := &t.connect
	stop := context.AfterFunc(c.ctx, func() { raw.Close() })
	defer stop()
	var mine, theirs greeting
	var s *session
	conn, sec, err := t.secured(raw, false)
	if err == nil {
		s, mine, theirs, err = t.answer(conn, sec)
	}
	if err == nil {
		err = t.handOver(raw, sec, s, mine, theirs)
	} else {
		raw.Close()
		if errors.Is(err, errAsked) {
			return
		}
		err = describeCaller(theirs, raw, err)
	}
	if err == nil || c.ctx.Err() != nil {
		return
	}
	// theirs is zero when the caller could not say who it is; node 0 never calls.
	if theirs.node > t.self && int(theirs.node) < len(t.peers) {
		c.note(theirs.node, err)
	}
	t.log(err.Error())
}

// describeCaller is describe for one who has called, and may not have said who it is.
func describeCaller(theirs greeting, conn net.Conn, err error) error {
	if theirs == (greeting{}) {
		return fmt.Errorf("tcp: refused a caller at %v: %w", conn.RemoteAddr(), err)
	}
	return describe(theirs.node, conn, err)
}

// answer reads a caller's greeting, answers with this node's and the verdict, and waits for the caller's verdict.
func (t *Transport) answer(conn io.ReadWriter, sec *secure) (s *session, mine, theirs greeting, err error) {
	if theirs, err = readGreeting(conn); err != nil {
		return nil, mine, theirs, err
	}
	mine = t.connect.mine
	mine.addressee, mine.purpose, mine.call = theirs.node, theirs.purpose, theirs.call
	s, v, news := t.judge(theirs, sec)
	if s != nil {
		mine.expected = theirs.incarnation
		mine.received = s.peer.received.Load()
	}
	_, err = conn.Write(appendVerdict(appendGreeting(nil, mine), v))
	if news != nil {
		t.arrivals.add(*news, t.wait.event)
	}
	switch {
	case s == nil:
		return nil, mine, theirs, refusal(v.why)
	case err == nil && theirs.purpose == purposeAsk:
		return nil, mine, theirs, errAsked
	case err == nil:
		err = readAcceptance(conn)
	}
	return s, mine, theirs, err
}

// judge decides whether a caller is welcome, which it is if the session is not nil, and what the reactor should know of it; nil: nothing.
func (t *Transport) judge(theirs greeting, sec *secure) (s *session, v verdict, news *arrival) {
	if why := t.unfit(theirs, sec); why != "" {
		return nil, verdict{why: why}, nil
	}
	s, v, news = t.connect.judgeKnown(theirs)
	if s != nil && theirs.purpose == purposeAsk {
		news = &arrival{kind: arrivedBreak, peer: s.peer, call: theirs.call}
	}
	return s, v, news
}

// unfit says why a caller cannot be a peer, or "".
func (t *Transport) unfit(theirs greeting, sec *secure) string {
	if why := mismatch(t.connect.mine, theirs); why != "" {
		return why
	}
	calls := theirs.node > t.self
	switch {
	case theirs.addressee != t.self:
		return fmt.Sprintf("it looked for node %d and found node %d; check its list of addresses", theirs.addressee, t.self)
	case theirs.node == t.self || int(theirs.node) >= len(t.peers) || calls != (theirs.purpose == purposeCall):
		return fmt.Sprintf("it says it is node %d, but only nodes with higher numbers than %d call this one", theirs.node, t.self)
	}
	return t.connect.verify(theirs.node, sec)
}

// readAcceptance waits for the caller's verdict.
func readAcceptance(conn io.Reader) error {
	v, err := readVerdict(conn)
	if err != nil {
		return err
	}
	if v.why != "" {
		return verdictError(v)
	}
	return nil
}
