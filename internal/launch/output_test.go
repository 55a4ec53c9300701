package launch

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOutputsThatAreOnePipe: `dsmd run … 2>&1 | less` shows whole lines, whoever writes how much to
// which output.
func TestOutputsThatAreOnePipe(t *testing.T) {
	for name, j := range map[string]job{"here": {Nodes: 2}, "ssh": {Hosts: []string{"host-a", "host-b"}}} {
		t.Run(name, func(t *testing.T) {
			j.Program = play("both")
			arg, err := json.Marshal(j)
			if err != nil {
				t.Fatal(err)
			}
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(self, "play-supervisor", string(arg))
			cmd.Stdout, cmd.Stderr = w, w
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			w.Close()
			defer time.AfterFunc(patience, func() { _ = cmd.Process.Kill() }).Stop()
			whole := regexp.MustCompile(`^\[[01]\] (o+|e+)$`)
			lines, broken := 0, 0
			for scan := bufio.NewScanner(r); scan.Scan(); {
				switch line := scan.Text(); {
				case strings.HasPrefix(line, "[dsmd "):
				case whole.MatchString(line) && len(line) == len("[0] ")+bothBytes:
					lines++
				default:
					if broken++; broken < 4 {
						t.Errorf("a broken line: %.300q", line)
					}
				}
			}
			if err := cmd.Wait(); err != nil || broken > 0 || lines != 2*2*bothLines {
				t.Errorf("%v; %d whole lines, want %d, and %d broken ones", err, lines, 2*2*bothLines, broken)
			}
		})
	}
}

// TestSinksOfOneFile: what is one file has one sink, whatever it is and however it came here;
// others have one each.
func TestSinksOfOneFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	open := func(path string) *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	var a, b bytes.Buffer
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for name, test := range map[string]struct {
		out, err io.Writer
		one      bool
	}{
		"the same writer": {&a, &a, true}, "two writers": {&a, &b, false}, "a file opened twice": {open(path), open(path), true},
		"two files": {open(path), open(path + "2"), false}, "a pipe and a buffer": {w, &a, false}, "a pipe": {w, w, true},
		"what cannot be compared": {writerFunc(a.Write), writerFunc(a.Write), false},
	} {
		if stdout, stderr := newSinks(test.out, test.err); (stdout == stderr) != test.one {
			t.Errorf("%s: one sink: %v, want %v", name, stdout == stderr, test.one)
		}
	}
}

// failing is an output that nobody reads any more.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// TestLostOutputIsReportedOnce: a machine whose output goes nowhere says so once for each of its
// two outputs, however much there is: there is room for no more.
func TestLostOutputIsReportedOnce(t *testing.T) {
	const chunks = 500
	var said bytes.Buffer
	said.WriteString(greeting + spoken("1") + "\n")
	for i := range chunks {
		for _, kind := range []frameKind{frameStdout, frameStderr} {
			if err := writeFrame(&said, kind, fmt.Appendf(nil, "line %d\n", i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := writeFrame(&said, frameEvent, mustEncode(event{Kind: finished})); err != nil {
		t.Fatal(err)
	}
	events := make(chan event, 2*chunks+1)
	m := newRemote("host", func(e event) { events <- e }, &sink{to: failing{}}, &sink{to: failing{}})
	// One chunk at a time, so that each is passed on by itself.
	m.connect(&scripted{Reader: &dribble{from: &said}}, "1")
	lost := 0
	for {
		select {
		case e := <-events:
			if e.Kind == outputLost {
				lost++
			}
			if e.Kind == finished {
				if lost == 0 || lost > 2 {
					t.Errorf("%d reports that the output is lost, of two outputs", lost)
				}
				return
			}
		case <-time.After(patience):
			t.Fatal("the machine does not finish")
		}
	}
}

// dribble gives a few bytes at a time, and lets others work in between.
type dribble struct{ from *bytes.Buffer }

func (d *dribble) Read(b []byte) (int, error) {
	runtime.Gosched()
	return d.from.Read(b[:min(len(b), 16)])
}

// TestReportsHoldUpNoOrders: whoever waits until his report is taken must not hold what the one who
// takes it needs, to give an order.
func TestReportsHoldUpNoOrders(t *testing.T) {
	taken, posting := make(chan struct{}), make(chan struct{})
	m := newRemote("host", func(e event) {
		close(posting)
		<-taken
	}, &sink{to: io.Discard}, &sink{to: io.Discard})
	m.connect(&scripted{Reader: strings.NewReader("")}, "1") // which is lost at once
	<-posting
	ordered := make(chan struct{})
	go func() {
		m.signal(childID{}, syscall.SIGTERM)
		close(ordered)
	}()
	select {
	case <-ordered:
	case <-time.After(patience):
		t.Error("an order waits for the report of a machine's end, whose taker gives it")
	}
	close(taken)
}

// TestGroupOfOneThatIsReaped: the id of a process that was waited for may be a stranger's, and its
// group with it. So nothing is sent to the group any more.
func TestGroupOfOneThatIsReaped(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 3600 & echo $!")
	var out syncBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 3 * flushTime // the member of the group holds the outputs open so long
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _, _ = peekExit(unix.P_PID, cmd.Process.Pid, 0) // the leader has ended, and stays a zombie
	l := &sshLink{cmd: cmd, ended: make(chan struct{})}
	l.cut()
	l.wait()
	member := number(t, strings.TrimSpace(out.String()))
	defer unix.Kill(member, unix.SIGKILL)
	if fields := stat(member); fields == nil || fields[0] == "Z" {
		t.Error("the group was killed by the number of a leader that was waited for before")
	}
	if l.cutOff {
		t.Error("ssh, which has ended by itself, counts as cut off")
	}
}

// TestSSHThatDoesNotEnd: one that hangs is killed, with its group, while its number is still its
// own.
func TestSSHThatDoesNotEnd(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 3600 & echo $!; wait")
	var out syncBuffer
	cmd.Stdout = &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = flushTime
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); !strings.Contains(out.String(), "\n"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the process says nothing")
		}
	}
	l := &sshLink{cmd: cmd, ended: make(chan struct{})}
	l.cut()
	l.wait()
	if !l.cutOff {
		t.Error("ssh, which hung, does not count as cut off")
	}
	gone(t, []int{number(t, strings.TrimSpace(out.String()))})
}

// syncBuffer is a buffer that one goroutine writes and another reads.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
