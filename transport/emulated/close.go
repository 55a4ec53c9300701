package emulated

import (
	"time"

	"dsmd/transport"
)

const (
	// closeTimeout is how long Close waits for frames to become due. Those that are not by then
	// leave at once: better early than never. The base has its own second after that.
	closeTimeout = 500 * time.Millisecond
	// closePause bounds how long Close waits until it looks again.
	closePause = time.Millisecond
	// closeFrames is how many frames that come meanwhile are dealt with at a time.
	closeFrames = 64
)

// Close implements transport.Transport. The base takes leave when all frames that are held were
// given to it.
func (t *Transport) Close() error {
	if !t.gate.Close(t.wait.Event.Signal) {
		return nil
	}
	t.drain()
	return t.base.Close()
}

// drain gives the base all that is held.
func (t *Transport) drain() {
	for deadline := t.now() + closeTimeout; len(t.held) > 0; {
		now := t.now()
		late := now >= deadline
		if late {
			now += MaxLatency + t.cardFree // when all are due
		}
		t.handOverUntil(now)
		t.base.Flush()
		// A base that refuses frames has to hear from the peers before it takes them.
		if _, err := t.base.Poll((*closing)(t), closeFrames); err != nil || late {
			return
		}
		pause := closePause
		if due, ok := t.nextDue(); ok {
			pause = min(pause, due-t.now())
		}
		time.Sleep(pause)
	}
}

// closing is the Handler of the base while the transport closes. Frames that come are thrown away,
// as when the base closes.
type closing Transport

// Frame implements transport.Handler.
func (*closing) Frame(transport.NodeID, []byte, transport.Payload) {}

// PeerUp implements transport.Handler.
func (*closing) PeerUp(transport.NodeID) {}

// PeerDown implements transport.Handler.
func (c *closing) PeerDown(id transport.NodeID, err error) {
	(*Transport)(c).lose(c.peers[id], err)
}
