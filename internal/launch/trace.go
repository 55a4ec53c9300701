package launch

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"dsmd/internal/runstats"
	"dsmd/internal/runstats/trace"
)

const (
	// tracePieces bounds the pieces that wait to be written: some seconds of several ranks.
	tracePieces = 256
	// traceTime is how long the end of the job waits for a file that is slow.
	traceTime = 10 * time.Second
)

// tracer writes the trace of a job, on a goroutine of its own, because files may be slow. A nil
// tracer writes nothing.
type tracer struct {
	file    *os.File
	claim   *Claim
	began   bool
	pieces  chan arrived
	stop    chan struct{} // closed by end
	ended   chan error    // gets how the file has ended
	notes   []string      // what the trace lacks; set before ended
	dropped atomic.Uint64 // pieces for which writing was too slow
}

// arrived is a piece, and when it came.
type arrived struct {
	runstats.Piece
	at time.Time
}

// openTrace opens the file for the trace. What an earlier job has left there stays until this one
// starts.
func (cfg *Config) openTrace() (*tracer, error) {
	if cfg.Trace == "" {
		return nil, nil
	}
	claim, f, err := openClaim(cfg.Trace)
	if err != nil {
		return nil, fmt.Errorf("launch: the file for the trace: %w", err)
	}
	return &tracer{file: f, claim: claim, pieces: make(chan arrived, tracePieces), stop: make(chan struct{}), ended: make(chan error, 1)}, nil
}

// traceTo has a tracer take pieces; nil: there is none.
func (r *reports) traceTo(t *tracer) {
	if t != nil {
		r.trace = t
		r.taker(t.take)
	}
}

// begin begins the trace of a job that starts now.
func (t *tracer) begin() {
	if t == nil {
		return
	}
	t.began = true
	_ = t.file.Truncate(0) // a pipe has nothing that could be in the way
	go t.write(time.Now())
}

// take takes what has come from a rank. It never waits, and may be called from any goroutine.
func (t *tracer) take(p runstats.Piece) {
	select {
	case t.pieces <- arrived{p, time.Now()}:
	default:
		t.dropped.Add(1)
	}
}

func (t *tracer) write(began time.Time) {
	w := trace.NewWriter(t.file, strings.HasSuffix(t.file.Name(), ".gz"), began)
	stop := t.stop
	for stop != nil || len(t.pieces) > 0 {
		select {
		case p := <-t.pieces:
			w.Add(&p.Piece, p.at)
		case <-stop:
			stop = nil // what has come is still written
		}
	}
	notes, err := w.Close()
	t.notes = notes
	t.ended <- errors.Join(err, t.file.Close())
}

// end ends the trace, if the job has begun one. lines are for the user.
func (t *tracer) end() (lines []string) {
	if t == nil {
		return nil
	}
	if !t.began {
		t.file.Close()
		t.claim.GiveBack()
		return nil
	}
	close(t.stop)
	select {
	case err := <-t.ended:
		if err != nil {
			return []string{fmt.Sprintf("--trace: %v: the trace is not whole", err)}
		}
	case <-time.After(traceTime):
		return []string{fmt.Sprintf("--trace: writing %s takes too long: the trace is not whole", t.file.Name())}
	}
	notes := t.notes
	if n := t.dropped.Load(); n > 0 {
		notes = append(notes, fmt.Sprintf("%d pieces of the log came faster than they could be written", n))
	}
	for _, note := range notes {
		lines = append(lines, "--trace: "+note)
	}
	return append(lines, fmt.Sprintf("the trace is in %s: open it at https://ui.perfetto.dev, which keeps it in the browser, or in chrome://tracing", t.file.Name()))
}
