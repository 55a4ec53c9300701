package launch

import (
	"strings"
	"sync"
	"time"

	"dsmd/internal/runstats"
)

const (
	// hangAfter is for how long all ranks have waited when they are said to hang, and lookEvery how
	// often that is looked at.
	hangAfter = 10 * time.Second
	lookEvery = time.Second
	// freshFor is for how long what a rank has said holds: it says so again as long as it is true.
	freshFor = 8 * time.Second
)

// reports are what programs say of themselves.
type reports struct {
	counted []runstats.Record // by the programs that have ended, if Config.Stats
	tick    *time.Ticker
	said    string  // about a hang, last
	trace   *tracer // nil: none is wanted

	mu    sync.Mutex
	stuck map[int]heard // by rank; guarded by mu

	passing sync.Mutex               // held while a piece is passed on
	takers  []func(p runstats.Piece) // of pieces; set before the job starts; guarded by passing
}

// heard is what a rank was stuck at, and when.
type heard struct {
	runstats.Stuck
	at time.Time
}

func newReports() *reports {
	return &reports{tick: time.NewTicker(lookEvery), stuck: map[int]heard{}}
}

// hear takes what a program says before its end, from any goroutine. What makes no sense is as if
// it had said nothing.
func (r *reports) hear(who childID, line []byte) {
	x, err := runstats.Decode(line)
	switch s, p := x.Stuck, x.Piece; {
	case err != nil || who.Role != program:
	case s != nil && s.Rank == who.Index && len(s.Waits) > 0:
		r.isStuck(s)
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
	r.tick.Stop()
	r.passing.Lock()
	defer r.passing.Unlock()
	r.takers = nil
}

// isStuck takes what a program is stuck at.
func (r *reports) isStuck(s *runstats.Stuck) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stuck[s.Rank] = heard{*s, time.Now()}
}

// hang is why nothing moves: no lines if something does, or if that was said before.
func (r *reports) hang(children []*child, now time.Time) (lines []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var stuck []runstats.Stuck
	var ended []int
	longest := time.Duration(0)
	for _, c := range children {
		switch x, known := r.stuck[c.Index]; {
		case c.Role != program:
		case c.ended:
			ended = append(ended, c.Index)
		case !known || now.Sub(x.at) > freshFor:
			r.said = ""
			return nil // it does something else
		default:
			stuck = append(stuck, x.Stuck)
			longest = max(longest, x.Waits[0].For+now.Sub(x.at))
		}
	}
	if len(stuck) == 0 || longest < hangAfter {
		return nil
	}
	lines = runstats.Explain(stuck, ended)
	if text := strings.Join(lines, "\n"); text != r.said {
		r.said = text
		return lines
	}
	return nil
}

// sayHang says why nothing moves.
func (s *supervisor) sayHang() {
	if s.failed || s.interrupted != 0 {
		return
	}
	if lines := s.reports.hang(s.children, time.Now()); len(lines) > 0 {
		s.notice("nothing moves: no rank computes, and all wait\n%s", strings.Join(lines, "\n"))
	}
}
