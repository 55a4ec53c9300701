package collective_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/collective"
	"dsmd/dsm/dsmtest"
	"dsmd/internal/kittest"
	_ "dsmd/internal/patience" // ends a run in which a test waits for ever
)

// brings is what a rank brings to a call: nothing, as much as travels with one meeting, little
// more, or many pages.
func brings(rank, call int) []int {
	v := make([]int, []int{0, 1, 4, 5, 3, 127, 128, 20000}[(rank+call)%8])
	for i := range v {
		v[i] = i*1000 + rank*100 + call
	}
	return v
}

// TestSlices: everybody gets what was brought, of every length, again and again under one name.
func TestSlices(t *testing.T) {
	kittest.RunEach(t, []int{1, 2, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		for call := range 10 {
			root := call % c.Size()
			own := brings(c.Rank(), call)
			one, err := collective.Broadcast(ctx, c, "slices", root, own)
			if err != nil || !slices.Equal(one, brings(root, call)) {
				t.Fatalf("Broadcast from rank %d returned %d values, %v", root, len(one), err)
			}
			clear(one) // it is the rank's own
			some, err := collective.Gather(ctx, c, "slices", root, own)
			if err != nil || (some != nil) != (c.Rank() == root) {
				t.Fatalf("Gather to rank %d returned %d slices, %v", root, len(some), err)
			}
			all, err := collective.AllGather(ctx, c, "slices", own)
			if err != nil || len(all) != c.Size() {
				t.Fatalf("AllGather returned %d slices, %v", len(all), err)
			}
			each := make([][]int, c.Size())
			for to := range each {
				each[to] = brings(c.Rank()+to, call)
			}
			received, err := collective.Exchange(ctx, c, "slices", each)
			if err != nil || len(received) != c.Size() {
				t.Fatalf("Exchange returned %d slices, %v", len(received), err)
			}
			for from := range all {
				if want := brings(from+c.Rank(), call); !slices.Equal(received[from], want) {
					t.Fatalf("rank %d brought %d values for this one, want %d", from, len(received[from]), len(want))
				}
				want := brings(from, call)
				if !slices.Equal(all[from], want) || some != nil && !slices.Equal(some[from], want) {
					t.Fatalf("of rank %d came %d values, want %d", from, len(all[from]), len(want))
				}
			}
		}
	})
}

// TestJobs: two jobs, each of one program, exchange slices under a name that begins with
// dsm.Everywhere. Each gets its own, as it meets by itself.
func TestJobs(t *testing.T) {
	exchange := func(ctx context.Context, c *dsm.Cluster, n int) {
		all, err := collective.AllGather(ctx, c, "/slices", slices.Repeat([]int{n}, n))
		if err != nil || len(all) != 1 || len(all[0]) != n || all[0][0] != n || all[0][n-1] != n {
			t.Fatalf("AllGather of %d values returned %d slices, %v", n, len(all), err)
		}
	}
	if os.Getenv(jobEnv) != "" {
		ctx := t.Context()
		c, err := dsm.Join(ctx, dsm.WithJob("other", 1), dsm.WithRank(0))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for range 20 {
			exchange(ctx, c, 30000)
		}
		return
	}
	dsmtest.Run(t, 1, func(ctx context.Context, c *dsm.Cluster) {
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestJobs$")
		cmd.Env = append(os.Environ(), jobEnv+"=1")
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		}()
		for {
			select {
			case <-ended:
				return
			default:
				exchange(ctx, c, 20000)
			}
		}
	})
}

// jobEnv makes the test the program of another job.
const jobEnv = "COLLECTIVE_TEST_JOB"

// TestAllReduce: slices of every length are combined in the order of ranks, also by an operation
// for which that matters.
func TestAllReduce(t *testing.T) {
	dsmtest.RunEach(t, []int{1, 2, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		type fraction struct{ Of, Per float64 }
		op := func(a, b fraction) fraction { return fraction{a.Of - b.Of/3, a.Per*b.Per + a.Of} }
		value := func(rank, i int) fraction { return fraction{float64(rank*rank + i), float64(rank) + 0.1} }
		for _, n := range []int{0, 1, 2, 3, 300, 2000, 50001} {
			own, want := make([]fraction, n), make([]fraction, n)
			for i := range n {
				own[i], want[i] = value(c.Rank(), i), value(0, i)
				for rank := 1; rank < c.Size(); rank++ {
					want[i] = op(want[i], value(rank, i))
				}
			}
			got, err := collective.AllReduce(ctx, c, "fractions", own, op)
			if err != nil || !slices.Equal(got, want) {
				t.Fatalf("%d values: %d came, %v", n, len(got), err)
			}
			if n > 0 && own[n-1] != value(c.Rank(), n-1) {
				t.Errorf("%d values: it has changed what it was given", n)
			}
		}
	})
}

