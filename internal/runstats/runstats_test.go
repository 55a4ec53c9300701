package runstats

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// skewed are two ranks of two nodes: rank 1 computes, and rank 0 waits for it.
func skewed() []Record {
	return []Record{
		{Rank: 1, Node: 1, Wall: 10 * time.Second, CPU: 9 * time.Second, Waits: []Item{{Kind: Barrier, Name: "phase", Count: 4, Time: 100 * time.Millisecond}}},
		{Rank: 0, Wall: 10 * time.Second, CPU: 4 * time.Second, FaultWait: time.Second, Faults: 1000, Read: 900, Write: 80, Upgrade: 20, Sent: 1 << 20, Received: 3 << 19, Waits: []Item{
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
}

// TestRecordIsBounded: a record goes into a pipe at once, with what took longest.
func TestRecordIsBounded(t *testing.T) {
	var r Record
	for i := range 1000 {
		r.Waits = append(r.Waits, Item{Kind: Lock, Name: fmt.Sprintf("%d%s", i, strings.Repeat("\xff\n", 1000)), Time: time.Duration(i)})
	}
	b := r.Encode()
	back, err := Decode(b)
	if err != nil || len(b) > MaxBytes || strings.Count(string(b), "\n") != 1 || len(back.Waits) == 0 || back.Waits[0].Time != 999 {
		t.Errorf("%d bytes with %d waits, %v", len(b), len(back.Waits), err)
	}
}

// FuzzDecode: whatever a program says, there is a report.
func FuzzDecode(f *testing.F) {
	for _, r := range skewed() {
		f.Add(r.Encode())
	}
	f.Add([]byte(`{"rank":-1,"wall_ns":-5,"cpu_ns":9223372036854775807,"waits":[{"kind":"x","count":0,"ns":-1}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := Decode(b); err == nil {
			Report([]Record{r, r}, 3)
		}
	})
}
