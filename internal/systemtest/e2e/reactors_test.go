package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// region is that of tests of several reactors: small, so that a stripe has the 256 pages that it
// has at least, and an allocation many stripes.
const region = "64MiB"

// partedStripe is how many pages of parted's one reactor serves in a row.
const partedStripe = 4

// parted is a program that allocates and frees memory of several stripes again and again. Several
// goroutines of each rank add to words of all stripes, under a lock for each stripe.
var parted = testcluster.Define("parted", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	const stripe, stripes, goroutines = partedStripe, 5, 3
	rounds, err := strconv.Atoi(s.Args[0])
	for round := 0; err == nil && round < rounds; round++ {
		words, failed := dsm.Alloc[uint64](s.Ctx, c, "words", stripes*stripe*c.PageBytes()/8)
		if failed != nil {
			return failed
		}
		word := func(n, page, at int) *uint64 { return &words[(n*stripe+page)*c.PageBytes()/8+at] }
		for page := range stripes * stripe {
			if v := words[page*c.PageBytes()/8+1+c.Rank()]; v != 0 {
				return fmt.Errorf("rank %d, round %d: page %d begins with %d", c.Rank(), round, page, v)
			}
		}
		errs := make([]error, goroutines)
		var all sync.WaitGroup
		for g := range goroutines {
			all.Go(func() {
				for n := range stripes {
					m := dsm.NewMutex(c, fmt.Sprint("stripe ", n))
					errs[g] = errors.Join(errs[g], m.Lock(s.Ctx))
					*word(n, 1, 0)++
					*word((n+1)%stripes, 2, 8)++ // of another reactor, under the same lock
					errs[g] = errors.Join(errs[g], m.Unlock())
				}
			})
		}
		all.Wait()
		for page := c.Rank(); page < stripes*stripe; page += c.Size() {
			words[page*c.PageBytes()/8+1+c.Rank()] = 1 // for who allocates next
		}
		err = errors.Join(errors.Join(errs...), c.Barrier(s.Ctx))
		for n := range stripes {
			for _, got := range []uint64{*word(n, 1, 0), *word((n+1)%stripes, 2, 8)} {
				if want := uint64(goroutines * c.Size()); got != want {
					err = errors.Join(err, fmt.Errorf("rank %d, round %d: stripe %d has %d, want %d", c.Rank(), round, n, got, want))
				}
			}
		}
		err = errors.Join(err, c.Barrier(s.Ctx), dsm.Free(s.Ctx, c, words), c.Barrier(s.Ctx))
	}
	return errors.Join(err, c.Close())
})

// requireSeveral skips a test where daemons cannot have several reactors.
func requireSeveral(t *testing.T) {
	t.Helper()
	uffdtest.Require(t)
	if strings.Contains(os.Getenv(testcluster.FlagsEnv), "sigsegv") {
		t.Skip("several reactors need userfaultfd")
	}
}

// TestReactors: programs find what they have written, and zeros where nobody has, whatever the
// number of nodes, of reactors and of ranks at a node.
func TestReactors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ nodes, reactors string }{{"1", "2"}, {"2", "2"}, {"2:2", "4"}, {"3", "2"}} {
		uffdtest.Require(t)
		shape := []string{"--stripe", itoa(partedStripe), "-n", test.nodes, "--reactors", test.reactors}
		job := testcluster.Job{Nodes: 1, Flags: shape, Program: parted, Args: []string{itoa(unlessShort(5, 2))}}
		if log := job.Succeed(t).Errors(); log != "" {
			t.Errorf("%v: the job printed %q", test, log)
		}
	}
}

// TestReactorsEnd: a job whose daemons have several reactors ends as others do, and nothing is left
// of it.
func TestReactorsEnd(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	for _, test := range []struct {
		name   string
		end    func(job *testcluster.Process, mark string) // once all have met
		status int
	}{
		{"Ctrl-C", func(job *testcluster.Process, _ string) { job.SignalAlone(syscall.SIGINT) }, 128 + int(syscall.SIGINT)},
		{"a daemon dies", func(_ *testcluster.Process, mark string) { killOne(t, mark, "serve") }, 70},
		{"a program is killed", func(_ *testcluster.Process, mark string) { killOne(t, mark, "program wait") }, 128 + int(syscall.SIGKILL)},
	} {
		mark := "DSMD_TEST_JOB=" + strings.ReplaceAll(t.Name()+test.name, " ", "-")
		job := testcluster.Job{Nodes: 2, Env: []string{mark}, Program: member, Args: []string{"wait"}, Flags: []string{"--reactors", "3"}}.Run(t)
		met(t, job, 2)
		test.end(job, mark)
		if status := job.Wait(t); status != test.status {
			t.Errorf("%s: the job ended with status %d, want %d:\n%s", test.name, status, test.status, job.Errors())
		}
		nothingLeft(t, mark)
	}
}

