package collections_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/collections"
	"dsmd/internal/kittest"
)

// odd is a key with padding and a part that does not count.
type odd struct {
	A int8
	B int32
	_ int16
	C bool
}

// wide is a value of several words, all of which say the same.
type wide [5]int64

func wideOf(v int64) wide { return wide{v, v, v, v, v} }

func (w wide) whole() bool { return w == wideOf(w[0]) }

// testMap has goroutines of all ranks change keys of their own in a map, which grows meanwhile, and
// compares it with maps of Go's.
func testMap[K, V comparable](t *testing.T, ctx context.Context, c *dsm.Cluster, name string, keyOf func(i int) K, valueOf func(i int) V) {
	const threads, keys, steps = 3, 300, 1500
	m := kittest.Must[*collections.Map[K, V]](t)(collections.NewMap[K, V](ctx, c, name, threads*keys*c.Size()/2))
	want := make([]map[K]V, threads)
	var team sync.WaitGroup
	for thread := range threads {
		own := map[K]V{}
		want[thread] = own
		r := rand.New(rand.NewPCG(uint64(c.Rank()), uint64(thread)))
		team.Go(func() {
			for range steps {
				k, v := keyOf((r.IntN(keys)*threads+thread)*c.Size()+c.Rank()), valueOf(r.Int())
				old, there := own[k]
				var got V
				var is bool
				var err error
				switch r.IntN(6) {
				case 0:
					got, is, err = m.Load(ctx, k)
				case 1:
					is, err = m.Delete(ctx, k)
					got = old
					delete(own, k)
				case 2:
					got, is, err = m.LoadOrStore(ctx, k, v)
					if !there {
						old, own[k] = v, v
					}
				case 3:
					is, err = m.CompareAndSwap(ctx, k, old, v)
					if got = old; there {
						own[k] = v
					}
				default:
					_, err = m.Update(ctx, k, func(o V, t bool) V {
						got, is = o, t
						return v
					})
					own[k] = v
				}
				if err != nil || got != old || is != there {
					t.Errorf("%s: %v is %v, %t, %v, want %v, %t", name, k, got, is, err, old, there)
					return
				}
			}
		})
	}
	team.Wait()
	for thread := range want {
		for k, v := range want[thread] {
			if got, there, err := m.Load(ctx, k); err != nil || !there || got != v {
				t.Fatalf("%s: in the end %v is %v, %t, %v, want %v", name, k, got, there, err, v)
			}
		}
	}
	kittest.Barrier(t, ctx, c)
	n := len(maps.Collect(entries(t, m.All(ctx))))
	sum := 0
	for i := range want {
		sum += len(want[i])
	}
	if all := kittest.Must[int](t)(dsm.Reduce(ctx, c, name, sum, dsm.Sum)); n != all {
		t.Errorf("%s: there are %d entries, want %d", name, n, all)
	}
	part := 0
	for range entries(t, m.Part(ctx, c.Rank(), c.Size())) {
		part++
	}
	if all := kittest.Must[int](t)(dsm.Reduce(ctx, c, name, part, dsm.Sum)); n != all {
		t.Errorf("%s: in parts there are %d entries, want %d", name, all, n)
	}
	if err := m.Free(ctx); err != nil {
		t.Error(err)
	}
}

// entries are those of a map, each once.
func entries[K, V comparable](t *testing.T, all func(func(collections.Entry[K, V], error) bool)) func(func(K, V) bool) {
	return func(yield func(K, V) bool) {
		seen := map[K]bool{}
		for e, err := range all {
			if err != nil || seen[e.Key] {
				t.Errorf("%v, seen before: %t, error %v", e, seen[e.Key], err)
				return
			}
			seen[e.Key] = true
			if !yield(e.Key, e.Value) {
				return
			}
		}
	}
}

