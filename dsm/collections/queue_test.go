package collections_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"dsmd/dsm"
	"dsmd/dsm/collections"
	"dsmd/dsm/dsmtest"
	"dsmd/internal/kittest"
)

// line is what the history is of: a queue, or one with a planted bug.
type line interface {
	Put(ctx context.Context, v [3]int64) error
	Take(ctx context.Context) ([3]int64, error)
	Close(ctx context.Context) error
}

const (
	doPut = iota
	doTake
	doClose
)

// laneOf is the rank that has put an item.
func laneOf(item int64) int64 { return item >> 32 }

// waiting is the items of a rank that were put and not taken, in the model.
type waiting struct {
	items  string
	closed bool
}

// queueModel is the items of each rank by themselves. What has to do with all ranks happens to
// each.
var queueModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := make([][]porcupine.Operation, 4)
		for _, o := range history {
			do := o.Input.(operation)
			for lane := range parts {
				if do.Do == doClose || !do.Is || laneOf(do.Out) == int64(lane) {
					parts[lane] = append(parts[lane], o)
				}
			}
		}
		return parts
	},
	Init: func() any { return waiting{} },
	Step: func(was, input, _ any) (bool, any) {
		w, o := was.(waiting), input.(operation)
		item := string([]rune{rune(uint32(o.Out))})
		switch {
		case o.Do == doClose:
			return true, waiting{w.items, true}
		case o.Do == doPut && !o.Is: // it was told that the queue is closed
			return w.closed, w
		case o.Do == doPut:
			return !w.closed, waiting{w.items + item, w.closed}
		case !o.Is:
			return w.closed && w.items == "", w
		default:
			ok := len(w.items) >= len(item) && w.items[:len(item)] == item
			if ok {
				w.items = w.items[len(item):]
			}
			return ok, w
		}
	},
}

// playQueue puts and takes until the queue is closed, which a rank does at some time, and empty.
func playQueue(t *testing.T, ctx context.Context, c *dsm.Cluster, q line, threads, puts int) []operation {
	var mu sync.Mutex
	var all []operation
	do := func(client, what int, f func() (int64, error)) bool {
		o := operation{Client: int64(client), Do: int64(what), Call: now()}
		v, err := f()
		o.Return, o.Out, o.Is = now(), v, err == nil
		if err != nil && !errors.Is(err, collections.ErrQueueClosed) {
			t.Error(err)
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, o)
		return err == nil
	}
	var putters, takers sync.WaitGroup
	for thread := range threads {
		putters.Go(func() {
			r := rand.New(rand.NewPCG(uint64(c.Rank()), uint64(thread)))
			for i := range puts {
				v := int64(c.Rank())<<32 | int64(thread*puts+i+1)
				if !do(thread, doPut, func() (int64, error) { return v, q.Put(ctx, [3]int64{v, v, v}) }) {
					return
				}
				if i%5 == 0 {
					rest(r)
				}
			}
		})
		takers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(c.Rank()), uint64(threads+thread)))
			for do(threads+thread, doTake, func() (int64, error) {
				v, err := q.Take(ctx)
				if v != [3]int64{v[0], v[0], v[0]} {
					t.Errorf("took %v", v)
				}
				return v[0], err
			}) {
				if r.IntN(5) == 0 {
					rest(r)
				}
			}
		})
	}
	if c.Rank() == 0 { // when it is done itself, others may be about to put
		putters.Wait()
		do(2*threads, doClose, func() (int64, error) { return 0, q.Close(ctx) })
	}
	putters.Wait()
	takers.Wait()
	return all
}

type intsQueue = *collections.Queue[[3]int64]

// twice is a queue with a bug: what was taken is sometimes taken again.
type twice struct {
	intsQueue
	last *atomic.Pointer[[3]int64]
}

func (q twice) Take(ctx context.Context) ([3]int64, error) {
	if v := q.last.Swap(nil); v != nil && rand.IntN(20) == 0 {
		return *v, nil
	}
	v, err := q.intsQueue.Take(ctx)
	if err == nil {
		q.last.Store(&v)
	}
	return v, err
}

