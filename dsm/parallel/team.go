package parallel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/collections"
)

// What other ranks are told of an error, and of the task that has failed, is bounded, in bytes.
const (
	maxText = 3000
	maxTask = 200
)

// Team is the goroutines of all ranks, which run loops and tasks together. One goroutine of each
// rank calls its methods.
type Team struct {
	*crew
	touches []Touch
}

// crew is what a Team and those that touch something have in common.
type crew struct {
	c           *dsm.Cluster
	among       dsm.Group
	index, size int // of this rank, among those that take part
	threads     int
	name        string
	told        string                    // what a rank does that has its part of a loop behind it
	prefix      string                    // names its reductions, and begins names of its memory
	memory      string                    // begins those of a group of this size
	slots       *collections.Padded[slot] // of the ranks, by index
	victims     []int                     // from whom to take, by index
	progress    string                    // what a bar is called; "": none is shown
	// patience is how long the rank waits for the others, at least, before it looks for what they
	// have left. It is twice as long after a loop in which it has only looked in vain, and a little
	// less after any other, so that it looks again some time. Only who runs the loop touches it.
	patience time.Duration
}

// slot is what ranks share of one of them. It lies on pages of its own, that are at the rank's node
// unless somebody looks at them. What is changed often is on the first.
type slot struct {
	// rest is the items that nobody has begun, of loops with even and with odd numbers: a rank that
	// still looks for something to take, when all is done, finds none of the next loop. Between
	// loops it is empty.
	rest [2]items
	// pace is how many nanoseconds an item has taken lately, by all threads, or unknown: in the
	// quicker of two chunks, as one may have waited for a page, or for a processor.
	pace atomic.Int64
	// ran is how many items of its last loop the rank has run.
	ran count
	// stopped is the number of a loop that has failed.
	stopped atomic.Uint64
	// loops is how many loops the rank has begun, with all teams of the name: no two loops have a
	// number in common, as their items lie in the same memory. Only the rank touches it, and the
	// next two.
	loops   uint64
	busy    atomic.Bool // the rank is in a loop
	program uint64      // the rank's, as it calls itself; 0 before there was any
	// ended is how many tasks have ended on other ranks that this one had forked, by the numbers of
	// their parents (offers). They are counted through all calls of Tasks.
	ended [maxParents]atomic.Uint32
	// The rank's last failure.
	rank             int
	text             [maxText]byte
	task             [maxTask]byte
	lenText, lenTask int
}

// program is what this program calls itself, as no other does that was of its rank before.
var program = rand.Uint64() | 1

// claim makes the slot this program's, which may come after one that has died in a loop. It stores
// to all pages: one that nobody has touched is lost with its home, which may be a node that has no
// rank.
func (s *slot) claim() {
	if s.program == program {
		return
	}
	s.program = program
	s.busy.Store(false)
	s.rest[0].put(0, 0)
	s.rest[1].put(0, 0)
	clear(s.text[:])
	clear(s.task[:])
	s.rank, s.lenText, s.lenTask = 0, 0, 0
}

// Option is an option of New.
type Option func(*crew)

// maxThreads bounds the goroutines that run items in a rank. If there were more of them, those that
// have no task would be busy looking at all the others.
const maxThreads = 1 << 10

// Threads sets how many goroutines run items in this rank, from 1 to 1,024: what is less or more
// counts as that. Without it they are as many as there are processors for this program.
func Threads(n int) Option { return func(t *crew) { t.threads = min(max(n, 1), maxThreads) } }

// New makes a team of the given name: of all ranks, or of those that are left when others were lost
// (dsm.Survivors), for whom it is another team. All of them call it, and it waits for all. When it
// fails on one it does on all, but for a context that ends: the others wait for that rank. A second
// team of the name is another handle of the first, and is closed once more. A team belongs to its
// job, whatever its name. The names of its memory and its reductions begin with "parallel/"
// and its own. Checkpoints leave the memory out (dsm.Unsaved). Errors are those of dsm.Alloc and
// dsm.Reduce.
func New(ctx context.Context, among dsm.Group, name string, opts ...Option) (*Team, error) {
	c, index := dsm.Member(among)
	t := &crew{c: c, among: among, index: index, size: among.Size(), threads: runtime.NumCPU(), name: name, patience: minPatience}
	t.told = fmt.Sprintf("at the end of a loop of team %q", name)
	// It is the job's own, as the team is: the name does not begin with dsm.Everywhere.
	t.prefix = "parallel/" + name
	t.memory = fmt.Sprintf("%s/%d", t.prefix, t.size)
	for _, opt := range opts {
		opt(t)
	}
	slots, failed := collections.NewPadded[slot](ctx, c, t.memory, t.size, dsm.Unsaved())
	t.slots = slots
	nodes, err := t.introduce(ctx, failed)
	if failed != nil {
		return nil, wrapped(failed)
	}
	if err != nil {
		return nil, wrapped(errors.Join(err, t.slots.Free(context.WithoutCancel(ctx))))
	}
	for i := range t.size {
		if i != t.index {
			t.victims = append(t.victims, i)
		}
	}
	far := func(i int) int {
		if nodes[i] != c.Node() {
			return t.size + max(i-t.index, t.index-i)
		}
		return max(i-t.index, t.index-i)
	}
	slices.SortFunc(t.victims, func(a, b int) int { return far(a) - far(b) })
	return &Team{crew: t}, nil
}

