package launch

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"dsmd/internal/runstats/sharing"
)

// echoTime is how soon after a signal the same one again means nothing: timeout(1) sends its signal
// to the process and to its group, one right behind the other. Nobody presses Ctrl-C twice in this
// time.
const echoTime = 100 * time.Millisecond

// answerTime is how long a machine may take to answer once everything is to be killed. Output that
// is under way may come before the answer. Tests change it.
var answerTime = 10 * time.Second

// supervisor is one running job. Its fields belong to the goroutine that runs loop, except the
// channels and sinks.
type supervisor struct {
	cfg            Config
	plan           *plan
	machines       []machine // by place; set before loop
	stdout, stderr voice
	members        members
	children       children
	*notices
	trial   trial
	reports *reports

	events  chan event // with room for all that can come, so that no machine waits
	signals chan os.Signal
	kill    *time.Timer      // armed when the job, or what is lost of it, was asked to end
	remind  <-chan time.Time // since the first program has succeeded; nil: none has

	started  bool      // children has all of the job
	startErr error     // the job could not be started
	began    time.Time // when its children were started
	// lossStatus: exit status for the first of what the job goes on without, 0: there was none.
	lossStatus  int
	failed      bool // something has failed, and status is fixed
	status      int
	interrupted syscall.Signal // the signal that asked the job to end, if one did, else 0
	asked       time.Time      // when it did, or when killing began
	killing     bool           // nothing is given time any more
	// halting: the daemons were asked to stand still, so what they do is no failure.
	halting  bool
	stopping bool // and were killed
}

func newSupervisor(cfg Config, p *plan) (*supervisor, error) {
	if cfg.Remind == 0 {
		cfg.Remind = DefaultRemind
	}
	lines, err := p.layout(&cfg)
	if err != nil {
		return nil, err
	}
	stdout, stderr := newOutputs(cfg.Stdout, cfg.Stderr, lines)
	s := &supervisor{
		cfg:     cfg,
		plan:    p,
		stdout:  stdout,
		stderr:  stderr,
		events:  make(chan event, eventRoom(len(p.places), p.children())),
		signals: make(chan os.Signal, 16),
		kill:    time.NewTimer(0),
		trial:   trial{verdict: time.NewTimer(0)},
		notices: newNotices(stderr, p.children()),
		reports: newReports(),
	}
	if cfg.Pieces != nil {
		s.reports.taker(cfg.Pieces)
	}
	if cfg.Sharing {
		s.reports.sharing = sharing.NewCollector()
		s.reports.taker(s.reports.sharing.Add)
	}
	s.kill.Stop()
	s.trial.verdict.Stop()
	takeSIGPIPE()
	for _, sig := range signals {
		// What was ignored from the start, as nohup does it, stays ignored.
		if !signal.Ignored(sig) {
			signal.Notify(s.signals, sig)
		}
	}
	return s, nil
}

// takeSIGPIPE keeps SIGPIPE from killing this process at the first line after `dsmd run … | head`
// has seen enough; the failed write is noticed anyway. It is not ignored, for programs would
// inherit that, and stays unread.
func takeSIGPIPE() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// close gives back what newSupervisor took.
func (s *supervisor) close() {
	signal.Stop(s.signals)
	s.reports.close()
	s.sayStats()
	if lines := s.reports.trace.end(); len(lines) > 0 {
		s.notice("%s", strings.Join(lines, "\n"))
	}
	if s.started && s.reports.sharing != nil {
		s.notice("%s", strings.Join(s.reports.sharing.Result().Text(), "\n"))
	}
	s.notices.close()
	soon(func() { s.stdout.end(); s.stderr.end() })
}

// remote makes a machine that reports to this supervisor.
func (s *supervisor) remote(name string) *remote {
	m := newRemote(name, s.post, s.stdout, s.stderr)
	m.said = s.reports.hearLine
	return m
}

// post reports an event. It never waits, for there is room for all that can come.
func (s *supervisor) post(e event) { s.events <- e }

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
			switch {
			case s.goesOn():
				s.killLost()
			case s.killing:
				s.giveUp()
			default:
				s.killAll()
			}
		case h := <-s.reports.hangs:
			s.sayHang(h)
		case <-s.remind:
			s.sayWhoRuns()
		case <-s.trial.verdict.C:
			// Answers that have come count, however late this process is.
			for len(s.events) > 0 && len(s.trial.suspects) > 0 {
				s.handle(<-s.events)
			}
			s.convict()
		}
	}
	return s.outcome(), s.startErr
}

