package launch

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"dsmd/internal/kittest"

	"golang.org/x/sys/unix"
)

// TestOutputsThatAreOnePipe: `dsmd run … 2>&1 | less` shows whole lines, whoever writes how much to
// which output.
func TestOutputsThatAreOnePipe(t *testing.T) {
	for name, j := range map[string]job{"here": {Nodes: 2}, "ssh": {Hosts: []string{"host-a", "host-b"}}} {
		t.Run(name, func(t *testing.T) {
			j.Program = play("both")
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd := launcher(t, j)
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
		if stdout, stderr := newOutputs(test.out, test.err, layout{}); (stdout.sink == stderr.sink) != test.one {
			t.Errorf("%s: one sink: %v, want %v", name, stdout == stderr, test.one)
		}
	}
}

// TestStream: what is passed on of a stream are whole lines, and what is too long for one.
func TestStream(t *testing.T) {
	long := strings.Repeat("x", maxLineBytes)
	for name, test := range map[string]struct{ in, want []string }{
		"nothing":                     {},
		"a line in two parts":         {[]string{"ab", "c\n"}, []string{"", "abc\n", ""}},
		"many lines at once":          {[]string{"a\n\nb\nc", "d"}, []string{"a\n\nb\n", "", "cd"}},
		"the bound, then its newline": {[]string{long, "\nb\n"}, []string{"", long + "\nb\n", ""}},
		"more than the bound":         {[]string{long, "y", "z\n"}, []string{"", long + "y", "z\n", ""}},
	} {
		var s stream
		var got []string
		for _, in := range test.in {
			got = append(got, string(s.add([]byte(in))))
		}
		if got = append(got, string(s.rest)); test.want != nil && !slices.Equal(got, test.want) {
			t.Errorf("%s: %.60q, want %.60q", name, got, test.want)
		}
	}
}

// TestSink: texts of several children come together in lines, each behind its prefix, whatever
// they break off with.
func TestSink(t *testing.T) {
	type texts [][2]string // prefix and text
	for name, test := range map[string]struct {
		texts       texts
		shown, kept string // where unfinished lines are shown at once, and where they are kept
	}{
		"lines":      {texts{{"0 ", "a\n\nb\n"}, {"1 ", "c\n"}}, "0 a\n0 \n0 b\n1 c\n", ""},
		"parts":      {texts{{"0 ", "a"}, {"0 ", "b\nc"}, {"0 ", "d\n"}}, "0 ab\n0 cd\n", ""},
		"a question": {texts{{"0 ", "name? "}, {"0 ", "hello\n"}}, "0 name? hello\n", ""},
		"a question, and another child": {texts{{"0 ", "name? "}, {"1 ", "x\n"}, {"0 ", "hello\n"}},
			"0 name? \n1 x\n0 hello\n", "1 x\n0 name? hello\n"},
		"two questions": {texts{{"0 ", "a"}, {"1 ", "b"}, {"0 ", "c\n"}, {"1 ", "d\n"}}, "0 a\n1 b\n0 c\n1 d\n", "0 ac\n1 bd\n"},
		"progress":      {texts{{"0 ", "1%\r"}, {"0 ", "2%\r3%"}, {"0 ", "\r\n"}, {"0 ", "x\n"}}, "0 1%\r0 2%\r0 3%\r\n0 x\n", ""},
		"progress, and another child": {texts{{"0 ", "1%\r"}, {"1 ", "x\n"}, {"0 ", "2%\r"}, {"0 ", "\n"}},
			"0 1%\r\n1 x\n0 2%\r\n", "1 x\n0 1%\r0 2%\r\n"},
		"progress that begins with the return": {texts{{"0 ", "\r1%"}, {"0 ", "\r2%\n"}}, "0 \r0 1%\r0 2%\n", ""},
		"no end":                               {texts{{"0 ", "a"}}, "0 a\n", ""},
		"no prefix":                            {texts{{"", "a\n"}, {"0 ", "b\n"}}, "a\n0 b\n", ""},
	} {
		for _, keep := range []time.Duration{0, -1} {
			var out bytes.Buffer
			s := newSink(&out)
			s.keep = keep
			for _, x := range test.texts {
				if err := s.take(source{prefix: x[0]}, []byte(x[1])); err != nil {
					t.Fatal(err)
				}
			}
			s.end()
			want := test.shown
			if keep != 0 && test.kept != "" {
				want = test.kept
			}
			if out.String() != want {
				t.Errorf("%s, kept for %v: %q, want %q", name, keep, out.String(), want)
			}
		}
	}
}

// TestSinkKeepsLittle: a line without end is passed on all the same.
func TestSinkKeepsLittle(t *testing.T) {
	var out bytes.Buffer
	s := newSink(&out)
	s.keep = -1
	const pieces = 20
	for range pieces {
		if err := s.take(source{prefix: "0 "}, bytes.Repeat([]byte("x"), maxLineBytes/4)); err != nil {
			t.Fatal(err)
		}
		if n := len(s.kept[source{prefix: "0 "}].text); n > maxLineBytes {
			t.Fatalf("%d bytes are kept of a line", n)
		}
	}
	s.end()
	if want := "0 " + strings.Repeat("x", pieces*maxLineBytes/4) + "\n"; out.String() != want {
		t.Errorf("%d bytes, want %d", out.Len(), len(want))
	}
}

// TestBeginningsWaitForTheirOwnTime: the beginning of a line is kept for its whole time, whatever
// was kept before.
func TestBeginningsWaitForTheirOwnTime(t *testing.T) {
	var out syncBuffer
	s := newSink(&out)
	s.keep = time.Hour
	for _, x := range [][2]string{{"0 ", "a"}, {"1 ", "b"}} {
		if err := s.take(source{prefix: x[0]}, []byte(x[1])); err != nil {
			t.Fatal(err)
		}
	}
	s.kept[source{prefix: "0 "}] = beginning{s.kept[source{prefix: "0 "}].text, time.Now().Add(-s.keep)}
	s.flush()
	if got := out.String(); got != "0 a" || len(s.kept) != 1 {
		t.Errorf("%q is shown, %d beginnings are kept", got, len(s.kept))
	}
	s.end()
	s.keep = time.Millisecond
	for _, prefix := range []string{"2 ", "3 "} {
		if err := s.take(source{prefix: prefix}, []byte("c")); err != nil {
			t.Fatal(err)
		}
		want := prefix + "c"
		for deadline := time.Now().Add(patience); !strings.HasSuffix(out.String(), want); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%q is shown, and never %q", out.String(), want)
			}
		}
	}
}

