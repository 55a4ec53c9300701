package launch

import (
	"slices"
	"strings"
	"sync"

	"dsmd/internal/runstats"
	"dsmd/internal/runstats/sharing"
)

// reports are what programs say of themselves.
type reports struct {
	counted []runstats.Record  // by the programs that have ended, if Config.Stats
	profile *Claim             // nil: none is wanted
	trace   *tracer            // nil: none is wanted
	sharing *sharing.Collector // nil: nobody wants to know
	// hangs are what programs have found that does not move, each once. It has room for some: what
	// comes while nobody takes them says the same again, or comes too fast.
	hangs chan runstats.Hang

	mu   sync.Mutex
	said string // the key of the last hang; guarded by mu

	passing sync.Mutex               // held while a piece is passed on
	takers  []func(p runstats.Piece) // of pieces; set before the job starts; guarded by passing
}

func newReports() *reports { return &reports{hangs: make(chan runstats.Hang, 16)} }

// hearLine is hear of what has come from another machine. What makes no sense is as if it had not
// been said.
func (r *reports) hearLine(who childID, line []byte) {
	if x, err := runstats.Decode(line); err == nil {
		r.hear(who, x)
	}
}

// hear takes what a program says before its end, from any goroutine.
func (r *reports) hear(who childID, x runstats.Statement) {
	switch h, p := x.Hang, x.Piece; {
	case who.Role != program:
	case h != nil && len(h.Lines) > 0:
		r.hangsAs(h)
	case p != nil && p.Rank == who.Index:
		r.pass(p)
	}
}

// taker has f called with each piece that a program writes: those of one program in order, and one
// at a time, on any goroutine. f must not block, for the program's next pieces wait meanwhile.
func (r *reports) taker(f func(p runstats.Piece)) {
	r.passing.Lock()
	defer r.passing.Unlock()
	r.takers = append(r.takers, f)
}

func (r *reports) pass(p *runstats.Piece) {
	r.passing.Lock()
	defer r.passing.Unlock()
	for _, take := range r.takers {
		take(*p)
	}
}

// close ends the reports: no piece is passed on any more.
func (r *reports) close() {
	r.passing.Lock()
	defer r.passing.Unlock()
	r.takers = nil
}

// hangsAs takes what a program has found that does not move.
func (r *reports) hangsAs(h *runstats.Hang) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.Key == r.said {
		return
	}
	select {
	case r.hangs <- *h:
		r.said = h.Key
	default:
	}
}

// sayHang says what does not move, and ends the job if that is because ranks have ended too early.
func (s *supervisor) sayHang(h runstats.Hang) {
	if s.failed || s.interrupted != 0 {
		return
	}
	s.notice("%s", strings.Join(h.Lines, "\n"))
	if !s.cfg.FailOnEarlyExit || len(h.Ended) == 0 {
		return
	}
	var early []string
	for _, c := range s.children {
		if c.Role == program && slices.Contains(h.Ended, c.Index) {
			early = append(early, c.String())
		}
	}
	has := "has ended while others wait for it"
	if len(early) > 1 {
		has = "have ended while others wait for them"
	}
	s.notice("%s %s: ending the job (--fail-on-early-exit)", strings.Join(early, ", "), has)
	s.fail(StatusEarlyExit)
}
