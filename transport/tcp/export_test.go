package tcp

import "dsmd/transport"

// Kill ends a transport as the end of its process does: nobody is told.
func (t *Transport) Kill() {
	if t.gate.Close(t.wait.Event.Signal) {
		t.release()
	}
}

// Break has the reactor hang up on a peer, as it does when the peer says that its end of the
// connection is gone.
func (t *Transport) Break(id transport.NodeID) {
	t.connect.mu.Lock()
	s := t.connect.sessions[id]
	call, peer := s.made, s.peer
	t.connect.mu.Unlock()
	t.arrivals.add(arrival{kind: arrivedBreak, peer: peer, call: call})
}
