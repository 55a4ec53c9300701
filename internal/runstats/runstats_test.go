package runstats

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// skewed are two ranks of two nodes: rank 1 computes, and rank 0 waits for it.
func skewed() []Record {
	return []Record{
		{Rank: 1, Node: 1, Wall: 10 * time.Second, CPU: 9 * time.Second, Waits: []Item{
			{Kind: Barrier, Name: "phase", Count: 4, Time: 100 * time.Millisecond}, {Kind: Reduction, Name: "phase", Count: 2, Time: 200 * time.Millisecond},
		}},
		{Rank: 0, Wall: 10 * time.Second, CPU: 4 * time.Second, FaultWait: time.Second, Read: 900, Write: 80, Upgrade: 20, Sent: 1 << 20, Received: 3 << 19, Waits: []Item{
			{Kind: Barrier, Name: "phase", Count: 4, Time: 4 * time.Second}, {Kind: Lock, Name: "a \"b\"", Count: 10, Time: 500 * time.Millisecond},
		}, Memory: []Item{{Kind: Memory, Name: "x", Count: 1000, Time: time.Second, Taken: 600}}},
	}
}

const wantSkewed = `
RANK  NODE  SECONDS  THREADS  COMPUTING  PAGES  LOCKS  BARRIERS  REDUCTIONS  PREFETCH  NO CPU  OTHER  READ  WRITE  UPGRADE  SENT    RECEIVED
0     0     10.00    1        40.0%      10.0%  5.0%   40.0%     0.0%        0.0%      0.0%    5.0%   900   80     20       1.0MiB  1.5MiB
1     1     10.00    1        90.0%      0.0%   0.0%   1.0%      2.0%        0.0%      0.0%    7.0%   0     0      0        0.0MiB  0.0MiB

WAITED FOR  NAME       SECONDS  OF ALL  TIMES  EACH
barrier     "phase"    4.100    20.5%   8      513ms
memory      "x"        1.000    5.0%    1000   1ms
lock        "a \"b\""  0.500    2.5%    10     50ms
reduction   "phase"    0.200    1.0%    2      100ms
barrier "phase": rank 1 comes last (it waited 100ms there, rank 0 4s): give it less to do
memory "x": others write to its pages while they are in use here: give each rank whole pages (pad, or dsm.Isolate), or add up locally first
--stats knows nothing of those who have not left the cluster by Close: rank 2
`

// TestReport: what a report looks like.
func TestReport(t *testing.T) {
	if got := "\n" + strings.Join(Report(skewed(), 3), "\n") + "\n"; got != wantSkewed {
		t.Errorf("%s\nwant%s", got, wantSkewed)
	}
	partial := skewed()
	partial[0].Partial = true
	const last = "--stats knows nothing of the last seconds of those who have not left the cluster by Close: rank 1"
	if got := Report(partial, 2); got[len(got)-1] != last {
		t.Errorf("where a rank was ended: %q, want %q", got[len(got)-1], last)
	}
	if got := Report(nil, 13); len(got) != 1 || !strings.HasSuffix(got[0], "rank 9, 3 others") {
		t.Errorf("of nobody: %q", got)
	}
}

// TestDivide: the parts of a rank's time are all of it, also where more was measured than there is
// time, and its threads are as many as that needs.
func TestDivide(t *testing.T) {
	for _, test := range []struct {
		r       Record
		threads int
		other   float64
	}{
		{Record{Wall: time.Second}, 1, 1},
		{Record{}, 1, 1},
		{Record{Wall: time.Second, CPU: time.Second}, 1, 0},
		{Record{Wall: time.Second, CPU: 1300 * time.Millisecond}, 1, 0},
		{Record{Wall: time.Second, CPU: 3 * time.Second, FaultWait: 800 * time.Millisecond}, 4, 0.05},
		{Record{Wall: time.Second, Queue: time.Second, Waits: []Item{{Kind: Lock, Time: time.Second}, {Kind: Prefetch, Time: time.Second}, {Kind: Reduction, Time: time.Second}}}, 4, 0},
	} {
		s := divide(&test.r)
		sum := s.computing + s.pages + s.locks + s.barriers + s.reductions + s.prefetch + s.processor + s.other
		if s.threads != test.threads || math.Abs(sum-1) > 1e-9 || math.Abs(s.other-test.other) > 1e-9 {
			t.Errorf("%+v is divided to %+v, the sum is %v", test.r, s, sum)
		}
	}
}

