package launch

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	patient "dsmd/internal/patience"
)

// patience bounds every wait of these tests. Nothing takes that long unless it hangs.
var patience = patient.Or(20 * time.Second)

// supervision is a running supervisor process.
type supervision struct {
	t      *testing.T
	cmd    *exec.Cmd
	mark   string // in the environment of every process of the job
	lines  chan string
	stderr bytes.Buffer // to be read after wait
	out    []string     // lines taken so far

	// guarded: a guard cleans up, so that something may be there for a moment after the supervisor
	// has ended.
	guarded bool
}

// launcher is a process that runs a job, and is not started yet.
func launcher(t *testing.T, j job) *exec.Cmd {
	t.Helper()
	arg, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command(self, "play-supervisor", string(arg))
}

// converse starts a process, with a pipe to its standard input, and one from the output that output
// opens. It is killed when it takes too long.
func converse(t *testing.T, cmd *exec.Cmd, output func() (io.ReadCloser, error)) (in io.WriteCloser, out io.ReadCloser) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if out, err = output(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() { timer.Stop() })
	return in, out
}

// supervise starts a job.
func supervise(t *testing.T, j job, env ...string) *supervision {
	t.Helper()
	s := &supervision{t: t, mark: "LAUNCH_TEST=" + t.Name() + strconv.Itoa(os.Getpid()), lines: make(chan string, 1024)}
	s.cmd = launcher(t, j)
	s.cmd.Env = append(append(os.Environ(), s.mark), env...)
	s.cmd.Stderr = &s.stderr
	// When the supervisor is killed, its standard error may be held open by the dying for a moment.
	s.cmd.WaitDelay = patience
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.lines)
		for r := bufio.NewReader(stdout); ; {
			line, err := r.ReadString('\n')
			if line != "" {
				s.lines <- strings.TrimSuffix(line, "\n")
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		for _, pid := range s.job() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
	return s
}

// line returns the next line of the job's standard output, and fails if there is none.
func (s *supervision) line() string {
	s.t.Helper()
	select {
	case l, ok := <-s.lines:
		if !ok {
			s.t.Fatalf("output ended; stderr:\n%s", s.wait0())
		}
		s.out = append(s.out, l)
		return l
	case <-time.After(patience):
		s.t.Fatalf("no output; so far %q", s.out)
		return ""
	}
}

func (s *supervision) wait0() string { _ = s.cmd.Wait(); return s.stderr.String() }

// ready takes lines until n of them say that a program is ready, and returns the programs' process
// ids.
func (s *supervision) ready(n int) (pids []int) {
	s.t.Helper()
	for len(pids) < n {
		l := s.line()
		if _, after, ok := strings.Cut(l, "ready "); ok {
			pids = append(pids, number(s.t, after))
		}
		if _, after, ok := strings.Cut(l, "child "); ok {
			pids = append(pids, number(s.t, after))
		}
	}
	return pids
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (s *supervision) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// wait waits for the supervisor's end and returns its exit status and the rest of its output.
// Nothing may be left of the job.
func (s *supervision) wait() int {
	s.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case l, ok := <-s.lines:
			if !ok {
				s.lines = nil
				_ = s.cmd.Wait()
				left := s.job()
				if s.guarded {
					gone(s.t, left)
				} else if len(left) > 0 {
					s.t.Errorf("left behind: %s", describe(left))
				}
				state := s.cmd.ProcessState.Sys().(syscall.WaitStatus)
				if state.Signaled() {
					return 128 + int(state.Signal())
				}
				return state.ExitStatus()
			}
			s.out = append(s.out, l)
		case <-deadline:
			s.t.Fatalf("the supervisor does not end; output so far %q", s.out)
		}
	}
}

// job lists the living processes of the job.
func (s *supervision) job() (pids []int) {
	all, _ := procfs.AllProcs()
	for _, p := range all {
		if p.PID != os.Getpid() && marked(p.PID, map[string]bool{s.mark: true}) {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

func describe(pids []int) string {
	var b strings.Builder
	for _, pid := range pids {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		fmt.Fprintf(&b, "%d %q; ", pid, bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
	}
	return b.String()
}

// gone waits for the end of processes that need not be our children.
func gone(t *testing.T, pids []int) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // gone and reaped
		}
		n, err := 0, unix.EINTR // as the end of any child has it
		for err == unix.EINTR {
			n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, max(0, int(time.Until(deadline).Milliseconds())))
		}
		unix.Close(fd)
		if n != 1 {
			t.Errorf("still there: %s (%v)", describe([]int{pid}), err)
		}
	}
}

