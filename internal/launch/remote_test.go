package launch

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/runstats"
)

func TestRemoteOutputIsPrefixedByRank(t *testing.T) {
	s := supervise(t, job{Hosts: []string{"host-a", "host-b:2", "host-talks"}, Program: play("hello")})
	s.wantStatus(0)
	for rank := range 4 {
		for _, text := range []string{fmt.Sprintf("out %d of 4", rank), "second", "partial"} {
			if want := fmt.Sprintf("[%d] %s", rank, text); !slices.Contains(s.out, want) {
				t.Errorf("output %q lacks %q", s.out, want)
			}
		}
		s.wantError(fmt.Sprintf("[%d] err %d\n", rank, rank))
	}
	// What a login shell prints is no part of the job.
	s.wantError("[host-talks] welcome to this machine\n")
	if len(s.out) != 12 {
		t.Errorf("%d lines, want 12: %q", len(s.out), s.out)
	}
}

func TestRemoteProgramsAttachToTheirHostsDaemon(t *testing.T) {
	s := supervise(t, job{Hosts: []string{"host-a:2", "host-b"}, Program: play("attach"), Metrics: []string{":0"}})
	s.wantStatus(0)
	slices.Sort(s.out)
	if want := []string{"[0] daemon 0 2 true true", "[1] daemon 0 2 true false", "[2] daemon 1 2 true false"}; !slices.Equal(s.out, want) {
		t.Errorf("output %q, want %q", s.out, want)
	}
	for node := range 2 {
		s.wantError(fmt.Sprintf("[dsmd %d] daemon is up\n", node))
	}
}

func TestRemoteDirectoryAndEnvironment(t *testing.T) {
	dir := t.TempDir()
	s := supervise(t, job{Hosts: []string{"host-a"}, Program: play("where"), Dir: dir, Env: []string{"FAKE_CHOSEN=a b"}})
	s.wantStatus(0)
	if want := "[0] 1 a b " + dir + " <nil>"; !slices.Equal(s.out, []string{want}) {
		t.Errorf("output %q, want %q", s.out, want)
	}
}

