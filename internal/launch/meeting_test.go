package launch

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"
)

// attend starts one of the tasks of a meeting, as a batch system would: beside the launcher.
func attend(t *testing.T, dir string, tasks, task int) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(self, "play-attend", dir, strconv.Itoa(tasks), strconv.Itoa(task))
	cmd.Stderr = new(bytes.Buffer)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func TestMeeting(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "shared")
	early := attend(t, dir, 3, 2) // before there is a launcher
	s := supervise(t, job{Meet: dir, Tasks: 3, Program: play("attach")})
	late := attend(t, dir, 3, 1)
	s.wantStatus(0)
	slices.Sort(s.out)
	if want := []string{"[0] daemon 0 3 false true", "[1] daemon 1 3 false true", "[2] daemon 2 3 false true"}; !slices.Equal(s.out, want) {
		t.Errorf("output %q, want %q", s.out, want)
	}
	for _, task := range []*exec.Cmd{early, late} {
		if err := task.Wait(); err != nil {
			t.Errorf("%v: %s", err, task.Stderr)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v is left in the directory (%v)", left, err)
	}
}

// TestMeetingReplacesAnOlder: what a launcher that was killed has left behind misleads nobody.
func TestMeetingReplacesAnOlder(t *testing.T) {
	dir := t.TempDir()
	m := Meeting{Dir: dir, Name: "meeting"}
	keys, err := jobKeys("meeting", 1)
	if err != nil {
		t.Fatal(err)
	}
	// Nobody listens at port 9, and if somebody did it would be with other keys.
	if err := m.invite(&invitation{[]string{"127.0.0.1:9"}, keys[0][0].Content, keys[0][1].Content, keys[0][2].Content}); err != nil {
		t.Fatal(err)
	}
	attend(t, dir, 2, 1)
	s := supervise(t, job{Meet: dir, Tasks: 2, Program: play("exit-3@1")})
	s.wantStatus(3)
	s.wantError("dsmd: rank 1 on node-1 exited with status 3: ending the other ranks\n")
}

// TestKeysAreOnNoDisk: a launcher that is killed while it makes the keys leaves none behind, nor
// does a task while it looks at them.
func TestKeysAreOnNoDisk(t *testing.T) {
	t.Setenv("TMPDIR", "/nix")
	keys, err := jobKeys("meeting", 1)
	if err != nil {
		t.Fatal(err)
	}
	inv := invitation{Authority: keys[0][0].Content, Cert: keys[0][1].Content, Key: keys[0][2].Content}
	if config, err := inv.config(); err != nil || len(config.Certificates) != 1 {
		t.Error(err)
	}
}

// TestMeetingThatNobodyComesTo: who is missing is said, and nothing stays.
func TestMeetingThatNobodyComesTo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := supervise(t, job{Meet: dir, Tasks: 3, Alone: 2 * time.Second, Program: play("hello")})
	s.wantStatus(StatusSystem)
	s.wantError("1, 2; was each started with dsmd run") // and 0, if that is late
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v is left in the directory (%v)", left, err)
	}
}

// TestTurnedAway: tasks that come when the job is over before it was started hear why, and the
// launcher waits for no more than them.
func TestTurnedAway(t *testing.T) {
	t.Parallel()
	for name, program := range map[string][]string{"of the launcher": {"./no-such-program"}, "of Run's caller": nil} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "shared")
			cmd := launcher(t, job{Meet: dir, Tasks: 3, Program: program})
			_, said := converse(t, cmd, cmd.StderrPipe)
			lines := bufio.NewReader(said)
			why, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			why = strings.TrimPrefix(strings.TrimSuffix(why, "\n"), "dsmd: launch: ")
			begin := time.Now()
			for task := 1; task < 3; task++ {
				late := attend(t, dir, 3, task)
				want := fmt.Sprintf("dsmd: launch: task %d on node-%d: the job was not started: %s\n", task, task, why)
				if err := late.Wait(); err == nil || late.Stderr.(*bytes.Buffer).String() != want {
					t.Errorf("%v: %s, want %q", err, late.Stderr, want)
				}
			}
			rest, err := io.ReadAll(lines)
			if err != nil || len(rest) > 0 {
				t.Errorf("the launcher says %q besides, %v", rest, err)
			}
			if err := cmd.Wait(); err == nil {
				t.Error("the launcher succeeds")
			}
			if took := time.Since(begin); took >= turnAwayTime/2 {
				t.Errorf("the launcher has waited for %v, and all tasks have come", took)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("%v is left in the directory (%v)", left, err)
			}
		})
	}
}

