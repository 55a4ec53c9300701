package dsm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/faultlog"
	"dsmd/internal/perf"
	"dsmd/internal/runstats"

	"golang.org/x/sys/unix"
)

// TestSamples: a fault that has ended gets the stack of its own thread and page, each once, in
// order; what belongs to none expires, and there are not too many.
func TestSamples(t *testing.T) {
	var s samples
	s.add(10, &perf.Fault{Thread: 1, Stack: []uint64{100, 200}})
	s.add(10, &perf.Fault{Thread: 1, Stack: []uint64{101}})
	s.add(10, &perf.Fault{Thread: 2, Stack: []uint64{102}})
	take := func(thread uint32, page uint64, want ...uintptr) {
		t.Helper()
		if got := s.take(&faultlog.Fault{Thread: thread, Page: page}); !reflect.DeepEqual(got, want) {
			t.Errorf("thread %d at page %d has the stack %v, want %v", thread, page, got, want)
		}
	}
	take(1, 11)
	take(1, 10, 101, 200)
	take(1, 10, 102)
	take(1, 10)
	for range sampleRounds {
		s.expire()
	}
	s.add(10, &perf.Fault{Thread: 2, Stack: []uint64{104}})
	s.expire()
	take(2, 10, 105)
	if s.count != 0 || len(s.by) != 0 {
		t.Errorf("%d are left: %v", s.count, s.by)
	}
	for i := range uint64(2 * maxSamples) {
		s.add(i, &perf.Fault{Thread: 3, Stack: []uint64{i}})
	}
	if s.count != maxSamples || len(s.by) != maxSamples {
		t.Errorf("%d wait, %d spots", s.count, len(s.by))
	}
}

// TestSamplesByTime: where it is known only when a thread waited, a fault gets the first sample of
// its own thread and time, and the next one none of those.
func TestSamplesByTime(t *testing.T) {
	var s samples
	for _, at := range []int64{90, 100, 110, 150, 210, 310} {
		s.add(somewhere, &perf.Fault{Thread: 1, At: at, Stack: []uint64{uint64(at)}})
	}
	s.add(somewhere, &perf.Fault{Thread: 2, At: 105, Stack: []uint64{1}})
	for _, x := range []struct {
		began, waited int64
		want          []uintptr
	}{{100, 20, []uintptr{101}}, {120, 20, nil}, {140, 60, []uintptr{151}}, {220, 80, nil}} {
		got := s.take(&faultlog.Fault{Thread: 1, Page: 7, Began: x.began, Waited: time.Duration(x.waited)})
		if !reflect.DeepEqual(got, x.want) {
			t.Errorf("what began at %d and took %d has the stack %v, want %v", x.began, x.waited, got, x.want)
		}
	}
	if s.count != 2 {
		t.Errorf("%d are left, want that of the next fault and that of another thread: %v", s.count, s.by)
	}
}

type particle struct {
	Mass float64
	_    [0]int
	At   struct {
		X, Y float32
		Cell struct{ I uint16 }
	}
	Tags [3]uint8
	None struct{}
}

// TestFields: a piece tells of all fields of a type, those in structs by their paths, but not of
// more than there is room for.
func TestFields(t *testing.T) {
	l, err := layoutOf[particle]()
	if err != nil {
		t.Fatal(err)
	}
	m := allocation{name: "p", offset: 8192, bytes: 4096, what: l}
	want := runstats.Allocation{Name: "p", First: 2, Pages: 1, PageBytes: 4096, ElemBytes: 24, Type: "dsm.particle", Fields: []runstats.Field{
		{Name: "Mass", Offset: 0, Bytes: 8}, {Name: "At.X", Offset: 8, Bytes: 4}, {Name: "At.Y", Offset: 12, Bytes: 4},
		{Name: "At.Cell.I", Offset: 16, Bytes: 2}, {Name: "Tags", Offset: 20, Bytes: 3},
	}}
	if got := m.described(4096); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	var many []reflect.StructField
	for i := range 2 * runstats.MaxFields {
		many = append(many, reflect.StructField{Name: "F" + strings.Repeat("x", i), Type: reflect.TypeFor[int]()})
	}
	var fields []runstats.Field
	if appendFields(&fields, reflect.StructOf(many), "", 0); len(fields) != runstats.MaxFields {
		t.Errorf("%d fields", len(fields))
	}
}

