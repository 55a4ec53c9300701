package launch

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Binding is whether the nodes of one machine have processors of their own.
type Binding string

// The bindings.
const (
	// Unbound lets the kernel choose; "" is the same.
	Unbound Binding = "none"
	// ToCores divides the processors of each machine among its nodes: the daemon and the programs
	// of a node run on its part, and nobody else's do.
	ToCores Binding = "core"
)

// Bindings are the names of all.
var Bindings = []string{string(ToCores), string(Unbound)}

// divideProcessors divides the processors that this process may use among so many nodes:
// neighbouring ones to each, as equally as can be.
func divideProcessors(nodes int) ([]unix.CPUSet, error) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, fmt.Errorf("launch: the processors of this machine: %w", err)
	}
	count := all.Count()
	if count < nodes {
		return nil, fmt.Errorf("launch: --bind %s: this machine has %d processors, and %d nodes want one each at least: start fewer nodes here, or use --bind %s",
			ToCores, count, nodes, Unbound)
	}
	parts := make([]unix.CPUSet, nodes)
	for cpu, i := 0, 0; i < count; cpu++ {
		if all.IsSet(cpu) {
			parts[i*nodes/count].Set(cpu)
			i++
		}
	}
	return parts, nil
}

// crowdedAt is how many programs may share a processor before that is said. So many are usual: who
// tries out a program on several nodes seldom has as many processors.
const crowdedAt = 8

// sayCrowded says what it means that many programs run on this machine, with its processors.
func sayCrowded(s *supervisor, processors int) {
	if programs := s.plan.ranks; len(s.cfg.Hosts) == 0 && programs > crowdedAt*processors {
		s.notice("%d programs run here, more than %d for each processor: whoever waits for another waits for a processor first, "+
			"and how long this takes says nothing of a cluster (--stats shows such waits under NO CPU)", programs, crowdedAt)
	}
}
