package rdma_test

import (
	"encoding/gob"
	"errors"
	"fmt"
	"net"

	"dsmd/transport"
)

// nodeSpec says what node is to be made.
type nodeSpec struct {
	Self                             transport.NodeID
	Nodes, PageBytes, MaxQueuedBytes int
	// Cluster is its name, which no other cluster of these machines has.
	Cluster string
}

// testNode is a node that listens and is not connected yet.
type testNode interface {
	// Address is where the others reach it.
	Address() string
	// Start connects it to all others, whose addresses are given by number, and waits until it is.
	// It is called once.
	Start(peers []string) (transport.Transport, error)
}

// nodeMaker makes a node.
type nodeMaker func(nodeSpec) (testNode, error)

// method is what a call is of.
type method int

const (
	callPrepare method = iota
	callStart
	callSend
	callFlush
	callPoll
	callArm
	callDisconnect
	callReadmit
	callStats
	callClose
)

// A call is what a stand-in asks, and a reply the answer. After an Arm that lets the caller sleep,
// there comes one more reply: Ready.
type (
	call struct {
		Method  method
		Spec    nodeSpec
		Peers   []string
		Peer    transport.NodeID
		Control []byte
		Page    []byte // nil: none
		Max     int
	}
	reply struct {
		Ready   bool // it answers no call, but says that WaitFD is readable
		Address string
		Error   failure
		Panic   string
		Events  []event
		N       int
		Armed   bool
		Stats   transport.Stats
	}
)

// An event is a call of the handler.
type event struct {
	Kind    eventKind
	Peer    transport.NodeID
	Control []byte
	Page    []byte
	HasPage bool // gob does not tell an empty page from none
	Reason  string
}

type eventKind int

const (
	eventFrame eventKind = iota
	eventUp
	eventDown
)

// failure is an error on the wire: its text, and which of the package's errors it wraps.
type failure struct {
	Text string
	Is   int // index into known plus 1; 0: none
}

var known = []error{transport.ErrClosed, transport.ErrPeerDown, transport.ErrBacklog}

func failureOf(err error) failure {
	if err == nil {
		return failure{}
	}
	for i, e := range known {
		if errors.Is(err, e) {
			return failure{err.Error(), i + 1}
		}
	}
	return failure{Text: err.Error()}
}

func (f failure) error() error {
	switch {
	case f.Text == "":
		return nil
	case f.Is == 0:
		return errors.New(f.Text)
	}
	return fmt.Errorf("%s: %w", f.Text, known[f.Is-1])
}

// A connection carries calls and replies.
type connection struct {
	net.Conn
	*gob.Encoder
	*gob.Decoder
}

func newConnection(conn net.Conn) *connection {
	return &connection{conn, gob.NewEncoder(conn), gob.NewDecoder(conn)}
}
