package sim

import (
	"slices"

	"dsmd/protocol/model"
)

// FaultPoint is what faults cost in one pattern on one number of nodes. Messages and bytes are
// those that leave a node, about pages only; bytes include headers.
type FaultPoint struct {
	Pattern  Pattern `json:"pattern"`
	Nodes    int     `json:"nodes"`
	Accesses int     `json:"accesses"`
	// Faults are as reported to engines: an access whose page is lost before it gets through faults
	// again.
	Faults           int     `json:"faults"`
	MessagesPerFault float64 `json:"messages_per_fault"`
	BytesPerFault    float64 `json:"bytes_per_fault"`
	// P50 and P99 are how long accesses that faulted took until they got through, in µs.
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
	// HomeLoad is the number of messages that the busiest home received as such over the mean of
	// all nodes, and DaemonLoad the working time of the busiest reactor over the mean. 1 is an even
	// load; 0: there was none.
	HomeLoad   float64 `json:"home_load"`
	DaemonLoad float64 `json:"daemon_load"`
	// DaemonBusy is how much of the time the busiest reactor was at work, from 0 to 1.
	DaemonBusy float64 `json:"daemon_busy"`
}

func (r *Result) faultSteps() []step {
	var steps []step
	for _, p := range Patterns() {
		steps = append(steps, r.Options.steps(string(p), func(nodes int) error { return r.faults(p, nodes) })...)
	}
	return steps
}

func (r *Result) faults(p Pattern, nodes int) error {
	phases, err := simulate(&r.Options, patternExperiment(p, nodes, r.Options.random()))
	if err != nil {
		return err
	}
	c := phases[len(phases)-1]
	r.Faults = append(r.Faults, FaultPoint{
		Pattern: p, Nodes: nodes, Accesses: c.Accesses, Faults: c.Faults,
		MessagesPerFault: per(c.onPages(), c.Faults), BytesPerFault: per(c.bytes, c.Faults),
		P50: c.latency(model.RetireAccess, 50), P99: c.latency(model.RetireAccess, 99),
		HomeLoad: imbalance(c.atHome), DaemonLoad: imbalance(c.busy), DaemonBusy: c.share(slices.Max(c.busy)),
	})
	return nil
}