// TestReactorsLoss: the others hear which node is lost when its daemon is killed, and a program
// that is killed costs nobody anything: its rank, and what it had in all stripes, is there for
// another.
func TestReactorsLoss(t *testing.T) {
	t.Parallel()
	c := serve(t, 2, 3, "--reactors", "2", "--region", region)
	far, victim, heir := join(t, c, 0, 0, 3), join(t, c, 1, 1, 3), join(t, c, 1, 2, 3)
	for _, p := range []*testcluster.Process{far, victim, heir} {
		p.Do(t, "ok", "alloc data 600")
	}
	far.Do(t, "ok", "fill data 1")
	victim.Do(t, "ok", "fill data 2")
	victim.Do(t, "ok", "lock door")
	victim.Kill(t)
	far.Do(t, "owner died: rank 1", "lock door")
	heir.Do(t, "ok", "check data 2")
	far.Do(t, "ok", "check data 2")
	again := join(t, c, 1, 1, 3)
	again.Do(t, "ok", "alloc data 600")
	again.Do(t, "ok", "fill data 3")
	far.Do(t, "ok", "check data 3")
	c.Daemons[0].Kill(t)
	for _, p := range []*testcluster.Process{heir, again} {
		if status := p.Wait(t); status != 70 || !strings.Contains(p.Errors(), "node 0 is lost") {
			t.Errorf("when node 0 is lost, a program of node 1 ends with status %d and says %q", status, p.Errors())
		}
	}
	c.Daemons[1].Wait(t)
	if log := c.Daemons[1].Errors(); strings.Count(log, "the cluster is broken") != 1 {
		t.Errorf("the daemon of node 1 says more than once, or not at all, that the cluster is broken:\n%s", log)
	}
}

// TestReactorsSurvive: daemons of several reactors go on without those that are lost, with backups
// of pages of all of them; and they leave, and come back.
func TestReactorsSurvive(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	flags := []string{"--survive", "--reactors", "3", "--stripe", "1"}
	t.Run("Replicated", func(t *testing.T) {
		t.Parallel()
		replicated(t, flags...)
	})
	t.Run("RollingRestart", func(t *testing.T) {
		t.Parallel()
		rollingRestart(t, flags...)
	})
}

// TestReactorsOfJobs: two jobs on one cluster have memory of their own.
func TestReactorsOfJobs(t *testing.T) {
	t.Parallel()
	c := serve(t, 2, 2, "--reactors", "2", "--region", region)
	jobs := map[string][]*testcluster.Process{}
	for _, job := range []string{"red", "blue"} {
		for node := range 2 {
			p := c.OfJob(t, console, node, job, 2)
			p.Hear(t)
			p.Do(t, "ok", "alloc data 600")
			jobs[job] = append(jobs[job], p)
		}
	}
	for i, job := range []string{"red", "blue"} {
		jobs[job][i].Do(t, "ok", "fill data %d", 100*(i+1))
	}
	for i, job := range []string{"red", "blue"} {
		jobs[job][1-i].Do(t, "ok", "check data %d", 100*(i+1))
		for _, p := range jobs[job] {
			p.Succeed(t)
		}
	}
}

// TestReactorsDiffer: nodes of different numbers of reactors do not come together, and both sides
// say why, in a cluster whose nodes are listed and in one whose nodes find each other.
func TestReactorsDiffer(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	for i, reactors := range [][2]string{{"1", "2"}, {"2", "1"}, {"2", "4"}} {
		lan := testcluster.NewLAN(2)
		peers := lan.IP(0) + ":7400," + lan.IP(1) + ":7400"
		var daemons [2]*testcluster.Process
		for node := range daemons {
			args := []string{"serve", "--peers", peers, "--id", itoa(node), "--socket", lan.Socket(node), "--reactors", reactors[node], "--log-level", "debug"}
			if i > 1 {
				args = []string{"serve", "--nodes", "2", "--listen", lan.IP(node) + ":7400", "--join", lan.IP(0), "--socket", lan.Socket(node), "--reactors", reactors[node]}
			}
			daemons[node] = testcluster.Start(t, testcluster.Command{Name: fmt.Sprintf("daemon %d of %v", node, reactors), Path: testcluster.Dsmd(t), Args: args})
			if node == 0 && i > 1 {
				daemons[0].AwaitLog(t, "gossiping") // it is the one that is joined
			}
		}
		for node, d := range daemons {
			want := fmt.Sprintf("it runs with --reactors %s, this node with %s", reactors[1-node], reactors[node])
			if i > 1 {
				want = fmt.Sprintf("its number of reactors (--reactors) is %s, this node's is %s", reactors[1-node], reactors[node])
			}
			d.AwaitLog(t, want)
		}
		if status := daemons[1].Wait(t); status == 0 {
			t.Errorf("node 1 of %v has ended with status 0", reactors)
		}
	}
}

