package rdma

import "fmt"

const (
	// blockBytes is the memory of one message, header included. The protocol's messages have some
	// ten to a hundred bytes; a longer control part travels in several messages.
	blockBytes = 1 << 10
	// maxWindow is how many messages may be on their way to a peer, or lie there unread. At 10 µs
	// for a round trip it lets a peer have 12 million messages a second, more than a core handles.
	// Blocks are used in turn, so what is more than needed costs caches.
	maxWindow = 128
	// minWindow keeps one peer's answer and the next request on their way in the largest cluster.
	minWindow = 4
	// maxBlocks bounds the receive buffers of a node as long as every peer can have minWindow: they
	// belong to all peers together, so with more peers each has a smaller window.
	maxBlocks = 8 << 10
	// ackReserve is how many acknowledgements may be on their way to a peer besides the window. One
	// is sent only after half of the peer's window of messages or of pages was used up, which
	// happens twice in a window of either, and once more for rounding; or when the peer asks for
	// one, which it does not do again before it has it.
	ackReserve = 6
	// slackBlocks are receives beyond what all windows need. A connection that breaks in the middle
	// of a message may swallow one, and lazyBlocks of them may wait to be offered to the device
	// again.
	slackBlocks = 64
	lazyBlocks  = 16
	// maxSlots is how many pages may be on their way to a peer, or lie there unread: 512 KiB of 4
	// KiB pages, four times what 100 Gb/s carry in 10 µs.
	maxSlots = 128
	// maxSendRequests bounds a queue pair's requests that the peer's device has not confirmed,
	// which it does long before the peer acknowledges the messages. The device's queue is used in
	// turn, too, and in some devices each request in it has room for all that may be inline.
	maxSendRequests = 128
	// minSlots keeps one page on its way while another is installed.
	minSlots = 2
	// slotAlign keeps pages of odd sizes from sharing a cache line. Pages of the machine's size,
	// and their multiples, begin where pages of its memory do, so that a device and the kernel have
	// as few places as possible to look up for each.
	slotAlign = 64
	// signalEvery is after how many requests one asks for a completion, by which the device's queue
	// is retired.
	signalEvery = 16
	// DefaultPoolBytes bounds the registered memory of a node when nothing else is asked for. It
	// holds full windows for 50 peers with pages of 4 KiB, and the smallest ones for 1,000.
	DefaultPoolBytes = 64 << 20
)

// Sizes is what the memory and the queues of one node are, in a cluster of a given size.
// docs/rdma.md tabulates it.
type Sizes struct {
	QueuePairs   int // one for each peer
	Window       int // messages on their way to each peer
	Slots        int // pages on their way to each peer
	RecvBlocks   int // shared by all peers, in one shared receive queue
	SendBlocks   int
	SlotBytes    int // a page and padding
	Registered   int // bytes, in all
	Completions  int // entries of the one completion queue
	SendRequests int // of each queue pair
}

// SizesFor computes what a node of a cluster needs, with at most poolBytes of registered memory.
// The error says how many bytes are needed at least.
func SizesFor(nodes, pageBytes, poolBytes int) (Sizes, error) {
	s := Sizes{QueuePairs: nodes - 1, SlotBytes: (pageBytes + slotAlign - 1) &^ (slotAlign - 1)}
	peers := max(s.QueuePairs, 1)
	s.Window = min(max(maxBlocks/peers-ackReserve, minWindow), maxWindow)
	s.SendBlocks = s.QueuePairs * (s.Window + ackReserve)
	s.RecvBlocks = s.SendBlocks + slackBlocks
	s.SendRequests = min(2*(s.Window+ackReserve), maxSendRequests) + 2*signalEvery
	// Every receive, and every request of a connection that breaks, has a completion.
	s.Completions = s.RecvBlocks + s.QueuePairs*s.SendRequests
	blocks := (s.SendBlocks + s.RecvBlocks) * blockBytes
	// A slot here, one at the peer; and one more here, for pages that were leased when all slots
	// were taken.
	s.Slots = min(max(((poolBytes-blocks)/peers/s.SlotBytes-1)/2, minSlots), maxSlots)
	s.Registered = blocks + s.QueuePairs*(2*s.Slots+1)*s.SlotBytes
	if s.Registered > poolBytes {
		return Sizes{}, fmt.Errorf("rdma: %d nodes with pages of %d bytes need %d bytes of registered memory at least, and the pool may have %d; raise --rdma-pool",
			nodes, pageBytes, s.Registered, poolBytes)
	}
	return s, nil
}
