package trace

import (
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"dsmd/internal/faultlog"
	"dsmd/internal/runstats"
	"dsmd/internal/runstats/trace/tracetest"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata")

// start is when the jobs of these tests begin.
var start = time.Unix(1_800_000_000, 0)

// after is a moment in a job, in microseconds.
func after(us int64) int64 { return start.UnixNano() + us*1000 }

// logged is a batch as bytes.
func logged(b faultlog.Batch) []byte { return faultlog.Append(nil, &b) }

const us = time.Microsecond

// points is memory of two pages.
var points = runstats.Allocation{
	Name: "points", First: 100, Pages: 2, PageBytes: 4096, ElemBytes: 16, Type: "point",
	Fields: []runstats.Field{{Name: "x", Bytes: 8}, {Name: "y", Offset: 8, Bytes: 8}},
}

// story is what two ranks do on two nodes: both write points[1].y, under a lock.
func story() []runstats.Piece {
	nobody := uint32(faultlog.NoNode)
	return []runstats.Piece{
		{
			Rank: 0, Node: 0, PID: 11, Memory: []runstats.Allocation{points},
			Calls: []runstats.Call{{Kind: runstats.Lock, Name: "points", Began: after(90), Waited: 5 * us, Thread: 12, At: "main.go:7"}},
			Sites: []runstats.Site{{Page: 100, Offset: 24, Write: true, At: "main.go:8", Count: 1}},
			Log: logged(faultlog.Batch{Next: 2, Faults: []faultlog.Fault{
				{Page: 100, Offset: 24, Access: faultlog.Write, PID: 11, Thread: 12, Began: after(100), Granted: 20 * us, Waited: 24 * us, From: 1, Taker: nobody},
			}, Departures: []faultlog.Departure{{Place: 1, Page: 100, At: after(240), By: 1, Access: faultlog.Write, Written: []uint64{8}}}}),
		},
		{
			Rank: 1, Node: 1, PID: 11,
			Calls: []runstats.Call{
				{Kind: runstats.Barrier, Name: "end", Began: after(160), Waited: 540 * us, Thread: 12},
				{Kind: runstats.Barrier, Name: "other", Began: after(210), Waited: 600 * us, Thread: 12},
			},
			Log: logged(faultlog.Batch{Next: 1, Faults: []faultlog.Fault{
				{Page: 100, Offset: 24, Access: faultlog.Upgrade, PID: 11, Thread: 12, Began: after(220), Granted: 30 * us, Waited: 40 * us, From: 0, Taker: 0, TakerAccess: faultlog.Write},
				{Page: 7, Access: faultlog.Read, PID: 11, Began: after(300), Waited: us, From: nobody, Taker: nobody},
			}}),
		},
	}
}

// write makes a trace of pieces.
func write(t testing.TB, zip bool, pieces ...runstats.Piece) (text []byte, notes []string) {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b, zip, start)
	for i := range pieces {
		w.Add(&pieces[i], start.Add(time.Second))
	}
	notes, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), notes
}

