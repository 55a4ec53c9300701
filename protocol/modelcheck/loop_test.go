package modelcheck

import (
	"fmt"
	"slices"

	"dsmd/protocol/model"
)

// findLoop looks for states that can follow on themselves. On the way round no access retires,
// because programs do not run backwards: the cluster can be busy for ever and get nowhere.
func (x *explorer) findLoop() *Finding {
	inLoop := x.loopStates()
	if len(inLoop) == 0 {
		return nil
	}
	// Of all loops take one with the fewest actions, counted from the beginning.
	var best, way []uint32
	for _, s := range inLoop { // in the order of their distance from the start
		prefix := x.distance(s)
		if best != nil && prefix+1 >= len(best) {
			break
		}
		limit := x.states.len()
		if best != nil {
			limit = len(best) - prefix - 1
		}
		if loop := x.shortestLoop(s, limit); loop != nil {
			best, way = append(x.wayTo(s), loop...), loop
		}
	}
	return x.loopFinding(best, len(way))
}

// wayTo is a shortest way to s: all states on it but s itself, from the start.
func (x *explorer) wayTo(s uint32) []uint32 {
	var way []uint32
	for s = x.parent[s]; s != noState; s = x.parent[s] {
		way = append(way, s)
	}
	slices.Reverse(way)
	return way
}

func (x *explorer) distance(s uint32) int { return len(x.wayTo(s)) }

// loopFinding describes a way whose last loop states lead back to the first of them.
func (x *explorer) loopFinding(way []uint32, loop int) *Finding {
	sc := &model.Scenario{Config: x.config, Loop: loop}
	for i, s := range way {
		next := way[len(way)-loop]
		if i+1 < len(way) {
			next = way[i+1]
		}
		branch := slices.Index(x.edges[x.first[s]:x.first[s+1]], next)
		sc.Actions = append(sc.Actions, x.actionAt(s, uint32(branch)).String())
	}
	v := &model.Violation{
		Rule:   model.RuleNoProgress,
		Detail: fmt.Sprintf("no thread has retired an access in %d actions, and all is as it was before them", loop),
	}
	sc.Comment = fmt.Sprintf("# A shortest counterexample, %d actions: %s.\n", len(sc.Actions), v.Rule)
	return &Finding{Violation: v, Scenario: sc}
}

// shortestLoop is a shortest way from s to s of at most limit actions: the states on it, from s.
// Nil: there is none.
func (x *explorer) shortestLoop(s uint32, limit int) []uint32 {
	from := map[uint32]uint32{}
	level := []uint32{s}
	for steps := 1; steps <= limit && len(level) > 0; steps++ {
		var following []uint32
		for _, u := range level {
			for _, w := range x.edges[x.first[u]:x.first[u+1]] {
				if w == s {
					way := []uint32{u}
					for u != s {
						u = from[u]
						way = append(way, u)
					}
					slices.Reverse(way)
					return way
				}
				if _, ok := from[w]; !ok {
					from[w] = u
					following = append(following, w)
				}
			}
		}
		level = following
	}
	return nil
}

// loopStates lists the states that lie on a cycle, in ascending order: those in a strongly
// connected component of more than one state, or with an edge to themselves. (Tarjan, "Depth-first
// search and linear graph algorithms", 1972, with an explicit stack.)
func (x *explorer) loopStates() []uint32 {
	const unseen, closed = 0, ^uint32(0)
	n := x.states.len()
	order := make([]uint32, n) // when a state was met, from 1; closed: its component is complete
	low := make([]uint32, n)
	next := slices.Clone(x.first[:n]) // where to go on in edges
	var path, open, loops []uint32
	clock := uint32(0)
	enter := func(s uint32) {
		clock++
		order[s], low[s] = clock, clock
		path, open = append(path, s), append(open, s)
	}
	for root := range uint32(n) {
		if order[root] != unseen {
			continue
		}
		enter(root)
		for len(path) > 0 {
			s := path[len(path)-1]
			if next[s] < x.first[s+1] {
				w := x.edges[next[s]]
				next[s]++
				switch {
				case order[w] == unseen:
					enter(w)
				case order[w] != closed:
					low[s] = min(low[s], order[w])
				}
				continue
			}
			path = path[:len(path)-1]
			if len(path) > 0 {
				low[path[len(path)-1]] = min(low[path[len(path)-1]], low[s])
			}
			if low[s] == order[s] {
				i := len(open) - 1
				for open[i] != s {
					i--
				}
				component := open[i:]
				if len(component) > 1 || slices.Contains(x.edges[x.first[s]:x.first[s+1]], s) {
					loops = append(loops, component...)
				}
				for _, u := range component {
					order[u] = closed
				}
				open = open[:i]
			}
		}
	}
	slices.Sort(loops)
	return loops
}