// TestMeetings: few bytes take one meeting, some take two, more take three.
func TestMeetings(t *testing.T) {
	dsmtest.Run(t, 2, func(ctx context.Context, c *dsm.Cluster) {
		meetings := func() uint64 {
			s, err := c.Stats(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return s.Sync.Barriers
		}
		for _, bytes := range []int{0, 1, 32, 33, dsm.MaxReduceBytes, dsm.MaxReduceBytes + 1} {
			want := uint64(1)
			switch {
			case bytes > dsm.MaxReduceBytes:
				want = 3
			case bytes > 32:
				want = 2
			}
			before := meetings()
			if all, err := collective.AllGather(ctx, c, fmt.Sprint(bytes), make([]byte, bytes*c.Rank())); err != nil || len(all[1]) != bytes {
				t.Errorf("%d bytes: %d came, %v", bytes, len(all[1]), err)
			}
			if got := meetings() - before; got != want {
				t.Errorf("%d bytes took %d meetings, want %d", bytes, got, want)
			}
		}
	})
}

// TestOnce: what one rank has done, all see.
func TestOnce(t *testing.T) {
	kittest.RunEach(t, []int{1, 2, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		done, err := dsm.Alloc[int](ctx, c, "done", 1)
		if err != nil {
			t.Fatal(err)
		}
		for call := range 5 {
			if err := collective.Once(ctx, c, "once", func() error { done[0]++; return nil }); err != nil || done[0] != call+1 {
				t.Fatalf("call %d: it was done %d times, %v", call, done[0], err)
			}
			if err := c.Barrier(ctx); err != nil {
				t.Fatal(err)
			}
		}
		for _, failure := range []error{errors.New("no luck"), errors.New("")} {
			err = collective.Once(ctx, c, "once", func() error { return failure })
			if err == nil || !strings.Contains(err.Error(), failure.Error()) || errors.Is(err, failure) != (c.Rank() == 0) {
				t.Errorf("on rank %d the failure %q is %v", c.Rank(), failure, err)
			}
		}
	})
}

// TestPanic: a function of the caller panics on one rank, which goes on. The others are told, and
// the next call works.
func TestPanic(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		// call returns the error of f, or what it has panicked with.
		call := func(f func() error) (err error, what any) {
			defer func() { what = recover() }()
			return f(), nil
		}
		for index, f := range []func() error{
			func() error { return collective.Once(ctx, c, "x", func() error { panic("no luck") }) },
			func() error {
				_, err := collective.AllReduce(ctx, c, "x", make([]int, 100_000), func(a, b int) int {
					if c.Rank() == 1 {
						panic("no luck")
					}
					return a + b
				})
				return err
			},
		} {
			err, what := call(f)
			if c.Rank() == index && what != "no luck" {
				t.Errorf("the caller got %v, and the panic %v", err, what)
			}
			if c.Rank() != index && (err == nil || what != nil || !strings.Contains(err.Error(), "panic")) {
				t.Errorf("another rank got %v, and the panic %v", err, what)
			}
			if err := collective.Once(ctx, c, "x", func() error { return nil }); err != nil {
				t.Error("after that: ", err)
			}
		}
	})
}

