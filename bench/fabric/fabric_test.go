package fabric

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"image/png"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/bench/table"
	"dsmd/internal/verbs"
)

// brief options measure as little as there can be.
func brief(sections ...Section) Options {
	return Options{Sections: sections, Sizes: []int{8, 4096}, Page: 4096, Control: 64, Time: time.Millisecond, Runs: 2, TCP: true}
}

func local(t *testing.T) *Session {
	t.Helper()
	t.Cleanup(Quiet())
	s, err := Local(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestTCP: all sections that TCP has, with figures that are possible.
func TestTCP(t *testing.T) {
	s := local(t)
	steps := 0
	r, err := Run(t.Context(), s, brief(SectionNames()...), func(_ string, done, total int) {
		if steps++; done >= total {
			t.Errorf("step %d of %d", done, total)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if steps == 0 || len(r.of(Latencies)) != 2 || len(r.of(Bandwidths)) != 2 || len(r.of(Queues)) != 7 || len(r.of(Designs)) != 0 || len(r.Registrations) != 0 {
		t.Fatalf("%d steps, %+v", steps, r)
	}
	for _, p := range r.Points {
		if p.Samples < minSamples || p.Kind != TCP || p.Operation != Send {
			t.Errorf("%+v", p)
		}
		if p.Section == Latencies && (p.P50 <= 0 || p.P99 < p.P50 || p.Mean <= 0) || p.Section != Latencies && (p.MBPerSecond <= 0 || p.PerSecond <= 0) {
			t.Errorf("%+v", p)
		}
	}
	var names []string
	for _, f := range r.Fetches {
		names = append(names, f.Name)
		if f.P50 <= 0 || f.Low > f.P50 || f.High < f.P50 || f.Runs != 2 || f.Fabric != "TCP" {
			t.Errorf("%+v", f)
		}
	}
	if len(names) != 5 || names[2] != sumName || names[4] != "transport/tcp" || r.Fetches[2].Ratio != 0 || r.Fetches[4].Ratio <= 0 {
		t.Errorf("fetches %q, %+v", names, r.Fetches)
	}
}

// TestOtherMachine: the ends reach each other by an address, and sessions follow each other.
func TestOtherMachine(t *testing.T) {
	t.Cleanup(Quiet())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, listener, "") }()
	for range 2 {
		s, err := Dial(ctx, listener.Addr().String(), "")
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(ctx, s, brief(Latencies, Fetches), func(string, int, int) {})
		if err != nil {
			t.Error(err)
		}
		if len(r.Fetches) != 4 || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "both ends on this machine") {
			t.Errorf("fetches %+v, notes %q", r.Fetches, r.Notes)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Serve: %v", err)
	}
}

// TestFailures: what can't be measured is refused, by either end, and the session goes on.
func TestFailures(t *testing.T) {
	s := local(t)
	good := Spec{Kind: TCP, Operation: Send, Measure: Latency, Bytes: 64, Connections: 1, Time: time.Millisecond}
	for name, spoil := range map[string]func(*Spec){
		"no such operation": func(s *Spec) { s.Operation = Read },
		"no such kind":      func(s *Spec) { s.Kind = "carrier pigeon" },
		"no such measure":   func(s *Spec) { s.Measure = "beauty" },
		"too short":         func(s *Spec) { s.Bytes = MinBytes - 1 },
		"too long":          func(s *Spec) { s.Bytes = MaxBytes + 1 },
		"too many":          func(s *Spec) { s.Measure, s.Connections = Bandwidth, MaxConnections+1 },
		"no connection":     func(s *Spec) { s.Connections = 0 },
		"two for a latency": func(s *Spec) { s.Connections = 2 },
		"no time":           func(s *Spec) { s.Time = 0 },
		"an empty request":  func(s *Spec) { s.Operation = AnswerSend },
		"RDMA that pours":   func(s *Spec) { s.Kind, s.Operation, s.Measure = RC, Write, Bandwidth },
		"an empty design":   func(s *Spec) { s.Kind, s.Operation = RC, Pool },
		"too large a design": func(s *Spec) {
			s.Kind, s.Operation, s.Pages, s.Bytes = RC, Pool, MaxPages, MaxBytes
		},
		"a request of no fetch": func(s *Spec) { s.Request = 1 << 62 },
		"too long a page and message": func(s *Spec) {
			s.Kind, s.Operation, s.Request, s.Bytes = RC, AnswerWriteImm, 8, MaxBytes+MaxControl+1
		},
		"an empty cache": func(s *Spec) { s.Kind, s.Operation, s.Pages = RC, Cache, 1 },
		"a fetch that pours": func(s *Spec) {
			s.Operation, s.Request, s.Measure = AnswerSend, 8, Bandwidth
		},
	} {
		spec := good
		spoil(&spec)
		if _, err := s.Measure(spec); !errors.Is(err, errSpec) {
			t.Errorf("%s: %v", name, err)
		}
		// The other end must not trust this one.
		if _, err := s.ask(question{Spec: &spec}); err == nil || !strings.Contains(err.Error(), errSpec.Error()) {
			t.Errorf("%s: the other end: %v", name, err)
		}
	}
	if _, err := s.ask(question{Stop: true}); err != nil {
		t.Errorf("a stop of nothing: %v", err)
	}
	if _, err := s.Measure(good); err != nil {
		t.Error(err)
	}
	longest := Spec{Kind: RC, Operation: AnswerWriteImm, Measure: Latency, Bytes: MaxBytes + MaxControl, Request: MaxControl, Connections: 1, Time: time.Millisecond}
	if err := longest.check(); err != nil {
		t.Errorf("the largest page with its message: %v", err)
	}
	for name, spoil := range map[string]func(*Options){
		"size":    func(o *Options) { o.Sizes = []int{1} },
		"page":    func(o *Options) { o.Page = MaxBytes + 1 },
		"control": func(o *Options) { o.Control = o.Page + 1 },
		"message": func(o *Options) { o.Page, o.Control = MaxBytes, MaxControl+1 },
		"time":    func(o *Options) { o.Time = 0 },
		"runs":    func(o *Options) { o.Runs = 0 },
		"section": func(o *Options) { o.Sections = []Section{"weather"} },
	} {
		o := brief(Latencies)
		spoil(&o)
		if _, err := Run(t.Context(), s, o, func(string, int, int) { t.Errorf("%s: was measured", name) }); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errStopped)
	if _, err := Run(ctx, s, brief(Latencies), func(string, int, int) {}); !errors.Is(err, errStopped) {
		t.Errorf("after the end: %v", err)
	}
}

// TestStrangers: who does not speak this language is noticed by either end.
func TestStrangers(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Write([]byte("220 mail.example.com ESMTP\r\n"))
			conn.Close()
		}
	}()
	if _, err := Dial(t.Context(), listener.Addr().String(), ""); err == nil || !strings.Contains(err.Error(), "is no `bench fabric --listen`") {
		t.Errorf("a mail server: %v", err)
	}
	if _, err := Dial(t.Context(), "127.0.0.1:1", ""); err == nil || !strings.Contains(err.Error(), "does `bench fabric --listen` run there?") {
		t.Errorf("nobody: %v", err)
	}
}

// pastItsEnd is a context whose end has come, but not yet its timer.
type pastItsEnd struct{ context.Context }

func (pastItsEnd) Deadline() (time.Time, bool) { return time.Unix(0, 0), true }

// TestDialEndsWithItsContext: until ctx has a cause, the session is made.
func TestDialEndsWithItsContext(t *testing.T) {
	s, err := Local(pastItsEnd{t.Context()}, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := Local(ended, "", ""); err == nil {
		t.Error("a session was made after its context had ended")
	}
}

// atAddress is a connection of TCP, as far as one can see.
type atAddress struct{ net.Conn }

func (atAddress) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// TestStrangersAreLeft: a session with who greets wrongly, not at all or without end is over soon,
// so that others have their turn.
func TestStrangersAreLeft(t *testing.T) {
	for name, stranger := range map[string]func(net.Conn){
		"gone":   func(near net.Conn) { near.Close() },
		"silent": func(net.Conn) {},
		"other":  func(near net.Conn) { io.WriteString(near, `{"greeting": "HELO"}`) },
		"endless": func(near net.Conn) {
			io.WriteString(near, `{"greeting": "`)
			if n, err := io.Copy(near, io.LimitReader(zeros{}, 16<<20)); err == nil {
				t.Errorf("a greeting of %d bytes was read", n)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				done := make(chan struct{})
				began := time.Now()
				go func() {
					defer close(done)
					serveSession(t.Context(), atAddress{far}, &maker{})
				}()
				stranger(near)
				<-done
				if took := time.Since(began); took > greetingTime() {
					t.Errorf("the session took %v", took)
				}
			})
		})
	}
}

