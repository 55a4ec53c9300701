package transporttest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/patience"
	"dsmd/transport"
)

// limit bounds every wait of the suite. Nothing takes this long unless a wake-up was lost.
var limit = patience.Or(20 * time.Second)

// reactor is one node under test: a transport, and a handler that holds the transport to its
// promises about the order of calls. It belongs to one goroutine.
type reactor struct {
	t       *testing.T
	tr      transport.Transport
	max     int // what Poll is called with
	up      []bool
	ups     int // how many PeerUps have come
	down    []error
	onFrame func(from transport.NodeID, control []byte, payload transport.Payload)
	onUp    func(peer transport.NodeID)
	onDown  func(peer transport.NodeID)
	frames  int // how many have arrived
}

func newReactor(t *testing.T, tr transport.Transport) *reactor {
	return &reactor{t: t, tr: tr, max: 64, up: make([]bool, tr.Nodes()), down: make([]error, tr.Nodes())}
}

// Frame implements transport.Handler.
func (r *reactor) Frame(from transport.NodeID, control []byte, payload transport.Payload) {
	if !r.up[from] || r.down[from] != nil {
		r.t.Errorf("node %d: a frame from node %d, up: %v, down: %v", r.tr.Self(), from, r.up[from], r.down[from])
	}
	if payload != nil && len(payload.Bytes()) != r.tr.PageBytes() {
		r.t.Errorf("node %d: a payload of %d bytes, want %d", r.tr.Self(), len(payload.Bytes()), r.tr.PageBytes())
	}
	r.frames++
	if r.onFrame != nil {
		r.onFrame(from, control, payload)
	}
}

// PeerUp implements transport.Handler.
func (r *reactor) PeerUp(peer transport.NodeID) {
	if peer == r.tr.Self() || r.up[peer] || r.down[peer] != nil {
		r.t.Errorf("node %d: PeerUp of node %d, up: %v, down: %v", r.tr.Self(), peer, r.up[peer], r.down[peer])
	}
	r.up[peer] = true
	r.ups++
	if r.onUp != nil {
		r.onUp(peer)
	}
}

// PeerDown implements transport.Handler.
func (r *reactor) PeerDown(peer transport.NodeID, err error) {
	if err == nil || r.down[peer] != nil {
		r.t.Errorf("node %d: PeerDown of node %d with reason %v, down before: %v", r.tr.Self(), peer, err, r.down[peer])
		return
	}
	r.down[peer] = err
	if r.onDown != nil {
		r.onDown(peer)
	}
}

// readmit lets a peer come back, and holds the transport to its promises about the next
// incarnation.
func (r *reactor) readmit(peer transport.NodeID) {
	r.tr.Readmit(peer)
	r.up[peer], r.down[peer] = false, nil
}

// expect has all frames that come compared with those of a stream.
func (r *reactor) expect(in *stream) {
	r.onFrame = func(_ transport.NodeID, control []byte, payload transport.Payload) {
		if err := in.take(control, payload); err != nil && !r.t.Failed() {
			r.t.Error(err)
		}
	}
}

// sendNext sends the next frames of a stream, all of which must be taken.
func (r *reactor) sendNext(out *stream, to transport.NodeID, frames int) {
	r.t.Helper()
	for range frames {
		out.next()
		if err := out.send(r.tr, to); err != nil {
			r.t.Fatalf("node %d: Send to node %d: %v", r.tr.Self(), to, err)
		}
	}
}

// poll polls once, which must succeed, and returns how many frames came.
func (r *reactor) poll() int {
	before := r.frames
	n, err := r.tr.Poll(r, r.max)
	if err != nil {
		r.t.Errorf("node %d: Poll: %v", r.tr.Self(), err)
	}
	if n != r.frames-before || n > r.max {
		r.t.Errorf("node %d: Poll(%d) returned %d and delivered %d frames", r.tr.Self(), r.max, n, r.frames-before)
	}
	return n
}

