package runstats

import (
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
)

// skewed are two ranks of two nodes: rank 1 computes, and rank 0 waits for it.
func skewed() []Record {
	return []Record{
		{Rank: 1, Node: 1, Wall: 10 * time.Second, CPU: 9 * time.Second, Waits: []Item{{Kind: Barrier, Name: "phase", Count: 4, Time: 100 * time.Millisecond}}},
		{Rank: 0, Wall: 10 * time.Second, CPU: 4 * time.Second, FaultWait: time.Second, Read: 900, Write: 80, Upgrade: 20, Sent: 1 << 20, Received: 3 << 19, Waits: []Item{
			{Kind: Barrier, Name: "phase", Count: 4, Time: 4 * time.Second}, {Kind: Lock, Name: "a \"b\"", Count: 10, Time: 500 * time.Millisecond},
		}, Memory: []Item{{Kind: Memory, Name: "x", Count: 1000, Time: time.Second, Taken: 600}}},
	}
}

const wantSkewed = `
RANK  NODE  SECONDS  THREADS  COMPUTING  PAGES  LOCKS  BARRIERS  PREFETCH  NO CPU  OTHER  READ  WRITE  UPGRADE  SENT    RECEIVED
0     0     10.00    1        40.0%      10.0%  5.0%   40.0%     0.0%      0.0%    5.0%   900   80     20       1.0MiB  1.5MiB
1     1     10.00    1        90.0%      0.0%   0.0%   1.0%      0.0%      0.0%    9.0%   0     0      0        0.0MiB  0.0MiB

WAITED FOR  NAME       SECONDS  OF ALL  TIMES  EACH
barrier     "phase"    4.100    20.5%   8      513ms
memory      "x"        1.000    5.0%    1000   1ms
lock        "a \"b\""  0.500    2.5%    10     50ms
barrier "phase": rank 1 comes last (it waited 100ms there, rank 0 4s): give it less to do
memory "x": others write to its pages while they are in use here: give each rank whole pages (pad, or dsm.Isolate), or add up locally first
--stats knows nothing of those who have not left the cluster by Close: rank 2
`

