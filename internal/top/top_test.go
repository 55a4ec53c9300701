package top

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"dsmd/internal/attach"

	tea "charm.land/bubbletea/v2"
)

var start = time.Unix(1000, 0)

// pair are two samples of two nodes of a job, two seconds apart.
func pair() (before, after []Sample) {
	cost := func(n uint64, d time.Duration) attach.Cost { return attach.Cost{Count: n, Time: d} }
	sample := func(id uint32, factor uint64) Sample {
		times := func(d time.Duration) time.Duration { return d * time.Duration(factor) }
		s := Sample{
			Socket: fmt.Sprint("@dsmd-0123456789abcdef-", id), Cluster: "0123456789abcdef", Node: id, Nodes: 2, PageBytes: 4096, At: start.Add(times(2 * time.Second)),
			Counters: map[string]uint64{"faults_read": 10 * factor, "faults_write": 300 * factor, "bytes_received": 3 << 20 * factor, "bytes_sent": 4096, "pages": 512, "pages_room": 1024},
			Used:     map[uint32]time.Duration{10 + id: times(500 * time.Millisecond)},
		}
		s.Programs = attach.Programs{PID: 100 + id, Age: times(2 * time.Second), Attached: []attach.Attached{{
			PID: 10 + id, Rank: id, Size: 2, Age: times(2 * time.Second), Program: "solve",
			Waits: [attach.WaitKinds]attach.Cost{cost(1, times(time.Duration(id)*time.Second)), cost(9, times(300*time.Millisecond)), {}, cost(2, times(80*time.Millisecond))},
		}}}
		s.Waits.All = [attach.WaitKinds]attach.Cost{cost(factor, times(time.Second)), cost(100*factor, times(600*time.Millisecond)), {}, cost(2*factor, times(80*time.Millisecond))}
		s.Waits.List = []attach.Awaited{
			{Kind: attach.WaitMemory, Name: "grid", Cost: cost(factor, times(time.Second)), Taken: 4 * factor},
			{Kind: attach.WaitLock, Name: "queue", Cost: cost(50*factor, times(500*time.Millisecond))},
			{Kind: attach.WaitReduction, Name: "error", Cost: cost(2*factor, times(80*time.Millisecond))},
		}
		return s
	}
	return []Sample{sample(0, 1), sample(1, 1)}, []Sample{sample(0, 2), sample(1, 2)}
}

// TestText: what has happened between two samples, with what costs most first.
func TestText(t *testing.T) {
	before, after := pair()
	const want = `  RANK  NODE  PID  COMPUTING  PAGES  LOCKS  BARRIERS  REDUCTIONS  PROGRAM
   1/2     1   11      25.0%  50.0%  15.0%      0.0%        4.0%  solve
   0/2     0   10      25.0%   0.0%  15.0%      0.0%        4.0%  solve

    TIME  WAITS/s  EACH  TAKEN/s  WAITED FOR
  100.0%      1.0    1s      4.0  memory     "grid"
   50.0%       50  10ms           lock       "queue"
   10.0%       50   2ms           lock       (other)
    8.0%      2.0  40ms           reduction  "error"

  NODE  READ/s  WRITE/s  UPGRADE/s    IN/s  OUT/s  MEMORY
   0/2     5.0      150          0  1.5MiB     0B  2.0MiB of 4.0MiB
   1/2     5.0      150          0  1.5MiB     0B  2.0MiB of 4.0MiB
`
	r := Between(before, after)
	if got := r.Text(Choice{Order: ByWaits, Node: -1}); got != want || r.Over != 2*time.Second || len(r.Silent) != 0 {
		t.Errorf("over %v, silent %q:\n%s\nwant:\n%s", r.Over, r.Silent, got, want)
	}
	if got := r.Text(Choice{Order: ByLocks, Node: 1}); strings.Contains(got, "0/2") || strings.Index(got, "queue") > strings.Index(got, "grid") || !strings.Contains(got, "  25.0%       25") {
		t.Errorf("of node 1, by locks:\n%s", got)
	}
	other := Job{Cluster: "other"}
	if got := r.Text(Choice{Order: ByWaits, Node: -1, Job: &other}); got != "" {
		t.Errorf("of another job:\n%s", got)
	}
	// From their beginning, what programs have computed is not known.
	if got := Between(nil, before).Text(Choice{Order: ByRank, Node: -1}); !strings.Contains(got, "   0/2     0   10          ?   0.0%  15.0%") {
		t.Errorf("of the first sample:\n%s", got)
	}
}

