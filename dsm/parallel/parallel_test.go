package parallel_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
	"dsmd/dsm/parallel"
	"dsmd/internal/kittest"
	_ "dsmd/internal/patience" // ends a run in which a test waits for ever
)

func share[V any](t *testing.T, ctx context.Context, c *dsm.Cluster, name string, n int) []V {
	t.Helper()
	return kittest.Must[[]V](t)(dsm.Alloc[V](ctx, c, name, n))
}

func newTeam(t *testing.T, ctx context.Context, among dsm.Group) *parallel.Team {
	t.Helper()
	return kittest.Must[*parallel.Team](t)(parallel.New(ctx, among, "team", parallel.Threads(3)))
}

// await waits until a word that ranks share is not 0.
func await(ctx context.Context, word *atomic.Int64) error {
	for word.Load() == 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// TestFor: every item is run once, and what it stores all see.
func TestFor(t *testing.T) {
	dsmtest.RunEach(t, []int{1, 2, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		team := newTeam(t, ctx, c)
		for _, n := range []int{0, 1, 3, 1000, 20000, 7} {
			runs := share[atomic.Int32](t, ctx, c, fmt.Sprint("runs ", n), n)
			const loops = 4
			for loop := range int32(loops) {
				err := team.For(ctx, n, func(i int) error {
					if before := runs[i].Add(1) - 1; before != loop {
						return fmt.Errorf("it was run %d times in %d loops", before, loop)
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			for i := range runs {
				if got := runs[i].Load(); got != loops {
					t.Fatalf("item %d of %d was run %d times in %d loops", i, n, got, loops)
				}
			}
		}
		if lo, hi := team.Block(10); lo != 10*c.Rank()/c.Size() || hi != 10*(c.Rank()+1)/c.Size() {
			t.Errorf("the block of rank %d is %d to %d", c.Rank(), lo, hi)
		}
		if err := team.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// TestEverywhere: a team shares nothing with those of other jobs, also if its name begins with
// dsm.Everywhere, and memory of that name is something else.
func TestEverywhere(t *testing.T) {
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		share[byte](t, ctx, c, "/team/2", 1) // as that of another job may be called
		share[byte](t, ctx, c, "/team/2/tasks/1", 1)
		team := kittest.Must[*parallel.Team](t)(parallel.New(ctx, c, "/team"))
		if err := parallel.Tasks(ctx, team, []int{1}, func(*parallel.Task[int]) error { return nil }); err != nil {
			t.Error(err)
		}
		if err := team.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// TestSteal: the part of a rank whose items take long is run by others as well, and items without
// a length are not lost on the way.
func TestSteal(t *testing.T) {
	kittest.RunEach(t, []int{1, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const n = 4000
		team := newTeam(t, ctx, c)
		stolen := kittest.Must[*atomic.Int64](t)(dsm.Isolate[atomic.Int64](ctx, c, "stolen"))
		runs := share[atomic.Int32](t, ctx, c, "runs", n)
		err := team.For(ctx, n, func(i int) error {
			runs[i].Add(1)
			switch part := n / c.Size(); {
			case i >= part || c.Size() == 1:
				return nil
			case c.Rank() > 0:
				stolen.Add(1)
				return nil
			}
			return await(ctx, stolen)
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range runs {
			if got := runs[i].Load(); got != 1 {
				t.Fatalf("item %d was run %d times", i, got)
			}
		}
	})
}

// TestStealLate: a rank is helped that comes to the loop when the others have looked for something
// to take already, and one whose items take long after many that did not.
func TestStealLate(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const n = 4000
		team := newTeam(t, ctx, c)
		for _, quick := range []int{0, n / c.Size() / 2} {
			stolen := kittest.Must[*atomic.Int64](t)(dsm.Isolate[atomic.Int64](ctx, c, fmt.Sprint("stolen ", quick)))
			if c.Rank() == 0 && quick == 0 {
				// Long enough for the others to look; if they are slower, nothing is asked of them.
				time.Sleep(100 * time.Millisecond)
			}
			err := team.For(ctx, n, func(i int) error {
				switch {
				case i < quick || i >= n/c.Size():
					return nil
				case c.Rank() > 0:
					stolen.Add(1)
					return nil
				}
				return await(ctx, stolen)
			})
			if err != nil {
				t.Fatalf("after %d quick items: %v", quick, err)
			}
		}
	})
}

// TestVainLooks: a rank that finds nothing to take, in one loop after another, looks more and more
// seldom, as others pay for its looks with faults. It does look in loops in which it has to wait
// for as long as it ever does, which may be any of them where the machine is busy; and a node may
// ask ahead in vain. One of five times has to show it.
func TestVainLooks(t *testing.T) {
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const loops, faultsOfLook = 40, 3
		team := newTeam(t, ctx, c)
		var faults uint64
		for range 5 {
			slow := uint64(0)
			faults = kittest.CostOf(t, ctx, c, func() error {
				for range loops {
					began := time.Now()
					err := team.For(ctx, 2, func(i int) error {
						time.Sleep(time.Duration(i) * 4 * time.Millisecond)
						return nil
					})
					if err != nil {
						return err
					}
					if time.Since(began) > parallel.MaxPatience {
						slow++
					}
				}
				return nil
			}).Faults
			slow = kittest.Must[uint64](t)(dsm.Reduce(ctx, c, "slow", slow, dsm.Sum))
			if faults < loops+faultsOfLook*slow {
				return
			}
		}
		t.Errorf("%d faults in %d loops in which there is nothing to take", faults, loops)
	})
}

// TestStolenFailure: an item that was taken from its rank fails as one of the rank's own.
func TestStolenFailure(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		team := newTeam(t, ctx, c)
		stolen := kittest.Must[*atomic.Int64](t)(dsm.Isolate[atomic.Int64](ctx, c, "stolen"))
		err := team.For(ctx, 4000, func(i int) error {
			switch {
			case i >= 4000/c.Size():
				return nil
			case c.Rank() > 0:
				stolen.Add(1)
				return errItem
			}
			return await(ctx, stolen)
		})
		failed := (*parallel.Error)(nil)
		if !errors.As(err, &failed) || failed.Rank == 0 || failed.Text != errItem.Error() || errors.Is(err, errItem) != (c.Rank() == failed.Rank) {
			t.Errorf("on rank %d the loop returned %v", c.Rank(), err)
		}
	})
}

// TestReduce: values are combined, each once, and all ranks get the same.
func TestReduce(t *testing.T) {
	kittest.RunEach(t, []int{1, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		team := newTeam(t, ctx, c)
		type extremes struct{ Low, High, Sum int }
		for _, n := range []int{1, 2, 50000} {
			got, err := parallel.Reduce(ctx, team, n,
				func(i int) (extremes, error) { return extremes{i, i, i}, nil },
				func(a, b extremes) extremes { return extremes{min(a.Low, b.Low), max(a.High, b.High), a.Sum + b.Sum} })
			if want := (extremes{0, n - 1, n * (n - 1) / 2}); err != nil || got != want {
				t.Errorf("Reduce of %d items = %v, %v; want %v", n, got, err, want)
			}
		}
		none, err := parallel.Reduce(ctx, team, 0, func(int) (float64, error) { return 1, nil }, dsm.Sum)
		if none != 0 || err != nil {
			t.Errorf("Reduce of nothing = %g, %v", none, err)
		}
		sum := kittest.Must[float64](t)(parallel.Reduce(ctx, team, 9999, func(i int) (float64, error) { return 1 / float64(i+1), nil }, dsm.Sum))
		first := kittest.Must[float64](t)(dsm.Reduce(ctx, c, "same", sum, func(a, _ float64) float64 { return a }))
		if sum != first {
			t.Errorf("rank %d has the sum %v, rank 0 %v", c.Rank(), sum, first)
		}
	})
}

// TestOpPanics: a panic of op on one rank keeps no other waiting that is told of an item's failure.
func TestOpPanics(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		team := newTeam(t, ctx, c)
		others := share[atomic.Int64](t, ctx, c, "others", 1)
		err := func() (err error) {
			defer func() {
				if what := recover(); what != nil {
					err = fmt.Errorf("a panic: %v", what)
				}
			}()
			_, err = parallel.Reduce(ctx, team, c.Size(), func(i int) (int, error) {
				if i > 0 {
					others[0].Add(1)
					return i, nil
				}
				for others[0].Load() < 2 && ctx.Err() == nil {
					time.Sleep(time.Millisecond)
				}
				return 0, errItem
			}, func(a, b int) int {
				if c.Rank() == 1 {
					panic("no luck")
				}
				return a + b
			})
			return err
		}()
		if failed := (*parallel.Error)(nil); !errors.As(err, &failed) {
			t.Errorf("rank %d: %v", c.Rank(), err)
		}
	})
}

// TestNewFails: when one rank can't make a team no rank has it.
func TestNewFails(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		refused := c.Rank() == 2
		if refused {
			kittest.Must[any](t)(nil, parallel.Refuse(ctx, c, "team", c.Size()))
		}
		if _, err := parallel.New(ctx, c, "team"); err == nil || errors.Is(err, dsm.ErrMismatch) != refused {
			t.Errorf("rank %d: %v", c.Rank(), err)
		}
	})
}

var errItem = errors.New("no such thing")

// TestFailures: what fails ends a loop that would go on for hours, everywhere, and names its item;
// and the team is as good as new.
func TestFailures(t *testing.T) {
	kittest.RunEach(t, []int{1, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		team := newTeam(t, ctx, c)
		const bad = 17
		none := []int{}
		for _, tt := range []struct {
			says string
			own  error
			fail func() error
		}{
			{"no such thing", errItem, func() error { return errItem }},
			{"panic: no such thing", errItem, func() error { panic(errItem) }},
			{"parallel_test.go:", nil, func() error { panic("no such thing") }},
			{"index out of range [17]", nil, func() error { none[bad]++; return nil }},
			{"runtime.Goexit", nil, func() error { runtime.Goexit(); return nil }},
			{"longlong", nil, func() error { return errors.New(strings.Repeat("long", 5000)) }},
		} {
			ran := -1
			err := team.For(ctx, parallel.MaxItems, func(i int) error {
				if i == bad {
					ran = c.Rank()
					return tt.fail()
				}
				time.Sleep(time.Microsecond)
				return nil
			})
			failed := (*parallel.Error)(nil)
			if !errors.As(err, &failed) || failed.Index != bad || !strings.Contains(failed.Text, tt.says) {
				t.Fatalf("%s: the loop returned %v", tt.says, err)
			}
			if ran == c.Rank() != (failed.Rank == ran) {
				t.Errorf("%s: rank %d has run the item, and rank %d has failed", tt.says, ran, failed.Rank)
			}
			if tt.own != nil && errors.Is(err, tt.own) != (failed.Rank == c.Rank()) {
				t.Errorf("%s: on rank %d, the error is %v", tt.says, c.Rank(), err)
			}
			if n, err := parallel.Reduce(ctx, team, 1000, func(int) (int, error) { return 1, nil }, dsm.Sum); n != 1000 || err != nil {
				t.Fatalf("%s: after it, a loop over 1000 items ran %d, %v", tt.says, n, err)
			}
		}
	})
}

// TestPanicSaysWhere: what is told of a panic begins with the function that has panicked, not with
// those of the library through which the panic has gone.
func TestPanicSaysWhere(t *testing.T) {
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		team := newTeam(t, ctx, c)
		none := []int{}
		for _, run := range []func() error{
			func() error { return team.For(ctx, 10, func(i int) error { none[i]++; return nil }) },
			func() error {
				return parallel.Tasks(ctx, team, []int{1}, func(t *parallel.Task[int]) error { none[t.Value]++; return nil })
			},
		} {
			failed := (*parallel.Error)(nil)
			if err := run(); !errors.As(err, &failed) {
				t.Fatal(err)
			}
			// The panic, nothing, "goroutine 1 [running]:", a function, its line.
			lines := strings.Split(failed.Text, "\n")
			if len(lines) < 5 || !strings.Contains(lines[3], "parallel_test.") || !strings.Contains(lines[4], "parallel_test.go:") {
				t.Errorf("the first function is not the body, in:\n%s", failed.Text)
			}
		}
	})
}

