package litmus

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/dsm"
)

// Placement is where the variables of a round lie.
type Placement string

// Apart: on pages with different homes, which are used over and over. Together: on one page. Fresh:
// as Apart, but no page was touched before the round.
const (
	Apart    Placement = "apart"
	Together Placement = "together"
	Fresh    Placement = "fresh"
)

// Result is the outcomes of the rounds of a shape in one variant.
type Result struct {
	Shape      string
	Nodes      int
	Atomic     bool // accesses by sync/atomic, else plain ones
	Placement  Placement
	Model      Model // that the outcomes are held to
	Rounds     int
	Overlapped int // rounds in which at some moment all threads were between their begin and end
	Outcomes   map[Outcome]int
}

const (
	// homeStripe is how many neighbouring pages have one home; it is part of what users are told of
	// the placement of pages.
	homeStripe = 16
	// regionOffset are the bits of an address that tell the place in the region, which begins at a
	// multiple of it.
	regionOffset = 1<<46 - 1
	// freshRounds is for how many rounds one allocation of untouched pages suffices: freshStripes
	// of each home.
	freshRounds    = freshStripes * freshPerStripe
	freshStripes   = 8
	freshPerStripe = homeStripe / maxVars // rounds
	// lead is how far ahead the start of a round is agreed on: about what the answer to a Reduce
	// takes to be everywhere.
	lead = 60 * time.Microsecond
	// jitter is by how much a thread starts later than agreed on, at most.
	jitter = 30 * time.Microsecond
)

// Runner runs shapes on one rank. All ranks make the same calls in the same order.
type Runner struct {
	ctx    context.Context
	c      *dsm.Cluster
	common *rand.Rand // the same on all ranks
	own    *rand.Rand
	round  uint64                  // counts all rounds; tells values of different rounds apart
	words  int                     // of a page
	pages  memory                  // used over and over
	fresh  memory                  // not touched yet
	used   memory                  // the fresh pages before, until the last values are read
	block  uint64                  // number of the fresh pages
	crew   [maxThreads]chan func() // threads; each runs one of a round's
}

// memory is shared pages, beginning with the first page of a stripe.
type memory struct {
	all   []uint64
	words []uint64
}

// NewRunner is called on every rank with the same seed.
func NewRunner(ctx context.Context, c *dsm.Cluster, seed uint64) (*Runner, error) {
	r := &Runner{
		ctx: ctx, c: c, words: c.PageBytes() / 8,
		common: rand.New(rand.NewPCG(seed, 0)), own: rand.New(rand.NewPCG(seed, 1+uint64(c.Rank()))),
	}
	var err error
	if r.pages, err = r.allocate("litmus", 1); err != nil {
		return nil, err
	}
	for t := range r.crew {
		work := make(chan func())
		r.crew[t] = work
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for f := range work {
				f()
			}
		}()
	}
	return r, nil
}

// Close ends the runner's goroutines and gives its memory back.
func (r *Runner) Close() error {
	for _, work := range r.crew {
		close(work)
	}
	for _, m := range []memory{r.pages, r.fresh, r.used} {
		if err := dsm.Free(r.ctx, r.c, m.all); err != nil {
			return err
		}
	}
	return nil
}

// allocate makes memory of stripes for every home.
func (r *Runner) allocate(name string, stripes int) (memory, error) {
	pages := (stripes*r.c.Nodes() + 1) * homeStripe
	all, err := dsm.Alloc[uint64](r.ctx, r.c, name, pages*r.words)
	if err != nil {
		return memory{}, err
	}
	first := uintptr(unsafe.Pointer(&all[0])) & regionOffset / uintptr(r.c.PageBytes())
	skip := (homeStripe - int(first%homeStripe)) % homeStripe
	return memory{all, all[skip*r.words:]}, nil
}

// beat is what ranks tell each other between rounds: when the next one starts, and how the last one
// went.
type beat struct {
	Start      int64 // clock; the latest counts
	Begin, End int64 // clock: the latest begin of a thread, the earliest end
	Outcome    Outcome
}

