package node

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// stuck is a transport some of whose frames its peer does not take.
type stuck struct{ transport.Transport }

func (s stuck) Stats() transport.Stats {
	stats := s.Transport.Stats()
	stats.QueuedBytes = 7
	return stats
}

// TestEveryCounterMoves drives a cluster through everything that is counted and lists what did not
// move.
func TestEveryCounterMoves(t *testing.T) {
	t.Parallel()
	c := start(t, setup{
		nodes: 2, ranks: 4, change: func(cfg *Config) { cfg.Hold, cfg.Memory.Bytes = MaxHold, MinMemoryBytes },
		before: func(n *Node) {
			n.pins.patience = time.Millisecond
			n.intake.window.most = 48
			n.loop.moveCore = func() (bool, error) { return true, nil }
			// when the reactor does it by itself depends on who else polls on its core
			n.loop.changeCore()
		},
		wrap: func(_ int, n transport.Transport) transport.Transport { return stuck{n} },
	})
	moved := map[string]bool{}
	look := func() {
		for _, m := range c.members {
			for name, value := range m.ask() {
				moved[name] = moved[name] || value > 0
			}
		}
	}
	a, b, d := c.members[0].join(), c.members[1].join(), c.members[0].join()
	page := a.bind("x", 40)
	b.bind("x", 40) // or the pages are freed when a dies
	a.store(page, 0, 1)
	b.walk(1, page+10, 10, true, func(int, []byte) {}) // a run
	d.load(page, 0)                                    // map
	b.load(page, 0)                                    // read miss, downgrade
	b.store(page, 0, 2)                                // upgrade, invalidation
	eventually(t, "a node has its turn", func() bool {
		for i := range pagetable.Page(2 * protocol.DefaultContentionThreshold) {
			a.store(page+i, 0, 1)
			b.store(page+i, 0, 2)
		}
		return c.members[0].counter("around_pages")+c.members[1].counter("around_pages") > 0
	})
	look()
	eventually(t, "a page is held", func() bool {
		a.store(page, 0, 0) // write miss, revoke
		b.store(page, 0, 2)
		return c.members[0].counter("holds") > 0
	})
	b.store(page+1, 0, 0) // zeros
	a.load(page+1, 0)
	a.prefetch(page+2, 30, attach.Write)
	a.acquire(lockName, attach.Write)
	_, waiting := b.call(attach.Call{Op: attach.OpRepair, Object: lockName, Access: attach.Write})
	b.sync()
	look() // while something is under way
	a.die()
	b.answer(waiting)
	b.release(lockName, attach.Write)
	b.sync()
	d.had(lockName) // the lock was published at b
	_, one := b.call(attach.Call{Op: attach.OpArrive, Object: 5, Parties: 2})
	_, two := d.call(attach.Call{Op: attach.OpArrive, Object: 5, Parties: 2})
	b.answer(one)
	d.answer(two)
	ticket := d.pin(page+4, 1, attach.Write)
	wanted := b.access(page+4, false, func([]byte) {})
	b.settled(wanted) // when the pin was broken
	d.unpin(ticket)
	// A duplicate: the fault is restarted while its answer is held back.
	far := c.pageAt(0, 100)
	d.fill(far, 64)
	c.net.Stall(0, 1)
	prefetched := c.members[1].counter("prefetched_pages")
	_, late := b.prefetch(far, 1, attach.Read)
	eventually(t, "a page is asked for", func() bool { return c.members[1].counter("prefetched_pages") > prefetched })
	var loads []chan error
	for i := range pagetable.Page(64) { // more than may be asked for
		loads = append(loads, b.access(far+i, false, func([]byte) {}))
	}
	eventually(t, "the faults are counted", func() bool { return c.members[1].counter("faults_held_back") > 0 })
	b.table.Restart(b.id)
	eventually(t, "the duplicate is counted", func() bool { return c.members[1].counter("faults_duplicate") > 0 })
	c.net.Resume(0, 1)
	for _, load := range loads {
		b.settled(load)
	}
	b.answer(late)
	fresh := d.bind("y", 1)
	d.contents(fresh, 1)
	d.load(fresh, 0)
	d.fill(0, testPages) // as much as both have room for: some is offered, taken and declined
	for i := range pagetable.Page(testPages) {
		b.load(i, 0) // copies are dropped
	}
	look()
	for _, m := range c.members[0].node.meter.metrics() {
		if !moved[m.name] && !slices.Contains(slices.Concat(countersOfLoss, countersOfBackups, countersOfSpill, countersOfStorage, countersOfPrediction, countersOfPriority, countersOfLargeClusters), m.name) {
			t.Errorf("nothing moves %s (%s)", m.name, m.help)
		}
	}
	if len(moved) > attach.MaxCounters {
		t.Errorf("%d counters; a program's Stats call can be told %d", len(moved), attach.MaxCounters)
	}
	c.quiet()
}

// sample is a line with a value in Prometheus' text format.
var sample = regexp.MustCompile(`^dsmd_[a-z_]+({[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*})? [-+.0-9e]+\n$`)

// TestScrape reads the metrics as Prometheus does.
func TestScrape(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	c := start(t, setup{nodes: 2, change: func(cfg *Config) {
		if cfg.Self == 0 {
			cfg.Metrics = registry
		}
	}})
	a, b := c.members[0].join(), c.members[1].join()
	a.bind("grid", 5)
	page := b.bind("grid", 5)
	for i := range pagetable.Page(5) {
		b.store(page+i, 0, 1)
		a.wantLoad(page+i, 0, 1)
	}
	a.named(lockName, "queue")
	a.acquire(lockName, attach.Write)
	a.sync() // the node has noted the end of the last fault
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	defer server.Close()
	answer, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status, err)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "# HELP dsmd_") && !strings.HasPrefix(line, "# TYPE dsmd_") && !sample.MatchString(line) {
			t.Errorf("a line of the scrape is neither comment nor sample: %q", line)
		}
	}
	for _, line := range []string{
		"dsmd_faults_read_total 5", "dsmd_pages_received_total 5", "dsmd_programs 1", "dsmd_fault_seconds_count 5",
		"dsmd_fault_remote_seconds_count 5", "dsmd_remote_faults_cold_total 5", "dsmd_fault_install_seconds_count 5", "# TYPE dsmd_known_objects gauge",
		`dsmd_fault_seconds_bucket{le="+Inf"} 5`, `dsmd_waits_total{dsm_job="",kind="memory",name="grid"} 5`, `dsmd_waits_total{dsm_job="",kind="lock",name="queue"} 1`,
		`dsmd_waits_total{dsm_job="",kind="barrier",name="(other)"} 0`, `dsmd_pages_taken_total{dsm_job="",name="grid"} 0`,
	} {
		if !strings.Contains(string(text), "\n"+line+"\n") {
			t.Errorf("the scrape does not say %q", line)
		}
	}
	c.quiet()
	// A node that has ended leaves its place to the next, and names that are taken are an error.
	if families, err := registry.Gather(); err != nil || len(families) != 0 {
		t.Errorf("%d metrics are registered after the node's end: %v", len(families), err)
	}
}

// TestMetricsTwice: two nodes can not share a registry, and the one that fails takes nothing of it.
func TestMetricsTwice(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "dsmd", Name: "programs"}, func() float64 { return 0 }))
	c := start(t, setup{nodes: 1})
	if err := c.members[0].node.meter.register(registry); err == nil {
		t.Error("a name that is taken was taken again")
	}
	if families, err := registry.Gather(); err != nil || len(families) != 1 {
		t.Errorf("%d metrics are registered after a failure: %v", len(families), err)
	}
}
