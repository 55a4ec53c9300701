package nemesis

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"dsmd/internal/systemtest/netns"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/node"
)

const (
	// tick is how often the harness looks after everything.
	tick = 10 * time.Millisecond
	// socket is where programs attach, on every machine.
	socket = "/run/dsmd.sock"
	// port is where daemons listen for each other.
	port = "7400"
	// deadAfter is how long a daemon may be out of reach before the others give it up. Faults that
	// a daemon must survive last less, even when several of them follow each other.
	deadAfter = 15 * time.Second
	// givenUpWithin is how long it takes at most until they have: nobody may have noticed for a
	// while that it is out of reach.
	givenUpWithin = 2 * deadAfter
)

// Plan says what a campaign does.
type Plan struct {
	Seed      uint64
	Span      time.Duration // of faults, without the calms between
	Faults    []Fault
	Workloads []*Workload
	Hosts     int           // 2 or more
	Reactors  int           // of each daemon; 0: each life of the cluster draws how many
	Progress  time.Duration // within which everybody must get on after the last fault
}

// campaign is a cluster of machines, with the programs that work there and what was done to them.
type campaign struct {
	Plan
	t      testing.TB
	r      *rand.Rand
	net    *netns.Network
	filter netns.Filter
	shared string // the directory with the histories
	hosts  []*host
	start  int64 // of the first era
	// life counts lives of the cluster, from 0; all daemons and programs are started anew in each.
	life   int
	lives  int               // of programs
	past   []past            // by the cluster's life
	teams  map[*Workload]int // how often a team was replaced
	policy string            // of daemons that are too few, in this life
	// reactors is how many each daemon has, in this life.
	reactors int
	view     []*host // who goes on together, or did at last
	harms    []harm  // that are done and not mended
	stormy   bool    // faults may be made
	// orphaned says of each workload whether it is a team that has lost ranks, and is replaced when
	// all others have ended.
	orphaned  []bool
	tooFew    bool          // are left, after what was done at last
	views     map[int][]int // of this life, as the daemons tell of them: the members of each epoch
	listed    bool          // in this life: daemons are told who all are, and need not find out
	report    report
	intruders []*intruder // every stranger that there ever was
	logs      []*process  // everything that was ever started
	wrong     []error
}

// past is what was in a life of the cluster.
type past struct {
	histories  []*history // of all programs that ever were
	deaths     deaths
	departures deaths // in order
	keeping    keeping
}

// newCampaign starts the machines, daemons and programs.
func newCampaign(t testing.TB, plan Plan) *campaign {
	t.Helper()
	if plan.Hosts < 2 || plan.Hosts > len(hostNames) {
		t.Fatalf("nemesis: %d hosts; 2 to %d are possible", plan.Hosts, len(hostNames))
	}
	c := &campaign{Plan: plan, t: t, r: rand.New(rand.NewPCG(plan.Seed, 0)), start: now(), teams: map[*Workload]int{}}
	// Machines have the files that are there before them: the binaries, and this.
	makeStrangersSecret(t)
	c.net = netns.Start(t, hostNames[:plan.Hosts]...)
	c.filter, c.shared = c.net.Filter(t), c.net.Shared
	for i, m := range c.net.Machines {
		c.hosts = append(c.hosts, &host{Machine: m, rank: i})
	}
	c.startAll()
	return c
}

// startAll starts all daemons, and a program of each workload on every host.
func (c *campaign) startAll() {
	c.t.Helper()
	c.past = append(c.past, past{})
	c.policy, _ = pick(c.r, node.NoQuorumPolicies)
	c.listed = c.life == 0 || c.r.IntN(3) > 0
	c.reactors = cmp.Or(c.Reactors, 1+c.r.IntN(maxReactors))
	c.view, c.views, c.orphaned = slices.Clone(c.hosts), map[int][]int{}, make([]bool, len(c.Workloads))
	for _, h := range c.hosts {
		h.harmed, h.standing, h.since = map[string]bool{}, belongs, 0
		c.startDaemon(h)
		c.views[0] = append(c.views[0], h.rank)
	}
	for _, h := range c.hosts {
		h.daemon.AwaitLog(c.t, "serving")
	}
	for _, h := range c.hosts {
		for i := range c.Workloads {
			c.startProgram(h, i)
		}
	}
}

const (
	// maxReactors is how many a daemon has at most, unless Plan says otherwise.
	maxReactors = 3
	// stripe is how many pages in a row one of them serves: few, so that memory of all workloads is
	// divided, and many enough that a program's mappings are not too many for the kernel.
	stripe = 64
)

