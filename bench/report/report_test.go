package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dsmd/bench/chart"
	"dsmd/bench/table"
)

// result is canned: what fft might measure with so many nodes.
func result(c Case) *Result {
	r := &Result{
		Kernel: c.Kernel, Nodes: c.Nodes, Threads: c.Threads, Size: c.Size, N: 10, Trap: c.Trap, Transport: c.Transport, Verified: true,
		SecondsSerial: 4, SecondsGoroutines: 2, Figures: map[string]any{"fnv": "00ff"},
	}
	for rank := range c.Nodes {
		counters := map[string]uint64{"fault_wait_ns": 1e9, "lock_wait_ns": 5e8, "barrier_wait_ns": 5e8, "lock_calls": 3, "barrier_calls": 2}
		if c.Nodes > 1 {
			counters["faults_read"], counters["faults_map"], counters["bytes_sent"], counters["messages_sent"] = 100, 7, 4_100_000, 210
			counters["remote_faults_cold"], counters["predicted_used"] = 90, 11
		}
		r.PerNode = append(r.PerNode, NewNode(rank, float64(4+c.Attempt), counters))
	}
	r.SumUp()
	return r
}

var someSweep = Sweep{
	Kernels: []string{"fft", "lu"}, Nodes: []int{1, 2}, Traps: []string{"uffd", "sigsegv"}, Transports: []string{"tcp"},
	Size: "test", Threads: 1, Repeat: 2,
}

const hostile = `<script>alert("|")</script> & more`

// outcomes are those of someSweep; all runs of lu on two nodes with sigsegv failed, and one of its
// two with uffd.
func outcomes() []Outcome {
	var all []Outcome
	for _, c := range someSweep.Cases() {
		o := Outcome{Case: c, Build: "b", Began: time.Unix(1e9, 0).UTC(), Load: float64(c.Nodes), Result: result(c)}
		if c.Kernel == "lu" && c.Nodes == 2 && (c.Trap == "sigsegv" || c.Attempt == 1) {
			o.Result, o.Failure = nil, hostile
		}
		all = append(all, o)
	}
	return all
}

func TestResultSumsUp(t *testing.T) {
	r := result(Case{Kernel: "fft", Nodes: 2, Threads: 1, Attempt: 1})
	if r.Seconds != 5 || r.Speedup != 0.8 || r.Overhead != 2.5 || r.Faults["read"] != 200 || r.Misses() != 200 || r.Remote["cold"] != 180 || r.Predicted["used"] != 22 ||
		r.BytesMoved != 8_200_000 || r.Messages != 420 || r.Locks != 6 || r.Barriers != 4 ||
		r.SecondsFaults != 2 || r.SecondsLocks != 1 || r.SecondsBarriers != 1 {
		t.Errorf("summed up: %+v", r)
	}
	r.SumUp()
	if r.Locks != 6 || r.Seconds != 5 {
		t.Errorf("summed up twice: %+v", r)
	}
}

// TestResultKeepsItsJSON: scripts read these names, also at the top where Traffic is embedded.
func TestResultKeepsItsJSON(t *testing.T) {
	text, err := json.Marshal(result(Case{Kernel: "fft", Nodes: 1, Attempt: 1}))
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"faults", "remote_faults", "predicted", "bytes_moved", "messages", "lock_calls", "barrier_calls", "seconds_faults", "result", "per_node"} {
		if _, ok := fields[name]; !ok {
			t.Errorf("no %q in %s", name, text)
		}
	}
}

func TestShares(t *testing.T) {
	r := result(Case{Kernel: "fft", Nodes: 2, Threads: 1, Attempt: 1})
	if s := r.Shares(); s != (Shares{Computing: 0.6, Faults: 0.2, Locks: 0.1, Barriers: 0.1}) {
		t.Errorf("shares: %+v", s)
	}
	r.Threads = 2
	if s := r.Shares(); s.Faults != 0.1 || s.Locks != 0.05 || s.Barriers != 0.1 {
		t.Errorf("with two threads, each of which lost half: %+v", s)
	}
	r.SecondsFaults = 1000 // more than there is
	if s := r.Shares(); s.Computing != 0 || s.Faults < 0.9 || s.Faults+s.Locks+s.Barriers > 1+1e-12 {
		t.Errorf("with more than all time lost: %+v", s)
	}
	if s := (&Result{}).Shares(); s.Computing != 1 {
		t.Errorf("of nothing: %+v", s)
	}
}