// unordered is a queue with a bug: an item is sometimes put late.
type unordered struct {
	intsQueue
	late *sync.WaitGroup
}

func (q unordered) Put(ctx context.Context, v [3]int64) error {
	if v[0]%20 != 0 {
		return q.intsQueue.Put(ctx, v)
	}
	q.late.Go(func() {
		time.Sleep(time.Millisecond)
		_ = q.intsQueue.Put(ctx, v)
	})
	return nil
}

// TestQueueHistory: what ranks put and take, while the queue is closed, can be explained by single
// steps, and what they do with one that has a bug can't.
func TestQueueHistory(t *testing.T) {
	const threads, puts = 2, 100
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		var late sync.WaitGroup
		play := func(name string, plant func(q intsQueue) line) []operation {
			q := kittest.Must[intsQueue](t)(collections.NewQueue[[3]int64](ctx, c, name, 8))
			kittest.Barrier(t, ctx, c)
			all := playQueue(t, ctx, c, plant(q), threads, puts)
			late.Wait()
			kittest.Barrier(t, ctx, c)
			if err := q.Free(ctx); err != nil {
				t.Error(err)
			}
			kittest.Barrier(t, ctx, c)
			return all
		}
		for _, name := range []string{"first", "second", "third"} {
			all := play(name, func(q intsQueue) line { return q })
			if result := judge(t, ctx, c, all, queueModel); c.Rank() == 0 && result != porcupine.Ok {
				t.Errorf("the history of a queue: %s", result)
			}
		}
		findPlanted(t, ctx, c, "twice", queueModel, func() []operation {
			return play("twice", func(q intsQueue) line { return twice{q, new(atomic.Pointer[[3]int64])} })
		})
		findPlanted(t, ctx, c, "unordered", queueModel, func() []operation {
			return play("unordered", func(q intsQueue) line { return unordered{q, &late} })
		})
	})
}

// TestQueue: limits, contexts and items of all sizes, in queues that are full and empty.
func TestQueue(t *testing.T) {
	kittest.RunEach(t, []int{1, 2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		testItems(t, ctx, c, "bytes", 1000, func(i int) byte { return byte(i) })
		testItems(t, ctx, c, "large", 7, func(i int) (v [3001]byte) { v[0], v[3000] = byte(i), byte(i); return v })
		testItems(t, ctx, c, "nothing", 100, func(int) struct{} { return struct{}{} })
		for capacity, err := range map[int]error{
			0: second(collections.NewQueue[int](ctx, c, "none", 0)), 1: second(collections.NewQueue[[1 << 20]byte](ctx, c, "none", 1)),
			math.MaxInt: second(collections.NewQueue[int](ctx, c, "none", math.MaxInt)), math.MaxInt / 8: second(collections.NewQueue[[1025]byte](ctx, c, "none", math.MaxInt/8)),
		} {
			if !errors.Is(err, dsm.ErrNoSpace) {
				t.Errorf("a queue of capacity %d: %v", capacity, err)
			}
		}
		if err := second(collections.NewQueue[*int](ctx, c, "none", 1)); !errors.Is(err, dsm.ErrType) {
			t.Errorf("a queue of pointers: %v", err)
		}
	})
}

// TestQueueLayout: ranks whose pages hold different numbers of items are told so, also where they
// have as many pages.
func TestQueueLayout(t *testing.T) {
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		if c.Rank() == 0 {
			kittest.Must[*collections.Queue[int]](t)(collections.NewQueue[int](ctx, c, "queue", 3))
		}
		kittest.Barrier(t, ctx, c)
		if c.Rank() == 1 {
			for _, capacity := range []int{4, c.PageBytes()} {
				if err := second(collections.NewQueue[int](ctx, c, "queue", capacity)); !errors.Is(err, dsm.ErrMismatch) {
					t.Errorf("a queue for 3 items is one for %d, too: %v", capacity, err)
				}
			}
			kittest.Must[*collections.Queue[int]](t)(collections.NewQueue[int](ctx, c, "queue", 3))
		}
		kittest.Barrier(t, ctx, c)
	})
}

