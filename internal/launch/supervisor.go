package launch

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// maxNotices bounds the supervisor's own lines that wait for a standard error that does not take them, with one more for each child. There are
// fewer in a job; were there more, they would be dropped, for the supervisor must not block on them.
const maxNotices = 32

// flushTime is how long the end of the job waits for a standard error that does not take the last lines.
const flushTime = time.Second

// echoTime is how soon after a signal the same one again means nothing: timeout(1) sends its signal to the process and to its
// group, one right behind the other. Nobody presses Ctrl-C twice in this time.
const echoTime = 100 * time.Millisecond

// verdictTime is how long a machine may take to say whether one of its daemons is ending. A machine that takes longer is not waited for:
// then the failure that was noticed first takes the blame.
const verdictTime = time.Second

// child is a daemon or a program, on whichever machine.
type child struct {
	childID
	at        *member
	node      int  // its own, or that of the daemon to which it attaches
	ended     bool // the leader of its group has ended
	succeeded bool // with success
	reaped    bool // the group is gone
	lost      bool // the job goes on without it
	gaveUp    bool // a program: it is lost because it ended with a status of its own
}

func (c *child) String() string {
	if c.at.place.name == "" {
		return c.childID.String()
	}
	return c.childID.String() + " on " + c.at.place.name
}

// member is a machine of the job, and how far it is.
type member struct {
	machine
	place     place
	addresses []string // at which its nodes listen; nil until it is open
	halted    bool
	asked     bool // to name its dying daemon, and it has not answered
	ending    bool // it was told to finish
	gone      bool // it has finished, or is lost
}

// failure is what may be to blame for the end of a job.
type failure struct {
	weight blame
	child  *child // nil: the machine is lost
	exit   exit
	at     *member // without a child
	text   string  // without a child
}

// blame orders failures that are noticed together. One leads to those before it: a program fails when its daemon ends; a daemon gives up when
// another was killed; and all of a machine that is lost.
type blame int

const (
	programFailed blame = iota
	daemonExited
	daemonKilled
	machineLost
)

// supervisor is one running job. Its fields belong to the goroutine that runs loop, except the channels and sinks.
type supervisor struct {
	cfg            Config
	plan           *plan
	machines       []machine // by place; set before loop
	stdout, stderr *sink
	members        []*member
	children       []*child

	events  chan event // with room for all that can come, so that no machine waits
	signals chan os.Signal
	kill    *time.Timer // armed when the rest of the job, or what is lost of it, was asked to end
	remind  *time.Timer // armed when the first program has succeeded
	verdict *time.Timer // armed while there are suspects
	notices chan string
	printed sync.WaitGroup

	started     bool      // children has all of the job
	reminding   bool      // remind was armed
	startErr    error     // the job could not be started
	began       time.Time // when its children were started
	suspects    []failure // that have not been decided on yet: at most one for each child and machine
	lossStatus  int       // exit status for the first of what the job goes on without, 0: there was none
	failed      bool      // something has failed, and status is fixed
	status      int
	interrupted syscall.Signal // the signal that asked the job to end, if one did, else 0
	asked       time.Time      // when it did
	killing     bool           // nothing is given time any more
	halting     bool           // the daemons were asked to stand still, so what they do is no failure
	stopping    bool           // and were killed
}

func newSupervisor(cfg Config, p *plan) *supervisor {
	if cfg.Grace == 0 {
		cfg.Grace = DefaultGrace
	}
	if cfg.Remind == 0 {
		cfg.Remind = DefaultRemind
	}
	s := &supervisor{
		cfg:     cfg,
		plan:    p,
		stdout:  &sink{to: cfg.Stdout},
		stderr:  &sink{to: cfg.Stderr},
		events:  make(chan event, eventRoom(len(p.places), p.children())),
		signals: make(chan os.Signal, 16),
		kill:    time.NewTimer(0),
		remind:  time.NewTimer(0),
		verdict: time.NewTimer(0),
		notices: make(chan string, maxNotices+p.children()),
	}
	s.kill.Stop()
	s.remind.Stop()
	s.verdict.Stop()
	takeSIGPIPE()
	for _, sig := range signals {
		// What was ignored from the start, as nohup does it, stays ignored.
		if !signal.Ignored(sig) {
			signal.Notify(s.signals, sig)
		}
	}
	s.printed.Go(func() {
		for line := range s.notices {
			_ = s.stderr.write([]byte("dsmd: " + line + "\n"))
		}
	})
	return s
}

