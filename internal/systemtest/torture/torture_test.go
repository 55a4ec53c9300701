package torture

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"dsmd/internal/sigsegv"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

var (
	span     = flag.Duration("torture.for", 2*time.Second, "how long each back end is tortured")
	only     = flag.String("torture.trap", "", "torture this back end only: uffd, sigsegv, or reactors, which is uffd with several reactors")
	reactors = flag.Int("torture.reactors", 3, "how many that is")
	seedFlag = flag.Uint64("torture.seed", 0, "of what goroutines do and when processes come and go; 0: a fresh one")
	pins     = flag.Bool("torture.pins", true, "pin words, too")
	nodes    = flag.Int("torture.nodes", 2, "daemons")
)

const (
	stayersPerNode = 2 // processes that are there all the time
	guestsPerNode  = 1 // ranks whose processes come and go
	// tick is how often the test looks after its processes.
	tick = 10 * time.Millisecond
	// restEvery is how long torture goes on between two rests, of which the first ends the warm-up.
	// Short runs have two, the second at their end.
	restEvery = 30 * time.Second
	// stayAtMost is how long a guest stays. The shortest stays end before it has joined.
	stayAtMost = 2 * time.Second
	// stopAtMost is how long a process is stopped by SIGSTOP.
	stopAtMost = 30 * time.Millisecond
)

func TestMain(m *testing.M) {
	// What a hang is reported with: the stacks of all threads, also of those that are in a fault.
	os.Setenv("GOTRACEBACK", "crash")
	testcluster.Main(m)
}

// TestTorture tortures each back end.
func TestTorture(t *testing.T) {
	t.Parallel()
	seed := *seedFlag
	for seed == 0 {
		seed = rand.Uint64()
	}
	known := false
	for trap, x := range map[string]struct {
		require func(*testing.T)
		flags   []string
	}{
		"uffd":     {func(t *testing.T) { uffdtest.Require(t) }, []string{"--trap", "uffd"}},
		"reactors": {func(t *testing.T) { uffdtest.Require(t) }, []string{"--trap", "uffd", "--reactors", strconv.Itoa(*reactors), "--stripe", "1"}},
		"sigsegv": {func(t *testing.T) {
			if err := sigsegv.Available(); err != nil {
				t.Skip(err)
			}
		}, []string{"--trap", "sigsegv"}},
	} {
		known = known || *only == trap
		if *only != "" && *only != trap {
			continue
		}
		t.Run(trap, func(t *testing.T) {
			x.require(t)
			t.Logf("to do it again: -torture.trap %s -torture.seed %d -torture.for %v -torture.nodes %d", trap, seed, *span, *nodes)
			newCampaign(t, x.flags, *nodes, seed).run(*span)
		})
	}
	if *only != "" && !known {
		t.Fatalf("-torture.trap %s: there are uffd, reactors and sigsegv", *only)
	}
}

// campaign is one torture.
type campaign struct {
	t       *testing.T
	c       *testcluster.Cluster
	r       *rand.Rand
	stall   time.Duration // without a sign of life of a process it hangs
	stay    []*victim
	guests  []*guest
	killed  int
	left    int
	stopped int
	first   []usage // of the daemons and then of those who stay, at the first rest
	known   []uint64
}

// victim is a process, and when it was last seen alive.
type victim struct {
	*testcluster.Process
	signs int
	since time.Time
}

// guest is a rank whose processes come and go.
type guest struct {
	rank    int
	victim  *victim // nil: nobody is there
	until   time.Time
	leaving bool // was asked to leave
	visits  int
}

// leavesOften is how many visits of a guest there are to one that ends in order instead of by
// SIGKILL.
const leavesOften = 3

func newCampaign(t *testing.T, flags []string, nodes int, seed uint64) *campaign {
	stay := nodes * stayersPerNode
	ranks := stay + nodes*guestsPerNode
	g := &campaign{
		t: t, c: testcluster.Serve(t, nodes, ranks, append(flags, "--log-level", "error")...),
		r: rand.New(rand.NewPCG(seed, 0)), stall: testcluster.Patience,
	}
	for rank := range stay {
		g.stay = append(g.stay, g.start(rank))
	}
	for rank := stay; rank < ranks; rank++ {
		g.guests = append(g.guests, &guest{rank: rank})
	}
	for _, v := range g.stay {
		g.answer(v, "begun")
	}
	return g
}

// start starts a process of a rank, whose node follows from the rank.
func (g *campaign) start(rank int) *victim {
	p := g.c.Program(g.t, program, rank%len(g.c.Daemons), rank, strconv.Itoa(len(g.c.Daemons)*stayersPerNode), strconv.FormatUint(g.r.Uint64(), 10), strconv.FormatBool(*pins))
	return &victim{Process: p, since: time.Now()}
}

