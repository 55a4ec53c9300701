package replacement

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// shares are how many of the pages that a trace touches fit into memory, in per cent.
var shares = []int{25, 50, 90}

const (
	byChance = iota
	firstIn
	published
	here
	lruSeeing
	policies
)

// newPolicy has the policies that are compared. The last one sees what no node does.
var newPolicy = [policies]struct {
	name string
	of   func(t *trace, capacity int) policy
}{
	byChance:  {"random", func(*trace, int) policy { return &random{random: rand.New(rand.NewPCG(1, 2))} }},
	firstIn:   {"FIFO", func(*trace, int) policy { return &fifo{} }},
	published: {"S3-FIFO", func(_ *trace, capacity int) policy { return newS3FIFO(capacity) }},
	here:      {"here", func(_ *trace, capacity int) policy { return ours{New(capacity)} }},
	lruSeeing: {"LRU that sees every access", func(t *trace, _ int) policy { return newLRU(t.pages) }},
}

// ratios is something of each policy, in ratios to the optimum's misses.
type ratios [policies]float64

// compare runs a trace under each policy.
func compare(t *trace, share int) (r ratios) {
	capacity := t.pages * share / 100
	best := t.misses(capacity, newBelady(t))
	for i, p := range newPolicy {
		r[i] = float64(t.misses(capacity, p.of(t, capacity))) / float64(best)
	}
	return r
}

// TestPolicies compares how many pages are missed, and prints the table of docs/performance.md:
//
//	go test ./node/replacement -run TestPolicies -v
func TestPolicies(t *testing.T) {
	table := &strings.Builder{}
	row := func(name string, cell func(policy int) string) {
		fmt.Fprintf(table, "| %s |", name)
		for i := range policies {
			fmt.Fprintf(table, " %s |", cell(i))
		}
		fmt.Fprintln(table)
	}
	row("trace", func(i int) string { return newPolicy[i].name })
	row("---", func(int) string { return "---" })
	mean, worst := ratios{}, ratios{}
	all := traces(1)
	for _, trace := range all {
		cells := [policies][]string{}
		for _, share := range shares {
			r := compare(&trace, share)
			for i := range policies {
				if r[i] < 1 {
					t.Errorf("%s, %d %% fit: %s misses less than is possible", trace.name, share, newPolicy[i].name)
				}
				cells[i] = append(cells[i], fmt.Sprintf("%.2f", r[i]))
				mean[i] += math.Log(r[i]) / float64(len(all)*len(shares))
				worst[i] = max(worst[i], r[i]/min(r[byChance], r[firstIn]))
			}
		}
		row(trace.name, func(i int) string { return strings.Join(cells[i], ", ") })
	}
	for i, log := range mean {
		mean[i] = math.Exp(log)
	}
	row("geometric mean", func(i int) string { return fmt.Sprintf("%.2f", mean[i]) })
	row("at worst, to the better of random and FIFO", func(i int) string { return fmt.Sprintf("%.2f", worst[i]) })
	t.Logf("\n%s", table)
	for _, rival := range []int{byChance, firstIn, published, lruSeeing} {
		if mean[here] > 0.95*mean[rival] {
			t.Errorf("pages are missed %.2f times as often as is possible; with %s %.2f times", mean[here], newPolicy[rival].name, mean[rival])
		}
	}
	if worst[here] > 1.35 {
		t.Errorf("some trace misses %.2f times as many pages as with the better of random choice and FIFO", worst[here])
	}
}
