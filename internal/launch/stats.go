package launch

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"dsmd/internal/runstats"
)

// giveStats gives a program the writing end of a pipe, for what it counts (Config.Stats). The
// caller closes it once the program has it.
func (p *process) giveStats() (w *os.File, err error) {
	if p.stats, w, err = pipe(); err != nil {
		return nil, fmt.Errorf("launch: making a pipe for what %v counts: %w", p.id, explainLimit(err))
	}
	p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, w)
	p.cmd.Env = append(p.cmd.Env, fmt.Sprintf("%s=%d", runstats.Env, 2+len(p.cmd.ExtraFiles)))
	return w, nil
}

// takeStats is what a program that has ended has counted, if it has said so. It does not wait:
// processes that the program has left behind may have the pipe open still.
func (p *process) takeStats() []byte {
	if p.stats == nil {
		return nil
	}
	defer p.stats.Close()
	raw, err := p.stats.SyscallConn()
	if err != nil {
		return nil
	}
	buf, n := make([]byte, runstats.MaxBytes), 0
	_ = raw.Control(func(fd uintptr) {
		for {
			// A pipe that is empty says EAGAIN, as it does not block.
			m, err := unix.Read(int(fd), buf[n:])
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n += max(m, 0); m <= 0 {
				return
			}
		}
	})
	line, _, whole := strings.Cut(string(buf[:n]), "\n")
	if !whole {
		return nil
	}
	return []byte(line)
}

// count takes note of what a program has counted. What makes no sense is as if it had said nothing.
func (s *supervisor) count(c *child, stats []byte) {
	if r, err := runstats.Decode(stats); err == nil && c.Role == program && r.Rank == c.Index {
		s.counted = append(s.counted, r)
	}
}

// sayStats prints what the programs have counted.
func (s *supervisor) sayStats() {
	if s.cfg.Stats && s.started {
		s.notice("%s", strings.Join(runstats.Report(s.counted, s.plan.ranks), "\n"))
	}
}