// TestNothingOfAnotherJobIsInherited: what a job asks of its programs by their environment is not
// asked of those of another that one of them starts, nor what a user's shell has of it.
func TestNothingOfAnotherJobIsInherited(t *testing.T) {
	given := EnvCheckpoint + "=/chosen"
	for _, where := range []job{{Nodes: 2}, {Hosts: []string{"host-a", "host-b"}}} {
		where.Program, where.Env = []string{"sh", "-c", "env | grep ^DSM_"}, []string{given}
		s := supervise(t, where, EnvTerminal+"=1", EnvCheckpoint+"=/outer", EnvCheckpointEvery+"=1m", EnvRestore+"=/outer",
			EnvLost+"=checkpoint", "DSM_STATS=1", "DSM_PROFILE=1", "DSM_TRACE=1", "DSM_WORDS=1", "DSM_JOB=kept")
		s.wantStatus(0)
		var names []string
		for _, line := range s.out {
			if name, _, _ := strings.Cut(line, "="); !strings.HasSuffix(line, given) {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		var want []string
		for _, rank := range []string{"[0] ", "[1] "} {
			for _, name := range []string{"DSM_JOB", EnvRank, runstats.Env, EnvSize, EnvSocket} {
				want = append(want, rank+name)
			}
		}
		if len(s.out) != len(want)+2 || !slices.Equal(names, want) {
			t.Errorf("of %q: %q, want %q", s.out, names, want)
		}
	}
}

// TestRemoteRefusals: a job that cannot start says which host is to blame and what to do, and
// leaves nothing behind.
func TestRemoteRefusals(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		job    job
		status int
		says   []string
	}{
		{"host key", job{Hosts: []string{"host-a", "unknown"}, Program: play("hello")}, StatusSystem,
			[]string{"[unknown] Host key verification failed.", "on unknown: its host key is not known", "known_hosts"}},
		{"no dsmd", job{Hosts: []string{"without-dsmd", "host-a"}, Program: play("hello")}, StatusSystem,
			[]string{"on without-dsmd: there is no dsmd", "--remote-dsmd"}},
		{"other version", job{Hosts: []string{"host-a", "other"}, Program: play("hello")}, StatusSystem,
			[]string{"on other: its dsmd is another version: it is 2, orders 4 there and 1, orders 4 here"}},
		{"other orders", job{Hosts: []string{"host-of-old"}, Program: play("hello")}, StatusSystem,
			[]string{"on host-of-old: its dsmd is another version: it is 1 there and 1, orders 4 here"}},
		{"nonsense", job{Hosts: []string{"host-babbles"}, Program: play("hello")}, StatusSystem, []string{"on host-babbles: ", errFrame.Error()}},
		{"no program", job{Hosts: []string{"host-a", "host-b"}, Program: []string{"./nix"}}, StatusNotFound, []string{"on host-", ": ./nix: no such program"}},
		{"no directory", job{Hosts: []string{"host-a"}, Program: play("hello"), Dir: "/nix"}, StatusSystem, []string{"on host-a: the working directory", "--dir"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := supervise(t, test.job)
			s.guarded = true
			s.wantStatus(test.status)
			for _, want := range test.says {
				s.wantError(want)
			}
			if len(s.out) != 0 {
				t.Errorf("a job that was not started printed %q", s.out)
			}
		})
	}
}

func TestRemoteFirstFailureDecides(t *testing.T) {
	s := supervise(t, job{Hosts: []string{"host-a", "host-b", "host-c"}, Program: play("exit-3@2")})
	s.wantStatus(3)
	s.wantError("dsmd: rank 2 on host-c exited with status 3: ending the other ranks\n")
}

// The daemons on other machines that give up because a peer was killed, and the programs that fail
// because of it, do not take the blame.
func TestRemoteKilledDaemonIsBlamed(t *testing.T) {
	s := supervise(t, job{Hosts: []string{"host-a", "host-b", "host-c"}, Program: play("attach"), Daemon: "killed-at-attach"}, "FAKE_STAYS=1")
	s.wantStatus(StatusDaemon)
	s.wantError("dsmd: the daemon of node 1 on host-b was killed by signal 9 (killed) while programs were running: ending the job\n")
}

func TestRemoteSignals(t *testing.T) {
	s := supervise(t, job{Hosts: []string{"host-a", "host-b"}, Program: play("signals")})
	s.ready(2)
	s.signal(syscall.SIGUSR1)
	got := []string{s.line(), s.line()}
	slices.Sort(got)
	if want := []string{"[0] got 10", "[1] got 10"}; !slices.Equal(got, want) {
		t.Fatalf("%q, want %q", got, want)
	}
	s.signal(syscall.SIGINT)
	s.wantStatus(0) // the programs took it as a reason to succeed
}

func TestRemoteSecondInterruptKills(t *testing.T) {
	s := supervise(t, job{Hosts: []string{"host-a", "host-b"}, Program: play("stubborn"), Grace: time.Hour})
	s.ready(2)
	s.signal(syscall.SIGINT)
	s.signal(syscall.SIGTERM)
	if status := s.wait(); status != 128+int(syscall.SIGINT) && status != 128+int(syscall.SIGTERM) {
		t.Errorf("status %d, want that of a signal; stderr:\n%s", status, s.stderr.String())
	}
	s.wantError("dsmd: killing rank 0 on host-a, rank 1 on host-b, still there")
}

// TestInterruptWhileConnecting: a host that does not answer does not hold up Ctrl-C.
func TestInterruptWhileConnecting(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "trace.json")
	s := supervise(t, job{Hosts: []string{"host-talks", "silent"}, Program: play("hello"), Trace: file})
	s.guarded = true
	// The supervisor takes signals before it reaches for hosts. There are two ssh, the agent of the
	// host that talks, and its guard.
	s.awaitProcesses(5)
	s.signal(syscall.SIGINT)
	s.wantStatus(128 + int(syscall.SIGINT))
	s.wantError("dsmd: launch: interrupt, before the job was started\n")
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty trace is left, or %v", err)
	}
}

// awaitProcesses waits until the job has n processes, and lists them. One in the middle of execve
// is not seen.
func (s *supervision) awaitProcesses(n int) []int {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		pids := s.job()
		if len(pids) >= n {
			return pids
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the job is %s", describe(pids))
		}
	}
}

