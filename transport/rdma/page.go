package rdma

import (
	"fmt"

	"dsmd/transport"
)

// maxSparePages bounds how many unused buffers outside of the slots are held back for reuse; more go to the garbage collector.
// Such buffers are used only when more pages wait for a peer than it has slots.
const maxSparePages = 256

// pageState says who owns a page. Every use checks it, so that a payload used by one who has given it up stops the
// daemon instead of handing out another page's contents.
type pageState uint8

const (
	pageSpare    pageState = iota // the pool
	pageLeased                    // the caller of Lease
	pageQueued                    // the peer's queue, or the device
	pageBorrowed                  // the handler, until Frame returns: data lies in one of our slots that the peer has written
	pageKept                      // the handler, until Release: data is a buffer of its own
)

var pageStateNames = [...]string{"released", "leased", "already sent", "borrowed", "kept"}

// noLocalSlot marks a page whose data is not in a slot.
const noLocalSlot = -1

// page is the transport.Payload of this package.
type page struct {
	pool  *pagePool
	data  []byte // what Bytes returns
	own   []byte // a buffer outside of the slots; nil until it is first needed
	state pageState
	to    transport.NodeID // leased and queued: the peer
	slot  int              // leased and queued: which of the local slots for this peer; noLocalSlot: own
}

// Bytes implements transport.Payload.
func (p *page) Bytes() []byte {
	if p.state == pageSpare || p.state == pageQueued {
		panic(fmt.Sprintf("rdma: Bytes of a payload that is %s", pageStateNames[p.state]))
	}
	return p.data
}

// Keep implements transport.Payload. It copies the page, because the slot goes back to the peer. Only pages that have to wait
// before they are installed are kept, which is rare.
func (p *page) Keep() {
	if p.state != pageBorrowed {
		panic(fmt.Sprintf("rdma: Keep of a payload that is %s; only a borrowed one, and once", pageStateNames[p.state]))
	}
	p.reserve()
	copy(p.own, p.data)
	p.data, p.state = p.own, pageKept
}

// Release implements transport.Payload.
func (p *page) Release() {
	if p.state != pageKept && p.state != pageLeased {
		panic(fmt.Sprintf("rdma: Release of a payload that is %s; only a kept or a leased one, and once", pageStateNames[p.state]))
	}
	p.pool.put(p)
}

func (p *page) reserve() {
	if p.own == nil {
		p.own = make([]byte, p.pool.pageBytes)
	}
}

// pagePool hands out pages. It belongs to the reactor's goroutine, also after Close.
type pagePool struct {
	pageBytes int
	slotBytes int
	slots     region  // the local slots, peer after peer
	perPeer   int     // how many each peer has, the bounce slot included
	free      [][]int // by node: free slots, counted from the peer's first
	bounced   []bool  // by node: the bounce slot is taken
	spare     []*page // invariant: at most maxSparePages, all in state pageSpare
}

// bounce is the slot of each peer that Lease does not hand out: for a page that was leased when no slot was free, when
// its turn to be sent comes. Without it, pages leased later could hold all slots and wait behind that page.
func (pool *pagePool) bounce() int { return pool.perPeer - 1 }

func newPagePool(nodes int, self transport.NodeID, pageBytes int, s Sizes) pagePool {
	pool := pagePool{pageBytes: pageBytes, slotBytes: s.SlotBytes, perPeer: s.Slots + 1, free: make([][]int, nodes),
		bounced: make([]bool, nodes)}
	for i := range pool.free {
		if i == int(self) {
			continue
		}
		for slot := range s.Slots {
			pool.free[i] = append(pool.free[i], slot)
		}
	}
	return pool
}

// place is where in the region of local slots a peer's slot lies.
func (pool *pagePool) place(peerIndex, slot int) int {
	return (peerIndex*pool.perPeer + slot) * pool.slotBytes
}

func (pool *pagePool) bytesOf(peerIndex, slot int) []byte {
	at := pool.place(peerIndex, slot)
	return pool.slots.bytes[at : at+pool.pageBytes : at+pool.pageBytes]
}

// get returns a page without data, for the caller to bring into another state.
func (pool *pagePool) get() *page {
	last := len(pool.spare) - 1
	if last < 0 {
		return &page{pool: pool, slot: noLocalSlot}
	}
	p := pool.spare[last]
	pool.spare = pool.spare[:last]
	return p
}

// lease returns a page for a peer, in a slot if one is free.
func (pool *pagePool) lease(to transport.NodeID, peerIndex int) *page {
	p := pool.get()
	p.state, p.to = pageLeased, to
	if slot, ok := pool.takeSlot(to); ok {
		p.slot, p.data = slot, pool.bytesOf(peerIndex, slot)
		return p
	}
	p.reserve()
	p.data = p.own
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

// settle makes sure that the data of a queued page lies in a slot, from where the device can send it. It returns false
// if that has to wait until the peer has acknowledged another page.
func (pool *pagePool) settle(p *page, peerIndex int) bool {
	if p.slot != noLocalSlot {
		return true
	}
	slot, ok := pool.takeSlot(p.to)
	if !ok {
		if pool.bounced[p.to] {
			return false
		}
		slot = pool.bounce()
		pool.bounced[p.to] = true
	}
	p.slot = slot
	p.data = pool.bytesOf(peerIndex, slot)
	copy(p.data, p.own)
	return true
}

// put takes a page back, whatever its state was, and its slot.
func (pool *pagePool) put(p *page) {
	if p.slot != noLocalSlot {
		if p.slot == pool.bounce() {
			pool.bounced[p.to] = false
		} else {
			pool.free[p.to] = append(pool.free[p.to], p.slot)
		}
		p.slot = noLocalSlot
	}
	p.state, p.data = pageSpare, nil
	if len(pool.spare) < maxSparePages {
		pool.spare = append(pool.spare, p)
	}
}