// zeros are digits without an end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '0'
	}
	return len(b), nil
}

// TestDialIsEnded: what ends the command ends waiting for a greeting, too.
func TestDialIsEnded(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		if conn, err := listener.Accept(); err == nil {
			t.Cleanup(func() { conn.Close() })
			_, _ = conn.Read(make([]byte, 1)) // the greeting is awaited now
		}
	}()
	if _, err := Dial(ctx, listener.Addr().String(), ""); !errors.Is(err, context.Canceled) || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Dial: %v", err)
	}
}

// full is a result with something of everything.
func full() Result {
	r := Result{Origin: table.Origin{Command: "bench fabric", Machine: "this one"}, Notes: []string{"a note"},
		Devices:       []verbs.DeviceInfo{{Name: "rxe0"}},
		Registrations: []Registration{{Bytes: 4096, Samples: 5, Register: 20, Deregister: 7}, {Bytes: 4 << 20, Huge: true, Samples: 5, Register: 40, Deregister: 9}},
		Fetches:       []Fetch{{Fabric: "RDMA", Name: "one-sided: read", P50: 70, P99: 90, Low: 60, High: 80, Runs: 3, Ratio: 1.25}},
	}
	o := brief(SectionNames()...)
	o.RDMA = true
	for i, p := range o.plan() {
		point := newLatency(p.spec, []time.Duration{time.Duration(10+i) * time.Microsecond, time.Millisecond})
		if p.spec.Measure == Bandwidth {
			point = newBandwidth(p.spec, 100, time.Millisecond)
		}
		point.Section = p.section
		r.Points = append(r.Points, point)
	}
	return r
}

