package launch

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/runstats"
	"dsmd/internal/runstats/trace/tracetest"
)

// traced is a piece with one call.
func traced() runstats.Piece {
	return runstats.Piece{Calls: []runstats.Call{{Kind: runstats.Lock, Name: "l", Began: time.Now().UnixNano(), Thread: 7}}}
}

// TestTracer: what comes is in the file, whatever was there before, compressed if its name says so.
func TestTracer(t *testing.T) {
	for _, name := range []string{"trace.json", "trace.json.gz"} {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, bytes.Repeat([]byte("old"), 1000), 0o666); err != nil {
			t.Fatal(err)
		}
		w, err := (&Config{Insight: Insight{Trace: file}}).openTrace()
		if err != nil {
			t.Fatal(err)
		}
		w.begin()
		w.take(traced())
		if lines := w.end(); len(lines) != 1 || !strings.Contains(lines[0], "the trace is in "+file) {
			t.Errorf("lines %q", lines)
		}
		w.take(traced()) // is too late, and does no harm
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var from io.Reader = bytes.NewReader(text)
		if strings.HasSuffix(name, ".gz") {
			if from, err = gzip.NewReader(from); err != nil {
				t.Fatal(err)
			}
		}
		if x, err := tracetest.Parse(from); err != nil || len(x.Complete()) != 1 {
			t.Errorf("%s: %v: %q", name, err, text)
		}
	}
}

// TestTraceOfNothing: a job that does not start leaves the trace of an earlier one as it is.
func TestTraceOfNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.json")
	if err := os.WriteFile(file, []byte("old"), 0o666); err != nil {
		t.Fatal(err)
	}
	supervise(t, job{Nodes: 1, Program: []string{"/no/such/program"}, Trace: file}).wantStatus(StatusNotFound)
	if text, err := os.ReadFile(file); string(text) != "old" {
		t.Errorf("%v: %q", err, text)
	}
}

// TestTraceWithoutPlace: that a trace cannot be written is said before the job has run.
func TestTraceWithoutPlace(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	cfg := Config{Nodes: 1, Insight: Insight{Trace: t.TempDir()}, Program: []string{"touch", mark}, Stdout: io.Discard, Stderr: io.Discard}
	if status, err := Run(cfg); status != StatusUsage || err == nil || !strings.Contains(err.Error(), cfg.Trace) {
		t.Errorf("status %d, %v", status, err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the job has run")
	}
}

// TestTraceThroughPipe: a trace goes into a pipe, too; when nobody reads it any more, that is said,
// and when somebody reads slowly, pieces are left away and counted.
func TestTraceThroughPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	open := func() (w *tracer, r *os.File) {
		r, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		if w, err = (&Config{Insight: Insight{Trace: pipe}}).openTrace(); err != nil {
			t.Fatal(err)
		}
		w.begin()
		return w, r
	}
	w, r := open()
	large := traced()
	for range 100 {
		large.Calls = append(large.Calls, large.Calls[0])
	}
	for range 3 * tracePieces { // much more than a pipe and the queue hold
		w.take(large)
	}
	parsed := make(chan error, 1)
	go func() {
		_, err := tracetest.Parse(r)
		parsed <- err
	}()
	lines := strings.Join(w.end(), "\n")
	if err := <-parsed; err != nil || !strings.Contains(lines, "pieces of the log came faster") {
		t.Errorf("%v: %s", err, lines)
	}
	r.Close()

	w, r = open()
	r.Close()
	if lines := strings.Join(w.end(), "\n"); !strings.Contains(lines, "not whole") {
		t.Errorf("lines %q", lines)
	}
}

// TestTraceOfAFailure: the trace of a job that fails, or is killed, can be drawn.
func TestTraceOfAFailure(t *testing.T) {
	for _, mode := range []string{"exit-3@1", "abort@1"} {
		file := filepath.Join(t.TempDir(), "trace.json")
		s := supervise(t, job{Nodes: 2, Program: play(mode), Trace: file})
		_ = s.wait0()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tracetest.Parse(bytes.NewReader(text)); err != nil {
			t.Errorf("%s: %v: %q", mode, err, text)
		}
		s.wantError("dsmd: the trace is in " + file)
	}
}