// TestQueueAge: a queue goes on after more items than any program puts in a year.
func TestQueueAge(t *testing.T) {
	kittest.RunEach(t, []int{1}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		ctx, end := context.WithTimeout(ctx, 20*time.Second)
		defer end()
		for capacity, laps := range map[int]int64{1: 1<<47 - 1, 3 * (c.PageBytes()/8 - 1): 1<<36 - 3} {
			q := kittest.Must[*collections.Queue[int]](t)(collections.NewQueue[int](ctx, c, fmt.Sprint("for ", capacity), capacity))
			q.Age(laps)
			for i := range 8 * capacity { // twice around, or more
				if err := q.Put(ctx, i); err != nil {
					t.Fatal(err)
				}
				if v, err := q.Take(ctx); v != i || err != nil {
					t.Fatalf("item %d of a queue for %d is %d, %v", i, capacity, v, err)
				}
			}
		}
	})
}

func second[A any](_ A, err error) error { return err }

// TestQueueHandles: a rank may have two handles of a queue, as two jobs have for ranks of the same
// number, and puts by one of them until that is freed.
func TestQueueHandles(t *testing.T) {
	kittest.RunEach(t, []int{1}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		ctx, end := context.WithTimeout(ctx, 20*time.Second)
		defer end()
		var q [2]*collections.Queue[int]
		for i := range q {
			q[i] = kittest.Must[*collections.Queue[int]](t)(collections.NewQueue[int](ctx, c, "/queue", 10))
		}
		put := func(ctx context.Context, i, v int, want error) {
			t.Helper()
			if err := q[i].Put(ctx, v); !errors.Is(err, want) {
				t.Errorf("Put by handle %d: %v, want %v", i, err, want)
			}
		}
		take := func(i, want int) {
			t.Helper()
			if v, err := q[i].Take(ctx); v != want || err != nil {
				t.Errorf("Take by handle %d: %d, %v, want %d", i, v, err, want)
			}
		}
		put(ctx, 0, 7, nil)
		put(ctx, 0, 8, nil)
		take(1, 7)
		take(0, 8)
		soon, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		put(soon, 1, 9, context.DeadlineExceeded)
		cancel()
		if err := q[0].Free(ctx); err != nil {
			t.Error(err)
		}
		put(ctx, 1, 9, nil)
		take(1, 9)
		late := kittest.Must[*collections.Queue[int]](t)(collections.NewQueue[int](ctx, c, "/queue", 10))
		waiting := kittest.Must[*collections.Queue[int]](t)(collections.NewQueue[int](ctx, c, "/queue", 10))
		var team sync.WaitGroup
		for i := range 2 {
			team.Go(func() {
				if err := waiting.Put(ctx, i); !errors.Is(err, collections.ErrQueueClosed) {
					t.Errorf("waiting for another handle when the queue is closed: %v", err)
				}
			})
		}
		waiting.AwaitPut(ctx)
		time.Sleep(20 * time.Millisecond) // until it waits for the other, most likely
		if err := q[1].Close(ctx); err != nil {
			t.Error(err)
		}
		team.Wait()
		if err := late.Put(ctx, 10); !errors.Is(err, collections.ErrQueueClosed) {
			t.Errorf("the first Put by another handle, when the queue is closed: %v", err)
		}
		if err := errors.Join(late.Free(ctx), waiting.Free(ctx)); err != nil {
			t.Error(err)
		}
		if err := q[1].Free(ctx); err != nil {
			t.Error(err)
		}
	})
}