// askedToEnd reports whether a signal waits that asks the job to end. It puts back, in their order,
// all that wait.
func (s *supervisor) askedToEnd() (end bool) {
	for range len(s.signals) {
		sig := <-s.signals
		end = end || ends(sig)
		select {
		case s.signals <- sig:
		default: // as many came meanwhile as have room
		}
	}
	return end
}

// ending reports whether nothing is left but the rest of the output.
func (s *supervisor) ending() bool {
	return s.members.every(func(m *member) bool { return m.ending })
}

// advance does what the state of the job calls for, and returns false once nothing is left of it.
//
// The daemons are not asked to end. With the programs gone they have nothing to save, and neither
// memory nor sockets outlive them. If they ended one after the other, those still there would
// complain of the loss of the others. For the same reason all of them are stopped, on all machines,
// before the first one dies.
func (s *supervisor) advance() bool {
	if !s.started && s.startErr == nil && s.interrupted == 0 {
		if !s.members.every(func(m *member) bool { return m.addresses != nil }) {
			return true
		}
		s.startAll()
	}
	// The daemons are still needed to decide on a failure.
	if len(s.trial.suspects) == 0 && s.children.remaining(program, func(c *child) bool { return !c.ended }) == 0 {
		s.endDaemons()
	}
	if len(s.trial.suspects) > 0 || slices.ContainsFunc(s.children, func(c *child) bool { return !c.reaped }) {
		return true
	}
	for _, m := range s.members {
		if !m.ending {
			m.ending = true
			m.finish()
		}
	}
	return !s.members.every(func(m *member) bool { return m.gone })
}

// endDaemons stops the daemons, and kills them once all have stopped.
func (s *supervisor) endDaemons() {
	if !s.halting {
		s.halting = true
		s.sum()
		for _, m := range s.members {
			if s.started && !m.ending {
				m.halt()
			}
		}
	}
	if !s.stopping && s.members.every(func(m *member) bool { return m.halted || m.ending || !s.started }) {
		s.stopping = true
		s.children.each(daemon, func(c *child) { c.signal(syscall.SIGKILL) })
	}
}

// startAll starts the daemons, then the programs, on all machines at once. Preconditions: all
// machines are open.
func (s *supervisor) startAll() {
	s.started, s.began = true, time.Now()
	s.reports.trace.begin()
	sayCrowded(s, runtime.NumCPU())
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
	stdin, err := openInput(s.cfg.Stdin)
	if err == nil {
		err = s.stdout.folder.clear()
	}
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
				in = stdin
			}
		}
		m.start(order, in)
	}
	// A signal has kept the rest from being started. It is heeded before the events that say so.
	for len(s.signals) > 0 {
		s.answer((<-s.signals).(syscall.Signal))
	}
}

// refuse says why the job cannot be started. The first reason is the answer to the user, and has
// the status.
func (s *supervisor) refuse(status int, err error) {
	if s.startErr != nil {
		s.notice("%v", err)
		return
	}
	s.startErr = err
	s.fail(status)
}

func (s *supervisor) handle(e event) {
	m, c := s.members.sender(e), s.children.find(e.Child)
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
		s.count(c, e.Says)
		c.unborn = !c.ended
		c.ended, c.reaped = true, true
	case suspected:
		m.asked = false // before accuse could ask again
		// While everything is killed it was only asked whether it answers.
		if e.Found && !s.killing {
			s.accuse(daemonFailure(c, e.Exit))
		}
		s.convictIfAllHaveAnswered()
	case halted:
		m.halted = true
	case finished:
		m.ending, m.gone = true, true
		if e.Left > 0 {
			s.notice("%d processes that the programs left behind could not be killed", e.Left)
		}
	case outputLost:
		if !s.failed {
			s.notice("%s: ending the job", e.Err)
			s.fail(e.Status)
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
	} else if s.remind == nil {
		s.remind = time.After(s.cfg.Remind)
	}
}

func (s *supervisor) daemonEnded(c *child, e exit) {
	switch {
	case s.halting:
	case !s.failed:
		s.accuse(daemonFailure(c, e))
	case s.status != StatusDaemon:
		// Not the first failure, but perhaps what led to it. (The daemons that end because of the
		// first one are no news.)
		s.notice("%v %v too", c, e)
	}
}