// answer waits for a line that begins in a certain way and is not a sign of life.
func (g *campaign) answer(v *victim, prefix string) string {
	g.t.Helper()
	for {
		line := v.Hear(g.t)
		v.since = time.Now()
		switch {
		case line == alive:
		case strings.HasPrefix(line, prefix):
			return line
		default:
			g.t.Fatalf("a process said %q, %q was due", line, prefix)
		}
	}
}

// run is the whole torture.
func (g *campaign) run(span time.Duration) {
	// The first rest is what the later ones are compared with, so there are two at least.
	begun := time.Now()
	end := begun.Add(span)
	g.torment(min(restEvery, span/2))
	g.rest()
	// What happens to whom is drawn tick by tick, and a busy machine has fewer of them in a span.
	for again := true; again; again = time.Now().Before(end) || !g.varied() && time.Since(begun) < span+testcluster.Patience {
		g.torment(min(restEvery, max(span/4, time.Until(end))))
		g.rest()
	}
	for _, v := range g.stay {
		v.Say(g.t, "leave")
		v.Succeed(g.t)
	}
	if !g.varied() {
		g.t.Errorf("%d processes were killed, %d left and %d were stopped; some of each were meant to be", g.killed, g.left, g.stopped)
	}
}

// varied reports whether all has happened that is meant to. With one guest some of it may never.
func (g *campaign) varied() bool {
	return len(g.guests) < 2 || g.killed > 0 && g.left > 0 && g.stopped > 0
}

// torment lets everything happen for a while. When it returns no guest is there.
func (g *campaign) torment(span time.Duration) {
	for _, v := range g.stay {
		v.since = time.Now()
	}
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for end, over := time.Now().Add(span), false; !over; {
		<-ticks.C
		over = time.Now().After(end)
		for _, guest := range g.guests {
			g.lookAfter(guest, over)
			over = over && guest.victim == nil
		}
		g.stopSomebody()
		if silent := g.silent(); silent != nil {
			g.t.Fatal(g.describeHang(silent))
		}
	}
}

// lookAfter has guests come, leave and be killed. When all is to end it lets nobody in.
func (g *campaign) lookAfter(guest *guest, over bool) {
	switch v := guest.victim; {
	case v == nil:
		if !over && g.r.IntN(10) == 0 {
			stay := time.Duration(g.r.Int64N(int64(stayAtMost)))
			guest.victim, guest.until, guest.leaving = g.start(guest.rank), time.Now().Add(stay), false
			guest.visits++
		}
	case !v.Running():
		if status := v.Wait(g.t); status != 0 || !guest.leaving {
			g.t.Fatalf("the process of rank %d has ended with status %d", guest.rank, status)
		}
		g.left++
		guest.victim = nil
	case guest.leaving || !over && time.Now().Before(guest.until):
	case (guest.visits+guest.rank-len(g.stay))%leavesOften == 0:
		// of two guests the first is asked to leave, the second killed
		v.Say(g.t, "leave")
		guest.leaving = true
	default:
		v.Kill(g.t)
		g.killed++
		guest.victim = nil
	}
}

// stopSomebody stops a process for a moment, now and then.
func (g *campaign) stopSomebody() {
	if g.r.IntN(20) > 0 {
		return
	}
	v := g.present()[g.r.IntN(len(g.present()))]
	v.Signal(syscall.SIGSTOP)
	time.Sleep(time.Duration(g.r.Int64N(int64(stopAtMost))))
	v.Signal(syscall.SIGCONT)
	g.stopped++
}

// present are the processes that are here.
func (g *campaign) present() []*victim {
	list := slices.Clone(g.stay)
	for _, guest := range g.guests {
		if guest.victim != nil {
			list = append(list, guest.victim)
		}
	}
	return list
}

// silent is a process that has hung or ended, or nil.
func (g *campaign) silent() *victim {
	for _, v := range g.present() {
		if signs := strings.Count(v.Output(), alive); signs > v.signs {
			v.signs, v.since = signs, time.Now()
		}
		if time.Since(v.since) > g.stall {
			return v
		}
	}
	for rank, v := range g.stay {
		if !v.Running() {
			g.t.Fatalf("the process of rank %d has ended with status %d", rank, v.Wait(g.t))
		}
	}
	return nil
}

