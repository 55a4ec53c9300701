package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// TestIdleDaemonsSleep: daemons that have nothing to do are seldom woken, whether they were told of
// each other or gossip. What counts is how often their threads run, not for how long: that is the
// machine's. With several reactors each looks after connections of its own, and is woken for that.
func TestIdleDaemonsSleep(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	for _, test := range []struct {
		name    string
		cluster *testcluster.Cluster
		most    int // runs of threads a second; what they do takes about half as many
	}{
		{"told", testcluster.Serve(t, 2, 2, "--reactors", "1"), 25},
		// They probe each other, and are calm so long after they have met.
		{"gossiping", testcluster.NewLAN(2).Serve(t, "--dead-after", testcluster.DeadAfter.String(), "--reactors", "1"), 60},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			const window = 5 * time.Second
			awake := slices.Clone(test.cluster.Daemons) // until each has slept once
			testcluster.Eventually(t, fmt.Sprintf("each daemon sleeps for %v", window), func() bool {
				var before []int
				for _, d := range awake {
					before = append(before, runsOf(t, d.PID()))
				}
				time.Sleep(window)
				var still []*testcluster.Process
				for i, d := range awake {
					runs := runsOf(t, d.PID()) - before[i]
					t.Logf("process %d: %d runs in %v", d.PID(), runs, window)
					if runs > test.most*int(window/time.Second) {
						still = append(still, d)
					}
				}
				awake = still
				return len(awake) == 0
			})
		})
	}
}

// runsOf is how many times the threads of a process were given a core.
func runsOf(t *testing.T, pid int) (runs int) {
	t.Helper()
	threads, err := procfs.AllThreads(pid)
	for _, thread := range threads {
		stat, _ := thread.Schedstat() // none: the thread has ended
		runs += int(stat.RunTimeslices)
	}
	if runs == 0 {
		t.Fatalf("the threads of process %d, %v, were never given a core: %v", pid, threads, err)
	}
	return runs
}
