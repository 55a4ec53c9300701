package torture

import (
	"fmt"
	"sync/atomic"
)

const (
	// workers is how many goroutines of each process own words.
	workers = 4
	// blockWords is how many words are written at a time. Blocks of owners alternate; with this
	// number they share cache lines, and some lie across two pages.
	blockWords = 12
	// wordPages is how many pages of words there are: few, so that everybody meets everybody.
	wordPages = 4
)

// owner numbers the goroutines that write: a rank and one of its workers.
type owner int

func ownerOf(rank, worker int) owner { return owner(rank*workers + worker) }

func (o owner) rank() int { return int(o) / workers }

// pack is the value that word i has from its writer's write number seq on. Before the first, number
// 0, it is 0, as all memory is.
func pack(i int, seq uint32) uint64 {
	if seq == 0 {
		return 0
	}
	const odd = 0x9e3779b97f4a7c15 // spreads neighbours over all bits
	x := uint64(seq)<<32 | uint64(uint32(i))
	return uint64(seq)<<32 | (x*odd^odd)>>32
}

// unpack is the number of the write that a value of word i stems from. ok is false for a value that
// nobody writes there.
func unpack(i int, v uint64) (seq uint32, ok bool) {
	seq = uint32(v >> 32)
	return seq, v == pack(i, seq)
}

// words is the memory of which each word has one writer. The blocks of the owners alternate; an
// owner writes its blocks in turn, so the number of a write says which block it went to.
type words struct {
	owners int
	values []uint64
	// announced[o] is the number of the last write that owner o has completed.
	announced []atomic.Uint64
}

// blocks is how many whole blocks there are; the words after the last are never written.
func (w *words) blocks() int { return len(w.values) / blockWords }

// share is how many blocks an owner has.
func (w *words) share(o owner) int { return (w.blocks() - int(o) + w.owners - 1) / w.owners }

// place is where the write number seq of an owner goes: the first word of a block.
func (w *words) place(o owner, seq uint32) int {
	return (int(o) + int(seq)%w.share(o)*w.owners) * blockWords
}

// belongs says whose a word is, and the how manieth of its blocks the word lies in.
func (w *words) belongs(i int) (o owner, turn int) {
	block := i / blockWords
	return owner(block % w.owners), block / w.owners
}

// expected is the number of the last write to a block of an owner that had completed seq writes.
func (w *words) expected(o owner, turn int, seq uint32) uint32 {
	share := uint32(w.share(o))
	back := (seq%share + share - uint32(turn)) % share
	if back > seq {
		return 0
	}
	return seq - back
}

// reader is what a process knows of the words from having read them.
type reader struct {
	*words
	// seen[i] is the highest number that any goroutine of the process has found in word i.
	seen []atomic.Uint32
}

func newReader(w *words) *reader {
	return &reader{words: w, seen: make([]atomic.Uint32, len(w.values))}
}

// floors are the least numbers that words from first on may show to a read that begins now.
func (r *reader) floors(first int, into []uint32) {
	last := -1 // block whose announcement was read
	var floor uint32
	for k := range into {
		i := first + k
		if i/blockWords >= r.blocks() {
			into[k] = 0
			continue
		}
		if block := i / blockWords; block != last {
			o, turn := r.belongs(i)
			floor = r.expected(o, turn, uint32(r.announced[o].Load()))
			last = block
		}
		into[k] = max(floor, r.seen[i].Load())
	}
}

// check takes what was read from word first on, after floors.
func (r *reader) check(first int, values []uint64, floors []uint32) error {
	for k, v := range values {
		i := first + k
		seq, ok := unpack(i, v)
		if !ok {
			return fmt.Errorf("word %d is %#x, which nobody has written there", i, v)
		}
		if i/blockWords >= r.blocks() {
			if v != 0 {
				return fmt.Errorf("word %d, which nobody writes, is %#x", i, v)
			}
			continue
		}
		o, turn := r.belongs(i)
		if int(seq)%r.share(o) != turn && seq != 0 {
			return fmt.Errorf("word %d has write %d of owner %d, which went to another block", i, seq, o)
		}
		if seq < floors[k] {
			return fmt.Errorf("word %d of rank %d went back: it has write %d, and write %d had been there before", i, o.rank(), seq, floors[k])
		}
		for old := r.seen[i].Load(); old < seq && !r.seen[i].CompareAndSwap(old, seq); {
			old = r.seen[i].Load()
		}
	}
	return nil
}

// estate is what an owner has left: the number of its last write, and whether that one is complete.
// It is an error if anything of its earlier writes is missing. Preconditions: nobody writes in the
// owner's name.
func (w *words) estate(o owner) (seq uint32, complete bool, err error) {
	announced := uint32(w.announced[o].Load())
	newest := announced
	for turn := range w.share(o) {
		first := (int(o) + turn*w.owners) * blockWords
		for i := first; i < first+blockWords; i++ {
			n, ok := unpack(i, atomic.LoadUint64(&w.values[i]))
			if !ok {
				return 0, false, fmt.Errorf("word %d of owner %d is %#x, which nobody has written there", i, o, w.values[i])
			}
			newest = max(newest, n)
		}
	}
	if newest > announced+1 {
		return 0, false, fmt.Errorf("owner %d has begun write %d before it announced write %d", o, newest, newest-1)
	}
	complete = true
	for turn := range w.share(o) {
		first := (int(o) + turn*w.owners) * blockWords
		for i := first; i < first+blockWords; i++ {
			n, _ := unpack(i, atomic.LoadUint64(&w.values[i]))
			switch want := w.expected(o, turn, newest); {
			case n == want:
			case want == announced+1 && n == w.expected(o, turn, announced):
				complete = false // this word of the last write is missing
			default:
				return 0, false, fmt.Errorf("word %d of owner %d has write %d, want write %d: of %d writes, %d were announced", i, o, n, want, newest, announced)
			}
		}
	}
	return newest, complete && newest == announced, nil
}
