package launch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A job that goes on without what it loses (Config.Survive). A rank is lost when its program has
// died, and when its daemon or its machine is lost. Then the daemons are told, so that nobody waits
// for it. The others decide what to make of it: the job ends when they have ended.

// goesOn reports whether the job goes on when something is lost.
func (s *supervisor) goesOn() bool {
	return s.cfg.Survive && s.started && !s.failed && s.interrupted == 0
}

// lose goes on without what a failure takes away.
func (s *supervisor) lose(f *failure) {
	var with []*child // ranks that are lost with a daemon
	why := f.text
	switch {
	case f.weight == machineLost:
		for _, c := range s.children {
			if c.at == f.at && c.Role == daemon && !c.lost {
				with = append(with, s.loseNode(c)...)
			}
		}
	case f.child.lost: // with something else meanwhile
		return
	case f.child.Role == daemon:
		why = fmt.Sprintf("%v %v", f.child, f.exit)
		with = s.loseNode(f.child)
	default:
		why = fmt.Sprintf("%v %v", f.child, f.exit)
		f.child.gaveUp = f.exit.Signal == 0 && f.exit.Code != StatusDaemon
		s.loseRank(f.child)
	}
	s.lossStatus = cmp.Or(s.lossStatus, f.status())
	s.sayLoss(f, why, with)
}

// status is the exit status of a job that ends by a failure.
func (f *failure) status() int {
	if f.weight == programFailed {
		return f.exit.status()
	}
	return StatusDaemon
}

// loseNode takes note that a daemon is lost, and returns the ranks that are lost with it. They are
// asked to end, if they have not yet.
func (s *supervisor) loseNode(d *child) (ranks []*child) {
	d.lost = true
	s.mourn(d)
	for _, c := range s.children {
		if c.Role != program || c.node != d.Index || c.lost || c.succeeded {
			continue
		}
		s.loseRank(c)
		ranks = append(ranks, c)
		if !c.reaped {
			c.signal(syscall.SIGTERM)
			s.kill.Reset(s.cfg.Grace)
		}
	}
	return ranks
}

func (s *supervisor) loseRank(c *child) {
	c.lost = true
	s.mourn(c)
}

// mourn tells all daemons that a child is lost.
func (s *supervisor) mourn(c *child) {
	for _, m := range s.members {
		if !m.ending {
			m.mourn(c.childID)
		}
	}
}

// sayLoss tells the user who is lost, why and when, and how many are left.
func (s *supervisor) sayLoss(f *failure, why string, with []*child) {
	if len(with) > 0 {
		why += ", and with it " + names(with) + ","
	}
	left := s.children.remaining(program, func(c *child) bool { return !c.lost })
	s.notice("%s at %s, %v after the start: %d of %d ranks are left%s", why, time.Now().Format(time.TimeOnly),
		time.Since(s.began).Round(time.Millisecond), left, s.plan.ranks, f.exit.remedy())
}

// sum tells the user what became of a job that has lost programs, or never started them, when all
// have ended.
func (s *supervisor) sum() {
	if n := s.unborn(); n > 0 && s.interrupted != 0 {
		s.notice("%v: %d of %d ranks were not started", s.interrupted, n, s.plan.ranks)
	}
	lost := slices.DeleteFunc(slices.Clone(s.children), func(c *child) bool { return c.Role != program || !c.lost })
	if len(lost) > 0 && !s.failed {
		s.notice("%d of %d ranks have succeeded, without %s: exit status %d",
			s.children.remaining(program, func(c *child) bool { return c.succeeded }), s.plan.ranks, names(lost), s.outcome())
	}
}

// outcome is the exit status of the job, once it has ended. What it went on without is no failure,
// if all others have succeeded. But a program that has ended by itself, with a status that says
// that it failed, was not lost to anything. And a signal that has kept ranks from being started
// has ended the job, whatever the others made of it.
func (s *supervisor) outcome() int {
	switch {
	case s.failed:
		return s.status
	case s.interrupted != 0 && s.unborn() > 0:
		return 128 + int(s.interrupted)
	case s.children.remaining(program, func(c *child) bool { return c.succeeded }) > 0 && s.children.remaining(program, s.hasGivenUp) == 0:
		return 0
	}
	return s.lossStatus
}

// unborn counts the programs that were never started.
func (s *supervisor) unborn() int {
	return s.children.remaining(program, func(c *child) bool { return c.unborn })
}

// hasGivenUp reports whether a program has failed by itself. Not so one that has seen its daemon
// end, and perhaps sooner than we have.
func (s *supervisor) hasGivenUp(c *child) bool {
	return c.gaveUp && !s.children.find(childID{daemon, c.node}).lost
}

// names lists children for people.
func names(children []*child) string {
	var list []string
	for _, c := range children {
		list = append(list, c.String())
	}
	return strings.Join(list, ", ")
}

// killLost kills what is left of the ranks that were lost with their daemons, and were asked to
// end.
func (s *supervisor) killLost() {
	s.children.each(program, func(c *child) {
		if c.lost {
			c.signal(syscall.SIGKILL)
		}
	})
}
