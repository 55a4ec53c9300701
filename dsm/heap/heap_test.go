package heap_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/heap"
	"dsmd/internal/kittest"
	"dsmd/internal/patience"
)

// small is a heap that is soon full: 8 MiB, of which 4 have values.
const small = 8 << 20

func open(t *testing.T, ctx context.Context, c *dsm.Cluster, name string, bytes int, options ...dsm.AllocOption) *heap.Heap {
	t.Helper()
	h := kittest.Must[*heap.Heap](t)(heap.Open(ctx, c, name, bytes, options...))
	h.Track()
	return h
}

// end checks that all has been freed, and closes the heap.
func end(t *testing.T, ctx context.Context, c *dsm.Cluster, h *heap.Heap) {
	t.Helper()
	for _, leak := range kittest.Must[[]heap.Leak](t)(h.Leaks(ctx, c)) {
		t.Errorf("leaked: %v", leak)
	}
	if err := h.Close(ctx); err != nil {
		t.Error(err)
	}
}

// TestOwnArena: New and Free of a program's own values make nothing travel, by several goroutines.
func TestOwnArena(t *testing.T) {
	kittest.RunEach(t, []int{1, 3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		h := open(t, ctx, c, "own", 64<<20)
		kittest.Quiet(t, ctx, c, "allocating", func() {
			together(4, func(int) {
				var lines [500]heap.Ref[[9]int]
				for i := range 3000 {
					at := &lines[i*7%len(lines)]
					if !at.IsNil() && at.Get()[8] != i-len(lines) {
						t.Errorf("a value is %d, want %d", at.Get()[8], i-len(lines))
					}
					if err := heap.Free(h, *at); err != nil {
						t.Error(err)
						return
					}
					*at = kittest.Must[heap.Ref[[9]int]](t)(heap.New[[9]int](h))
					at.Get()[8] = i
				}
				for i := range lines {
					if err := heap.Free(h, lines[i]); err != nil {
						t.Error(err)
					}
				}
			})
		})
		end(t, ctx, c, h)
	})
}