// TestJobs: two jobs are told apart, and a daemon that does not answer hides no other.
func TestJobs(t *testing.T) {
	before, after := pair()
	more := after[1]
	more.Cluster, more.Socket, more.Programs.PID = "fedcba9876543210", "@dsmd-fedcba9876543210-1", 7
	more.Programs.Attached = append([]attach.Attached{}, more.Programs.Attached...)
	more.Programs.Attached[0].Job = "night"
	r := Between(before, append(after, more, Sample{Socket: "@dsmd-0123456789abcdef-2", Error: "no answer\x1b"}))
	if jobs := r.Jobs(); fmt.Sprint(jobs) != "[0123456789abcdef fedcba9876543210/night]" {
		t.Errorf("the jobs are %v", jobs)
	}
	text := r.Text(Choice{Order: ByRank, Node: -1})
	if !strings.Contains(text, "             JOB  RANK") || !strings.Contains(text, "\n  fedcba98/night   1/2") || !strings.Contains(text, "\n        01234567   0/2") {
		t.Errorf("both jobs:\n%s", text)
	}
	if len(r.Silent) != 1 || !strings.Contains(r.Silent[0], "@dsmd-0123456789abcdef-2: no answer") || strings.Contains(r.Silent[0], "\x1b") {
		t.Errorf("silent are %q", r.Silent)
	}
}

// TestCommits: who waits for replicated memory to be committed shows that, in a column of its own.
func TestCommits(t *testing.T) {
	before, after := pair()
	after[1].Programs.Attached[0].Waits[attach.WaitCommit].Time = time.Second
	text := Between(before, after).Text(Choice{Order: ByCommits, Node: -1})
	const want = `  RANK  NODE  PID  COMPUTING  PAGES  LOCKS  BARRIERS  REDUCTIONS  COMMITS  PROGRAM
   1/2     1   11      25.0%  50.0%  15.0%      0.0%        4.0%    50.0%  solve
   0/2     0   10      25.0%   0.0%  15.0%      0.0%        4.0%     0.0%  solve
`
	if !strings.HasPrefix(text, want) {
		t.Errorf("got:\n%s", text)
	}
}

// TestNoQuorum: a node at which nothing goes on is named, in the text and on the screen.
func TestNoQuorum(t *testing.T) {
	before, after := pair()
	after[1].Counters["no_quorum"] = 1
	const want = "no quorum: node 1 of 0123456789abcdef: too few nodes are left or can be reached, and its programs wait"
	r := Between(before, after)
	if text := r.Text(Choice{Node: -1}); !strings.HasSuffix(text, "\n\n"+want+"\n") || strings.Count(text, "no quorum") != 1 {
		t.Errorf("the text is\n%s", text)
	}
	if text := r.Text(Choice{Node: 0}); strings.Contains(text, "no quorum") {
		t.Errorf("of the other node:\n%s", text)
	}
	m := &model{choice: Choice{Node: -1}, rates: r, at: start, height: 24}
	if text := m.View().Content; !strings.Contains(text, "\n"+want+"\n") || strings.Count(text, "\n") != 23 {
		t.Errorf("the screen is\n%s", text)
	}
}

// TestLies: a daemon may be anybody's. What it says does nothing to the terminal, and no number
// ends the program.
func TestLies(t *testing.T) {
	const evil = "\x1b[2J\u009b2J\x7f"
	huge := attach.Cost{Count: math.MaxUint64, Time: math.MaxInt64}
	before, after := pair()
	for _, s := range [][]Sample{before, after} {
		s[0].Waits.List = []attach.Awaited{{Kind: attach.WaitLock, Job: evil, Name: evil, Cost: huge, Taken: math.MaxUint64}, {Kind: attach.WaitLock, Cost: attach.Cost{Time: -5}}}
		s[0].Programs.Attached[0].Program, s[0].Programs.Attached[0].Job, s[0].Cluster, s[0].Socket = evil, evil, evil, evil
		s[0].PageBytes, s[0].Counters["pages_room"] = 1<<31, math.MaxUint64
	}
	after[0].Programs.Age, after[0].Programs.Attached[0].Age = -5, math.MinInt64
	after[0].Waits.All = [attach.WaitKinds]attach.Cost{huge, {Time: -1}, huge}
	after[0].Programs.Attached[0].Waits = after[0].Waits.All
	after[0].At = before[0].At // no time has passed
	for _, r := range []*Rates{Between(before, after), Between(after, before), Between(nil, after)} {
		if text := r.Text(Choice{Order: ByWaits, Node: -1}); strings.ContainsAny(text, evil[:1]+"\u009b\x7f") {
			t.Errorf("%q", text)
		}
	}
}

