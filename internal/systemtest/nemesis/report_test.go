package nemesis

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// report is what a campaign tells in the end.
type report struct {
	began   time.Time
	log     []string // what happened, in order
	faults  map[string]int
	done    map[string]int // operations by kind
	maybe   int            // operations whose end nobody has seen
	gone    int            // that were told of the loss of a page
	news    int            // that were told of the loss of a node that had a lock
	places  int
	stall   Operation     // that which took longest
	worst   time.Duration // until everybody got on after a storm
	grave   time.Duration // until everybody had ended after a loss with which too few were left
	losses  int
	leaving time.Duration // until a host had left that was told to
	coming  time.Duration // until a host was let in that came
	slow    time.Duration // until those that were left went on without one that was lost
}

// say adds a line to the log.
func (r *report) say(text string) {
	if r.began.IsZero() {
		r.began = time.Now()
	}
	r.log = append(r.log, fmt.Sprintf("%9.3fs %s", time.Since(r.began).Seconds(), text))
}

func (r *report) fault(name, what string) {
	if r.faults == nil {
		r.faults = map[string]int{}
	}
	r.faults[name]++
	r.say(name + ": " + what)
}

// calmed notes that everybody got on after a storm, and who was the last.
func (r *report) calmed(took time.Duration, last string) {
	r.worst = max(r.worst, took)
	r.say(fmt.Sprintf("everybody gets on, %v after the last fault; until then %s", took, last))
}

func (r *report) buried(took time.Duration) {
	r.grave = max(r.grave, took)
	r.say(fmt.Sprintf("too few are left, and everybody has ended or waits, after %v", took))
}

// settled notes that all that are left have gone on without one that is lost.
func (r *report) settled(name string, took time.Duration) {
	r.losses++
	r.slow = max(r.slow, took)
	r.say(fmt.Sprintf("the others have gone on without %s, after %v", name, took))
}

// left notes that a host has left.
func (r *report) left(name string, took time.Duration) {
	r.leaving = max(r.leaving, took)
	r.say(fmt.Sprintf("%s has left, after %v", name, took))
}

// came notes that a host was let in.
func (r *report) came(name string, took time.Duration) {
	r.coming = max(r.coming, took)
	r.say(fmt.Sprintf("%s was let in, after %v", name, took))
}

// count adds the operations of a life of the cluster.
func (r *report) count(all []Operation) {
	if r.done == nil {
		r.done = map[string]int{}
	}
	places := map[string]bool{}
	for _, o := range all {
		places[o.Place] = true
		switch {
		case o.Void:
		case !o.known():
			r.maybe++
		case o.Lost:
			r.gone++
		default:
			r.done[o.kind()]++
		}
		if o.tellsOfLoss() && !o.Lost {
			r.news++
		}
	}
	r.places += len(places)
	if o := slowest(all); o.took() > r.stall.took() {
		r.stall = o
	}
}

// counts lists how often each thing was counted.
func counts(of map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, of[name]))
	}
	return strings.Join(parts, ", ")
}

// text is the report, with the command that does it all again.
func (c *campaign) text() string {
	r := &c.report
	var names []string
	for _, w := range c.Workloads {
		names = append(names, w.Name)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "-nemesis.seed %d -nemesis.for %v -nemesis.hosts %d -nemesis.reactors %d -nemesis.faults %s -nemesis.workloads %s\n", c.Seed, c.Span, c.Hosts, c.Reactors, Names(c.Faults), strings.Join(names, ","))
	fmt.Fprintf(&b, "faults: %s\n", counts(r.faults))
	fmt.Fprintf(&b, "operations: %s; %d may have happened; at %d places, in %d lives of the cluster\n", counts(r.done), r.maybe, r.places, c.life+1)
	if r.stall.Place != "" {
		fmt.Fprintf(&b, "longest stall: %v, %s of the %s on %s\n", r.stall.took().Round(time.Millisecond), r.stall.Place, c.Workloads[r.stall.client.Workload].Name, hostNames[r.stall.client.Rank])
	}
	fmt.Fprintf(&b, "everybody got on within %v of the last fault", r.worst.Round(time.Millisecond))
	if r.losses > 0 {
		fmt.Fprintf(&b, "\n%d hosts were lost, and the others went on, within %v at most; %d operations met lost pages, %d locks of lost nodes",
			r.losses, r.slow.Round(time.Millisecond), r.gone, r.news)
	}
	if r.coming+r.leaving > 0 {
		fmt.Fprintf(&b, "\nhosts left within %v, and were let in within %v", r.leaving.Round(time.Millisecond), r.coming.Round(time.Millisecond))
	}
	if r.grave > 0 {
		fmt.Fprintf(&b, "\nwhere too few were left everybody had ended, or waited, within %v", r.grave.Round(time.Millisecond))
	}
	return b.String()
}

// judge checks all histories, says how it was, and fails the test if something is wrong. The
// evidence is left in a folder then.
func (c *campaign) judge() {
	c.t.Helper()
	var drawn []violation
	for _, life := range c.past {
		var all []Operation
		for _, h := range life.histories {
			if err := h.follow(); err != nil {
				c.violate("%w", err)
			}
			all = append(all, h.operations()...)
		}
		c.report.count(all)
		for _, v := range check(all, slices.Concat(life.deaths, life.departures), life.keeping, checkLimit) {
			c.violate("%w", v.err)
			drawn = append(drawn, v)
		}
	}
	c.t.Log(c.text())
	if testing.Verbose() {
		c.t.Log(strings.Join(c.report.log, "\n"))
	}
	if len(c.wrong) == 0 {
		return
	}
	for _, err := range c.wrong {
		c.t.Error(err)
	}
	folder, err := c.keep(drawn)
	if err != nil {
		c.t.Error(err)
	}
	c.t.Errorf("the histories, the logs and what the nemesis did are in %s", folder)
}

// keep leaves everything in a folder that stays.
func (c *campaign) keep(drawn []violation) (folder string, err error) {
	if folder, err = os.MkdirTemp("", fmt.Sprintf("nemesis-%d-", c.Seed)); err != nil {
		return "", fmt.Errorf("nemesis: keeping the evidence: %w", err)
	}
	if err := os.CopyFS(filepath.Join(folder, "histories"), os.DirFS(c.shared)); err != nil {
		return folder, fmt.Errorf("nemesis: keeping the histories: %w", err)
	}
	files := map[string]string{"report": c.text() + "\n\n" + strings.Join(c.report.log, "\n") + "\n\n"}
	for _, err := range c.wrong {
		files["report"] += err.Error() + "\n"
	}
	for _, p := range c.logs {
		files[p.name+".log"] = p.Output() + p.Errors()
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, strings.ReplaceAll(name, "/", "-")), []byte(text), 0o644); err != nil {
			return folder, fmt.Errorf("nemesis: keeping a log: %w", err)
		}
	}
	for _, v := range drawn {
		if err := draw(v.operations, checkLimit, filepath.Join(folder, strings.ReplaceAll(v.place, "/", "-")+".html")); err != nil {
			return folder, err
		}
	}
	return folder, nil
}
