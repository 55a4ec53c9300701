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

// maxHandshakes bounds how many callers are answered at once before they have proven that they know
// the secret. The one who has waited longest makes room for the next. A real handshake takes
// milliseconds, so callers who say nothing cannot keep out those who do.
const maxHandshakes = 64

// lobby holds the callers who have not proven anything.
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

const (
	// strangersSpan is the time in which at most strangersSaid callers who have not proven anything
	// are logged: who calls again and again fills no disk.
	strangersSpan = time.Minute
	strangersSaid = 20
)

// strangers counts the callers that were turned away before anything they said was believed.
type strangers struct {
	mu    sync.Mutex
	since time.Time // of the span; guarded by mu
	came  int       // in it; guarded by mu
}

// another counts one more. It returns whether to log it, and how many were not logged in the span
// before.
func (s *strangers) another(now time.Time) (say bool, unsaid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.since) >= strangersSpan {
		unsaid = max(0, s.came-strangersSaid)
		s.since, s.came = now, 0
	}
	s.came++
	return s.came <= strangersSaid, unsaid
}

// turnedAway logs why a caller was turned away who has proven nothing.
func (c *connecting) turnedAway(err error) {
	say, unsaid := c.strangers.another(time.Now())
	if unsaid > 0 {
		c.log(fmt.Sprintf("tcp: %d more callers were turned away", unsaid))
	}
	if say {
		c.log(err.Error())
	}
}

// errAsked ends a handshake whose caller only wanted to know.
var errAsked = errors.New("it has got its answer")

// accept answers whoever connects, until Close.
func (c *connecting) accept() {
	var callers lobby
	for pause := firstPause; ; {
		conn, err := c.listener.Accept()
		if err != nil {
			if c.ctx.Err() != nil {
				return
			}
			// Out of descriptors, say. It may pass.
			c.log(fmt.Sprintf("tcp: accept on %v: %v", c.listener.Addr(), err))
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
			c.welcomeCaller(conn, func() { callers.leave(conn) })
		})
	}
}

// welcomeCaller is the accepting side of the handshake, with its outcome. It calls known when the
// caller has proven that it knows the secret.
func (c *connecting) welcomeCaller(raw net.Conn, known func()) {
	stop := context.AfterFunc(c.ctx, func() { raw.Close() })
	defer stop()
	var mine, theirs greeting
	var s *session
	var conn io.ReadWriter
	var sec *secure
	var err error
	if c.channels <= 1 { // else its listener has
		_, err = takeChannel(raw) // of one who calls a channel the greeting tells what is wrong
	}
	if err == nil {
		conn, sec, err = c.secured(c.ctx, raw, false)
	}
	if err == nil {
		s, mine, theirs, err = c.answer(conn, sec, known)
	}
	cause := err // which does not name the caller's port
	if err == nil {
		err = c.handOver(raw, sec, s, mine, theirs)
		cause = err
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
	if theirs.node > c.self && int(theirs.node) < len(c.sessions) {
		c.note(theirs.node, err)
	}
	if theirs.incarnation == 0 { // nothing is known of it, but a version perhaps
		c.turnedAway(err)
		return
	}
	if s == nil || c.isNews(s, cause) {
		c.log(err.Error())
	}
}

// describeCaller is describe for one who has called, and may not have said who it is.
func describeCaller(theirs greeting, conn net.Conn, err error) error {
	if theirs == (greeting{}) {
		return fmt.Errorf("tcp: refused a caller at %v: %w", conn.RemoteAddr(), err)
	}
	return describe(theirs.node, conn, err)
}

// answer has a caller prove that it knows the secret, takes its greeting, answers with this node's
// and the verdict, and waits for the caller's verdict.
func (c *connecting) answer(conn io.ReadWriter, sec *secure, known func()) (s *session, mine, theirs greeting, err error) {
	p := newProven(conn, c.secret, called)
	if theirs, err = c.beMet(p); err != nil {
		return nil, mine, theirs, err
	}
	if c.secret != nil || sec != nil {
		known()
	}
	mine = c.mine
	mine.addressee, mine.purpose, mine.call = theirs.node, theirs.purpose, theirs.call
	s, v, news := c.judge(&mine, theirs, sec)
	if s != nil {
		mine.expected = theirs.incarnation
		mine.received = s.peer.received.Load()
	}
	err = p.prove(appendVerdict(appendGreeting(nil, mine), v))
	if news != nil {
		c.news.add(*news)
	}
	switch {
	case s == nil:
		return nil, mine, theirs, refusal(v.why)
	case err == nil && theirs.purpose == purposeAsk:
		return nil, mine, theirs, errAsked
	case err == nil:
		err = readAcceptance(p)
	}
	return s, mine, theirs, err
}

// judge decides whether a caller is welcome, which it is if the session is not nil, and what the
// reactor should know of it; nil: nothing.
func (c *connecting) judge(mine *greeting, theirs greeting, sec *secure) (s *session, v verdict, news *arrival) {
	if why := c.unfit(theirs, sec); why != "" {
		return nil, verdict{why: why}, nil
	}
	s, v, news = c.judgeKnown(mine, theirs)
	if s != nil && theirs.purpose == purposeAsk {
		news = &arrival{kind: arrivedBreak, peer: s.peer, call: theirs.call}
	}
	return s, v, news
}

// unfit says why a caller cannot be a peer, or "".
func (c *connecting) unfit(theirs greeting, sec *secure) string {
	if why := mismatch(c.mine, theirs); why != "" {
		return why
	}
	calls := theirs.node > c.self
	switch {
	case theirs.addressee != c.self:
		return fmt.Sprintf("it looked for node %d and found node %d; check its list of addresses", theirs.addressee, c.self)
	case theirs.node == c.self || int(theirs.node) >= len(c.sessions) || calls != (theirs.purpose == purposeCall):
		return fmt.Sprintf("it says it is node %d, but only nodes with higher numbers than %d call this one", theirs.node, c.self)
	}
	return c.verify(theirs.node, sec)
}

// readAcceptance waits for the caller's verdict.
func readAcceptance(p *proven) error {
	v, err := readVerdict(p)
	if err == nil {
		err = p.check()
	}
	if err != nil {
		return err
	}
	if v.why != "" {
		return verdictError(v)
	}
	return nil
}
