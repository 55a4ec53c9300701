package heap_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
	"dsmd/dsm/heap"
	"dsmd/internal/kittest"
)

// halve moves half of the values of each size to another list.
func halve(list heap.Ref[node], other *heap.Ref[node]) (rest heap.Ref[node]) {
	for i := 0; !list.IsNil(); i++ {
		to := &rest
		if i/4%2 == 1 {
			to = other
		}
		n := list.Get().Next
		list.Get().Next, *to = *to, list
		list = n
	}
	return rest
}

// TestProgramDies: what a program has allocated that dies stays, others free it, and when the heap
// is full one of them has all that was free in the dead program's arena.
func TestProgramDies(t *testing.T) {
	const bytes, values = 24 << 20, 19 << 20
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		h := open(t, ctx, c, "dies", bytes)
		lists := kittest.Must[[]heap.Ref[node]](t)(dsm.Alloc[heap.Ref[node]](ctx, c, "lists", 2*c.Size()))
		kittest.Barrier(t, ctx, c)
		if c.Rank() == 2 {
			var gone heap.Ref[node]
			fill(t, h, &gone)
			drop(t, h, halve(gone, &lists[5])) // and the other half of it lies in between
		}
		kittest.Barrier(t, ctx, c)
		if c.Rank() == 2 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		left := heap.Left(t, ctx, c)
		got := kittest.Must[int](t)(dsm.Reduce(ctx, left, "bytes", fill(t, h, &lists[c.Rank()]), dsm.Sum))
		if got < values/3 {
			t.Errorf("the others get %d bytes, of %d", got, values)
		}
		if c.Rank() == 0 {
			drop(t, h, lists[5]) // they are as they were
		}
		if err := left.Barrier(ctx); err != nil {
			t.Fatal(err)
		}
		drop(t, h, lists[c.Rank()])
		for range 2 {
			if leaks := kittest.Must[[]heap.Leak](t)(h.Leaks(ctx, left)); len(leaks) > 0 {
				t.Errorf("leaked: %v", leaks)
			}
		}
		if c.Rank() == 1 {
			var list heap.Ref[node]
			if got := fill(t, h, &list); got < values/2 {
				t.Errorf("one rank gets %d bytes, of %d", got, values)
			}
			drop(t, h, list)
		}
		if err := errors.Join(h.Close(ctx), left.Barrier(ctx)); err != nil {
			t.Error(err)
		}
	}, "--survive")
}

// parcels has ranks 0 and 1 send home what rank 2 has allocated, so that some of what they have for
// further parcels is there, too.
func parcels[V any](t *testing.T, ctx context.Context, c *dsm.Cluster, h *heap.Heap, all []heap.Ref[V]) {
	t.Helper()
	for i := range all {
		if c.Rank() == 2 {
			all[i] = kittest.Must[heap.Ref[V]](t)(heap.New[V](h))
		}
	}
	kittest.Barrier(t, ctx, c)
	for i := c.Rank(); c.Rank() < 2 && i < len(all); i += 2 {
		if err := heap.Free(h, all[i]); err != nil {
			t.Fatal(err)
		}
	}
	kittest.Barrier(t, ctx, c)
	for i := range all {
		if c.Rank() == 2 {
			all[i] = kittest.Must[heap.Ref[V]](t)(heap.New[V](h))
		}
	}
	kittest.Barrier(t, ctx, c)
}