func (s *supervision) wantStatus(want int) {
	s.t.Helper()
	if got := s.wait(); got != want {
		s.t.Errorf("status %d, want %d; output %q, stderr:\n%s", got, want, s.out, s.stderr.String())
	}
}

func (s *supervision) wantError(want string) {
	s.t.Helper()
	if !strings.Contains(s.stderr.String(), want) {
		s.t.Errorf("stderr lacks %q:\n%s", want, s.stderr.String())
	}
}

func play(mode string) []string { return []string{self, "play-program", mode} }

func TestOutputIsPrefixedByRank(t *testing.T) {
	s := supervise(t, job{Nodes: 11, Program: play("hello")})
	s.wantStatus(0)
	for rank := range 11 {
		var mine []string
		prefix := fmt.Sprintf("[%2d] ", rank)
		for _, l := range s.out {
			if after, ok := strings.CutPrefix(l, prefix); ok {
				mine = append(mine, after)
			}
		}
		if want := []string{fmt.Sprintf("out %d of 11", rank), "second", "partial"}; !slices.Equal(mine, want) {
			t.Errorf("rank %d printed %q, want %q", rank, mine, want)
		}
		s.wantError(fmt.Sprintf("[%2d] err %d\n", rank, rank))
	}
	if len(s.out) != 33 {
		t.Errorf("%d lines, want 33: %q", len(s.out), s.out)
	}
}

// TestRanksOfANode: each node of one machine has as many programs as it was asked for.
func TestRanksOfANode(t *testing.T) {
	s := supervise(t, job{Nodes: 2, Slots: 3, Program: play("attach"), Metrics: []string{":0"}})
	s.wantStatus(0)
	for rank := range 6 {
		want := fmt.Sprintf("[%d] daemon %d 2 true ", rank, rank/3)
		if !slices.ContainsFunc(s.out, func(line string) bool { return strings.HasPrefix(line, want) }) {
			t.Errorf("output %q lacks %q", s.out, want)
		}
	}
}

// TestPiecesOfLogs: who wants the pieces of the ranks gets all, those of each rank in order, from
// here and from other machines, also those that are under way when a rank has ended; and nobody
// else is asked for any.
func TestPiecesOfLogs(t *testing.T) {
	for name, j := range map[string]job{"here": {Nodes: 2}, "elsewhere": {Hosts: []string{"host-a", "host-b"}}} {
		t.Run(name, func(t *testing.T) {
			j.Program, j.Pieces = play("pieces"), true
			s := supervise(t, j)
			s.wantStatus(0)
			next, asked := map[int]uint64{}, 0
			for _, line := range s.out {
				var rank, length int
				var number uint64
				if strings.HasSuffix(line, `asked for: "1" "1"`) {
					asked++
				} else if n, err := fmt.Sscanf(line, "piece of %d: %d with %d bytes", &rank, &number, &length); n != 3 || number != next[rank] || length != pieceBytes {
					t.Fatalf("%q, %v; the next one is %d", line, err, next[rank])
				} else {
					next[rank]++
				}
			}
			if asked != 2 || len(next) != 2 || next[0] != manyPieces || next[1] != manyPieces {
				t.Errorf("%d were asked, and have written %v", asked, next)
			}
		})
	}
	s := supervise(t, job{Nodes: 1, Program: play("pieces")})
	s.wantStatus(0)
	if !slices.Equal(s.out, []string{`[0] asked for: "" ""`}) {
		t.Errorf("%q", s.out)
	}
}

func TestProgramsReachTheirDaemonsAtOnce(t *testing.T) {
	s := supervise(t, job{Nodes: 4, Program: play("attach"), Metrics: []string{":0"}})
	s.wantStatus(0)
	for rank := range 4 {
		if want := fmt.Sprintf("[%d] daemon %d 4 true true", rank, rank); !slices.Contains(s.out, want) {
			t.Errorf("output %q lacks %q", s.out, want)
		}
	}
}