// TestRemoteKilledLauncherLeavesNothingBehind: neither does one of its ssh.
func TestRemoteKilledLauncherLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"stubborn", "family-session"} {
		t.Run(mode, func(t *testing.T) {
			s := supervise(t, job{Hosts: []string{"host-a", "host-b"}, Program: play(mode)})
			s.ready(2)
			// The supervisor, and for each host ssh, the agent, its guard, a daemon and a program.
			everything := s.awaitProcesses(11)
			s.signal(syscall.SIGKILL)
			gone(t, everything)
			gone(t, s.job()) // what was being started when the others were listed
		})
	}
}

// TestLostHostEndsTheJob: the agent of a host dies, which looks from here as if the host did.
func TestLostHostEndsTheJob(t *testing.T) {
	s := supervise(t, job{Hosts: []string{"host-a", "host-b", "host-c"}, Program: play("kill-agent@1"), Grace: time.Hour})
	s.guarded = true
	s.wantStatus(StatusDaemon)
	s.wantError("dsmd: launch: on host-b: the connection is lost")
	s.wantError(": ending the job\n")
}

// TestFullOutputDoesNotHoldUpSignals: nobody reads the job's output, and it can still be ended.
func TestFullOutputDoesNotHoldUpSignals(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	cmd := launcher(t, job{Hosts: []string{"host-a", "host-b"}, Program: play("flood")})
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	for deadline := time.Now().Add(patience); !full(t, w); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the output does not fill its pipe")
		}
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	// A later one says that nobody wants the rest of the output any more, when that is all that is
	// left.
	ended := make(chan struct{})
	go func() {
		_, _ = cmd.Process.Wait()
		close(ended)
	}()
	for {
		select {
		case <-ended:
			if !timer.Stop() {
				t.Error("the supervisor does not end by itself")
			}
			return
		case <-time.After(3 * echoTime):
			_ = cmd.Process.Signal(syscall.SIGINT)
		}
	}
}

// full reports whether a pipe has no room for another page.
func full(t *testing.T, w *os.File) bool {
	t.Helper()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(w.Fd()), Events: unix.POLLOUT}}, 0)
	if err != nil && err != unix.EINTR {
		t.Fatal(err)
	}
	return err == nil && n == 0
}

func TestRemoteInputReachesRankZero(t *testing.T) {
	// More than the window, so that credit has to come back.
	const size = 3 * windowBytes
	cmd := launcher(t, job{Hosts: []string{"host-a", "host-b"}, Program: []string{"wc", "-c"}})
	cmd.Stdin = bytes.NewReader(make([]byte, size))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(lines)
	if want := []string{fmt.Sprintf("[0] %d", size), "[1] 0"}; !slices.Equal(lines, want) {
		t.Errorf("%q, want %q", lines, want)
	}
}

func TestRemoteLongLine(t *testing.T) {
	s := supervise(t, job{Hosts: []string{"host-a"}, Program: play("long-line")})
	s.wantStatus(0)
	total := 0
	for _, l := range s.out {
		text, ok := strings.CutPrefix(l, "[0] ")
		if !ok || strings.Trim(text, "x") != "" {
			t.Fatalf("a line of %d bytes, prefixed %t", len(l), ok)
		}
		total += len(text)
	}
	if total != 8<<20 {
		t.Errorf("%d bytes came through, want %d", total, 8<<20)
	}
}

// leaver is a link to an agent that takes no more orders, and then says why it ends. A cut takes
// what has not been read yet, as it does from ssh.
type leaver struct {
	*scripted
	refused, off chan struct{}
	once         sync.Once
}

func (l *leaver) Write([]byte) (int, error) { close(l.refused); return 0, syscall.EPIPE }
func (l *leaver) cut()                      { l.once.Do(func() { close(l.off) }) }

func (l *leaver) Read(b []byte) (int, error) {
	<-l.refused
	select {
	case <-l.off:
		return 0, net.ErrClosed
	case <-time.After(flushTime / 2):
		return l.scripted.Read(b)
	}
}