// TestGolden: a story becomes the events in testdata, which can be drawn.
func TestGolden(t *testing.T) {
	text, notes := write(t, false, story()...)
	if _, err := tracetest.Parse(bytes.NewReader(text)); err != nil || len(notes) > 0 {
		t.Errorf("%v, notes %q", err, notes)
	}
	const file = "testdata/story.json"
	if *rewrite {
		if err := os.WriteFile(file, text, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, want) {
		t.Errorf("the trace differs from %s (go test -rewrite makes it anew):\n%s", file, text)
	}
}

// TestZip: compressed, it is the same.
func TestZip(t *testing.T) {
	plain, _ := write(t, false, story()...)
	zipped, _ := write(t, true, story()...)
	z, err := gzip.NewReader(bytes.NewReader(zipped))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if _, err := text.ReadFrom(z); err != nil || !bytes.Equal(text.Bytes(), plain) {
		t.Errorf("%v:\n%s", err, text.Bytes())
	}
}

// TestEmpty: a job of which nothing came has a trace without events.
func TestEmpty(t *testing.T) {
	text, notes := write(t, false)
	if x, err := tracetest.Parse(bytes.NewReader(text)); err != nil || len(x.Events) > 0 || len(notes) > 0 {
		t.Errorf("%v, %q: %s", err, notes, text)
	}
}

// TestAnything: whatever ranks say, in whatever order, the trace can be drawn, and has all waits.
func TestAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b bytes.Buffer
		w := NewWriter(&b, false, start)
		waits := 0
		for range rapid.IntRange(0, 5).Draw(t, "pieces") {
			p := anyPiece(t)
			log, err := faultlog.Decode(p.Log)
			if err != nil {
				t.Fatal(err)
			}
			waits += len(p.Calls) + len(log.Faults)
			w.Add(&p, start.Add(time.Second))
		}
		if _, err := w.Close(); err != nil {
			t.Fatal(err)
		}
		x, err := tracetest.Parse(bytes.NewReader(b.Bytes()))
		if err != nil {
			t.Fatalf("%v:\n%s", err, b.Bytes())
		}
		for _, e := range x.Complete() {
			if strings.HasPrefix(x.Processes[*e.Process], "rank") {
				waits--
			}
		}
		if waits != 0 {
			t.Fatalf("%d waits are missing", waits)
		}
	})
}

func anyPiece(t *rapid.T) runstats.Piece {
	times := rapid.Int64Range(0, 40)
	p := runstats.Piece{Rank: rapid.IntRange(0, 2).Draw(t, "rank")}
	p.Node = p.Rank / 2
	for range rapid.IntRange(0, 4).Draw(t, "calls") {
		p.Calls = append(p.Calls, runstats.Call{
			Kind: runstats.Barrier, Name: "b", Began: after(0) + times.Draw(t, "began"),
			Waited: time.Duration(times.Draw(t, "waited")), Thread: rapid.IntRange(0, 1).Draw(t, "thread"),
		})
	}
	var log faultlog.Batch
	for range rapid.IntRange(0, 4).Draw(t, "faults") {
		waited := times.Draw(t, "waited")
		log.Faults = append(log.Faults, faultlog.Fault{
			Page: 1, Access: faultlog.Read, Thread: rapid.Uint32Range(0, 1).Draw(t, "thread"), Began: after(0) + times.Draw(t, "began"),
			Waited: time.Duration(waited), Granted: time.Duration(rapid.Int64Range(0, waited).Draw(t, "granted")),
			From: rapid.SampledFrom([]uint32{0, 1, faultlog.NoNode}).Draw(t, "from"), Taker: faultlog.NoNode,
		})
	}
	p.Log = logged(log)
	return p
}

