package protocol

import (
	"encoding/binary"
	"fmt"
)

// What is put together: arrivals of several nodes in a BarrierCombine, and the tickets of several
// nodes in a BarrierBroadcast or a BarrierOpen.

const (
	// relayedBytes is an arrival in a BarrierCombine without what it brings, all little-endian:
	// node u16, length of what it brings u16 or cancelMark, parties u32, object u64, ticket u64,
	// rank u32, fold u8.
	relayedBytes = 29
	// cancelMark is in place of the length: the arrival is taken back. Parties, rank and fold are
	// 0.
	cancelMark = 1<<16 - 1
	// addresseeBytes is a released ticket: node u16, ticket u64.
	addresseeBytes = 10
)

// relayed is an arrival, or a cancel, of some node.
type relayed struct {
	node          NodeID
	cancel        bool
	parties, rank uint32
	object        ObjectID
	ticket        Ticket
	fold          Fold
	payload       []byte
}

func (g *relayed) size() int { return relayedBytes + len(g.payload) }

func (g *relayed) append(b []byte) []byte {
	size := len(g.payload)
	if g.cancel {
		size = cancelMark
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(g.node))
	b = binary.LittleEndian.AppendUint16(b, uint16(size))
	b = binary.LittleEndian.AppendUint32(b, g.parties)
	b = binary.LittleEndian.AppendUint64(b, uint64(g.object))
	b = binary.LittleEndian.AppendUint64(b, uint64(g.ticket))
	b = append(binary.LittleEndian.AppendUint32(b, g.rank), byte(g.fold))
	return append(b, g.payload...)
}

// message is what the node would have sent the home in a small cluster.
func (g *relayed) message(to NodeID) Message {
	if g.cancel {
		return BarrierCancel{g.ticket}.To(to, g.object).SentBy(g.node)
	}
	return BarrierArrive{g.ticket, g.parties, g.rank, g.fold, g.payload}.To(to, g.object).SentBy(g.node)
}

// decodeRelayed reads the payload of a BarrierCombine: exactly what append wrote, at least one.
// What it returns points into b.
func decodeRelayed(b []byte) ([]relayed, error) {
	var all []relayed
	for len(b) > 0 || all == nil {
		if len(b) < relayedBytes {
			return nil, fmt.Errorf("%w: %d bytes where an arrival at a barrier has %d", ErrMalformed, len(b), relayedBytes)
		}
		g := relayed{
			node: NodeID(binary.LittleEndian.Uint16(b)), parties: binary.LittleEndian.Uint32(b[4:]), object: ObjectID(binary.LittleEndian.Uint64(b[8:])),
			ticket: Ticket(binary.LittleEndian.Uint64(b[16:])), rank: binary.LittleEndian.Uint32(b[24:]), fold: Fold(b[28]),
		}
		size := int(binary.LittleEndian.Uint16(b[2:]))
		if g.cancel = size == cancelMark; g.cancel {
			size = 0
		}
		b = b[relayedBytes:]
		switch {
		case size > MaxContribution || size > len(b):
			return nil, fmt.Errorf("%w: an arrival at a barrier brings %d bytes, of %d that there are", ErrMalformed, size, len(b))
		case g.cancel != (g.parties == 0), g.cancel && (g.rank != 0 || g.fold != NoFold), g.parties > MaxParties, !g.object.IsLock(), !g.fold.Fits(size):
			return nil, fmt.Errorf("%w: %d parties and rank %d at %v with %d bytes to be folded as %v, taken back: %t",
				ErrMalformed, g.parties, g.rank, g.object, size, g.fold, g.cancel)
		}
		g.payload, b = b[:size], b[size:]
		all = append(all, g)
	}
	return all, nil
}

// SplitCombined divides the payload of a BarrierCombine into what could be payloads of their own:
// one arrival or cancel in each. It is for tests.
func SplitCombined(payload []byte) (parts [][]byte) {
	all, _ := decodeRelayed(payload)
	for i := range all {
		parts = append(parts, all[i].append(nil))
	}
	return parts
}

// addressee is who waits for the release of a barrier.
type addressee struct {
	node   NodeID
	ticket Ticket
}

// broadcastRoom is how many addressees find room in a BarrierBroadcast with a result. The longest
// result leaves room for one of each node.
func broadcastRoom(result []byte) int { return (MaxPayload - 4 - len(result)) / addresseeBytes }

// appendBroadcast writes the payload of a BarrierBroadcast, or a BarrierOpen: how many addressees
// there are, they, and the result, which is the same for all.
func appendBroadcast(b []byte, to []addressee, result []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(to)))
	for _, a := range to {
		b = binary.LittleEndian.AppendUint16(b, uint16(a.node))
		b = binary.LittleEndian.AppendUint64(b, uint64(a.ticket))
	}
	return append(b, result...)
}

// decodeBroadcast reads what appendBroadcast wrote, with at least one addressee. The result points
// into b.
func decodeBroadcast(b []byte) ([]addressee, []byte, error) {
	if len(b) < 4 {
		return nil, nil, fmt.Errorf("%w: a release of a barrier has %d bytes", ErrMalformed, len(b))
	}
	n := uint64(binary.LittleEndian.Uint32(b))
	b = b[4:]
	if n == 0 || n*addresseeBytes > uint64(len(b)) || uint64(len(b))-n*addresseeBytes > MaxResult {
		return nil, nil, fmt.Errorf("%w: a release of a barrier for %d in %d bytes", ErrMalformed, n, len(b))
	}
	to := make([]addressee, n)
	for i := range to {
		to[i] = addressee{NodeID(binary.LittleEndian.Uint16(b)), Ticket(binary.LittleEndian.Uint64(b[2:]))}
		b = b[addresseeBytes:]
	}
	return to, b, nil
}

// Contributed is how many bytes of a message are what ranks have brought to a barrier, one by one
// or put together.
func Contributed(m *Message) int {
	switch m.Kind {
	case KindBarrierArrive, KindBarrierRelease:
		return len(m.Payload)
	case KindBarrierCombine:
		n := 0
		all, _ := decodeRelayed(m.Payload)
		for i := range all {
			n += len(all[i].payload)
		}
		return n
	case KindBarrierBroadcast, KindBarrierOpen:
		_, result, _ := decodeBroadcast(m.Payload)
		return len(result)
	}
	return 0
}
