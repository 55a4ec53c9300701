package modelcheck

import (
	"cmp"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
)

// Queue is cases that are explored one after another.
type Queue struct {
	Cases []Case
	// Share ends the queue: no case is begun when those before it had so many states. 0: all are
	// explored.
	Share int
	// Cut says that a case with more than maxStates is left there, and is no error.
	Cut bool
	// maxStates bounds one case.
	maxStates int
}

// What one family may take, in states.
const (
	// maxStates bounds one configuration. The suite must stay below: what is not visited is not
	// checked.
	maxStates = 32 << 20
	// defaultShare is of Default, and defaultStates of one configuration there, which few exceed.
	// With ninety families, many of them smaller, this is some two million states.
	defaultShare, defaultStates = 20_000, 50_000
	// shortShare is of Short, and shortStates of one configuration there.
	shortShare, shortStates = 20_000, 50_000
)

// Plan says which cases are explored at a bound, of the families whose names contain family.
//
// At Default a configuration is explored as a whole, unless it is among the few that are very
// large, because in most configurations the states near the start are the same, and a search that
// is cut off sees no others. Each family has a share. Its configurations come without repeated
// faults first, with few operations first, else in an order that says nothing about them, and that
// is the same each time.
func Plan(b Bound, family string) []Queue {
	others := func(c Case) bool { return !strings.Contains(c.Family, family) }
	if b >= Full {
		var all []Queue
		for _, c := range slices.DeleteFunc(Suite(b), others) {
			all = append(all, Queue{Cases: []Case{c}, maxStates: maxStates})
		}
		return all
	}
	queue := Queue{Share: shortShare, Cut: true, maxStates: shortStates}
	cases := inOrder(Suite(Short))
	if b == Default {
		queue = Queue{Share: defaultShare, Cut: true, maxStates: defaultStates}
		known := map[string]bool{}
		for _, c := range cases {
			known[c.Config.String()] = true
		}
		cases = append(cases, inOrder(slices.DeleteFunc(Suite(Full), func(c Case) bool { return known[c.Config.String()] }))...)
	}
	return byFamily(slices.DeleteFunc(cases, others), queue)
}

// byFamily makes a queue like the given one of each family.
func byFamily(cases []Case, like Queue) []Queue {
	var all []Queue
	where := map[string]int{}
	for _, c := range cases {
		i, ok := where[c.Family]
		if !ok {
			i = len(all)
			where[c.Family] = i
			all = append(all, like)
		}
		all[i].Cases = append(all[i].Cases, c)
	}
	return all
}

// inOrder sorts cases: those of few operations come first.
func inOrder(cases []Case) []Case {
	slices.SortStableFunc(cases, func(c, d Case) int {
		return cmp.Or(cmp.Compare(c.operations(), d.operations()), cmp.Compare(c.hash(), d.hash()))
	})
	return cases
}

func (c Case) operations() int {
	n := 0
	for _, t := range c.Config.Threads {
		n += len(t.Program)
	}
	return n
}

func (c Case) hash() uint64 {
	h := fnv.New64a()
	h.Write([]byte(c.Config.String()))
	return h.Sum64()
}

// Run explores queues on several goroutines, and calls report for each case as it is done, one call
// at a time and in any order. It ends early when report returns false.
func Run(queues []Queue, workers int, report func(Queue, Case, *Result) bool) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	next, stop := 0, false
	take := func() (Queue, bool) {
		mu.Lock()
		defer mu.Unlock()
		if stop || next == len(queues) {
			return Queue{}, false
		}
		next++
		return queues[next-1], true
	}
	done := func(q Queue, c Case, r *Result) bool {
		mu.Lock()
		defer mu.Unlock()
		stop = stop || !report(q, c, r)
		return !stop
	}
	for range workers {
		wg.Go(func() {
			for q, ok := take(); ok; q, ok = take() {
				states := 0
				for _, c := range q.Cases {
					r := Explore(c.Config, q.maxStates)
					if !done(q, c, r) {
						return
					}
					if states += r.States; q.Share > 0 && states >= q.Share {
						break
					}
				}
			}
		})
	}
	wg.Wait()
}