// TestReactorsOfProcessors: nodes that find each other have as many reactors as each of them can.
func TestReactorsOfProcessors(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	for second, want := range map[string]int{"auto": 2, "sigsegv": 1} {
		lan := testcluster.NewLAN(2)
		var daemons [2]*testcluster.Process
		for node, processors := range []string{"GOMAXPROCS=64", "GOMAXPROCS=32"} {
			trap := "auto"
			if node == 1 {
				trap = second
			}
			daemons[node] = testcluster.Start(t, testcluster.Command{
				Name: fmt.Sprintf("daemon %d, the second one traps by %s", node, second), Path: testcluster.Dsmd(t), Env: []string{processors},
				Args: []string{"serve", "--nodes", "2", "--listen", lan.IP(node) + ":7400", "--join", lan.IP(0), "--socket", lan.Socket(node), "--trap", trap},
			})
		}
		for node, d := range daemons {
			d.AwaitLog(t, "serving")
			var status []struct{ Reactors int }
			said := dsmdSays(t, "status", "--json", "--socket", lan.Socket(node))
			if err := json.Unmarshal([]byte(said), &status); err != nil {
				t.Fatal(err)
			}
			if len(status) != 1 || status[0].Reactors != want {
				t.Errorf("node %d, the second one traps by %s: %+v, want %d reactors", node, second, status, want)
			}
		}
	}
}

// TestReactorsSeen: what a daemon says of itself is what all its reactors have done, to whoever
// asks: as many faults and pages as with one reactor that does the same.
func TestReactorsSeen(t *testing.T) {
	t.Parallel()
	const pages = 700
	seen := map[int]map[string]float64{}
	for _, reactors := range []int{1, 3} {
		c := serve(t, 1, 1, "--reactors", itoa(reactors), "--region", region, "--predict", "off", "--metrics", "127.0.0.1:0")
		p := join(t, c, 0, 0, 1)
		p.Do(t, "ok", "alloc data %d", pages)
		p.Do(t, "ok", "fill data 5")
		p.Do(t, "ok", "prefetch data 1")
		var status []struct {
			Counters    map[string]float64
			Allocations []struct {
				Name       string
				OwnedBytes int `json:"owned_bytes"`
			}
			Programs []struct{ Rank int }
		}
		said := dsmdSays(t, "status", "--json", "--socket", c.Socket(0))
		if err := json.Unmarshal([]byte(said), &status); err != nil || len(status) != 1 {
			t.Fatalf("dsmd status says %s: %v", said, err)
		}
		s := status[0]
		if len(s.Programs) != 1 || len(s.Allocations) != 1 || s.Allocations[0].OwnedBytes != pages*4096 {
			t.Errorf("%d reactors: dsmd status has programs %v, allocations %+v", reactors, s.Programs, s.Allocations)
		}
		scraped := scrape(t, c.Daemons[0])
		for _, name := range []string{"zero_installs", "prefetch_calls", "name_calls", "known_objects", "programs", "members", "programs_seen", "pages_sent"} {
			metric := "dsmd_" + name
			if !strings.Contains("known_objects programs members", name) {
				metric += "_total"
			}
			if own := float64(counter(t, p, name)); own != s.Counters[name] || own != scraped[metric] {
				t.Errorf("%d reactors: %s is %v to the program, %v to dsmd status, %v to a scrape", reactors, name, own, s.Counters[name], scraped[metric])
			}
		}
		if n := scraped["dsmd_fault_seconds_count"]; n == 0 {
			t.Errorf("%d reactors: the histogram of faults is empty", reactors)
		}
		seen[reactors] = s.Counters
		p.Succeed(t)
	}
	for _, name := range []string{"zero_installs", "known_objects", "prefetch_calls", "prefetched_pages", "pages_sent", "programs", "members"} {
		if one, three := seen[1][name], seen[3][name]; one != three {
			t.Errorf("%s is %v with three reactors, and %v with one", name, three, one)
		}
	}
}

// dsmdSays runs dsmd.
func dsmdSays(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testcluster.Patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, testcluster.Dsmd(t), args...).Output()
	if err != nil {
		t.Fatalf("dsmd %q: %v", args, err)
	}
	return string(out)
}

// scrape reads the metrics of a daemon, whose log says where they are.
func scrape(t *testing.T, daemon *testcluster.Process) map[string]float64 {
	t.Helper()
	line := daemon.AwaitLog(t, "metrics")
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	r, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, line := range strings.Split(string(body), "\n") {
		if at := strings.LastIndexByte(line, ' '); at > 0 && line[0] != '#' {
			values[line[:at]], _ = strconv.ParseFloat(line[at+1:], 64)
		}
	}
	return values
}
