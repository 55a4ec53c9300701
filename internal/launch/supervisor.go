package launch

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

// maxNotices bounds the supervisor's own lines that wait for a standard error that does not take them. There are
// fewer in a job; were there more, they would be dropped, for the supervisor must not block on them.
const maxNotices = 32

// flushTime is how long the end of the job waits for a standard error that does not take the last lines.
const flushTime = time.Second

// echoTime is how soon after a signal the same one again means nothing: timeout(1) sends its signal to the process and to its
// group, one right behind the other. Nobody presses Ctrl-C twice in this time.
const echoTime = 100 * time.Millisecond

// orphanTime bounds the killing of what the programs left behind.
const orphanTime = 5 * time.Second

// eventKind says what a supervisor.events carries.
type eventKind int

const (
	childEnded  eventKind = iota // exit says how; the process group may still be there
	childReaped                  // the process group is gone
	outputLost                   // standard output or error cannot be written any more
)

type event struct {
	kind  eventKind
	child *child
	exit  exit
	err   error
}

// supervisor is one running job. Its fields belong to the goroutine that runs loop, except the channels and sinks.
type supervisor struct {
	cfg            Config
	starter        *starter
	guard          *guard
	stdout, stderr *sink
	children       []*child

	events  chan event
	over    chan struct{} // closed when loop no longer receives events
	hurry   chan struct{} // closed when nothing is given time any more
	signals chan os.Signal
	deaths  chan os.Signal // SIGCHLD; apart from signals, which it could crowd out
	kill    *time.Timer    // armed when the rest of the job was asked to end
	remind  *time.Timer    // armed when the first program has succeeded
	notices chan string
	printed sync.WaitGroup

	reminding   bool  // remind was armed
	startErr    error // the job could not be started
	failed      bool  // something has failed, and status is fixed
	status      int
	interrupted syscall.Signal // the signal that asked the job to end, if one did, else 0
	asked       time.Time      // when it did
	killing     bool           // hurry is closed
	stopping    bool           // the daemons were asked to end, so their ending is no failure
}