// testItems has each rank fill a queue to the brim, and rank 0 empty it, again and again.
func testItems[T comparable](t *testing.T, ctx context.Context, c *dsm.Cluster, name string, capacity int, itemOf func(i int) T) {
	q := kittest.Must[*collections.Queue[T]](t)(collections.NewQueue[T](ctx, c, name, capacity))
	for range 5 {
		n := 0
		for ; n < capacity; n++ {
			if err := q.Put(ctx, itemOf(n)); err != nil {
				t.Fatal(err)
			}
		}
		for ; ; n++ {
			short, end := context.WithTimeout(ctx, 5*time.Millisecond)
			err := q.Put(short, itemOf(n))
			end()
			if errors.Is(err, context.DeadlineExceeded) {
				break
			}
			if err != nil || n > capacity+capacity/3+4 {
				t.Fatalf("%s: item %d was put into a queue for %d, %v", name, n, capacity, err)
			}
		}
		want, total := map[T]int{}, 0
		for _, n := range kittest.Must[[]int](t)(dsm.AllGather(ctx, c, name, n)) {
			for i := range n {
				want[itemOf(i)]++
			}
			total += n
		}
		if c.Rank() == 0 {
			got := map[T]int{}
			for range total {
				got[kittest.Must[T](t)(q.Take(ctx))]++
			}
			if !maps.Equal(got, want) {
				t.Errorf("%s: other items were taken than were put", name)
			}
			short, end := context.WithTimeout(ctx, 5*time.Millisecond)
			if v, err := q.Take(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: of an empty queue one takes %v, %v", name, v, err)
			}
			end()
		}
		kittest.Barrier(t, ctx, c)
	}
	if err := errors.Join(q.Close(ctx), q.Close(ctx)); err != nil {
		t.Error(err)
	}
	kittest.Barrier(t, ctx, c)
	if err := q.Put(ctx, itemOf(0)); !errors.Is(err, collections.ErrQueueClosed) {
		t.Errorf("%s: putting into a closed queue: %v", name, err)
	}
	if _, err := q.Take(ctx); !errors.Is(err, collections.ErrQueueClosed) {
		t.Errorf("%s: taking from a closed queue: %v", name, err)
	}
	if err := q.Free(ctx); err != nil {
		t.Error(err)
	}
}

// looks is a context that counts how often it is looked at.
type looks struct {
	context.Context
	n atomic.Int64
}

func (l *looks) Done() <-chan struct{} { l.n.Add(1); return l.Context.Done() }
func (l *looks) Err() error            { l.n.Add(1); return l.Context.Err() }

// TestQueueOneLooks: of many goroutines of a program that wait for an item one looks for it again
// and again, and when that gives up another does. All of them get one.
func TestQueueOneLooks(t *testing.T) {
	kittest.RunEach(t, []int{1, 2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const takers, few, many = 40, 50, 1000
		q := kittest.Must[*collections.Queue[int]](t)(collections.NewQueue[int](ctx, c, "queue", takers*c.Size()))
		var all [takers]looks
		var ends [takers]context.CancelFunc
		var team sync.WaitGroup
		var gaveUp atomic.Int64
		for i := range all {
			own, end := context.WithCancel(ctx)
			all[i].Context, ends[i] = own, end
			team.Go(func() {
				if _, err := q.Take(&all[i]); errors.Is(err, context.Canceled) {
					gaveUp.Add(1)
				} else if err != nil {
					t.Error(err)
				}
			})
		}
		looking := func(least int64) (found []int) {
			for i := range all {
				if all[i].n.Load() >= least {
					found = append(found, i)
				}
			}
			return found
		}
		for seen := 0; seen < 2; { // the second begins when the first has given up
			for len(looking(many)) == seen {
				time.Sleep(time.Millisecond)
			}
			if l := looking(few); len(l) != seen+1 {
				t.Fatalf("%d goroutines look while %d have", len(l), seen)
			}
			if seen++; seen == 1 {
				ends[looking(many)[0]]()
			}
		}
		kittest.Barrier(t, ctx, c)
		for range takers - 1 {
			if err := q.Put(ctx, 1); err != nil {
				t.Fatal(err)
			}
		}
		team.Wait()
		if n := gaveUp.Load(); n != 1 {
			t.Errorf("%d goroutines gave up", n)
		}
		kittest.Barrier(t, ctx, c)
		for _, end := range ends {
			end()
		}
	})
}