// TestBarsAreFull: the medians of parts of different wholes do not add up by themselves.
func TestBarsAreFull(t *testing.T) {
	c := Case{Kernel: "fft", Nodes: 2, Threads: 1}
	r := row{Case: c}
	for faults := range 3 {
		o := Outcome{Case: c, Result: result(c)}
		o.Result.SecondsFaults, o.Result.SecondsBarriers = float64(faults), float64(faults%2)*5
		r.outcomes = append(r.outcomes, o)
	}
	s := medianShares(&r)
	if sum := s.Computing + s.Faults + s.Locks + s.Barriers; sum < 1-1e-12 || sum > 1+1e-12 || s.Computing == 1 {
		t.Errorf("%+v add up to %v", s, sum)
	}
	if s := medianShares(&row{Case: c}); s != (Shares{}) {
		t.Errorf("of no runs: %+v", s)
	}
}

func TestCasesRepeatTheWholeSweep(t *testing.T) {
	cases := someSweep.Cases()
	if len(cases) != 16 || cases[0].Attempt != 1 || cases[7].Attempt != 1 || cases[8].Attempt != 2 {
		t.Errorf("cases: %v", cases)
	}
	files := map[string]bool{}
	for _, c := range cases {
		files[c.file()] = true
	}
	if len(files) != len(cases) {
		t.Errorf("%d cases have %d files", len(cases), len(files))
	}
}

