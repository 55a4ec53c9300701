package rdma

import (
	"errors"
	"fmt"
	"time"

	"dsmd/internal/verbs"
	"dsmd/transport"
)

const (
	// drainTimeout bounds how long Close waits for the peers to take what was sent.
	drainTimeout = time.Second
	// linkTimeout is how long queue pairs have for that. A device may take longer to find out that
	// its packets are lost than Close may last. So what is not acknowledged by then goes on the
	// base transport.
	linkTimeout = drainTimeout / 4
	// drainPause is between two looks at the device meanwhile.
	drainPause = 50 * time.Microsecond
	// drainFrames is how many frames of the base transport are dealt with at a time meanwhile.
	drainFrames = 64
)

// Close implements transport.Transport.
func (t *Transport) Close() error {
	if !t.gate.Close(t.wait.Event.Signal) {
		return nil
	}
	t.clock.timer.Stop()
	t.drain()
	// The peers learn from the base transport that this node has ended, before their queue pairs
	// fail.
	err := t.base.Close()
	for _, l := range t.links {
		l.end.fail()
		err = errors.Join(err, l.end.close())
	}
	t.counts.linksUp.Store(0)
	err = errors.Join(err, t.fabric.close())
	if err != nil {
		return fmt.Errorf("rdma: close: %w", err)
	}
	return nil
}

// drain sends what waits, and returns when the peers have acknowledged what went by RDMA. It is not
// enough that their devices have it: a queue pair that fails now loses what its owner has not
// looked at. The base delivers what goes on the base.
func (d *deliverer) drain() {
	d.discardInput()
	for _, p := range d.peers {
		if p != nil && p.path == pathChoose && p.lost == nil {
			d.setPath(p, pathBase)
		}
		if p != nil && p.lost == nil && p.ackSent < p.dealt {
			d.sendAck(p, 0) // If the peer closes as well, it waits for this.
		}
	}
	asked := make(map[*link]bool)
	for start := time.Now(); ; time.Sleep(drainPause) {
		done := true
		late := time.Since(start) > linkTimeout
		for _, p := range d.peers {
			if p == nil || p.lost != nil {
				continue
			}
			if drained := d.drainPeer(p, asked); !drained {
				done = false
				if late && p.path == pathLink {
					d.breakLink(p, errSlowEnd, true)
				}
			}
		}
		d.flush()
		if done || time.Since(start) > drainTimeout {
			return
		}
		d.discardInput()
		if _, err := d.base.Poll((*drainHandler)(d), drainFrames); err != nil {
			return // It has ended, and nobody is reached any more.
		}
	}
}

var errSlowEnd = errors.New("rdma: it has not acknowledged everything in time, and this node ends")

// drainHandler is the Handler of the base transport while this one closes.
type drainHandler deliverer

// PeerUp implements transport.Handler.
func (*drainHandler) PeerUp(transport.NodeID) {}

// PeerDown implements transport.Handler.
func (d *drainHandler) PeerDown(id transport.NodeID, err error) { d.peers[id].lost = err }

// Frame implements transport.Handler.
func (d *drainHandler) Frame(from transport.NodeID, frame []byte, _ transport.Payload) {
	p := d.peers[from]
	if p.path == pathPlain || note(frame[0]) != noteMessage {
		return
	}
	if h, _, err := readHeader(frame[1:]); err == nil {
		(*deliverer)(d).dismiss(p, h)
	}
}

// drainPeer makes what progress it can, and returns true if the peer has everything or can get
// nothing more. asked notes on which queue pairs an acknowledgement was asked for.
func (d *deliverer) drainPeer(p *peer, asked map[*link]bool) bool {
	d.flushPeer(p)
	l := p.link
	switch {
	case p.path == pathNone:
		return true
	case !p.queue.empty() || p.sent < p.last:
		return false
	case p.path != pathLink || p.acked == p.last:
		return true
	}
	if !asked[l] {
		asked[l] = d.sendAck(p, flagAck)
	}
	return false
}

// discardInput deals with acknowledgements and completions, and with nothing else.
func (d *deliverer) discardInput() {
	for d.refill() {
		for ; d.next < d.end; d.next++ {
			d.discard(&d.completions[d.next])
		}
	}
	d.repost(0)
}

func (d *deliverer) discard(c *verbs.Completion) {
	if c.ID&recvMark == 0 || c.Status != verbs.Success {
		d.complete(c)
		return
	}
	block := c.ID &^ recvMark
	if l := d.links[c.QPN]; l != nil && l.peer.link == l {
		if h, _, err := d.read(l, block, c); err == nil {
			d.dismiss(l.peer, h)
		}
	}
	d.spend(block)
}

// dismiss takes a message that nobody will look at for dealt with, so that a peer that closes as
// well need not wait for that.
func (d *deliverer) dismiss(p *peer, h header) {
	// What is wrong with it no longer matters.
	_ = d.takeAck(p, h.ack)
	if h.number == p.received+1 {
		p.received, p.dealt = h.number, h.number
	}
	if h.flags&flagAck != 0 {
		d.sendAck(p, 0)
	}
}
