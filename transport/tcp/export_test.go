package tcp

import "dsmd/transport"

// Break has the reactor hang up on a peer, as it does when the peer says that its end of the connection is gone.
func (t *Transport) Break(id transport.NodeID) {
	t.connect.mu.Lock()
	call := t.connect.sessions[id].made
	t.connect.mu.Unlock()
	t.arrivals.add(arrival{kind: arrivedBreak, id: id, call: call}, t.wait.event)
}
