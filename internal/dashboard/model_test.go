package dashboard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"dsmd/internal/faultlog"
	"dsmd/internal/runstats"
)

var began = time.UnixMilli(1_700_000_000_000)

// after is a time since the job began.
func after(d time.Duration) time.Time { return began.Add(d) }

// memoryOf is an allocation of words.
func memoryOf(name string, first, pages uint64) runstats.Allocation {
	return runstats.Allocation{Name: name, First: first, Pages: pages, PageBytes: 4096, ElemBytes: 8, Type: "uint64"}
}

// faultAt is a fault of node 0 that ended at a time since the job began.
func faultAt(page uint64, access faultlog.Access, end, waited time.Duration) faultlog.Fault {
	return faultlog.Fault{Page: page, Access: access, Began: after(end - waited).UnixNano(), Waited: waited, From: faultlog.NoNode, Taker: faultlog.NoNode}
}

// logged is a piece that has faults, as it comes from a rank.
func logged(rank, node int, faults ...faultlog.Fault) runstats.Piece {
	b := faultlog.Batch{First: 1, Next: 1 + uint64(len(faults)), Faults: faults}
	return runstats.Piece{Rank: rank, Node: node, Log: faultlog.Append(nil, &b)}
}

// TestModel: two ranks that take a page from each other, and wait for a lock.
func TestModel(t *testing.T) {
	m := New(Job{Title: "solve", Nodes: 2, Ranks: 2, Began: began})
	taken := faultAt(12, faultlog.Write, 300*time.Millisecond, 200*time.Millisecond)
	taken.From, taken.Taker, taken.TakerAccess = 1, 1, faultlog.Write
	first := logged(0, 0, taken, faultAt(13, faultlog.Read, 350*time.Millisecond, time.Millisecond), faultAt(99, faultlog.Upgrade, 350*time.Millisecond, time.Millisecond))
	first.Memory = []runstats.Allocation{memoryOf("counts", 10, 8)}
	first.Sites = []runstats.Site{{Page: 12, At: "solve.go:7", Write: true, Count: 3}, {Page: 500, At: "nowhere.go:1", Count: 9}}
	m.Add(first, after(400*time.Millisecond))
	m.Add(runstats.Piece{Rank: 1, Node: 1, Calls: []runstats.Call{
		{Kind: runstats.Lock, Name: "total", Began: after(100 * time.Millisecond).UnixNano(), Waited: 50 * time.Millisecond, At: "solve.go:9"},
		{Kind: runstats.Lock, Name: "total", Began: after(200 * time.Millisecond).UnixNano(), Waited: 10 * time.Millisecond, At: "solve.go:8"},
		{Kind: runstats.Reduction, Name: "error", Began: after(100 * time.Millisecond).UnixNano(), Waited: 20 * time.Millisecond, At: "solve.go:11"},
		// It is in the log.
		{Kind: runstats.Memory, Name: "counts", Began: began.UnixNano(), Waited: time.Hour},
	}}, after(400*time.Millisecond))
	m.Add(logged(7, 0, taken), after(400*time.Millisecond)) // no such rank
	m.Add(logged(0, 9, taken), after(400*time.Millisecond)) // no such node
	m.Add(runstats.Piece{Log: []byte("nonsense")}, after(400*time.Millisecond))

	s := m.State(after(500 * time.Millisecond))
	if !s.Running || s.Seconds != 0.5 || s.Faults != 3 || s.Lost != 0 {
		t.Errorf("it has %+v", s)
	}
	if got, want := s.ByRank[0].Shares[runstats.Memory], []float64{0, 1, 1, 0.02}; !reflect.DeepEqual(got, want) {
		t.Errorf("rank 0 has waited %v for pages, want %v", got, want)
	}
	if got, want := s.ByRank[1].Shares[runstats.Lock], []float64{0, 0.5, 0.1}; !reflect.DeepEqual(got, want) {
		t.Errorf("rank 1 has waited %v for locks, want %v", got, want)
	}
	if got, want := s.ByRank[1].Shares[runstats.Reduction], []float64{0, 0.2, 0}; !reflect.DeepEqual(got, want) || s.ByRank[1].Waited[runstats.Reduction] != 0.02 {
		t.Errorf("rank 1 has waited %v for reductions, want %v", got, want)
	}
	want := []Cost{
		{runstats.Memory, "counts", 2, 0.201, 0.2, ""},
		{runstats.Lock, "total", 2, 0.06, 0.05, "solve.go:9"},
		{runstats.Reduction, "error", 1, 0.02, 0.02, "solve.go:11"},
		{runstats.Memory, unnamed, 1, 0.001, 0.001, ""},
	}
	if !reflect.DeepEqual(s.Costs, want) {
		t.Errorf("the costs are %+v, want %+v", s.Costs, want)
	}
	wantMemory := []Memory{{
		Name: "counts", Type: "uint64", ElemBytes: 8, PageBytes: 4096, Pages: 8, CellPages: 1, Read: 1, Write: 1, Seconds: 0.201,
		Cells: []Cell{{2, 0, 1, 0, 0.2, [][2]uint64{{0, 1}}}, {3, 1, 0, 0, 0.001, [][2]uint64{{0, 1}}}},
		Sites: []Site{{"solve.go:7", true, 3}},
	}}
	if !reflect.DeepEqual(s.Memory, wantMemory) {
		t.Errorf("the memory is %+v, want %+v", s.Memory, wantMemory)
	}
	if got, want := fmt.Sprint(s.ByNode), "{[0 1] [[0 1] [0 0]] [[0 1] [0 0]]}"; got != want {
		t.Errorf("between nodes %s, want %s", got, want)
	}

	m.End(after(time.Second))
	if s := m.State(after(time.Hour)); s.Running || s.Seconds != 1 {
		t.Errorf("at the end it has %+v", s)
	}
}

