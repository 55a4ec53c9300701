package runstats

import (
	"strings"
	"testing"
	"time"
)

// waits is a rank that has waited for 20 seconds for one thing, and has some locks. A thing's first
// letter is its identity.
func waits(rank int, kind Kind, name, at string, holds ...string) Rank {
	r := Rank{Rank: rank, Waits: []Wait{{Kind: kind, Name: name, Object: uint64(name[0]), For: 20 * time.Second, At: at, Parties: 5, Ranks: true}}}
	for _, h := range holds {
		lock, line, _ := strings.Cut(h, "@")
		r.Holds = append(r.Holds, Held{Object: uint64(lock[0]), For: 30 * time.Second, At: line})
	}
	return r
}

const all = "nothing moves: no rank computes, and all wait\n"

// allBut is what is said instead when nothing is known of some ranks.
func allBut(unknown string) string {
	return "nothing moves, as far as is known: nothing is known of " + unknown + ", no other computes, and all others wait\n"
}

// TestFind: what is said when nothing moves, or a part of a job does not.
func TestFind(t *testing.T) {
	page := Rank{Rank: 1, State: Silent, Pages: []Pages{{Page: 17, Memory: "counts", From: 3, For: 12 * time.Second}}}
	late := waits(1, Lock, "a", "m.go:1")
	late.Waits[0].For = 61 * time.Second
	young := waits(1, Lock, "a", "")
	young.Waits[0].For = time.Millisecond
	allocates, allocated := waits(1, Allocating, "grid", ""), waits(1, Allocating, "grid", "")
	allocates.Waits[0].For = 2 * time.Second
	commits := waits(1, Lock, "a", "")
	commits.Waits = append(commits.Waits, Wait{Kind: Committing, Name: "replicated memory", For: 9 * time.Second})
	takes := waits(1, Announced, `for an item of queue "jobs"`, "m.go:1")
	takes.Waits[0].For = 61 * time.Second
	acquires := waits(0, Barrier, "permits/0", "")
	acquires.Waits[0].Ranks = false
	acquires.Waits = append(acquires.Waits, waits(0, Announced, `for permits of semaphore "permits"`, "m.go:2").Waits...)
	loops := waits(1, Reduction, "sweep", "m.go:3")
	loops.Waits = append(loops.Waits, waits(1, Announced, `at the end of a loop of team "sweep"`, "m.go:3").Waits...)
	loops.Waits[1].Ranks = false
	busy := waits(1, Lock, "a", "")
	busy.Computes = true
	for name, test := range map[string]struct {
		ranks []Rank
		size  int
		want  string
	}{
		"two locks": {[]Rank{waits(1, Lock, "a", "main.go:9", "b@main.go:8"), waits(0, Lock, "b", "main.go:7", "a@main.go:6")}, 2, all +
			`rank 0 waits for lock "b" (main.go:7), held by rank 1 since 30s at main.go:8, which waits for lock "a" (main.go:9)
rank 1 waits for lock "a" (main.go:9), held by rank 0 since 30s at main.go:6, which waits for lock "b" (main.go:7)
ranks 0, 1 wait for each other, for the locks "b", "a": take locks in the same order everywhere`},
		"three locks, and who waits for one of them": {[]Rank{waits(0, Lock, "a", ""), waits(1, Lock, "b", "", "a"), waits(2, Lock, "c", "", "b"), waits(3, Lock, "a", "", "c")}, 4, all +
			`rank 0 waits for lock "a", held by rank 1 since 30s, which waits for lock "b"
rank 1 waits for lock "b", held by rank 2 since 30s, which waits for lock "c"
rank 2 waits for lock "c", held by rank 3 since 30s, which waits for lock "a"
rank 3 waits for lock "a", held by rank 1 since 30s, which waits for lock "b"
ranks 1, 2, 3 wait for each other, for the locks "b", "c", "a": take locks in the same order everywhere`},
		"missing ranks, a barrier and a reduction": {[]Rank{waits(2, Barrier, "x", "m.go:1"), waits(0, Reduction, "y", ""), waits(1, Barrier, "x", ""), {Rank: 3, State: Ended}}, 4, all +
			`rank 0 waits in reduction "y" for 3 of 4 ranks: rank 1 waits at barrier "x"; rank 2 waits at barrier "x" (m.go:1); rank 3 has ended
rank 1 waits at barrier "x" for 2 of 4 ranks: rank 0 waits in reduction "y"; rank 3 has ended
rank 2 waits at barrier "x" (m.go:1) for 2 of 4 ranks: rank 0 waits in reduction "y"; rank 3 has ended
ranks 0, 1 wait for each other`},
		"a lock and a barrier": {[]Rank{waits(0, Barrier, "x", ""), waits(1, Lock, "a", ""), waits(2, Barrier, "x", "", "a")}, 3, all +
			`rank 0 waits at barrier "x" for rank 1 of 3, which waits for lock "a"
rank 1 waits for lock "a", held by rank 2 since 30s, which waits at barrier "x"
rank 2 waits at barrier "x" for rank 1 of 3, which waits for lock "a"
ranks 1, 2 wait for each other`},
		"a lock of nobody, its own, a prefetch": {[]Rank{waits(0, Lock, "z", ""), waits(1, Lock, "w", "", "w"), waits(2, Prefetch, "p", "")}, 3, all +
			`rank 0 waits for lock "z", which no rank of the job has now
rank 1 waits for lock "w", held by this rank itself since 30s
rank 2 waits for prefetch "p"`},
		"a page": {[]Rank{waits(0, Barrier, "x", ""), page}, 2, all +
			`rank 0 waits at barrier "x" for rank 1 of 2, which waits for page 17, of "counts", which it has asked node 3 for 12s ago
rank 1 waits for page 17, of "counts", which it has asked node 3 for 12s ago`},
		"pages that no node was asked for": {[]Rank{
			{Rank: 0, State: Silent, Pages: []Pages{{Page: 17, Memory: "counts", Stage: Parked, For: 12 * time.Second}}},
			{Rank: 1, State: Silent, Pages: []Pages{{Page: 18, Stage: OnDisk, For: 11 * time.Second}}},
			{Rank: 2, State: Silent, Pages: []Pages{{Page: 19, Stage: Busy, For: 11 * time.Second}}},
			{Rank: 3, State: Silent, Pages: []Pages{{Page: 20, From: -1, For: 11 * time.Second}}},
		}, 4, all + `rank 0 waits for page 17, of "counts" since 12s, which its node does not ask for yet, for want of room or a quorum, or in a recovery
rank 1 waits for page 18 since 11s, which its node has on a disk, or waits for one
rank 2 waits for page 19 since 11s, which its node copies to its backups first, or gives up, or which is pinned
rank 3 waits for page 20 since 11s, of which other nodes have not given up their copies`},
		"a rank that never came": {[]Rank{waits(0, Barrier, "x", "")}, 2, allBut("rank 1") +
			`rank 0 waits at barrier "x" for rank 1 of 2, which is not here, or its node does not answer`},
		"ranks that never came, and one that has ended": {[]Rank{waits(0, Barrier, "x", ""), {Rank: 1, State: Ended}}, 4, allBut("ranks 2, 3") +
			`rank 0 waits at barrier "x" for 3 of 4 ranks: rank 1 has ended; rank 2 is not here, or its node does not answer; rank 3 is not here, or its node does not answer`},
		"one that computes":           {[]Rank{waits(0, Barrier, "x", ""), {Rank: 1, Computes: true}}, 2, ""},
		"one that computes and waits": {[]Rank{waits(0, Barrier, "x", ""), busy}, 2, ""},
		"one that allocates":          {[]Rank{waits(0, Barrier, "x", ""), allocates}, 2, ""},
		"one of which a part commits": {[]Rank{waits(0, Barrier, "x", ""), commits}, 2, ""},
		"one that allocates for long": {[]Rank{waits(0, Barrier, "x", ""), allocated}, 2, all +
			`rank 0 waits at barrier "x" for rank 1 of 2, which waits for allocation "grid"
rank 1 waits for allocation "grid"`},
		"one that takes, while others go on": {[]Rank{{Rank: 0, Computes: true}, takes}, 2, ""},
		"what is announced": {[]Rank{acquires, takes}, 2, all +
			`rank 0 waits for permits of semaphore "permits" (m.go:2)
rank 1 waits for an item of queue "jobs" (m.go:1)`},
		"a barrier, for one that takes": {[]Rank{waits(0, Barrier, "x", ""), takes}, 2, all +
			`rank 0 waits at barrier "x" for rank 1 of 2, which waits for an item of queue "jobs" (m.go:1)
rank 1 waits for an item of queue "jobs" (m.go:1)`},
		"an announced meeting": {[]Rank{waits(0, Lock, "a", "m.go:1", "a"), loops, {Rank: 2, State: Ended}}, 3, all +
			`rank 0 waits for lock "a" (m.go:1), held by this rank itself since 30s
rank 1 waits at the end of a loop of team "sweep" (m.go:3) for 2 of 3 ranks: rank 0 waits for lock "a" (m.go:1); rank 2 has ended`},
		"one that has just come": {[]Rank{waits(0, Barrier, "x", ""), young}, 2, ""},
		"a part": {[]Rank{{Rank: 0, Computes: true, Holds: []Held{{Object: 'a', For: 62 * time.Second}}}, late}, 2,
			`rank 1 has waited 1m1s for lock "a" (m.go:1), held by rank 0 since 1m2s, which computes`},
	} {
		h := Find(test.ranks, test.size)
		if got := strings.Join(h.Lines, "\n"); got != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, test.want)
		}
		for i := range test.ranks {
			for j := range test.ranks[i].Waits {
				test.ranks[i].Waits[j].For += time.Hour
			}
			for j := range test.ranks[i].Holds {
				test.ranks[i].Holds[j].For += time.Hour
			}
		}
		if again := Find(test.ranks, test.size); test.want != "" && again.Key != h.Key {
			t.Errorf("%s: an hour later the key is another:\n%s\nbefore\n%s", name, again.Key, h.Key)
		}
	}
}

