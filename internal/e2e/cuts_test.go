package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"dsmd/bench/kernel"
	"dsmd/bench/ocean"
	"dsmd/bench/sor"
	"dsmd/dsm"
	"dsmd/internal/e2e/testcluster"
	"dsmd/internal/uffd/uffdtest"
	"dsmd/transport"
	"dsmd/transport/transporttest"
)

var cutsFor = flag.Duration("cuts.for", 0, "for how long each kernel is run again and again while connections are cut; 0: two runs")

// cutEvery is how often one connection of the cluster is cut, on average.
const cutEvery = 50 * time.Millisecond

// computed is one rank of a kernel. Rank 0 compares what all have computed with the result of the sequential version, bit by bit.
var computed = testcluster.Define("computed", func(s *testcluster.Self) error {
	size, err := strconv.Atoi(s.Args[1])
	if err != nil {
		return err
	}
	kernels := []kernel.Kernel{sor.Kernel{}, ocean.Kernel{}}
	problem := kernels[slices.IndexFunc(kernels, func(k kernel.Kernel) bool { return k.Name() == s.Args[0] })].Problem(size)
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	if err = computeOn(s.Ctx, c, problem); err == nil {
		s.Say("right")
	}
	return errors.Join(err, c.Close())
})

// computeOn is a rank's part of the computation. Rank 0 says whether the result is right.
func computeOn(ctx context.Context, c *dsm.Cluster, problem kernel.Problem) error {
	run, err := problem.Cluster(ctx, c, 1)
	if err != nil {
		return fmt.Errorf("preparing: %w", err)
	}
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	if err := run.Compute(ctx, nil); err != nil {
		return fmt.Errorf("computing: %w", err)
	}
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	var wrong error
	if c.Rank() == 0 {
		wrong = verify(ctx, problem, run)
	}
	return errors.Join(wrong, c.Barrier(ctx), run.Close())
}

// verify compares what a run has computed with what the sequential version computes.
func verify(ctx context.Context, problem kernel.Problem, run kernel.Run) error {
	got, err := run.Result(ctx)
	if err != nil {
		return fmt.Errorf("reading the result: %w", err)
	}
	alone, err := problem.Sequential()
	if err != nil {
		return err
	}
	defer alone.Close()
	if err := alone.Compute(ctx, nil); err != nil {
		return err
	}
	want, err := alone.Result(ctx)
	if err != nil {
		return err
	}
	return problem.Verify(want, got)
}

// TestCuts runs whole programs on four daemons while the connections between these are cut, every 50 ms on average, in every way that a
// network has: the results are exact, every time.
func TestCuts(t *testing.T) {
	uffdtest.Require(t)
	for _, k := range []struct {
		name string
		size int // a run takes some seconds
	}{{"sor", 1024}, {"ocean", 130}} {
		t.Run(k.name, func(t *testing.T) {
			least := 2
			if testing.Short() {
				least = 1
			}
			end := time.Now().Add(*cutsFor)
			runs, cuts := 0, 0
			for ; runs < least || time.Now().Before(end); runs++ {
				cuts += runWithCuts(t, k.name, strconv.Itoa(k.size), uint64(runs))
			}
			t.Logf("%d runs of %s were right, with %d cuts", runs, k.name, cuts)
			if cuts == 0 {
				t.Error("nothing was cut, so this has shown nothing")
			}
		})
	}
}

// runWithCuts runs a kernel once and returns how many connections were cut meanwhile.
func runWithCuts(t *testing.T, name, size string, seed uint64) (cuts int) {
	t.Helper()
	// A subtest of its own, so that the daemons of this run end with it.
	t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
		const nodes = 4
		proxies := transporttest.NewProxies(t, nil)
		c := testcluster.ServeVia(t, nodes, nodes, func(node, other int, address string) string {
			return proxies.Between(transport.NodeID(node), transport.NodeID(other), address)
		})
		over := make(chan struct{})
		var cutting sync.WaitGroup
		cutting.Go(func() {
			random := rand.New(rand.NewPCG(seed, 4))
			for {
				select {
				case <-over:
					return
				case <-time.After(time.Duration(random.Int64N(2 * int64(cutEvery)))):
				}
				a := random.IntN(nodes)
				proxies.Cut(transport.NodeID(a), transport.NodeID((a+1+random.IntN(nodes-1))%nodes), random)
			}
		})
		var programs []*testcluster.Process
		for rank := range nodes {
			programs = append(programs, c.Program(t, computed, rank, rank, name, size))
		}
		for _, p := range programs {
			p.Succeed(t)
		}
		close(over)
		cutting.Wait()
		cuts = proxies.Cuts()
	})
	return cuts
}
