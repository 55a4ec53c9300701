package heap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"dsmd/dsm"
)

// patience is for how long an arena is waited for that should be nobody's.
const patience = time.Second

// asItIs repairs what a death can't have left half done.
func asItIs(*dsm.OwnerDiedError) error { return nil }

// mutex is held by the program that has an arena, for as long as it has the heap open.
func (h *Heap) mutex(arena int) *dsm.Mutex {
	return dsm.NewMutex(h.c, fmt.Sprintf("%s/arena %d", h.name, arena))
}

// settle finds an arena that no program has: that of this rank, if possible.
func (h *Heap) settle(ctx context.Context) error {
	for i := range maxArenas {
		h.own = (h.c.Rank() + i) % maxArenas
		h.next = h.own % h.c.Size() * h.total / h.c.Size() / h.perPage * h.perPage
		wait := patience
		if i > 0 {
			wait = dsm.TryPatience
		}
		if ok, err := h.obtain(ctx, h.own, wait); ok || err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: %d programs have it open", dsm.ErrNoSpace, maxArenas)
}

// obtain makes an arena this program's if no program has it, with all values and what is free
// there.
func (h *Heap) obtain(ctx context.Context, arena int, wait time.Duration) (ok bool, err error) {
	short, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	err = h.mutex(arena).LockRepair(short, asItIs)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	h.draining.Lock()
	defer h.draining.Unlock()
	if err := dsm.Guard(func() { h.adopt(arena) }); err != nil {
		return false, errors.Join(err, h.mutex(arena).Unlock())
	}
	h.arenas = append(h.arenas, arena)
	return true, nil
}

// adopt learns what an arena has.
func (h *Heap) adopt(arena int) {
	if bit := uint64(1) << (arena % 64); headerOf(h).used[arena/64].Or(bit)&bit == 0 {
		return
	}
	for number := range h.total {
		// What an entry tells that is lost with its page, leaks.
		_ = dsm.Guard(func() { h.adoptBlock(arena, number) })
	}
}

func (h *Heap) adoptBlock(arena, number int) {
	e := entry(h.entry(number).Load())
	switch {
	case e <= recycled || e.arena() != arena:
	case e.kind() == making:
		// Its program has died. If there are more blocks, they are nobody's.
		h.entry(number).Store(uint64(recycled))
	case e.kind() >= large:
		b := h.newBlock(e, number)
		b.lost = dsm.Guard(b.learn) != nil
		h.blocks.Store(number, b)
		b.shard.mu.Lock()
		defer b.shard.mu.Unlock()
		b.list()
	}
}

// adoptLost takes the arenas of programs that have died, or have closed the heap. It asks those
// that live, and so does not do it often.
func (h *Heap) adoptLost() {
	h.adopting.Lock()
	defer h.adopting.Unlock()
	if time.Since(h.adopted) < patience {
		return
	}
	// Whatever goes wrong, there is as little room as there was.
	ctx := context.Background()
	lost, _ := h.c.Lost(ctx)
	h.draining.Lock()
	own := slices.Clone(h.arenas)
	h.draining.Unlock()
	_ = dsm.Guard(func() {
		for arena := range maxArenas {
			if headerOf(h).used[arena/64].Load()&(1<<(arena%64)) == 0 || slices.Contains(own, arena) {
				continue
			}
			wait := dsm.TryPatience
			if slices.Contains(lost, arena) && !slices.Contains(h.awaited, arena) {
				// Once: if it does not come, another program has taken it.
				wait, h.awaited = patience, append(h.awaited, arena)
			}
			_, _ = h.obtain(ctx, arena, wait)
		}
	})
	h.adopted = time.Now()
}

// allocate allocates a value, and makes it zero.
func (h *Heap) allocate(bytes uintptr) (addr uintptr, err error) {
	var s slot
	err = s.place(func() error {
		err := h.err()
		if err == nil {
			err = h.take(&s, bytes)
		}
		if err != nil {
			return err
		}
		n := bytes
		if s.fresh {
			n = min(n, granule) // it is zero; but is it there?
		}
		clear(Slice[byte]{s.addr, int(n)}.Get())
		return nil
	})
	return s.addr, err
}

// take finds memory for a value.
func (h *Heap) take(s *slot, bytes uintptr) (err error) {
	kind, divides := classOf(h.classes, bytes)
	if !divides {
		n := int((bytes + h.blockBytes - 1) / h.blockBytes)
		if err = h.takeBlocks(s, nil, large, n); errors.Is(err, dsm.ErrNoSpace) {
			h.collect()
			err = h.takeBlocks(s, nil, large, n)
		}
		return err
	}
	if err = h.takeSlot(s, kind); !errors.Is(err, dsm.ErrNoSpace) {
		return err
	}
	h.collect()
	for i := range h.shards {
		p := &h.shards[i]
		p.mu.Lock()
		if err = h.takeIn(s, p, kind, true); err == nil {
			return nil
		}
	}
	return err
}

// collect finds whatever is free.
func (h *Heap) collect() {
	h.draining.Lock()
	h.drainLocked()
	h.adoptLost()
	h.draining.Lock()
	h.drainLocked()
	_ = h.sweep() // blocks whose entries are lost are nobody's; there may be others
}

// takeSlot takes a slot in the shard in which this goroutine did it last, if no other does now.
func (h *Heap) takeSlot(s *slot, kind int) error {
	if err := h.takeIn(s, h.shard(), kind, false); err == nil {
		return nil
	}
	h.drain()
	return h.takeIn(s, h.shard(), kind, true)
}

// shard is a shard that is locked now.
func (h *Heap) shard() *shard {
	first := goroutine()
	for i := range h.shards {
		if p := &h.shards[(first+uint(i))%uint(len(h.shards))]; p.mu.TryLock() {
			return p
		}
	}
	p := &h.shards[first%uint(len(h.shards))]
	p.mu.Lock()
	return p
}

var errNone = fmt.Errorf("%w: no block has a slot", dsm.ErrNoSpace)

// takeIn takes a slot, of another block if it may, and unlocks the shard.
func (h *Heap) takeIn(s *slot, p *shard, kind int, more bool) error {
	defer p.mu.Unlock()
	if s.from(p, kind) {
		return nil
	}
	if !more {
		return errNone
	}
	if err := h.takeBlocks(s, p, divided+entry(kind), 1); err != nil {
		return err
	}
	s.b.list()
	s.from(p, kind)
	return nil
}

// takeBlocks makes n free blocks this program's. p is the shard that they are for; nil: any.
func (h *Heap) takeBlocks(s *slot, p *shard, kind entry, n int) error {
	number, fresh, err := h.claim(n)
	if err != nil {
		return err
	}
	e := owned(kind, h.own, n)
	b := h.newBlock(e, number)
	b.shard = cmp.Or(p, b.shard)
	s.b, s.addr, s.fresh = b, b.start, fresh
	b.divide(fresh)
	h.entry(number).Store(uint64(e)) // from here on the marks count
	h.blocks.Store(number, b)
	return nil
}

// claim claims n free blocks in a row. Each program begins to look at a place of its own, so that
// what it allocates lies together, and so do the entries.
func (h *Heap) claim(n int) (first int, fresh bool, err error) {
	h.claiming.Lock()
	defer h.claiming.Unlock()
	for left := h.total + n; left > 0 && n <= h.total; {
		if h.next+n > h.total {
			left -= h.total - h.next
			h.next = 0
		}
		first = h.next
		got := 0
		lost := dsm.Guard(func() { got, fresh = h.claimAt(first, n) })
		switch {
		case errors.Is(lost, dsm.ErrPageLost):
			got = h.perPage - first%h.perPage // blocks whose entries are lost are nobody's
		case lost != nil:
			return 0, false, lost
		case got == n:
			h.next += n
			return first, fresh, nil
		}
		h.next += max(got, 1)
		left -= max(got, 1)
	}
	return 0, false, fmt.Errorf("%w: the heap of %d bytes has no %d bytes left in a row; free something, or open a larger one",
		dsm.ErrNoSpace, 8*len(h.memory), uintptr(n)*h.blockBytes)
}

// claimAt claims n blocks, or none, and says how many of them were free.
func (h *Heap) claimAt(first, n int) (got int, fresh bool) {
	var was []uint64
	defer func() { // also if a page is lost
		for i := range was {
			if got < n {
				h.entry(first + i).Store(was[i])
			}
		}
	}()
	kind := making
	for fresh = true; got < n; got++ {
		e := h.entry(first + got)
		old := e.Load()
		if entry(old) > recycled || !e.CompareAndSwap(old, uint64(owned(kind, h.own, n))) {
			return got, false
		}
		was = append(was, old)
		kind, fresh = rest, fresh && entry(old) == untouched
	}
	return n, fresh
}

// newBlock is a block whose entry is, or is going to be, e.
func (h *Heap) newBlock(e entry, number int) *block {
	b := &block{number: number, blocks: e.blocks(), start: h.start + uintptr(number)*h.blockBytes, shard: &h.shards[number%len(h.shards)]}
	if e.kind() >= divided {
		b.kind = int(e.kind() - divided)
		b.class = &h.classes[b.kind]
		b.marks = Slice[uint64]{b.start, (b.class.slots + 63) / 64}.Get()
	}
	return b
}

// block is a block of this program's, or nil.
func (h *Heap) block(number int) *block {
	b, _ := h.blocks.Load(number)
	own, _ := b.(*block)
	return own
}

// freeHere frees a value of a block that is this program's. The last block of a class stays, for
// the next value, the others are anybody's when they have none.
func (h *Heap) freeHere(b *block, addr uintptr) error {
	b.shard.mu.Lock()
	defer b.shard.mu.Unlock()
	n, err := b.find(addr)
	if err != nil {
		return err
	}
	if h.tracking.Load() {
		h.origins.Delete(addr)
	}
	if b.class != nil {
		b.clear(n)
		if b.free < b.class.slots || b.lost || len(b.shard.open[b.kind]) == 1 {
			return nil
		}
	}
	h.release(b)
	return nil
}

// release gives blocks to everybody. Preconditions: they have no values, and shard.mu is held.
func (h *Heap) release(b *block) {
	b.unlist()
	b.gone = true
	h.blocks.Delete(b.number)
	// If this program dies after the first, the others are nobody's.
	for i := range b.blocks {
		h.entry(b.number + i).Store(uint64(recycled))
	}
	h.claiming.Lock()
	defer h.claiming.Unlock()
	h.next = min(h.next, b.number)
}

// sweep gives all blocks without values to everybody, but those whose entries are lost.
func (h *Heap) sweep() (lost error) {
	for i := range h.shards {
		lost = cmp.Or(lost, h.sweepIn(&h.shards[i]))
	}
	return lost
}

func (h *Heap) sweepIn(p *shard) (lost error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, open := range p.open {
		for _, b := range slices.Clone(open) {
			if b.free == b.class.slots {
				lost = cmp.Or(lost, dsm.Guard(func() { h.release(b) }))
			}
		}
	}
	return lost
}