// TestQueueTakesOthers: who always has something of its own to take takes what others have put,
// too.
func TestQueueTakesOthers(t *testing.T) {
	const others, most = 9, 10000
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		q := kittest.Must[*collections.Queue[int]](t)(collections.NewQueue[int](ctx, c, "queue", others))
		for range others * c.Rank() {
			if err := q.Put(ctx, c.Rank()); err != nil {
				t.Fatal(err)
			}
		}
		kittest.Barrier(t, ctx, c)
		if c.Rank() == 0 {
			for takes, left := 0, others; left > 0; takes++ {
				if takes == most {
					t.Fatalf("%d items of another are left after %d of its own", left, most)
				}
				if err := q.Put(ctx, 0); err != nil {
					t.Fatal(err)
				}
				left -= kittest.Must[int](t)(q.Take(ctx))
			}
		}
		kittest.Barrier(t, ctx, c)
	})
}

// TestQueueDeath: what a program that dies had put is taken, and of what was put nothing is taken
// twice or missing but what it had taken.
func TestQueueDeath(t *testing.T) {
	const puts = 1000
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		q := kittest.Must[*collections.Queue[int]](t)(collections.NewQueue[int](ctx, c, "queue", 100))
		type did struct{ put, taken atomic.Int64 }
		all := kittest.Must[*collections.Padded[did]](t)(collections.NewPadded[did](ctx, c, "did", c.Size()))
		kittest.Barrier(t, ctx, c)
		own := all.At(c.Rank())
		mortal := c.Rank() > 0
		var putting sync.WaitGroup
		putting.Go(func() {
			for i := 0; ; i++ {
				if err := q.Put(ctx, c.Rank()<<32|i); err != nil {
					return // it was closed
				}
				if own.put.Add(1); mortal && i == puts*c.Rank() {
					die()
				}
			}
		})
		if mortal {
			for {
				kittest.Must[int](t)(q.Take(ctx))
				own.taken.Add(1)
			}
		}
		next := make([]int, c.Size()) // of each rank's items
		got, missing := 0, 0
		closed := false
		for {
			v, err := q.Take(ctx)
			if errors.Is(err, collections.ErrQueueClosed) && closed {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			rank, i := v>>32, int(uint32(v))
			if i < next[rank] {
				t.Fatalf("item %d of rank %d was taken after %d", i, rank, next[rank]-1)
			}
			missing += i - next[rank]
			next[rank] = i + 1
			if got++; got%1000 == 0 && !closed && kittest.Must[*dsm.Survivors](t)(c.Survivors(ctx)).Size() == 1 {
				if err := q.Close(ctx); err != nil {
					t.Error(err)
				}
				closed = true
			}
		}
		putting.Wait()
		taken, late := 0, 0
		for rank := 1; rank < c.Size(); rank++ {
			put := int(all.At(rank).put.Load())
			taken += int(all.At(rank).taken.Load())
			if late = put - next[rank]; late > 0 {
				missing += late
			}
		}
		// Each may have taken one more that it could not note.
		if missing < taken || missing > taken+c.Size()-1 {
			t.Errorf("%d items are missing, and ranks that died had taken %d", missing, taken)
		}
	}, "--survive")
}

