// Package emulated makes any transport as slow as a given network, so that one machine foretells
// what a program costs on many.
//
// A Transport is a layer over another one, its base. It holds each frame that Send takes until the
// emulated network would have delivered it, and only then gives it to the base. Nothing is held
// where frames arrive: a delay at the sender is enough, and adds no bytes to any frame.
//
// # The network that is emulated
//
// It is that of Link. Each node has one network card, through which all that it sends passes, to
// whichever peer, in the order of sending. A frame occupies the card for its bytes (those of the
// control part and the page) over the bandwidth. Then it is on its way for the latency. So a frame
// is due at
//
//	max(now, when the card is free) + bytes / bandwidth + latency
//
// What a node receives is not bounded: a page that three nodes send at once to a fourth arrives
// three times as fast as on a network.
//
// All that is added to what the base takes. The base's own traffic is not held: the making of
// connections, confirmations, goodbyes. Nor is a frame of a peer that is lost: it is dropped, as it
// would be on the base. But it has used the card's time.
//
// # Who waits for a frame that is held
//
// Poll, Flush and Arm give the base what is due. Arm lets the caller sleep until shortly before a
// frame is due, for which WaitFD watches a timer of the kernel; then it has the caller poll. A
// thread that sleeps wakes up too late by more than some networks take.
//
// # Pages
//
// A leased payload is memory of this package. The page is copied to a payload of the base when it
// is due. So the base may refuse it (transport.ErrBacklog) and be asked again, its memory, which
// may be registered with a device, is not occupied by pages that only wait, and nothing leased for
// a lost incarnation of a peer gets to the next. The copy takes a fraction of a microsecond.
//
// # Ownership and locks
//
// As in other transports, all belongs to whoever is inside Transport.gate: the reactor during a
// method, and Close for ever. Counters are atomic.
package emulated
