package heap

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"

	"dsmd/dsm"
)

// outbox has what this program has freed of another arena, and not sent home yet.
type outbox struct {
	mu    sync.Mutex
	addrs []uintptr
	bytes uintptr
}

// empty returns what is in it.
func (o *outbox) empty() (addrs []uintptr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	addrs, o.addrs, o.bytes = o.addrs, nil, 0
	return addrs
}

// free frees a value: at once if this program has its arena, or else it goes home with others.
func (h *Heap) free(addr uintptr) error {
	number := int((addr - h.start) / h.blockBytes)
	if addr < h.start || number >= h.total {
		return nothing(addr)
	}
	if b := h.block(number); b != nil {
		return h.freeHere(b, addr)
	}
	e := entry(h.entry(number).Load())
	offset, bytes := (addr-h.start)%h.blockBytes, uintptr(e.blocks())*h.blockBytes
	ok := e.kind() == large && offset == 0
	if e.kind() >= divided {
		k := &h.classes[e.kind()-divided]
		bytes = k.bytes
		_, ok = k.slotAt(offset)
	}
	if !ok {
		return nothing(addr)
	}
	o := &h.outboxes[e.arena()]
	o.mu.Lock()
	o.addrs, o.bytes = append(o.addrs, addr), o.bytes+bytes
	full := len(o.addrs) >= parcelAddrs(h.page) || o.bytes >= h.blockBytes
	o.mu.Unlock()
	if full {
		return h.send(e.arena(), o.empty())
	}
	return nil
}

// mailbox is the address of where others put what they have freed of an arena, on a page of its
// own: the head of a list of parcels, whose addresses have 1 added, and of values that were freed
// when there was no memory for a parcel.
func (h *Heap) mailbox(arena int) uintptr { return addressOf(h.memory) + uintptr(1+arena)*h.page }

func (h *Heap) head(arena int) *atomic.Uint64 { return Ref[atomic.Uint64]{h.mailbox(arena)}.Get() }

// A parcel is a slot of a page, which has the next of the list, the number of addresses, and these.
// When it has come it goes home as other values do.
const parcelHead = 2

func parcelAt(addr, page uintptr) []uint64 { return Slice[uint64]{addr, int(page / 8)}.Get() }

func parcelAddrs(page uintptr) int { return int(page/8) - parcelHead }

// fill puts as many of the values into a parcel as it holds.
func fill(parcel []uint64, addrs []uintptr) (n int) {
	n = min(len(addrs), len(parcel)-parcelHead)
	parcel[1] = uint64(n)
	for i, addr := range addrs[:n] {
		parcel[parcelHead+i] = uint64(addr)
	}
	return n
}

// send puts values into an arena's mailbox, but those for which it needs a page that is lost.
func (h *Heap) send(arena int, addrs []uintptr) (lost error) {
	if len(addrs) == 0 {
		return nil
	}
	head := h.head(arena)
	if lost = dsm.Guard(func() { head.Load() }); lost != nil {
		return lost // before there are parcels that nobody gets
	}
	for len(addrs) > 0 {
		var s slot
		n := 0
		_ = s.place(func() error {
			err := h.takeSlot(&s, h.parcelKind())
			if err == nil {
				n = fill(parcelAt(s.addr, h.page), addrs)
			}
			return err
		})
		at, link := s.addr, uint64(s.addr+1)
		if n == 0 { // there is no memory for a parcel
			at, link, n = addrs[0], uint64(addrs[0]), 1
		}
		lost = cmp.Or(lost, dsm.Guard(func() { push(head, at, link) }))
		addrs = addrs[n:]
	}
	return lost
}

// push puts the parcel or value at an address first on a mailbox's list.
func push(head *atomic.Uint64, at uintptr, link uint64) {
	for next := (Ref[uint64]{at}).Get(); ; {
		if *next = head.Load(); head.CompareAndSwap(*next, link) {
			return
		}
	}
}

// drain frees what others have sent here, or leaves that to somebody who does it now.
func (h *Heap) drain() {
	if h.draining.TryLock() {
		h.drainLocked()
	}
}

// drainLocked frees what others have sent here, and unlocks draining.
func (h *Heap) drainLocked() {
	var parcels []uintptr
	for _, arena := range h.arenas {
		// If a page is lost, what follows it on the list stays allocated.
		_ = dsm.Guard(func() {
			link := h.head(arena).Load()
			if link != 0 { // else the page stays as it is
				link = h.head(arena).Swap(0)
			}
			// A value that was freed twice may have made a circle of the list.
			for link != 0 && h.err() == nil {
				addr := uintptr(link &^ 1)
				next := *Ref[uint64]{addr}.Get()
				if link&1 == 0 {
					if h.takeBack(addr) != nil {
						break // nobody can tell whether it was freed twice
					}
				} else {
					p := parcelAt(addr, h.page)
					for _, value := range p[parcelHead:][:p[1]] {
						_ = h.takeBack(uintptr(value))
					}
					parcels = append(parcels, addr)
				}
				link = next
			}
		})
	}
	h.draining.Unlock()
	for _, addr := range parcels {
		_ = dsm.Guard(func() { _ = h.free(addr) }) // with a lost page it stays allocated
	}
}

// takeBack frees what another program has freed.
func (h *Heap) takeBack(addr uintptr) (lost error) {
	err := nothing(addr)
	lost = dsm.Guard(func() {
		number := int((addr - h.start) / h.blockBytes)
		if b := h.block(number); b != nil {
			err = h.freeHere(b, addr)
		} else {
			h.entry(number).Load() // if that is lost, the block is not known here
		}
	})
	if lost == nil && err != nil {
		// Nobody knows what else is done with what was freed.
		err = fmt.Errorf("another program has freed it, as it had before or as another value: %w", err)
		h.broken.CompareAndSwap(nil, &err)
	}
	return lost
}