func combine(a, b beat) beat {
	return beat{max(a.Start, b.Start), max(a.Begin, b.Begin), min(a.End, b.End), a.Outcome | b.Outcome}
}

// clock is the same for all processes of a machine, in nanoseconds.
func clock() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// plan is one round, the same on all ranks.
type plan struct {
	shape  *Shape
	atomic bool
	vars   [maxVars]*uint64
	ranks  [maxThreads]int // of the threads
	base   uint64          // 0 is stored as anything below, value v as base+v
	model  Model
}

// Run runs rounds of a shape. Preconditions: there is one program on each node. Rank 0 gets the
// results, one for each model that some of the rounds were held to; the others get none.
func (r *Runner) Run(s *Shape, rounds int, atomics bool, place Placement) ([]Result, error) {
	relaxed := len(s.Allowed(TSO)) > len(s.Allowed(SC))
	results := map[Model]*Result{}
	for _, m := range []Model{SC, TSO} {
		results[m] = &Result{Shape: s.Name, Nodes: r.c.Nodes(), Atomic: atomics, Placement: place, Model: m, Outcomes: map[Outcome]int{}}
	}
	var last plan
	mine := idle()
	for i := range rounds + 1 { // the last Reduce only collects
		var p plan
		if i < rounds {
			var err error
			if p, err = r.plan(s, atomics, place, relaxed); err != nil {
				return nil, err
			}
			r.warm(&p, place)
		}
		mine.Start = clock() + int64(lead)
		all, err := dsm.Reduce(r.ctx, r.c, "litmus", mine, combine)
		if err != nil {
			return nil, fmt.Errorf("round %d of %s: %w", i, s.Name, err)
		}
		mine = idle()
		if i < rounds {
			mine = r.perform(&p, all.Start)
		}
		// The threads of the last round have all ended. Had its last values been read before this
		// round, this node would have come late to it; its variables are others.
		if i > 0 && r.c.Rank() == 0 {
			results[last.model].add(&last, all)
		}
		last = p
	}
	if r.c.Rank() != 0 {
		return nil, nil
	}
	var list []Result
	for _, m := range []Model{SC, TSO} {
		if results[m].Rounds > 0 {
			list = append(list, *results[m])
		}
	}
	return list, nil
}

// add counts a round.
func (res *Result) add(p *plan, b beat) {
	o := b.Outcome
	if p.shape.Final {
		loads := p.shape.firstLoad(len(p.shape.Threads))
		for v := range p.shape.vars() {
			o = o.with(loads+v, p.value(atomic.LoadUint64(p.vars[v])))
		}
	}
	res.Rounds++
	res.Outcomes[o]++
	if b.Begin < b.End {
		res.Overlapped++
	}
}

func idle() beat { return beat{Begin: math.MinInt64, End: math.MaxInt64} }

// plan draws the next round.
func (r *Runner) plan(s *Shape, atomics bool, place Placement, relaxed bool) (plan, error) {
	r.round++
	p := plan{shape: s, atomic: atomics, base: r.round * (maxValue + 1), model: SC}
	if err := r.placeVars(&p, place); err != nil {
		return plan{}, err
	}
	nodes, threads := r.c.Nodes(), len(s.Threads)
	distinct := true
	if nodes >= threads && r.common.IntN(4) > 0 {
		copy(p.ranks[:threads], r.common.Perm(nodes))
	} else {
		taken := map[int]bool{}
		for t := range threads {
			p.ranks[t] = r.common.IntN(nodes)
			distinct = distinct && !taken[p.ranks[t]]
			taken[p.ranks[t]] = true
		}
	}
	if relaxed && !atomics && !distinct {
		p.model = TSO
	}
	return p, nil
}