// TestMap: keys and values of all kinds, in a map that grows.
func TestMap(t *testing.T) {
	kittest.RunEach(t, []int{1, 3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		number := func(i int) int { return i }
		testMap(t, ctx, c, "numbers", number, number)
		testMap(t, ctx, c, "texts", func(i int) string { return fmt.Sprintf("%*d", i%40, i) }, func(i int) wide { return wideOf(int64(i)) })
		testMap(t, ctx, c, "odd", func(i int) odd { return odd{A: int8(i), B: int32(i >> 8), C: i%2 == 1} }, func(i int) [3]byte { return [3]byte{byte(i), byte(i >> 8)} })
		testMap(t, ctx, c, "set", func(i int) uint16 { return uint16(i) }, func(int) struct{} { return struct{}{} })
	})
}

// TestMapLimits: what does not fit or cannot be a key is an error, and a full map says so and
// keeps what it has.
func TestMapLimits(t *testing.T) {
	kittest.RunEach(t, []int{1}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		for what, err := range map[string]error{
			"a key with floating point": newError[struct{ X float64 }, int](ctx, c, 1),
			"a key with a pointer":      newError[*int, int](ctx, c, 1),
			"a value with a string":     newError[string, string](ctx, c, 1),
		} {
			if !errors.Is(err, dsm.ErrType) {
				t.Errorf("%s: %v", what, err)
			}
		}
		for what, err := range map[string]error{
			"a map for nothing":         newError[int, int](ctx, c, 0),
			"a value that is too large": newError[int, [5000]byte](ctx, c, 1),
		} {
			if !errors.Is(err, dsm.ErrNoSpace) {
				t.Errorf("%s: %v", what, err)
			}
		}
		const planned = 1000
		m := kittest.Must[*collections.Map[string, int]](t)(collections.NewMap[string, int](ctx, c, "full", planned))
		if err := newNamed[string, int](ctx, c, "full", planned+1); !errors.Is(err, dsm.ErrMismatch) {
			t.Errorf("a map of another size: %v", err)
		}
		if err := newNamed[string, uint](ctx, c, "full", planned); !errors.Is(err, dsm.ErrMismatch) {
			t.Errorf("a map of another type: %v", err)
		}
		if err := m.Store(ctx, string(make([]byte, c.PageBytes())), 1); !errors.Is(err, dsm.ErrNoSpace) {
			t.Errorf("a key that is too long: %v", err)
		}
		stored := 0
		for ; ; stored++ {
			if err := m.Store(ctx, fmt.Sprintf("%016d", stored), stored); err != nil {
				if !errors.Is(err, dsm.ErrNoSpace) {
					t.Error(err)
				}
				break
			}
		}
		if stored < 2*planned {
			t.Errorf("the map was full with %d entries", stored)
		}
		n := 0
		for k, v := range entries(t, m.All(ctx)) {
			if n++; k != fmt.Sprintf("%016d", v) {
				t.Errorf("%q is %d", k, v)
			}
		}
		if n != stored {
			t.Errorf("a full map has %d entries, want %d", n, stored)
		}
		// What panics changes nothing, and nobody waits for it.
		func() {
			defer func() { _ = recover() }()
			_, _ = m.Update(ctx, "0000000000000000", func(int, bool) int { panic("no") })
		}()
		if v, there, err := m.Load(ctx, "0000000000000000"); v != 0 || !there || err != nil {
			t.Errorf("after a panic: %d, %t, %v", v, there, err)
		}
		if was, err := m.Delete(ctx, "0000000000000000"); !was || err != nil {
			t.Errorf("after a panic it is deleted: %t, %v", was, err)
		}
		ended, end := context.WithCancel(ctx)
		end()
		if err := m.Store(ended, "x", 1); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
	})
}

func newError[K, V comparable](ctx context.Context, c *dsm.Cluster, n int) error {
	return newNamed[K, V](ctx, c, "error", n)
}

func newNamed[K, V comparable](ctx context.Context, c *dsm.Cluster, name string, n int) error {
	_, err := collections.NewMap[K, V](ctx, c, name, n)
	return err
}

