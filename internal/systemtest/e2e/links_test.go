//go:build rdma

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"dsmd/internal/require"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/verbs/verbstest"
)

// linkSizes are those of the kernels in the test bed, which is an emulated machine.
var linkSizes = map[string]int{"sor": 256, "ocean": 34}

const (
	// linkDown and linkUp are for how long at most a link is down at a time, and up. Up is longer,
	// because it takes a while to make the next queue pair.
	linkDown, linkUp = time.Second / 2, 2 * time.Second
	// silentPause is for how long at most queue pairs are left alone after they fell silent, which
	// is noticed after five seconds.
	silentPause = 30 * time.Second
	// linkRuns is after how many runs at most a queue pair must have failed: none does unless
	// something is sent while the link is down.
	linkRuns = 6
)

// requireLinks returns the two RDMA devices of the test bed, and the network interface of one of
// them, whose link may be taken down.
func requireLinks(t *testing.T) (devices [2]string, netdev string) {
	t.Helper()
	devices = [2]string{os.Getenv("RDMA_VM_DEV"), os.Getenv("RDMA_VM_DEV2")}
	if devices[1] == "" {
		require.Missing(t, "rdma-link", "needs two RDMA devices whose links may be taken down; transport/rdma/testbed/run makes a machine that has them")
	}
	text, err := os.ReadFile(filepath.Join("/sys/class/infiniband", devices[1], "ports/1/gid_attrs/ndevs", os.Getenv("RDMA_VM_GID_INDEX")))
	if err != nil {
		t.Fatal(err)
	}
	return devices, strings.TrimSpace(string(text))
}

// An outage is something that happens to the queue pairs between two daemons while a program runs.
type outage struct {
	// strike makes it happen, and ends it. pause waits for at most so long, and returns false if
	// the run is over before.
	strike func(t *testing.T, c *testcluster.Cluster, random *rand.Rand, pause func(most time.Duration) bool)
	reason string // what a daemon says of the queue pair then, one of the two at least
}

// TestCutLinks runs whole programs on two daemons that must reach each other by RDMA, from one
// device to another, while the link between these goes down and up: the results are exact, with TLS
// and without.
func TestCutLinks(t *testing.T) {
	devices, netdev := requireLinks(t)
	setLink := func(t *testing.T, state string) {
		if said, err := exec.Command("ip", "link", "set", netdev, state).CombinedOutput(); err != nil {
			t.Errorf("ip link set %s %s: %v\n%s", netdev, state, err, said)
		}
	}
	runWithOutages(t, devices, outage{reason: "its queue pair has failed", strike: func(t *testing.T, _ *testcluster.Cluster, _ *rand.Rand, pause func(time.Duration) bool) {
		setLink(t, "down")
		pause(linkDown)
		setLink(t, "up")
	}})
}

// TestFailedQueuePairs is the same with queue pairs that fail, while the link and the daemons are
// as they were.
func TestFailedQueuePairs(t *testing.T) {
	devices, _ := requireLinks(t)
	runWithOutages(t, devices, outage{reason: "a request has failed", strike: func(t *testing.T, c *testcluster.Cluster, random *rand.Rand, _ func(time.Duration) bool) {
		hurt(t, c, random, verbstest.Failed)
	}})
}

// TestSilentQueuePairs is the same with queue pairs that send nothing more, while no device says
// so: the daemons find out.
func TestSilentQueuePairs(t *testing.T) {
	devices, _ := requireLinks(t)
	runWithOutages(t, devices, outage{reason: "has acknowledged nothing for", strike: func(t *testing.T, c *testcluster.Cluster, random *rand.Rand, pause func(time.Duration) bool) {
		hurt(t, c, random, verbstest.Draining)
		pause(silentPause)
	}})
}

// hurt brings the queue pairs of one of the daemons into a state.
func hurt(t *testing.T, c *testcluster.Cluster, random *rand.Rand, to verbstest.State) {
	if _, err := verbstest.HurtQueuePairs(c.Daemons[random.IntN(len(c.Daemons))].PID(), to); err != nil {
		t.Error(err)
	}
}

// runWithOutages runs each kernel again and again, with TLS and without, until outages have broken
// queue pairs.
func runWithOutages(t *testing.T, devices [2]string, what outage) {
	for _, security := range securities {
		for _, k := range kernels {
			t.Run(security.name+"/"+k.name, func(t *testing.T) {
				flags := append([]string{"--transport", "rdma", "--dead-after", "1m"}, security.flags(t)...)
				var seen linkCounts
				runs := 0
				for ; runs < 2 || seen.noticed == 0 && runs < linkRuns; runs++ {
					if !runOnLinks(t, k.name, uint64(runs), devices, flags, what, &seen) {
						return
					}
				}
				t.Logf("%d runs of %s were right, with %d outages, by which queue pairs have failed %d times (%q: %d); %d pages came by RDMA and %d by TCP",
					runs, k.name, seen.outages, seen.failed, what.reason, seen.noticed, seen.byLink, seen.pages-seen.byLink)
				if seen.failed == 0 || seen.noticed == 0 || seen.byLink == 0 {
					t.Error("no queue pair has worked and failed as was meant, so this has shown nothing")
				}
			})
		}
	}
}

// linkCounts is what happened in the runs of a kernel.
type linkCounts struct {
	outages       uint64
	failed        uint64 // queue pairs, at either end
	noticed       int    // how often a daemon has given the reason that was expected
	pages, byLink uint64 // that have come to the nodes
}

// runOnLinks runs a kernel once, adds what happened to seen, and reports whether the result was
// right.
func runOnLinks(t *testing.T, kernel string, seed uint64, devices [2]string, flags []string, what outage, seen *linkCounts) bool {
	t.Helper()
	// A subtest of its own, so that the daemons of this run end with it.
	return t.Run(fmt.Sprint(seed), func(t *testing.T) {
		c := testcluster.NewLAN(len(devices)).Form(t, func(place int) []string { return slices.Concat(flags, []string{"--rdma-device", devices[place]}) })
		for _, d := range c.Daemons {
			d.AwaitLog(t, "is reached by RDMA")
		}
		compute(t, c, len(devices), kernel, linkSizes[kernel], func(over <-chan struct{}) {
			random := rand.New(rand.NewPCG(seed, 6))
			pause := func(most time.Duration) bool {
				select {
				case <-over:
					return false
				case <-time.After(time.Duration(random.Int64N(int64(most)))):
					return true
				}
			}
			for pause(linkUp) {
				what.strike(t, c, random, pause)
				seen.outages++
			}
		})
		for node, d := range c.Daemons {
			p := join(t, c, node, node, len(devices))
			seen.failed += counter(t, p, "rdma_links_failed")
			seen.noticed += strings.Count(d.Errors(), what.reason)
			seen.pages += counter(t, p, "pages_received")
			seen.byLink += counter(t, p, "rdma_pages_received")
			p.Succeed(t)
		}
	})
}