// TestNeighbours: what a goroutine allocates lies on as few pages as can be, which have nothing of
// other ranks.
func TestNeighbours(t *testing.T) {
	type value [4]int64
	const n = 1024
	kittest.RunEach(t, []int{1, 3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		h := open(t, ctx, c, "neighbours", small)
		pages := kittest.Must[[]uintptr](t)(dsm.Alloc[uintptr](ctx, c, "pages", n*c.Size()))
		for i := range n {
			v := kittest.Must[heap.Ref[value]](t)(heap.New[value](h))
			pages[c.Rank()*n+i] = reflect.ValueOf(v.Get()).Pointer() / uintptr(c.PageBytes())
		}
		kittest.Barrier(t, ctx, c)
		of := map[uintptr]int{}
		for i, page := range pages {
			if rank, ok := of[page]; ok && rank != i/n {
				t.Fatalf("a page has values of ranks %d and %d", rank, i/n)
			}
			of[page] = i / n
		}
		if most := (n*32/c.PageBytes() + 2) * c.Size(); len(of) > most {
			t.Errorf("the values lie on %d pages, more than %d", len(of), most)
		}
		if err := h.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// node is a type with all that a heap has to refer to values.
type node struct {
	Next heap.Ref[node]
	Name heap.String
	Data heap.Slice[float64]
}

// TestList: what each rank has built all ranks read, and others free.
func TestList(t *testing.T) {
	kittest.RunEach(t, []int{1, 3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		h := open(t, ctx, c, "lists", 0)
		lists := kittest.Must[[]heap.Ref[node]](t)(dsm.Alloc[heap.Ref[node]](ctx, c, "lists' heads", c.Size()))
		const length, step = 100, 7 // node by node more numbers, in the end more than a page has
		for i := range length {
			n := kittest.Must[heap.Ref[node]](t)(heap.New[node](h))
			*n.Get() = node{
				lists[c.Rank()],
				kittest.Must[heap.String](t)(heap.NewString(h, strings.Repeat(fmt.Sprint(i%10), i*step%300))),
				kittest.Must[heap.Slice[float64]](t)(heap.NewSlice[float64](h, i*step)),
			}
			for j := range n.Get().Data.Get() {
				n.Get().Data.Get()[j] = float64(i*c.Rank() + j)
			}
			lists[c.Rank()] = n
		}
		kittest.Barrier(t, ctx, c)
		for rank, n := range lists {
			for i := length - 1; i >= 0; i-- {
				want := make([]float64, i*step)
				for j := range want {
					want[j] = float64(i*rank + j)
				}
				v := n.Get()
				if v.Name.Get() != strings.Repeat(fmt.Sprint(i%10), i*step%300) || !slices.Equal(v.Data.Get(), want) || cap(v.Data.Get()) != len(want) {
					t.Fatalf("node %d of rank %d is %q, with %d numbers", i, rank, v.Name.Get(), v.Data.Len())
				}
				n = v.Next
			}
			if n.Get() != nil || !n.IsNil() {
				t.Errorf("rank %d's list goes on", rank)
			}
		}
		kittest.Barrier(t, ctx, c)
		for n := lists[(c.Rank()+1)%c.Size()]; !n.IsNil(); {
			v := *n.Get()
			if err := errors.Join(heap.Free(h, v.Name), heap.Free(h, v.Data), heap.Free(h, n)); err != nil {
				t.Fatal(err)
			}
			n = v.Next
		}
		end(t, ctx, c, h)
	})
}

// TestFreesComeHome: a rank that allocates what others free finds room for much more than the heap
// has addresses for.
func TestFreesComeHome(t *testing.T) {
	type value [40]int
	const n, rounds = 6000, 4 // a round is half of the heap
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		h := open(t, ctx, c, "home", small)
		values := kittest.Must[[]heap.Ref[value]](t)(dsm.Alloc[heap.Ref[value]](ctx, c, "values", n))
		for round := range rounds {
			for i := range values {
				if c.Rank() == 0 {
					values[i] = kittest.Must[heap.Ref[value]](t)(heap.New[value](h))
					if *values[i].Get() != (value{}) {
						t.Fatal("a new value is not zero")
					}
					values[i].Get()[39] = i + round
				}
			}
			kittest.Barrier(t, ctx, c)
			for i := c.Rank() - 1; c.Rank() > 0 && i < n; i += c.Size() - 1 {
				if values[i].Get()[39] != i+round {
					t.Fatalf("value %d is %d", i, values[i].Get()[39])
				}
				if err := heap.Free(h, values[i]); err != nil {
					t.Fatal(err)
				}
			}
			kittest.Barrier(t, ctx, c)
		}
		end(t, ctx, c, h)
	})
}

// fill allocates values of some sizes until the heap is full, in a list, and returns how many bytes
// they have.
func fill(t *testing.T, h *heap.Heap, list *heap.Ref[node]) (bytes int) {
	for i := 0; ; i++ {
		size := []int{7, 100, 700, 3000}[i%4]
		n, err := heap.New[node](h)
		if err == nil {
			n.Get().Next = *list
			*list = n
			n.Get().Data, err = heap.NewSlice[float64](h, size)
		}
		if errors.Is(err, dsm.ErrNoSpace) {
			return bytes
		}
		if err != nil {
			t.Fatal(err)
		}
		for j := range n.Get().Data.Get() {
			n.Get().Data.Get()[j] = float64(size + j)
		}
		bytes += 8 * size
	}
}

// drop frees such a list, whose values must be as they were.
func drop(t *testing.T, h *heap.Heap, list heap.Ref[node]) {
	for n := list; !n.IsNil(); {
		v := *n.Get()
		for i, x := range v.Data.Get() {
			if x != float64(v.Data.Len()+i) {
				t.Fatalf("number %d of %d is %g", i, v.Data.Len(), x)
			}
		}
		if err := errors.Join(heap.Free(h, v.Data), heap.Free(h, n)); err != nil {
			t.Fatal(err)
		}
		n = v.Next
	}
}

// TestFull: ranks grow together until the heap is full; what another frees then is room again, for
// any of them.
func TestFull(t *testing.T) {
	const values = 19 << 20 // of 24 MiB
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		h := open(t, ctx, c, "full", 24<<20)
		lists := kittest.Must[[]heap.Ref[node]](t)(dsm.Alloc[heap.Ref[node]](ctx, c, "lists", c.Size()))
		for round := range 2 {
			got := kittest.Must[int](t)(dsm.Reduce(ctx, c, "bytes", fill(t, h, &lists[c.Rank()]), dsm.Sum))
			if got < values*2/3 {
				t.Errorf("round %d: the heap is full with %d bytes, of %d", round, got, values)
			}
			if _, err := heap.NewSlice[byte](h, values/2); !errors.Is(err, dsm.ErrNoSpace) {
				t.Errorf("in a full heap: %v", err)
			}
			kittest.Barrier(t, ctx, c)
			other := (c.Rank() + round) % c.Size()
			drop(t, h, lists[other])
			lists[other] = heap.Ref[node]{}
			for range 2 { // what was freed goes home, and then what it went in
				if leaks := kittest.Must[[]heap.Leak](t)(h.Leaks(ctx, c)); len(leaks) > 0 {
					t.Errorf("round %d: %v", round, leaks)
				}
			}
			if c.Rank() == round%c.Size() {
				var list heap.Ref[node]
				if got := fill(t, h, &list); got < values*2/3 {
					t.Errorf("round %d: one rank gets %d bytes, of %d", round, got, values)
				}
				drop(t, h, list)
				if err := h.Flush(); err != nil {
					t.Error(err)
				}
			}
			kittest.Barrier(t, ctx, c)
		}
		end(t, ctx, c, h)
	})
}

