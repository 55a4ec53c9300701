package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"dsmd/protocol"
)

// A Section is a set of experiments that are shown together.
type Section string

const (
	// Faults: what a fault costs, by the way in which pages are shared, and how the work spreads
	// over the homes.
	Faults Section = "faults"
	// Barriers and reductions, one after the other.
	Barriers Section = "barriers"
	// Locks that are free, and one that all nodes want at once.
	Locks Section = "locks"
	// Hot: one page that many nodes read, and one of them then writes.
	Hot Section = "hot"
	// Names: memory that all nodes allocate by one name.
	Names Section = "names"
	// Wide: nodes with many threads, whose daemons have one or more reactors.
	Wide Section = "wide"
)

// Sections are all of them, with what is told of each.
var Sections = []struct {
	Section Section
	Summary string
}{
	{Faults, "messages, bytes and time of a fault, and the load of the homes, by the way in which pages are shared"},
	{Barriers, "barriers and reductions of all nodes"},
	{Locks, "a lock that is free at another node, and one that all nodes want"},
	{Hot, "one page that up to 1,000 nodes read at once, and that one of them then writes"},
	{Names, "an allocation of all nodes at once, by one name"},
	{Wide, "nodes of up to 64 threads, with one to eight reactors: how many faults they get through, and what limits them"},
}

// Options are what to simulate. Validate says what they may be.
type Options struct {
	// Sections are what to simulate, in this order.
	Sections []Section `json:"sections"`
	// MaxNodes is the largest cluster. The others are half of it, a quarter, and so on, down to two
	// nodes.
	MaxNodes int `json:"max_nodes"`
	// Seed decides which pages are accessed and how long threads compute. The same options give the
	// same result.
	Seed uint64 `json:"seed"`
	// HomeStripe, Hold and MaxHold are the engines', see protocol.Config.
	HomeStripe uint64        `json:"home_stripe_pages"`
	Hold       time.Duration `json:"hold_ns"`
	MaxHold    time.Duration `json:"max_hold_ns"`
	// TreeFrom and TreeArity are the engines', see protocol.Config.
	TreeFrom  int `json:"tree_from,omitempty"`
	TreeArity int `json:"tree_arity,omitempty"`
	// ManyReaders is the engines', see protocol.Config.
	ManyReaders int `json:"many_readers,omitempty"`
	// Compute is how long a thread computes between two accesses, on the average.
	Compute time.Duration `json:"compute_ns"`
	Costs   Costs         `json:"costs"`
}

// DefaultOptions are all sections with up to protocol.MaxNodes nodes, and the daemon's own
// settings.
func DefaultOptions() Options {
	return Options{
		Sections: SectionNames(), MaxNodes: protocol.MaxNodes, Seed: 1, HomeStripe: 16,
		Hold: 20 * time.Microsecond, MaxHold: 20 * time.Millisecond, Compute: 5 * time.Microsecond, Costs: DefaultCosts(),
	}
}

// SectionNames are the names of Sections.
func SectionNames() []Section {
	var names []Section
	for _, s := range Sections {
		names = append(names, s.Section)
	}
	return names
}

// maxCompute bounds Options.Compute: a program that computes for longer has no faults worth a
// simulation.
const maxCompute = time.Second

// Validate says what is wrong with the options.
func (o *Options) Validate() error {
	for _, s := range o.Sections {
		if !slices.Contains(SectionNames(), s) {
			return fmt.Errorf("sim: there is no section %q; there are %v", s, SectionNames())
		}
	}
	switch {
	case len(o.Sections) == 0:
		return fmt.Errorf("sim: no section; there are %v", SectionNames())
	case o.MaxNodes < 2 || o.MaxNodes > protocol.MaxNodes || o.MaxNodes&(o.MaxNodes-1) != 0:
		return fmt.Errorf("sim: clusters of up to %d nodes; use a power of two from 2 to %d", o.MaxNodes, protocol.MaxNodes)
	case o.HomeStripe == 0:
		return fmt.Errorf("sim: a home stripe of no pages; it is at least one page")
	case o.Hold < 0 || o.MaxHold < o.Hold || o.MaxHold > time.Second:
		return fmt.Errorf("sim: pages are held for %v, at most %v: the first is at most the second, and that at most 1s", o.Hold, o.MaxHold)
	case o.TreeFrom < 0 || o.TreeArity < 0 || o.TreeArity > protocol.MaxTreeArity:
		return fmt.Errorf("sim: trees from %d nodes on, with %d below each; use 0 or more, and at most %d below each", o.TreeFrom, o.TreeArity, protocol.MaxTreeArity)
	case o.ManyReaders < 0:
		return fmt.Errorf("sim: pages are sent to all who wait from %d readers on; use 0 or more", o.ManyReaders)
	case o.Compute < 0 || o.Compute > maxCompute:
		return fmt.Errorf("sim: threads compute for %v between accesses; use 0 to %v", o.Compute, maxCompute)
	}
	return o.Costs.validate()
}

// random is where the experiments' choices come from: each has the same, whichever others there
// are.
func (o *Options) random() *rand.Rand { return rand.New(rand.NewPCG(o.Seed, 0x5ca1e)) }

// steps are experiments of one kind, one for each number of nodes to simulate.
func (o *Options) steps(what string, do func(nodes int) error) (steps []step) {
	for n := 2; n <= o.MaxNodes; n *= 2 {
		steps = append(steps, step{fmt.Sprintf("%s, %d nodes", what, n), func() error { return do(n) }})
	}
	return steps
}

// Result is what was simulated.
type Result struct {
	Options Options      `json:"options"`
	Faults  []FaultPoint `json:"faults,omitempty"`
	Sync    []SyncPoint  `json:"sync,omitempty"`
	Hot     []HotPoint   `json:"hot,omitempty"`
	Wide    []WidePoint  `json:"wide,omitempty"`
}

// Run simulates all sections. progress is told what comes next and how many experiments of how many
// are done. The error is ctx's cause, or a violation of the protocol.
func Run(ctx context.Context, o Options, progress func(what string, done, of int)) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	r := &Result{Options: o}
	var steps []step
	for _, s := range o.Sections {
		switch s {
		case Faults:
			steps = append(steps, r.faultSteps()...)
		case Barriers:
			steps = append(steps, r.barrierSteps()...)
		case Locks:
			steps = append(steps, r.lockSteps()...)
		case Hot:
			steps = append(steps, r.hotSteps()...)
		case Names:
			steps = append(steps, r.nameSteps()...)
		case Wide:
			steps = append(steps, r.wideSteps()...)
		}
	}
	for i, s := range steps {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		progress(s.name, i, len(steps))
		if err := s.do(); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return r, nil
}

// step is one experiment, which adds to a result.
type step struct {
	name string
	do   func() error
}