func TestText(t *testing.T) {
	for format, text := range map[string]string{"text": full().Text(), "markdown": full().Markdown()} {
		for _, want := range []string{"TCP send", "pool of slots", "registration cache",
			"512 pages", "2 MiB", "one-sided: read", "60.0–80.0", "1.25", "a note", "64"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s has no %q:\n%s", format, want, text)
			}
		}
		if strings.Contains(text, "NaN") {
			t.Errorf("%s:\n%s", format, text)
		}
	}
	if text := (Result{}).Text(); text != "" {
		t.Errorf("of nothing: %q", text)
	}
}

// TestPlan: what perftest measures is left to it, and is noted.
func TestPlan(t *testing.T) {
	o := brief(SectionNames()...)
	o.TCP, o.RDMA = false, true
	for _, p := range o.plan() {
		if err := p.spec.check(); err != nil || p.section != Designs || p.spec.Kind != RC {
			t.Errorf("%v in %s, %v", p.spec, p.section, err)
		}
	}
	if notes := strings.Join(o.notes(), "; "); !strings.Contains(notes, "ib_read_lat") || !strings.Contains(notes, "ib_atomic_bw") || !strings.Contains(notes, "ib_write_bw -q") {
		t.Errorf("notes %q", notes)
	}
	if notes := brief(Designs, Fetches).notes(); len(notes) > 0 {
		t.Errorf("notes %q of sections that perftest has not", notes)
	}
}

func TestWriteTo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	if err := full().WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		switch filepath.Ext(e.Name()) {
		case ".png":
			if _, err := png.Decode(bytes.NewReader(text)); err != nil {
				t.Errorf("%s: %v", e.Name(), err)
			}
		case ".json":
			var back Result
			if err := json.Unmarshal(text, &back); err != nil || len(back.Points) != len(full().Points) {
				t.Errorf("%d points came back, %v", len(back.Points), err)
			}
		}
	}
	for _, want := range []string{"fabric.json", "fabric.md", "fabric-latency.png", "fabric-latency.svg", "fabric-bandwidth.png", "fabric-queues.svg", "fabric-registration.png"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s among %q", want, names)
		}
	}
}

// TestNotPaced: connections that are measured are no more paced than those of daemons, whatever
// this machine's default is.
func TestNotPaced(t *testing.T) {
	spec := Spec{Kind: TCP, Operation: Send, Measure: Bandwidth, Bytes: 64, Connections: 1, Time: time.Millisecond}
	server, err := newTCPEnd(spec, &maker{localHost: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.close()
	client, err := newTCPEnd(spec, &maker{remoteHost: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.close()
	if err := errors.Join(client.connect(server.hello()), server.connect(hello{})); err != nil {
		t.Fatal(err)
	}
	for _, e := range []*tcpEnd{server, client} {
		raw, err := e.conns[0].SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) {
			if name, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION); err != nil || strings.HasPrefix(name, "bbr") {
				t.Error(name, err)
			}
		}); err != nil {
			t.Error(err)
		}
	}
}
