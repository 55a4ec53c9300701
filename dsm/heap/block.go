package heap

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"

	"dsmd/dsm"
)

// entry says of a block, in the table that all programs share, whose it is and how it is divided.
// A block that is free changes hands by compare-and-swap.
type entry uint64

// What an entry begins with. Those that are not free have an arena and a number of blocks, too.
const (
	untouched entry = iota // free, and zero
	recycled               // free
	making                 // an arena has just claimed it
	rest                   // of a large value's blocks, not the first
	large                  // the first of a large value's
	divided                // and the class
)

func owned(kind entry, arena, blocks int) entry {
	return kind | entry(arena)<<8 | entry(blocks)<<32
}

func (e entry) kind() entry { return e & 0xff }
func (e entry) arena() int  { return int(e >> 8 & 0xffffff) }
func (e entry) blocks() int { return int(e >> 32) }

// block is what an arena's program knows of one of its blocks. What must outlive the program is in
// shared memory: the entry and the marks.
type block struct {
	number, blocks int    // blocks: of a large value; else 1
	kind           int    // of class
	class          *class // nil: it is one large value
	start          uintptr
	shard          *shard // its mu guards what follows

	marks []uint64 // in shared memory, a bit for each slot: it is allocated, or beyond the last
	free  int      // slots
	from  int      // all marks before this one are set
	fresh int      // this slot, and those after it, have never been used
	place int      // in shard.open, from 1; 0: it is not there
	lost  bool     // a page of it is lost: nothing is allocated there any more
	gone  bool     // it is no block of this program any more
}

// shard is a part of a program's arena, in which some of its goroutines allocate.
type shard struct {
	mu   sync.Mutex
	open [][]*block // by class: those that have slots that are free; guarded by mu
}

// slot is where a value is going to be.
type slot struct {
	b     *block // from which it was tried; nil: none
	addr  uintptr
	fresh bool // nothing was ever there
}

// from takes the first free slot of the block that is in use. Preconditions: p.mu is held.
func (s *slot) from(p *shard, kind int) (ok bool) {
	last := len(p.open[kind]) - 1
	if last < 0 {
		return false
	}
	b := p.open[kind][last]
	s.b = b
	for b.marks[b.from] == ^uint64(0) {
		b.from++
	}
	bit := bits.TrailingZeros64(^b.marks[b.from])
	b.marks[b.from] |= 1 << bit
	n := 64*b.from + bit
	s.addr, s.fresh = b.start+b.class.offset(n), n >= b.fresh
	b.fresh = max(b.fresh, n+1)
	if b.free--; b.free == 0 {
		b.unlist()
	}
	return true
}

// place has use take the slot and do something with it. If a page of its block is lost it does so
// again, with another block.
func (s *slot) place(use func() error) (err error) {
	for {
		*s = slot{}
		lost := dsm.Guard(func() { err = use() })
		if lost == nil {
			return err
		}
		if s.b == nil || !errors.Is(lost, dsm.ErrPageLost) {
			return lost // something that all blocks need
		}
		s.b.spoil()
	}
}

// spoil is for a block of which a page is lost: what is free there leaks.
func (b *block) spoil() {
	b.shard.mu.Lock()
	defer b.shard.mu.Unlock()
	b.lost = true
	b.unlist()
}

// clear makes a slot free. Preconditions: shard.mu is held.
func (b *block) clear(n int) {
	b.marks[n/64] &^= 1 << (n % 64)
	b.free++
	b.from = min(b.from, n/64)
	b.list()
}

// list lets slots be taken. Preconditions: shard.mu is held.
func (b *block) list() {
	if open := &b.shard.open[b.kind]; b.place == 0 && b.free > 0 && !b.lost {
		*open = append(*open, b)
		b.place = len(*open)
	}
}

// unlist ends that.
func (b *block) unlist() {
	if b.place == 0 {
		return
	}
	open := &b.shard.open[b.kind]
	last := (*open)[len(*open)-1]
	(*open)[b.place-1], last.place = last, b.place
	*open = (*open)[:len(*open)-1]
	b.place = 0
}

// find is the slot of a value that is allocated. Preconditions: shard.mu is held.
func (b *block) find(addr uintptr) (n int, err error) {
	ok := addr == b.start
	if b.class != nil {
		n, ok = b.class.slotAt(addr - b.start)
	}
	if !ok || b.gone || b.class != nil && b.marks[n/64]&(1<<(n%64)) == 0 {
		return 0, nothing(addr)
	}
	return n, nil
}

func nothing(addr uintptr) error {
	return fmt.Errorf("%w: nothing is allocated at %#x, or not any more", dsm.ErrNotShared, addr)
}

// divide has all slots of a block be free that was just claimed. fresh: nothing was ever there.
func (b *block) divide(fresh bool) {
	if b.class == nil {
		return
	}
	clear(b.marks)
	if beyond := b.class.slots % 64; beyond > 0 {
		b.marks[len(b.marks)-1] = ^uint64(0) << beyond
	}
	if b.free = b.class.slots; !fresh {
		b.fresh = b.class.slots
	}
}

// learn finds in the marks what is free.
func (b *block) learn() {
	if b.class == nil {
		return
	}
	b.fresh = b.class.slots
	for _, m := range b.marks {
		b.free += bits.OnesCount64(^m)
	}
}
