package settings

import (
	"fmt"
	"runtime"

	"dsmd/node"
	"dsmd/pagetable"
	"dsmd/transport/emulated"
)

// AutoReactors is Values.Reactors of nodes that have as many reactors as each of them can.
const AutoReactors = 0

// A reactor that is busy polls on a processor of its own, and serves about as many threads as this.
// More reactors than maxAutoReactors are for those who have measured them.
const (
	processorsPerReactor = 16
	maxAutoReactors      = 4
)

// MostReactors is how many reactors a node can have, and has processors for, if so many nodes share
// this machine; or how many it was told to have.
func (v *Values) MostReactors(nodes int) int {
	if v.Reactors != AutoReactors {
		return v.Reactors
	}
	n := min(runtime.GOMAXPROCS(0)/processorsPerReactor/nodes, maxAutoReactors)
	if v.Memory != AutoMemory {
		n = min(n, int(min(v.Memory/node.MinMemoryBytes, maxAutoReactors)))
	}
	if n <= 1 || v.servesAlone() != "" || pagetable.Choose(v.Trap).Trap != pagetable.TrapUffd {
		return 1
	}
	return n
}

func (v *Values) servesAlone() string {
	link := emulated.Link{Latency: v.EmulateLatency, Bandwidth: uint64(v.EmulateBandwidth)}
	return node.ServesAlone(v.Trap, link, v.Stages != 0)
}

// CheckReactors tells what a daemon of several reactors cannot do.
func (v *Values) CheckReactors() error {
	if v.Reactors == AutoReactors || v.Reactors == 1 {
		return nil
	}
	if with := v.servesAlone(); with != "" {
		return fmt.Errorf("--reactors %d: a daemon that %s has one reactor; leave out one of them, on all nodes", v.Reactors, with)
	}
	if least := Bytes(v.Reactors) * node.MinMemoryBytes; v.Memory != AutoMemory && v.Memory < least {
		return fmt.Errorf("--memory %v with --reactors %d: each reactor has a part of the memory, and needs %v; give --memory %v at least, or fewer reactors, on all nodes",
			v.Memory, v.Reactors, Bytes(node.MinMemoryBytes), least)
	}
	return nil
}