// TestReport: what a report looks like.
func TestReport(t *testing.T) {
	if got := "\n" + strings.Join(Report(skewed(), 3), "\n") + "\n"; got != wantSkewed {
		t.Errorf("%s\nwant%s", got, wantSkewed)
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
		{Record{Wall: time.Second, Queue: time.Second, Waits: []Item{{Kind: Lock, Time: time.Second}, {Kind: Prefetch, Time: time.Second}}}, 3, 0},
	} {
		s := divide(&test.r)
		sum := s.computing + s.pages + s.locks + s.barriers + s.prefetch + s.processor + s.other
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

// TestAdvice: what the figures say of each kind.
func TestAdvice(t *testing.T) {
	for want, c := range map[string]cost{
		"whole pages":  {Item: Item{Kind: Memory, Count: 100, Taken: 26}},
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
	back, _, err := Decode(b)
	if err != nil || len(b) > MaxBytes || strings.Count(string(b), "\n") != 1 || len(back.Waits) != MaxItems+1 || back.Waits[0].Time != 999 {
		t.Fatalf("%d bytes with %d waits, %v", len(b), len(back.Waits), err)
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

// FuzzDecode: whatever a program says, there is a report.
func FuzzDecode(f *testing.F) {
	for _, r := range skewed() {
		f.Add(r.Encode())
	}
	f.Add([]byte(`{"rank":-1,"wall_ns":-5,"cpu_ns":9223372036854775807,"waits":[{"kind":"x","count":0,"ns":-1}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		switch r, s, err := Decode(b); {
		case err != nil:
		case r != nil:
			Report([]Record{*r, *r}, 3)
		default:
			Explain([]Stuck{*s, *s}, []int{s.Rank})
		}
	})
}

func here() []uintptr {
	pcs := make([]uintptr, 8)
	return pcs[:runtime.Callers(2, pcs)]
}

// TestProfile: what ranks have waited for becomes one profile, with its things, lines and ranks,
// and times that were known only in all are divided by counts.
func TestProfile(t *testing.T) {
	var records []Record
	for rank := range 2 {
		s := NewStacks()
		for range 3 {
			s.Add(Lock, "a", here(), 1, 10)
		}
		s.Add(Memory, "x", here(), 30, 0)
		s.Add(Memory, "x", nil, 10, 0)
		s.Divide(Memory, map[string]time.Duration{"x": 400, "y": 5})
		data, err := s.Profile(rank)
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, Record{Rank: 1 - rank, Profile: data, Note: "is short"})
	}
	merged, err := Merge(append(records, Record{Rank: 7, Note: "is away"}))
	if err != nil {
		t.Fatal(err)
	}
	p, err := profile.ParseData(merged)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]int64{}
	for _, s := range p.Sample {
		key := s.Label["rank"][0] + s.Location[0].Line[0].Function.Name
		if len(s.Location) > 1 {
			line := s.Location[1].Line[0]
			key += fmt.Sprint(" in ", line.Function.Name, line.Line > 0)
		}
		got[key] = s.Value
	}
	want := map[string][]int64{}
	for rank := range 2 {
		want[fmt.Sprintf("%d[lock \"a\"] in dsmd/internal/runstats.TestProfiletrue", rank)] = []int64{3, 30}
		want[fmt.Sprintf("%d[memory \"x\"] in dsmd/internal/runstats.TestProfiletrue", rank)] = []int64{30, 300}
		want[fmt.Sprintf("%d[memory \"x\"]", rank)] = []int64{10, 100}
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("the profile has %v, want %v", got, want)
	}
	if notes := Notes(append(records, Record{Rank: 7, Note: "is away"})); !slices.Equal(notes, []string{"rank 7: is away", "rank 0, 1: is short"}) {
		t.Errorf("notes %q", notes)
	}
}

// TestBadProfiles: one that is none, or none at all, is an error that says whose.
func TestBadProfiles(t *testing.T) {
	if _, err := Merge([]Record{{Rank: 3, Profile: []byte("x")}}); err == nil || !strings.Contains(err.Error(), "rank 3") {
		t.Errorf("of bytes that are no profile: %v", err)
	}
	if _, err := Merge([]Record{{}}); err == nil {
		t.Error("there is a profile of nothing")
	}
	if r, _, err := Decode(Record{Profile: make([]byte, MaxBytes)}.Encode()); err != nil || r.Profile != nil || r.Note == "" {
		t.Errorf("one that is too large: %d bytes, note %q, %v", len(r.Profile), r.Note, err)
	}
}

// waits is a rank that has waited for one thing, and has some locks.
func waits(rank int, kind Kind, name, at string, holds ...string) Stuck {
	return Stuck{Rank: rank, Waits: []Waiting{{Kind: kind, Name: name, At: at}}, Holds: holds}
}

// TestExplain: what is said when nothing moves.
func TestExplain(t *testing.T) {
	for name, test := range map[string]struct {
		stuck []Stuck
		ended []int
		want  string
	}{
		"two locks": {[]Stuck{waits(1, Lock, "a", "main.go:9", "b"), waits(0, Lock, "b", "main.go:7", "a")}, nil,
			`rank 0 waits for lock "b" (main.go:7), which rank 1 has
rank 1 waits for lock "a" (main.go:9), which rank 0 has
ranks 0, 1 wait for each other, for the locks "b", "a": take locks in the same order everywhere`},
		"three locks, and who waits for one of them": {[]Stuck{waits(0, Lock, "a", ""), waits(1, Lock, "b", "", "a"), waits(2, Lock, "c", "", "b"), waits(3, Lock, "a", "", "c")}, nil,
			`rank 0 waits for lock "a", which rank 1 has
rank 1 waits for lock "b", which rank 2 has
rank 2 waits for lock "c", which rank 3 has
rank 3 waits for lock "a", which rank 1 has
ranks 1, 2, 3 wait for each other, for the locks "b", "c", "a": take locks in the same order everywhere`},
		"a missing rank": {[]Stuck{waits(2, Barrier, "x", "m.go:1"), waits(0, Barrier, "y", ""), waits(1, Barrier, "x", "")}, []int{4, 3},
			`rank 0 waits at barrier "y", where rank 1 is not, rank 2 is not, rank 3 has ended, rank 4 has ended
rank 1 waits at barrier "x", where rank 0 is not, rank 3 has ended, rank 4 has ended
rank 2 waits at barrier "x" (m.go:1), where rank 0 is not, rank 3 has ended, rank 4 has ended`},
		"a lock of nobody, its own, a page": {[]Stuck{waits(0, Lock, "z", ""), waits(1, Lock, "w", "", "w"), waits(2, Prefetch, "p", "")}, nil,
			`rank 0 waits for lock "z", which none of those has who wait
rank 1 waits for lock "w", which it has itself
rank 2 waits for prefetch "p"`},
	} {
		if got := strings.Join(Explain(test.stuck, test.ended), "\n"); got != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, test.want)
		}
	}
}

// TestStatements: what a rank says is read as what it is, and the rest is an error.
func TestStatements(t *testing.T) {
	s := waits(3, Lock, strings.Repeat("x", 1000), "a.go:1", "b")
	if r, back, err := Decode(s.Encode()); err != nil || r != nil || back.Rank != 3 || len(back.Waits[0].Name) != maxName {
		t.Errorf("%v, %+v, %v", r, back, err)
	}
	if r, back, err := Decode(Record{Rank: 2}.Encode()); err != nil || back != nil || r.Rank != 2 {
		t.Errorf("%v, %+v, %v", r, back, err)
	}
	for _, bad := range []string{"", "x", "{}", `{"record":{},"stuck":{}}`, `{"record":7}`} {
		if _, _, err := Decode([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
