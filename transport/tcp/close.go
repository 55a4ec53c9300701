package tcp

import (
	"time"

	"golang.org/x/sys/unix"

	"dsmd/transport"
)

const (
	// drainTimeout bounds how long Close tries to deliver what was sent.
	drainTimeout = time.Second
	// drainPause is how long Close waits for a change before it looks again whether a connection was made again, which
	// no socket reports.
	drainPause = time.Millisecond
)

// Close implements transport.Transport. It may be called more than once; later calls return at once.
func (t *Transport) Close() error {
	if t.closing.Swap(true) {
		return nil
	}
	t.wait.event.Signal()
	t.mu.Lock()           // The reactor leaves the method it is in. Nobody unlocks: the transport stays closed.
	t.wait.event.Signal() // The first signal may have been cleared since. From here on nobody does that.
	t.drain()
	t.release()
	return nil
}

// release ends all goroutines and connections. Preconditions: closing is set, mu is held.
func (t *Transport) release() {
	t.connect.stop()
	t.connect.work.Wait()
	for _, a := range t.arrivals.take(nil) {
		if a.kind == arrivedConnection {
			unix.Close(a.fd)
		}
	}
	for _, p := range t.up {
		unix.Close(p.fd)
	}
}

// silent is the Handler of a transport that closes.
type silent struct{}

func (silent) Frame(transport.NodeID, []byte, transport.Payload) {}
func (silent) PeerUp(transport.NodeID)                           {}
func (silent) PeerDown(transport.NodeID, error)                  {}

// drain says goodbye to every peer and waits until all have confirmed that, and with it everything before. Connections that are cut
// meanwhile are made again. What arrives is thrown away: a peer that cannot send may not read either.
func (t *Transport) drain() {
	t.draining = true
	for _, p := range t.peers {
		if p != nil {
			p.queue.orphaned = true
		}
	}
	greeted := make([]bool, len(t.peers))
	for deadline := time.Now().Add(drainTimeout); ; {
		t.adopt(t.arrivals.take(nil), silent{}) // The event stays signalled: a reactor that sleeps is to wake.
		var waiting []unix.PollFd
		open := false
		for i, p := range t.peers {
			if p == nil || p.state != peerUp && p.state != peerSevered {
				continue
			}
			if !greeted[i] {
				greeted[i] = true
				t.note(p, frameGoodbye)
			}
			events := t.drainPeer(p)
			if p.queue.held() == 0 || p.state == peerLost {
				continue
			}
			open = true
			if p.state == peerUp {
				waiting = append(waiting, unix.PollFd{Fd: int32(p.fd), Events: events})
			}
		}
		if !open || time.Now().After(deadline) {
			return
		}
		// An error here is EINTR, and then the loop looks again.
		unix.Poll(waiting, int(drainPause/time.Millisecond))
	}
}

// drainPeer makes what progress it can and returns the poll events to wait for.
func (t *Transport) drainPeer(p *peer) int16 {
	t.flushPeer(p)
	for more := true; more && p.state == peerUp; {
		before := p.received.Load()
		t.serve(p, silent{}, 1)
		more = p.received.Load() != before
	}
	if p.flushed() {
		return unix.POLLIN
	}
	return unix.POLLIN | unix.POLLOUT
}