// takeSIGPIPE keeps SIGPIPE from killing this process at the first line after `dsmd run … | head` has seen enough; the failed write
// is noticed anyway. It is not ignored, for programs would inherit that, and stays unread.
func takeSIGPIPE() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// close gives back what newSupervisor took.
func (s *supervisor) close() {
	signal.Stop(s.signals)
	close(s.notices)
	done := make(chan struct{})
	go func() { s.printed.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(flushTime):
	}
}

// post reports an event. It never waits, for there is room for all that can come.
func (s *supervisor) post(e event) { s.events <- e }

// notice prints a line of the supervisor's own, without ever waiting for it.
func (s *supervisor) notice(format string, args ...any) {
	select {
	case s.notices <- fmt.Sprintf(format, args...):
	default:
	}
}

// loop runs the job to its end.
func (s *supervisor) loop() (int, error) {
	for i, m := range s.machines {
		at := &member{machine: m, place: s.plan.places[i]}
		s.members = append(s.members, at)
		m.open(s.plan.openOrder(&s.cfg, at.place))
	}
	for s.advance() {
		select {
		case e := <-s.events:
			s.handle(e)
		case sig := <-s.signals:
			if s.ending() && ends(sig) {
				// Our own output is stuck, and nobody wants the rest of it any more.
				return s.outcome(), s.startErr
			}
			s.answer(sig.(syscall.Signal))
		case <-s.kill.C:
			if s.goesOn() {
				s.killLost()
			} else {
				s.killAll()
			}
		case <-s.remind.C:
			s.sayWhoRuns()
		case <-s.verdict.C:
			s.convict()
		}
	}
	return s.outcome(), s.startErr
}

// ending says whether nothing is left but the rest of the output.
func (s *supervisor) ending() bool {
	for _, m := range s.members {
		if !m.ending && !m.gone {
			return false
		}
	}
	return true
}

// advance does what the state of the job calls for, and returns false once nothing is left of it.
//
// The daemons are not asked to end: with the programs gone they have nothing to save, neither memory nor sockets outlive them, and
// while they ended one after the other those still there would complain of the loss of those gone. For the same reason all of them
// are stopped, on all machines, before the first one dies.
func (s *supervisor) advance() bool {
	if !s.started && s.startErr == nil && s.interrupted == 0 {
		if !s.every(func(m *member) bool { return m.addresses != nil }) {
			return true
		}
		s.startAll()
	}
	// A failure that is not decided on yet needs the daemons to be found out about.
	if len(s.suspects) == 0 && s.remaining(program, func(c *child) bool { return !c.ended }) == 0 {
		s.endDaemons()
	}
	if len(s.suspects) > 0 || s.remaining(program, func(c *child) bool { return !c.reaped })+s.remaining(daemon, func(c *child) bool { return !c.reaped }) > 0 {
		return true
	}
	for _, m := range s.members {
		if !m.ending && !m.gone {
			m.ending = true
			m.finish()
		}
	}
	return !s.every(func(m *member) bool { return m.gone })
}

// every says whether f holds for all machines.
func (s *supervisor) every(f func(*member) bool) bool {
	for _, m := range s.members {
		if !f(m) {
			return false
		}
	}
	return true
}

// endDaemons stops the daemons, and kills them once all have stopped.
func (s *supervisor) endDaemons() {
	if !s.halting {
		s.halting = true
		s.sum()
		for _, m := range s.members {
			if s.started && !m.gone {
				m.halt()
			}
		}
	}
	if !s.stopping && s.every(func(m *member) bool { return m.halted || m.gone || !s.started }) {
		s.stopping = true
		s.each(daemon, func(c *child) { c.signal(syscall.SIGKILL) })
	}
}

