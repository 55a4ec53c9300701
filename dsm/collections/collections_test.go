package collections_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/collections"
	"dsmd/dsm/dsmtest"
	"dsmd/dsm/dsync"
	"dsmd/internal/kittest"
	_ "dsmd/internal/patience" // ends a run in which a test waits for ever
)

// testPadded stores to each rank's value many times, of a type.
func testPadded[T any](t *testing.T, ctx context.Context, c *dsm.Cluster, name string, store func(v *T, i int), load func(v *T) int) {
	p := kittest.Must[*collections.Padded[T]](t)(collections.NewPadded[T](ctx, c, name, c.Size()))
	if p.Len() != c.Size() {
		t.Errorf("%s: %d values, want %d", name, p.Len(), c.Size())
	}
	own := p.At(c.Rank())
	kittest.Quiet(t, ctx, c, "storing to the rank's own "+name, func() {
		for i := range 10000 {
			store(own, i)
		}
	})
	kittest.Barrier(t, ctx, c)
	for i := range p.Len() {
		if got := load(p.At(i)); got != 9999 {
			t.Errorf("%s: value %d is %d", name, i, got)
		}
	}
	kittest.Barrier(t, ctx, c)
	if err := p.Free(ctx); err != nil {
		t.Error(err)
	}
}

// TestPadded: values of all sizes share no page.
func TestPadded(t *testing.T) {
	kittest.RunEach(t, []int{1, 3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		testPadded(t, ctx, c, "word", func(v *int, i int) { *v = i }, func(v *int) int { return *v })
		type odd [3003]int16
		testPadded(t, ctx, c, "odd", func(v *odd, i int) { v[0], v[3002] = int16(i), int16(i) }, func(v *odd) int { return int(v[3002]) })
		type large [5000]byte
		testPadded(t, ctx, c, "large", func(v *large, i int) { v[4998], v[4999] = byte(i>>8), byte(i) }, func(v *large) int { return int(v[4998])<<8 | int(v[4999]) })
		none := kittest.Must[*collections.Padded[struct{}]](t)(collections.NewPadded[struct{}](ctx, c, "none", 3))
		if none.Len() != 3 || none.At(2) == nil {
			t.Error("values without a size are not there")
		}
		if err := none.Free(ctx); err != nil {
			t.Error(err)
		}
		kittest.Barrier(t, ctx, c)
		testPadded(t, ctx, c, "none", func(v *int, i int) { *v = i }, func(v *int) int { return *v })
		for _, n := range []int{-1, 1 << 62, math.MaxInt} { // 4 * 1<<62 elements would be none
			if _, err := collections.NewPadded[[1400]byte](ctx, c, "too many", n); !errors.Is(err, dsm.ErrNoSpace) {
				t.Errorf("%d values: %v", n, err)
			}
		}
	})
}

// TestPaddedHasNoOther: there is no value but those from 0 to Len-1. Values of 1400 bytes are four
// apart, so that 1<<62 of them are no bytes, as an int counts.
func TestPaddedHasNoOther(t *testing.T) {
	kittest.RunEach(t, []int{1}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		p := kittest.Must[*collections.Padded[[1400]byte]](t)(collections.NewPadded[[1400]byte](ctx, c, "three", 3))
		for _, i := range []int{-1, 3, 1 << 62, 1<<62 + 2, math.MinInt, math.MaxInt} {
			func() {
				defer func() {
					if text := fmt.Sprint(recover()); !strings.Contains(text, fmt.Sprintf("value %d of 3 ", i)) {
						t.Errorf("At(%d): %s", i, text)
					}
				}()
				p.At(i)
			}()
		}
	})
}

// TestNames: a map, and one of each of what package dsync has, may have the same name.
func TestNames(t *testing.T) {
	kittest.RunEach(t, []int{1, 2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		ctx, end := context.WithTimeout(ctx, 20*time.Second)
		defer end()
		const name = "name"
		m := kittest.Must[*collections.Map[int, int]](t)(collections.NewMap[int, int](ctx, c, name, 100))
		s := kittest.Must[*dsync.Semaphore](t)(dsync.NewSemaphore(ctx, c, name, 1))
		g := kittest.Must[*dsync.WaitGroup](t)(dsync.NewWaitGroup(ctx, c, name))
		lock := dsm.NewMutex(c, name)
		changed := kittest.Must[*dsync.Cond](t)(dsync.NewCond(ctx, c, name, lock))
		eg, _, err := dsync.NewErrGroup(ctx, c, name)
		if err != nil {
			t.Fatal(err)
		}
		eg.Go(func() error {
			return errors.Join(g.Add(1), s.Acquire(ctx, 1), m.Store(ctx, c.Rank(), 1), s.Release(1), g.Done())
		})
		if err := errors.Join(eg.Wait(ctx), g.Wait(ctx), changed.Signal()); err != nil {
			t.Error(err)
		}
		kittest.Barrier(t, ctx, c)
		if err := errors.Join(changed.Free(ctx), g.Free(ctx), s.Free(ctx), m.Free(ctx)); err != nil {
			t.Error(err)
		}
	})
}

