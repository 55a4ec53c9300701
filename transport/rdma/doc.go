// Package rdma carries frames between nodes by RDMA: a page is written into memory of the peer that
// was registered at the start, by the peer's device, and the message about it follows on the same
// queue pair.
//
// It is a layer over another transport, the base (transport/tcp), which reaches every node, knows
// who is alive, and may be authenticated. The base carries what the two sides of a queue pair must
// know of each other, and the frames when there is no queue pair: for peers without a device,
// before the first queue pair, and between two of them.
//
// # A message
//
// What Send is given becomes one message, or several if the control part is long (wire.go). A
// message has a number, counted in each direction of a pair, and acknowledges those of the other
// side. On a queue pair it is a SEND of at most blockBytes bytes, inline when the device takes
// that. A page is a WRITE into one of the receiver's slots. If the message about it is much like an
// earlier one it goes in the immediate value of that WRITE (short.go), else it is sent after the
// page, in the same chain of requests. The device keeps the order, so whoever sees the message
// finds the page in the slot. On the base it is a frame with the page as payload.
//
// # Credit
//
// The receiver has given each peer a number of receives and of slots for good (sizes.go): its
// window. The sender never has more messages or pages on their way, or unread, than that, so no
// slot is overwritten and no message finds no receive. An acknowledgement means that the receiver's
// memory is free again. It travels with the messages of the other direction, and alone when half
// the window is used up (ackReserve says why there always is a receive for it). The same
// acknowledgement frees the sender's memory: the peer has the message, and if the device should
// repeat a packet of it nevertheless, the peer drops the repetition unread.
//
// The receives are blocks of one shared receive queue, and all blocks and slots lie in one pool
// that is registered at the start: no frame registers memory, and the pool is bounded however many
// peers there are. docs/rdma.md has the numbers.
//
// # When a queue pair fails
//
// A device says that a request has failed; and one who has sent something looks now and then
// whether it was acknowledged, because a device may fail without a word (watch.go). The messages
// that are not acknowledged are sent again, on the base, and the receiver takes each number once
// and in order. So a change of path needs no agreement, frames arrive exactly once, and neither
// side waits for the other (setup.go). Before the pair has another queue pair, both sides have
// ended the last one: no late write can hit a slot that is used again. Whether a peer is alive is
// never decided here: the base reports it lost, or not.
//
// A peer that comes back after it was lost (Readmit) begins as one that was never connected, with
// numbers from 1, in the same blocks and slots: the queue pair to its former incarnation has ended
// before the loss was reported.
//
// # Setting up
//
// The node with the higher number makes a queue pair and offers it in a frame on the base, the
// other makes one and answers. Each writes a page and sends an acknowledgement by it, and when the
// first one has the other's, it says that the queue pair is ready: one that carries nothing is
// never used. Either librdmacm connects the two, and the frames carry an address and a token by
// which the request is recognised; or, if the base is authenticated or the device InfiniBand, the
// frames carry all that is needed, and nothing else is believed. A node says that it speaks this
// language in the greeting of the base (Hello); with others the base is used as it is.
//
// # Layers
//
// A Transport is made of layers, and each uses those below it: queues (the device and its memory),
// sender (messages that go out), router (which path a peer's messages take, and the making of queue
// pairs), deliverer (messages that come in). Two hooks lead upwards, for a device and for a queue
// pair that fails while it is used.
//
// # Polling and sleeping
//
// Poll looks into the completion queue, which is memory, and asks the base and the connection
// manager only now and then, unless a peer uses the base. Arm asks the device for one event, and
// WaitFD watches it together with the base's descriptor.
//
// # Ownership and locks
//
// There is one gate, Transport.gate, and it is not for waiting: the reactor is inside during a
// method, and Close goes in and stays. The device, behind the interface fabric, belongs to whoever
// is inside. The timer shares with the reactor only a flag and an eventfd.
package rdma