// TestOwnLines: what Go's library and the kits do for a program is told as the line that calls
// them.
func TestOwnLines(t *testing.T) {
	if _, err := os.Stat(goLibrary() + "sync/atomic/type.go"); err != nil {
		t.Fatalf("Go's library is not in %s: %v", goLibrary(), err)
	}
	for _, test := range []struct {
		function, file string
		own            bool
	}{
		{"main.main", "/home/me/heat/main.go", true},
		{"dsmd/dsmlike.F", "/home/me/dsmd/dsmlike/f.go", true},
		{"dsmd/dsm/collections_test.TestMap", "/home/me/dsmd/dsm/collections/map_test.go", true},
		{"dsmd/dsm.(*Mutex).Lock", "/home/me/dsmd/dsm/lock.go", false},
		{"dsmd/dsm/collections.(*Map[...]).Get", "/home/me/dsmd/dsm/collections/map.go", false},
		{"sync/atomic.(*Int64).Add", goLibrary() + "sync/atomic/type.go", false},
	} {
		if got := isOwn(&runtime.Frame{Function: test.function, File: test.file}); got != test.own {
			t.Errorf("%s in %s is the program's: %v", test.function, test.file, got)
		}
	}
}

// TestLines: the line of a stack is the program's, or else that of who has called it.
func TestLines(t *testing.T) {
	stack := make([]uintptr, 8)
	stack = stack[:runtime.Callers(0, stack)] // runtime, this package, and the test's caller
	known := lines{}
	for range 2 {
		if got := known.of(stack); got.function != "testing.tRunner" || !strings.HasPrefix(got.at, "testing.go:") {
			t.Errorf("%+v", got)
		}
	}
	if got := known.of(nil); got != (line{}) {
		t.Errorf("of nothing: %+v", got)
	}
}

// accountPipe has the next Join of this process write an account, for the given reasons, and
// returns what of it there is to read.
func accountPipe(t *testing.T, reasons ...string) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	inherited, err := unix.Dup(int(w.Fd()))
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	t.Setenv(runstats.Env, strconv.Itoa(inherited))
	for _, reason := range reasons {
		t.Setenv(reason, "1")
	}
	return r
}

// passedOn is what pieces have told, in all.
type passedOn struct {
	faults []faultlog.Fault
	memory []runstats.Allocation
	calls  []runstats.Call
	lost   uint64
	ended  bool // a record has come, as the last
	err    error
}

// readPieces reads the account of a process to its end.
func readPieces(r io.Reader, pid int) (all passedOn) {
	lines := bufio.NewScanner(r)
	for lines.Buffer(nil, runstats.MaxBytes); all.err == nil && lines.Scan(); {
		x, err := runstats.Decode(lines.Bytes())
		switch {
		case err != nil || all.ended:
			all.err = fmt.Errorf("%s: %w, after the record: %v", lines.Bytes(), err, all.ended)
			continue
		case x.Record != nil:
			all.ended = !x.Record.Partial
			continue
		}
		var b faultlog.Batch
		if len(x.Piece.Log) > 0 {
			b, err = faultlog.Decode(x.Piece.Log)
		}
		if err != nil || x.Piece.PID != pid {
			all.err = fmt.Errorf("%+v, %w", x.Piece, err)
		}
		all.faults, all.memory = append(all.faults, b.Faults...), append(all.memory, x.Piece.Memory...)
		all.calls, all.lost = append(all.calls, x.Piece.Calls...), all.lost+x.Piece.Lost
	}
	_, err := io.Copy(io.Discard, r) // who writes must not wait
	all.err = errors.Join(all.err, lines.Err(), err)
	return all
}

