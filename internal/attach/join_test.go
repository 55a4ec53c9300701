package attach

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestJoinCounters: reactors count for themselves, and a program is told the sums.
func TestJoinCounters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sums := map[string]uint64{}
		var payloads [2][]byte
		for i := range payloads {
			var list []Counter
			for n := range rapid.IntRange(0, MaxCounters).Draw(t, "counters") {
				if rapid.Bool().Draw(t, "has") {
					c := Counter{fmt.Sprint("c", n), rapid.Uint64Range(0, 1<<40).Draw(t, "value")}
					list, sums[c.Name] = append(list, c), sums[c.Name]+c.Value
				}
			}
			payloads[i] = AppendCounters(nil, list)
		}
		got, err := DecodeCounters(mustJoin(t, OpStats, payloads))
		if err != nil || len(got) != len(sums) {
			t.Fatalf("%d counters, %v; want %d", len(got), err, len(sums))
		}
		for _, c := range got {
			if c.Value != sums[c.Name] {
				t.Fatalf("%s is %d, want %d", c.Name, c.Value, sums[c.Name])
			}
		}
	})
}

// TestJoinUsage: each reactor has some pages of every allocation, all know how large that is, and
// each lists as many as fit. What is held of all together is the sum.
func TestJoinUsage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SampledFrom([]int{0, 1, 7, MaxAllocations, MaxAllocations + 5}).Draw(t, "allocations")
		few := rapid.Map(rapid.Uint64Range(0, 9), func(n uint64) Held { return Held{Owned: n, Copies: n / 2, Spilled: n / 3} })
		var want Held
		var payloads [2][]byte
		for i := range payloads {
			var u Usage
			for n := range all {
				h := few.Draw(t, "held")
				want.add(h)
				h.Pages = uint64(2*MaxAllocations - n)
				x := AllocationUsage{Name: "a", First: uint64(1000 * n), Held: h}
				if n < MaxAllocations {
					u.Largest = append(u.Largest, x)
				} else {
					u.Add(&x)
				}
			}
			u.Foreign = few.Draw(t, "foreign")
			want.add(u.Foreign)
			payloads[i] = AppendUsage(nil, &u)
		}
		got, err := DecodeUsage(mustJoin(t, OpUsage, payloads))
		if err != nil || len(got.Largest) != min(all, MaxAllocations) || int(got.More) != all-len(got.Largest) {
			t.Fatalf("%d allocations and %d more, %v; want %d", len(got.Largest), got.More, err, all)
		}
		sum := got.Foreign
		for n, x := range got.Largest {
			if x.First != uint64(1000*n) || x.Pages != uint64(2*MaxAllocations-n) {
				t.Fatalf("allocation %d: %+v", n, x)
			}
			x.Pages = 0
			sum.add(x.Held)
		}
		rest := got.Rest
		rest.Pages = 0
		sum.add(rest)
		if sum != want {
			t.Fatalf("%+v is held, want %+v", sum, want)
		}
	})
}

// TestJoinPrograms: each program's waits are added to its own, also where the daemon knows the
// number of no process, and a program that one reactor knows already, or still, does no harm.
func TestJoinPrograms(t *testing.T) {
	of := func(job string, rank uint32, waits uint64) Attached {
		x := Attached{Rank: rank, Size: 4, Job: job}
		x.Waits[WaitMemory] = Cost{waits, time.Duration(waits) * time.Second}
		return x
	}
	a := Programs{Attached: []Attached{of("j", 0, 1), of("j", 1, 2), of("k", 1, 4)}}
	b := Programs{Attached: []Attached{of("k", 1, 8), of("j", 1, 16), of("j", 3, 32)}}
	got, err := DecodePrograms(mustJoin(t, OpPrograms, [2][]byte{AppendPrograms(nil, &a), AppendPrograms(nil, &b)}))
	if want := []Attached{of("j", 0, 1), of("j", 1, 18), of("k", 1, 12)}; err != nil || !slices.Equal(got.Attached, want) {
		t.Errorf("got %+v, %v; want %+v", got.Attached, err, want)
	}
}

// TestJoinWaits: waits are added by what is waited for, and those that cost most are listed.
func TestJoinWaits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var want Waits
		sums := map[string]Cost{}
		var payloads [2][]byte
		for i := range payloads {
			var w Waits
			shift := i * rapid.IntRange(0, 20).Draw(t, "shift")
			for n := range rapid.IntRange(0, MaxAwaited).Draw(t, "list") {
				if !rapid.Bool().Draw(t, "has") {
					continue
				}
				x := Awaited{Name: fmt.Sprint("a", n+shift), Cost: Cost{1, time.Duration(rapid.IntRange(1, 1000).Draw(t, "time"))}, Taken: 2}
				w.List, w.Taken = append(w.List, x), w.Taken+x.Taken
				w.All[WaitMemory].Add(x.Cost)
				sums[x.Name] = Cost{sums[x.Name].Count + 1, sums[x.Name].Time + x.Time}
			}
			want.Taken += w.Taken
			want.All[WaitMemory].Add(w.All[WaitMemory])
			payloads[i] = AppendWaits(nil, &w)
		}
		got, err := DecodeWaits(mustJoin(t, OpWaits, payloads))
		if err != nil || got.All != want.All || got.Taken != want.Taken || len(got.List) != min(len(sums), MaxAwaited) {
			t.Fatalf("%+v, %v; want %+v and %d in the list", got, err, want, min(len(sums), MaxAwaited))
		}
		if !slices.IsSortedFunc(got.List, func(a, b Awaited) int { return int(b.Time - a.Time) }) {
			t.Fatalf("not by what they cost: %+v", got.List)
		}
		for _, x := range got.List {
			if x.Cost != sums[x.Name] {
				t.Fatalf("%s costs %+v, want %+v", x.Name, x.Cost, sums[x.Name])
			}
		}
	})
}

func mustJoin(t interface{ Fatalf(string, ...any) }, op Op, payloads [2][]byte) []byte {
	joined, err := JoinAnswers(op, payloads[0], payloads[1])
	if err != nil {
		t.Fatalf("%v: %v", op, err)
	}
	return joined
}

// FuzzJoinAnswers: what reactors answer is joined to an answer, whatever they say.
func FuzzJoinAnswers(f *testing.F) {
	f.Add(uint8(0), AppendCounters(nil, []Counter{{"a", 1}}), AppendCounters(nil, []Counter{{"a", 1}, {"b", 2}}))
	f.Add(uint8(1), AppendUsage(nil, &Usage{Largest: []AllocationUsage{{Name: "a"}}}), AppendUsage(nil, &Usage{More: 3}))
	f.Add(uint8(2), AppendPrograms(nil, &Programs{Attached: []Attached{{Job: "j"}}}), AppendPrograms(nil, &Programs{}))
	f.Add(uint8(3), AppendWaits(nil, &Waits{List: []Awaited{{Kind: WaitLock, Name: "a"}}}), AppendWaits(nil, &Waits{Taken: 1}))
	ops := []Op{OpStats, OpUsage, OpPrograms, OpWaits}
	f.Fuzz(func(t *testing.T, which uint8, a, b []byte) {
		op := ops[int(which)%len(ops)]
		joined, err := JoinAnswers(op, a, b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("error %v is not ErrMalformed", err)
			}
			return
		}
		if len(joined) > MaxPayload {
			t.Fatalf("the answers to %v are %d bytes together", op, len(joined))
		}
		if _, err := JoinAnswers(op, joined, joined); err != nil {
			t.Fatalf("what is joined of answers to %v is none: %v", op, err)
		}
	})
}