// TestKilledForWantOfMemory: who is killed while the kernel kills processes that want more memory
// than there is was probably one of them, and the user hears what can be done. Who ends by itself
// was none.
func TestKilledForWantOfMemory(t *testing.T) {
	const (
		why    = " was killed by signal 9 (killed) for want of memory, it seems (since the job began the kernel has killed "
		remedy = "; lower --memory, or give the machine or its control group more\n"
	)
	for _, test := range []struct {
		job    job
		status int
		says   []string
	}{
		{job{Program: play("abort@1")}, 128 + 9, []string{"dsmd: rank 1" + why, " here for that): ending the other ranks" + remedy}},
		{job{Program: play("attach"), Daemon: "killed-at-attach"}, StatusDaemon, []string{
			"dsmd: the daemon of node 1" + why, " here for that) while programs were running: ending the job" + remedy}},
		{job{Program: play("abort@1"), Survive: true}, 0, []string{
			"dsmd: rank 1" + why, " here for that) at ", " after the start: 1 of 2 ranks are left" + remedy}},
	} {
		test.job.Nodes, test.job.Starved = 2, true
		s := supervise(t, test.job, "FAKE_STAYS=1")
		s.wantStatus(test.status)
		for _, want := range test.says {
			s.wantError(want)
		}
	}
	s := supervise(t, job{Nodes: 2, Program: play("exit-3@1"), Starved: true})
	s.wantStatus(3)
	s.wantError("dsmd: rank 1 exited with status 3: ending the other ranks\n")
}

func TestFirstFailureDecides(t *testing.T) {
	for _, test := range []struct {
		mode   string
		status int
		notice string
	}{
		{"exit-3@2", 3, "dsmd: rank 2 exited with status 3: ending the other ranks\n"},
		{"abort@1", 128 + 9, "dsmd: rank 1 was killed by signal 9 (killed): ending the other ranks\n"},
	} {
		t.Run(test.mode, func(t *testing.T) {
			s := supervise(t, job{Nodes: 3, Program: play(test.mode)})
			s.wantStatus(test.status)
			s.wantError(test.notice)
		})
	}
}

func TestStubbornProgramIsKilledAfterTheGrace(t *testing.T) {
	// Rank 0 fails once rank 1 ignores SIGTERM, which its shell takes over from it.
	const script = `trap '' TERM; if [ $DSM_RANK = 1 ]; then echo ready $$; exec sleep 3600; fi; read go; exit 9`
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cmd := launcher(t, job{Nodes: 2, Program: []string{"sh", "-c", script}, Grace: 50 * time.Millisecond})
	cmd.Stdin = r
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if !strings.HasPrefix(line, "[1] ready ") {
		t.Fatalf("%q, %v", line, err)
	}
	fmt.Fprintln(w, "go")
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 9 {
		t.Errorf("status %d, want 9", got)
	}
	if want := "dsmd: killing rank 1, still there"; !strings.Contains(stderr.String(), want) {
		t.Errorf("stderr lacks %q:\n%s", want, stderr.String())
	}
}

func TestSignalsReachThePrograms(t *testing.T) {
	for _, last := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		t.Run(last.String(), func(t *testing.T) {
			s := supervise(t, job{Nodes: 2, Program: play("signals")})
			s.ready(2)
			for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2} {
				s.signal(sig)
				got := []string{s.line(), s.line()}
				slices.Sort(got)
				if want := []string{fmt.Sprintf("[0] got %d", sig), fmt.Sprintf("[1] got %d", sig)}; !slices.Equal(got, want) {
					t.Fatalf("after %v: %q", sig, got)
				}
			}
			s.signal(last)
			s.wantStatus(0) // the programs took it as a reason to succeed
		})
	}
}

func TestInterruptEndsPrograms(t *testing.T) {
	s := supervise(t, job{Nodes: 2, Program: []string{"sh", "-c", "echo ready $$; exec sleep 3600"}})
	s.ready(2)
	s.signal(syscall.SIGINT)
	s.wantStatus(128 + int(syscall.SIGINT))
	s.wantError("dsmd: interrupt: rank ")
}

func TestSecondInterruptKills(t *testing.T) {
	s := supervise(t, job{Nodes: 2, Program: play("stubborn"), Grace: time.Hour})
	s.ready(2)
	s.signal(syscall.SIGINT)
	// Both signals of a kind may be delivered as one, so the second is of another.
	s.signal(syscall.SIGTERM)
	status := s.wait()
	if status != 128+int(syscall.SIGINT) && status != 128+int(syscall.SIGTERM) {
		t.Errorf("status %d, want that of a signal; stderr:\n%s", status, s.stderr.String())
	}
	s.wantError("dsmd: killing rank 0, rank 1, still there")
}

