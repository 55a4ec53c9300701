package tcp

import (
	"time"

	"golang.org/x/sys/unix"

	"dsmd/transport"
)

const (
	// drainTimeout bounds how long Close tries to deliver what was sent.
	drainTimeout = time.Second
	// drainPause is how long Close waits for a change before it looks again whether a connection
	// was made again, which no socket reports.
	drainPause = time.Millisecond
)

// Explain says that Close follows, and why: the peers' PeerDown says so. At most 512 bytes are
// told, and of these only what is printable ASCII is kept. Without it, or with "", they are told
// that this node was told to end. From now on nothing is logged: the peers may part with this node
// before it closes. It belongs to the reactor's goroutine, and tells nobody after Close.
func (t *Transport) Explain(why string) {
	t.ending.Store(true)
	if t.gate.Enter() {
		t.why = why[:min(len(why), maxGoodbyeBytes)]
		t.gate.Leave()
	}
}

// Close implements transport.Transport. It may be called more than once; later calls return at
// once.
func (t *Transport) Close() error {
	if t.gate.Close(t.wait.Event.Signal) {
		t.drain()
		t.release()
	}
	return nil
}

// release ends all goroutines and connections. Preconditions: the gate is closed.
func (t *Transport) release() {
	t.connect.stop()
	t.connect.work.Wait()
	for _, a := range t.arrivals.take(false) {
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

// drain says goodbye to every peer and waits until all have confirmed that, and with it everything
// before. Connections that are cut meanwhile are made again. What arrives is thrown away: a peer
// that cannot send may not read either.
func (r *reactor) drain() {
	r.draining = true
	greeted := make([]bool, len(r.peers))
	for deadline := time.Now().Add(drainTimeout); ; {
		// The event stays signalled: a reactor that sleeps is to wake.
		r.adopt(r.arrivals.take(false), silent{})
		var waiting []unix.PollFd
		open := false
		for i, p := range r.peers {
			if p == nil || p.state != peerUp && p.state != peerSevered {
				continue
			}
			if !greeted[i] {
				greeted[i] = true
				r.note(p, frameGoodbye, r.why)
			}
			events := r.drainPeer(p)
			if p.queue.unconfirmed() == 0 || p.state == peerLost {
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
func (r *reactor) drainPeer(p *peer) int16 {
	r.flushPeer(p)
	for more := true; more && p.state == peerUp; {
		before := p.received.Load()
		r.serve(p, silent{}, 1)
		more = p.received.Load() != before
	}
	if p.flushed() {
		return unix.POLLIN
	}
	return unix.POLLIN | unix.POLLOUT
}