// TestLastWordsAreHeard: an order that cannot be written does not keep an agent's last words from
// being read.
func TestLastWordsAreHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		said.WriteString(greeting + spoken("1") + "\n")
		if err := writeFrame(&said, frameEvent, mustEncode(event{Kind: parted, Err: "no room"})); err != nil {
			t.Fatal(err)
		}
		events := make(chan event, 2)
		m := newRemote("host", func(e event) { events <- e }, voice{sink: newSink(io.Discard)}, voice{sink: newSink(io.Discard)})
		m.connect(&leaver{scripted: &scripted{Reader: &said}, refused: make(chan struct{}), off: make(chan struct{})}, "1")
		m.hurry()
		if e := <-events; e.Kind != lost || !strings.Contains(e.Err, "its dsmd has ended: no room") {
			t.Errorf("the report is %+v", e)
		}
	})
}

// mute is a link to a machine that says nothing.
type mute struct{ io.Reader }

func (mute) Write(b []byte) (int, error)             { return len(b), nil }
func (m mute) cut()                                  { m.Reader.(*io.PipeReader).Close() }
func (mute) machine() string                         { return "" }
func (mute) wait()                                   {}
func (mute) explain(err error, _ bool) (string, int) { return err.Error(), StatusSystem }

// TestAgentThatHangsAtTheStart: a machine that does not open is given up, before or after its
// greeting, and one that has opened is not.
func TestAgentThatHangsAtTheStart(t *testing.T) {
	var open bytes.Buffer
	if err := writeFrame(&open, frameEvent, mustEncode(event{Kind: opened, Addresses: []string{"127.0.0.1:1"}})); err != nil {
		t.Fatal(err)
	}
	hello := greeting + spoken("1") + "\n"
	for said, want := range map[string]eventKind{"": lost, hello: lost, hello + open.String(): opened} {
		synctest.Test(t, func(t *testing.T) {
			events := make(chan event, 3)
			m := newRemote("host", func(e event) { events <- e }, voice{sink: newSink(io.Discard)}, voice{sink: newSink(io.Discard)})
			from, to := io.Pipe()
			m.connect(mute{from}, "1")
			m.opensIn(20 * time.Second) // less than it takes to be given up later (askAlive)
			m.open(openOrder{Nodes: []int{0}})
			_, _ = io.WriteString(to, said)
			time.Sleep(30 * time.Second)
			e := <-events
			if e.Kind != want || e.Kind == lost && !strings.Contains(e.Err, "on host: no answer within 20s") || e.Kind == opened && len(events) > 0 {
				t.Errorf("after %q the report is %+v, and %d follow", said, e, len(events))
			}
			m.abandon()
			for e.Kind != finished {
				e = <-events
			}
		})
	}
}

// stuck is an output that takes nothing until it is closed.
type stuck chan struct{}

func (s stuck) write(string, []byte) error { <-s; return nil }

// TestLossIsToldBeforeTheOutput: output that nobody reads does not hold up the news that its
// machine is lost.
func TestLossIsToldBeforeTheOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		said.WriteString(greeting + spoken("1") + "\n")
		if err := writeFrame(&said, frameStdout, appendPiece(nil, "[0] ", []byte("text\n"))); err != nil {
			t.Fatal(err)
		}
		events, out := make(chan event, 2), make(stuck)
		m := newRemote("host", func(e event) { events <- e }, out, out)
		m.connect(&scripted{Reader: &said}, "1")
		synctest.Wait()
		if len(events) != 1 {
			t.Fatalf("there are %d reports while the output is stuck", len(events))
		}
		if e := <-events; e.Kind != lost {
			t.Errorf("the first report is %+v", e)
		}
		close(out)
		if e := <-events; e.Kind != finished {
			t.Errorf("the last report is %+v", e)
		}
	})
}

