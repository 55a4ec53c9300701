// Package transport moves frames between the nodes of a cluster.
//
// A frame is a short control message and, optionally, one page of payload. The
// package knows nothing about what either means: the coherence protocol, the
// engine and the page table are strangers to it.
//
// There is one interface, Transport, and one conformance suite,
// transporttest.Run, which every implementation passes:
//
//   - transport/tcp: TCP, one connection at a time for each pair of nodes.
//   - transport/rdma: RDMA, over TCP, where both nodes have a device.
//   - transport/sim: an in-memory network with seeded delays and faults.
//   - transport/emulated: any of these, as slow as a given network.
//
// Connections are not part of the interface. One that breaks is made again, and nothing but time is
// lost: frames arrive exactly once and in order all the same, for which transporttest.RunCuts is
// the suite. A peer is lost only when it is not there any more.
//
// # Incarnations
//
// A node's number outlives its process. Each Transport is one incarnation of its node, and it is
// incarnations that are connected and lost: PeerUp and PeerDown come at most once for each. One
// that is lost does not come back. Another one may, a new process under the same number, after
// Transport.Readmit; for that transporttest.RunReturns is the suite. Whether a cluster wants that
// is for the layers above to decide. One that ends with the loss of any node never calls Readmit.
//
// An incarnation is started in one of two ways, which the transport is told: it founds a cluster
// with all others, or it joins one that runs. A node that was readmitted is connected only if it
// joins. One that founds would take itself for a member of the first cluster, in which the others
// are not any more; it is told ErrGoneOn.
//
// The interface is polled rather than pushed, because the daemon is a
// run-to-completion reactor: whoever receives a frame acts on it at once, on the
// same thread, with no hand-over between goroutines. Polling also fits RDMA, where
// a completion queue is polled and costs no system call, and where the payload
// of a frame is written by the peer into a slot that the receiver registered once.
//
// Concurrency: Poll, Arm, Lease, Send, Flush, Disconnect, Readmit and the methods of payloads
// belong to one goroutine, the reactor's. WaitFD, Stats and Close may be called from any goroutine.
// No method except Close blocks.
package transport

import "errors"

// NodeID names a node of the cluster, from 0 to the number of nodes minus one.
type NodeID uint16

// MaxControlBytes bounds the control part of a frame. The largest control messages are
// the answers of reductions (one contribution of every rank) and of allocations.
const MaxControlBytes = 128 << 10

var (
	// ErrClosed is returned by Send and Poll after Close.
	ErrClosed = errors.New("transport: closed")
	// ErrPeerDown is returned by Send for a peer that is lost, until it is readmitted.
	ErrPeerDown = errors.New("transport: peer is down")
	// ErrGoneOn is wrapped by the error of an attempt to connect this node as one that founds a
	// cluster. The others run one already, and have gone on without the former process of this
	// node.
	ErrGoneOn = errors.New("transport: the others run a cluster already, and have gone on without this node")
	// ErrNoCluster is wrapped by the error of an attempt to connect this node as one that joins a
	// cluster. None runs: all others were started to found one, and wait for this node.
	ErrNoCluster = errors.New("transport: no cluster runs that this node could join")
	// ErrBacklog is returned by Send when a peer has left more bytes unsent or unconfirmed than
	// the protocol can ever have outstanding: the peer is stuck, or this is a bug.
	ErrBacklog = errors.New("transport: too much is queued for this peer")
)

// Payload is the page that travels with a frame.
//
// A payload has one owner at any time. Lease gives it to the caller; Send takes it back.
// A Handler may look at the payload it is given until Frame returns; to look at it
// longer it calls Keep, and then Release exactly once when done. Only a payload from Lease can
// be sent, and only to the peer it was leased for. A method called by one who no longer
// owns the payload is a bug that would hand out the contents of another page: it panics.
// On RDMA a payload is a slot of registered memory, on TCP a buffer of a pool.
type Payload interface {
	// Bytes is the page, always PageBytes long. The slice dies with the payload.
	Bytes() []byte
	// Keep makes the payload outlive the call of Handler.Frame it was passed to.
	Keep()
	// Release gives a kept or a leased-but-never-sent payload back.
	Release()
}

