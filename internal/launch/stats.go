package launch

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"

	"dsmd/internal/runstats"
)

// statement is what a program says of itself at its end: it takes the text of a stream.
type statement struct {
	mu   sync.Mutex
	text []byte // guarded by mu
}

// write implements output.
func (s *statement) write(_ string, text []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.text)+len(text) <= runstats.MaxBytes+1 {
		s.text = append(s.text, text...)
	}
	return nil
}

// line is the first line, nil if there is none.
func (s *statement) line() []byte {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if line, _, whole := bytes.Cut(s.text, []byte{'\n'}); whole {
		return line
	}
	return nil
}

// askForStats gives a program the writing end of a pipe, for what it counts (Config.Stats). The
// caller closes it once the program has it.
func (p *process) askForStats() (w *os.File, err error) {
	p.stats = &statement{}
	st, w, err := newStream("", p.stats)
	if err != nil {
		return nil, fmt.Errorf("launch: making a pipe for what %v counts: %w", p.id, explainLimit(err))
	}
	st.whole = true
	p.streams = append(p.streams, st)
	p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, w)
	p.cmd.Env = append(p.cmd.Env, fmt.Sprintf("%s=%d", runstats.Env, 2+len(p.cmd.ExtraFiles)))
	return w, nil
}

// count takes note of what a program has counted. What makes no sense is as if it had said nothing.
func (s *supervisor) count(c *child, stats []byte) {
	if r, err := runstats.Decode(stats); err == nil && c.Role == program && r.Rank == c.Index {
		s.counted = append(s.counted, r)
	}
}

// checkProfile finds out whether there will be a place for the profile, before the job takes hours.
func (cfg *Config) checkProfile() error {
	if cfg.Profile == "" {
		return nil
	}
	f, err := os.OpenFile(cfg.Profile, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return fmt.Errorf("launch: the file for the profile: %w", err)
	}
	return f.Close()
}

// sayStats prints what the programs have counted, and writes their profile.
func (s *supervisor) sayStats() {
	if !s.started {
		return
	}
	if s.cfg.Stats {
		s.notice("%s", strings.Join(runstats.Report(s.counted, s.plan.ranks), "\n"))
	}
	if s.cfg.Profile == "" {
		return
	}
	merged, err := runstats.Merge(s.counted)
	if err == nil {
		err = os.WriteFile(s.cfg.Profile, merged, 0o666)
	}
	if err != nil {
		s.notice("--profile: %v", err)
		return
	}
	for _, note := range runstats.Notes(s.counted) {
		s.notice("--profile: %s", note)
	}
	s.notice("the profile is in %s: look at it with `go tool pprof -http=: %s`", s.cfg.Profile, s.cfg.Profile)
}