// TestFull: what comes into a full list had cost no more than the last that was in it.
func TestFull(t *testing.T) {
	before, after := pair()
	before[0].Waits.List, after[0].Waits.List = nil, nil
	for i := range attach.MaxAwaited {
		x := attach.Awaited{Kind: attach.WaitLock, Name: fmt.Sprint(i), Cost: attach.Cost{Count: 1, Time: time.Hour}}
		before[0].Waits.List = append(before[0].Waits.List, x)
		after[0].Waits.List = append(after[0].Waits.List, x)
	}
	after[0].Waits.List[7] = attach.Awaited{Kind: attach.WaitLock, Name: "new", Cost: attach.Cost{Count: 2, Time: time.Hour + time.Second}}
	if text := Between(before[:1], after[:1]).Text(Choice{Node: -1}); !strings.Contains(text, `  50.0%      0.5    1s           lock       "new"`) {
		t.Errorf("got:\n%s", text)
	}
}

// TestProcessorTime asks for that of a process that is there, and of one that is not.
func TestProcessorTime(t *testing.T) {
	for began := time.Now(); time.Since(began) < 5*tick; {
	}
	if used, ok := processorTime(os.Getpid()); !ok || used <= 0 || used%tick != 0 {
		t.Errorf("%v, %v", used, ok)
	}
	if used, ok := processorTime(math.MaxInt32); ok {
		t.Errorf("no process has used %v", used)
	}
}

// TestScreen: the screen has as many lines as the terminal, whatever there is to show, and keys
// choose.
func TestScreen(t *testing.T) {
	before, after := pair()
	for i := range 40 {
		for _, s := range [][]Sample{before, after} {
			p := s[0].Programs.Attached[0]
			p.PID, p.Rank = uint32(200+i), uint32(200+i)
			s[0].Programs.Attached = append(s[0].Programs.Attached, p)
		}
	}
	m := &model{choice: Choice{Order: ByWaits, Node: -1}, rates: &Rates{}, ask: func() []Sample { return after }}
	press := func(keys string) string {
		for _, key := range keys {
			m.Update(tea.KeyPressMsg{Code: key, Text: string(key)})
		}
		return m.View().Content
	}
	for _, size := range []tea.WindowSizeMsg{{Width: 80, Height: 24}, {Width: 100, Height: 30}, {Width: 20, Height: 3}, {Width: 1, Height: 1}} {
		m.Update(size)
		m.Update(sampled(before))
		m.Update(m.sample())
		for _, keys := range []string{"", "h", "h"} {
			if lines := strings.Split(press(keys), "\n"); len(lines) > max(size.Height, 3) {
				t.Errorf("%d lines for %d, after %q", len(lines), size.Height, keys)
			}
		}
	}
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	if text := press(""); !strings.Contains(text, "and 3") || !strings.Contains(text, `lock       "queue"`) || !strings.Contains(text, "MEMORY") {
		t.Errorf("80x24:\n%s", text)
	}
	if text := press("snj"); !strings.Contains(text, "job 0123456789abcdef, node 0  by pages") || strings.Contains(text, " 1/2") {
		t.Errorf("one job and node:\n%s", text)
	}
	if text := press("nnjssssssss"); !strings.Contains(text, "all jobs, all nodes  by pages") {
		t.Errorf("all again:\n%s", text)
	}
	press("p")
	m.Update(sampled(nil))
	if text := press(""); !strings.Contains(text, "paused") || !strings.Contains(text, `"queue"`) {
		t.Errorf("paused:\n%s", text)
	}
	press("p")
	m.Update(sampled(nil))
	if text := press(""); !strings.Contains(text, "no daemon of yours answers") {
		t.Errorf("without a daemon:\n%s", text)
	}
	if _, cmd := m.Update(tea.KeyPressMsg{Code: 'q', Text: "q"}); cmd == nil {
		t.Error("q does not quit")
	}
}
