package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"dsmd/bench/report"
	"dsmd/bench/table"
)

// growth is by how much each counter has grown. A gauge that has fallen has grown by nothing.
func growth(before, after map[string]uint64) map[string]uint64 {
	grown := make(map[string]uint64, len(after))
	for name, value := range after {
		grown[name] = value - min(before[name], value)
	}
	return grown
}

// resultTable is the result for people: what was run, the times, what each node did, and where it
// lost time.
func resultTable(r *report.Result) string {
	what := table.Table{Heads: strings.Split("kernel,nodes,threads,size,trap,transport,verified,seconds,serial s,goroutines s,speed-up,overhead", ",")}
	what.Add(r.Kernel, r.Nodes, r.Threads, sizeText(r), r.Trap, r.Transport, yesNo(r.Verified), micros(r.Seconds), micros(r.SecondsSerial), micros(r.SecondsGoroutines),
		fmt.Sprintf("%.3f", r.Speedup), fmt.Sprintf("%.2f", r.Overhead))

	kinds := slices.Sorted(maps.Keys(r.Faults))
	nodes := table.Table{Heads: []string{"node", "seconds"}}
	for _, kind := range kinds {
		nodes.Heads = append(nodes.Heads, kind+" faults")
	}
	nodes.Heads = append(nodes.Heads, "sent", "messages", "locks", "barriers", "in faults", "in locks", "at barriers")
	add := func(node any, seconds float64, t report.Traffic) {
		cells := []any{node, micros(seconds)}
		for _, kind := range kinds {
			cells = append(cells, t.Faults[kind])
		}
		nodes.Add(append(cells, fmt.Sprintf("%.3f MB", float64(t.BytesMoved)/1e6), t.Messages, t.Locks, t.Barriers,
			micros(t.SecondsFaults)+" s", micros(t.SecondsLocks)+" s", micros(t.SecondsBarriers)+" s")...)
	}
	for _, n := range r.PerNode {
		add(n.Rank, n.Seconds, n.Traffic)
	}
	add("all", r.Seconds, r.Traffic)

	text := table.Text([]table.Table{what, nodes, remoteTable(r)})
	for _, name := range slices.Sorted(maps.Keys(r.Figures)) {
		text += fmt.Sprintf("%s = %v\n", name, r.Figures[name])
	}
	return text
}

// remoteTable is why the threads of each node waited for other nodes, and what became of the pages
// that it predicted to spare them that.
func remoteTable(r *report.Result) table.Table {
	reasons, outcomes := [...]string{"cold", "retaken", "late", "unpredicted"}, [...]string{"pages", "used", "late", "in_vain"}
	t := table.Table{Heads: []string{"node", "remote faults", "cold", "retaken", "late", "unpredicted", "pages predicted", "used", "late", "in vain"}}
	add := func(node any, of report.Traffic) {
		cells, sum := []any{node, 0}, uint64(0)
		for _, why := range reasons {
			cells, sum = append(cells, of.Remote[why]), sum+of.Remote[why]
		}
		cells[1] = sum
		for _, what := range outcomes {
			cells = append(cells, of.Predicted[what])
		}
		t.Add(cells...)
	}
	for _, n := range r.PerNode {
		add(n.Rank, n.Traffic)
	}
	add("all", r.Traffic)
	return t
}

// micros writes seconds with all digits down to a microsecond.
func micros(seconds float64) string { return fmt.Sprintf("%.6f", seconds) }

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

// newResult is what a run on a cluster measured, beside the times of the versions without one.
func newResult(o *runOptions, outcomes []outcome, serial, goroutines float64) *report.Result {
	r := &report.Result{
		Kernel: o.kernel.Name, Nodes: o.nodes, Threads: o.threads, Size: o.size, N: o.n,
		Trap: outcomes[0].Trap, Transport: outcomes[0].Transport, Figures: outcomes[0].Figures,
		SecondsSerial: serial, SecondsGoroutines: goroutines,
	}
	for rank, o := range outcomes {
		r.PerNode = append(r.PerNode, report.NewNode(rank, o.Seconds, o.Counters))
	}
	r.SumUp()
	return r
}
