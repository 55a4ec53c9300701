package dsm_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"

	"dsmd/dsm"
)

// These examples are compiled, not run: they need a daemon. Run one with `dsmd run -n 4 --
// PROGRAM`.

// A whole program: every rank fills its part of a shared slice, then all add it up.
func Example() {
	ctx := context.Background()
	c, err := dsm.Join(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	squares, err := dsm.Alloc[int](ctx, c, "squares", 1000)
	if err != nil {
		log.Fatal(err)
	}
	for i := c.Rank(); i < len(squares); i += c.Size() {
		squares[i] = i * i
	}
	if err := c.Barrier(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("rank", c.Rank(), "sees", squares[999])
}

// A program that was not started by `dsmd run` names the socket of its daemon itself.
func ExampleJoin() {
	c, err := dsm.Join(context.Background(), dsm.WithSocket("/run/dsmd.sock"), dsm.WithRank(0))
	switch {
	case errors.Is(err, dsm.ErrNoDaemon):
		log.Fatal("start `dsmd serve` first: ", err)
	case err != nil:
		log.Fatal(err)
	}
	defer c.Close()
	fmt.Printf("rank %d of %d, on node %d of %d\n", c.Rank(), c.Size(), c.Node(), c.Nodes())
}

var (
	ctx = context.Background()
	c   *dsm.Cluster // from dsm.Join
)

// Structs of numbers and arrays can be shared; strings, slices and pointers can't.
func ExampleAlloc() {
	type Body struct {
		Pos, Vel [3]float64
		Mass     float64
		Name     [16]byte
	}
	bodies, err := dsm.Alloc[Body](ctx, c, "bodies", 1<<20)
	if err != nil {
		log.Fatal(err)
	}
	mine := len(bodies) / c.Size()
	for i := range bodies[c.Rank()*mine:][:mine] {
		bodies[c.Rank()*mine+i].Mass = 1
	}
}

// sync/atomic works across nodes. Isolate keeps the counter off pages that others use.
func ExampleIsolate() {
	next, err := dsm.Isolate[atomic.Int64](ctx, c, "next task")
	if err != nil {
		log.Fatal(err)
	}
	for task := next.Add(1) - 1; task < 1000; task = next.Add(1) - 1 {
		fmt.Println("rank", c.Rank(), "does task", task)
	}
}

func ExampleFree() {
	scratch, err := dsm.Alloc[float64](ctx, c, "scratch", 1<<20)
	if err != nil {
		log.Fatal(err)
	}
	// ... until every rank is done with it:
	if err := c.Barrier(ctx); err != nil {
		log.Fatal(err)
	}
	if err := dsm.Free(ctx, c, scratch); err != nil {
		log.Fatal(err)
	}
}

func ExampleFreeIsolated() {
	done, err := dsm.Isolate[atomic.Bool](ctx, c, "done")
	if err != nil {
		log.Fatal(err)
	}
	defer dsm.FreeIsolated(ctx, c, done)
	done.Store(true)
}

func ExampleMutex() {
	account, err := dsm.Alloc[int](ctx, c, "account", 2)
	if err != nil {
		log.Fatal(err)
	}
	m := dsm.NewMutex(c, "account")
	if err := m.Lock(ctx); err != nil {
		log.Fatal(err) // the lock is not held
	}
	account[0] += 10
	account[1] -= 10
	if err := m.Unlock(); err != nil {
		log.Fatal(err)
	}
}

// A program may have died between the two stores. Who can make up for that says how.
func ExampleMutex_LockRepair() {
	account, err := dsm.Alloc[int](ctx, c, "account", 2)
	if err != nil {
		log.Fatal(err)
	}
	m := dsm.NewMutex(c, "account")
	err = m.LockRepair(ctx, func(died *dsm.OwnerDiedError) error {
		log.Print(died)
		account[1] = -account[0]
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	account[0] += 10
	account[1] -= 10
	if err := m.Unlock(); err != nil {
		log.Fatal(err)
	}
}

// Whoever comes first does what needs to be done once.
func ExampleMutex_TryLock() {
	m := dsm.NewMutex(c, "housekeeping")
	held, err := m.TryLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if held {
		fmt.Println("rank", c.Rank(), "tidies up")
		if err := m.Unlock(); err != nil {
			log.Fatal(err)
		}
	}
}

func ExampleRWMutex() {
	table, err := dsm.Alloc[int](ctx, c, "table", 1000)
	if err != nil {
		log.Fatal(err)
	}
	rw := dsm.NewRWMutex(c, "table")
	if err := rw.RLock(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(table[7])
	if err := rw.RUnlock(); err != nil {
		log.Fatal(err)
	}
}

func ExampleCluster_Barrier() {
	for step := range 100 {
		fmt.Println("rank", c.Rank(), "computes step", step)
		if err := c.Barrier(ctx); err != nil {
			log.Fatal(err)
		}
	}
}

// Four goroutines in each program meet all others, with one message for each program.
func ExampleNewBarrier() {
	const threads = 4
	b := dsm.NewBarrier(c, "step", dsm.Team(threads))
	var team sync.WaitGroup
	for range threads {
		team.Go(func() {
			for range 100 {
				if err := b.Wait(ctx); err != nil {
					log.Print(err)
					return
				}
			}
		})
	}
	team.Wait()
}

// Three goroutines, anywhere in the cluster.
func ExampleParties() {
	if err := dsm.NewBarrier(c, "three", dsm.Parties(3)).Wait(ctx); err != nil {
		log.Fatal(err)
	}
}

func ExampleReduce() {
	residual := 0.25 // of this rank's part
	largest, err := dsm.Reduce(ctx, c, "residual", residual, dsm.Max)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("every rank knows", largest)
}

// Several figures in one message, with an operation of one's own.
func ExampleReduce_struct() {
	type extremes struct{ Low, High float64 }
	e, err := dsm.Reduce(ctx, c, "extremes", extremes{-1, 1}, func(a, b extremes) extremes {
		return extremes{min(a.Low, b.Low), max(a.High, b.High)}
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(e.Low, e.High)
}

func ExampleAllReduce() {
	var histogram [100]int // of what this rank has counted
	sums, err := dsm.AllReduce(ctx, c, "histogram", dsm.OpSum, histogram[:])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("all ranks have counted", sums[0], "of the first")
}

func ExampleAllGather() {
	found := 17 // by this rank
	all, err := dsm.AllGather(ctx, c, "found", found)
	if err != nil {
		log.Fatal(err)
	}
	before := 0 // on ranks with lower numbers
	for _, n := range all[:c.Rank()] {
		before += n
	}
	fmt.Println("puts its own from place", before, "on")
}

func ExamplePrefetch() {
	matrix, err := dsm.Alloc[float64](ctx, c, "matrix", 4096*4096)
	if err != nil {
		log.Fatal(err)
	}
	row := matrix[17*4096:][:4096]
	if err := dsm.Prefetch(ctx, c, row, dsm.Read); err != nil {
		log.Fatal(err)
	}
	sum := 0.0
	for _, v := range row {
		sum += v
	}
	fmt.Println(sum)
}

func ExampleCluster_Stats() {
	stats, err := c.Stats(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(stats.Faults.Remote(), "faults took", stats.Faults.Wait)
}

// A container for values of any type says early what it can't hold.
func ExampleShareable() {
	type entry struct {
		Key  [16]byte
		Name string
	}
	if err := dsm.Shareable[entry](); err != nil {
		log.Println(err) // names the field entry.Name, and what to use in place of a string
	}
}

// A step of a computation that can be repeated without what was lost with a node: those that are
// left agree on who they are, give the memory up, and begin the step again from what they have
// saved.
func ExampleGuard() {
	var grid []float64 // from dsm.Alloc
	err := dsm.Guard(func() {
		for i := range grid {
			grid[i]++
		}
	})
	var lost *dsm.PageLostError
	if errors.As(err, &lost) {
		log.Printf("byte %d of %s was lost with node %d: back to the last checkpoint", lost.Offset, lost.Name, lost.Node)
	}
}

// Ranks that are left when others were lost meet among themselves, and divide the work anew.
func ExampleCluster_Survivors() {
	err := c.Barrier(ctx)
	if errors.Is(err, dsm.ErrNodeLost) {
		left, err := c.Survivors(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if err := left.Barrier(ctx); err != nil {
			log.Fatal(err)
		}
		mine := 1000 / left.Size()
		fmt.Println("goes on with", mine*left.Index(), "to", mine*(left.Index()+1))
	}
}