func TestParseHosts(t *testing.T) {
	got, err := ParseHosts([]string{"ann", " bob:2", "eve@carol:3", "ann", "[fd00::1]:4", "fd00::2", "[fd00::3]"})
	want := []Host{{"ann", 2}, {"bob", 2}, {"eve@carol", 3}, {"fd00::1", 4}, {"fd00::2", 1}, {"fd00::3", 1}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for _, bad := range []string{"", ":2", "ann:0", "ann:x", "ann:-1", "-oProxyCommand=x", "[fd00::1]x", "a b", "ann:100000"} {
		if got, err := ParseHosts([]string{bad}); err == nil {
			t.Errorf("%q gives %v, want an error", bad, got)
		}
	}
	for _, second := range []string{"ann:1500", "ann:9223372036854775807"} {
		if got, err := ParseHosts([]string{"ann:1500", second}); err == nil {
			t.Errorf("too many slots give %v, want an error", got)
		}
	}
}

func TestReadHosts(t *testing.T) {
	got, err := ReadHosts(strings.NewReader("# the cluster\nann slots=4\n\nbob:2 # the other\n"))
	if want := []Host{{"ann", 4}, {"bob", 2}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for _, bad := range []string{"bob cores=3", "bob slots=0", "ann slots=9223372036854775807"} {
		if got, err := ReadHosts(strings.NewReader("ann\n" + bad + "\n")); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%v, %v; want an error about line 2", got, err)
		}
	}
}

// FuzzAgent lets an agent hear anything. It must not fail, and only an order to open a job makes it
// do something; those are left out.
func FuzzAgent(f *testing.F) {
	frame := func(kind frameKind, body string) []byte {
		var b bytes.Buffer
		_ = writeFrame(&b, kind, []byte(body))
		return b.Bytes()
	}
	f.Add(frame(frameOrder, `{"signal":{"to":{"role":0,"index":3},"signal":9}}`))
	f.Add(append(frame(frameOrder, `{"ask":true}`), frame(frameOrder, `{"start":{"children":[{"id":{"role":1},"node":3}]}}`)...))
	f.Add(frame(frameStdoutCredit, "\xff\xff\xff\xff"))
	f.Add(frame(frameStdin, "input"))
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, said []byte) {
		if bytes.Contains(said, []byte("open")) || bytes.Contains(bytes.ToLower(said), []byte("open")) {
			t.Skip()
		}
		a := &agent{channel: &channel{w: io.Discard}, stdout: newAllowance(), stderr: newAllowance(), here: &local{post: func(event) {}, hurried: make(chan struct{})}}
		for r := bufio.NewReader(bytes.NewReader(said)); ; {
			kind, body, err := readFrame(r)
			if err != nil {
				return
			}
			if o, _ := decode[order](body); kind == frameOrder && (o.Open != nil || o.Finish) {
				return
			}
			if err := a.take(kind, body); err != nil && !errors.Is(err, errFrame) {
				t.Fatalf("%v", err)
			}
		}
	})
}

// FuzzLauncher lets a launcher hear anything from an agent.
func FuzzLauncher(f *testing.F) {
	var b bytes.Buffer
	_, _ = b.WriteString("noise\n" + greeting + spoken("1") + "\n")
	_ = writeFrame(&b, frameEvent, mustEncode(event{Kind: opened, Addresses: []string{"127.0.0.1:1"}}))
	_ = writeFrame(&b, frameStdout, appendPiece(nil, "[0] ", []byte("text\n")))
	_ = writeFrame(&b, frameEvent, mustEncode(event{Kind: childEnded, Child: childID{program, 7}}))
	_ = writeFrame(&b, frameEvent, mustEncode(event{Kind: finished}))
	f.Add(b.Bytes())
	f.Add([]byte(greeting + "2\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		cfg := Config{Hosts: []Host{{"host", 1}}, Program: []string{"x"}, Stdout: io.Discard, Stderr: io.Discard, Remote: Remote{Version: "1"}}
		p, err := cfg.plan()
		if err != nil {
			t.Fatal(err)
		}
		s := mustSupervise(t, cfg, p)
		defer s.close()
		m := newRemote("host", s.post, s.stdout, s.stderr)
		// it may say everything before it is asked
		m.connect(&scripted{Reader: bytes.NewReader(said)}, "1")
		s.machines = []machine{m}
		_, _ = s.loop()
	})
}

// scripted is a link to an agent that says what it wants.
type scripted struct{ io.Reader }

func (*scripted) Write(b []byte) (int, error)             { return len(b), nil }
func (*scripted) cut()                                    {}
func (*scripted) machine() string                         { return "" }
func (*scripted) wait()                                   {}
func (*scripted) explain(err error, _ bool) (string, int) { return err.Error(), StatusSystem }
