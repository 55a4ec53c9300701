// Package tcp carries frames between nodes over TCP, one connection for each pair of nodes.
//
// # Life of a connection
//
// New makes a Transport around a socket that already listens. Connect starts ordinary
// goroutines: each node dials the nodes with lower numbers and accepts those with higher ones,
// so that a pair never dials both ways. The two exchange a greeting (handshake.go) and
// part again, each with an error that says what differs, when they are not of the same
// cluster. After that the descriptor is taken out of Go's network poller and handed to the
// reactor's side, which learns of it in its next Poll and reports Handler.PeerUp. From
// there on no goroutine but the reactor's touches it. Frames sent earlier wait in the peer's queue.
//
// A connection that ends is not made again: the peer is reported lost, once, and stays so.
//
// # On the wire
//
// A frame is a header of eight bytes, the control part, and the page if there is one:
//
//	control length  u32, little-endian, 1 to transport.MaxControlBytes
//	payload length  u32, little-endian, 0 or the size of a page
//	control
//	payload
//
// Anything else ends the connection (frame.go). The lengths are checked before anything is
// reserved for them, so that a broken peer cannot make this node allocate.
//
// # Cost
//
// Sending copies the control part, never the page: Flush gives the kernel a vector of headers and
// pages in one call. Receiving takes one call for all that has arrived from a peer, and frames are
// delivered where they lie in the receive buffer; Keep is the one thing that copies a page. In
// steady state neither side allocates. With few peers Poll goes straight to the sockets; with
// more it asks epoll first, apart from the peer that was busy last.
//
// # Ownership and locks
//
// There is one lock, Transport.mu, and it is not for waiting: the reactor holds it while it is inside
// a method, and gives it up when it leaves. Close takes it and keeps it. Whoever finds it taken
// therefore knows that the transport is closed. Connect's goroutines share with the
// reactor only the list of arrivals, under arrivalsMu, which is never held together with another lock.
package tcp