// TestTurnAwayEnds: the launcher waits for tasks that never come no longer than till a signal.
func TestTurnAwayEnds(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "shared")
	cmd := launcher(t, job{Meet: dir, Tasks: 2})
	_, said := converse(t, cmd, cmd.StderrPipe)
	if _, err := bufio.NewReader(said).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	m := Meeting{Dir: dir, Name: "meeting"}
	for begin := time.Now(); ; time.Sleep(lookAgain) {
		if _, err := m.readInvitation(); err == nil {
			break
		}
		if time.Since(begin) > patience {
			t.Fatal("there is no meeting")
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != StatusUsage {
		t.Errorf("%v, want the status of the error", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v is left in the directory (%v)", left, err)
	}
}

// shortOf is a listener that finds no descriptor for whom it should take first.
type shortOf struct {
	net.Listener
	errors []error
	conns  []net.Conn
}

func (l *shortOf) Accept() (net.Conn, error) {
	if len(l.errors) > 0 {
		err := l.errors[0]
		l.errors = l.errors[1:]
		return nil, err
	}
	if len(l.conns) > 0 {
		c := l.conns[0]
		l.conns = l.conns[1:]
		return c, nil
	}
	return nil, fmt.Errorf("accept: %w", net.ErrClosed)
}

// TestMeetingOutlivesAShortage: a launcher that cannot take a connection now takes it later.
func TestMeetingOutlivesAShortage(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	l := &shortOf{errors: []error{syscall.EMFILE, syscall.EMFILE}, conns: []net.Conn{here}}
	link := &lateLink{come: make(chan struct{}), ended: make(chan struct{})}
	h := &host{listener: l, links: []*lateLink{link, {come: make(chan struct{})}}}
	h.receive() // until the listener is closed
	if len(l.conns) > 0 {
		t.Fatal("nobody takes the connection")
	}
	defer link.cut()
	if _, err := fmt.Fprintln(there, "0 node-0"); err != nil {
		t.Fatal(err)
	}
	if why, err := bufio.NewReader(there).ReadString('\n'); err != nil || why != "\n" {
		t.Errorf("the answer is %q, %v", why, err)
	}
	select {
	case <-link.come:
	case <-time.After(patience):
		t.Error("the task has not come")
	}
}

// TestSilenceIsBounded: both ends of a meeting's connection notice a machine that is gone without a
// farewell.
func TestSilenceIsBounded(t *testing.T) {
	m := &Meeting{Dir: filepath.Join(t.TempDir(), "shared"), Name: "meeting", Tasks: 1}
	h, err := m.hold()
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	there, err := m.find(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	fmt.Fprintln(there, "0 node-0")
	select {
	case <-h.links[0].come:
	case <-ctx.Done():
		t.Fatal("the task has not come")
	}
	defer h.links[0].cut()
	for _, conn := range []net.Conn{there, h.links[0].conn} {
		socket, err := conn.(*tls.Conn).NetConn().(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		for _, option := range []struct{ level, name, want int }{
			{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 10},
			{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 10},
			{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
			{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 30_000},
		} {
			err := socket.Control(func(fd uintptr) {
				if got, err := unix.GetsockoptInt(int(fd), option.level, option.name); got != option.want {
					t.Errorf("%v: option %d is %d, %v, want %d", conn.LocalAddr(), option.name, got, err, option.want)
				}
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
}

// TestAgentOutlivesNoSilence: a connection that the kernel gives up is one that has ended.
func TestAgentOutlivesNoSilence(t *testing.T) {
	a := &agent{}
	if err := a.obey(bufio.NewReader(iotest.ErrReader(os.NewSyscallError("read", syscall.ETIMEDOUT)))); err != errConnection {
		t.Errorf("the agent's error is %v", err)
	}
}

// TestLostLauncher: a task whose launcher dies ends everything of its machine, and fails.
func TestLostLauncher(t *testing.T) {
	dir := t.TempDir()
	s := supervise(t, job{Meet: dir, Tasks: 2, Program: play("stubborn")})
	other := attend(t, dir, 2, 1)
	pids := s.ready(2)
	s.signal(syscall.SIGKILL)
	if err := other.Wait(); err == nil || !strings.Contains(other.Stderr.(*bytes.Buffer).String(), errConnection.Error()) {
		t.Errorf("%v: %s", err, other.Stderr)
	}
	gone(t, pids)
}

// TestLateLinkSaysWhy: the writer may be the first to find that nobody comes, and cuts the link.
// The reader's error is the one that is shown.
func TestLateLinkSaysWhy(t *testing.T) {
	l := &lateLink{patience: time.Millisecond, come: make(chan struct{}), ended: make(chan struct{})}
	if _, err := l.Write(nil); !errors.Is(err, errLate) {
		t.Errorf("Write = %v", err)
	}
	l.patience = time.Hour
	l.cut()
	if _, err := l.Read(nil); !errors.Is(err, errLate) {
		t.Errorf("Read after the cut = %v, want %v", err, errLate)
	}
	l = &lateLink{patience: time.Hour, come: make(chan struct{}), ended: make(chan struct{})}
	l.cut()
	if _, err := l.Read(nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read of a link that was cut for another reason = %v", err)
	}
}
