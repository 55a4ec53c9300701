package launch

import (
	"slices"
	"time"
)

// verdictTime is how long a machine may take to say whether one of its daemons is ending. The
// supervisor waits no longer: then the failure that was noticed first takes the blame. Tests change
// it.
var verdictTime = time.Second

// failure is what may be to blame for the end of a job.
type failure struct {
	weight blame
	child  *child // nil: the machine is lost
	exit   exit
	at     *member // without a child
	text   string  // without a child
}

// blame orders failures that are noticed together. Each leads to those before it: a program fails
// when its daemon ends; a daemon gives up when another was killed; and with a lost machine all that
// it has fails.
type blame int

const (
	programFailed blame = iota
	daemonExited
	daemonKilled
	machineLost
)

// trial is what the supervisor has not decided on yet.
type trial struct {
	suspects []failure   // at most one for each child and machine
	verdict  *time.Timer // armed while there are suspects
}

func daemonFailure(c *child, e exit) failure {
	if e.Signal != 0 {
		return failure{weight: daemonKilled, child: c, exit: e}
	}
	return failure{weight: daemonExited, child: c, exit: e}
}

// accuse takes note of a failure. When one thing fails others soon fail because of it, and any of
// them may be noticed first. So the supervisor asks every machine what is about to end there,
// before it lays the blame.
func (s *supervisor) accuse(f failure) {
	if s.failed || f.child != nil && f.child.lost {
		return
	}
	s.trial.suspects = append(s.trial.suspects, f)
	if len(s.trial.suspects) > 1 {
		return
	}
	s.trial.verdict.Reset(verdictTime)
	s.members.ask()
	s.convictIfAllHaveAnswered()
}

func (s *supervisor) convictIfAllHaveAnswered() {
	if s.members.every(func(m *member) bool { return !m.asked }) {
		s.convict()
	}
}

// convict lays the blame on the suspect that can have led to the others, and ends the job, or goes
// on without all of them.
func (s *supervisor) convict() {
	s.trial.verdict.Stop()
	suspects := s.trial.suspects
	s.trial.suspects = nil
	slices.SortStableFunc(suspects, func(a, b failure) int { return int(b.weight - a.weight) })
	switch {
	case len(suspects) == 0:
	case s.goesOn():
		for i := range suspects {
			s.lose(&suspects[i])
		}
	default:
		s.end(&suspects[0])
	}
}

// end ends the job because of a failure.
func (s *supervisor) end(f *failure) {
	status := StatusDaemon
	switch {
	case f.weight == machineLost:
		s.notice("%s: ending the job", f.text)
	case f.weight != programFailed:
		s.notice("%v %v while programs were running: ending the job%s", f.child, f.exit, f.exit.remedy())
	default:
		status = s.blameProgram(f.child, f.exit)
	}
	s.fail(status)
}

// blameProgram says which program has failed, and returns the job's exit status.
func (s *supervisor) blameProgram(c *child, e exit) (status int) {
	status = e.status()
	switch {
	case s.interrupted != 0:
		if s.killing {
			status = 128 + int(s.interrupted)
		}
		s.notice("%v: %v %v%s", s.interrupted, c, e, e.remedy())
	case s.children.remaining(program, func(c *child) bool { return !c.ended }) > 0:
		s.notice("%v %v: ending the other ranks%s", c, e, e.remedy())
	default:
		s.notice("%v %v%s", c, e, e.remedy())
	}
	return status
}