// introduce returns the nodes of all ranks, and makes their loops have the same numbers from here
// on: an earlier team of the name may have come to its end because they had not. A rank that has
// failed to make the slots tells the others, who wait.
func (t *crew) introduce(ctx context.Context, failed error) (nodes []int, err error) {
	type rank struct {
		Node   int
		Loops  uint64
		Failed bool
		Lost   bool // its slot
	}
	own := rank{Node: t.c.Node(), Failed: failed != nil}
	var lost error
	if failed == nil {
		lost = dsm.Guard(func() {
			t.own().claim()
			own.Loops = t.own().loops
		})
	}
	own.Lost = lost != nil
	ranks, err := dsm.AllGather(ctx, t.among, t.prefix, own)
	if err = cmp.Or(lost, err); err != nil {
		return nil, err
	}
	for i, r := range ranks {
		if r.Failed {
			return nil, fmt.Errorf("rank %d of the team has failed to make it", i)
		}
		if r.Lost {
			return nil, fmt.Errorf("%w: the part of rank %d of the team", dsm.ErrPageLost, i)
		}
		nodes = append(nodes, r.Node)
		own.Loops = max(own.Loops, r.Loops)
	}
	return nodes, dsm.Guard(func() { t.own().loops = own.Loops })
}

// Touching is the same team, for loops whose items touch what is said, beside what t says. It sends
// nothing.
func (t *Team) Touching(what ...Touch) *Team {
	return &Team{t.crew, slices.Concat(t.touches, what)}
}

// Close gives the team's memory back, with the errors of dsm.Free. Every rank calls it.
func (t *Team) Close(ctx context.Context) error { return t.slots.Free(ctx) }

// Block is the part of n items that this rank begins with, the half-open range from lo to hi. Parts
// follow each other in the order of ranks, and their lengths differ by at most one.
func (t *Team) Block(n int) (lo, hi int) { return t.block(n) }

func (t *crew) block(n int) (lo, hi int) { return t.begins(n, t.index), t.begins(n, t.index+1) }

// begins is n * index / size, where n may be any number.
func (t *crew) begins(n, index int) int { return n/t.size*index + n%t.size*index/t.size }

func (t *crew) own() *slot { return t.slots.At(t.index) }

// meet waits for all ranks.
func (t *crew) meet(ctx context.Context) error {
	_, err := dsm.Reduce(ctx, t.among, t.prefix, struct{}{}, func(a, _ struct{}) struct{} { return a })
	return err
}

// items are a range of items: in the upper half the first one, in the lower half the end. One rank
// puts some in, when there are none; everybody takes some out.
type items struct{ atomic.Uint64 }

func (r *items) put(lo, hi int) { r.Store(uint64(lo)<<32 | uint64(hi)) }

// take takes n from the front, or as many as there are of them, or as the given part of all: but
// one at least, if there is any.
func (r *items) take(n, part int) (lo, hi int) {
	for {
		old := r.Load()
		lo, end := int(old>>32), int(uint32(old))
		hi := min(lo+min(n, (end-lo)/part+1), end)
		if lo == hi || r.CompareAndSwap(old, uint64(hi)<<32|uint64(end)) {
			return lo, hi
		}
	}
}

// rob takes half of them, from the end, if they are at least so many.
func (r *items) rob(least int) (lo, hi int) {
	for {
		old := r.Load()
		begin, hi := int(old>>32), int(uint32(old))
		if hi-begin < max(least, 1) {
			return 0, 0
		}
		lo := begin + (hi-begin)/2
		if r.CompareAndSwap(old, uint64(begin)<<32|uint64(lo)) {
			return lo, hi
		}
	}
}

// count is how many items of a loop a rank has run: in the upper half the last bits of the loop's
// number, in the lower half how many.
type count struct{ atomic.Uint64 }

func (k *count) begin(loop uint64) { k.Store(loop << 32) }

// in reports whether the rank is in that loop already.
func (k *count) in(loop uint64) bool { return uint32(k.Load()>>32) == uint32(loop) }

// of is the count, or 0 if the rank is not in that loop yet.
func (k *count) of(loop uint64) int {
	if v := k.Load(); uint32(v>>32) == uint32(loop) {
		return int(uint32(v))
	}
	return 0
}