// TestLoss: values that are lost with a node are lost, and no others; and the heap goes on. Without
// prediction: a node that expects to store to a page takes it from those that read it, and it is
// lost with that node.
func TestLoss(t *testing.T) {
	const n = 1000
	type value [30]int
	dsmtest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		h := open(t, ctx, c, "lost", 64<<20)
		values := kittest.Must[[]heap.Ref[value]](t)(dsm.Alloc[heap.Ref[value]](ctx, c, "values", 3*n))
		for i := c.Rank() * n; i < (c.Rank()+1)*n; i++ {
			values[i] = kittest.Must[heap.Ref[value]](t)(heap.New[value](h))
			for j := range values[i].Get() {
				values[i].Get()[j] = i
			}
		}
		kittest.Barrier(t, ctx, c)
		parcels(t, ctx, c, h, kittest.Must[[]heap.Ref[value]](t)(dsm.Alloc[heap.Ref[value]](ctx, c, "more", 3*n)))
		refs := slices.Clone(values)
		// By a rank that is left, or allocated by one.
		seen := func(i int) bool { return i < 2*n+n/2 }
		for i := range refs {
			if c.Rank() != 2 && seen(i) && refs[i].Get()[0] != i {
				t.Fatalf("value %d is %d", i, refs[i].Get()[0])
			}
		}
		kittest.Barrier(t, ctx, c)
		if c.Rank() == 2 {
			for i := range n / 10 { // some go to the lost node for the last time
				refs[i*7].Get()[29]++
				refs[i*7].Get()[29]--
			}
		}
		kittest.Barrier(t, ctx, c)
		if c.Rank() == 2 {
			dsmtest.LoseNode(t, c)
		}
		left := heap.Left(t, ctx, c)
		lost := 0
		for i := range refs {
			err := dsm.Guard(func() {
				for j, got := range refs[i].Get() {
					if got != i {
						t.Fatalf("word %d of value %d is %d", j, i, got)
					}
				}
			})
			switch {
			case errors.Is(err, dsm.ErrPageLost):
				lost++
			case err != nil:
				t.Fatal(err)
			}
			if err != nil && i >= n && seen(i) {
				t.Fatalf("value %d is lost: %v", i, err)
			}
		}
		if lost < n/4 {
			t.Errorf("%d values are lost", lost)
		}
		if err := left.Barrier(ctx); err != nil {
			t.Fatal(err)
		}
		// New values overlap none that is left, and wherever they are is memory.
		for range 3 * n {
			p, err := heap.New[value](h)
			if err != nil {
				t.Fatal(err)
			}
			if *p.Get() != (value{}) {
				t.Fatal("a new value is not zero")
			}
			p.Get()[c.Rank()] = -1
		}
		for i := range refs {
			_ = dsm.Guard(func() {
				if refs[i].Get()[0] != i {
					t.Fatalf("value %d is %d now", i, refs[i].Get()[0])
				}
			})
		}
		if err := left.Barrier(ctx); err != nil {
			t.Fatal(err)
		}
		for i := c.Rank(); i < len(refs); i += 2 {
			// Rank 2's entries and mailbox are lost, and perhaps marks of a rank's own, near to
			// what rank 2 has stored to. But what is the other's that is left goes home.
			if err := heap.Free(h, refs[i]); err != nil && (i/n == 1-c.Rank() || !errors.Is(err, dsm.ErrPageLost)) {
				t.Fatal(err)
			}
		}
		if err := h.Flush(); err != nil && !errors.Is(err, dsm.ErrPageLost) {
			t.Error(err)
		}
	}, "--survive", "--predict", "off")
}

// TestLossWithCheckpoint: where lost pages go back to a checkpoint, those of a heap stay lost.
func TestLossWithCheckpoint(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		h := open(t, ctx, c, "stays", small)
		plain := kittest.Must[*int](t)(dsm.Isolate[int](ctx, c, "plain"))
		shared := kittest.Must[*heap.Ref[int]](t)(dsm.Isolate[heap.Ref[int]](ctx, c, "shared"))
		if c.Rank() == 2 {
			*shared = kittest.Must[heap.Ref[int]](t)(heap.New[int](h))
			*plain, *shared.Get() = 1, 1
		}
		kittest.Barrier(t, ctx, c)
		ref := *shared
		if err := c.Checkpoint(ctx, os.Getenv("DSM_CHECKPOINT")); err != nil {
			t.Fatal(err)
		}
		if c.Rank() == 2 {
			*plain, *ref.Get() = 2, 2
		}
		kittest.Barrier(t, ctx, c)
		if c.Rank() == 2 {
			dsmtest.LoseNode(t, c)
		}
		heap.Left(t, ctx, c)
		if *plain != 1 {
			t.Errorf("memory beside the heap is %d", *plain)
		}
		got := 0
		if err := dsm.Guard(func() { got = *ref.Get() }); !errors.Is(err, dsm.ErrPageLost) {
			t.Errorf("a value on a lost page is %d, and the error %v", got, err)
		}
	}, "--survive", "--lost", "checkpoint", "--checkpoint", t.TempDir())
}