// forget takes note that nothing more will be heard of a machine's children. The rest of its output
// is still to be passed on.
func (s *supervisor) forget(m *member) {
	m.ending, m.asked = true, false
	for _, c := range s.children {
		if c.at == m {
			c.ended, c.reaped = true, true
		}
	}
}

// machineLost takes note that a machine is lost, and why.
func (s *supervisor) machineLost(m *member, why string) {
	wasEnding := m.ending
	s.forget(m)
	switch {
	case wasEnding:
		// It was told to finish, and has, at the latest now.
	case !s.started:
		s.refuse(StatusSystem, errors.New(why))
	case !s.failed && !s.halting:
		s.accuse(failure{weight: machineLost, at: m, text: why})
	case len(s.trial.suspects) == 0 && s.status != StatusDaemon:
		s.notice("%s", why)
	}
	s.convictIfAllHaveAnswered()
}

// sayWhoRuns tells the user which programs go on after others have succeeded. Most often that is
// well. But it also happens when a program has returned too early, and the others wait for it.
func (s *supervisor) sayWhoRuns() {
	if s.failed || s.interrupted != 0 {
		return
	}
	var running []string
	s.children.each(program, func(c *child) {
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
	s.notice("%d of %d ranks have ended; still running: %s. Who waits for one that has ended, at a barrier, in a reduction or for an item of a queue, waits for ever; Ctrl-C ends the job",
		s.plan.ranks-len(running), s.plan.ranks, who)
}

// fail fixes the exit status, unless an earlier failure has, and asks the programs to end.
func (s *supervisor) fail(status int) {
	if s.failed {
		return
	}
	s.failed, s.status = true, status
	if s.interrupted == 0 {
		s.children.each(program, func(c *child) { c.signal(syscall.SIGTERM) })
		s.kill.Reset(s.cfg.Grace)
	}
}

// answer does what a signal asks for.
func (s *supervisor) answer(sig syscall.Signal) {
	if ends(sig) {
		isEcho := time.Since(s.asked) < echoTime
		switch {
		case s.killing:
			if !isEcho {
				s.giveUp()
			}
			return
		case isEcho && sig == s.interrupted:
			return
		case s.interrupted != 0:
			s.killAll()
			return
		}
		s.interrupted, s.asked = sig, time.Now()
		if !s.started {
			s.refuse(128+int(sig), fmt.Errorf("launch: %v, before the job was started", sig))
		}
		s.kill.Reset(s.cfg.Grace)
	}
	s.children.each(program, func(c *child) { c.signal(sig) })
}

// ends tells the signals that ask a job to end from those that only its programs understand.
func ends(sig os.Signal) bool { return sig != syscall.SIGUSR1 && sig != syscall.SIGUSR2 }

// killAll kills the programs, and finds out which machines still answer.
func (s *supervisor) killAll() {
	s.killing, s.asked = true, time.Now()
	for _, m := range s.members {
		if !m.ending {
			m.hurry()
		}
	}
	s.members.ask()
	s.kill.Reset(answerTime)
	var late []string
	s.children.each(program, func(c *child) {
		if !c.ended {
			late = append(late, c.String())
		}
		c.signal(syscall.SIGKILL)
	})
	if len(late) > 0 {
		s.notice("killing %s, still there after having been asked to end", strings.Join(late, ", "))
	}
}

// giveUp parts from the machines that have not answered since the programs were killed, and asks
// the others again. An agent may be stopped, or wait for a file system, while its sshd is well.
// Then nothing would be heard of its children's end either.
func (s *supervisor) giveUp() {
	for len(s.events) > 0 { // answers that have come count, however late this process is
		s.handle(<-s.events)
	}
	unknown := false // how a program ends
	for _, m := range s.members {
		if m.ending || !m.asked {
			continue
		}
		s.notice("giving up %s, whose dsmd does not answer: see there whether it is stopped, or waits for a file system; what it runs ends with it", m.place.name)
		unknown = unknown || slices.ContainsFunc(s.children, func(c *child) bool { return c.at == m && c.Role == program && !c.ended })
		m.abandon()
		s.forget(m)
	}
	s.convictIfAllHaveAnswered()
	if unknown {
		s.fail(128 + int(s.interrupted)) // if nothing has failed before, a signal has ended the job
	}
	s.members.ask()
	s.kill.Reset(answerTime)
}