// startAll starts the daemons, then the programs, on all machines at once. Preconditions: all machines are open.
func (s *supervisor) startAll() {
	s.started, s.began = true, time.Now()
	peers := make([]string, s.plan.nodes())
	for _, m := range s.members {
		for i, node := range m.place.nodes {
			peers[node] = m.addresses[i]
		}
	}
	flags, keys, err := s.cfg.protect(s.plan, peers)
	if err != nil {
		s.refuse(StatusSystem, err)
		return
	}
	for _, m := range s.members {
		order := s.plan.startOrder(&s.cfg, m.place, peers, flags, keys)
		var in input
		for _, c := range order.Children {
			s.children = append(s.children, &child{childID: c.ID, at: m, node: c.Node})
			if c.Input {
				if in, err = openStdin(s.cfg.Stdin); err != nil {
					s.refuse(StatusSystem, err)
				}
			}
		}
		m.start(order, in)
	}
}

// refuse says why the job cannot be started. The first reason is the answer to the user, and has the status.
func (s *supervisor) refuse(status int, err error) {
	if s.startErr != nil {
		s.notice("%v", err)
		return
	}
	s.startErr = err
	s.fail(status)
}

// signal sends a signal to every process of a child's group.
func (c *child) signal(sig syscall.Signal) { c.at.signal(c.childID, sig) }

// each calls f for the children of a role whose process groups still exist.
func (s *supervisor) each(r role, f func(*child)) {
	for _, c := range s.children {
		if c.Role == r && !c.reaped {
			f(c)
		}
	}
}

// remaining counts the children of a role for which f holds.
func (s *supervisor) remaining(r role, f func(*child) bool) (n int) {
	for _, c := range s.children {
		if c.Role == r && f(c) {
			n++
		}
	}
	return n
}

// find returns the child of an event, nil if there is none.
func (s *supervisor) find(id childID) *child {
	for _, c := range s.children {
		if c.childID == id {
			return c
		}
	}
	return nil
}

// sender is the member that an event comes from. Local events name no machine: there is only one.
func (s *supervisor) sender(e event) *member {
	for _, m := range s.members {
		if m.machine == e.from {
			return m
		}
	}
	return s.members[0]
}

func (s *supervisor) handle(e event) {
	m, c := s.sender(e), s.find(e.Child)
	switch e.Kind {
	case opened:
		m.addresses = e.Addresses
		if e.Name != "" {
			m.place.name = e.Name
		}
	case failed:
		s.refuse(e.Status, errors.New(e.Err))
	case childEnded:
		c.ended, c.succeeded = true, !e.Exit.failed() && !c.lost
		if c.Role == daemon {
			s.daemonEnded(c, e.Exit)
		} else {
			s.programEnded(c, e.Exit)
		}
	case childReaped:
		c.ended, c.reaped = true, true
	case suspected:
		m.asked = false // before accuse could ask again
		if e.Found {
			s.accuse(daemonFailure(c, e.Exit))
		}
		s.convictIfAllHaveAnswered()
	case halted:
		m.halted = true
	case finished:
		m.gone = true
		if e.Left > 0 {
			s.notice("%d processes that the programs left behind could not be killed", e.Left)
		}
	case outputLost:
		if !s.failed {
			s.notice("writing output: %v: ending the job", e.Err)
			s.fail(128 + int(syscall.SIGPIPE))
		}
	case lost:
		s.machineLost(m, e.Err)
	}
}

func (s *supervisor) programEnded(c *child, e exit) {
	if s.failed {
		return
	}
	if e.failed() {
		s.accuse(failure{weight: programFailed, child: c, exit: e})
	} else if !s.reminding {
		s.reminding = true
		s.remind.Reset(s.cfg.Remind)
	}
}

func (s *supervisor) daemonEnded(c *child, e exit) {
	switch {
	case s.stopping:
	case !s.failed:
		s.accuse(daemonFailure(c, e))
	case s.status != StatusDaemon:
		// Not the first failure, but perhaps what led to it. (The daemons that end because of the first one are no news.)
		s.notice("%v %v too", c, e)
	}
}

func daemonFailure(c *child, e exit) failure {
	if e.Signal != 0 {
		return failure{weight: daemonKilled, child: c, exit: e}
	}
	return failure{weight: daemonExited, child: c, exit: e}
}