// piecesAside is readPieces while the process writes, which may be more than a pipe holds.
func piecesAside(r io.Reader, pid int) <-chan passedOn {
	read := make(chan passedOn, 1)
	go func() { read <- readPieces(r, pid) }()
	return read
}

// TestPieces: a rank that is asked for pieces passes on the daemon's log, its allocations and its
// waits, and at Close what there is left, before its record.
func TestPieces(t *testing.T) {
	r := accountPipe(t, runstats.EnvTrace, runstats.EnvStats)
	c := newFake(t, 1).join()
	if _, err := Alloc[particle](t.Context(), c, "particles", 10); err != nil {
		t.Fatal(err)
	}
	if err := c.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	all := readPieces(r, os.Getpid())
	if all.err != nil {
		t.Fatal(all.err)
	}
	if !all.ended || len(all.faults) != 2 || all.faults[0].Page != 1 || all.faults[1].Page != 2 {
		t.Errorf("ended: %v, faults %+v", all.ended, all.faults)
	}
	if len(all.memory) != 1 || all.memory[0].Name != "particles" || len(all.memory[0].Fields) != 5 {
		t.Errorf("memory %+v", all.memory)
	}
	if len(all.calls) != 1 || all.calls[0].Kind != runstats.Barrier || all.calls[0].Thread <= 0 || !strings.HasPrefix(all.calls[0].At, "testing.go:") ||
		time.Since(time.Unix(0, all.calls[0].Began)) < all.calls[0].Waited {
		t.Errorf("calls %+v", all.calls)
	}
}

// TestRecordsOnTheWay: a rank says what it has measured before it leaves the cluster as well, with
// what it waits for at that moment, and where. The last record is the whole one.
func TestRecordsOnTheWay(t *testing.T) {
	from := bufio.NewReader(accountPipe(t, runstats.EnvStats, runstats.EnvProfile))
	next := func() *runstats.Record {
		line, err := from.ReadBytes('\n')
		x, bad := runstats.Decode(line)
		if err != nil || bad != nil || x.Record == nil {
			t.Fatalf("%s: %v, %v", line, err, bad)
		}
		return x.Record
	}
	c := newFake(t, 1).join()
	queue := item{runstats.Lock, "queue"}
	c.attendant.end(c.attendant.begin(&wait{item: queue}))
	waits := c.attendant.begin(&wait{item: queue})
	due := make(chan time.Time, 2)
	due <- time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go c.account.Load().tell(ctx, c, due)
	if r := next(); !r.Partial || len(r.Waits) != 1 || r.Waits[0].Name != "queue" || r.Waits[0].Count != 2 || r.Waits[0].Time <= 0 || profiled(r, "queue") != 2 {
		t.Errorf("on the way: %+v, with %d waits in the profile", r, profiled(r, "queue"))
	}
	c.attendant.end(waits)
	cancel()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	r := next()
	for r.Partial { // on a slow machine
		r = next()
	}
	if len(r.Waits) != 1 || r.Waits[0].Count != 2 || profiled(r, "queue") != 2 {
		t.Errorf("at the end: %+v, with %d waits in the profile", r, profiled(r, "queue"))
	}
}

// TestRecordsThatNobodyReads: a launcher that is suspended finds the last record, and one from the
// way. More would fill the pipe, and Close would wait for the launcher.
func TestRecordsThatNobodyReads(t *testing.T) {
	from := bufio.NewReader(accountPipe(t, runstats.EnvStats))
	c := newFake(t, 1).join()
	due := make(chan time.Time)
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan struct{})
	go func() {
		c.account.Load().tell(ctx, c, due)
		close(told)
	}()
	for range 5 {
		due <- time.Now() // what was due before is said
	}
	cancel()
	<-told
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(from)
	if lines := bytes.Count(text, []byte("\n")); err != nil || lines != 2 {
		t.Errorf("%d records, want 2: %s, %v", lines, text, err)
	}
}

// profiled is how many waits for something the profile of a record has, with where they were.
func profiled(r *runstats.Record, name string) (waits int64) {
	for _, w := range r.Profile.Waits {
		if w.Name == name && len(w.Stack) > 0 {
			waits += w.Count
		}
	}
	return waits
}

