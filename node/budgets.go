package node

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"dsmd/protocol"
	"dsmd/transport"
	"dsmd/transport/tcp"
)

// noBound is for how many bytes of pages a node has room that takes as many as come.
const noBound = math.MaxUint64

// mostNamed is how many nodes a refusal names.
const mostNamed = 8

// budgets know for how many pages the nodes have room, all together.
type budgets struct {
	pageBytes  uint64
	own        Memory
	self       protocol.NodeID
	nodes      func() []protocol.NodeID // that are there
	partitions uint64                   // each says its own share
	// of is for how many bytes of pages another node has room; nil: nobody knows.
	of func(transport.NodeID) uint64
}

// refuse says why the nodes can never have so many pages together; "": they can, or it is not
// known.
func (b *budgets) refuse(pages uint64) (why string) {
	const mib = 1 << 20
	var each []string
	all, wanted, nodes := uint64(0), pages*b.pageBytes, b.nodes()
	for _, n := range nodes {
		room := b.room(n)
		if room == noBound || room >= wanted-all {
			return ""
		}
		all += room
		if len(each) < mostNamed {
			each = append(each, fmt.Sprintf("node %d for %d MiB", n, room/mib))
		}
	}
	if more := len(nodes) - len(each); more > 0 {
		each = append(each, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("%d MiB are asked for, and all nodes together have room for %d MiB (%s): give them more memory (--memory; unlimited if little of "+
		"it will be touched), or a directory for what does not fit (--spill), or start more nodes", wanted/mib, all/mib, strings.Join(each, ", "))
}

func (b *budgets) room(n protocol.NodeID) uint64 {
	bound := uint64(noBound)
	switch {
	case n == b.self:
		bound = b.own.bound()
	case b.of != nil:
		bound = b.of(transport.NodeID(n))
	}
	if bound > noBound/max(b.partitions, 1) {
		return noBound
	}
	return bound * max(b.partitions, 1)
}

// bound is for how many bytes of pages there is room, on a disk or in memory.
func (m *Memory) bound() uint64 {
	if m.Bytes == 0 || m.Spill != "" {
		return noBound
	}
	return m.Bytes
}

// appendMemory appends what nodes say of their memory when they connect. What RDMA has to say
// follows.
func appendMemory(b []byte, m *Memory) []byte { return binary.LittleEndian.AppendUint64(b, m.bound()) }

// greeted is a transport whose peers have said what appendMemory appends.
type greeted struct{ *tcp.Transport }

// PeerHello is what a peer's RDMA has said.
func (g greeted) PeerHello(peer transport.NodeID) []byte {
	_, rest := g.heard(peer)
	return rest
}

// memory is for how many bytes of pages a peer has room; noBound: it has not said.
func (g greeted) memory(peer transport.NodeID) uint64 {
	room, _ := g.heard(peer)
	return room
}

func (g greeted) heard(peer transport.NodeID) (room uint64, rest []byte) {
	hello := g.Transport.PeerHello(peer)
	if len(hello) < 8 {
		return noBound, nil
	}
	return binary.LittleEndian.Uint64(hello), hello[8:]
}
