package nemesis

import (
	"os"
	"strings"
	"testing"
	"time"

	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// TestStrangerIsSeen: a stranger is turned away, and nobody notices. One who knows the secret comes
// in, as anybody would if nobody asked for it, and the judge says so.
func TestStrangerIsSeen(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	c := newCampaign(t, Plan{Seed: 1, Hosts: 2, Workloads: []*Workload{registerWorkload}, Progress: time.Minute})
	c.calm()
	c.killDaemonOf(c.hosts[1])
	c.calm()
	if what, mend := (stranger{}).strike(c); mend == nil || !strings.Contains(what, "on bob as bob") {
		t.Fatalf("a place is free, and %q", what)
	}
	turnedAway := func() bool { return strings.Contains(c.hosts[0].daemon.Errors(), "--secret-file") }
	if !c.within(c.Progress, turnedAway) {
		t.Fatal("nobody has turned the stranger away")
	}
	c.watch()
	if len(c.wrong) > 0 {
		t.Fatalf("the stranger was turned away, and %v", c.wrong)
	}
	c.evict(c.hosts[1])
	if what, mend := (stranger{secret: os.Getenv(testcluster.SecretEnv)}).strike(c); mend == nil {
		t.Fatalf("a place is free, and %q", what)
	}
	if c.within(c.Progress, func() bool { c.watch(); return false }); len(c.wrong) == 0 || !strings.Contains(c.wrong[0].Error(), "has come in") {
		t.Errorf("that a stranger has come in is noticed as %v", c.wrong)
	}
}
