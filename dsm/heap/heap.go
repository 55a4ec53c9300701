package heap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"dsmd/dsm"
)

const (
	// maxArenas bounds the programs that have a heap open.
	maxArenas = 1024
	// maxShards bounds how many goroutines of a program allocate at the same time without waiting
	// for each other.
	maxShards = 16
	// spread is how many pages the table has at least, so that programs change entries on pages of
	// their own, and a lost page has few.
	spread = 64
	// largest is the size of the largest heap: that of the largest region.
	largest = 16 << 40
)

// Heap is a heap that this program has open.
type Heap struct {
	c          *dsm.Cluster
	name       string
	memory     []uint64 // the header, mailboxes, each on a page, the table, the blocks
	total      int      // blocks
	perPage    int      // entries on a page of the table
	start      uintptr  // of the first block
	page       uintptr  // bytes
	blockBytes uintptr
	classes    []class

	shards   []shard
	blocks   sync.Map // int to *block: those of this program's arenas
	types    sync.Map // reflect.Type to the error of dsm.Shareable
	outboxes [maxArenas]outbox
	tracking atomic.Bool
	origins  sync.Map              // the address of a value, if tracking, to its Leak
	broken   atomic.Pointer[error] // why nothing works any more

	own      int // the arena in which this program allocates
	claiming sync.Mutex
	next     int        // where claim looks first; guarded by claiming
	draining sync.Mutex // before the shards'
	arenas   []int      // that this program has; guarded by draining
	adopting sync.Mutex // before draining
	adopted  time.Time  // when it was tried last; guarded by adopting
	awaited  []int      // arenas of lost ranks that were waited for; guarded by adopting
}

// layout is raised with each change of what lies where in a heap. Programs that were built with
// another number are refused, and so are their checkpoints.
const layout = 2

// header is the first page of a heap's memory.
type header struct {
	layout atomic.Uint64                 // the constant
	base   atomic.Uint64                 // the address of the memory
	used   [maxArenas / 64]atomic.Uint64 // a bit for each arena that a program has had
}

// Open opens the heap of that name, which is empty if it is new. All programs that use it open it.
// To dsm it is an allocation of that name: with options such as dsm.Keep, and there as long as a
// program has it open. Its values stay when the program has ended that has allocated them.
//
// bytes is how many addresses the heap takes, 5 MiB at least with pages of 4 KiB; memory is taken
// only by values. All programs give the same number. 0 is the largest power of two that fits: half
// of the region, or less where all nodes have less memory.
//
// Errors are those of dsm.Alloc and of a dsm.Mutex; dsm.ErrMismatch also if the heap's memory is at
// another address than it was, as may be after Cluster.Restore, or is of another release;
// dsm.ErrNoSpace also if 1,024 programs have it open; dsm.ErrPageLost; and one of its own for
// dsm.Replicated, see the package comment.
func Open(ctx context.Context, c *dsm.Cluster, name string, bytes int, options ...dsm.AllocOption) (*Heap, error) {
	if dsm.Survives(options...) > 0 {
		return nil, fmt.Errorf("heap: Open %q: a heap cannot be Replicated: after a loss it would give out memory that somebody uses; replicate what its values are made from", name)
	}
	h := &Heap{c: c, name: name, page: uintptr(c.PageBytes()), blockBytes: uintptr(blockPages * c.PageBytes())}
	options = append(slices.Clip(options), dsm.StaysLost())
	h.classes = newClasses(h.page)
	h.shards = make([]shard, min(runtime.NumCPU(), maxShards))
	for i := range h.shards {
		h.shards[i].open = make([][]*block, len(h.classes))
	}
	err := h.alloc(ctx, bytes, options)
	if err == nil {
		err = h.lay()
	}
	if err == nil {
		err = h.settle(ctx)
	}
	if err != nil {
		err = errors.Join(err, dsm.Free(context.WithoutCancel(ctx), c, h.memory))
		return nil, fmt.Errorf("heap: Open %q: %w", name, err)
	}
	return h, nil
}