// serve is the command line of a host's daemon.
func (c *campaign) serve(h *host, socket string, flags ...string) []string {
	var names, addresses []string
	for _, other := range c.hosts {
		names, addresses = append(names, other.Name), append(addresses, other.Name+":"+port)
	}
	find := []string{"--nodes", strconv.Itoa(c.Hosts), "--join", strings.Join(names, ",")}
	if c.listed {
		find = []string{"--peers", strings.Join(addresses, ",")}
	}
	return slices.Concat([]string{testcluster.Dsmd(c.t), "serve", "--cluster", "nemesis", "--id", strconv.Itoa(h.rank)}, find,
		[]string{"--socket", socket, "--insecure", "--dead-after", deadAfter.String(), "--survive", "--no-quorum", c.policy, "--log-level", "debug",
			"--reactors", strconv.Itoa(c.reactors), "--stripe", strconv.Itoa(stripe)},
		flags, strings.Fields(os.Getenv(testcluster.FlagsEnv)))
}

// startDaemon starts a host's daemon.
func (c *campaign) startDaemon(h *host, flags ...string) {
	c.t.Helper()
	c.evict(h)
	h.stays++
	h.heard, h.epoch, h.handed, h.programs = 0, 0, 0, make([]*resident, len(c.Workloads))
	h.daemon = startOn(c.t, h.Machine, fmt.Sprintf("daemon of %s, life %d, stay %d", h.Name, c.life, h.stays), nil, c.serve(h, socket, flags...)...)
	c.logs = append(c.logs, h.daemon)
}

// startProgram starts a host's program of a workload. The ranks of a team are the hosts that stay.
func (c *campaign) startProgram(h *host, index int) {
	c.t.Helper()
	w := c.Workloads[index]
	c.lives++
	name := fmt.Sprintf("%s-%s-%d", w.Name, h.Name, c.lives)
	o := order{History: filepath.Join(c.shared, name+".history"), Seed: c.r.Uint64(), Start: c.start}
	text, err := json.Marshal(o)
	if err != nil {
		c.t.Fatal(err)
	}
	path, env := w.program.Elsewhere(c.t)
	rank, size := h.rank, c.Hosts
	if w.Team {
		rank, size = slices.Index(c.staying(), h), len(c.staying())
	}
	env = append(env, "DSM_SOCKET="+socket, "DSM_JOB="+c.job(w), "DSM_RANK="+strconv.Itoa(rank), "DSM_SIZE="+strconv.Itoa(size))
	p := &resident{
		process: startOn(c.t, h.Machine, name, env, path, string(text)), workload: w, host: h,
		history: newHistory(o.History, client{Workload: index, Rank: h.rank, Stay: h.stays, Life: c.lives}), start: now(),
	}
	now := &c.past[c.life]
	now.histories = append(now.histories, p.history)
	h.programs[index] = p
	c.logs = append(c.logs, p.process)
}

// job is what the ranks of a workload call their job. That of a team that was replaced is
// another's: what it had allocated is not the new one's.
func (c *campaign) job(w *Workload) string { return fmt.Sprintf("%s-%d", w.Name, c.teams[w]) }

// violate notes that something is wrong.
func (c *campaign) violate(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Errorf(format, args...))
}

// watch looks whether everything is there that should be, and deals with what follows from losses,
// and from hosts that leave and come.
func (c *campaign) watch() {
	c.mendOld()
	c.follow()
	c.suspect()
	c.mourn()
	c.seeOff()
	c.chase()
	c.ration()
	c.rest()
	for _, p := range c.present() {
		if !p.Running() && !c.hasLeft(p) && !c.isBereaved(p) { // these are dealt with the next time
			c.violate("%s has ended with status %d though nobody has told it to: %s", p.name, p.Wait(c.t), lastLines(p.Errors()))
		}
	}
	for _, h := range c.of(belongs, coming) { // what becomes of one that is leaving is seen off
		if !h.daemon.Running() {
			c.violate("the %s has ended with status %d though nobody has told it to: %s", h.daemon.name, h.daemon.Wait(c.t), lastLines(h.daemon.Errors()))
		}
	}
}

// lastLines is how an output ends.
func lastLines(text string) string {
	const enough = 400
	return strings.TrimSpace(text[max(0, len(text)-enough):])
}

// Run carries out a campaign: storms of faults, each followed by a calm in which everybody has to
// get on, and in the end all histories are checked. It fails the test if anything is wrong, and
// says where the histories and logs lie then.
func Run(t testing.TB, plan Plan) {
	t.Helper()
	c := newCampaign(t, plan)
	defer c.judge() // also when a step of the campaign itself fails the test
	for end := time.Now().Add(plan.Span); len(c.wrong) == 0 && time.Now().Before(end); {
		if len(c.members()) < c.Hosts {
			c.replenish()
		}
		c.storm(min(stormSpan, time.Until(end)))
		c.calm()
	}
	if len(c.wrong) == 0 {
		c.finish()
	}
}
