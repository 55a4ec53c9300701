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

// PeerOf is a peer by its number, which must be another node of the cluster: peers is by node, and
// nil at the node itself.
func PeerOf[P any](name string, self transport.NodeID, peers []*P, id transport.NodeID) *P {
	if int(id) >= len(peers) || peers[id] == nil {
		panic(fmt.Sprintf("%s: node %d of %d has no peer %d", name, self, len(peers), id))
	}
	return peers[id]
}
