package nemesis

import (
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

var (
	span      = flag.Duration("nemesis.for", 0, "how long faults are made; 0: as long as it takes to see each kind")
	seedFlag  = flag.Uint64("nemesis.seed", 0, "of what happens when and to whom; 0: a fresh one")
	faults    = flag.String("nemesis.faults", Names(Brief), "kinds of faults, or all")
	works     = flag.String("nemesis.workloads", "register,counter,locks,sor", "what programs do")
	hostsFlag = flag.Int("nemesis.hosts", 3, "machines")
	reactors  = flag.Int("nemesis.reactors", 0, "of each daemon; 0: another number in each life of the cluster")
	progress  = flag.Duration("nemesis.progress", 10*time.Second, "within which everybody must get on after the last fault")
)

func TestMain(m *testing.M) {
	os.Setenv("GOTRACEBACK", "all") // stacks of all threads for what hangs
	testcluster.Main(m)
}

// TestNemesis runs all workloads under all faults.
func TestNemesis(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	plan := Plan{Seed: *seedFlag, Span: *span, Hosts: *hostsFlag, Reactors: *reactors, Progress: *progress}
	if strings.Contains(os.Getenv(testcluster.FlagsEnv), "sigsegv") {
		plan.Reactors = 1 // several need userfaultfd
	}
	for plan.Seed == 0 {
		plan.Seed = rand.Uint64()
	}
	t.Logf("the seed is %d", plan.Seed)
	if plan.Span == 0 {
		plan.Span = 8 * time.Second
		if testing.Short() {
			plan.Span = 6 * time.Second
		}
	}
	var err error
	if plan.Faults, err = Choose(*faults); err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(*works, ",") {
		i := slices.IndexFunc(workloads, func(w *Workload) bool { return w.Name == name })
		if i < 0 {
			t.Fatalf("-nemesis.workloads: there is no %q", name)
		}
		plan.Workloads = append(plan.Workloads, workloads[i])
	}
	Run(t, plan)
}

// TestNegligence: a thread that hangs after the last fault, a program that ends by itself and a
// daemon that does are noticed, and what hangs shows its stacks.
func TestNegligence(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	c := newCampaign(t, Plan{Seed: 1, Hosts: 2, Workloads: []*Workload{registerWorkload}, Progress: time.Minute})
	c.calm()
	c.watch()
	if len(c.wrong) > 0 {
		t.Fatalf("nothing was done to anybody, and %v", c.wrong)
	}
	ann := c.hosts[0].programs[0]
	// The stopped daemon's kernel answers for it. So it is not lost, and nobody gets on without it,
	// however long the limit takes on a busy machine.
	if _, mend := (pauseDaemon{}).strike(c); mend == nil {
		t.Fatal("there is no daemon to pause")
	}
	c.Progress = 2 * time.Second
	c.calm()
	if len(c.wrong) == 0 || !strings.Contains(c.wrong[0].Error(), "has got nothing done within 2s") {
		t.Errorf("that nobody gets on is noticed as %v", c.wrong)
	}
	c.wrong = nil
	testcluster.Eventually(t, "goroutines are shown", func() bool {
		return strings.Contains(ann.Errors(), "nemesis.(*Workload).workAs")
	})
	for _, p := range c.logs {
		p.Wait(t) // it has ended of showing its stacks
	}
	c.watch()
	for _, p := range c.logs {
		if !strings.Contains(errors.Join(c.wrong...).Error(), p.name+" has ended with status 2 though nobody") {
			t.Errorf("that %s has ended is noticed as %v", p.name, c.wrong)
		}
	}
}
