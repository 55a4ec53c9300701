package rdma

import (
	"errors"
	"fmt"
	"time"

	"dsmd/internal/verbs"
)

const (
	// drainTimeout bounds how long Close waits for the peers to take what was sent.
	drainTimeout = time.Second
	// drainPause is between two looks at the device meanwhile.
	drainPause = 50 * time.Microsecond
)

// Close implements transport.Transport.
func (t *Transport) Close() error {
	if t.closing.Swap(true) {
		return nil
	}
	t.mu.Lock() // for ever
	t.clock.timer.Stop()
	t.drain()
	// The peers learn from the base transport that this node has ended, before their queue pairs fail.
	err := t.base.Close()
	for _, l := range t.links {
		l.end.fail()
		err = errors.Join(err, l.end.close())
	}
	t.counts.linksUp.Store(0)
	err = errors.Join(err, t.fabric.close())
	t.wait.event.Signal()
	if err != nil {
		return fmt.Errorf("rdma: close: %w", err)
	}
	return nil
}

// drain sends what waits, and returns when the peers' devices have all of it. That is enough: a peer looks for what its device
// has received before it reports that this node is gone.
func (t *Transport) drain() {
	for _, p := range t.peers {
		if p != nil && p.path == pathChoose && p.lost == nil {
			t.setPath(p, pathBase)
		}
	}
	last := make(map[*link]bool)
	for deadline := time.Now().Add(drainTimeout); ; time.Sleep(drainPause) {
		done := true
		for _, p := range t.peers {
			if p != nil && p.lost == nil {
				done = t.drainPeer(p, last) && done
			}
		}
		t.base.Flush()
		if done || time.Now().After(deadline) {
			return
		}
		t.discardInput()
	}
}

// drainPeer makes what progress it can, and returns true if the peer has everything or can get nothing more. last notes
// which queue pairs were asked for a completion of all that they have sent.
func (t *Transport) drainPeer(p *peer, last map[*link]bool) bool {
	t.flushPeer(p)
	l := p.link
	switch {
	case p.path == pathNone:
		return true
	case !p.queue.empty() || p.sent < p.last:
		return false
	case p.path != pathLink || t.broken != nil:
		return true
	}
	if !last[l] && !t.sendAck(p, true) {
		return false
	}
	last[l] = true
	return l.retired == l.posted
}

// discardInput deals with acknowledgements and completions, and with nothing else.
func (t *Transport) discardInput() {
	for t.refill() {
		for ; t.next < t.end; t.next++ {
			t.discard(&t.completions[t.next])
		}
	}
	if err := t.repost(); err != nil {
		t.breakDevice(err)
	}
}

func (t *Transport) discard(c *verbs.Completion) {
	if c.ID&recvMark == 0 || c.Status != verbs.Success {
		t.complete(c)
		return
	}
	block := c.ID &^ recvMark
	if l := t.links[c.QPN]; l != nil && l.peer.link == l {
		if h, _, err := readHeader(t.recvBlock(block, int(c.Bytes))); err == nil {
			// What is wrong with it no longer matters.
			_ = t.takeAck(l.peer, h.ack)
		}
	}
	t.spend(block)
}
