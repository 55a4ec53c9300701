package sim

import (
	"fmt"
	"slices"
	"time"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

// HotPoint is what happens to one page when many nodes read it at once and one of them then writes
// it. The page has been written by its owner, which is not its home.
type HotPoint struct {
	Nodes int `json:"nodes"`
	// those that the page came to: the owner, who had it, is not among them
	Readers int `json:"readers"`
	// Way is where the readers are.
	Way Way `json:"way"`

	// ReadAll is from the first reader's fault to when the last one has read, and ReadP50 how long
	// half of them waited at most, in µs.
	ReadAll float64 `json:"read_all_us"`
	ReadP50 float64 `json:"read_p50_us"`
	// ReadMessages and ReadBytes are all that travelled.
	ReadMessages int `json:"read_messages"`
	ReadBytes    int `json:"read_bytes"`
	// Supplied is how many of the pages came from the node that sent most.
	Supplied int `json:"supplied"`

	// Write is how long the writer waited, in µs.
	Write         float64 `json:"write_us"`
	WriteMessages int     `json:"write_messages"`
	WriteBytes    int     `json:"write_bytes"`
	// Invalidations were sent to other nodes, of which Needless to nodes without a copy.
	Invalidations int `json:"invalidations"`
	Needless      int `json:"needless"`
}

// A Way is where the readers of the hot page are.
type Way string

const (
	// Scattered: anywhere in the cluster.
	Scattered Way = "scattered readers"
	// Neighbours: one behind the other in the order of nodes.
	Neighbours Way = "neighbouring readers"
	// HomeFirst: anywhere, and the page's home has read it before them.
	HomeFirst Way = "scattered, home has a copy"
)

const (
	// hotHome, hotOwner are roles of nodes; hotPage's home is the first.
	hotHome, hotOwner = 0, 1
	hotPage           = 0
	// hotRead and hotWrite are when the reading and the writing begin. Each is over long before the
	// next.
	hotRead, hotWrite = time.Second, 2 * time.Second
	// mostHotReaders is the largest number of readers, as far as the cluster has them.
	mostHotReaders = 1000
)

func (r *Result) hotSteps() []step {
	var steps []step
	nodes := r.Options.MaxNodes
	for _, way := range []Way{Scattered, Neighbours, HomeFirst} {
		if nodes == 2 && way == HomeFirst {
			continue // then the home is the reader
		}
		for _, readers := range hotReaders(nodes) {
			name := fmt.Sprintf("hot page, %d of %d nodes, %s", readers, nodes, way)
			steps = append(steps, step{name, func() error { return r.hot(nodes, readers, way) }})
		}
	}
	return steps
}

// hotReaders are the powers of two up to what a cluster has beside home and owner, and the most. In
// a cluster of two the home reads.
func hotReaders(nodes int) []int {
	most := max(1, min(mostHotReaders, nodes-2))
	var all []int
	for n := 1; n < most; n *= 2 {
		all = append(all, n)
	}
	return append(all, most)
}

func (r *Result) hot(nodes, readers int, way Way) error {
	chosen := chooseReaders(&r.Options, nodes, readers, way)
	e := &experiment{
		programs: make([]model.Program, nodes), pages: uint64(nodes), start: make([]time.Duration, nodes),
		phases: []time.Duration{hotRead, hotWrite},
	}
	e.programs[hotOwner] = model.Program{{Kind: model.OpWrite, Number: hotPage}}
	if way == HomeFirst {
		e.programs[hotHome] = model.Program{{Kind: model.OpRead, Number: hotPage}}
		e.start[hotHome] = hotRead / 2
	}
	for _, n := range chosen {
		e.programs[n] = model.Program{{Kind: model.OpRead, Number: hotPage}}
		e.start[n] = hotRead
	}
	writer := chosen[0]
	e.pause = hotWrite - hotRead
	e.programs[writer] = append(e.programs[writer], model.Op{Kind: model.OpWrite, Number: hotPage})
	phases, err := simulate(&r.Options, e)
	if err != nil {
		return err
	}
	if len(phases) != 3 || phases[1].Accesses != readers || phases[2].Accesses != 1 {
		return fmt.Errorf("sim: %d readers were not through within %v", readers, hotWrite-hotRead)
	}
	read, write := phases[1], phases[2]
	invalidations := write.messages[protocol.KindInvalidate]
	r.Hot = append(r.Hot, HotPoint{
		Nodes: nodes, Readers: readers, Way: way,
		ReadAll: inMicros(read.ended - hotRead), ReadP50: read.latency(model.RetireAccess, 50),
		ReadMessages: read.onPages(), ReadBytes: read.bytes, Supplied: slices.Max(read.supplied),
		Write: write.latency(model.RetireAccess, 50), WriteMessages: write.onPages(), WriteBytes: write.bytes,
		Invalidations: invalidations, Needless: invalidations - write.invalidated,
	})
	return nil
}

// chooseReaders are nodes that are neither home nor owner, in a cluster of more than two.
func chooseReaders(o *Options, nodes, readers int, way Way) []int {
	if nodes == 2 {
		return []int{hotHome}
	}
	candidates := make([]int, 0, nodes)
	for n := hotOwner + 1; n < nodes; n++ {
		candidates = append(candidates, n)
	}
	if way != Neighbours {
		o.random().Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
	}
	return candidates[:readers]
}
