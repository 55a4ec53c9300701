package launch

import (
	"bytes"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// late is a machine whose program ends long after it was killed, and that answers all the same;
// unless it is deaf, and nothing is heard of it once it runs.
type late struct {
	puppet
	deaf bool
}

func (m *late) ask() {
	if !m.deaf {
		m.puppet.ask()
	}
}

func (m *late) hurry() {
	if !m.deaf {
		time.AfterFunc(3*answerTime, func() {
			m.post(event{Kind: childEnded, Child: childID{program, 0}, Exit: exit{Signal: syscall.SIGKILL}})
			m.post(event{Kind: childReaped, Child: childID{program, 0}})
		})
	}
}

func (m *late) abandon() {
	m.post(event{Kind: lost, Err: "was cut off"})
	m.post(event{Kind: finished})
}

// TestMachineThatDoesNotAnswer is given up when the job is killed, and one that is only slow is
// not. The status is that of the signal either way.
func TestMachineThatDoesNotAnswer(t *testing.T) {
	defer func(before time.Duration) { answerTime = before }(answerTime)
	answerTime = 10 * time.Millisecond
	for name, deaf := range map[string]bool{"deaf": true, "slow": false} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			cfg := Config{Hosts: []Host{{"host-a", 1}}, Remote: Remote{Insecure: true}, Program: []string{"x"}, Stdout: io.Discard, Stderr: &stderr}
			p, err := cfg.plan()
			if err != nil {
				t.Fatal(err)
			}
			s := mustSupervise(t, cfg, p)
			interrupt := func(id childID) {
				if id.Role == program {
					s.signals <- syscall.SIGINT
				}
			}
			end := func(id childID) { s.post(event{Kind: childReaped, Child: id}) }
			m := &late{puppet{post: s.post, onStart: interrupt, onHalt: end}, deaf}
			s.machines = []machine{m}
			timer := time.AfterFunc(patience, m.abandon)
			status, err := s.loop()
			s.close()
			if !timer.Stop() {
				t.Error("the job does not end by itself")
			}
			if want := 128 + int(syscall.SIGINT); status != want || err != nil {
				t.Errorf("status %d, %v, want %d", status, err, want)
			}
			if said := stderr.String(); strings.Contains(said, "dsmd: giving up host-a, whose dsmd does not answer") != deaf || strings.Contains(said, "cut off") {
				t.Errorf("stderr %q", said)
			}
		})
	}
}

// stopAgent stops the agent of the first of so many programs.
func (s *supervision) stopAgent(programs int) (agent int) {
	s.t.Helper()
	agent = number(s.t, stat(s.ready(programs)[0])[1]) // the program's parent
	if err := unix.Kill(agent, unix.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	return agent
}

// endsWithout waits for the supervisor's end, which leaves a stopped agent, and does something
// again and again meanwhile. Then the agent goes on, and ends what is left there.
func (s *supervision) endsWithout(agent, status int, meanwhile func()) {
	s.t.Helper()
	for wait := time.After(patience); s.lines != nil; {
		select {
		case _, more := <-s.lines:
			if !more {
				s.lines = nil
			}
		case <-time.After(3 * echoTime):
			meanwhile()
		case <-wait:
			s.t.Fatal("the supervisor does not end")
		}
	}
	_ = s.cmd.Wait()
	if got := s.cmd.ProcessState.ExitCode(); got != status {
		s.t.Errorf("status %d, want %d", got, status)
	}
	_ = unix.Kill(agent, unix.SIGCONT)
	gone(s.t, s.job())
}

// TestStoppedAgent: an agent that is stopped holds up nobody who wants the job to end, and when it
// goes on it ends what is left there.
func TestStoppedAgent(t *testing.T) {
	t.Parallel()
	s := supervise(t, job{Hosts: []string{"host-a", "host-b"}, Program: play("stubborn"), Grace: time.Hour})
	s.endsWithout(s.stopAgent(2), 128+int(syscall.SIGINT), func() { s.signal(syscall.SIGINT) })
	s.wantError("dsmd: giving up host-")
}

// TestHungAgent: an agent that hangs while nobody wants the job to end is noticed, and ends it.
func TestHungAgent(t *testing.T) {
	t.Parallel()
	s := supervise(t, job{Hosts: []string{"host-a"}, Program: play("stubborn"), Alive: patience / 100})
	s.endsWithout(s.stopAgent(1), StatusDaemon, func() {})
	s.wantError("on host-a: its dsmd has not answered for ")
}

// cutLink is a link of which it is only asked whether it was cut.
type cutLink struct {
	deadLink
	cuts int
}

func (l *cutLink) cut() { l.cuts++ }

// TestSlowAgent: one that leaves all questions but one unanswered is there.
func TestSlowAgent(t *testing.T) {
	l := &cutLink{}
	r := newRemote("host", func(event) {}, nil, nil)
	r.link = l
	for range 100 {
		for range maxUnheard {
			r.askAlive()
		}
		r.heard()
	}
	if l.cuts > 0 {
		t.Error("a slow agent is given up")
	}
	for range maxUnheard + 1 {
		r.askAlive()
	}
	if l.cuts != 1 {
		t.Errorf("a silent agent is given up %d times", l.cuts)
	}
	r.mu.Lock()
	r.reported = true // nobody asks any more
	r.mu.Unlock()
}