// TestLeaks: the report says what was not freed, and where it was allocated.
func TestLeaks(t *testing.T) {
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		h := open(t, ctx, c, "leaks", 0)
		var all []heap.Ref[node]
		for range 10 {
			all = append(all, kittest.Must[heap.Ref[node]](t)(heap.New[node](h)))
		}
		text := kittest.Must[heap.String](t)(heap.NewString(h, "not freed"))
		long := kittest.Must[heap.Slice[[3]int32]](t)(heap.NewSlice[[3]int32](h, 1<<20))
		for _, n := range all[3:] {
			if err := heap.Free(h, n); err != nil {
				t.Error(err)
			}
		}
		leaks := kittest.Must[[]heap.Leak](t)(h.Leaks(ctx, c))
		for i, want := range []string{"1 values of type [3]int32 from ", "3 values of type heap_test.node from ", "1 values of type uint8 from "} {
			if len(leaks) != 3 || !strings.HasPrefix(leaks[i].String(), want) || !strings.Contains(leaks[i].Line, "heap_test.go:") {
				t.Fatalf("leaked: %v", leaks)
			}
		}
		for _, n := range all[:3] {
			if err := heap.Free(h, n); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(heap.Free(h, text), heap.Free(h, long)); err != nil {
			t.Error(err)
		}
		end(t, ctx, c, h)
	})
}

// TestTypes: what can't be shared is refused, and values without a size are values.
func TestTypes(t *testing.T) {
	kittest.RunEach(t, []int{1}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		h := open(t, ctx, c, "types", 0)
		type bad struct{ P heap.Ref[*int] } // a Ref is an address, whatever it refers to
		if p, err := heap.New[bad](h); err != nil || heap.Free(h, p) != nil {
			t.Error(err)
		}
		_, pointer := heap.New[struct{ Next *node }](h)
		_, text := heap.New[struct{ Name string }](h)
		_, slice := heap.NewSlice[[]int](h, 3)
		_, none := heap.NewSlice[any](h, 0)
		for _, err := range []error{pointer, text, slice, none} {
			if !errors.Is(err, dsm.ErrType) {
				t.Errorf("a type with Go pointers: %v", err)
			}
		}
		if pointer == nil || !strings.Contains(pointer.Error(), "Next is a pointer") {
			t.Errorf("the error does not name the field: %v", pointer)
		}
		for _, n := range []int{-1, 1 << 50, 1<<61 + 1} {
			if _, err := heap.NewSlice[int](h, n); !errors.Is(err, dsm.ErrNoSpace) {
				t.Errorf("%d values: %v", n, err)
			}
		}
		a, b := kittest.Must[heap.Ref[struct{}]](t)(heap.New[struct{}](h)), kittest.Must[heap.Ref[struct{}]](t)(heap.New[struct{}](h))
		if a == b || a.IsNil() {
			t.Error("two values without a size are one")
		}
		empty := kittest.Must[heap.Slice[int]](t)(heap.NewSlice[int](h, 0))
		nothing := kittest.Must[heap.String](t)(heap.NewString(h, ""))
		if len(empty.Get()) > 0 || nothing.Get() != "" || empty != (heap.Slice[int]{}) {
			t.Error("what is empty is not")
		}
		if err := errors.Join(heap.Free(h, a), heap.Free(h, b), heap.Free(h, empty), heap.Free(h, nothing), heap.Free(h, heap.Ref[node]{})); err != nil {
			t.Error(err)
		}
		end(t, ctx, c, h)
	})
}