// TestSameName: teams of one name do not take the loops of one for those of another, also if one
// has failed, or if ranks have come out of step.
func TestSameName(t *testing.T) {
	kittest.RunEach(t, []int{1, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		first := newTeam(t, ctx, c)
		if err := first.For(ctx, 10, func(int) error { return errItem }); err == nil {
			t.Fatal("no item has failed")
		}
		second := newTeam(t, ctx, c)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		for range c.Rank() {
			if err := first.For(ended, 10, func(int) error { return nil }); !errors.Is(err, context.Canceled) {
				t.Errorf("a loop without time: %v", err)
			}
		}
		third := newTeam(t, ctx, c)
		for i, team := range []*parallel.Team{third, first, second, third} {
			if n, err := parallel.Reduce(ctx, team, 1000, func(int) (int, error) { return 1, nil }, dsm.Sum); n != 1000 || err != nil {
				t.Errorf("loop %d ran %d of 1000 items, %v", i, n, err)
			}
		}
		err := first.For(ctx, c.Size(), func(int) error {
			if err := second.For(ctx, 1, func(int) error { return nil }); !errors.Is(err, dsm.ErrInUse) {
				return fmt.Errorf("a loop in a loop: %w", err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestReductionOfThatName: a team is made, and runs a loop and a task, while another goroutine
// waits in a reduction of the team's name.
func TestReductionOfThatName(t *testing.T) {
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		kittest.Apart(t, ctx, c, "team", func() error {
			team := newTeam(t, ctx, c)
			return errors.Join(
				team.For(ctx, 100, func(int) error { return nil }),
				parallel.Tasks(ctx, team, []int{1}, func(*parallel.Task[int]) error { return nil }))
		})
	})
}

// TestPanicOfOp: the caller gets a panic of op, and not a result, nor does it end the program.
func TestPanicOfOp(t *testing.T) {
	dsmtest.Run(t, 2, func(ctx context.Context, c *dsm.Cluster) {
		team := newTeam(t, ctx, c)
		func() {
			defer func() {
				if what := recover(); what != nil && what != errItem {
					t.Errorf("recovered %v", what)
				}
			}()
			n, err := parallel.Reduce(ctx, team, 2, func(int) (int, error) { return 1, nil }, func(a, b int) int { panic(errItem) })
			// If a rank was late, another has run both items, and combined them.
			if failed := (*parallel.Error)(nil); !errors.As(err, &failed) {
				t.Errorf("the loop returned %d, %v", n, err)
			}
		}()
		if n, err := parallel.Reduce(ctx, team, 1000, func(int) (int, error) { return 1, nil }, dsm.Sum); n != 1000 || err != nil {
			t.Errorf("after it, a loop over 1000 items ran %d, %v", n, err)
		}
	})
}

// TestLeave: when a rank's context ends, which waits for the others and has taken items of them,
// they begin no more.
func TestLeave(t *testing.T) {
	dsmtest.Run(t, 2, func(ctx context.Context, c *dsm.Cluster) {
		team := kittest.Must[*parallel.Team](t)(parallel.New(ctx, c, "team", parallel.Threads(1)))
		left := kittest.Must[*atomic.Int64](t)(dsm.Isolate[atomic.Int64](ctx, c, "left"))
		soon, cancel := context.WithCancel(ctx)
		defer cancel()
		late := 0
		err := team.For(soon, 200, func(i int) error {
			switch {
			case i < 100:
			case c.Rank() == 0:
				cancel()
				time.Sleep(300 * time.Millisecond) // so that it has left the meeting first
			case left.Load() > 0:
				late++
			default:
				defer time.AfterFunc(100*time.Millisecond, cancel)
				return await(ctx, left)
			}
			return nil
		})
		left.Store(1)
		if !errors.Is(err, context.Canceled) || late > 0 {
			t.Errorf("%d items were begun after the other rank had left, %v", late, err)
		}
		if err := c.Barrier(ctx); err != nil {
			t.Fatal(err)
		}
	})
}

// TestMisuse: what is called wrongly is an error on all ranks, and the team is as good as new.
func TestMisuse(t *testing.T) {
	kittest.RunEach(t, []int{1, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		team := newTeam(t, ctx, c)
		nothing := func(int) error { return nil }
		for n, want := range map[int]error{-1: dsm.ErrNoSpace, parallel.MaxItems + 1: dsm.ErrNoSpace} {
			if err := team.For(ctx, n, nothing); !errors.Is(err, want) {
				t.Errorf("%d items: %v, want %v", n, err, want)
			}
		}
		if err := team.For(ctx, 100+c.Rank(), nothing); c.Size() > 1 && !errors.Is(err, dsm.ErrMismatch) {
			t.Errorf("other numbers of items on each rank: %v", err)
		}
		for _, wrong := range []int{-1, parallel.MaxItems + 1} {
			n, want := 10, dsm.ErrMismatch
			if c.Rank() == 0 {
				n, want = wrong, dsm.ErrNoSpace
			}
			if err := team.For(ctx, n, nothing); !errors.Is(err, want) {
				t.Errorf("%d items, and on rank 0 %d: %v, want %v", n, wrong, err, want)
			}
		}
		type large [parallel.MaxReduceBytes + 1]byte
		_, err := parallel.Reduce(ctx, team, 1, func(int) (l large, err error) { return }, func(a, b large) large { return a })
		if !errors.Is(err, dsm.ErrNoSpace) {
			t.Errorf("a value that is too large: %v", err)
		}
		_, err = parallel.Reduce(ctx, team, 1, func(int) (s *int, err error) { return }, func(a, b *int) *int { return a })
		if !errors.Is(err, dsm.ErrType) {
			t.Errorf("a value that can't be shared: %v", err)
		} else if want := "parallel: the type cannot be shared: *int: it is a pointer"; !strings.HasPrefix(err.Error(), want) {
			t.Errorf("a value that can't be shared: %v\nwant %s", err, want)
		}
		if c.Rank() == 0 {
			_, err = parallel.Reduce(ctx, team, 100, func(int) (int, error) { return 1, nil }, dsm.Sum)
		} else {
			_, err = parallel.Reduce(ctx, team, 100, func(int) (float64, error) { return 1, nil }, dsm.Sum)
		}
		if own := [...]string{"int", "float64"}[min(c.Rank(), 1)]; c.Size() > 1 && (!errors.Is(err, dsm.ErrMismatch) || !strings.HasSuffix(err.Error(), " 100, with values of type "+own)) {
			t.Errorf("other values on each rank, here %s: %v", own, err)
		}
		err = team.For(ctx, c.Size(), func(int) error {
			if err := team.For(ctx, 1, nothing); !errors.Is(err, dsm.ErrInUse) {
				return fmt.Errorf("a loop in a loop: %w", err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		none := share[int](t, ctx, c, "none", 1)
		err = team.Touching(parallel.Reads(func(lo, hi int) []int { return none[lo : hi+1] })).For(ctx, 2, nothing)
		if failed := (*parallel.Error)(nil); !errors.As(err, &failed) || !strings.Contains(failed.Text, "out of range") {
			t.Errorf("a range that is not there: %v", err)
		}
		// A rank that has left a loop, and the others, do not take one loop for another.
		alone := kittest.Must[*parallel.Team](t)(parallel.New(ctx, c, "alone"))
		if c.Rank() == 0 && c.Size() > 1 {
			soon, cancel := context.WithCancel(ctx)
			cancel()
			if err := alone.For(soon, 100, nothing); !errors.Is(err, context.Canceled) {
				t.Errorf("a loop without time: %v", err)
			}
		}
		for range 2 {
			if err := alone.For(ctx, 100, nothing); c.Size() > 1 && !errors.Is(err, dsm.ErrMismatch) {
				t.Errorf("different loops: %v", err)
			}
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if err := team.For(ended, 100, nothing); !errors.Is(err, context.Canceled) {
			t.Errorf("a loop without time: %v", err)
		}
		if n, err := parallel.Reduce(ctx, team, 1000, func(int) (int, error) { return 1, nil }, dsm.Sum); n != 1000 || err != nil {
			t.Errorf("after all that a loop over 1000 items ran %d, %v", n, err)
		}
	})
}

// TestLimits: the largest numbers are as good as others, where there is no error for them.
func TestLimits(t *testing.T) {
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		for i, threads := range []int{math.MinInt, 1 << 62, math.MaxInt} {
			team := kittest.Must[*parallel.Team](t)(parallel.New(ctx, c, fmt.Sprint("team ", i), parallel.Threads(threads)))
			if n, err := parallel.Reduce(ctx, team, 1000, func(int) (int, error) { return 1, nil }, dsm.Sum); n != 1000 || err != nil {
				t.Errorf("with %d threads, a loop over 1000 items ran %d, %v", threads, n, err)
			}
			runs := share[atomic.Int64](t, ctx, c, fmt.Sprint("runs ", i), 1)
			err := parallel.Tasks(ctx, team, make([]int, 500), func(*parallel.Task[int]) error {
				runs[0].Add(1)
				return nil
			})
			if n := runs[0].Load(); n != 1000 || err != nil {
				t.Errorf("with %d threads, %d of 1000 tasks were run, %v", threads, n, err)
			}
			const half = math.MaxInt / 2
			if lo, hi := team.Block(math.MaxInt); lo != half*c.Rank() || hi != half+(half+1)*c.Rank() {
				t.Errorf("of %d items rank %d has %d to %d", math.MaxInt, c.Rank(), lo, hi)
			}
			if err := team.Close(ctx); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestTouch: what is declared is fetched at once, and not missed page by page.
func TestTouch(t *testing.T) {
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const pages = 200
		words := c.PageBytes() / 8
		team := newTeam(t, ctx, c)
		x, y := share[int](t, ctx, c, "x", pages*words), share[int](t, ctx, c, "y", pages*words)
		if c.Rank() == 0 {
			for i := range x {
				x[i], y[i] = i, i
			}
		}
		if err := c.Barrier(ctx); err != nil {
			t.Fatal(err)
		}
		before := kittest.Must[dsm.Stats](t)(c.Stats(ctx))
		// The pages are visited in no order that the daemon could foresee.
		reading := team.Touching(parallel.Reads(func(int, int) []int { return x }))
		err := reading.Touching(parallel.Writes(func(int, int) []int { return y })).For(ctx, pages, func(i int) error {
			at := i * 77 % pages * words
			y[at] += x[at]
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		after := kittest.Must[dsm.Stats](t)(c.Stats(ctx))
		if c.Rank() == 1 && after.Traffic.Prefetched-before.Traffic.Prefetched < pages {
			t.Errorf("%d pages were prefetched", after.Traffic.Prefetched-before.Traffic.Prefetched)
		}
		for i := range pages {
			if at := i * words; y[at] != 2*at {
				t.Fatalf("item %d is %d, want %d", at, y[at], 2*at)
			}
		}
	})
}

// TestLoss: a loop during which a node is lost says so to all that are left, who repeat it among
// themselves.
func TestLoss(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const n = 3000
		team := newTeam(t, ctx, c)
		ready := kittest.Must[*atomic.Int64](t)(dsm.Isolate[atomic.Int64](ctx, c, "ready"))
		if c.Rank() != 2 {
			ready.Add(1)
		}
		var first sync.Once
		err := team.For(ctx, n, func(i int) error {
			for c.Rank() == 2 {
				if ready.Load() == 2 {
					dsmtest.LoseNode(t, c)
				}
			}
			// Nobody goes on before the node is lost, else they could take all that is rank 2's.
			first.Do(func() {
				for len(kittest.Must[[]int](t)(c.Lost(ctx))) == 0 {
					time.Sleep(time.Millisecond)
				}
			})
			return nil
		})
		if !errors.Is(err, dsm.ErrNodeLost) {
			t.Fatalf("the loop returned %v, want ErrNodeLost", err)
		}
		if err := team.For(ctx, n, func(int) error { return nil }); !errors.Is(err, dsm.ErrNodeLost) {
			t.Errorf("the loop after it returned %v, want ErrNodeLost", err)
		}
		left := kittest.Must[*dsm.Survivors](t)(c.Survivors(ctx))
		again := newTeam(t, ctx, left)
		if sum, err := parallel.Reduce(ctx, again, n, func(i int) (int, error) { return i, nil }, dsm.Sum); sum != n*(n-1)/2 || err != nil {
			t.Errorf("among those that are left the sum is %d, %v", sum, err)
		}
	}, "--survive")
}

// TestLostPage: an item that touches a lost page does not go on with anything.
func TestLostPage(t *testing.T) {
	dsmtest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		x := share[int](t, ctx, c, "x", 1)
		if c.Rank() == 2 {
			x[0] = 1
		}
		if err := c.Barrier(ctx); err != nil {
			t.Fatal(err)
		}
		if c.Rank() == 2 {
			dsmtest.LoseNode(t, c)
		}
		if err := c.Barrier(ctx); !errors.Is(err, dsm.ErrNodeLost) {
			t.Fatal(err)
		}
		team := newTeam(t, ctx, kittest.Must[*dsm.Survivors](t)(c.Survivors(ctx)))
		_, err := parallel.Reduce(ctx, team, 100, func(i int) (int, error) { return x[i/100], nil }, dsm.Sum)
		if failed := (*parallel.Error)(nil); !errors.As(err, &failed) || failed.Rank == c.Rank() && !errors.Is(err, dsm.ErrPageLost) {
			t.Errorf("a loop over a lost page returned %v", err)
		}
	}, "--survive")
}