// describeHang finds out all that it can about a hang. All processes end of it, and their
// goroutines are in what they have printed, which is shown when the test fails.
func (g *campaign) describeHang(v *victim) string {
	g.t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "a worker of process %d has got nothing done for %v; the goroutines of all follow\n", v.PID(), g.stall)
	for node := range g.c.Daemons {
		out, err := exec.Command(testcluster.Dsmd(g.t), "status", "--json", "--socket", g.c.Socket(node)).CombinedOutput()
		fmt.Fprintf(&text, "node %d (%v):\n%s", node, err, out)
	}
	// The end of one must not end another before that has said where it is. So all are stopped when
	// they are asked, and the daemons are asked last.
	for _, group := range [][]*victim{g.present(), g.daemons()} {
		for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGQUIT, syscall.SIGCONT} {
			for _, p := range group {
				p.SignalAlone(signal) // a child that is asked ends, and its parent with an error
			}
		}
		for _, p := range group {
			p.Wait(g.t)
		}
	}
	return text.String()
}

// TestHangIsNoticed stops a daemon, on which everybody waits sooner or later.
func TestHangIsNoticed(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	g := newCampaign(t, []string{"--trap", "uffd"}, 2, 1)
	g.stall = time.Second
	g.c.Daemons[1].Stop(t)
	var silent *victim
	testcluster.Eventually(t, "a hang is noticed", func() bool { silent = g.silent(); return silent != nil })
	text := g.describeHang(silent)
	if !strings.Contains(text, "faults_read") || !strings.Contains(text, "node 1 (exit status 1)") {
		t.Errorf("of the daemons it says\n%s", text)
	}
	for _, v := range g.stay {
		// Of a worker that waits for a page the runtime can show only where it was started; and
		// nothing, if it does so inside the race detector, which is not Go.
		if text := v.Errors(); !strings.Contains(text, "torture.(*process).start") && !strings.Contains(text, "unknown pc") {
			t.Errorf("process %d has not said where its goroutines are: %q", v.PID(), v.Errors())
		}
	}
}

func (g *campaign) daemons() (list []*victim) {
	for _, d := range g.c.Daemons {
		list = append(list, &victim{Process: d})
	}
	return list
}

// rest stops all work, checks all memory and what processes hold, and lets the work go on.
func (g *campaign) rest() {
	for _, v := range g.stay {
		v.Say(g.t, "rest")
	}
	for _, v := range g.stay {
		g.answer(v, "resting")
	}
	var sum string
	steps := 0
	for _, v := range g.stay {
		v.Say(g.t, "check %d", g.killed)
		var s string
		var n int
		if line := g.answer(v, "sum "); sum == "" {
			fmt.Sscanf(line, "sum %s steps %d", &sum, &n)
		} else if fmt.Sscanf(line, "sum %s steps %d", &s, &n); s != sum {
			g.t.Errorf("one process sees memory with checksum %s, another with %s", sum, s)
		}
		steps += n
	}
	g.compareUsage()
	g.t.Logf("%d steps; %d processes killed, %d left, %d times one was stopped; daemons know %v objects", steps, g.killed, g.left, g.stopped, g.known)
	for _, v := range g.stay {
		v.Say(g.t, "go")
		g.answer(v, "going")
	}
}

// compareUsage compares what processes hold with the first time.
func (g *campaign) compareUsage() {
	all := slices.Concat(g.daemons(), g.stay)
	if g.first == nil {
		g.first = make([]usage, len(all))
		for i, p := range all {
			var err error
			if g.first[i], err = used(p.PID()); err != nil {
				g.t.Fatal(err)
			}
		}
		for node := range g.c.Daemons {
			g.known = append(g.known, daemonCounters(g.t, g.c.Socket(node))["known_objects"])
		}
		return
	}
	for i, p := range all {
		var u usage
		testcluster.Eventually(g.t, fmt.Sprintf("process %d holds no more descriptors than before", p.PID()), func() bool {
			var err error
			if u, err = used(p.PID()); err != nil {
				g.t.Fatal(err)
			}
			return u.descriptors <= g.first[i].descriptors
		})
		for _, leak := range u.leaks(g.first[i]) {
			g.t.Errorf("process %d of %d (daemons first) holds %s", i, len(all), leak)
		}
		if testing.Verbose() {
			g.t.Logf("process %d: %+v, at first %+v", i, u, g.first[i])
		}
	}
	for node := range g.c.Daemons {
		g.compareDaemon(node)
	}
}

// compareDaemon waits until a daemon knows as little as at the first rest.
func (g *campaign) compareDaemon(node int) {
	var is map[string]uint64
	defer func() {
		if g.t.Failed() {
			g.t.Logf("daemon %d: %v", node, is)
		}
	}()
	testcluster.Eventually(g.t, fmt.Sprintf("daemon %d knows no more than %d objects and has nothing under way", node, g.known[node]), func() bool {
		is = daemonCounters(g.t, g.c.Socket(node))
		return is["known_objects"] <= g.known[node] && is["pending_objects"] == 0 && is["programs"] == stayersPerNode
	})
}
