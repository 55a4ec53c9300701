package parallel_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/collections"
	"dsmd/dsm/dsmtest"
	"dsmd/dsm/heap"
	"dsmd/dsm/parallel"
	"dsmd/internal/kittest"
)

// node is a task of a tree: it forks as many as its height is, each lower by one or more.
type node struct {
	Number, Height int32
}

// treeSize is how many nodes the tree of that height has.
func treeSize(height int32) int { return 1 << height }

func grow(t *parallel.Task[node]) {
	for h := range t.Value.Height {
		t.Fork(node{t.Value.Number + 1<<h, h})
	}
}

// TestTasks: every task is run once, wherever it was forked, and what it stores all see.
func TestTasks(t *testing.T) {
	kittest.RunEach(t, []int{1, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const height, rounds = 13, 4
		team := newTeam(t, ctx, c)
		runs := share[atomic.Int32](t, ctx, c, "runs", treeSize(height))
		for round := range int32(rounds) {
			var first []node
			switch {
			case round == 0 && c.Rank() == c.Size()-1:
				first = []node{{0, height}}
			case round > 0: // the same nodes, dealt out to the ranks
				for n := c.Rank(); n < treeSize(height-1); n += c.Size() {
					first = append(first, node{int32(n) << 1, 1})
				}
			}
			err := parallel.Tasks(ctx, team, first, func(t *parallel.Task[node]) error {
				if before := runs[t.Value.Number].Add(1) - 1; before != round {
					return fmt.Errorf("it was run %d times in %d rounds", before, round)
				}
				grow(t)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			for i := range runs {
				if got := runs[i].Load(); got != round+1 {
					t.Fatalf("task %d was run %d times in %d rounds", i, got, round+1)
				}
			}
			kittest.Barrier(t, ctx, c)
		}
	})
}

// TestTasksSteal: when one rank has all tasks the others run some, and of what they fork the first
// does.
func TestTasksSteal(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		team := newTeam(t, ctx, c)
		by := share[atomic.Int64](t, ctx, c, "by", c.Size())
		back := kittest.Must[*atomic.Int64](t)(dsm.Isolate[atomic.Int64](ctx, c, "back"))
		var first []int
		if c.Rank() == 0 {
			first = []int{-1}
		}
		err := parallel.Tasks(ctx, team, first, func(t *parallel.Task[int]) error {
			if by[c.Rank()].Add(1); t.Value == -1 {
				for i := range c.Size() * 3 {
					t.Fork(i)
				}
				return nil
			}
			if t.Value >= 1000 {
				if c.Rank() == 0 {
					back.Add(1)
				}
				return await(ctx, back)
			}
			if c.Rank() > 0 {
				// More than this rank has goroutines for: who waits here holds one.
				for range 8 {
					t.Fork(1000)
				}
			}
			for rank := range by { // nobody goes on before every rank has run one
				if err := await(ctx, &by[rank]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// TestJoin: a task that waits for those that it has forked sees what they have stored, wherever
// they ran, and the goroutines of its rank are not fewer meanwhile.
func TestJoin(t *testing.T) {
	kittest.RunEach(t, []int{1, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const height = 10
		team := newTeam(t, ctx, c)
		sizes := share[int32](t, ctx, c, "sizes", treeSize(height))
		away := kittest.Must[*atomic.Int64](t)(dsm.Isolate[atomic.Int64](ctx, c, "away"))
		var first []node
		if c.Rank() == 0 {
			first = []node{{0, height}}
		}
		err := parallel.Tasks(ctx, team, first, func(t *parallel.Task[node]) error {
			number, height := t.Value.Number, t.Value.Height
			if c.Rank() > 0 {
				away.Add(1)
			}
			if height == 7 && c.Size() > 1 { // whoever runs it, others have to take tasks, too
				if err := await(ctx, away); err != nil {
					return err
				}
			}
			grow(t)
			if err := t.Join(); err != nil {
				return err
			}
			sizes[number] = 1
			for h := range height {
				sizes[number] += sizes[number+1<<h]
			}
			if got := int(sizes[number]); got != treeSize(height) {
				return fmt.Errorf("it saw %d of %d tasks", got, treeSize(height))
			}
			return t.Join()
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := int(sizes[0]); got != treeSize(height) {
			t.Errorf("%d of %d tasks were counted", got, treeSize(height))
		}
	})
}

// TestJoinReplaced: while a rank's only goroutine waits in Join for a task that runs on another
// rank, another goroutine takes its place. It runs what the task there has forked, which that waits
// for.
func TestJoinReplaced(t *testing.T) {
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const joins, away, helps = 0, 1, 2
		team := kittest.Must[*parallel.Team](t)(parallel.New(ctx, c, "alone", parallel.Threads(1)))
		began := kittest.Must[*atomic.Int64](t)(dsm.Isolate[atomic.Int64](ctx, c, "began"))
		helped := kittest.Must[*atomic.Int64](t)(dsm.Isolate[atomic.Int64](ctx, c, "helped"))
		joiner := kittest.Must[*atomic.Int64](t)(dsm.Isolate[atomic.Int64](ctx, c, "joiner"))
		var first []int
		if c.Rank() == 0 {
			first = []int{joins}
		}
		err := parallel.Tasks(ctx, team, first, func(t *parallel.Task[int]) error {
			switch t.Value {
			case joins: // with its rank's only goroutine, until the other rank has the task
				joiner.Store(int64(1 + c.Rank())) // the other rank may have taken it
				t.Fork(away)
				if err := await(ctx, began); err != nil {
					return err
				}
				return t.Join()
			case away:
				t.Fork(helps)
				began.Store(1)
				return await(ctx, helped)
			}
			helped.Store(int64(1 + c.Rank()))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if by, want := helped.Load()-1, joiner.Load()-1; by != want {
			t.Errorf("rank %d has helped, and rank %d has waited in Join", by, want)
		}
	})
}

// TestTasksOfValues: tasks refer to values of a heap.
func TestTasksOfValues(t *testing.T) {
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		type pair struct{ A, B heap.Ref[int] }
		team := newTeam(t, ctx, c)
		h := kittest.Must[*heap.Heap](t)(heap.Open(ctx, c, "values", 1<<25))
		sum := kittest.Must[*collections.Accumulator[int64]](t)(collections.NewAccumulator[int64](ctx, c, "sum"))
		var first []pair
		for i := range 100 {
			p := pair{kittest.Must[heap.Ref[int]](t)(heap.New[int](h)), kittest.Must[heap.Ref[int]](t)(heap.New[int](h))}
			*p.A.Get(), *p.B.Get() = i, 1
			first = append(first, p)
		}
		err := parallel.Tasks(ctx, team, first, func(t *parallel.Task[pair]) error {
			sum.Add(int64(*t.Value.A.Get() + *t.Value.B.Get()))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := kittest.Must[int64](t)(sum.Sum(ctx)); got != int64(c.Size())*(99*100/2+100) {
			t.Errorf("the sum is %d", got)
		}
	})
}

// TestTasksFail: a task that fails, in whatever way, ends all, and every rank is told which it was.
func TestTasksFail(t *testing.T) {
	kittest.RunEach(t, []int{1, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		team := newTeam(t, ctx, c)
		const bad = 321
		for _, tt := range []struct {
			says string
			own  error
			fail func() error
		}{
			{"no such thing", errItem, func() error { return errItem }},
			{"panic: no such thing", errItem, func() error { panic(errItem) }},
			{"tasks_test.go:", nil, func() error { panic("no such thing") }},
			{"runtime.Goexit", nil, func() error { runtime.Goexit(); return nil }},
		} {
			var first []node
			if c.Rank() == 0 {
				first = []node{{0, 13}}
			}
			ran := false
			err := parallel.Tasks(ctx, team, first, func(t *parallel.Task[node]) error {
				if t.Value.Number == bad {
					ran = true
					return tt.fail()
				}
				grow(t)
				return t.Join()
			})
			failed := (*parallel.Error)(nil)
			if !errors.As(err, &failed) || failed.Task != "{Number:321 Height:0}" || !strings.Contains(failed.Text, tt.says) {
				t.Fatalf("%s: the tasks returned %v", tt.says, err)
			}
			if ran != (failed.Rank == c.Rank()) {
				t.Errorf("%s: rank %d has failed, and this rank has run the task: %v", tt.says, failed.Rank, ran)
			}
			if tt.own != nil && errors.Is(err, tt.own) != ran {
				t.Errorf("%s: on rank %d, the error is %v", tt.says, c.Rank(), err)
			}
			if n, err := parallel.Reduce(ctx, team, 1000, func(int) (int, error) { return 1, nil }, dsm.Sum); n != 1000 || err != nil {
				t.Fatalf("%s: after it, a loop over 1000 items ran %d, %v", tt.says, n, err)
			}
		}
	})
}

// TestJoinRecovered: a task that fails in the Join of its parent has failed, whatever the parent
// makes of its panic.
func TestJoinRecovered(t *testing.T) {
	kittest.RunEach(t, []int{1, 2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		ctx, end := context.WithTimeout(ctx, 20*time.Second)
		defer end()
		team := kittest.Must[*parallel.Team](t)(parallel.New(ctx, c, "alone", parallel.Threads(1)))
		var first []int
		if c.Rank() == 0 {
			first = []int{0}
		}
		err := parallel.Tasks(ctx, team, first, func(t *parallel.Task[int]) (err error) {
			if t.Value == 7 {
				panic(errItem)
			}
			t.Fork(7)
			defer func() { _ = recover() }()
			if err := t.Join(); !errors.Is(err, parallel.ErrEnded) {
				return fmt.Errorf("Join: %w", err)
			}
			return nil
		})
		failed := (*parallel.Error)(nil)
		if !errors.As(err, &failed) || failed.Task != "7" || !strings.Contains(failed.Text, "panic: no such thing") || !strings.Contains(failed.Text, "tasks_test.go:") {
			t.Fatalf("the tasks returned %v", err)
		}
		if errors.Is(err, errItem) != (failed.Rank == c.Rank()) {
			t.Errorf("on rank %d, the error of rank %d is %v", c.Rank(), failed.Rank, err)
		}
	})
}

// TestTasksMisuse: what is called wrongly is an error on all ranks, and the team is as good as new.
func TestTasksMisuse(t *testing.T) {
	kittest.RunEach(t, []int{1, 2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		team := newTeam(t, ctx, c)
		if err := parallel.Tasks(ctx, team, []*int{nil}, func(*parallel.Task[*int]) error { return nil }); !errors.Is(err, dsm.ErrType) {
			t.Errorf("tasks that can't be shared: %v", err)
		} else if want := "parallel: the type cannot be shared: *int: it is a pointer"; !strings.HasPrefix(err.Error(), want) {
			t.Errorf("tasks that can't be shared: %v\nwant %s", err, want)
		}
		forever := func(t *parallel.Task[int]) error {
			t.Fork(t.Value)
			time.Sleep(time.Millisecond)
			return nil
		}
		if c.Size() > 1 {
			var err error
			if c.Rank() == 0 {
				err = parallel.Tasks(ctx, team, nil, forever)
			} else {
				err = parallel.Tasks(ctx, team, []int32{1}, func(*parallel.Task[int32]) error { return nil })
			}
			own := [...]string{"int", "int32"}[c.Rank()]
			if !errors.Is(err, dsm.ErrMismatch) || !strings.HasSuffix(err.Error(), "with tasks of type "+own) {
				t.Errorf("tasks of two types, here %s: %v", own, err)
			}
		}
		err := parallel.Tasks(ctx, team, []int{1}, func(t *parallel.Task[int]) error {
			if err := parallel.Tasks(ctx, team, nil, forever); !errors.Is(err, dsm.ErrInUse) {
				return fmt.Errorf("tasks of a task: %w", err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		soon, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		if err := parallel.Tasks(soon, team, []int{1}, forever); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("tasks without end: %v", err)
		}
		// A rank that went on now to the next loop would end the team for one that has time left.
		kittest.Barrier(t, ctx, c)
		if err := parallel.Tasks(ctx, team, nil, forever); err != nil {
			t.Errorf("no tasks: %v", err)
		}
	})
}

// TestTasksLoss: when a node is lost that has taken a task, all that are left are told, also who
// waits for it.
func TestTasksLoss(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		team := newTeam(t, ctx, c)
		var first []int
		if c.Rank() == 0 {
			first = []int{0}
		}
		taken := kittest.Must[*atomic.Int64](t)(dsm.Isolate[atomic.Int64](ctx, c, "taken"))
		body := func(task *parallel.Task[int]) error {
			switch {
			case task.Value == 0:
				for i := range 50 {
					task.Fork(i + 1)
				}
				return task.Join()
			case c.Rank() == 2:
				dsmtest.LoseNode(t, c)
			}
			for ctx.Err() == nil && taken.Load() == 0 {
				lost, err := c.Lost(ctx)
				if err != nil {
					return err
				}
				if len(lost) > 0 {
					taken.Store(1)
				}
				time.Sleep(time.Millisecond)
			}
			return nil
		}
		if err := parallel.Tasks(ctx, team, first, body); !errors.Is(err, dsm.ErrNodeLost) {
			t.Fatalf("the tasks returned %v, want ErrNodeLost", err)
		}
		left := kittest.Must[*dsm.Survivors](t)(c.Survivors(ctx))
		again := newTeam(t, ctx, left)
		sum := kittest.Must[*collections.Accumulator[int64]](t)(collections.NewAccumulator[int64](ctx, c, "sum"))
		if err := parallel.Tasks(ctx, again, first, func(task *parallel.Task[int]) error {
			if sum.Add(1); task.Value < 10 {
				task.Fork(task.Value + 1)
				task.Fork(task.Value + 1)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if left.Index() == 0 {
			if got, err := sum.Sum(ctx); got != 1<<11-1 || err != nil {
				t.Errorf("those that are left have run %d tasks, %v", got, err)
			}
		}
		if err := left.Barrier(ctx); err != nil {
			t.Fatal(err)
		}
	}, "--survive")
}

// TestCheckpointMeanwhile: a checkpoint is taken while one rank runs tasks already, and another has
// not come to them.
func TestCheckpointMeanwhile(t *testing.T) {
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		team := newTeam(t, ctx, c)
		begun, saved := make(chan struct{}), make(chan struct{})
		tasks := func(first ...int) error {
			return parallel.Tasks(ctx, team, first, func(*parallel.Task[int]) error {
				close(begun)
				<-saved
				return nil
			})
		}
		ended := make(chan error, 1)
		if c.Rank() == 0 {
			go func() { ended <- tasks(1) }()
			<-begun
		}
		if err := c.Checkpoint(ctx, os.Getenv("DSM_CHECKPOINT")); err != nil {
			t.Error(err)
		}
		if close(saved); c.Rank() == 1 {
			ended <- tasks()
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}, "--checkpoint", t.TempDir())
}