// TestTimeline: a long job has as few points as a short one, and the same waits.
func TestTimeline(t *testing.T) {
	line := newTimeline(1)
	total := 0.
	for end := time.Duration(0); end < 5*time.Hour; end += 7 * time.Second {
		line.add(0, 1, end-3*time.Second, end)
		total += float64(min(end, 3*time.Second))
	}
	sum := 0.
	for _, bin := range line.bins[0] {
		if bin[1] > float64(line.width) {
			t.Errorf("in %v a thread has waited %v", line.width, time.Duration(bin[1]))
		}
		sum += bin[1]
	}
	if n := len(line.bins[0]); math.Abs(sum-total) > 1 || n > maxBins || n <= maxBins/2 {
		t.Errorf("%d bins of %v have %v, want %v", n, line.width, time.Duration(sum), time.Duration(total))
	}
	line.add(0, 0, 2*time.Second, time.Second)
	line.add(0, 0, -2*time.Second, -time.Second)
	if line.bins[0][0][0] != 0 {
		t.Error("a wait that ends before it begins counts")
	}
}

// TestClocks: the clock of another machine may say anything; a wait has ended when we learn of it.
func TestClocks(t *testing.T) {
	m := New(Job{Nodes: 1, Ranks: 1, Began: began})
	for _, clock := range []time.Duration{-1 << 62, 1 << 62, time.Hour} {
		f := faultAt(1, faultlog.Read, time.Second, 100*time.Millisecond)
		f.Began += int64(clock)
		m.Add(logged(0, 0, f), after(time.Second))
	}
	s := m.State(after(time.Second))
	if shares := s.ByRank[0].Shares[runstats.Memory]; len(shares) != 10 || shares[9] != 2 || s.BinSeconds != 0.1 {
		t.Errorf("the shares are %v, each of %v seconds", shares, s.BinSeconds)
	}
}

// TestFreedMemory: pages may be another allocation later, and ranks name the old one late.
func TestFreedMemory(t *testing.T) {
	m := New(Job{Nodes: 1, Ranks: 2, Began: began})
	announce := func(rank int, a runstats.Allocation, page uint64) {
		p := logged(rank, 0, faultAt(page, faultlog.Read, time.Second, time.Millisecond))
		p.Memory = []runstats.Allocation{a}
		m.Add(p, after(time.Second))
	}
	for range 2 {
		announce(0, memoryOf("old", 0, 10), 4)
		announce(0, memoryOf("new", 4, 4), 4)
		announce(0, memoryOf("third", 8, 4), 9)
		announce(1, memoryOf("old", 0, 10), 9)
	}
	m.Add(runstats.Piece{Memory: []runstats.Allocation{{Name: "none"}, memoryOf("wraps", math.MaxUint64, 9), {Name: "no size", Pages: 5}}}, after(time.Second))
	got := map[string]uint64{}
	for _, x := range m.State(after(time.Second)).Memory {
		got[x.Name] += x.Read
	}
	if want := map[string]uint64{"old": 4, "new": 2, "third": 2}; !reflect.DeepEqual(got, want) {
		t.Errorf("faults by allocation: %v, want %v", got, want)
	}
}