// runUntil polls, and sleeps on WaitFD when there is nothing to do, until done. what names what is
// waited for.
func (r *reactor) runUntil(what string, done func() bool) bool {
	deadline := time.Now().Add(limit)
	for !done() {
		if r.poll() > 0 || done() {
			continue
		}
		if r.tr.Arm() {
			if time.Now().After(deadline) {
				r.t.Errorf("node %d: waited %v for %s, always with work to do", r.tr.Self(), limit, what)
				return false
			}
			continue
		}
		for !sleep(r.tr, time.Now().Add(nap)) {
			if done() {
				return true
			}
			if time.Now().After(deadline) {
				r.t.Errorf("node %d: nothing woke it in %v while it waited for %s", r.tr.Self(), limit, what)
				return false
			}
		}
	}
	return true
}

// nap is how long a reactor sleeps until it asks whether what it waits for has happened elsewhere.
// It does not poll then: nothing but WaitFD lets it.
const nap = 100 * time.Millisecond

// closing is a Close that runs while others are polled: it may wait for them to read.
type closing struct {
	over chan struct{}
	took time.Duration // when it is over
}

// close begins to close the node.
func (r *reactor) close() *closing {
	c := &closing{over: make(chan struct{})}
	go func() {
		defer close(c.over)
		began := time.Now()
		if err := r.tr.Close(); err != nil {
			r.t.Errorf("node %d: Close: %v", r.tr.Self(), err)
		}
		c.took = time.Since(began)
	}()
	return c
}

// ended reports whether Close has returned.
func (c *closing) ended() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

// closeTries is how long Close tries to deliver what was sent, at least.
const closeTries = time.Second

// gaveUp reports whether Close has returned and need not have delivered what was sent.
func (c *closing) gaveUp() bool { return c.ended() && c.took >= closeTries }

// untilDelivered runs a test of what Close delivers until Close did not give up, as it does when
// this process is away for a while.
func untilDelivered(t *testing.T, run func() *closing) {
	t.Helper()
	for deadline := time.Now().Add(limit); run().gaveUp(); {
		if time.Now().After(deadline) {
			t.Fatalf("each Close in %v has taken %v or longer", limit, closeTries)
		}
	}
}

// serveUntil polls, and sleeps for a moment when there is nothing to do, until others are ready: a
// node that has nothing to wait for itself must go on, because others need its confirmations.
func (r *reactor) serveUntil(others *sync.WaitGroup) {
	ready := make(chan struct{})
	go func() { others.Wait(); close(ready) }()
	for {
		select {
		case <-ready:
			return
		default:
		}
		if r.poll() == 0 && !r.tr.Arm() {
			sleep(r.tr, time.Now().Add(time.Millisecond))
		}
	}
}

// asleep has a node that has sent what it wants sleep on WaitFD, and poll only when that says so,
// until stop is called: its network may not have taken everything yet.
func (r *reactor) asleep() (stop func()) {
	over := make(chan struct{})
	var sleeping sync.WaitGroup
	sleeping.Go(func() {
		for {
			if r.tr.Arm() || sleep(r.tr, time.Now().Add(time.Millisecond)) {
				r.poll()
			}
			select {
			case <-over:
				return
			default:
			}
		}
	})
	return func() {
		close(over)
		sleeping.Wait()
	}
}

// sleep waits until WaitFD is readable and reports false when the deadline comes first.
func sleep(tr transport.Transport, deadline time.Time) bool {
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		fds := []unix.PollFd{{Fd: int32(tr.WaitFD()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(left.Milliseconds())+1)
		if err != nil && err != unix.EINTR {
			panic(fmt.Sprintf("transporttest: poll descriptor %d: %v", tr.WaitFD(), err))
		}
		if n > 0 {
			return true
		}
	}
}

// spinner is for those who poll without sleeping. Now and then, when nothing has come, it leaves
// the processor to those who make connections and to other tests.
type spinner struct{ idle int }

const (
	spinRounds = 16 // without anything before a pause
	spinPause  = 20 * time.Microsecond
)

// polled notes how many frames a round of polling has brought.
func (s *spinner) polled(frames int) {
	if s.idle++; frames > 0 {
		s.idle = 0
	} else if s.idle%spinRounds == 0 {
		time.Sleep(spinPause)
	}
}

// byHand polls several nodes in turn, from one goroutine, until done.
func byHand(t *testing.T, what string, nodes []*reactor, done func() bool) {
	t.Helper()
	var spin spinner
	for deadline := time.Now().Add(limit); !done(); {
		frames := 0
		for _, r := range nodes {
			r.tr.Flush()
			frames += r.poll()
		}
		spin.polled(frames)
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", limit, what)
		}
	}
}
