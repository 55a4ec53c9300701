package tcp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/netio"
	"dsmd/transport"
)

const (
	// DefaultGiveUp is Config.GiveUp when none is given: longer than a switch takes to start anew, and short enough that
	// whoever waits for the programs of a cluster whose node was unplugged does not wait long.
	DefaultGiveUp = 15 * time.Second
	// MinGiveUp is the least Config.GiveUp. A node that is alive and was scheduled late must not be given up.
	MinGiveUp = time.Second
	// MaxGiveUp is the greatest Config.GiveUp: a day.
	MaxGiveUp = 24 * time.Hour

	// A peer whose machine answers that nobody listens at the peer's address has no process any more, because a daemon
	// listens until its end. That is believed when it was heard refusalsToGiveUp times within at least refusedGiveUp: a
	// machine that is about to restart its network may say so once.
	refusedGiveUp    = 250 * time.Millisecond
	refusalsToGiveUp = 3
	// longestRestorePause bounds the pause between attempts to restore a connection, which starts with firstPause and doubles.
	longestRestorePause = 200 * time.Millisecond
	// askAfter is how long a peer that has to call may take before it is asked what has become of it.
	askAfter = 100 * time.Millisecond
)

// silenceChecks is how often in Config.GiveUp the reactor is asked to look for connections that have fallen silent.
const silenceChecks = 6

// watch has the reactor look for silent connections now and then, until Close.
func (t *Transport) watch() {
	ticks := time.NewTicker(t.connect.giveUp / silenceChecks)
	defer ticks.Stop()
	for {
		select {
		case <-t.connect.ctx.Done():
			return
		case <-ticks.C:
			t.arrivals.add(arrival{kind: arrivedTick}, t.wait.event)
		}
	}
}

// breakSilent hangs up on the peers whose machines have not answered for a third of Config.GiveUp: a cable was pulled, say, or the machine has
// lost its power, and nobody is there to end the connection. TCP itself would try for a quarter of an hour. A peer that
// is out of reach for a moment only is then connected again; one that is stopped is not silent.
func (t *Transport) breakSilent() {
	for _, p := range t.up {
		silent, err := netio.Silence(p.fd)
		if err != nil {
			t.log(fmt.Sprintf("tcp: node %d: %v", p.id, err))
		} else if silent > t.connect.giveUp/3 {
			t.failSending(p, fmt.Errorf("its machine has not answered for %v", silent))
		}
	}
}

// restore sees to it that a peer whose connection was lost is connected again, or given up. It is called by the reactor.
func (t *Transport) restore(id transport.NodeID, call uint64) {
	s, severed := t.connect.sever(id, call)
	if severed == nil {
		return
	}
	t.connect.work.Go(func() {
		ctx, cancel := context.WithTimeout(t.connect.ctx, t.connect.giveUp)
		defer cancel()
		if err := t.restoring(ctx, s, severed); err != nil && t.connect.ctx.Err() == nil {
			t.arrivals.add(arrival{kind: arrivedEnd, peer: s.peer, err: err}, t.wait.event)
		}
	})
}

// restoring calls a peer with a lower number, and waits for the call of one with a higher one. It returns nil when severed is closed, or
// why the peer is given up.
func (t *Transport) restoring(ctx context.Context, s *session, severed <-chan struct{}) error {
	id := s.peer.id
	why, pause := purposeCall, time.Duration(0)
	if id > t.self {
		why, pause = purposeAsk, askAfter
	}
	var refused refusals
	last := errNotTried
	for {
		select {
		case <-severed:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("tcp: node %d: it could not be reached for %v: %w", id, t.connect.giveUp, last)
		case <-time.After(pause):
		}
		pause = min(max(2*pause, firstPause), longestRestorePause)
		if why == purposeAsk && !t.connect.canAsk(s) {
			continue
		}
		err := t.call(ctx, s, why)
		switch {
		case err == nil && why == purposeCall:
			return nil
		case errors.Is(err, ErrRefused) && !isImpostor(err):
			return err
		case refused.enough(err, time.Now()):
			return fmt.Errorf("tcp: node %d: its connection has ended and nobody listens at %s any more, so its process has ended: %w",
				id, t.connect.address(id), err)
		case err != nil && ctx.Err() == nil:
			last = err
		}
	}
}

// isImpostor says whether an attempt has failed because whoever was there was not the peer.
func isImpostor(err error) bool {
	var i impostor
	return errors.As(err, &i)
}

// canAsk says whether there is an address at which a peer may be asked.
func (c *connecting) canAsk(s *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.listens && c.addresses[s.peer.id] != ""
}

// refusals counts how often in a row it was heard that nobody listens.
type refusals struct {
	count int
	since time.Time
}

// enough takes the outcome of an attempt and says whether the peer's process must have ended.
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
