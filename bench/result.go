package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"dsmd/bench/report"
)

// growth is by how much each counter has grown. A gauge that has fallen has grown by nothing.
func growth(before, after map[string]uint64) map[string]uint64 {
	grown := make(map[string]uint64, len(after))
	for name, value := range after {
		grown[name] = value - min(before[name], value)
	}
	return grown
}

// resultTable is the result for people: what was run, the times, what each node did, and where it lost time.
func resultTable(r *report.Result) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "kernel\tnodes\tthreads\tsize\ttrap\ttransport\tverified\tseconds\tserial s\tgoroutines s\tspeed-up\toverhead\t\n")
	fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%.6f\t%.6f\t%.6f\t%.3f\t%.2f\t\n",
		r.Kernel, r.Nodes, r.Threads, sizeText(r), r.Trap, r.Transport, yesNo(r.Verified),
		r.Seconds, r.SecondsSerial, r.SecondsGoroutines, r.Speedup, r.Overhead)
	w.Flush()

	text.WriteByte('\n')
	kinds := slices.Sorted(maps.Keys(r.Faults))
	fmt.Fprintf(w, "node\tseconds\t")
	for _, kind := range kinds {
		fmt.Fprintf(w, "%s faults\t", kind)
	}
	fmt.Fprintf(w, "sent\tmessages\tlocks\tbarriers\tin faults\tin locks\tat barriers\t\n")
	for _, n := range r.PerNode {
		writeTraffic(w, fmt.Sprint(n.Rank), n.Seconds, kinds, n.Traffic)
	}
	writeTraffic(w, "all", r.Seconds, kinds, r.Traffic)
	w.Flush()

	text.WriteByte('\n')
	for _, name := range slices.Sorted(maps.Keys(r.Figures)) {
		fmt.Fprintf(&text, "%s = %v\n", name, r.Figures[name])
	}
	return text.String()
}

func writeTraffic(w *tabwriter.Writer, node string, seconds float64, kinds []string, t report.Traffic) {
	fmt.Fprintf(w, "%s\t%.6f\t", node, seconds)
	for _, kind := range kinds {
		fmt.Fprintf(w, "%d\t", t.Faults[kind])
	}
	fmt.Fprintf(w, "%.3f MB\t%d\t%d\t%d\t%.6f s\t%.6f s\t%.6f s\t\n",
		float64(t.BytesMoved)/1e6, t.Messages, t.Locks, t.Barriers, t.SecondsFaults, t.SecondsLocks, t.SecondsBarriers)
}

// sizeText is the size with its number, when it was asked for by name.
func sizeText(r *report.Result) string {
	number := fmt.Sprint(r.N)
	if r.Size == number {
		return number
	}
	return fmt.Sprintf("%s (%s)", r.Size, number)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}

func newResult(o *runOptions, outcomes []outcome, figures map[string]any, verified bool, serial, goroutines float64) *report.Result {
	r := &report.Result{
		Kernel: o.kernel.Name(), Nodes: o.nodes, Threads: o.threads, Size: o.size, N: o.n,
		Trap: outcomes[0].Trap, Transport: outcomes[0].Transport,
		Verified:      verified,
		SecondsSerial: serial, SecondsGoroutines: goroutines,
		Figures: figures,
	}
	for rank, o := range outcomes {
		r.PerNode = append(r.PerNode, report.NewNode(rank, o.Seconds, o.Counters))
	}
	r.SumUp()
	return r
}