// TestLacksOnTheWay: what the profile lacks is said in every record that has one.
func TestLacksOnTheWay(t *testing.T) {
	c := newFake(t, 1).join()
	for _, test := range []struct {
		windows windows
		want    string
	}{
		{windows{ways: []opener{nil}}, ""},
		{windows{ways: []opener{nil}, lost: true}, "some samples were lost"},
		{windows{ways: []opener{nil}, err: errors.New("not allowed")}, "and not who has called it: not allowed"},
		{windows{err: errors.New("not allowed")}, "no stacks in the profile: not allowed"},
	} {
		tracer := &tracer{c: c, places: []uint64{faultlog.End}, profile: newProfiler(c), windows: &test.windows}
		tracer.read(t.Context())
		var r runstats.Record
		tracer.addProfile(&r)
		if r.Profile == nil || !strings.Contains(r.Note, test.want) || (r.Note == "") != (test.want == "") {
			t.Errorf("said %q, want %q", r.Note, test.want)
		}
	}
}

// TestLogAfterSilence: a daemon that did not answer once, because it was stopped, is asked again,
// and tells what has happened meanwhile.
func TestLogAfterSilence(t *testing.T) {
	c := newFake(t, 1).join()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	tracer := &tracer{c: c, places: []uint64{faultlog.End}, pieces: w, windows: &windows{ways: []opener{nil}}}
	if _, _, err := tracer.readLog(t.Context()); err != nil { // two faults follow
		t.Fatal(err)
	}
	silence, over := context.WithCancel(t.Context())
	over()
	tracer.read(silence)
	tracer.read(t.Context())
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if all := readPieces(r, os.Getpid()); all.err != nil || len(all.faults) != 2 {
		t.Errorf("the faults %+v were passed on, want 2: %v", all.faults, all.err)
	}
}

// allocations are more than one piece, or some, have room for.
const allocations = 20 * runstats.MaxPieceMemory

func allocateMany(ctx context.Context, c *Cluster) {
	for i := range allocations {
		must(Alloc[byte](ctx, c, fmt.Sprint(i), 1))
	}
}

// TestEndTellsAll: a rank that ends right after it has allocated and waited, more often than one
// piece has room for, tells of all that before its end.
func TestEndTellsAll(t *testing.T) {
	r := accountPipe(t, runstats.EnvTrace)
	c := newFake(t, 1).join()
	read := piecesAside(r, os.Getpid())
	const waits = 2 * runstats.MaxPieceItems
	allocateMany(t.Context(), c)
	for range waits {
		c.attendant.end(c.attendant.begin(&wait{item: item{runstats.Barrier, "b"}}))
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	all := <-read
	if all.err != nil || len(all.memory) != allocations || len(all.calls) != waits || all.lost != 0 {
		t.Errorf("told of %d allocations and %d waits, of %d and %d; %d are lost: %v",
			len(all.memory), len(all.calls), allocations, waits, all.lost, all.err)
	}
}

func programAllocates(c *Cluster) {
	allocateMany(context.Background(), c)
	_ = NewBarrier(c, "never", Parties(2)).Wait(context.Background())
	select {} // until the loss of the cluster ends this process
}

// TestLossTellsAll: a rank that ends because its daemon has died tells of all memory first.
func TestLossTellsAll(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	t.Setenv(runstats.Env, "3")
	t.Setenv(runstats.EnvTrace, "1")
	f := newFake(t, 1)
	p := f.start("allocates", w)
	w.Close()
	read := piecesAside(r, p.cmd.Process.Pid)
	f.awaitCalls(attach.OpArrive, 1)
	f.die()
	status, _, stderr := p.end()
	all := <-read
	if all.err != nil || len(all.memory) != allocations || status != ExitLost {
		t.Errorf("status %d, told of %d allocations, of %d: %v\n%s", status, len(all.memory), allocations, all.err, stderr)
	}
}