func mustSupervise(t *testing.T, cfg Config, p *plan) *supervisor {
	t.Helper()
	s, err := newSupervisor(cfg, p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestEchoOfASignal: the same signal twice in a row, as timeout(1) sends it, leaves the programs
// their grace.
func TestEchoOfASignal(t *testing.T) {
	s := mustSupervise(t, Config{Grace: time.Hour}, &plan{})
	defer s.close()
	s.answer(syscall.SIGTERM)
	s.asked = time.Now().Add(time.Hour) // not long ago, however slow this process is
	s.answer(syscall.SIGTERM)
	if s.killing {
		t.Error("an echo of the signal that ended the job kills")
	}
	s.asked = time.Now().Add(-echoTime)
	s.answer(syscall.SIGTERM)
	if !s.killing {
		t.Error("a second signal, later, does not kill")
	}
}

// TestSignalWhileChildrenStart: no more are started once the job is to end, and the signals still
// wait to be answered.
func TestSignalWhileChildrenStart(t *testing.T) {
	s := mustSupervise(t, Config{}, &plan{})
	defer s.close()
	s.signals <- syscall.SIGUSR1
	if s.askedToEnd() {
		t.Error("SIGUSR1 ends a job")
	}
	s.signals <- syscall.SIGTERM
	var unborn []childID
	l := &local{
		endpoints: &endpoints{}, stop: s.askedToEnd,
		post: func(e event) {
			if e.Kind != childReaped {
				t.Errorf("%+v", e)
			}
			unborn = append(unborn, e.Child)
		},
	}
	all := []childOrder{{ID: childID{daemon, 0}}, {ID: childID{program, 0}}, {ID: childID{program, 1}}}
	l.start(startOrder{Children: all}, input{})
	if len(unborn) != len(all) || unborn[2] != all[2].ID {
		t.Errorf("%v were not started, of %v", unborn, all)
	}
	for _, want := range []os.Signal{syscall.SIGUSR1, syscall.SIGTERM} {
		if got := <-s.signals; got != want {
			t.Errorf("%v is to be answered, want %v", got, want)
		}
	}
}

// puppet is a machine whose children do as the test says. The methods that it lacks are not called.
type puppet struct {
	machine
	post func(event)
	// onStart and onHalt are what becomes of the children.
	onStart, onHalt func(childID)
	children        []childID
}

func (p *puppet) open(o openOrder) {
	p.post(event{Kind: opened, Addresses: make([]string, len(o.Nodes))})
}

func (p *puppet) start(o startOrder, in input) {
	in.close()
	for _, c := range o.Children {
		p.children = append(p.children, c.ID)
		p.onStart(c.ID)
	}
}

func (p *puppet) halt() {
	for _, id := range p.children {
		p.onHalt(id)
	}
	p.post(event{Kind: halted})
}

func (p *puppet) ask()                           { p.post(event{Kind: suspected}) }
func (p *puppet) signal(childID, syscall.Signal) {}
func (p *puppet) finish()                        { p.post(event{Kind: finished}) }

// playPuppet runs a job of two nodes to its end, and returns what it says beside its status.
func playPuppet(t *testing.T, pull func(*supervisor, *puppet)) (status int, said string) {
	t.Helper()
	var stderr bytes.Buffer
	cfg := Config{Nodes: 2, Program: []string{"x"}, Stdout: io.Discard, Stderr: &stderr, Grace: time.Hour}
	p, err := cfg.plan()
	if err != nil {
		t.Fatal(err)
	}
	s := mustSupervise(t, cfg, p)
	m := &puppet{post: s.post}
	pull(s, m)
	s.machines = []machine{m}
	status, err = s.loop()
	s.close()
	if err != nil {
		t.Error(err)
	}
	return status, stderr.String()
}

// TestSignalKeepsRanksFromStarting: a job of which a part was never started has not succeeded, even
// if what was started has.
func TestSignalKeepsRanksFromStarting(t *testing.T) {
	for started := range 2 {
		status, said := playPuppet(t, func(s *supervisor, p *puppet) {
			p.onStart = func(id childID) {
				if id.Role == program && id.Index < started {
					p.post(event{Kind: childEnded, Child: id})
				}
				p.post(event{Kind: childReaped, Child: id})
				if id == (childID{program, 1}) {
					s.signals <- syscall.SIGTERM
				}
			}
			p.onHalt = func(childID) {}
		})
		if want := 128 + int(syscall.SIGTERM); status != want {
			t.Errorf("%d ranks were started: status %d, want %d", started, status, want)
		}
		if want := fmt.Sprintf("dsmd: terminated: %d of 2 ranks were not started\n", 2-started); said != want {
			t.Errorf("stderr %q, want %q", said, want)
		}
	}
}

// TestDaemonDiesWhileHalting: what happens to a daemon when all programs have succeeded is no
// failure of the job.
func TestDaemonDiesWhileHalting(t *testing.T) {
	status, said := playPuppet(t, func(_ *supervisor, p *puppet) {
		end := func(id childID, x exit) {
			p.post(event{Kind: childEnded, Child: id, Exit: x})
			p.post(event{Kind: childReaped, Child: id})
		}
		p.onStart = func(id childID) {
			if id.Role == program {
				end(id, exit{})
			}
		}
		p.onHalt = func(id childID) {
			if id.Role == daemon {
				end(id, exit{Code: 1})
			}
		}
	})
	if status != 0 || said != "" {
		t.Errorf("status %d, stderr %q", status, said)
	}
}

// TestMachineIsLostWhileHalting: neither is what happens to its machine. But the rest of the output
// may be missing, so it is said.
func TestMachineIsLostWhileHalting(t *testing.T) {
	status, said := playPuppet(t, func(_ *supervisor, p *puppet) {
		p.onStart = func(id childID) {
			if id.Role == program {
				p.post(event{Kind: childEnded, Child: id})
				p.post(event{Kind: childReaped, Child: id})
			}
		}
		p.onHalt = func(id childID) {
			if id == (childID{daemon, 0}) {
				p.post(event{Kind: lost, Err: "its power is lost"})
				p.post(event{Kind: finished})
			}
		}
	})
	if want := "dsmd: its power is lost\n"; status != 0 || said != want {
		t.Errorf("status %d, stderr %q, want %q", status, said, want)
	}
}

// TestHaltIsBounded: a daemon that does not stop holds nobody up for long.
func TestHaltIsBounded(t *testing.T) {
	// Signals go to the group of a process, and this one has none, so it never gets SIGSTOP.
	cmd := exec.Command("sleep", "3600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := func() { _ = cmd.Process.Kill() }
	defer func() { kill(); _ = cmd.Wait() }()
	timer := time.AfterFunc(patience, kill)
	var got []event
	l := &local{
		post:      func(e event) { got = append(got, e) },
		processes: []*process{{id: childID{daemon, 0}, cmd: cmd, pid: cmd.Process.Pid}},
	}
	l.halt()
	if !timer.Stop() {
		t.Error("halt waits for a daemon that does not stop")
	}
	if len(got) != 1 || got[0].Kind != halted {
		t.Errorf("%+v", got)
	}
}

// TestNoGrace: a grace of 0 is none.
func TestNoGrace(t *testing.T) {
	s := mustSupervise(t, Config{}, &plan{})
	defer s.close()
	s.answer(syscall.SIGTERM)
	select {
	case <-s.kill.C:
	case <-time.After(DefaultGrace / 2):
		t.Error("programs have time to end")
	}
}

func TestIgnoredHangupStaysIgnored(t *testing.T) {
	// nohup's promise: SIGHUP does nothing. So SIGUSR1, sent after it, is the first that programs
	// see.
	s := supervise(t, job{Nodes: 1, Program: play("hello")})
	s.wantStatus(0)
	arg, _ := json.Marshal(job{Nodes: 1, Program: []string{"sh", "-c", `trap 'echo usr; exit 0' USR1; echo ready $$; while :; do read x || sleep 0.01; done`}})
	cmd := exec.Command("sh", "-c", `trap '' HUP; exec "$0" play-supervisor "$1"`, executable(t), string(arg))
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	r := bufio.NewReader(stdout)
	if line, err := r.ReadString('\n'); !strings.HasPrefix(line, "[0] ready ") {
		t.Fatalf("%q, %v", line, err)
	}
	_ = cmd.Process.Signal(syscall.SIGHUP)
	_ = cmd.Process.Signal(syscall.SIGUSR1)
	rest, _ := io.ReadAll(r)
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 0 || string(rest) != "[0] usr\n" {
		t.Errorf("status %d, output %q", got, rest)
	}
}

func executable(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDeadDaemonEndsTheJob(t *testing.T) {
	s := supervise(t, job{Nodes: 3, Program: play("attach"), Daemon: "dies-at-attach"}, "FAKE_STAYS=1")
	s.wantStatus(StatusDaemon)
	s.wantError("dsmd: the daemon of node 1 exited with status 3 while programs were running: ending the job\n")
	s.wantError("[dsmd 1] daemon is up\n")
}

// The daemons that give up because a peer was killed, and the programs that fail because of it, do
// not take the blame.
func TestKilledDaemonIsBlamed(t *testing.T) {
	s := supervise(t, job{Nodes: 3, Program: play("attach"), Daemon: "killed-at-attach"}, "FAKE_STAYS=1")
	s.wantStatus(StatusDaemon)
	s.wantError("dsmd: the daemon of node 1 was killed by signal 9 (killed) while programs were running: ending the job\n")
}

// slowToAsk is a machine whose daemon is killed and whose program fails because of it. It says so
// of the daemon only when it is asked, and the one who asks stands still for longer than a verdict
// may take.
type slowToAsk struct{ post func(event) }

func (m *slowToAsk) open(openOrder) { m.post(event{Kind: opened, Addresses: []string{"127.0.0.1:1"}}) }

func (m *slowToAsk) start(startOrder, input) {
	m.post(event{Kind: childEnded, Child: childID{program, 0}, Exit: exit{Code: 1}})
}

func (m *slowToAsk) ask() {
	m.post(event{Kind: suspected, Found: true, Child: childID{daemon, 0}, Exit: exit{Signal: syscall.SIGKILL}})
	m.post(event{Kind: childReaped, Child: childID{program, 0}})
	m.post(event{Kind: childReaped, Child: childID{daemon, 0}})
	time.Sleep(2 * verdictTime)
}

func (m *slowToAsk) halt()                          { m.post(event{Kind: halted}) }
func (m *slowToAsk) finish()                        { m.post(event{Kind: finished}) }
func (m *slowToAsk) signal(childID, syscall.Signal) {}
func (m *slowToAsk) mourn(childID)                  {}
func (m *slowToAsk) hurry()                         {}
func (m *slowToAsk) abandon()                       {}

// TestAnswerThatIsThereCounts: a launcher that stands still does not take its own slowness for that
// of the machine.
func TestAnswerThatIsThereCounts(t *testing.T) {
	defer func(before time.Duration) { verdictTime = before }(verdictTime)
	verdictTime = time.Millisecond
	for range 20 { // what is ready is taken in any order
		cfg := Config{Nodes: 1, Program: []string{"x"}, Stdout: io.Discard, Stderr: io.Discard}
		p, err := cfg.plan()
		if err != nil {
			t.Fatal(err)
		}
		s := mustSupervise(t, cfg, p)
		s.machines = []machine{&slowToAsk{s.post}}
		status, err := s.loop()
		s.close()
		if status != StatusDaemon || err != nil {
			t.Fatalf("status %d, %v; want %d, as the daemon was killed", status, err, StatusDaemon)
		}
	}
}

func TestDaemonsEndWithTheLastProgram(t *testing.T) {
	// Ignoring SIGTERM does not help them, and they take no time that a grace would have to bound.
	s := supervise(t, job{Nodes: 2, Program: play("attach"), Daemon: "ignores-term", Grace: time.Hour})
	s.wantStatus(0)
	if strings.Contains(s.stderr.String(), "dsmd: ") {
		t.Errorf("a job that went well says more than its daemons do:\n%s", s.stderr.String())
	}
}

func TestProgramsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"leave", "leave-session"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := supervise(t, job{Nodes: 2, Program: play(mode)})
			pids := s.ready(2)
			s.wantStatus(0)
			for _, pid := range pids {
				if err := unix.Kill(pid, 0); err != unix.ESRCH {
					t.Errorf("process %d that a program left behind: %v, want it reaped", pid, err)
				}
			}
		})
	}
}

func TestKilledSupervisorLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"stubborn", "family", "family-session"} {
		t.Run(mode, func(t *testing.T) {
			s := supervise(t, job{Nodes: 2, Program: play(mode)})
			s.ready(2)
			// The supervisor, its guard, two daemons and two programs, at least.
			everything := s.awaitProcesses(6)
			s.signal(syscall.SIGKILL)
			gone(t, everything)
			gone(t, s.job()) // what was being started when the others were listed
		})
	}
}

// TestGuardIsReplaced: somebody kills the guard, again and again, and then the supervisor.
func TestGuardIsReplaced(t *testing.T) {
	t.Parallel()
	s := supervise(t, job{Nodes: 2, Program: play("family-session")})
	s.ready(2)
	s.awaitProcesses(6)
	// another is the guard once it is another process.
	another := func(than int) int {
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			for _, pid := range s.job() {
				if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); pid != than && bytes.Contains(line, []byte("play-guard")) {
					return pid
				}
			}
		}
		t.Fatalf("no guard but process %d", than)
		return 0
	}
	guard := another(0)
	for range 3 {
		if err := unix.Kill(guard, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		guard = another(guard)
	}
	everything := s.awaitProcesses(6)
	s.signal(syscall.SIGKILL)
	gone(t, everything)
	gone(t, s.job())
}

