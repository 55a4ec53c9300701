package chassis

import (
	"fmt"

	"dsmd/transport"
)

// CheckControl panics if a control part has a length that Send does not allow.
func CheckControl(name string, control []byte) {
	if len(control) == 0 || len(control) > transport.MaxControlBytes {
		panic(fmt.Sprintf("%s: Send of a control part of %d bytes; it must have 1 to %d", name, len(control), transport.MaxControlBytes))
	}
}

// NoPeer panics because a node has no such peer.
func NoPeer(name string, self transport.NodeID, nodes int, id transport.NodeID) {
	panic(fmt.Sprintf("%s: node %d of %d has no peer %d", name, self, nodes, id))
}
