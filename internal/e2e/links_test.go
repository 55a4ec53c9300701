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

	"dsmd/internal/e2e/testcluster"
)

// linkSizes are those of the kernels in the test bed, which is an emulated machine.
var linkSizes = map[string]int{"sor": 256, "ocean": 34}

const (
	// linkDown and linkUp are for how long at most a link is down at a time, and up. Up is longer, because it takes a while to make the next queue pair.
	linkDown, linkUp = time.Second / 2, 2 * time.Second
	// linkRuns is after how many runs at most a queue pair must have failed: none does unless something is sent while the link is down.
	linkRuns = 6
)

// requireLinks returns the two RDMA devices of the test bed, and the network interface of one of them, whose link may be taken down.
func requireLinks(t *testing.T) (devices [2]string, netdev string) {
	t.Helper()
	devices = [2]string{os.Getenv("RDMA_VM_DEV"), os.Getenv("RDMA_VM_DEV2")}
	if devices[1] == "" {
		if slices.Contains(strings.Split(os.Getenv(testcluster.RequireEnv), ","), "rdma-link") {
			t.Fatal("the environment names no second RDMA device whose link may be taken down")
		}
		t.Skip("needs two RDMA devices whose links may be taken down; transport/rdma/testbed/run makes a machine that has them")
	}
	text, err := os.ReadFile(filepath.Join("/sys/class/infiniband", devices[1], "ports/1/gid_attrs/ndevs", os.Getenv("RDMA_VM_GID_INDEX")))
	if err != nil {
		t.Fatal(err)
	}
	return devices, strings.TrimSpace(string(text))
}

// TestCutLinks runs whole programs on two daemons that must reach each other by RDMA, from one device to another, while the link between these goes down
// and up: the results are exact, with TLS and without.
func TestCutLinks(t *testing.T) {
	devices, netdev := requireLinks(t)
	for _, security := range securities {
		for _, k := range kernels {
			t.Run(security.name+"/"+k.name, func(t *testing.T) {
				flags := append([]string{"--transport", "rdma", "--dead-after", "1m"}, security.flags(t)...)
				var seen linkCounts
				runs := 0
				for ; runs < 2 || seen.failed == 0 && runs < linkRuns; runs++ {
					if !runWithOutages(t, k.name, uint64(runs), devices, netdev, flags, &seen) {
						return
					}
				}
				t.Logf("%d runs of %s were right, with %d outages, by which queue pairs have failed %d times; %d pages came by RDMA and %d by TCP",
					runs, k.name, seen.outages, seen.failed, seen.byLink, seen.pages-seen.byLink)
				if seen.failed == 0 || seen.byLink == 0 {
					t.Error("no queue pair has worked and failed, so this has shown nothing")
				}
			})
		}
	}
}

// linkCounts is what happened in the runs of a kernel.
type linkCounts struct {
	outages       uint64
	failed        uint64 // queue pairs, at either end
	pages, byLink uint64 // that have come to the nodes
}

// runWithOutages runs a kernel once, adds what happened to seen, and says whether the result was right.
func runWithOutages(t *testing.T, kernel string, seed uint64, devices [2]string, netdev string, flags []string, seen *linkCounts) bool {
	t.Helper()
	// A subtest of its own, so that the daemons of this run end with it.
	return t.Run(fmt.Sprint(seed), func(t *testing.T) {
		c := testcluster.NewLAN(len(devices)).Form(t, func(place int) []string { return slices.Concat(flags, []string{"--rdma-device", devices[place]}) })
		for _, d := range c.Daemons {
			d.AwaitLog(t, "is reached by RDMA")
		}
		setLink := func(state string) {
			if said, err := exec.Command("ip", "link", "set", netdev, state).CombinedOutput(); err != nil {
				t.Errorf("ip link set %s %s: %v\n%s", netdev, state, err, said)
			}
		}
		compute(t, c, len(devices), kernel, linkSizes[kernel], func(over <-chan struct{}) {
			random := rand.New(rand.NewPCG(seed, 6))
			await := func(most time.Duration) bool {
				select {
				case <-over:
					return false
				case <-time.After(time.Duration(random.Int64N(int64(most)))):
					return true
				}
			}
			for await(linkUp) {
				setLink("down")
				seen.outages++
				await(linkDown)
				setLink("up")
			}
		})
		for node := range devices {
			p := join(t, c, node, node, len(devices))
			seen.failed += counter(t, p, "rdma_links_failed")
			seen.pages += counter(t, p, "pages_received")
			seen.byLink += counter(t, p, "rdma_pages_received")
			p.Succeed(t)
		}
	})
}