// TestCounter: every number is drawn by one goroutine.
func TestCounter(t *testing.T) {
	const threads, each, batch = 4, 300, 3
	kittest.RunEach(t, []int{1, 3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		k := kittest.Must[*collections.Counter](t)(collections.NewCounter(ctx, c, "drawn"))
		all := threads * each * batch * c.Size()
		drawn := kittest.Must[[]atomic.Int32](t)(dsm.Alloc[atomic.Int32](ctx, c, "by", all))
		var team sync.WaitGroup
		for range threads {
			team.Go(func() {
				for range each {
					end := k.Add(batch)
					for i := end - batch; i < end; i++ {
						drawn[i].Add(1)
					}
				}
			})
		}
		team.Wait()
		kittest.Barrier(t, ctx, c)
		if k.Load() != int64(all) {
			t.Errorf("the counter is at %d, want %d", k.Load(), all)
		}
		for i := range drawn {
			if n := drawn[i].Load(); n != 1 {
				t.Fatalf("%d was drawn %d times", i, n)
			}
		}
		kittest.Barrier(t, ctx, c)
		if err := k.Free(ctx); err != nil {
			t.Error(err)
		}
	})
}

// TestAccumulator: what is added counts, exactly once, and adding makes nothing travel.
func TestAccumulator(t *testing.T) {
	kittest.RunEach(t, []int{1, 3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		whole := kittest.Must[*collections.Accumulator[int64]](t)(collections.NewAccumulator[int64](ctx, c, "whole"))
		halves := kittest.Must[*collections.Accumulator[float64]](t)(collections.NewAccumulator[float64](ctx, c, "halves"))
		sum := func() (int64, float64) {
			return kittest.Must[int64](t)(whole.Sum(ctx)), kittest.Must[float64](t)(halves.Sum(ctx))
		}
		if n, f := sum(); n != 0 || f != 0 {
			t.Errorf("the sums begin with %d and %g", n, f)
		}
		passes := 0
		kittest.Quiet(t, ctx, c, "adding", func() {
			passes++
			var team sync.WaitGroup
			for range 4 {
				team.Go(func() {
					for i := range 1000 {
						whole.Add(int64(i - 999))
						halves.Add(0.5)
					}
				})
			}
			team.Wait()
		})
		kittest.Barrier(t, ctx, c)
		if n, f := sum(); n != -4*499500*int64(passes*c.Size()) || f != 2000*float64(passes*c.Size()) {
			t.Errorf("the sums are %d and %g", n, f)
		}
		kittest.Barrier(t, ctx, c)
		if _, err := collections.NewAccumulator[float64](ctx, c, "whole"); !errors.Is(err, dsm.ErrMismatch) {
			t.Errorf("a sum of integers taken for one of floating point: %v", err)
		}
		if err := errors.Join(whole.Free(ctx), halves.Free(ctx)); err != nil {
			t.Error(err)
		}
	})
}

// TestLoss: what was lost with a node is an error, and what others have seen or keep is not lost.
func TestLoss(t *testing.T) {
	dsmtest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const added = 5
		sums := map[string]*collections.Accumulator[int64]{}
		for _, name := range []string{"unseen", "seen"} {
			sums[name] = kittest.Must[*collections.Accumulator[int64]](t)(collections.NewAccumulator[int64](ctx, c, name))
			sums[name].Add(added)
		}
		unseen := kittest.Must[*collections.Counter](t)(collections.NewCounter(ctx, c, "unseen counter"))
		kept := kittest.Must[*collections.Counter](t)(collections.NewCounter(ctx, c, "kept counter", dsm.Replicated(1)))
		unseen.Add(added)
		kittest.Barrier(t, ctx, c)
		if c.Rank() == 2 {
			unseen.Add(added)
			kept.Add(added)
		}
		kittest.Barrier(t, ctx, c)
		if c.Rank() != 2 {
			kittest.Must[int64](t)(sums["seen"].Sum(ctx))
		}
		kittest.Barrier(t, ctx, c)
		if c.Rank() == 2 {
			dsmtest.LoseNode(t, c)
		}
		if err := c.Barrier(ctx); !errors.Is(err, dsm.ErrNodeLost) {
			t.Fatal(err)
		}
		if n, err := sums["unseen"].Sum(ctx); !errors.Is(err, dsm.ErrPageLost) && !errors.Is(err, dsm.ErrNodeLost) {
			t.Errorf("a sum with a part that was lost is %d, %v", n, err)
		}
		if n, err := sums["seen"].Sum(ctx); n != 3*added || err != nil {
			t.Errorf("a sum that was seen before is %d, %v", n, err)
		}
		if err := dsm.Guard(func() { fmt.Println(unseen.Load()) }); !errors.Is(err, dsm.ErrPageLost) {
			t.Errorf("a counter that was lost: %v", err)
		}
		if err := dsm.Guard(func() { kept.Load() }); err != nil || kept.Load() != added {
			t.Errorf("a counter in replicated memory: %v", err)
		}
	}, "--survive")
}
