package tcp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/netio"
	"dsmd/transport"
)

const (
	// DefaultGiveUp is Config.GiveUp when none is given: longer than a switch takes to start anew,
	// and short enough that whoever waits for the programs of a cluster whose node was unplugged
	// does not wait long.
	DefaultGiveUp = 15 * time.Second
	// MinGiveUp is the least Config.GiveUp. A node that is alive and was scheduled late must not be
	// given up.
	MinGiveUp = time.Second
	// MaxGiveUp is the greatest Config.GiveUp: a day.
	MaxGiveUp = 24 * time.Hour

	// A daemon listens until its end. So when a peer's machine answers that nobody listens at the
	// peer's address, the process has ended. That is believed after refusalsToGiveUp such answers
	// within at least refusedGiveUp: a machine that is about to restart its network may say so
	// once.
	refusedGiveUp    = 250 * time.Millisecond
	refusalsToGiveUp = 3
	// longestRestorePause bounds the pause between attempts to restore a connection, which starts
	// with firstPause and doubles. An attempt that succeeds ends nothing while each connection
	// breaks before anything has come by it.
	longestRestorePause = 200 * time.Millisecond
	// fruitlessSaid is the time between two lines about such connections.
	fruitlessSaid = time.Minute
	// lastAttempt bounds the last attempt to reach a peer whose time is over.
	lastAttempt = time.Second
	// askAfter is how long this node waits for the call of a peer before it asks what has become of
	// the peer.
	askAfter = 100 * time.Millisecond
)

// silenceChecks is how often in Config.GiveUp the reactor is asked to look for connections that
// have fallen silent, if peers have anything to answer.
const silenceChecks = 6

// notAll is connecting.answered while peers may have something to answer, whatever was sent.
const notAll = math.MaxUint64

// watch has the reactor look for silent connections now and then, until Close. It leaves a reactor
// alone that has sent nothing since all was answered. To wake one costs about a millisecond of a
// core: when it sleeps again it keeps its P, and Go's monitor looks dozens of times before it takes
// the P away.
func (c *connecting) watch() {
	ticks := time.NewTicker(c.giveUp / silenceChecks)
	defer ticks.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-ticks.C:
			if c.sends.Load() != c.answered.Load() {
				c.news.add(arrival{kind: arrivedTick})
			}
		}
	}
}

// breakSilent hangs up on peers whose machines have not answered for a third of Config.GiveUp. A
// cable was pulled, say, or the machine has lost its power, and nobody is there to end the
// connection; TCP itself would try for a quarter of an hour. A peer that was out of reach for a
// moment is connected again. One that is stopped is not silent, because its kernel answers.
func (r *reactor) breakSilent() {
	allAnswered := true
	for _, p := range r.up {
		silent, expects, err := netio.Silence(p.fd)
		if err != nil {
			r.log(fmt.Sprintf("tcp: node %d: %v", p.id, err))
		} else if silent > r.connect.giveUp/3 {
			r.failSending(p, fmt.Errorf("its machine has not answered for %v", silent))
		}
		allAnswered = allAnswered && err == nil && !expects
	}
	if allAnswered { // counted under the gate, as this is
		r.connect.answered.Store(r.counts.SendCalls.Load())
	}
}

// longer is the pause after another attempt that was in vain, or a fruitless connection.
func longer(pause time.Duration) time.Duration {
	return min(max(2*pause, firstPause), longestRestorePause)
}

// restore sees to it that a peer whose connection was lost is connected again or given up. It is
// called after a pause, which is 0 if the connection was not fruitless. The reactor calls restore.
func (c *connecting) restore(id transport.NodeID, call uint64, pause time.Duration) {
	s, severed := c.sever(id, call, pause > 0)
	if severed == nil {
		return
	}
	c.work.Go(func() {
		if err := c.restoring(s, severed, pause); err != nil && c.ctx.Err() == nil {
			c.news.add(arrival{kind: arrivedEnd, peer: s.peer, err: err})
		}
	})
}

// restoring calls a peer with a lower number, and waits for the call of one with a higher one. It
// returns nil when severed is closed or the transport, or why the peer is given up.
//
// This node may have been stopped or starved until the peer's time was over, and the peer was there
// all the while. So a peer is given up after an attempt that began when its time was over.
func (c *connecting) restoring(s *session, severed <-chan struct{}, pause time.Duration) error {
	id := s.peer.id
	end := time.Now().Add(c.giveUp)
	var said time.Time // that a certificate has ended
	why := purposeCall
	if id > c.self {
		why, pause = purposeAsk, askAfter
	}
	var refused refusals
	last := errNotTried
	for {
		if c.restored(severed, min(pause, time.Until(end))) {
			return nil
		}
		pause = longer(pause)
		over := !time.Now().Before(end)
		var err error
		if why == purposeCall || c.canAsk(s) {
			err = c.attempt(s, why, max(time.Until(end), lastAttempt))
		}
		switch {
		case err == nil && why == purposeCall:
			return nil
		case c.awaitsRenewal(id, err):
			// It has answered, and nothing is lost.
			end, over = time.Now().Add(c.giveUp), false
			last, pause = err, min(expiredPause, c.giveUp/callsInGiveUp)
			if time.Since(said) >= expiredSaid {
				said = time.Now()
				c.log(fmt.Sprintf("tcp: node %d is waited for, and nothing is lost: %v", id, err))
			}
		case errors.Is(err, ErrRefused) && !isImpostor(err):
			return err
		case refused.enough(err, time.Now()):
			return fmt.Errorf("tcp: node %d: its connection has ended and nobody listens at %s any more, so its process has ended: %w",
				id, c.addresses[id], err)
		case err != nil:
			last = err
			if c.ctx.Err() == nil && c.isNews(s, err) {
				c.log(fmt.Sprintf("tcp: node %d is not connected again yet: %v", id, err))
			}
		}
		if !over {
			continue
		}
		if why == purposeAsk && c.restored(severed, lastAttempt) { // its call may be on its way
			return nil
		}
		if err := c.noted(s); err != errNotTried { // its calls come here, and fail
			last = err
		}
		return fmt.Errorf("tcp: node %d: it could not be reached for %v: %w", id, c.giveUp, last)
	}
}

// attempt is a call that is given up after a time.
func (c *connecting) attempt(s *session, why purpose, within time.Duration) error {
	ctx, cancel := context.WithTimeout(c.ctx, within)
	defer cancel()
	return c.call(ctx, s, why)
}

// restored waits until a peer is connected again, and reports whether there is nothing more to do:
// it was in time, or the transport was closed.
func (c *connecting) restored(severed <-chan struct{}, in time.Duration) bool {
	select {
	case <-severed:
		return true
	case <-c.ctx.Done():
		return true
	case <-time.After(in):
		return false
	}
}

// isImpostor reports whether an attempt has failed because the one who answered was not the peer.
func isImpostor(err error) bool {
	var i impostor
	return errors.As(err, &i)
}

// canAsk reports whether there is an address at which a peer may be asked.
func (c *connecting) canAsk(s *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.listens && c.addresses[s.peer.id] != ""
}

// refusals counts the answers in a row that nobody listens.
type refusals struct {
	count int
	since time.Time
}

// enough counts the outcome of an attempt, and reports whether the peer's process must have ended.
func (r *refusals) enough(err error, now time.Time) bool {
	if !errors.Is(err, unix.ECONNREFUSED) {
		r.count = 0
		return false
	}
	if r.count == 0 {
		r.since = now
	}
	r.count++
	return r.count >= refusalsToGiveUp && now.Sub(r.since) >= refusedGiveUp
}
