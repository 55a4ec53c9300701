package fabric

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	patient "dsmd/internal/patience"
)

// TestMonitorIsFound: the thread that is taken for the runtime's monitor wakes up again and again
// while somebody computes, which no other does; and it is scheduled as the others when a
// measurement is over, by one who may change that.
func TestMonitorIsFound(t *testing.T) {
	monitor := monitorThread()
	if monitor == 0 || monitor == os.Getpid() {
		t.Fatalf("the monitor's thread is %d", monitor)
	}
	before := sleeps(t, monitor)
	slept := 0
	// On a busy machine the monitor gets a core now and then.
	for began := time.Now(); slept < 5 && time.Since(began) < patient.Or(20*time.Second); slept = sleeps(t, monitor) - before {
		for computing := time.Now(); time.Since(computing) < 10*time.Millisecond; {
		}
	}
	if slept < 5 {
		t.Errorf("thread %d has slept %d times while somebody computed", monitor, slept)
	}
	restore := Quiet()
	if policy := policyOf(t, monitor); policy != unix.SCHED_IDLE {
		t.Errorf("the monitor's policy is %d during a measurement", policy)
	}
	restore()
	if policy := policyOf(t, monitor); policy != unix.SCHED_NORMAL && os.Geteuid() == 0 {
		t.Errorf("the monitor's policy is %d after a measurement", policy)
	}
}

func sleeps(t *testing.T, thread int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", thread))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(string(regexp.MustCompile(`(?m)^voluntary_ctxt_switches:\s*(\d+)$`).FindSubmatch(b)[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func policyOf(t *testing.T, thread int) uint32 {
	attr, err := unix.SchedGetAttr(thread, 0)
	if err != nil {
		t.Fatal(err)
	}
	return attr.Policy
}
