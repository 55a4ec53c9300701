// Package tcp carries frames between nodes over TCP, one connection at a time for each pair of
// nodes.
//
// # Life of a connection
//
// New makes a Transport around a socket that already listens. Connect starts ordinary
// goroutines: each node calls the nodes with lower numbers and accepts those with higher ones,
// so that a pair never calls both ways. The two exchange a greeting (handshake.go) and
// part again, each with an error that says what differs, when they are not of the same
// cluster. After that the descriptor is taken out of Go's network poller and handed to the
// reactor's side, which learns of it in its next Poll and reports Handler.PeerUp. From
// there on no goroutine but the reactor's touches it. Frames sent earlier wait in the peer's queue.
//
// # When a connection breaks
//
// What one node sends another is one stream of bytes over all their connections. A node keeps what
// it has sent until the other has confirmed it (sendqueue.go), and each greeting says how many
// bytes have come, so that the next connection goes on at the very byte, in the middle of a frame
// if need be. What comes twice, because the old connection brought more meanwhile, is skipped.
// Confirmations travel in the headers of frames; a frame of its own is spent on one only after 64
// KiB that were not answered.
//
// The node that has called calls again, at once and then with growing pauses (restore.go). The
// pauses go on growing when connections are made, and break before anything has come by them. The
// other waits for it, and asks at the peer's address when the call does not come: a peer that has
// not noticed the end of a connection learns of it that way. A peer is lost, which is reported
// once, when
//
//   - it says goodbye, as Close does;
//   - its machine says that nobody listens at its address any more;
//   - another process answers or calls as this node: each Transport draws an incarnation, which
//     greetings carry;
//   - the bytes that it sends are no frames, or confirm what was never sent;
//   - one of the two has called Disconnect;
//   - it was out of reach for Config.GiveUp.
//
// A peer that is merely slow, or stopped, keeps its connection: its kernel answers for it. A
// machine that does not answer at all, though nothing ends the connection, is noticed after a third
// of GiveUp.
//
// # When a node comes back
//
// A peer that is lost stays so: its incarnation is refused, and told why. After Readmit another
// incarnation may take its place. The reactor's half of the peer and the goroutines' half, its
// session, are then made anew (readmit.go), and with them both streams; what goroutines still find
// out for the former halves comes to nothing. The numbers decide who calls, as ever: a node calls
// the peer that it has readmitted if that has a lower number, and else waits. The node that comes
// back is started with Config.Joining. Members refuse it as long as they have not lost its former
// incarnation, for which its call may be the evidence, and have not readmitted it. A refusal says
// whether it is of that kind, and then the node calls again.
//
// # Who is there
//
// A connection begins with a nonce of each side. From then on each side's turn in the handshake
// ends with a tag, a MAC under Config.Secret of all that both have said (proof.go,
// docs/decisions/0029). Nothing in a greeting is looked at before its tag fits: who does not know
// the secret cannot be a peer, bring news of one, or have anything kept. Without a secret the tags
// prove nothing, and TLS has to say who is there.
//
// # Under TLS
//
// With Config.TLS the greetings and frames pass through crypto/tls (secure.go). The goroutine that
// makes a connection does the handshake; afterwards crypto/tls reads from one buffer and writes to
// another, which the reactor fills from the socket and empties into it. Counters of bytes count
// what is encrypted, not what that becomes.
//
// # On the wire
//
// A frame is a header of sixteen bytes, the control part, and the page if there is one (frame.go):
//
//	kind            u32, little-endian: control, control and page, confirmation, goodbye
//	control length  u32, 1 to transport.MaxControlBytes; 0 of a confirmation, 0 to 512 of a goodbye
//	confirmed       u64, how many bytes of the receiver's stream the sender has
//	control         of a goodbye: why the sender ends, as text; none: it was told to
//	page
//
// Anything else ends the peer. The lengths are checked before anything is
// reserved for them, so that a broken peer cannot make this node allocate.
//
// # Cost
//
// Sending copies the control part, never the page: Flush gives the kernel a vector of headers and
// pages in one call, and a page goes back to the pool when it is confirmed. Receiving takes one
// call for all that has arrived from a peer, and frames are delivered where they lie in the receive
// buffer; Keep is the one thing that copies a page. In steady state neither side allocates. With
// few peers Poll goes straight to the sockets; with more it asks epoll first, apart from the peer
// that was busy last.
//
// # Ownership and locks
//
// There is one gate, Transport.gate, and it is not for waiting: the reactor is inside during a
// method, and Close goes in and stays. Whoever finds it taken therefore knows that the transport is
// closed. The goroutines that make connections have epoll watch each one before they hand it over:
// where that fails the connection could not be made. They share among themselves connecting.mu,
// which the reactor takes only when it loses a connection or a peer. With the reactor they share
// the list of arrivals, under arrivals.mu, and peer.received, which is atomic. The order is the
// gate, then one of the two locks; those are never held together.
package tcp