// placeVars gives the variables of a round their addresses. Rounds that follow each other use
// different pages.
func (r *Runner) placeVars(p *plan, place Placement) error {
	nodes := r.c.Nodes()
	turn := int(r.round % 2)
	shift := r.common.IntN(nodes)
	page := func(m memory, page int) *uint64 { return &m.words[page*r.words] }
	switch place {
	case Together:
		spread := []int{1, 8}[r.common.IntN(2)] // words: in one cache line, or each in its own
		first := page(r.pages, shift*homeStripe+turn)
		words := unsafe.Slice(first, r.words)
		for v := range p.vars {
			p.vars[v] = &words[v*spread]
		}
	case Apart:
		for v := range p.vars {
			p.vars[v] = page(r.pages, (v+shift)%nodes*homeStripe+2+turn*maxVars+v)
		}
	case Fresh:
		if err := r.renew(); err != nil {
			return err
		}
		i := int(r.round % uint64(freshRounds))
		for v := range p.vars {
			// Variables with one home lie on different pages of the stripe, some of them
			// neighbours.
			p.vars[v] = page(r.fresh, (i/freshPerStripe*nodes+(v+shift)%nodes)*homeStripe+i%freshPerStripe*maxVars+v)
		}
	}
	return nil
}

// renew makes untouched pages when the last ones are used up.
func (r *Runner) renew() error {
	if block := r.round / uint64(freshRounds); r.fresh.all == nil || block != r.block {
		r.block = block
		if err := dsm.Free(r.ctx, r.c, r.used.all); err != nil {
			return err
		}
		r.used = r.fresh
		var err error
		if r.fresh, err = r.allocate(fmt.Sprintf("litmus %d", block), freshStripes); err != nil {
			return err
		}
	}
	return nil
}

// warm brings the pages of the next round into some state.
func (r *Runner) warm(p *plan, place Placement) {
	for v := range p.shape.vars() {
		do := r.own.IntN(3)
		if place == Fresh && r.own.IntN(4) > 0 {
			do = 0
		}
		switch do {
		case 1:
			atomic.LoadUint64(p.vars[v])
		case 2:
			atomic.AddUint64(p.vars[v], 0) // needs the only copy, and changes nothing
		}
	}
}

// perform runs the threads of a round that are this rank's.
func (r *Runner) perform(p *plan, start int64) beat {
	var beats [maxThreads]beat
	var crew sync.WaitGroup
	for t := range beats {
		beats[t] = idle()
	}
	for t := range p.shape.Threads {
		if p.ranks[t] != r.c.Rank() {
			continue
		}
		at := start + r.own.Int64N(int64(jitter))
		crew.Add(1)
		r.crew[t] <- func() { beats[t] = p.thread(t, at); crew.Done() }
	}
	crew.Wait()
	all := idle()
	for _, b := range beats {
		all = combine(all, b)
	}
	return all
}

// thread runs thread t at the given time of the clock.
func (p *plan) thread(t int, at int64) beat {
	place := p.shape.firstLoad(t)
	var got [maxLoads]uint64
	for clock() < at {
	}
	b := beat{Begin: clock()}
	if p.atomic {
		p.runAtomic(p.shape.Threads[t], &got)
	} else {
		p.runPlain(p.shape.Threads[t], &got)
	}
	b.End = clock()
	for i := range p.shape.loads(t) {
		b.Outcome = b.Outcome.with(place+i, p.value(got[i]))
	}
	return b
}

func (p *plan) runAtomic(ops []Op, got *[maxLoads]uint64) {
	loads := 0
	for _, op := range ops {
		if op.Store {
			atomic.StoreUint64(p.vars[op.Var], p.base+uint64(op.Value))
		} else {
			got[loads] = atomic.LoadUint64(p.vars[op.Var])
			loads++
		}
	}
}

func (p *plan) runPlain(ops []Op, got *[maxLoads]uint64) {
	loads := 0
	for _, op := range ops {
		if op.Store {
			store(p.vars[op.Var], p.base+uint64(op.Value))
		} else {
			got[loads] = load(p.vars[op.Var])
			loads++
		}
	}
}

// load and store are plain accesses, which the compiler can not move across calls that it does not
// look into.
//
//go:noinline
//go:norace
func load(p *uint64) uint64 { return *p }

//go:noinline
//go:norace
func store(p *uint64, v uint64) { *p = v }

// value tells what a load of this round returned: 0 is what the variable was before.
func (p *plan) value(v uint64) int {
	switch {
	case v < p.base:
		return 0
	case v-p.base <= maxValue:
		return int(v - p.base)
	}
	return strange
}