// TestNodesCountOnce: ranks of one node know the same of its memory, those that leave later more.
func TestNodesCountOnce(t *testing.T) {
	x := func(d time.Duration) []Item { return []Item{{Kind: Memory, Name: "x", Count: 1, Time: d}} }
	list := costs([]Record{{Rank: 0, Wall: 2, Memory: x(20)}, {Rank: 1, Wall: 3, Memory: x(30)}, {Rank: 2, Node: 1, Wall: 1, Memory: x(5)}})
	if len(list) != 1 || list[0].Time != 35 || list[0].Count != 2 {
		t.Errorf("%+v", list)
	}
}

// TestReportOfSpilling: where threads wait for pages from the spill file mostly, the report says
// that memory is short, and does not claim that pages travel. Nor does it claim that memory is
// short where all comes from mapped files.
func TestReportOfSpilling(t *testing.T) {
	const travels = `memory "x": its pages travel`
	for _, test := range []struct {
		writes, reads uint64
		want          string
	}{
		{7, 49, travels},
		{0, 100, travels},
		{7, 50, "memory is short: 7 pages went to the disk for want of room (--spill), 50 came from there, and threads waited 100 times for pages: " +
			"give nodes more memory (--memory), have more nodes, or use less at a time"},
	} {
		one := Record{Wall: time.Second, SpillWrites: test.writes, SpillReads: test.reads, Memory: []Item{{Kind: Memory, Name: "x", Count: 100, Time: time.Second}}}
		more := one // of the same node
		more.Rank, more.Wall = 1, 2*time.Second
		got := Report([]Record{one, more}, 2)
		if last := got[len(got)-1]; !strings.HasPrefix(last, test.want) || strings.Contains(strings.Join(got, ""), travels) != (test.want == travels) {
			t.Errorf("of %d pages to the spill file and %d from there: %q, want %q", test.writes, test.reads, last, test.want)
		}
	}
}