// Handler receives what Poll finds. Its methods run on the goroutine that calls Poll and
// may call Lease, Send and Flush, but neither Poll nor Close.
type Handler interface {
	// Frame is one frame of peer from, in the order in which from sent its frames to this
	// node. control is valid until Frame returns. payload is nil if none was sent.
	Frame(from NodeID, control []byte, payload Payload)
	// PeerUp says that frames can now be exchanged with the peer. It is called once for each
	// incarnation of the peer, before its first frame.
	PeerUp(peer NodeID)
	// PeerDown says that this incarnation of the peer is lost for good. Frames sent to it since an
	// unknown point are lost, and none will come. It is called at most once for each incarnation;
	// without PeerUp before it only if the host has called Disconnect for a peer that was not
	// connected.
	//
	// err says why: the peer has closed its transport, its process has ended or was replaced by
	// another, it sent what is no frame, it or this node has called Disconnect, or it was out of
	// reach for too long. The end of a connection alone is no reason.
	PeerDown(peer NodeID, err error)
}

// Transport connects this node to all others.
type Transport interface {
	// Self is this node.
	Self() NodeID
	// Nodes is the number of nodes in the cluster, this one included.
	Nodes() int
	// PageBytes is the size of every payload.
	PageBytes() int

	// Lease returns a payload to be filled and sent to the given peer, never nil. Its
	// contents are undefined.
	Lease(to NodeID) Payload

	// Send queues one frame. It copies control before it returns, and takes over payload, which may
	// be nil, also when it fails. It never blocks: later calls of Flush or Poll send what the
	// network does not take now. Frames to one peer arrive in the order of their sending, each
	// exactly once, unless the peer goes down. Frames sent before PeerUp wait for it.
	//
	// Errors: ErrClosed, ErrPeerDown, ErrBacklog; the frame was not queued then. Preconditions: to
	// != Self(), len(control) in 1..MaxControlBytes, payload leased for to.
	Send(to NodeID, control []byte, payload Payload) error

	// Flush hands all queued frames to the network, as far as it takes them without blocking. Poll
	// goes on with the rest, which is something to do for one who sleeps on WaitFD.
	Flush()

	// Poll delivers what has arrived, at most max frames, and returns how many it delivered.
	// It never blocks. The error is ErrClosed or a failure of the transport as a whole; the
	// failure of one peer is reported by Handler.PeerDown.
	Poll(h Handler, max int) (int, error)

	// WaitFD is a descriptor that becomes readable (poll, epoll, level-triggered) when Poll has
	// something to do, provided that Arm was called after the last Poll. Close makes it readable
	// and leaves it open, so that a sleeping reactor wakes and finds out.
	WaitFD() int

	// Arm prepares to sleep on WaitFD. It returns true if there is work already, and then the
	// caller polls again instead of sleeping. It flushes: no frame is forgotten by one who sleeps.
	Arm() bool

	// Disconnect parts with a peer at once, because it does not behave. Frames on their way in
	// either direction are lost; the next Poll reports PeerDown with the given reason. It does
	// nothing for a peer that is down already, or after Close.
	Disconnect(peer NodeID, reason error)

	// Readmit lets a peer come back. From now on another incarnation of it that joins is welcome.
	// To this node it is a peer that was never connected. Frames sent before PeerUp wait for it,
	// and the first frame that arrives is the first it has sent. Nothing is delivered that was sent
	// to or by the lost incarnation. That one stays unwelcome, and is told why it was lost if it
	// calls again. Two incarnations that have lost each other never meet again, even if each
	// readmits the other's node.
	//
	// Whichever of the two makes the connection tries on for as long as the transport lives. A peer
	// that does not come causes no PeerDown, however long that takes. Disconnect reports one, and
	// ends the attempts. Readmit may be called again after PeerDown of the incarnation that has
	// come, or that was waited for. It does nothing after Close.
	//
	// Preconditions: PeerDown was called for the peer, or is being called, and Readmit was not
	// since; no payload is sent that was leased for the peer before.
	Readmit(peer NodeID)

	// Stats returns a copy of the counters.
	Stats() Stats

	// Close takes leave of all peers. Before that it tries, for at most one second, to deliver what
	// was sent, and waits until they have confirmed it. Leased and kept payloads may still be
	// released afterwards.
	Close() error
}

// Stats counts what a transport did since it started.
type Stats struct {
	FramesSent, FramesReceived     uint64
	PayloadsSent, PayloadsReceived uint64
	BytesSent, BytesReceived       uint64 // on the wire, headers included
	SendCalls, ReceiveCalls        uint64 // system calls or work requests, to see batching
	QueuedBytes                    uint64 // gauge: accepted by Send, not yet taken by the network
}
