package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// faultPrefix begins the names of the daemon's counters of faults; what follows is the kind.
const faultPrefix = "faults_"

// Counters of the daemon that a report sums up.
const (
	counterBytesSent    = "bytes_sent"
	counterMessagesSent = "messages_sent"
)

// A report is the result of `bench run`, as the JSON output has it.
type report struct {
	Kernel  string `json:"kernel"`
	Nodes   int    `json:"nodes"`
	Threads int    `json:"threads"`
	// Size is as it was asked for, N the number that it stands for.
	Size      string `json:"size"`
	N         int    `json:"n"`
	Trap      string `json:"trap"`
	Transport string `json:"transport"`
	Verified  bool   `json:"verified"`

	Seconds           float64 `json:"seconds"`
	SecondsSerial     float64 `json:"seconds_serial"`
	SecondsGoroutines float64 `json:"seconds_goroutines"`
	// Speedup is serial time by ours, Overhead ours by that of as many goroutines on ordinary memory.
	Speedup  float64 `json:"speedup"`
	Overhead float64 `json:"overhead"`

	// Faults by kind, bytes and messages that daemons sent, all nodes together, in the timed part.
	Faults     map[string]uint64 `json:"faults"`
	BytesMoved uint64            `json:"bytes_moved"`
	Messages   uint64            `json:"messages"`
	Result     map[string]any    `json:"result"`

	PerNode []nodeReport `json:"per_node"`
}

// nodeReport is one node's part of a report.
type nodeReport struct {
	Rank     int               `json:"rank"`
	Seconds  float64           `json:"seconds"`
	Counters map[string]uint64 `json:"counters"`
}

// growth is by how much each counter has grown. A gauge that has fallen has grown by nothing.
func growth(before, after map[string]uint64) map[string]uint64 {
	grown := make(map[string]uint64, len(after))
	for name, value := range after {
		grown[name] = value - min(before[name], value)
	}
	return grown
}

// faultsByKind picks the counters of faults.
func faultsByKind(counters map[string]uint64) map[string]uint64 {
	faults := make(map[string]uint64)
	for name, value := range counters {
		if kind, ok := strings.CutPrefix(name, faultPrefix); ok {
			faults[kind] = value
		}
	}
	return faults
}

// sumUp makes the parts of the report that come from the ranks.
func (r *report) sumUp(outcomes []outcome) {
	r.Faults = make(map[string]uint64)
	for rank, o := range outcomes {
		r.Seconds = max(r.Seconds, o.Seconds)
		r.BytesMoved += o.Counters[counterBytesSent]
		r.Messages += o.Counters[counterMessagesSent]
		for kind, count := range faultsByKind(o.Counters) {
			r.Faults[kind] += count
		}
		r.PerNode = append(r.PerNode, nodeReport{Rank: rank, Seconds: o.Seconds, Counters: o.Counters})
	}
}

// table is the report for people: what was run, the times, and what each node did.
func (r *report) table() string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "kernel\tnodes\tthreads\tsize\ttrap\ttransport\tverified\tseconds\tserial s\tgoroutines s\tspeed-up\toverhead\t\n")
	fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%.4f\t%.4f\t%.4f\t%.2f\t%.2f\t\n",
		r.Kernel, r.Nodes, r.Threads, r.sizeText(), r.Trap, r.Transport, yesNo(r.Verified),
		r.Seconds, r.SecondsSerial, r.SecondsGoroutines, r.Speedup, r.Overhead)
	w.Flush()

	text.WriteByte('\n')
	kinds := slices.Sorted(maps.Keys(r.Faults))
	fmt.Fprintf(w, "node\tseconds\t")
	for _, kind := range kinds {
		fmt.Fprintf(w, "%s faults\t", kind)
	}
	fmt.Fprintf(w, "sent\tmessages\t\n")
	for _, n := range r.PerNode {
		faults := faultsByKind(n.Counters)
		fmt.Fprintf(w, "%d\t%.4f\t", n.Rank, n.Seconds)
		writeCounts(w, kinds, faults, n.Counters[counterBytesSent], n.Counters[counterMessagesSent])
	}
	fmt.Fprintf(w, "all\t%.4f\t", r.Seconds)
	writeCounts(w, kinds, r.Faults, r.BytesMoved, r.Messages)
	w.Flush()

	text.WriteByte('\n')
	for _, name := range slices.Sorted(maps.Keys(r.Result)) {
		fmt.Fprintf(&text, "%s = %v\n", name, r.Result[name])
	}
	return text.String()
}

func writeCounts(w *tabwriter.Writer, kinds []string, faults map[string]uint64, bytes, messages uint64) {
	for _, kind := range kinds {
		fmt.Fprintf(w, "%d\t", faults[kind])
	}
	fmt.Fprintf(w, "%.1f MB\t%d\t\n", float64(bytes)/1e6, messages)
}

// sizeText is the size with its number, when it was asked for by name.
func (r *report) sizeText() string {
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

func newReport(o *runOptions, outcomes []outcome, shared map[string]any, verified bool, serial, goroutines float64) *report {
	r := &report{
		Kernel: o.kernel.Name(), Nodes: o.nodes, Threads: o.threads, Size: o.size, N: o.n,
		Trap: outcomes[0].Trap, Transport: outcomes[0].Transport,
		Verified:      verified,
		SecondsSerial: serial, SecondsGoroutines: goroutines,
		Result: shared,
	}
	r.sumUp(outcomes)
	r.Speedup = r.SecondsSerial / r.Seconds
	r.Overhead = r.Seconds / r.SecondsGoroutines
	return r
}