// TestClusterIsClosedMeanwhile: who allocates or frees when the cluster is closed is told so.
func TestClusterIsClosedMeanwhile(t *testing.T) {
	const each = 4
	ended := make(chan error)
	t.Cleanup(func() { // after the cluster is closed, which is at the end of the subtest
		for range each {
			if !dsmtest.IsRank() {
				break
			}
			if err := <-ended; !errors.Is(err, dsm.ErrClosed) {
				t.Errorf("the error is %v", err)
			}
		}
	})
	kittest.RunEach(t, []int{1}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		h := open(t, ctx, c, "closed", small)
		for range each {
			begun := make(chan struct{})
			go func() {
				var err error
				for n := 0; err == nil; n++ {
					var list [100]heap.Ref[node]
					for i := range list {
						if err == nil {
							list[i], err = heap.New[node](h)
						}
					}
					for i := range list {
						if err == nil {
							err = heap.Free(h, list[i])
						}
					}
					if n == 0 {
						close(begun)
					}
				}
				ended <- err
			}()
			<-begun
		}
	})
}

// TestArenaIsTakenOver: a program that closes a heap leaves its values, and another that opens the
// heap has the arena, with all that is free.
func TestArenaIsTakenOver(t *testing.T) {
	const bytes, values = 24 << 20, 19 << 20
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		var h *heap.Heap
		lists := kittest.Must[[]heap.Ref[node]](t)(dsm.Alloc[heap.Ref[node]](ctx, c, "lists", 2))
		large := kittest.Must[[]heap.Slice[int]](t)(dsm.Alloc[heap.Slice[int]](ctx, c, "large", 1))
		for round := range 3 {
			h = kittest.Must[*heap.Heap](t)(heap.Open(ctx, c, "again", bytes, dsm.Keep()))
			if c.Rank() == 0 {
				if round > 0 {
					drop(t, h, lists[1])
					for i, v := range large[0].Get() {
						if v != i {
							t.Fatalf("number %d of the large one is %d", i, v)
						}
					}
					if err := heap.Free(h, large[0]); err != nil {
						t.Fatal(err)
					}
				}
				large[0] = kittest.Must[heap.Slice[int]](t)(heap.NewSlice[int](h, 300000))
				for i := range large[0].Get() {
					large[0].Get()[i] = i
				}
				var list heap.Ref[node]
				if got := fill(t, h, &list); got < values/2 {
					t.Errorf("round %d: %d bytes, of %d", round, got, values)
				}
				lists[1] = heap.Ref[node]{}
				drop(t, h, halve(list, &lists[1]))
			}
			kittest.Barrier(t, ctx, c)
			if err := h.Close(ctx); err != nil {
				t.Fatal(err)
			}
			kittest.Barrier(t, ctx, c)
		}
		if c.Rank() == 0 {
			if err := dsm.Discard(ctx, c, "again"); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestBlocksHaveManyHomes: if the first or the last of four nodes is lost, much of the room that
// nobody has used does not go with it.
func TestBlocksHaveManyHomes(t *testing.T) {
	for _, lost := range []int{0, 3} {
		kittest.RunEach(t, []int{4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
			const bytes = 64 << 20
			h := open(t, ctx, c, "homes", bytes)
			kittest.Barrier(t, ctx, c)
			if c.Rank() == lost {
				dsmtest.LoseNode(t, c)
			}
			left := heap.Left(t, ctx, c)
			used := 0
			for range bytes / 4 / (256 << 10) { // in blocks of their own
				if _, err := heap.NewSlice[byte](h, 256<<10); err == nil {
					used++
				} else if !errors.Is(err, dsm.ErrNoSpace) {
					t.Error(err)
				}
			}
			all, err := dsm.Reduce(ctx, left, "used", used, dsm.Sum[int])
			if err != nil || all < bytes/3/(256<<10) {
				t.Errorf("%d values of a block found room: %v", all, err)
			}
		}, "--survive")
	}
}
