package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dsmd/bench/chart"
	"dsmd/protocol"
)

func nothing(string, int, int) {}

// run simulates some sections of clusters of up to n nodes.
func run(t *testing.T, n int, sections ...Section) *Result {
	t.Helper()
	o := DefaultOptions()
	o.MaxNodes, o.Sections = n, sections
	r, err := Run(context.Background(), o, nothing)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestSameSeedSameResult: the whole result depends on the options alone, and the seed is one of
// them.
func TestSameSeedSameResult(t *testing.T) {
	o := DefaultOptions()
	encode := func(nodes int, sections ...Section) []byte {
		o.MaxNodes, o.Sections = nodes, sections
		r, err := Run(context.Background(), o, nothing)
		if err != nil {
			t.Fatal(err)
		}
		r.Options.Seed = 0
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	all := func() []byte {
		return append(encode(32, Faults, Barriers, Locks, Hot, Names), encode(2, Wide)...)
	}
	first := all()
	if !bytes.Equal(first, all()) {
		t.Error("the same options gave two results")
	}
	o.Seed = 2
	if bytes.Equal(first, all()) {
		t.Error("another seed gave the same result")
	}
}

// TestFaultCosts compares with what docs/protocol.md says: the numbers of messages of each
// transaction, counted by hand.
func TestFaultCosts(t *testing.T) {
	for _, p := range run(t, 64, Faults).Faults {
		switch p.Pattern {
		case Private: // Request and Grant, neither of them if the home is the node itself
			if p.Faults != p.Nodes*blockPages || p.MessagesPerFault > 2 || p.BytesPerFault != p.MessagesPerFault*(frameBytes+headerBytes) {
				t.Errorf("first touches: %+v", p)
			}
		case ReadShared: // one node wrote the table and has no fault
			if p.Faults != (p.Nodes-1)*tablePages {
				t.Errorf("reads of a shared table: %+v", p)
			}
		case ProducerConsumer: // half of the faults move a page; an upgrade invalidates one copy
			if p.Faults != p.Nodes*producerPages*producerRounds*2 || math.Abs(p.BytesPerFault-pageBytes/2) > 300 {
				t.Errorf("producers and consumers: %+v", p)
			}
		}
		if p.MessagesPerFault > 5 || p.P99 < p.P50 || p.P50 <= 0 || p.HomeLoad > float64(p.Nodes) || p.DaemonBusy <= 0 || p.DaemonBusy > 1 {
			t.Errorf("impossible: %+v", p)
		}
	}
}

// TestTimeOfOneMiss adds up the costs of a read miss by hand: two nodes, nobody else does anything.
func TestTimeOfOneMiss(t *testing.T) {
	r := run(t, 2, Hot)
	if len(r.Hot) == 0 {
		t.Fatal("no points")
	}
	c := DefaultCosts()
	small, page := c.onLink(frameBytes+headerBytes), c.onLink(frameBytes+headerBytes+pageBytes)
	want := c.Trap + // the reader is home: Forward to the owner
		c.Send + small + c.Latency + c.Receive +
		c.Downgrade + c.Send + c.ReadPage + page + c.Latency + c.Receive +
		c.Install
	if got := r.Hot[0].ReadP50; math.Abs(got-inMicros(want)) > 0.01 {
		t.Errorf("a read miss takes %.3f µs, its parts %.3f", got, inMicros(want))
	}
	if r.Hot[0].ReadMessages != 2 {
		t.Errorf("a read miss at its home takes %d messages", r.Hot[0].ReadMessages)
	}
}

// TestCostsAreCosts: each of them slows something down, so none is forgotten.
func TestCostsAreCosts(t *testing.T) {
	total := func(o Options) (sum float64) {
		r, err := Run(context.Background(), o, nothing)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range r.Faults {
			sum += p.P50 + p.P99
		}
		for _, p := range r.Sync {
			sum += p.Micros
		}
		for _, p := range r.Hot {
			sum += p.ReadAll + p.Write
		}
		for _, p := range r.Wide {
			sum += p.P50
		}
		return sum
	}
	o := DefaultOptions()
	o.MaxNodes = 4
	before := total(o)
	for name, change := range map[string]func(*Costs){
		"latency": func(c *Costs) { c.Latency *= 4 }, "bandwidth": func(c *Costs) { c.Bandwidth /= 4 }, "send": func(c *Costs) { c.Send *= 4 },
		"receive": func(c *Costs) { c.Receive *= 4 }, "further": func(c *Costs) { c.Further *= 4 }, "trap": func(c *Costs) { c.Trap *= 4 }, "call": func(c *Costs) { c.Call *= 4 },
		"install": func(c *Costs) { c.Install *= 4 }, "make-writable": func(c *Costs) { c.MakeWritable *= 4 },
		"downgrade": func(c *Costs) { c.Downgrade *= 4 }, "revoke": func(c *Costs) { c.Revoke *= 4 }, "read-page": func(c *Costs) { c.ReadPage *= 4 },
	} {
		dear := o
		change(&dear.Costs)
		if after := total(dear); after <= before {
			t.Errorf("with %s four times as dear everything takes %.1f µs, and %.1f without", name, after, before)
		}
	}
}

// TestBarriersAsTrees: small clusters have none, in large ones they are faster than without, and
// relieve the home the more the larger the cluster is.
func TestBarriersAsTrees(t *testing.T) {
	const nodes = 128
	points := map[string]map[int]SyncPoint{}
	for _, p := range run(t, nodes, Barriers).Sync {
		if points[p.Operation] == nil {
			points[p.Operation] = map[int]SyncPoint{}
		}
		points[p.Operation][p.Nodes] = p
	}
	for tree, flat := range map[string]string{OpBarrier: OpFlatBarrier, OpReduction: OpFlatReduction} {
		for n := 2; n <= nodes; n *= 2 {
			with, without := points[tree][n], points[flat][n]
			with.Operation = without.Operation
			if without.Messages != float64(2*(n-1)) {
				t.Errorf("%+v: want a message each way for every node but the home", without)
			}
			if n < protocol.DefaultTreeFrom && with != without {
				t.Errorf("%d nodes: %+v with trees, %+v without", n, with, without)
			}
			if n >= protocol.DefaultTreeFrom && (with.Micros >= without.Micros || with.Busiest >= without.Busiest || with.Messages <= without.Messages) {
				t.Errorf("%d nodes: %+v with trees, %+v without", n, with, without)
			}
		}
		if last := points[tree][nodes]; last.Busiest > 2*points[tree][nodes/4].Busiest {
			t.Errorf("%+v: a cluster of a quarter takes %+v", last, points[tree][nodes/4])
		}
	}
}

// TestHotPage: everybody is served, and a write invalidates all copies but the writer's. As long as
// node sets are exact, nobody else.
func TestHotPage(t *testing.T) {
	for _, p := range run(t, 64, Hot).Hot {
		others := p.Readers // the owner's copy and all readers' but the writer's
		if p.Needless != 0 || p.Invalidations != others {
			t.Errorf("%+v: want %d invalidations", p, others)
		}
		if want := 2 + 2*others; p.WriteMessages != want && p.Way != HomeFirst {
			t.Errorf("%+v: want %d messages of the write: Request, Grant, invalidations and their acknowledgements", p, want)
		}
	}
}

// TestHotPageInLargeClusters: where node sets are not exact any more, they still are for few
// readers, a home that has a copy supplies few readers, and many go through a tree, as their copies
// do.
func TestHotPageInLargeClusters(t *testing.T) {
	const exactReaders = 11 // with the owner as many as a set names exactly
	few := map[Way]float64{}
	for _, p := range run(t, 256, Hot).Hot {
		if p.Readers == 8 {
			few[p.Way] = p.Write
		}
		if p.Readers > 8 && p.Write > 3*few[p.Way] {
			t.Errorf("%+v: 8 copies are invalidated in %.1f µs", p, few[p.Way])
		}
		if p.Readers < exactReaders && p.Needless != 0 {
			t.Errorf("%+v: needless invalidations of few copies", p)
		}
		if gone := p.Invalidations - p.Needless; gone > p.Readers || gone < p.Readers-1 {
			t.Errorf("%+v: %d copies were invalidated", p, gone)
		}
		isMany := p.Readers >= protocol.DefaultManyReaders
		if p.Way == HomeFirst && !isMany && p.ReadMessages != 2*p.Readers {
			t.Errorf("%+v: a reader takes more than Request and Grant, although the home has a copy", p)
		}
		// each node hears of it once, and a reader of the end of its request
		if most := 4*p.Readers + 2*p.Nodes; isMany && (p.ReadMessages > most || p.Supplied > 2*protocol.DefaultManyReaders || p.ReadAll > 120) {
			t.Errorf("%+v: want at most %d messages, and everybody to have read in 120 µs", p, most)
		}
	}
}

// TestAllocation: each node but the allocator asks once and is answered, and the allocator does
// all of it.
func TestAllocation(t *testing.T) {
	for _, p := range run(t, 64, Names).Sync {
		if p.Operation != OpAllocation || p.Messages != float64(2*(p.Nodes-1)) || p.Busiest > p.Micros || p.Busiest < p.Micros/2 {
			t.Errorf("%+v: want a message each way for every node but the allocator, which is busy with them", p)
		}
	}
}

// TestWideNodes: one thread waits for what takes its time, many wait for the reactor, and then
// another one helps. No node gets more pages than its link can carry.
func TestWideNodes(t *testing.T) {
	r := run(t, 8, Wide)
	points := map[[3]int]WidePoint{}
	for _, p := range r.Wide {
		points[[3]int{p.Nodes, p.Threads, p.Reactors}] = p
		if p.PerSecond > r.Options.Costs.Bandwidth/pageBytes || p.Reactor > 1 || p.Link > 1 || p.P50 <= 0 || p.P99 < p.P50 {
			t.Errorf("impossible: %+v", p)
		}
	}
	for _, nodes := range []int{2, 8} {
		one, many, more := points[[3]int{nodes, 1, 1}], points[[3]int{nodes, 64, 1}], points[[3]int{nodes, 64, 4}]
		if one.Limit != LimitWaiting || many.Limit != LimitReactor || many.PerSecond < 2*one.PerSecond {
			t.Errorf("with one reactor: %+v, and %+v", one, many)
		}
		if more.PerSecond < 2*many.PerSecond {
			t.Errorf("%+v with four reactors, %+v with one", more, many)
		}
	}
}

// TestOneSystemCall: nodes get through more if what goes to the same node in one turn costs little
// more than one message, and there is much of it only if they have many threads.
func TestOneSystemCall(t *testing.T) {
	perSecond := func(threads int, further time.Duration) float64 {
		r := &Result{Options: DefaultOptions()}
		r.Options.Costs.Further = further
		if err := r.wide(2, threads, 1); err != nil {
			t.Fatal(err)
		}
		return r.Wide[0].PerSecond
	}
	dear := DefaultCosts().Send
	if with, without := perSecond(64, 0), perSecond(64, dear); with < 1.5*without {
		t.Errorf("64 threads get through %.0f faults a second, and through %.0f if each message is sent by itself", with, without)
	}
	if with, without := perSecond(1, 0), perSecond(1, dear); with > 1.1*without {
		t.Errorf("one thread gets through %.0f faults a second, and through %.0f if each message is sent by itself", with, without)
	}
}

// TestMemoryOfKnownPages holds engines to at most 64 bytes for a page that was touched, in each
// role. Together with what TestMetadataPerPage of package protocol says of the table's worst loads,
// that is 256 MiB for 16 GiB of pages.
func TestMemoryOfKnownPages(t *testing.T) {
	const pages, region = 1 << 18, 1 << 28
	for _, role := range Roles() {
		m, err := MeasureMemory(role, pages, region)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", m)
		if m.BytesPerPage > 64 {
			t.Errorf("%s: %.1f bytes for each of %d pages, want at most 64", role, m.BytesPerPage, pages)
		}
		if m.BytesPerPage < 16 {
			t.Errorf("%s: %.1f bytes for each page; less than a directory entry has, so something else was measured", role, m.BytesPerPage)
		}
	}
	if _, err := MeasureMemory(HomeRole, 2, 1); err == nil {
		t.Error("two pages of one were measured")
	}
}

func TestRefusedOptions(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no section": func(o *Options) { o.Sections = nil }, "unknown section": func(o *Options) { o.Sections = []Section{"x"} },
		"one node": func(o *Options) { o.MaxNodes = 1 }, "not a power of two": func(o *Options) { o.MaxNodes = 6 },
		"too many nodes": func(o *Options) { o.MaxNodes = 2 * protocol.MaxNodes }, "no stripe": func(o *Options) { o.HomeStripe = 0 },
		"negative hold": func(o *Options) { o.Hold = -1 }, "hold above its bound": func(o *Options) { o.MaxHold = o.Hold - 1 },
		"negative computing": func(o *Options) { o.Compute = -1 }, "no bandwidth": func(o *Options) { o.Costs.Bandwidth = 0 },
		"bandwidth not a number": func(o *Options) { o.Costs.Bandwidth = math.NaN() }, "a negative cost": func(o *Options) { o.Costs.Send = -1 },
		"a cost in the wrong unit":               func(o *Options) { o.Costs.Trap = time.Hour },
		"further messages dearer than the first": func(o *Options) { o.Costs.Further = o.Costs.Send + 1 },
	} {
		o := DefaultOptions()
		change(&o)
		if _, err := Run(context.Background(), o, nothing); err == nil || !strings.HasPrefix(err.Error(), "sim: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCancelled(t *testing.T) {
	reason := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(reason)
	if _, err := Run(ctx, DefaultOptions(), nothing); !errors.Is(err, reason) {
		t.Errorf("a cancelled run ended with %v", err)
	}
}

// TestWriteTo: every section has its tables and plots, and the JSON is the result.
func TestWriteTo(t *testing.T) {
	r, dir := run(t, 4, SectionNames()...), t.TempDir()
	if err := r.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "sim.json"))
	if err != nil {
		t.Fatal(err)
	}
	var read Result
	if err := json.Unmarshal(text, &read); err != nil || len(read.Faults) != len(r.Faults) || len(read.Sync) != len(r.Sync) || len(read.Hot) != len(r.Hot) || len(read.Wide) != len(r.Wide) {
		t.Errorf("sim.json has %d, %d, %d and %d points, error %v", len(read.Faults), len(read.Sync), len(read.Hot), len(read.Wide), err)
	}
	if len(r.Drawings()) != 7 {
		t.Errorf("%d plots", len(r.Drawings()))
	}
	for _, d := range r.Drawings() {
		for _, format := range chart.Formats() {
			if info, err := os.Stat(filepath.Join(dir, "sim-"+d.Name+"."+format)); err != nil || info.Size() < 1000 {
				t.Errorf("plot %s as %s: %v", d.Name, format, err)
			}
		}
	}
	for _, p := range Patterns() {
		if !strings.Contains(r.Markdown(), "| "+string(p)+" |") || !strings.Contains(r.Text(), string(p)) {
			t.Errorf("no row of %s in the tables", p)
		}
	}
}