// TestMisuse: what one rank does wrongly is an error of all, and the next call works.
func TestMisuse(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		if _, err := collective.AllReduce(ctx, c, "x", make([]int, 5000+c.Rank()/2), dsm.Sum); !errors.Is(err, dsm.ErrMismatch) {
			t.Errorf("one rank brings a value more: %v", err)
		}
		var err error
		if n := 40000; c.Rank() == 1 { // twice as long, so that it would go in parts
			_, err = collective.AllReduce(ctx, c, "x", make([][2]int, n), func(a, _ [2]int) [2]int { return a })
		} else {
			_, err = collective.AllReduce(ctx, c, "x", make([]int, n), dsm.Sum)
		}
		if !errors.Is(err, dsm.ErrMismatch) {
			t.Errorf("one rank brings values of another type: %v", err)
		}
		for _, root := range []int{c.Size(), -1, -1 << 31, math.MinInt} {
			if _, err := collective.Broadcast(ctx, c, "x", root, []int{1}); !errors.Is(err, dsm.ErrNoSpace) {
				t.Errorf("the root of a Broadcast is %d: %v", root, err)
			}
			if _, err := collective.Gather(ctx, c, "x", root, []int{1}); !errors.Is(err, dsm.ErrNoSpace) {
				t.Errorf("the root of a Gather is %d: %v", root, err)
			}
		}
		if _, err := collective.Gather(ctx, c, "x", c.Rank()/2, []int{1}); !errors.Is(err, dsm.ErrMismatch) {
			t.Errorf("two roots: %v", err)
		}
		if _, err := collective.AllGather(ctx, c, "x", []string{"a"}); c.Rank() >= 0 && err == nil {
			t.Error("strings were exchanged")
		}
		// The others come with what can be shared, also those that come after this one.
		for rank := range c.Size() {
			var err error
			if c.Rank() == rank {
				_, err = collective.AllGather(ctx, c, "x", []string{"a"})
			} else {
				_, err = collective.AllGather(ctx, c, "x", []int{1})
			}
			if want := map[bool]error{true: dsm.ErrType, false: dsm.ErrMismatch}[c.Rank() == rank]; !errors.Is(err, want) {
				t.Errorf("rank %d brings strings, and others integers: %v", rank, err)
			}
		}
		if _, err := collective.Exchange(ctx, c, "x", make([][]int, 2+c.Rank()/2)); !errors.Is(err, dsm.ErrMismatch) {
			t.Errorf("some ranks bring slices for two of three: %v", err)
		}
		if c.Rank() == 1 {
			_, err = collective.AllGather(ctx, c, "x", []float64{1})
		} else {
			_, err = collective.AllGather(ctx, c, "x", []int{1})
		}
		if err == nil {
			t.Error("integers were taken for floating point")
		}
		if all, err := collective.AllGather(ctx, c, "x", []int{c.Rank()}); err != nil || fmt.Sprint(all) != "[[0] [1] [2]]" {
			t.Errorf("after that: %v, %v", all, err)
		}
	})
}

// TestReductionOfThatName: slices of all lengths are exchanged while another goroutine waits in a
// reduction of the same name.
func TestReductionOfThatName(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		kittest.Apart(t, ctx, c, "x", func() (err error) {
			for _, n := range []int{1, 100, 40000} {
				_, gather := collective.AllGather(ctx, c, "x", make([]int, n))
				_, reduce := collective.AllReduce(ctx, c, "x", make([]int, n), dsm.Sum)
				err = errors.Join(err, gather, reduce)
			}
			return err
		})
	})
}

// TestLoss: who waits for a node that is lost is told, also by the next call, and those that are
// left go on under the same name.
func TestLoss(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		if _, err := collective.AllGather(ctx, c, "x", brings(c.Rank(), 1)); err != nil {
			t.Fatal(err)
		}
		if c.Rank() == 0 {
			err := collective.Once(ctx, c, "x", func() error { dsmtest.LoseNode(t, c); return nil })
			t.Fatal("not lost: ", err)
		}
		for range 2 {
			if err := collective.Once(ctx, c, "x", func() error { return nil }); !errors.Is(err, dsm.ErrNodeLost) {
				t.Errorf("without rank 0: %v", err)
			}
		}
		left, err := c.Survivors(ctx)
		if err != nil {
			t.Fatal(err)
		}
		all, err := collective.AllGather(ctx, left, "x", brings(c.Rank(), 2))
		if err != nil || len(all) != 2 || !slices.Equal(all[0], brings(1, 2)) || !slices.Equal(all[1], brings(2, 2)) {
			t.Errorf("among those that are left: %d slices, %v", len(all), err)
		}
		ran := false
		if err := collective.Once(ctx, left, "x", func() error { ran = true; return nil }); err != nil || ran != (c.Rank() == 1) {
			t.Errorf("among those that are left, rank %d has done it: %t, %v", c.Rank(), ran, err)
		}
	}, "--survive")
}

// TestCheckpointMeanwhile: checkpoints are taken at any moment of a call, and leave nothing of it
// to a job that is restored.
func TestCheckpointMeanwhile(t *testing.T) {
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const calls, values = 300, 20000
		ended := make(chan error, 1)
		exchange := func(values int) (err error) {
			for call := 0; err == nil && call < calls; call++ {
				_, err = collective.AllGather(ctx, c, "slices", make([]int, values))
			}
			return err
		}
		go func() { ended <- exchange(values) }()
		dir := os.Getenv("DSM_CHECKPOINT")
		for range 5 {
			if err := c.Checkpoint(ctx, dir); err != nil {
				t.Error(err)
			}
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		kittest.Must[[]byte](t)(c.Restore(ctx, dir))
		if err := exchange(values + 1); err != nil {
			t.Error(err)
		}
	}, "--checkpoint", t.TempDir())
}
