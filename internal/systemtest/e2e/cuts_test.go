package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"dsmd/bench/kernel"
	"dsmd/bench/kernels/ocean"
	"dsmd/bench/kernels/sor"
	"dsmd/dsm"
	"dsmd/internal/certs"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
	"dsmd/transport"
	"dsmd/transport/transporttest"
)

var cutsFor = flag.Duration("cuts.for", 0, "for how long each kernel is run again and again while connections are cut; 0: one run")

// cutEvery is how often one connection of the cluster is cut, on average.
const cutEvery = 50 * time.Millisecond

// cutsAtMost bounds the cuts of a run: about as many as an idle machine sees. On a slow one a
// connection is made again hardly faster than it is cut, and the run would not end.
const cutsAtMost = 60

// computed is one rank of a kernel. Rank 0 compares what all have computed with the result of the
// sequential version, bit by bit.
var computed = testcluster.Define("computed", func(s *testcluster.Self) error {
	size, err := strconv.Atoi(s.Args[1])
	if err != nil {
		return err
	}
	known := []kernel.Kernel{sor.Kernel, ocean.Kernel}
	problem := known[slices.IndexFunc(known, func(k kernel.Kernel) bool { return k.Name == s.Args[0] })].Problem(size)
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
	run, err := kernel.OnCluster(ctx, problem, c, 1)
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
func verify(ctx context.Context, problem kernel.Problem, run *kernel.Run) error {
	got := run.Result()
	alone, err := kernel.Sequential(problem)
	if err != nil {
		return err
	}
	defer alone.Close()
	if err := alone.Compute(ctx, nil); err != nil {
		return err
	}
	return problem.Verify(alone.Result(), got)
}

// kernels are the programs that run whole while something happens to their daemons, and the sizes
// at which a run takes seconds then.
var kernels = []struct {
	name string
	size int
}{{"sor", 512}, {"ocean", 66}}

// compute runs a kernel on all nodes of a cluster to its end, which must be right. Meanwhile
// disturb runs, until its channel is closed.
func compute(t *testing.T, c *testcluster.Cluster, nodes int, name string, size int, disturb func(over <-chan struct{})) {
	t.Helper()
	over := make(chan struct{})
	var disturbing sync.WaitGroup
	disturbing.Go(func() { disturb(over) })
	defer disturbing.Wait()
	defer close(over)
	var programs []*testcluster.Process
	for rank := range nodes {
		programs = append(programs, c.Program(t, computed, rank, rank, name, strconv.Itoa(size)))
	}
	for _, p := range programs {
		p.Succeed(t)
	}
}

// securities are the ways in which daemons talk to each other, with the flags for them.
var securities = []struct {
	name  string
	flags func(t *testing.T) []string
}{
	{"Plain", func(*testing.T) []string { return nil }},
	{"TLS", certificates},
}

// TestCuts runs whole programs on four daemons while the connections between these are cut, every
// 50 ms on average, in every way that a network has: the results are exact, every time. The same
// with TLS, which a cut may meet in the middle of a record or of a handshake. With -cuts.for both
// programs run in both ways.
func TestCuts(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	for i, security := range securities {
		for j, k := range kernels {
			if *cutsFor == 0 && i != j {
				continue
			}
			t.Run(security.name+"/"+k.name, func(t *testing.T) {
				flags := security.flags(t)
				end := time.Now().Add(*cutsFor)
				runs, cuts := 0, 0
				for ; runs == 0 || time.Now().Before(end); runs++ {
					cuts += runWithCuts(t, k.name, k.size, uint64(runs), flags)
				}
				if t.Failed() {
					return
				}
				t.Logf("%d runs of %s were right, with %d cuts", runs, k.name, cuts)
				if cuts == 0 {
					t.Error("nothing was cut, so this has shown nothing")
				}
			})
		}
	}
}

// certificates makes those of a cluster, and returns the flags with which its daemons have them.
func certificates(t *testing.T) []string {
	t.Helper()
	const cluster = "cuts"
	dir := t.TempDir()
	authority, err := certs.NewAuthority(dir, cluster, certs.AuthorityValidity, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := authority.Issue(dir, certs.Node{ID: certs.AnyNode}, false); err != nil {
		t.Fatal(err)
	}
	cert, key := certs.NodeFiles(certs.AnyNode)
	return []string{"--cluster", cluster, "--tls-ca", filepath.Join(dir, certs.AuthorityFile), "--tls-cert", filepath.Join(dir, cert), "--tls-key", filepath.Join(dir, key)}
}

// runWithCuts runs a kernel once and returns how many connections were cut meanwhile.
func runWithCuts(t *testing.T, name string, size int, seed uint64, flags []string) (cuts int) {
	t.Helper()
	// A subtest of its own, so that the daemons of this run end with it.
	t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
		const nodes = 4
		c, proxies := serveCuttable(t, nodes, flags...)
		compute(t, c, nodes, name, size, func(over <-chan struct{}) { cutting(proxies, nodes, seed, over) })
		cuts = proxies.Cuts()
	})
	return cuts
}

// serveCuttable starts daemons whose connections can be cut.
func serveCuttable(t *testing.T, nodes int, flags ...string) (*testcluster.Cluster, *transporttest.Proxies) {
	t.Helper()
	proxies := transporttest.NewProxies(t, nil)
	return testcluster.ServeVia(t, nodes, nodes, func(node, other int, address string) string {
		return proxies.Between(transport.NodeID(node), transport.NodeID(other), address)
	}, flags...), proxies
}

// cutting cuts one connection after the other until it is told to end, or has cut enough.
func cutting(proxies *transporttest.Proxies, nodes int, seed uint64, over <-chan struct{}) {
	random := rand.New(rand.NewPCG(seed, 4))
	for end := proxies.Cuts() + cutsAtMost; proxies.Cuts() < end; {
		select {
		case <-over:
			return
		case <-time.After(time.Duration(random.Int64N(2 * int64(cutEvery)))):
		}
		a := random.IntN(nodes)
		proxies.Cut(transport.NodeID(a), transport.NodeID((a+1+random.IntN(nodes-1))%nodes), random)
	}
}