// breakFirst has rank 1 free a value of rank 0 twice, by which the heap of rank 0 breaks.
func breakFirst(t *testing.T, ctx context.Context, c *dsm.Cluster, h *heap.Heap) {
	t.Helper()
	twice := kittest.Must[*heap.Ref[int]](t)(dsm.Isolate[heap.Ref[int]](ctx, c, "twice"))
	if c.Rank() == 0 {
		*twice = kittest.Must[heap.Ref[int]](t)(heap.New[int](h))
	}
	kittest.Barrier(t, ctx, c)
	if c.Rank() == 1 {
		if err := errors.Join(heap.Free(h, *twice), heap.Free(h, *twice), h.Flush()); err != nil {
			t.Error(err)
		}
	}
	kittest.Barrier(t, ctx, c)
}

// TestLeaksOfBroken: Leaks tells a rank that its heap is broken, and the others do not wait for it.
func TestLeaksOfBroken(t *testing.T) {
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		h := open(t, ctx, c, "broken", small)
		breakFirst(t, ctx, c, h)
		soon, cancel := context.WithTimeout(ctx, patience.Or(10*time.Second))
		defer cancel()
		_, err := h.Leaks(soon, c)
		if errors.Is(err, dsm.ErrNotShared) != (c.Rank() == 0) || c.Rank() != 0 && err != nil {
			t.Errorf("on rank %d: %v", c.Rank(), err)
		}
		if err := c.Barrier(soon); err != nil {
			t.Errorf("the barrier after it, on rank %d: %v", c.Rank(), err)
		}
	})
}

// TestMisuse: who frees what he must not is told.
func TestMisuse(t *testing.T) {
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		h, other := open(t, ctx, c, "misuse", small), open(t, ctx, c, "another", small)
		own := kittest.Must[heap.Ref[int]](t)(heap.New[int](h))
		large := kittest.Must[heap.Slice[int]](t)(heap.NewSlice[int](h, 100000))
		if err := errors.Join(heap.Free(h, own), heap.Free(h, large)); err != nil {
			t.Error(err)
		}
		for _, err := range []error{heap.Free(h, own), heap.Free(h, large), heap.Free(h, kittest.Must[heap.Ref[int]](t)(heap.New[int](other)))} {
			if !errors.Is(err, dsm.ErrNotShared) {
				t.Errorf("what is not allocated was freed: %v", err)
			}
		}
		breakFirst(t, ctx, c, h)
		if err := h.Flush(); errors.Is(err, dsm.ErrNotShared) != (c.Rank() == 0) {
			t.Errorf("on rank %d: %v", c.Rank(), err)
		}
		if _, err := heap.New[int](h); errors.Is(err, dsm.ErrNotShared) != (c.Rank() == 0) {
			t.Errorf("on rank %d: %v", c.Rank(), err)
		}
		kittest.Barrier(t, ctx, c)
		if err := h.Close(ctx); errors.Is(err, dsm.ErrNotShared) != (c.Rank() == 0) {
			t.Errorf("on rank %d: %v", c.Rank(), err)
		}
		_, err := heap.New[int](h)
		if err == nil || !strings.HasSuffix(err.Error(), ": the heap was closed") {
			t.Errorf("New of a heap that is closed: %v", err)
		}
		if !errors.Is(err, dsm.ErrClosed) || !errors.Is(heap.Free(h, own), dsm.ErrClosed) || !errors.Is(h.Close(ctx), dsm.ErrClosed) {
			t.Errorf("in a closed heap: %v", err)
		}
		for _, bytes := range []int{small / 2, 100, 1, -1} {
			if _, err := heap.Open(ctx, c, "little", bytes); !errors.Is(err, dsm.ErrNoSpace) {
				t.Errorf("a heap of %d bytes: %v", bytes, err)
			}
		}
		if _, err := heap.Open(ctx, c, "replicated", small, dsm.Replicated(1)); err == nil || !strings.Contains(err.Error(), "cannot be Replicated") {
			t.Errorf("a heap of replicated memory: %v", err)
		}
		if _, err := heap.Open(ctx, c, "another", 2*small); !errors.Is(err, dsm.ErrMismatch) || !strings.Contains(err.Error(), fmt.Sprintf("wants a heap of %d bytes", 2*small)) {
			t.Errorf("a heap of another size: %v", err)
		}
	})
}
