// Package fabric measures what lies below the shared memory: the network's own operations, by RDMA
// and by TCP, and what a page costs that travels through a transport.
//
// A measurement has two ends. One, the Session, drives it and takes the times; the other serves it
// (Serve), in the same process or on another machine. They agree by a TCP connection on a Spec, the
// ends tell each other how they are reached, and then one drives and the other serves until it is
// told to stop.
//
// # How the operations are measured
//
// Latency is taken as perftest (ib_write_lat and its sisters) takes it. Writes and sends go back
// and forth, and the latency is half of that: the receiver of a write looks at the last bytes of
// the message in its memory, that of a send at its completion queue. Reads have an answer of their
// own, and the latency is all of it. Both ends poll, each on a thread of its own. Of RDMA's own
// operations only those are measured that a fetch is made of; perftest measures all of them, by
// size and over many connections. TCP, which perftest does not have, is measured by size and over
// many connections, too: what its connections move until all has arrived.
//
// A fetch is what a page fault asks for: a small request, and a page with a message as the answer.
// One-sided fetches read the page without the other end's doing; two-sided fetches ask it, as the
// protocol must, since the page's owner has to give it up.
//
// The designs are three ways to have registered memory for a page that travels: slots of a pool
// that is registered once, and copies into and out of them; registering the page for each transfer;
// and keeping registrations in a cache of bounded size.
//
// RDMA needs the build tag rdma. Everything else works without it, and Devices says what is
// missing.
package fabric
