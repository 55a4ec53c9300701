package rdma

import (
	"dsmd/transport"
	"dsmd/transport/chassis"
)

// maxSparePages bounds how many unused buffers outside of the slots are held back for reuse.
// Such buffers are used only when more pages wait for a peer than it has slots.
const maxSparePages = 256

// pagePool hands out pages. Its slots belong to the reactor's goroutine, also after Close.
type pagePool struct {
	chassis.Pool
	slotBytes int
	slots     region  // the local slots, peer after peer
	perPeer   int     // how many each peer has, the bounce slot included
	free      [][]int // by node: free slots, counted from the peer's first
	bounced   []bool  // by node: the bounce slot is taken
}

// bounce is the one slot of each peer that Lease does not hand out. A page that was leased when no
// slot was free moves there when its turn to be sent comes. Without it, pages leased later could
// hold all slots and wait behind that page.
func (pool *pagePool) bounce() int { return pool.perPeer - 1 }

// init makes the slots of all peers of a node free.
func (pool *pagePool) init(nodes int, self transport.NodeID, pageBytes int, s Sizes) {
	pool.Name, pool.PageBytes, pool.MaxSpare, pool.Freed = name, pageBytes, maxSparePages, pool.freeSlot
	pool.slotBytes, pool.perPeer = s.SlotBytes, s.Slots+1
	pool.free, pool.bounced = make([][]int, nodes), make([]bool, nodes)
	for i := range pool.free {
		if i == int(self) {
			continue
		}
		for slot := range s.Slots {
			pool.free[i] = append(pool.free[i], slot)
		}
	}
}

// place is where in the region of local slots a peer's slot lies.
func (pool *pagePool) place(peerIndex, slot int) int {
	return (peerIndex*pool.perPeer + slot) * pool.slotBytes
}

func (pool *pagePool) bytesOf(peerIndex, slot int) []byte {
	at := pool.place(peerIndex, slot)
	return pool.slots.bytes[at : at+pool.PageBytes : at+pool.PageBytes]
}

// lease returns a page for a peer, in a slot if one is free.
func (pool *pagePool) lease(to transport.NodeID, peerIndex int) *chassis.Payload {
	p := pool.Get()
	if slot, ok := pool.takeSlot(to); ok {
		p.Slot = slot
		p.Lease(to, pool.bytesOf(peerIndex, slot))
	} else {
		p.Lease(to, p.Own())
	}
	return p
}

func (pool *pagePool) takeSlot(to transport.NodeID) (int, bool) {
	free := pool.free[to]
	if len(free) == 0 {
		return 0, false
	}
	slot := free[len(free)-1]
	pool.free[to] = free[:len(free)-1]
	return slot, true
}

// toSlot brings a queued page into a slot, from where the device can send it. It returns false if
// the page has to wait until the peer has acknowledged another one.
func (pool *pagePool) toSlot(p *chassis.Payload, peerIndex int) bool {
	if p.Slot != chassis.NoSlot {
		return true
	}
	slot, ok := pool.takeSlot(p.To())
	if !ok {
		if pool.bounced[p.To()] {
			return false
		}
		slot = pool.bounce()
		pool.bounced[p.To()] = true
	}
	p.Slot = slot
	p.Move(pool.bytesOf(peerIndex, slot))
	copy(p.Page(), p.Own())
	return true
}

// freeSlot takes the slot of a page back that is put.
func (pool *pagePool) freeSlot(p *chassis.Payload) {
	switch p.Slot {
	case chassis.NoSlot:
	case pool.bounce():
		pool.bounced[p.To()] = false
	default:
		pool.free[p.To()] = append(pool.free[p.To()], p.Slot)
	}
}