// machineLost takes note that nothing more will be heard of a machine, nor of its children.
func (s *supervisor) machineLost(m *member, why string) {
	m.gone = true
	for _, c := range s.children {
		if c.at == m {
			c.ended, c.reaped = true, true
		}
	}
	m.asked = false
	switch {
	case m.ending:
		// It was told to finish, and has, at the latest now.
	case !s.started:
		s.refuse(StatusSystem, errors.New(why))
	case !s.failed:
		s.accuse(failure{weight: machineLost, at: m, text: why})
	case len(s.suspects) == 0 && s.status != StatusDaemon:
		s.notice("%s", why)
	}
	s.convictIfAllHaveAnswered()
}

// accuse takes note of a failure. When one thing fails others soon fail because of it, and any of them may be noticed first. So every machine is asked
// what is about to end there, before the blame is laid.
func (s *supervisor) accuse(f failure) {
	if s.failed || f.child != nil && f.child.lost {
		return
	}
	s.suspects = append(s.suspects, f)
	if len(s.suspects) > 1 {
		return
	}
	s.verdict.Reset(verdictTime)
	for _, m := range s.members {
		if !m.gone && !m.asked {
			m.asked = true
			m.ask()
		}
	}
	s.convictIfAllHaveAnswered()
}

func (s *supervisor) convictIfAllHaveAnswered() {
	if s.every(func(m *member) bool { return !m.asked }) {
		s.convict()
	}
}

// convict lays the blame on the suspect that can have led to the others, and ends the job, or goes on without all of them.
func (s *supervisor) convict() {
	s.verdict.Stop()
	suspects := s.suspects
	s.suspects = nil
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
		s.notice("%v %v while programs were running: ending the job", f.child, f.exit)
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
		s.notice("%v: %v %v", s.interrupted, c, e)
	case s.remaining(program, func(c *child) bool { return !c.ended }) > 0:
		s.notice("%v %v: ending the other ranks", c, e)
	default:
		s.notice("%v %v", c, e)
	}
	return status
}

// sayWhoRuns tells the user which programs go on after others have succeeded. Most often that is well, but it is also what a
// program that returned too early looks like: the others wait for it at a barrier, in silence.
func (s *supervisor) sayWhoRuns() {
	if s.failed || s.interrupted != 0 {
		return
	}
	var running []string
	s.each(program, func(c *child) {
		if !c.ended {
			running = append(running, c.String())
		}
	})
	if len(running) == 0 {
		return
	}
	who := running[0]
	if more := len(running) - 1; more > 0 {
		who = fmt.Sprintf("%s and %d more", who, more)
	}
	s.notice("%d of %d ranks have ended; still running: %s. A barrier that waits for a rank that has ended never opens; Ctrl-C ends the job",
		s.plan.ranks-len(running), s.plan.ranks, who)
}

// fail fixes the exit status, unless an earlier failure has, and asks the programs to end.
func (s *supervisor) fail(status int) {
	if s.failed {
		return
	}
	s.failed, s.status = true, status
	if s.interrupted == 0 {
		s.each(program, func(c *child) { c.signal(syscall.SIGTERM) })
		s.kill.Reset(s.cfg.Grace)
	}
}

// answer does what a signal asks for.
func (s *supervisor) answer(sig syscall.Signal) {
	if ends(sig) {
		switch {
		case sig == s.interrupted && time.Since(s.asked) < echoTime:
			return
		case s.interrupted != 0:
			s.killAll()
			return
		}
		s.interrupted, s.asked = sig, time.Now()
		if !s.started {
			s.fail(128 + int(sig))
		}
		s.kill.Reset(s.cfg.Grace)
	}
	s.each(program, func(c *child) { c.signal(sig) })
}

// ends tells the signals that ask a job to end from those that only its programs understand.
func ends(sig os.Signal) bool { return sig != syscall.SIGUSR1 && sig != syscall.SIGUSR2 }

// killAll kills the programs.
func (s *supervisor) killAll() {
	if !s.killing {
		s.killing = true
		for _, m := range s.members {
			if !m.gone {
				m.hurry()
			}
		}
	}
	var late []string
	s.each(program, func(c *child) {
		if !c.ended {
			late = append(late, c.String())
		}
		c.signal(syscall.SIGKILL)
	})
	if len(late) > 0 {
		s.notice("killing %s, still there after having been asked to end", strings.Join(late, ", "))
	}
}