// alloc allocates the heap's memory: as much as is asked for, or, if that is 0, as much as fits.
// All programs try the same, so that those that come later find what the first one has found.
func (h *Heap) alloc(ctx context.Context, bytes int, options []dsm.AllocOption) (err error) {
	least := (maxArenas + spread + blockPages + 3) * int(h.page)
	for range 2 {
		for try := cmp.Or(bytes, largest); try >= least; try /= 2 {
			h.memory, err = dsm.Alloc[uint64](ctx, h.c, h.name, try/int(h.page)*int(h.page)/8, options...)
			if bytes > 0 && errors.Is(err, dsm.ErrMismatch) { // dsm counts elements
				return fmt.Errorf("%w: this program wants a heap of %d bytes, and the name stands for something else, or for a heap of other length or options",
					dsm.ErrMismatch, bytes)
			}
			if bytes > 0 || !errors.Is(err, dsm.ErrNoSpace) && !errors.Is(err, dsm.ErrMismatch) {
				return err
			}
		}
		if !errors.Is(err, dsm.ErrMismatch) {
			break
		}
		// Another program may have found room meanwhile for what had been too much here.
	}
	return cmp.Or(err, fmt.Errorf("%w: a heap takes %d bytes at least", dsm.ErrNoSpace, least))
}

// lay finds where in the memory everything is.
func (h *Heap) lay() (err error) {
	base, pages := addressOf(h.memory), 8*len(h.memory)/int(h.page)
	h.total = (pages - maxArenas - spread - 2) * int(h.page) / (int(h.blockBytes) + 8)
	h.perPage = min(int(h.page/8), h.total/spread+1)
	h.start = base + uintptr(pages)*h.page - uintptr(h.total)*h.blockBytes
	lost := dsm.Guard(func() {
		was := &headerOf(h).layout
		if !was.CompareAndSwap(0, layout) && was.Load() != layout {
			err = fmt.Errorf("%w: a program of another release of dsm has made it, of which no value can be found; begin with an empty one", dsm.ErrMismatch)
			return
		}
		was = &headerOf(h).base
		if !was.CompareAndSwap(0, uint64(base)) && was.Load() != uint64(base) {
			err = fmt.Errorf("%w: its memory was at %#x and is at %#x now; allocate all memory in the order in which it was", dsm.ErrMismatch, was.Load(), base)
		}
	})
	return errors.Join(lost, err)
}

// entry is that of a block.
func (h *Heap) entry(number int) *atomic.Uint64 {
	at := uintptr(number/h.perPage)*h.page + uintptr(number%h.perPage)*8
	return Ref[atomic.Uint64]{h.mailbox(maxArenas) + at}.Get()
}

func headerOf(h *Heap) *header { return Ref[header]{addressOf(h.memory)}.Get() }

// Flush does what New and Free put off: what this program has freed goes home to the programs that
// have allocated it, what others have sent is free here, and blocks without values are anybody's.
// Errors: dsm.ErrPageLost (some of what was freed stays allocated), dsm.ErrNotShared,
// dsm.ErrClosed.
func (h *Heap) Flush() error {
	err := h.err()
	if err == nil {
		for arena := range h.outboxes {
			err = errors.Join(err, h.send(arena, h.outboxes[arena].empty()))
		}
		h.drain()
		err = errors.Join(err, h.sweep())
	}
	if err = errors.Join(err, h.err()); err != nil {
		return fmt.Errorf("heap: Flush: %w", err)
	}
	return nil
}

// err is why nothing works any more.
func (h *Heap) err() error {
	if err := h.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// closedError is what calls return after Close. It is a dsm.ErrClosed, though the cluster is there.
type closedError struct{}

func (closedError) Error() string { return "the heap was closed" }

func (closedError) Is(target error) bool { return target == dsm.ErrClosed }

// Close closes the heap in this program; its values stay, if another program has it open or with
// dsm.Keep. No other call may be under way, and Refs must not be used any more. Errors: those of
// Flush and dsm.Free.
func (h *Heap) Close(ctx context.Context) error {
	err := h.Flush()
	if !errors.Is(err, dsm.ErrClosed) {
		var closed error = closedError{}
		h.broken.Store(&closed)
		for _, arena := range h.arenas {
			err = errors.Join(err, h.mutex(arena).Unlock())
		}
		err = errors.Join(err, dsm.Free(ctx, h.c, h.memory))
	}
	return err
}