// TestBounds: whatever a program does, there is not more than a page can show, and what costs most
// is in it.
func TestBounds(t *testing.T) {
	m := New(Job{Nodes: 1000, Ranks: 2000, Began: began})
	for i := range 2 * maxLive {
		p := runstats.Piece{Rank: i % 2000, Node: i % 1000, Memory: []runstats.Allocation{memoryOf(fmt.Sprint("a", i), uint64(i)*1e6, 1e6)}}
		p.Sites = []runstats.Site{{Page: 0, At: fmt.Sprint(i), Count: 1}}
		p.Calls = []runstats.Call{{Kind: runstats.Barrier, Name: fmt.Sprint(i), Began: began.UnixNano(), Waited: time.Duration(i + 1)}, {Kind: "x", Waited: 1}}
		f := faultAt(uint64(i)*1e6+uint64(i), faultlog.Read, time.Second, time.Duration(i+1))
		f.From, f.Taker = uint32(i*7%1000), 1e6
		m.AddLog(p, faultlog.Batch{First: uint64(i + 1), Lost: 1, Faults: []faultlog.Fault{f}}, after(time.Second))
	}
	s := m.State(after(time.Second))
	if len(s.ByRank) > maxGroups || len(s.ByNode.Sent) > maxGroups || len(s.Costs) != mostCostly || len(s.Memory) != maxMaps {
		t.Errorf("%d groups of ranks, %d of nodes, %d costs, %d heat maps", len(s.ByRank), len(s.ByNode.Sent), len(s.Costs), len(s.Memory))
	}
	if s.ByRank[1].Ranks != "32–63" || s.ByRank[62].Count != 16 || s.Lost != 2*maxLive || s.Faults != 2*maxLive {
		t.Errorf("the second group is %+v, the last %+v", s.ByRank[1], s.ByRank[62])
	}
	if live := &m.memory.live; live.Len() > maxLive || len(m.costs) > maxCosts || len(live.Find(0).sites) > maxSites {
		t.Errorf("%d allocations, %d costs and %d lines are known", live.Len(), len(m.costs), len(live.Find(0).sites))
	}
	if s.Memory[0].Name != fmt.Sprint("a", maxLive-1) || s.Costs[0].Name != unnamed {
		t.Errorf("%s and %s cost most", s.Memory[0].Name, s.Costs[0].Name)
	}
	cells := uint64(0)
	for _, x := range s.Memory {
		for _, c := range x.Cells {
			cells = max(cells, c.At+1)
		}
	}
	if cells == 0 || cells > maxCells {
		t.Errorf("a heat map has %d cells", cells)
	}
	if text, err := json.Marshal(s); err != nil || len(text) > 1<<20 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}

// TestFiles: what Write has made, Read reads; anything else is an error that says what to do.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	m := New(Job{Title: "solve", Nodes: 1, Ranks: 1, Began: began, Sharing: func() any { return "false sharing" }})
	m.Add(logged(0, 0, faultAt(1, faultlog.Read, time.Second, 1)), after(time.Second))
	s := m.State(after(time.Second))
	file := filepath.Join(dir, "state.json")
	if err := s.Write(file); err != nil {
		t.Fatal(err)
	}
	if back, err := Read(file); err != nil || !reflect.DeepEqual(back, s) {
		t.Errorf("%+v, %v, want %+v", back, err, s)
	}
	for _, text := range []string{"", "x", "{}", `{"format":"dsmd dashboard 0"}`, `{"format":7}`} {
		bad := filepath.Join(dir, "bad.json")
		if err := os.WriteFile(bad, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(bad); err == nil || !strings.Contains(err.Error(), bad) || !strings.Contains(err.Error(), "--dashboard-file") {
			t.Errorf("of %q: %v", text, err)
		}
	}
	if _, err := Read(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no file: %v", err)
	}
	if err := s.Write(filepath.Join(dir, "none", "x")); err == nil {
		t.Error("it was written into a directory that is not there")
	}
}

// TestLostOnce: two ranks of a node read one log, and what both came too late for is missing once.
func TestLostOnce(t *testing.T) {
	m := New(Job{Nodes: 2, Ranks: 3, Began: began})
	missed := faultlog.Append(nil, &faultlog.Batch{First: 100, Next: 100, Lost: 40})
	for rank, node := range []int{0, 0, 1} {
		m.Add(runstats.Piece{Rank: rank, Node: node, Log: missed, Lost: 1}, after(time.Second))
	}
	if s := m.State(after(time.Second)); s.Lost != 40+40+3 {
		t.Errorf("%d entries are missing, want 40 of each node's log and one of each rank", s.Lost)
	}
}