func newSupervisor(cfg Config) *supervisor {
	if cfg.Grace == 0 {
		cfg.Grace = DefaultGrace
	}
	if cfg.Remind == 0 {
		cfg.Remind = DefaultRemind
	}
	s := &supervisor{
		cfg:     cfg,
		starter: newStarter(),
		stdout:  &sink{to: cfg.Stdout},
		stderr:  &sink{to: cfg.Stderr},
		events:  make(chan event),
		over:    make(chan struct{}),
		hurry:   make(chan struct{}),
		signals: make(chan os.Signal, 16),
		deaths:  make(chan os.Signal, 1),
		kill:    time.NewTimer(0),
		remind:  time.NewTimer(0),
		notices: make(chan string, maxNotices),
	}
	s.kill.Stop()
	s.remind.Stop()
	// SIGPIPE would kill this process at the first line after `dsmd run … | head` has seen enough; the failed write
	// is noticed anyway. It stays unread.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	signal.Notify(s.deaths, syscall.SIGCHLD)
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2} {
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

// close gives back what newSupervisor took.
func (s *supervisor) close() {
	signal.Stop(s.signals)
	signal.Stop(s.deaths)
	close(s.over)
	close(s.notices)
	done := make(chan struct{})
	go func() { s.printed.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(flushTime):
	}
	if s.guard != nil {
		s.guard.dismiss()
	}
	s.starter.stop()
}

// post reports an event, to nobody when the job is over.
func (s *supervisor) post(e event) {
	select {
	case s.events <- e:
	case <-s.over:
	}
}

// notice prints a line of the supervisor's own, without ever waiting for it.
func (s *supervisor) notice(format string, args ...any) {
	select {
	case s.notices <- fmt.Sprintf(format, args...):
	default:
	}
}

// loop runs the job to its end.
func (s *supervisor) loop() (int, error) {
	for _, c := range s.children {
		go c.watch(s)
	}
	if s.startErr != nil {
		s.fail(startStatus(s.startErr))
	}
	for s.advance() {
		select {
		case e := <-s.events:
			s.handle(e)
		case sig := <-s.signals:
			s.answer(sig.(syscall.Signal))
		case <-s.deaths:
			s.reapOrphans()
		case <-s.kill.C:
			s.killAll()
		case <-s.remind.C:
			s.sayWhoRuns()
		}
	}
	s.finish()
	return s.status, s.startErr
}

// startStatus is the exit status for a job that could not be started.
func startStatus(err error) int {
	if errors.Is(err, os.ErrPermission) || errors.Is(err, syscall.ENOEXEC) {
		return StatusNotExecutable
	}
	return StatusSystem
}

// advance ends the daemons once all programs have ended, and returns false once everything has.
//
// The daemons are not asked: with the programs gone they have nothing to save, neither memory nor sockets outlive them, and
// while they ended one after the other those still there would complain of the loss of those gone. For the same reason they
// are all stopped before the first one dies.
func (s *supervisor) advance() bool {
	if s.remaining(program, func(c *child) bool { return !c.ended }) == 0 && !s.stopping {
		s.stopping = true
		s.each(daemon, func(c *child) { c.signal(syscall.SIGSTOP) })
		s.each(daemon, func(c *child) { awaitStop(c.pid) })
		s.each(daemon, func(c *child) { c.signal(syscall.SIGKILL) })
	}
	return s.remaining(program, func(c *child) bool { return !c.reaped })+
		s.remaining(daemon, func(c *child) bool { return !c.reaped }) > 0
}

// each calls f for the children of a role whose process groups still exist.
func (s *supervisor) each(r role, f func(*child)) {
	for _, c := range s.children {
		if c.role == r && !c.reaped {
			f(c)
		}
	}
}

// remaining counts the children of a role for which f holds.
func (s *supervisor) remaining(r role, f func(*child) bool) (n int) {
	for _, c := range s.children {
		if c.role == r && f(c) {
			n++
		}
	}
	return n
}

func (s *supervisor) handle(e event) {
	switch e.kind {
	case childEnded:
		e.child.ended = true
		if e.child.role == daemon {
			s.daemonEnded(e.child, e.exit)
		} else {
			s.programEnded(e.child, e.exit)
		}
	case childReaped:
		e.child.reaped = true
		s.guard.remove(e.child.pid)
		s.reapOrphans()
	case outputLost:
		if !s.failed {
			s.notice("writing output: %v: ending the job", e.err)
			s.fail(128 + int(syscall.SIGPIPE))
		}
	}
}

func (s *supervisor) programEnded(c *child, e exit) {
	if s.failed {
		return
	}
	if !e.failed() {
		if !s.reminding {
			s.reminding = true
			s.remind.Reset(s.cfg.Remind)
		}
		return
	}
	// A program fails when its daemon dies, and may be noticed first. The daemon is the cause.
	if d, end := s.dyingDaemon(); d != nil {
		s.daemonEnded(d, end)
		return
	}
	status := e.status()
	switch {
	case s.interrupted != 0 && s.killing:
		status = 128 + int(s.interrupted)
		s.notice("%v: %v %v", s.interrupted, c, e)
	case s.interrupted != 0:
		s.notice("%v: %v %v", s.interrupted, c, e)
	case s.remaining(program, func(c *child) bool { return !c.ended }) > 0:
		s.notice("%v %v: ending the other ranks", c, e)
	default:
		s.notice("%v %v", c, e)
	}
	s.fail(status)
}

func (s *supervisor) daemonEnded(c *child, e exit) {
	switch {
	case s.stopping:
	case !s.failed:
		// When one daemon is killed the others give up, and may be noticed first.
		if d, end := s.dyingDaemon(); d != nil && e.signal == 0 && end.signal != 0 {
			c, e = d, end
		}
		s.notice("%v %v while programs were running: ending the job", c, e)
		s.fail(StatusDaemon)
	case s.status != StatusDaemon:
		// Not the first failure, but perhaps what led to it. (The daemons that end because of the first one are no news.)
		s.notice("%v %v too", c, e)
	}
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
		s.cfg.Nodes-len(running), s.cfg.Nodes, who)
}

// dyingDaemon looks for a daemon that is ending, or has ended without our having been told yet: one that was killed, or else any.
func (s *supervisor) dyingDaemon() (dying *child, how exit) {
	for _, c := range s.children {
		if c.role != daemon || c.reaped {
			continue
		}
		if e, ok := exiting(c.pid); ok && (dying == nil || how.signal == 0) {
			dying, how = c, e
		}
	}
	return dying, how
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
		close(s.hurry)
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

// finish sees to what the programs left behind, and to the rest of their output. Preconditions: all children are reaped.
func (s *supervisor) finish() {
	s.guard.dismiss()
	if left := endOrphans(time.Now().Add(orphanTime)); left > 0 {
		s.notice("%d processes that the programs left behind could not be killed", left)
	}
	// Whoever could write is dead, so what is in the pipes now is all.
	silent := make(chan struct{})
	go func() {
		for _, c := range s.children {
			for _, st := range c.streams {
				st.hurryUp()
			}
			<-c.silent
		}
		close(silent)
	}()
	for {
		select {
		case <-silent:
			return
		case <-s.events: // outputLost
		case sig := <-s.signals:
			// Our own output is stuck, and nobody wants the rest of it any more.
			if ends(sig) {
				return
			}
		}
	}
}