// TestOrphansEndBeforeTheGuard: one child can be spared, and is gone after the second time.
func TestOrphansEndBeforeTheGuard(t *testing.T) {
	out, err := exec.Command(self, "play-parent").Output()
	if want := "left: 0\n<nil>\nno child processes\nleft: 0\n"; err != nil || string(out) != want {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
}

// TestProcessThatWasReaped: an agent that ends, and could not kill a process in time, may have
// reaped it before its end was noticed.
func TestProcessThatWasReaped(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	l := &local{post: func(e event) { t.Errorf("%+v", e) }, hurried: make(chan struct{})}
	l.hurry()
	l.watch(&process{cmd: cmd, pid: cmd.Process.Pid, silent: make(chan struct{})})
}

// TestInputThatCannotBeHad: a job whose input cannot be passed on is not started.
func TestInputThatCannotBeHad(t *testing.T) {
	defer func(before func(*os.File) (input, error)) { openInput = before }(openInput)
	openInput = func(*os.File) (input, error) { return input{}, syscall.EMFILE }
	cfg := Config{Nodes: 2, Program: []string{"x"}, Stdout: io.Discard, Stderr: io.Discard, Grace: time.Hour}
	p, err := cfg.plan()
	if err != nil {
		t.Fatal(err)
	}
	s := mustSupervise(t, cfg, p)
	defer s.close()
	s.machines = []machine{&puppet{post: s.post, onHalt: func(childID) {}, onStart: func(id childID) {
		t.Errorf("%v is started", id)
		s.post(event{Kind: childReaped, Child: id})
	}}}
	if status, err := s.loop(); status != StatusSystem || err != syscall.EMFILE {
		t.Errorf("status %d, %v", status, err)
	}
}

func TestLongLine(t *testing.T) {
	t.Parallel()
	s := supervise(t, job{Nodes: 1, Program: play("long-line")})
	s.wantStatus(0)
	var total int
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

func TestOnlyRankZeroReadsStandardInput(t *testing.T) {
	cmd := launcher(t, job{Nodes: 2, Program: play("cat")})
	cmd.Stdin = strings.NewReader("word\n")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(lines)
	if want := []string{"[0] word 1 <nil>", "[1]  0 unexpected newline"}; lines[0] != want[0] || !strings.HasPrefix(lines[1], "[1]  0 ") {
		t.Errorf("%q, want %q", lines, want)
	}
}

// TestRanksThatGoOnAreNamed: rank 0 waits for input while the others have ended, and the user hears
// of it.
func TestRanksThatGoOnAreNamed(t *testing.T) {
	cmd := launcher(t, job{Nodes: 3, Program: play("cat"), Remind: time.Millisecond})
	stdin, stderr := converse(t, cmd, cmd.StderrPipe)
	said := regexp.MustCompile(`^dsmd: [12] of 3 ranks have ended; still running: rank [012]`)
	lines := bufio.NewScanner(stderr)
	for lines.Scan() && !said.MatchString(lines.Text()) {
	}
	if lines.Text() == "" {
		t.Error("nobody says that ranks still run")
	}
	if _, err := io.WriteString(stdin, "word\n"); err != nil {
		t.Error(err)
	}
	for lines.Scan() {
		if said.MatchString(lines.Text()) {
			t.Errorf("said again: %s", lines.Text())
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the job failed: %v", err)
	}
}

func TestReaderThatHasSeenEnough(t *testing.T) {
	cmd := launcher(t, job{Nodes: 2, Program: play("flood"), Grace: time.Second})
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || !strings.HasSuffix(line, "flood\n") {
		t.Fatalf("%q, %v", line, err)
	}
	stdout.Close()
	_ = cmd.Wait()
	if got, want := cmd.ProcessState.ExitCode(), 128+int(syscall.SIGPIPE); got != want {
		t.Errorf("status %d, want %d", got, want)
	}
	if want := "dsmd: nobody reads the output any more (write /dev/stdout: broken pipe): ending the job\n"; !strings.Contains(stderr.String(), want) {
		t.Errorf("stderr %q, want %q", &stderr, want)
	}
}

// TestFullDisk is told from a reader that has seen enough.
func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	cmd := launcher(t, job{Nodes: 2, Program: play("flood"), Grace: time.Second})
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = full, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != StatusOutput {
		t.Errorf("status %d, want %d", got, StatusOutput)
	}
	if want := "dsmd: writing output: write /dev/stdout: no space left on device: ending the job\n"; !strings.Contains(stderr.String(), want) {
		t.Errorf("stderr %q, want %q", &stderr, want)
	}
}

func TestProgramThatCannotBeRun(t *testing.T) {
	plain := t.TempDir() + "/plain"
	if err := os.WriteFile(plain, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	broken := t.TempDir() + "/broken"
	if err := os.WriteFile(broken, []byte("neither a script nor a program"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		program string
		status  int
		message string
	}{
		{"/does/not/exist", StatusNotFound, "/does/not/exist: no such program"},
		{"no-such-program-anywhere", StatusNotFound, "no-such-program-anywhere: no such program"},
		{plain, StatusNotExecutable, "cannot be executed"},
		{broken, StatusNotExecutable, "exec format error"},
	} {
		s := supervise(t, job{Nodes: 2, Program: []string{test.program}})
		s.wantStatus(test.status)
		s.wantError(test.message)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, test := range []struct {
		cfg  Config
		want string
	}{
		{Config{Nodes: 0, Program: []string{"true"}}, "0 nodes"},
		{Config{Nodes: 1}, "no program"},
		{Config{Nodes: 3, Program: []string{"true"}, Metrics: []string{":1", ":2"}}, "2 metrics addresses for 3 nodes"},
	} {
		if status, err := Run(test.cfg); status == 0 || err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("Run(%+v) = %d, %v; want an error with %q", test.cfg, status, err, test.want)
		}
	}
}

func TestMetricsAddress(t *testing.T) {
	for _, test := range []struct {
		addrs []string
		node  int
		want  string
	}{
		{[]string{":9100"}, 0, "127.0.0.1:9100"},
		{[]string{":9100"}, 3, "127.0.0.1:9103"},
		{[]string{":0"}, 3, "127.0.0.1:0"},
		{[]string{"0.0.0.0:9100"}, 1, "0.0.0.0:9101"},
		{[]string{":1", "[::1]:2"}, 1, "[::1]:2"},
		{[]string{"9100"}, 0, ""},
		{[]string{":none"}, 0, ""},
	} {
		got, err := metricsAddress(test.addrs, test.node)
		if got != test.want || (err == nil) == (test.want == "") {
			t.Errorf("metricsAddress(%q, %d) = %q, %v; want %q", test.addrs, test.node, got, err, test.want)
		}
	}
}

// A stream whose pipe somebody outside the job holds open ends when it is told to, with all that
// was written.
func TestHurriedStreamIsDrained(t *testing.T) {
	var out bytes.Buffer
	st, w, err := newStream("> ", voice{sink: newSink(&out)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	text := strings.Repeat("line\n", 5000) // more than one read
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	st.hurryUp()
	var done sync.WaitGroup
	done.Go(func() { st.pump(func(err error) { t.Error(err) }) })
	done.Wait()
	if want := strings.Repeat("> line\n", 5000); out.String() != want {
		t.Errorf("%d bytes, want %d", out.Len(), len(want))
	}
}