// TestCombiner: what ranks add is in the map after Flush, each once, also what did not fit at
// once; and StoreAll stores the last of each key.
func TestCombiner(t *testing.T) {
	kittest.RunEach(t, []int{1, 3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const keys, each, threads = 4000, 6000, 3
		m := kittest.Must[*collections.Map[int, int]](t)(collections.NewMap[int, int](ctx, c, "sums", keys))
		x := m.Combine(dsm.Sum[int])
		var team sync.WaitGroup
		for thread := range threads {
			team.Go(func() {
				for i := range each {
					if err := x.Add(ctx, (i+thread*7)%keys, 1); err != nil {
						t.Error(err)
					}
				}
				if err := x.Flush(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		team.Wait()
		kittest.Barrier(t, ctx, c)
		sum, n := 0, 0
		for _, v := range entries(t, m.All(ctx)) {
			sum, n = sum+v, n+1
		}
		if sum != threads*each*c.Size() || n != keys {
			t.Errorf("%d keys add up to %d, want %d and %d", n, sum, keys, threads*each*c.Size())
		}
		kittest.Barrier(t, ctx, c)
		if err := m.StoreAll(ctx, func(yield func(int, int) bool) {
			for i := 0; i < 3*keys && yield(i%keys+keys/2, i/keys); i++ {
			}
		}); err != nil {
			t.Error(err)
		}
		kittest.Barrier(t, ctx, c)
		for k, v := range entries(t, m.All(ctx)) {
			if k >= keys/2 && v != 2 {
				t.Fatalf("%d is %d, want 2", k, v)
			}
		}
	})
}

// TestCombinerBadKeys: keys that are too long keep no others back.
func TestCombinerBadKeys(t *testing.T) {
	kittest.RunEach(t, []int{1, 2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const keys, bad = 3000, 5
		m := kittest.Must[*collections.Map[string, int]](t)(collections.NewMap[string, int](ctx, c, "map", 2*keys))
		x := m.Combine(dsm.Sum[int])
		flush := func(what string, flush func() error, want int) {
			t.Helper()
			for i := range keys + bad {
				k := fmt.Sprint(i)
				if i >= keys {
					k = fmt.Sprintf("%*d", c.PageBytes(), i)
				}
				if err := x.Add(ctx, k, 1); err != nil {
					t.Fatal(err)
				}
			}
			if err := flush(); !errors.Is(err, dsm.ErrNoSpace) {
				t.Errorf("%s, with keys that are too long: %v", what, err)
			}
			kittest.Barrier(t, ctx, c)
			n := 0
			for k, v := range entries(t, m.All(ctx)) {
				if n++; v != want*c.Size() {
					t.Fatalf("after %s %q is %d, want %d", what, k, v, want*c.Size())
				}
			}
			if n != keys {
				t.Errorf("after %s the map has %d keys, want %d", what, n, keys)
			}
			kittest.Barrier(t, ctx, c)
		}
		flush("Flush", func() error { return x.Flush(ctx) }, 1)
		flush("a second Flush", func() error { return x.Flush(ctx) }, 2)
		flush("FlushAll", func() error { return x.FlushAll(ctx, c) }, 3)
	})
}

// TestMergePanicsAgain: merge panics in a Flush, and again when what the map has not got goes back
// to the Combiner, where the same key was added meanwhile. The other keys are kept.
func TestMergePanicsAgain(t *testing.T) {
	kittest.RunEach(t, []int{1}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const keys = 5000 // so that a stripe has some tens
		m := kittest.Must[*collections.Map[int, int]](t)(collections.NewMap[int, int](ctx, c, "m", keys))
		var x *collections.Combiner[int, int]
		const bad = 1000
		merged, panics := false, 0
		x = m.Combine(func(a, b int) int {
			if a+b < bad {
				return a + b
			}
			if !merged { // in Flush; nobody else adds the key
				merged = true
				if err := x.Add(ctx, 0, bad); err != nil {
					t.Error(err)
				}
			}
			panics++
			panic("too many")
		})
		for k := range keys {
			if err := errors.Join(m.Store(ctx, k, 1), x.Add(ctx, k, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Store(ctx, 0, bad); err != nil {
			t.Fatal(err)
		}
		func() {
			defer func() { _ = recover() }()
			t.Errorf("Flush returned %v", x.Flush(ctx))
		}()
		if panics != 2 {
			t.Errorf("merge has panicked %d times, not 2", panics)
		}
		if err := m.Store(ctx, 0, -bad); err != nil {
			t.Fatal(err)
		}
		if err := x.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		for k := 1; k < keys; k++ {
			if v, _, err := m.Load(ctx, k); v != 2 || err != nil {
				t.Fatalf("key %d has %d, %v", k, v, err)
			}
		}
	})
}

// TestFlushGoesOn: what the map has not got, as merge has panicked or the context has ended, it
// gets with the next Flush; and many keys that fail for one reason are one error.
func TestFlushGoesOn(t *testing.T) {
	kittest.RunEach(t, []int{1}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const keys, large = 1000, 1 << 20
		m := kittest.Must[*collections.Map[int, int]](t)(collections.NewMap[int, int](ctx, c, "map", keys))
		if err := m.Store(ctx, keys/2, large); err != nil {
			t.Fatal(err)
		}
		panics := true
		x := m.Combine(func(a, b int) int {
			if panics && a+b > large {
				panic("no luck")
			}
			return a + b
		})
		add := func(keys int) {
			for k := range keys {
				if err := x.Add(ctx, k, 1); err != nil {
					t.Fatal(err)
				}
			}
		}
		add(keys)
		ended, end := context.WithCancel(ctx)
		end()
		err := x.Flush(ended)
		if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "\n") {
			t.Errorf("with a context that has ended: %v", err)
		}
		func() {
			defer func() {
				if what := recover(); what != "no luck" {
					t.Errorf("Flush panics with %v", what)
				}
			}()
			t.Errorf("Flush returns %v", x.Flush(ctx))
		}()
		panics = false
		if err := x.Flush(ctx); err != nil {
			t.Error(err)
		}
		n := 0
		for k, v := range entries(t, m.All(ctx)) {
			if n++; v != 1 && (k != keys/2 || v != large+1) {
				t.Errorf("%d is %d", k, v)
			}
		}
		if n != keys {
			t.Errorf("the map has %d keys, want %d", n, keys)
		}
		add(50 * keys)
		if err := x.Flush(ctx); !errors.Is(err, dsm.ErrNoSpace) || strings.Contains(err.Error(), "\n") {
			t.Errorf("in a map that is full: %v", err)
		}
	})
}

// TestMapAllocatesNothing: to load and to change a key that is there takes no memory.
func TestMapAllocatesNothing(t *testing.T) {
	kittest.RunEach(t, []int{1}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		m := kittest.Must[*collections.Map[int, wide]](t)(collections.NewMap[int, wide](ctx, c, "quiet", 100))
		if err := m.Store(ctx, 1, wide{}); err != nil {
			t.Fatal(err)
		}
		for name, do := range map[string]func() error{
			"Load":  func() error { _, _, err := m.Load(ctx, 1); return err },
			"Store": func() error { return m.Store(ctx, 1, wideOf(2)) },
			"Update": func() error {
				_, err := m.Update(ctx, 1, func(old wide, _ bool) wide { return wideOf(old[0] + 1) })
				return err
			},
		} {
			if n := testing.AllocsPerRun(1000, func() {
				if err := do(); err != nil {
					t.Error(err)
				}
			}); n != 0 {
				t.Errorf("%s allocates %v times", name, n)
			}
		}
	})
}

// TestFlushAllPanics: a panic of merge on one rank is its caller's, and keeps no other waiting.
func TestFlushAllPanics(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		m := kittest.Must[*collections.Map[int, int]](t)(collections.NewMap[int, int](ctx, c, "map", 100))
		x := m.Combine(func(a, b int) int {
			if c.Rank() == 1 {
				panic("no luck")
			}
			return a + b
		})
		for k := range 100 {
			if err := x.Add(ctx, k, 1); err != nil {
				t.Fatal(err)
			}
		}
		var what any
		err := func() error {
			defer func() { what = recover() }()
			return x.FlushAll(ctx, c)
		}()
		if panics := c.Rank() == 1; panics && what != "no luck" || !panics && err == nil {
			t.Errorf("rank %d: %v, and the panic %v", c.Rank(), err, what)
		}
	})
}