// TestAdvice: what the figures say of each kind.
func TestAdvice(t *testing.T) {
	for want, c := range map[string]cost{
		"in use here":  {Item: Item{Kind: Memory, Count: 100, Taken: 26, Time: 100 * time.Millisecond}},
		"in turns":     {Item: Item{Kind: Memory, Count: 100, Taken: 26, Time: time.Second}},
		"travel":       {Item: Item{Kind: Memory, Count: 100, Taken: 25}},
		"travels":      {Item: Item{Kind: Lock, Name: "s*", Count: 2, Time: time.Millisecond, Of: 64}},
		"at a time":    {Item: Item{Kind: Lock, Count: 2, Time: time.Millisecond}},
		"often":        {Item: Item{Kind: Lock, Count: 100, Time: time.Millisecond}},
		"rank 7 comes": {Item: Item{Kind: Barrier}, parts: 2, least: 1, most: 3, late: 7},
	} {
		if got := advice(&c); !strings.Contains(got, want) {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
	if got := advice(&cost{Item: Item{Kind: Barrier}, parts: 2, least: 2, most: 3}); got != "" {
		t.Errorf("of a barrier that all wait for alike: %q", got)
	}
	if got := advice(&cost{Item: Item{Kind: Lock, Count: 2, Time: time.Second, Of: 2}}); got != "" {
		t.Errorf("of what had no place in a record: %q", got)
	}
}

// TestRecordIsBounded: a record goes into a pipe at once, with what took longest, and all the rest
// in one, so that no time is missing.
func TestRecordIsBounded(t *testing.T) {
	var r Record
	for i := range 1000 {
		name := strings.Repeat("x", i) + strings.Repeat("\xff\n", 1000)
		r.Waits = append(r.Waits, Item{Kind: Lock, Name: name, Count: 1, Time: time.Duration(i)})
	}
	b := r.Encode()
	x, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	back := x.Record
	if len(b) > MaxBytes || strings.Count(string(b), "\n") != 1 || len(back.Waits) != MaxItems+1 || back.Waits[0].Time != 999 {
		t.Fatalf("%d bytes with %d waits", len(b), len(back.Waits))
	}
	sum := Item{}
	for i := range back.Waits {
		sum.add(&back.Waits[i])
	}
	if sum.Of != 1000 || sum.Count != 1000 || sum.Time != 999*1000/2 {
		t.Errorf("%d waits for %d things have taken %v", sum.Count, sum.Of, sum.Time)
	}
}

// TestFamilies: things whose names differ in digits only are one, from four on, also where only one
// rank knows as many.
func TestFamilies(t *testing.T) {
	item := func(name string, of uint64) Item {
		return Item{Kind: Lock, Name: name, Count: 1, Time: time.Second, Of: of}
	}
	three := []Item{item("s1", 0), item("s2", 0), item("s3", 0)}
	for _, test := range []struct {
		records []Record
		want    string
	}{
		{[]Record{{Waits: three}, {Rank: 1, Waits: three}}, `"s1" 2, "s2" 2, "s3" 2`},
		{[]Record{{Waits: three}, {Rank: 1, Waits: []Item{item("s11", 0)}}}, `"s*" (3) 4`},
		{[]Record{{Waits: three[:1]}, {Rank: 1, Waits: []Item{item("s*", 64)}}}, `"s*" (64) 2`},
		{[]Record{{Waits: append([]Item{{Kind: Barrier, Name: "s4", Count: 1}}, three...)}}, `"s1" 1, "s2" 1, "s3" 1, "s4" 1`},
	} {
		var got []string
		for _, c := range costs(test.records) {
			got = append(got, fmt.Sprintf("%s %d", c.title(), c.Count))
		}
		if text := strings.Join(got, ", "); text != test.want {
			t.Errorf("%s, want %s", text, test.want)
		}
	}
}

// TestPieceIsBounded: a piece has room for some of each, says how many more there were, and leaves
// what it was made of as it is.
func TestPieceIsBounded(t *testing.T) {
	long := strings.Repeat("\xff\n", 1000)
	p := Piece{Rank: 1, Log: make([]byte, 64<<10)}
	for range 2 * MaxPieceItems {
		p.Memory = append(p.Memory, Allocation{Name: long, Type: long, Fields: []Field{{Name: long}}})
		p.Calls = append(p.Calls, Call{Kind: Lock, Name: long, At: long})
		p.Sites = append(p.Sites, Site{Func: long, At: long})
	}
	b := p.Encode()
	x, err := Decode(b)
	if err != nil || len(b) > MaxBytes || strings.Count(string(b), "\n") != 1 {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	if q := x.Piece; len(q.Memory) != MaxPieceMemory || len(q.Calls) != MaxPieceItems || len(q.Sites) != MaxPieceItems || q.Lost != 4*MaxPieceItems-MaxPieceMemory || len(q.Log) != len(p.Log) {
		t.Errorf("%d allocations, %d calls, %d sites, %d lost", len(q.Memory), len(q.Calls), len(q.Sites), q.Lost)
	}
	control := strings.Repeat("\x01", 1000)
	for i := range p.Calls {
		p.Calls[i].Name, p.Calls[i].At = control, control
		p.Sites[i].Func, p.Sites[i].At = control, control
	}
	b = p.Encode()
	if x, err := Decode(b); err != nil || len(b) > MaxBytes || x.Piece.Lost != 6*MaxPieceItems || len(x.Piece.Log) != len(p.Log) {
		t.Errorf("of control characters: %d bytes, %v", len(b), err)
	}
	if p.Memory[0].Name != long || p.Memory[0].Fields[0].Name != long || p.Lost != 0 {
		t.Error("the piece itself has changed")
	}
}

// FuzzDecode: whatever a program says, there is a report.
func FuzzDecode(f *testing.F) {
	for _, r := range skewed() {
		f.Add(r.Encode())
	}
	f.Add([]byte(`{"rank":-1,"wall_ns":-5,"cpu_ns":9223372036854775807,"waits":[{"kind":"x","count":0,"ns":-1}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		switch x, err := Decode(b); {
		case err != nil:
		case x.Record != nil:
			Report([]Record{*x.Record, *x.Record}, 3)
		case x.Hang != nil:
			_ = x.Hang.Encode()
		default:
			x.Piece.Encode()
		}
		if r, err := DecodeRank(b); err == nil {
			Find([]Rank{r, r, {Rank: 1, State: Ended}}, 3)
			for i := range r.Waits {
				Because(&r.Waits[i], 0, []Rank{r}, 3)
			}
			_ = r.Encode()
		}
	})
}

// TestNotes: what profiles lack is said once, with whose they are.
func TestNotes(t *testing.T) {
	records := []Record{{Rank: 1, Note: "is short"}, {Rank: 0, Note: "is short"}, {Rank: 3, Note: "is away", Partial: true}}
	if notes := Notes(records, 4); !slices.Equal(notes, []string{
		"rank 3: is away", "rank 0, 1: is short",
		"rank 2: nothing is in the profile: the program has not left the cluster by Close",
		"rank 3: the last seconds are not in the profile: the program has not left the cluster by Close",
	}) {
		t.Errorf("notes %q", notes)
	}
}

// TestStandIns: waits with stacks stand for those that are alike and have none, in number, bytes
// and time, and no others; the sum is what it is scaled to.
func TestStandIns(t *testing.T) {
	s := NewStacks()
	one, two := []uintptr{1, 2}, []uintptr{3}
	add := func(access, cause string, stack []uintptr, waits int, each time.Duration) {
		for range waits {
			s.Add(Waits{Kind: Memory, Name: "x", Access: access, Cause: cause, Stack: stack, Count: 1, Bytes: 4096, Time: each})
		}
	}
	add("read", "a", nil, 90, 10)
	add("read", "a", one, 8, 20)
	add("read", "a", two, 2, 70)
	add("read", "b", nil, 5, 100)
	add("write", "a", one, 1, 300)
	if s.Waited() != 900+160+140+500+300 {
		t.Errorf("%v in all", s.Waited())
	}
	s.Scale(4000)
	got := map[string][3]int64{}
	var sum time.Duration
	for _, w := range s.list() {
		got[fmt.Sprint(w.Access, w.Cause, w.Stack)] = [3]int64{w.Count, w.Bytes, int64(w.Time)}
		sum += w.Time
	}
	want := map[string][3]int64{
		// 100 waits of 2400 in all, of which 10 with 300 are known to be 8 and 2, of 160 and 140
		fmt.Sprint("reada", one): {80, 80 * 4096, 1280}, fmt.Sprint("reada", two): {20, 20 * 4096, 1120},
		"readb[]": {5, 5 * 4096, 1000}, fmt.Sprint("writea", one): {1, 4096, 600},
	}
	if !maps.Equal(got, want) || sum != 4000 {
		t.Errorf("%v, %v in all, want %v", got, sum, want)
	}
}

// TestLargeProfile: one that is too large is left away, and that is said.
func TestLargeProfile(t *testing.T) {
	large := &Profile{Frames: []Frame{{Function: strings.Repeat("f", MaxBytes)}}}
	x, err := Decode(Record{Profile: large}.Encode())
	if r := x.Record; err != nil || r.Profile != nil || r.Note == "" {
		t.Errorf("the record is %+v, the error %v", r, err)
	}
}