// TestDepartures: what two ranks of a node tell of its departures is written once.
func TestDepartures(t *testing.T) {
	all := make([]faultlog.Departure, 10)
	for i := range all {
		all[i] = faultlog.Departure{Place: uint64(i), Page: uint64(i), At: after(int64(i)), Access: faultlog.Read}
	}
	piece := func(rank int, from, to uint64) runstats.Piece {
		return runstats.Piece{Rank: rank, Log: logged(faultlog.Batch{First: from, Next: to, Departures: all[from:to]})}
	}
	text, _ := write(t, false, piece(0, 0, 4), piece(1, 2, 6), piece(0, 4, 8), piece(1, 6, 7), piece(1, 7, 10))
	x, err := tracetest.Parse(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var pages []int
	for _, e := range x.Events {
		if e.Phase == "i" {
			pages = append(pages, int(e.Args["page"].(float64)))
		}
	}
	if !slices.Equal(pages, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
		t.Errorf("departures %v", pages)
	}
}

// TestWaitsEnd: a wait for a page is over when its thread does something else.
func TestWaitsEnd(t *testing.T) {
	p := story()[0]
	p.Calls[0].Began = after(110)
	text, _ := write(t, false, p)
	x, err := tracetest.Parse(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range x.Complete() {
		if e.Name == `write "points"` && x.Processes[*e.Process] == "rank 0 on node 0" && (*e.Duration > 10 || *e.Duration < 9.9) {
			t.Errorf("it takes %v µs", *e.Duration)
		}
	}
	if len(x.Threads) != 3 {
		t.Errorf("rows %v", x.Threads)
	}
}

// TestClocks: the times of a node whose clock is wrong are between the job's start and now.
func TestClocks(t *testing.T) {
	for name, wrong := range map[string]time.Duration{"slow": -time.Hour, "fast": time.Hour} {
		var pieces []runstats.Piece
		for i := range 3 {
			began := start.Add(wrong + time.Duration(i)*time.Second/4).UnixNano()
			pieces = append(pieces, runstats.Piece{Node: 3, Calls: []runstats.Call{{Kind: runstats.Lock, Name: "l", Began: began, Waited: time.Second / 2}}})
		}
		text, notes := write(t, false, pieces...)
		x, err := tracetest.Parse(bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, e := range x.Complete() {
			if end := *e.At + *e.Duration; end > 1e6 {
				t.Errorf("%s: an event at %v s", name, end/1e6)
			}
		}
		if len(notes) != 1 || !strings.Contains(notes[0], fmt.Sprint("node 3 is wrong by ", wrong)) {
			t.Errorf("%s: notes %q", name, notes)
		}
	}
}

// TestNotes: what a trace lacks is said, and bad pieces do no harm.
func TestNotes(t *testing.T) {
	text, notes := write(t, false,
		runstats.Piece{Rank: 2, Log: logged(faultlog.Batch{Lost: 5})}, runstats.Piece{Rank: 2, Lost: 2},
		runstats.Piece{Log: []byte("x")}, runstats.Piece{Rank: -1}, runstats.Piece{Node: maxNode})
	if _, err := tracetest.Parse(bytes.NewReader(text)); err != nil {
		t.Error(err)
	}
	if all := strings.Join(notes, "\n"); !strings.Contains(all, "7 events are missing that rank 2 ") || !strings.Contains(all, "3 pieces ") {
		t.Errorf("notes %q", notes)
	}
}

// TestBounds: what is remembered of a long job does not grow, and rows have an end.
func TestBounds(t *testing.T) {
	w := NewWriter(io.Discard, false, start)
	for i := range 3 * maxLines {
		p := runstats.Piece{
			Calls: []runstats.Call{{Kind: runstats.Lock, Name: "l", Began: after(int64(i) * 10), Waited: us, Thread: 1}},
			Sites: []runstats.Site{{Page: uint64(i), At: "a.go:1"}},
		}
		w.Add(&p, start.Add(time.Hour))
	}
	p := runstats.Piece{Rank: 1}
	for range maxRows + 5 {
		p.Calls = append(p.Calls, runstats.Call{Kind: runstats.Lock, Name: "l", Began: after(1), Waited: us, Thread: len(p.Calls)})
	}
	w.Add(&p, start.Add(time.Hour))
	if n := len(w.processes[ranks].groups[1].rows[0].spans); n > rowSpans || len(w.ranks[0].lines) > maxLines || w.rows != maxRows || w.rowless != 6 {
		t.Errorf("%d spans, %d lines, %d rows, %d without one", n, len(w.ranks[0].lines), w.rows, w.rowless)
	}
}

// full is a file that takes no more.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// TestFull: an error of the file is told at the end.
func TestFull(t *testing.T) {
	for _, zip := range []bool{false, true} {
		w := NewWriter(full{}, zip, start)
		for _, p := range slices.Repeat(story(), 1000) {
			w.Add(&p, start.Add(time.Second))
		}
		if _, err := w.Close(); err == nil {
			t.Error("all is well")
		}
	}
}