func TestFolderResumes(t *testing.T) {
	f, err := Open(filepath.Join(t.TempDir(), "a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	c := someSweep.Cases()[0]
	finished := func(build string) bool {
		t.Helper()
		o, ok, err := f.Finished(c, build)
		if err != nil {
			t.Fatal(err)
		}
		if ok && (o.Case != c || o.Result.Seconds != 5 || o.Result.PerNode[0].Counters["lock_calls"] != 3) {
			t.Errorf("came back as %+v", o)
		}
		return ok
	}
	keep := func(o Outcome) {
		t.Helper()
		if err := f.Keep(o); err != nil {
			t.Fatal(err)
		}
	}
	if finished("b") {
		t.Error("finished before it ran")
	}
	keep(Outcome{Case: c, Build: "b", Failure: "no luck"})
	if finished("b") {
		t.Error("a failure is not run again")
	}
	keep(Outcome{Case: c, Build: "b", Result: result(c)})
	if !finished("b") {
		t.Error("a success is run again")
	}
	if finished("c") {
		t.Error("another build's success is not run again")
	}
	if err := errors.Join(f.Discard(c), f.Discard(c)); err != nil {
		t.Fatal(err)
	}
	if finished("b") {
		t.Error("finished after it was discarded")
	}
}

// TestFolderRefusesOthersFiles: a half-written or foreign file must not pass for a result, nor
// vanish silently.
func TestFolderRefusesOthersFiles(t *testing.T) {
	f, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cases := someSweep.Cases()
	if err := f.Keep(Outcome{Case: cases[0], Build: "b", Result: result(cases[0])}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(f.file(cases[0]))
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range [][]byte{text[:len(text)/2], text} {
		if err := os.WriteFile(f.file(cases[1]), wrong, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := f.Finished(cases[1], "b"); err == nil || ok || !strings.Contains(err.Error(), "--fresh") {
			t.Errorf("%d bytes of another case's file: %v, %v", len(wrong), ok, err)
		}
	}
}

func TestOpenSaysWhichFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file); err == nil || !strings.Contains(err.Error(), "--out") {
		t.Errorf("a file as the folder: %v", err)
	}
}

// TestReplaceLeavesNoParts: a part that an earlier run left is used up, and a failure leaves none.
func TestReplaceLeavesNoParts(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	if err := os.WriteFile(filepath.Join(dir, ".x.part"), []byte("longer than the new one"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := replace(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "new" {
		t.Errorf("%q, %v", text, err)
	}
	occupied := filepath.Join(dir, "y")
	if err := os.MkdirAll(filepath.Join(occupied, "z"), 0o700); err != nil {
		t.Fatal(err)
	}
	if replace(occupied, []byte("new")) == nil {
		t.Error("a folder was replaced")
	}
	if parts, _ := filepath.Glob(filepath.Join(dir, ".*.part")); len(parts) > 0 {
		t.Errorf("left behind: %v", parts)
	}
}

func TestTables(t *testing.T) {
	all := rows(outcomes())
	if len(all) != 8 {
		t.Fatalf("%d rows", len(all))
	}
	times := tables(all)[0]
	line := func(kernel, nodes, trap string) []string {
		for _, cells := range times.Rows {
			if cells[0] == kernel && cells[2] == nodes && cells[4] == trap {
				return cells
			}
		}
		t.Fatalf("no line for %s, %s, %s", kernel, nodes, trap)
		return nil
	}
	if got := strings.Join(line("fft", "2", "uffd")[6:9], " "); got != "yes 5.5000 (5.0000–6.0000) 4.0000" {
		t.Errorf("two runs: %q", got)
	}
	if got := strings.Join(line("lu", "2", "uffd")[6:8], " "); got != "1 of 2 6.0000" {
		t.Errorf("one of two runs: %q", got)
	}
	if got := strings.Join(line("lu", "2", "sigsegv")[1:8], " "); got != "test 2 1 sigsegv tcp FAILED –" {
		t.Errorf("no run of two: %q", got)
	}
	if got := line("fft", "1", "uffd")[1]; got != "test (10)" {
		t.Errorf("the size reads %q", got)
	}
}

// TestWrongResultHasNoFigures: a run whose result is wrong has a time, which means nothing.
func TestWrongResultHasNoFigures(t *testing.T) {
	c := someSweep.Cases()[0]
	all := rows([]Outcome{{Case: c, Failure: "wrong", Result: result(c)}})
	if got := tables(all)[0].Rows[0]; got[6] != "FAILED" || got[7] != table.None {
		t.Errorf("a wrong result reads %q", got)
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	f, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Write(table.Origin{Command: "bench report <b>", Machine: "m"}, outcomes()); err != nil {
		t.Fatal(err)
	}
	read := func(name string) []byte {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	page, markdown := string(read(pageName)), string(read(tableName))
	for name, text := range map[string]string{"page": page, "Markdown": markdown} {
		if strings.Contains(text, "<script") || strings.Contains(text, "report <b>") {
			t.Errorf("the %s passes on HTML from outside", name)
		}
		for _, want := range []string{"16 runs, 13 verified, 3 failed", "lu on 2 nodes, sigsegv, tcp, size test (run 2)", "load average 1.0 to 2.0", "FAILED"} {
			if !strings.Contains(text, want) {
				t.Errorf("the %s does not say %q", name, want)
			}
		}
	}
	if !strings.Contains(page, "&lt;script&gt;") || strings.Count(page, `<tr class="failed">`) != 4 {
		t.Errorf("the page does not show failed runs:\n%s", page)
	}
	if strings.Count(page, "&lt;script&gt;") != 1 {
		t.Error("a reason is told more than once")
	}
	var all []Outcome
	if err := json.Unmarshal(read(allName), &all); err != nil || len(all) != 16 {
		t.Errorf("results.json has %d outcomes, %v", len(all), err)
	}
	for _, name := range []string{"speedup", "time-uffd-tcp", "time-sigsegv-tcp", "traffic-uffd-tcp", "traffic-sigsegv-tcp"} {
		checkImages(t, read("plots/"+name+".png"), read("plots/"+name+".svg"))
		if !strings.Contains(page, "plots/"+name+".svg") || !strings.Contains(page, "plots/"+name+".png") {
			t.Errorf("the page does not have %s", name)
		}
	}
}

// checkImages: both can be parsed, and the PNG is not blank.
func checkImages(t *testing.T, bitmap, vectors []byte) {
	t.Helper()
	image, err := png.Decode(bytes.NewReader(bitmap))
	if err != nil {
		t.Fatal(err)
	}
	dark, bounds := 0, image.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			if r, _, _, _ := image.At(x, y).RGBA(); r < 0x6000 {
				dark++
			}
		}
	}
	if dark < 1000 {
		t.Errorf("a plot of %v has %d dark pixels", bounds, dark)
	}
	decoder := xml.NewDecoder(bytes.NewReader(vectors))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestPlotsOfLittle: a sweep of which nothing succeeded, or with one row, is still drawn.
func TestPlotsOfLittle(t *testing.T) {
	c := someSweep.Cases()[0]
	for i, o := range []Outcome{{Case: c, Failure: "bad luck"}, {Case: c, Result: result(c)}} {
		plots := drawings(rows([]Outcome{o}))
		if len(plots) != 1+2*i {
			t.Errorf("failure %q: %d plots", o.Failure, len(plots))
		}
		for _, d := range plots {
			for _, format := range chart.Formats() {
				if image, err := d.Encode(format); err != nil || len(image) == 0 {
					t.Errorf("failure %q: %d bytes of %s, %v", o.Failure, len(image), format, err)
				}
			}
		}
	}
	if _, err := drawings(rows(outcomes()))[0].Encode("gif"); err == nil {
		t.Error("gif was drawn")
	}
}

func TestNumbersForPeople(t *testing.T) {
	for got, want := range map[string]string{
		table.Significant(1234.5): "1234", table.Significant(12.345): "12.3", table.Significant(0.5): "0.50", table.Significant(0.00123): "0.00123",
		writeSeconds(0.00002449): "0.000024", writeSeconds(1.5): "1.5000",
		amount(1): "1", amount(1e4): "10 k", amount(1e9): "1 G", amountOfBytes(100): "100 B", amountOfBytes(1e6): "1 MB",
		chart.Plain(1e-5): "0.00001", count(1, "node"): "1 node", count(2, "node"): "2 nodes",
		fmt.Sprint(Case{Kernel: "fft", Nodes: 1, Trap: "uffd", Transport: "tcp", Size: "test"}): "fft on 1 node, uffd, tcp, size test",
		chosen("auto", "uffd"): "auto (uffd)", table.Inline("a|b\nc<d"): `a\|b c&lt;d`,
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
