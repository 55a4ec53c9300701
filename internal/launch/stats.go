package launch

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"

	"dsmd/internal/runstats"
	"dsmd/internal/runstats/pprof"
)

// saidFunc is told what a program says of itself before its end, and the line that has it. It must
// not wait for long.
type saidFunc func(x runstats.Statement, line []byte)

// statements are what a program says of itself: they take the text of a stream.
type statements struct {
	said saidFunc

	mu     sync.Mutex
	text   []byte // a line that has not ended; guarded by mu
	record []byte // the last line that has what it has counted; guarded by mu
}

// write implements output. A line that is too long is cut, and so makes no sense.
func (s *statements) write(_ string, text []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for part := range bytes.Lines(text) {
		if len(s.text)+len(part) <= runstats.MaxBytes+maxLineBytes {
			s.text = append(s.text, part...)
		}
		if part[len(part)-1] != '\n' {
			continue
		}
		switch x, err := runstats.Decode(s.text); {
		case err != nil:
		case x.Record != nil:
			s.record = bytes.Clone(s.text)
		default:
			s.said(x, s.text)
		}
		s.text = s.text[:0]
	}
	return nil
}

// last is what the program has counted, nil if it has not said so.
func (s *statements) last() []byte {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record
}

// hear gives a program the writing end of a pipe, for what it says of itself. The caller closes it
// once the program has it.
func (p *process) hear(said saidFunc) (w *os.File, err error) {
	p.says = &statements{said: said}
	st, w, err := newStream("", p.says)
	if err != nil {
		return nil, fmt.Errorf("launch: making a pipe for what %v says of itself: %w", p.id, explainLimit(err))
	}
	st.whole = true
	p.streams = append(p.streams, st)
	p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, w)
	p.cmd.Env = append(p.cmd.Env, fmt.Sprintf("%s=%d", runstats.Env, 2+len(p.cmd.ExtraFiles)))
	return w, nil
}

// count takes note of what a program has counted. What makes no sense is as if it had said nothing.
func (s *supervisor) count(c *child, line []byte) {
	x, err := runstats.Decode(line)
	if r := x.Record; err == nil && r != nil && c.Role == program && r.Rank == c.Index {
		s.reports.counted = append(s.reports.counted, *r)
	}
}

// claimProfile finds out whether there will be a place for the profile; nil: none is wanted.
func (cfg *Config) claimProfile() (*Claim, error) {
	if cfg.Profile == "" {
		return nil, nil
	}
	claim, err := NewClaim(cfg.Profile)
	if err != nil {
		return nil, fmt.Errorf("launch: the file for the profile: %w", err)
	}
	return claim, nil
}

// sayStats prints what the programs have counted, and writes their profile.
func (s *supervisor) sayStats() {
	defer s.reports.profile.GiveBack()
	if !s.started {
		return
	}
	if s.cfg.Stats {
		s.notice("%s", strings.Join(runstats.Report(s.reports.counted, s.plan.ranks), "\n"))
	}
	if s.cfg.Profile == "" {
		return
	}
	merged, err := pprof.Merge(s.reports.counted)
	if err == nil {
		err = os.WriteFile(s.cfg.Profile, merged, 0o666)
	}
	if err != nil {
		s.notice("--profile: %v", err)
		return
	}
	for _, note := range runstats.Notes(s.reports.counted, s.plan.ranks) {
		s.notice("--profile: %s", note)
	}
	s.notice("the profile is in %s: look at it with `go tool pprof -http=: %s`", s.cfg.Profile, s.cfg.Profile)
}