// TestQueueLossOfATaker: who is lost and has only looked for items, where there were none yet,
// takes nothing of a replicated queue with it.
func TestQueueLossOfATaker(t *testing.T) {
	const capacity, onPage = 9, 3
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		var queues []*collections.Queue[int]
		for i := range 2 * c.Size() { // whose pages have different homes
			queues = append(queues, kittest.Must[*collections.Queue[int]](t)(collections.NewQueue[int](ctx, c, fmt.Sprint("kept ", i), capacity, dsm.Replicated(1))))
			kittest.Must[[]byte](t)(dsm.Alloc[byte](ctx, c, fmt.Sprint("between ", i), 10*c.PageBytes()))
		}
		putAndTake := func(q *collections.Queue[int], n int) {
			for i := range n {
				if err := q.Put(ctx, i); err != nil {
					t.Fatal(err)
				}
			}
			for range n {
				if _, err := q.Take(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
		kittest.Barrier(t, ctx, c)
		for _, q := range queues {
			if c.Rank() == 2 {
				putAndTake(q, onPage)
				soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				if _, err := q.Take(soon); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("in an empty queue: %v", err)
				}
				cancel()
			}
		}
		lastBarrier(t, ctx, c)
		if c.Rank() == 2 {
			dsmtest.LoseNode(t, c)
		}
		bereaved(t, ctx, c, 1)
		for _, q := range queues {
			putAndTake(q, capacity)
		}
	}, "--survive")
}

// TestQueueLoss: items that were lost with a node are an error, once and in the end, and those of
// others and in replicated memory are taken.
func TestQueueLoss(t *testing.T) {
	const each = 20
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		plain := kittest.Must[*collections.Queue[int]](t)(collections.NewQueue[int](ctx, c, "plain", each))
		kept := kittest.Must[*collections.Queue[int]](t)(collections.NewQueue[int](ctx, c, "kept", each, dsm.Replicated(1)))
		for i := range each {
			if err := errors.Join(plain.Put(ctx, c.Rank()<<32|i), kept.Put(ctx, c.Rank()<<32|i)); err != nil {
				t.Fatal(err)
			}
		}
		lastBarrier(t, ctx, c)
		if c.Rank() == 2 {
			dsmtest.LoseNode(t, c)
		}
		bereaved(t, ctx, c, 1)
		if c.Rank() == 0 {
			next, lost := [3]int{}, 0
			for {
				v, err := plain.Take(ctx)
				if errors.Is(err, collections.ErrQueueClosed) {
					if !errors.Is(err, dsm.ErrPageLost) {
						t.Errorf("in the end nothing is said of what was lost: %v", err)
					}
					break
				} else if errors.Is(err, dsm.ErrPageLost) {
					lost++
					continue
				} else if err != nil {
					t.Fatal(err)
				}
				rank := v >> 32
				if int(uint32(v)) != next[rank] {
					t.Errorf("item %d of rank %d is taken, want %d", uint32(v), rank, next[rank])
				}
				if next[rank]++; next[0]+next[1] == 2*each {
					if err := plain.Close(ctx); err != nil && !errors.Is(err, dsm.ErrPageLost) {
						t.Error(err)
					}
				}
			}
			if lost != 1 || next != [3]int{each, each, 0} {
				t.Errorf("%v items were taken, and %d errors say that some were lost", next, lost)
			}
			if err := kept.Close(ctx); err != nil {
				t.Error(err)
			}
			got := map[int]bool{}
			for v, err := kept.Take(ctx); err == nil; v, err = kept.Take(ctx) {
				got[v] = true
			}
			if len(got) != 3*each {
				t.Errorf("%d items are kept, want %d", len(got), 3*each)
			}
		}
		meetLeft(t, ctx, c)
	}, "--survive")
}

// TestQueueHalfClosed: a queue is closed if the program that closes it dies on the way.
func TestQueueHalfClosed(t *testing.T) {
	kittest.RunEach(t, []int{1, 2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		q := kittest.Must[*collections.Queue[int]](t)(collections.NewQueue[int](ctx, c, "half closed", 10))
		if err := q.Put(ctx, c.Rank()); err != nil {
			t.Error(err)
		}
		kittest.Barrier(t, ctx, c)
		if c.Rank() == 0 {
			q.BeginClose()
		}
		kittest.Barrier(t, ctx, c)
		taken := 0
		for {
			if _, err := q.Take(ctx); errors.Is(err, collections.ErrQueueClosed) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			taken++
		}
		if n := kittest.Must[int](t)(dsm.Reduce(ctx, c, "taken", taken, dsm.Sum)); n != c.Size() {
			t.Errorf("%d items were taken, want %d", n, c.Size())
		}
	})
}