// TestQuestion: a question without a newline is seen before it is answered, here and from afar,
// also by who listens at a pipe.
func TestQuestion(t *testing.T) {
	t.Parallel()
	for name, j := range map[string]job{"here": {Nodes: 1}, "ssh": {Hosts: []string{"host-a"}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j.Program = play("question")
			cmd := launcher(t, j)
			in, out := converse(t, cmd, cmd.StdoutPipe)
			question := make([]byte, len("[0] name? "))
			if _, err := io.ReadFull(out, question); err != nil || string(question) != "[0] name? " {
				t.Errorf("it asks %q, %v", question, err)
			}
			if _, err := io.WriteString(in, "bob\n"); err != nil {
				t.Error(err)
			}
			in.Close()
			rest, err := io.ReadAll(out)
			if err := errors.Join(err, cmd.Wait()); err != nil || string(rest) != "hello bob\n" {
				t.Errorf("it goes on with %q, %v", rest, err)
			}
		})
	}
}

// TestFormats: the same texts in each format.
func TestFormats(t *testing.T) {
	texts := []struct {
		by   source
		text string
	}{
		{source{"[ 3] ", "stdout"}, "a\n\"b\"\nc"}, {source{"[ 3] ", "stderr"}, "d\n"}, {source{"[dsmd 1] ", "stderr"}, "e\n"},
		{source{"[ 3] ", "stdout"}, "f\n"}, {source{"[ann] ", "stderr"}, "g\xff\n"}, {source{"dsmd: ", "stderr"}, "h\n"},
	}
	p := &plan{ranks: 11, places: []place{{nodes: []int{0, 1}}}}
	for name, test := range map[string]struct {
		cfg  Config
		want string
	}{
		"prefix": {Config{}, "[ 3] a\n[ 3] \"b\"\n[ 3] d\n[dsmd 1] e\n[ 3] cf\n[ann] g\xff\ndsmd: h\n"},
		"plain":  {Config{Format: Plain}, "a\n\"b\"\nd\n[dsmd 1] e\ncf\n[ann] g\xff\ndsmd: h\n"},
		"times":  {Config{Format: Plain, Timestamps: true}, "T a\nT \"b\"\nT d\nT [dsmd 1] e\nT cf\nT [ann] g\xff\nT dsmd: h\n"},
		"json": {Config{Format: JSON, Timestamps: true}, `{"time":"T","rank":3,"stream":"stdout","text":"a"}
{"time":"T","rank":3,"stream":"stdout","text":"\"b\""}
{"time":"T","rank":3,"stream":"stderr","text":"d"}
{"time":"T","node":1,"stream":"stderr","text":"e"}
{"time":"T","rank":3,"stream":"stdout","text":"cf"}
{"time":"T","from":"ann","stream":"stderr","text":"g\ufffd"}
{"time":"T","from":"dsmd","stream":"stderr","text":"h"}
`},
	} {
		var out bytes.Buffer
		lines, err := p.layout(&test.cfg)
		if err != nil {
			t.Fatal(err)
		}
		stdout, stderr := newOutputs(&out, &out, lines)
		stdout.keep = -1
		for _, x := range texts {
			to := stdout
			if x.by.stream == "stderr" {
				to = stderr
			}
			if err := to.write(x.by.prefix, []byte(x.text)); err != nil {
				t.Fatal(err)
			}
		}
		got := regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)`).ReplaceAllString(out.String(), "T")
		if got != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, test.want)
		}
	}
}

// TestFolder: each output of each child has a file, where everything is at once; the rest is where
// it was. What cannot be a directory is said before anything begins, what cannot be a file when
// there is something for it.
func TestFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	cfg := Config{Format: Format("dir:" + dir), Nodes: 1, Slots: 11, Program: []string{"x"}}
	p, err := cfg.plan()
	if err != nil {
		t.Fatal(err)
	}
	lines, err := p.layout(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "rank-03.stdout"), []byte("from an earlier job\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "rank-04.stdout"), 0o700); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	stdout, stderr := newOutputs(&out, &out, lines)
	for _, x := range []struct {
		to           voice
		prefix, text string
	}{{stdout, "[ 3] ", "a\nb"}, {stderr, "[ 3] ", "c\n"}, {stdout, "[ 3] ", "d\r50 %"}, {stderr, "[dsmd 0] ", "e\n"}, {stderr, "dsmd: ", "f\n"}} {
		if err := x.to.write(x.prefix, []byte(x.text)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"rank-03.stdout": "a\nbd\r50 %", "rank-03.stderr": "c\n", "node-00.stderr": "e\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v; want %q", name, got, err, want)
		}
	}
	if out.String() != "dsmd: f\n" {
		t.Errorf("the rest is %q", out.String())
	}
	if err := stdout.write("[ 4] ", []byte("x\n")); err == nil || !strings.Contains(err.Error(), "rank-04.stdout") {
		t.Errorf("where there is no file to write to: %v", err)
	}
	cfg.Format = Format("dir:" + filepath.Join(dir, "rank-03.stdout"))
	cfg.Stdout, cfg.Stderr = io.Discard, io.Discard
	if status, err := Run(cfg); status != StatusUsage || err == nil || !strings.Contains(err.Error(), "rank-03.stdout") {
		t.Errorf("a directory that is a file: status %d, %v", status, err)
	}
}

// TestFormatFlag: a format is one of those that there are.
func TestFormatFlag(t *testing.T) {
	for _, word := range append(formats, "dir:a b/c") {
		if f := Format(""); f.Set(word) != nil || f.String() != word {
			t.Errorf("%q is %q", word, f)
		}
	}
	for _, word := range []string{"", "xml", "PREFIX", "dir:", "dir"} {
		if f := Plain; f.Set(word) == nil || f != Plain {
			t.Errorf("%q is taken, as %q", word, f)
		}
	}
}

// TestPieces: pieces are the same at the other end, and are taken only when they are whole.
func TestPieces(t *testing.T) {
	all := appendPiece(appendPiece(appendPiece(nil, "[0] ", []byte("a\nb")), "", nil), "[dsmd 1] ", []byte("c\n"))
	first := len(appendPiece(nil, "[0] ", []byte("a\nb")))
	for n := range all {
		prefix, text, rest, whole := cutPiece(all[:n])
		if whole != (n >= first) || whole && (prefix != "[0] " || string(text) != "a\nb" || len(rest) != n-first) {
			t.Errorf("the first %d bytes: %q, %q, %d bytes more, whole %t", n, prefix, text, len(rest), whole)
		}
		if m := wholePieces(all[:n]); m > n || n < first && m != 0 || n >= first && m < first {
			t.Errorf("of %d bytes %d are whole pieces", n, m)
		}
	}
	if n := wholePieces(all); n != len(all) {
		t.Errorf("of %d bytes %d are whole pieces", len(all), n)
	}
	if prefix, text, rest, whole := cutPiece(all[:first-1]); whole || prefix != "[0] " || string(text) != "a\n" || len(rest) != 0 {
		t.Errorf("a piece cut short is %q, %q, %d bytes more, whole %t", prefix, text, len(rest), whole)
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
			if err := writeFrame(&said, kind, appendPiece(nil, "", fmt.Appendf(nil, "line %d\n", i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := writeFrame(&said, frameEvent, mustEncode(event{Kind: finished})); err != nil {
		t.Fatal(err)
	}
	events := make(chan event, 2*chunks+1)
	m := newRemote("host", func(e event) { events <- e }, voice{sink: newSink(failing{})}, voice{sink: newSink(failing{})})
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
		if e.Kind == finished {
			close(posting)
			<-taken
		}
	}, voice{sink: newSink(io.Discard)}, voice{sink: newSink(io.Discard)})
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
// group with it. So nothing is sent to the group any more. Its member answers afterwards: that it
// is still listed would say little, because who was just killed may be listed for a while.
func TestGroupOfOneThatIsReaped(t *testing.T) {
	t.Parallel()
	questions, ask := pipeOf(t)
	answers, answer := pipeOf(t)
	cmd := exec.Command("sh", "-c", "cat <&3 >&4 &")
	var out syncBuffer
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &out, &out, []*os.File{questions, answer}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 3 * flushTime // the member of the group holds the outputs open so long
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	questions.Close()
	answer.Close()
	_, _, _ = peekExit(unix.P_PID, cmd.Process.Pid, 0) // the leader has ended, and stays a zombie
	l := &sshLink{cmd: cmd, ended: make(chan struct{})}
	l.cut()
	l.wait()
	_, _ = ask.WriteString("x")
	if n, err := answers.Read(make([]byte, 1)); n != 1 {
		t.Errorf("the group was killed by the number of a leader that was waited for before: its member says nothing, %v; output %q", err, out.String())
	}
	if l.cutOff {
		t.Error("ssh, which has ended by itself, counts as cut off")
	}
}

// pipeOf is a pipe that is closed at the end of the test, and read within the time that tests wait.
func pipeOf(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		w.Close()
	})
	if err := r.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return r, w
}

// TestSSHThatDoesNotEnd: one that hangs is killed, with its group, while its number is still its
// own.
func TestSSHThatDoesNotEnd(t *testing.T) {
	t.Parallel()
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

// TestProfileWithoutPlace: that a profile cannot be written is said before the job has run.
func TestProfileWithoutPlace(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	cfg := Config{Nodes: 1, Insight: Insight{Profile: t.TempDir()}, Program: []string{"touch", mark}, Stdout: io.Discard, Stderr: io.Discard}
	if status, err := Run(cfg); status != StatusUsage || err == nil || !strings.Contains(err.Error(), cfg.Profile) {
		t.Errorf("status %d, %v", status, err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the job has run")
	}
}

// TestRankZeroKnowsOfTheTerminal: on which the job's standard error is shown as it comes, and only
// then.
func TestRankZeroKnowsOfTheTerminal(t *testing.T) {
	_, terminal := kittest.Terminal(t)
	defer terminal.Close()
	for want, stderr := range map[string]io.Writer{"1": terminal, "": new(bytes.Buffer)} {
		cmd := launcher(t, job{Nodes: 1, Program: play("terminal")})
		cmd.Stderr = stderr
		if out, err := cmd.Output(); err != nil || string(out) != fmt.Sprintf("[0] %q\n", want) {
			t.Errorf("%q, %v, want %q", out, err, want)
		}
	}
	for format, want := range map[Format]bool{Plain: true, JSON: false} {
		if got := (&Config{Stderr: terminal, Format: format}).onTerminal(); got != want {
			t.Errorf("with format %v: %t, want %t", format, got, want)
		}
	}
}