// TestBecause: what the error of a wait says.
func TestBecause(t *testing.T) {
	lock, barrier := waits(0, Lock, "a", "").Waits[0], waits(0, Barrier, "x", "").Waits[0]
	parties := barrier
	parties.Ranks = false
	reader := Rank{Rank: 2, Holds: []Held{{Object: 'a', For: time.Second, Read: true}}}
	second := reader
	second.Rank = 1
	for want, got := range map[string]string{
		`for lock "a", held by rank 2 since 30s at main.go:41`:           Because(&lock, 0, []Rank{{Rank: 2, Holds: waits(2, Lock, "b", "", "a@main.go:41").Holds}}, 3),
		`for lock "a", held for reading by ranks 1, 2 since 1s`:          Because(&lock, 0, []Rank{reader, second}, 3),
		`for lock "a", which none has who answers; rank 1 does not`:      Because(&lock, 0, []Rank{{Rank: 1, State: Silent}}, 3),
		`at barrier "x" for rank 1 of 2, which has ended`:                Because(&barrier, 0, []Rank{waits(0, Barrier, "x", ""), {Rank: 1, State: Ended}}, 2),
		`at barrier "x" for rank 1 of 2, which computes`:                 Because(&barrier, 0, []Rank{waits(0, Barrier, "x", ""), {Rank: 1, Computes: true}}, 2),
		`at barrier "x" for rank 1 of 2, which waits for lock "i" (m:3)`: Because(&barrier, 0, []Rank{waits(0, Barrier, "x", ""), waits(1, Lock, "i", "m:3")}, 2),
		`at barrier "x", where 1 of 5 parties are`:                       Because(&parties, 0, []Rank{waits(0, Barrier, "x", "")}, 2),
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestStatements: what a rank says is read as what it is, and the rest is an error.
func TestStatements(t *testing.T) {
	h := Hang{Lines: []string{"a", strings.Repeat("x", 1<<20)}, Key: "k"}
	if x, err := Decode(h.Encode()); err != nil || x.Record != nil || x.Piece != nil || x.Hang.Lines[0] != "a" || len(x.Hang.Lines[1]) > MaxBytes/2 || x.Hang.Key != "k" {
		t.Errorf("%+v, %v", x, err)
	}
	if x, err := Decode(Record{Rank: 2}.Encode()); err != nil || x.Hang != nil || x.Piece != nil || x.Record.Rank != 2 {
		t.Errorf("%+v, %v", x, err)
	}
	if x, err := Decode(Piece{Rank: 4}.Encode()); err != nil || x.Hang != nil || x.Record != nil || x.Piece.Rank != 4 {
		t.Errorf("%+v, %v", x, err)
	}
	for _, bad := range []string{"", "x", "{}", `{"record":{},"hang":{}}`, `{"piece":{},"hang":{}}`, `{"record":7}`} {
		if _, err := Decode([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	r := waits(3, Lock, strings.Repeat("x", 1000), strings.Repeat("f", 1000), "b")
	for range 1000 {
		r.Waits, r.Holds = append(r.Waits, r.Waits[0]), append(r.Holds, r.Holds[0])
	}
	b := r.Encode()
	if back, err := DecodeRank(b); err != nil || len(b) > MaxRankBytes || len(back.Waits) == 0 || back.Holds[0] != r.Holds[0] {
		t.Errorf("%d bytes, %+v, %v", len(b), back, err)
	}
	if _, err := DecodeRank([]byte("{")); err == nil {
		t.Error("half a rank is taken")
	}
}
