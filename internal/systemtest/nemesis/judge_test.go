package nemesis

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"dsmd/dsm"
)

// story makes a history by hand: each operation is called and returns at the given times.
type story []Operation

// by is a client of a rank and life.
func by(rank, life int) client { return client{Rank: rank, Life: life} }

func (s story) at(call, ret int64, who client, place, do string, old, new, got uint64) story {
	return append(s, Operation{client: who, Place: place, Do: do, Old: old, New: new, Result: Result{Got: got}, Call: call, Return: ret})
}

// fromDead is an acquire that came with the news of a death.
func (s story) fromDead(call, ret int64, who client, place string, dead int) story {
	return append(s, Operation{client: who, Place: place, Do: acquire, Result: Result{Got: fromDead, Dead: dead}, Call: call, Return: ret})
}

// TestJudgement: histories that can be explained, and such that can't, of which each shows one
// thing that a broken memory would do.
func TestJudgement(t *testing.T) {
	ann, bob, eve := by(0, 1), by(1, 2), by(2, 3)
	const x, n, l, k, q, mine, yours = "register/0/0", "sum/0/0", "lock/0/0", "map/0/0", "queue/0", "queue/0/0", "queue/0/1"
	const first, second, foreign = 7, 8, 1<<laneBits | 9 // items of ann and bob
	for _, test := range []struct {
		name  string
		story story
		wrong bool
	}{
		{"a key that is changed, deleted and changed", story{}.at(0, 1, ann, k, write, 0, 7, 0).at(2, 3, bob, k, add, 0, 0, 8).at(4, 5, ann, k, write, 0, 0, 0).at(6, 7, bob, k, add, 0, 0, 1), false},
		{"a change of a key that is lost", story{}.at(0, 1, ann, k, write, 0, 7, 0).at(2, 3, bob, k, add, 0, 0, 8).at(4, 5, ann, k, read, 0, 0, 7), true},
		{"items in their order", story{}.at(0, 1, ann, mine, put, 0, first, 0).at(2, 3, ann, mine, put, 0, second, 0).at(4, 5, bob, q, take, 0, 0, first).at(6, 7, ann, q, take, 0, 0, second), false},
		{"in another", story{}.at(0, 1, ann, mine, put, 0, first, 0).at(2, 3, ann, mine, put, 0, second, 0).at(4, 5, bob, q, take, 0, 0, second).at(6, 7, ann, q, take, 0, 0, first), true},
		{"of two who put", story{}.at(0, 1, ann, mine, put, 0, first, 0).at(2, 3, bob, yours, put, 0, foreign, 0).at(4, 5, bob, q, take, 0, 0, foreign).at(6, 7, ann, q, take, 0, 0, first), false},
		{"taken twice", story{}.at(0, 1, ann, mine, put, 0, first, 0).at(4, 5, bob, q, take, 0, 0, first).at(6, 7, ann, q, take, 0, 0, first), true},
		{"taken by one who was killed", story{}.at(0, 1, ann, mine, put, 0, first, 0).at(2, 3, ann, mine, put, 0, second, 0).at(4, unknown, bob, q, take, 0, 0, 0).at(6, 7, ann, q, take, 0, 0, second), false},
		{"taken, and nobody has put it", story{}.at(0, 1, ann, mine, put, 0, first, 0).at(4, 5, bob, q, take, 0, 0, foreign), true},
		{"skipped", story{}.at(0, 1, ann, mine, put, 0, first, 0).at(2, 3, ann, mine, put, 0, second, 0).at(4, 5, bob, q, take, 0, 0, second), true},
		{"what is written is read", story{}.at(0, 1, ann, x, write, 0, 7, 0).at(2, 3, bob, x, read, 0, 0, 7), false},
		{"of two at a time any may be the last", story{}.at(0, 5, ann, x, write, 0, 7, 0).at(1, 4, bob, x, write, 0, 8, 0).at(6, 7, eve, x, read, 0, 0, 7), false},
		{"an old value", story{}.at(0, 1, ann, x, write, 0, 7, 0).at(2, 3, bob, x, read, 0, 0, 0), true},
		{"back and forth", story{}.at(0, 9, ann, x, write, 0, 7, 0).at(1, 2, bob, x, read, 0, 0, 7).at(3, 4, eve, x, read, 0, 0, 0), true},
		{"what nobody has written", story{}.at(0, 1, ann, x, write, 0, 7, 0).at(2, 3, bob, x, read, 0, 0, 9), true},
		{"two have swapped the same", story{}.at(0, 2, ann, x, swap, 0, 1, 1).at(1, 3, bob, x, swap, 0, 2, 1), true},
		{"one has swapped", story{}.at(0, 2, ann, x, swap, 0, 1, 1).at(1, 3, bob, x, swap, 0, 2, 0).at(4, 5, eve, x, read, 0, 0, 1), false},
		{"a write of one who was killed is seen late", story{}.at(0, unknown, ann, x, write, 0, 7, 0).at(1, 2, bob, x, read, 0, 0, 0).at(3, 4, bob, x, read, 0, 0, 7), false},
		{"or never", story{}.at(0, unknown, ann, x, write, 0, 7, 0).at(1, 2, bob, x, read, 0, 0, 0), false},
		{"but does not go away again", story{}.at(0, unknown, ann, x, write, 0, 7, 0).at(1, 2, bob, x, read, 0, 0, 7).at(3, 4, bob, x, read, 0, 0, 0), true},
		{"a swap of one who was killed", story{}.at(0, unknown, ann, x, swap, 0, 7, 0).at(1, 2, bob, x, write, 0, 3, 0).at(3, 4, bob, x, read, 0, 0, 3), false},

		{"sums", story{}.at(0, 3, ann, n, add, 0, 0, 2).at(1, 2, bob, n, add, 0, 0, 1).at(4, 5, eve, n, read, 0, 0, 2), false},
		{"a lost addition", story{}.at(0, 1, ann, n, add, 0, 0, 1).at(2, 3, bob, n, add, 0, 0, 1), true},
		{"an addition too many", story{}.at(0, 1, ann, n, add, 0, 0, 1).at(2, 3, bob, n, read, 0, 0, 2), true},
		{"an addition of one who was killed", story{}.at(0, unknown, ann, n, add, 0, 0, 0).at(2, 3, bob, n, add, 0, 0, 2), false},
		{"two additions of one who was killed in the first", story{}.at(0, unknown, ann, n, add, 0, 0, 0).at(2, 3, bob, n, add, 0, 0, 3), true},

		{"one after another", story{}.at(0, 1, ann, l, acquire, 0, 0, 0).at(2, 3, ann, l, release, 0, 0, 0).at(0, 4, bob, l, acquire, 0, 0, 0), false},
		{"two holders", story{}.at(0, 1, ann, l, acquire, 0, 0, 0).at(2, 3, bob, l, acquire, 0, 0, 0).at(4, 5, ann, l, release, 0, 0, 0), true},
		{"from the dead", story{}.at(0, 1, ann, l, acquire, 0, 0, 0).fromDead(2, 3, bob, l, 0), false},
		{"from one who died when it was about to have it", story{}.at(0, unknown, ann, l, acquire, 0, 0, 0).fromDead(2, 3, bob, l, 0), false},
		{"from one who died when it was about to give it back", story{}.at(0, 1, ann, l, acquire, 0, 0, 0).at(2, unknown, ann, l, release, 0, 0, 0).fromDead(3, 4, bob, l, 0), false},
		{"and who had given it back", story{}.at(0, 1, ann, l, acquire, 0, 0, 0).at(2, unknown, ann, l, release, 0, 0, 0).at(3, 4, bob, l, acquire, 0, 0, 0), false},
		{"from two who waited and died", story{}.at(0, 1, ann, l, acquire, 0, 0, 0).at(2, unknown, bob, l, acquire, 0, 0, 0).at(2, unknown, eve, l, acquire, 0, 0, 0).at(4, 5, ann, l, release, 0, 0, 0), false},
		{"from the dead without a word", story{}.at(0, 1, ann, l, acquire, 0, 0, 0).at(2, 3, bob, l, acquire, 0, 0, 0), true},
		{"from the wrong dead", story{}.at(0, 1, ann, l, acquire, 0, 0, 0).fromDead(2, 3, bob, l, 2), true},
		{"from the dead, whom nobody has killed", story{}.at(0, 1, ann, l, acquire, 0, 0, 0).fromDead(2, 3, bob, l, 0).at(4, 5, ann, l, release, 0, 0, 0), true},
		{"from the dead, told twice", story{}.at(0, 1, ann, l, acquire, 0, 0, 0).fromDead(2, 3, bob, l, 0).at(4, 5, bob, l, release, 0, 0, 0).fromDead(6, 7, eve, l, 0), true},

		{"progress", story{}.at(0, 1, ann, "progress/sor", step, 0, 0, 0), false},
		{"a place of no kind", story{}.at(0, 1, ann, "stack/0", step, 0, 0, 0), true},
	} {
		if got := check(test.story.held(), nil, keeping{}, time.Minute); len(got) > 0 != test.wrong {
			t.Errorf("%s: the judgement is %v, want something wrong: %t", test.name, got, test.wrong)
		}
	}
	two := append(story{}.at(0, 1, ann, x, write, 0, 7, 0), story{}.at(2, 3, bob, "register/0/1", read, 0, 0, 7)...)
	if got := check(two.held(), nil, keeping{}, time.Minute); len(got) != 1 || got[0].place != "register/0/1" {
		t.Errorf("of two places one is wrong, and the judgement is %v", got)
	}
}

// lost is an operation that met a page which was lost with a node.
func (s story) lost(call, ret int64, who client, place, do string, node int) story {
	return append(s, Operation{client: who, Place: place, Do: do, Result: Result{Lost: true, Dead: node}, Call: call, Return: ret})
}

// fromLost is an acquire that came with the news of the loss of a node.
func (s story) fromLost(call, ret int64, who client, place string, node int) story {
	return append(s, Operation{client: who, Place: place, Do: acquire, Result: Result{Got: fromLost, Dead: node}, Call: call, Return: ret})
}

// tried is an acquire that has not waited long enough.
func (s story) tried(call, ret int64, who client, place string) story {
	return append(s, Operation{client: who, Place: place, Do: acquire, Call: call, Return: ret, Void: true})
}

// TestJudgementOfLosses: eve's host is lost at 10, and the others have gone on without it at 20.
func TestJudgementOfLosses(t *testing.T) {
	ann, bob, eve := by(0, 1), by(1, 2), by(2, 3)
	const x, y, far, n, l = "register/0/0", "register/0/4", "register/0/3", "sum/0/0", "lock/0/0"
	const h, ahead = "heap/3/0", "heap/9/0"
	for _, test := range []struct {
		name  string
		story story
		wrong bool
	}{
		{"a page of the heap that may have been read ahead there", story{}.at(0, 1, bob, ahead, write, 0, 7, 0).at(2, 3, eve, h, write, 0, 8, 0).lost(30, 31, ann, ahead, read, 2), false},
		{"a page of the heap that another has used since", story{}.at(0, 1, eve, h, write, 0, 8, 0).at(2, 3, bob, ahead, write, 0, 7, 0).lost(30, 31, ann, ahead, read, 2), true},
		{"what it wrote last", story{}.at(0, 1, bob, x, write, 0, 7, 0).at(2, 3, eve, x, write, 0, 8, 0).lost(30, 31, ann, x, read, 2).lost(32, 33, bob, x, write, 2), false},
		{"a neighbour on the page", story{}.at(0, 1, bob, x, write, 0, 7, 0).at(2, 3, eve, y, write, 0, 8, 0).lost(30, 31, ann, x, read, 2), false},
		{"what it had read last may have moved there", story{}.at(0, 1, bob, x, write, 0, 7, 0).at(2, 3, eve, x, read, 0, 0, 7).lost(30, 31, ann, x, read, 2), false},
		{"what nobody has touched", story{}.lost(30, 31, ann, x, read, 2), false},
		{"what it was about to touch", story{}.at(0, 1, bob, x, write, 0, 7, 0).at(9, unknown, eve, x, read, 0, 0, 0).lost(30, 31, ann, x, read, 2), false},
		{"what lies on another page", story{}.at(0, 1, bob, far, write, 0, 7, 0).at(2, 3, eve, x, read, 0, 0, 0).lost(30, 31, ann, far, read, 2), true},
		{"what another has used since", story{}.at(0, 1, eve, x, write, 0, 7, 0).at(2, 3, bob, x, read, 0, 0, 7).lost(30, 31, ann, x, read, 2), true},
		{"what another has used since, and it may have asked for again", story{}.at(0, 1, eve, x, write, 0, 7, 0).at(2, 3, bob, x, read, 0, 0, 7).at(4, 5, eve, far, write, 0, 9, 0).lost(30, 31, ann, x, read, 2), false},
		{"a neighbour of that", story{}.at(0, 1, eve, x, write, 0, 7, 0).at(2, 3, bob, y, read, 0, 0, 0).lost(30, 31, ann, x, read, 2), true},
		{"with a node that is there", story{}.at(2, 3, eve, x, write, 0, 8, 0).lost(30, 31, ann, x, read, 1), true},
		{"before the node was", story{}.at(2, 3, eve, x, write, 0, 8, 0).lost(4, 5, ann, x, read, 2), true},
		{"a key", story{}.at(2, 3, eve, "map/0/0", write, 0, 8, 0).lost(30, 31, ann, "map/0/0", read, 2), true},
		{"a lane", story{}.at(2, 3, ann, "queue/0/0", put, 0, 8, 0).lost(30, 31, ann, "queue/0/0", put, 2), true},
		{"found again", story{}.at(2, 3, eve, x, write, 0, 8, 0).lost(30, 31, ann, x, read, 2).at(32, 33, bob, x, read, 0, 0, 8), true},
		{"zeros instead", story{}.at(2, 3, eve, x, write, 0, 8, 0).at(30, 31, bob, x, read, 0, 0, 0), true},
		{"old contents instead", story{}.at(0, 1, bob, x, write, 0, 7, 0).at(2, 3, eve, x, write, 0, 8, 0).at(30, 31, ann, x, read, 0, 0, 7), true},
		{"lost after it was used without the node", story{}.at(2, 3, eve, x, write, 0, 8, 0).at(30, 31, bob, x, read, 0, 0, 8).lost(32, 33, ann, x, read, 2), true},
		{"a sum", story{}.at(2, 3, eve, n, add, 0, 0, 1).lost(30, 31, ann, n, add, 2).at(32, 33, ann, n, add, 0, 0, 2), true},
		{"what is done in vain on the lost host", story{}.at(0, 1, bob, x, write, 0, 7, 0).at(12, 13, eve, x, write, 0, 8, 0).at(14, 15, eve, x, read, 0, 0, 8).at(30, 31, ann, x, read, 0, 0, 7), false},

		{"a lock that was held there", story{}.at(0, 1, eve, l, acquire, 0, 0, 0).fromLost(30, 31, bob, l, 2), false},
		{"a lock that was free there", story{}.at(0, 1, eve, l, acquire, 0, 0, 0).at(2, 3, eve, l, release, 0, 0, 0).fromLost(30, 31, bob, l, 2), false},
		{"a lock that it may have got too late", story{}.at(0, 1, bob, l, acquire, 0, 0, 0).at(2, 3, bob, l, release, 0, 0, 0).tried(4, 5, eve, l).fromLost(30, 31, bob, l, 2), false},
		{"a lock that was given back there too late", story{}.at(0, 1, eve, l, acquire, 0, 0, 0).at(11, 12, eve, l, release, 0, 0, 0).fromLost(30, 31, bob, l, 2), false},
		{"a lock that nobody has used", story{}.fromLost(30, 31, bob, l, 2), false},
		{"a lock that was held there, without a word", story{}.at(0, 1, eve, l, acquire, 0, 0, 0).at(30, 31, bob, l, acquire, 0, 0, 0), true},
		{"a lock that is held by somebody else", story{}.at(0, 1, bob, l, acquire, 0, 0, 0).fromLost(30, 31, ann, l, 2).at(32, 33, bob, l, release, 0, 0, 0), true},
		{"a lock that somebody else has had since", story{}.at(0, 1, eve, l, acquire, 0, 0, 0).at(2, 3, eve, l, release, 0, 0, 0).at(4, 5, bob, l, acquire, 0, 0, 0).at(6, 7, bob, l, release, 0, 0, 0).fromLost(30, 31, ann, l, 2), true},
		{"a lock that it was given by one who died, when it was lost already", story{}.at(0, 1, bob, l, acquire, 0, 0, 0).at(5, unknown, eve, l, acquire, 0, 0, 0).fromLost(30, 31, ann, l, 2), false},
		{"but not by one who lives", story{}.at(0, 1, bob, l, acquire, 0, 0, 0).at(5, unknown, eve, l, acquire, 0, 0, 0).fromLost(30, 31, ann, l, 2).at(32, 33, bob, l, release, 0, 0, 0), true},
		{"a lock, told twice", story{}.at(0, 1, eve, l, acquire, 0, 0, 0).fromLost(30, 31, bob, l, 2).at(32, 33, bob, l, release, 0, 0, 0).fromLost(34, 35, ann, l, 2), true},
	} {
		if got := check(test.story.held(), deaths{{host: 2, at: 10, settled: 20}}, keeping{}, time.Minute); len(got) > 0 != test.wrong {
			t.Errorf("%s: the judgement is %v, want something wrong: %t", test.name, got, test.wrong)
		}
	}
}

// TestJudgementOfManyPuts: nobody knows of many puts whether the item is in the queue, as its page
// was lost, nor of many programs that were killed whether they have taken something. That is judged
// at once.
func TestJudgementOfManyPuts(t *testing.T) {
	const many = 60
	const q, lane = "queue/0", "queue/0/0"
	ann, taker := by(0, 1), by(1, 2)
	s := story{}
	for i := range int64(many) {
		s = s.at(100+10*i, 101+10*i, ann, lane, put, 0, uint64(1+i), 0)
		s[len(s)-1].Result = Result{Lost: true, Dead: 2}
		s = s.at(101+10*i, unknown, by(1, 200+int(i)), q, take, 0, 0, 0)
	}
	for i := range int64(many / 2) {
		s = s.at(1000+2*i, 1001+2*i, taker, q, take, 0, 0, uint64(2+2*i))
	}
	s = slices.Clip(s)
	for _, test := range []struct {
		name  string
		story story
		wrong bool
	}{
		{"some of the items", s, false},
		{"one of them twice", s.at(5000, 5001, taker, q, take, 0, 0, 2), true},
		{"one that nobody has put", s.at(5000, 5001, taker, q, take, 0, 0, many+1), true},
	} {
		began := time.Now()
		if got := check(test.story.held(), deaths{{host: 2, at: 10, settled: 20}, {host: 3, at: 10, settled: 20}}, keeping{}, 20*time.Second); len(got) > 0 != test.wrong {
			t.Errorf("%s: the judgement is %v after %v, want something wrong: %t", test.name, got, time.Since(began), test.wrong)
		}
	}
}

// TestJudgementOfManyDoubts: a host goes on with a lock and a word for long while it is being lost,
// and somebody else waits for them all the time. That is judged at once.
func TestJudgementOfManyDoubts(t *testing.T) {
	ann, eve := by(0, 1), by(2, 3)
	const n, l = "sum/0/0", "lock/0/0"
	const often = 200
	s := story{}.fromLost(11, 5000, ann, l, 2).at(5001, 5002, ann, l, release, 0, 0, 0)
	for i := range int64(often) {
		at := 12 + 10*i
		s = s.at(at, at+1, eve, l, acquire, 0, 0, 0).at(at+2, at+3, eve, n, add, 0, 0, uint64(i)+1).at(at+4, at+5, eve, l, release, 0, 0, 0)
	}
	s = slices.Clip(s)
	for _, test := range []struct {
		name  string
		story story
		wrong bool
	}{
		{"what it did before the others went on", s.at(5003, 5004, ann, n, read, 0, 0, 20), false},
		{"of which nothing is left", s.at(5003, 5004, ann, n, read, 0, 0, 0), false},
		{"what it did after that", s.at(5003, 5004, ann, n, read, 0, 0, often), true},
	} {
		if got := check(test.story.held(), deaths{{host: 2, at: 10, settled: 1012}}, keeping{}, 20*time.Second); len(got) > 0 != test.wrong {
			t.Errorf("%s: %d places are wrong, want any: %t", test.name, len(got), test.wrong)
		}
	}
}

// TestJudgementOfReturns: eve's host is lost at 10, and the others have gone on without it at 20.
// It comes back, and at 40 bob's begins to leave; at 50 eve's is lost again, and at 58 bob's has
// left.
func TestJudgementOfReturns(t *testing.T) {
	ann, bob, eve := by(0, 1), by(1, 2), by(2, 3)
	back := client{Rank: 2, Stay: 1, Life: 4}
	const x, l = "register/0/0", "lock/0/0"
	for _, test := range []struct {
		name  string
		story story
		wrong bool
	}{
		{"what it writes when it is back", story{}.at(25, 26, back, x, write, 0, 7, 0).at(30, 31, ann, x, read, 0, 0, 7), false},
		{"is not forgotten", story{}.at(25, 26, back, x, write, 0, 7, 0).at(30, 31, ann, x, read, 0, 0, 0), true},
		{"is not lost at once", story{}.at(25, 26, back, x, write, 0, 7, 0).lost(30, 31, ann, x, read, 2), true},
		{"is lost the second time", story{}.at(25, 26, back, x, write, 0, 7, 0).lost(60, 61, ann, x, read, 2), false},
		{"what it wrote before does not come back", story{}.at(0, 1, eve, x, write, 0, 7, 0).lost(22, 23, ann, x, read, 2).at(25, 26, back, x, read, 0, 0, 7), true},
		{"what has left stays", story{}.at(25, 26, bob, x, write, 0, 7, 0).at(45, 46, ann, x, read, 0, 0, 7), false},
		{"and is not lost", story{}.at(25, 26, bob, x, write, 0, 7, 0).lost(45, 46, ann, x, read, 1), true},
		{"but for whoever has it now", story{}.at(25, 26, bob, x, write, 0, 7, 0).lost(60, 61, ann, x, read, 2), false},
		{"unless another has used it", story{}.at(25, 26, bob, x, write, 0, 7, 0).at(30, 31, ann, x, read, 0, 0, 7).lost(60, 61, ann, x, read, 2), true},
		{"or its use is overtaken", story{}.at(25, 26, bob, x, write, 0, 7, 0).at(30, 31, ann, x, read, 0, 0, 7).lost(48, 61, ann, x, write, 2), false},
		{"before the loss is over", story{}.at(56, 57, ann, x, read, 0, 0, 0).lost(58, 61, ann, x, write, 2), true},
		{"a lock that has left", story{}.at(25, 26, bob, l, acquire, 0, 0, 0).at(27, 28, bob, l, release, 0, 0, 0).fromLost(60, 61, ann, l, 2), false},
		{"is free before", story{}.at(25, 26, bob, l, acquire, 0, 0, 0).at(27, 28, bob, l, release, 0, 0, 0).fromLost(45, 46, ann, l, 2), true},
	} {
		ends := deaths{{host: 2, at: 10, settled: 20}, {host: 1, at: 40, settled: 58, inOrder: true}, {host: 2, stay: 1, at: 50, settled: 55}}
		if got := check(test.story.held(), ends, keeping{}, time.Minute); len(got) > 0 != test.wrong {
			t.Errorf("%s: the judgement is %v, want something wrong: %t", test.name, got, test.wrong)
		}
	}
}

// TestHistory: what a program writes down is what is read, while it writes and after it was killed
// in the middle of a line.
func TestHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	h := newHistory(path, client{Rank: 1, Life: 4})
	read := func() []Operation {
		t.Helper()
		if err := h.follow(); err != nil {
			t.Fatal(err)
		}
		return h.operations()
	}
	if all := read(); len(all) != 0 {
		t.Fatalf("no program has begun, and its history is %v", all)
	}
	r, err := newRecorder(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.file.Close()
	o := Operation{Place: "register/0/3", Do: swap, Old: 1, New: 2}
	if err := r.do(1, o, func() (Result, error) {
		if all := read(); len(all) != 1 || all[0].known() || all[0].Old != 1 || all[0].New != 2 {
			t.Errorf("in the middle of an operation the history is %v", all)
		}
		return Result{Got: 1}, nil
	}); err != nil {
		t.Fatal(err)
	}
	all := read()
	if len(all) != 1 || all[0].client != (client{Rank: 1, Life: 4, Thread: 1}) || !all[0].known() || all[0].Got != 1 || all[0].Return < all[0].Call || h.last[1] != all[0].Return {
		t.Errorf("after an operation the history is %+v", all)
	}
	if err := r.do(0, o, func() (Result, error) { return Result{}, fmt.Errorf("too late: %w", errVoid) }); err != nil {
		t.Errorf("what has not happened is no error, and not %v", err)
	}
	if all := read(); len(all) != 2 || !all[1].Void {
		t.Errorf("what has not happened is in the history as %v", all)
	}
	if err := r.do(0, o, func() (Result, error) { return Result{}, fmt.Errorf("at a door: %w", &dsm.PageLostError{Node: 2}) }); err != nil {
		t.Errorf("a page that is lost is no error, and not %v", err)
	}
	if all := read(); len(all) != 3 || all[2].Result != (Result{Lost: true, Dead: 2}) || !all[2].known() {
		t.Errorf("what met a lost page is in the history as %v", all)
	}
	gone := errors.New("gone")
	if err := r.do(0, o, func() (Result, error) { return Result{}, gone }); !errors.Is(err, gone) {
		t.Errorf("an operation that fails returns %v", err)
	}
	if all := read(); len(all) != 4 || all[3].known() {
		t.Errorf("after an operation that has failed the history is %v", all)
	}
	if _, err := r.stepped(0, "progress/sor", now()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.file.WriteString(`{"op":9,"thre`); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if all := read(); len(all) != 5 {
			t.Errorf("with half a line at its end the history is %v", all)
		}
	}
	if _, err := r.file.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	if err := h.follow(); err == nil || !strings.Contains(err.Error(), "at byte") {
		t.Errorf("a line that is none: %v", err)
	}
}

// TestSlowest: the longest operation is found, and those without an end are not it.
func TestSlowest(t *testing.T) {
	s := story{}.at(0, 4, by(0, 0), "x/0", read, 0, 0, 0).at(1, 9, by(1, 0), "x/1", read, 0, 0, 0).at(2, unknown, by(2, 0), "x/2", read, 0, 0, 0)
	if o := slowest(s); o.Place != "x/1" || o.took() != 8 {
		t.Errorf("the slowest is %v", o)
	}
	if o := slowest(nil); o.took() != 0 {
		t.Errorf("the slowest of none is %v", o)
	}
}

// TestChoose: kinds are found by their names, and no two have the same.
func TestChoose(t *testing.T) {
	chosen, err := Choose(Names(Faults))
	if err != nil || Names(chosen) != Names(Faults) || len(chosen) != len(Faults) {
		t.Errorf("all kinds: %v, %v", chosen, err)
	}
	if chosen, err := Choose("all"); err != nil || Names(chosen) != Names(Faults) {
		t.Errorf("all: %v, %v", chosen, err)
	}
	if _, err := Choose("cut,flood"); err == nil || !strings.Contains(err.Error(), `"flood"`) || !strings.Contains(err.Error(), "pause-program") {
		t.Errorf("a kind that there is not: %v", err)
	}
}

// verdict notes what would fail a test.
type verdict struct {
	testing.TB
	said string
}

func (v *verdict) Error(args ...any)                 { v.said += fmt.Sprintln(args...) }
func (v *verdict) Errorf(format string, args ...any) { v.said += fmt.Sprintf(format+"\n", args...) }

// TestEvidence: what is wrong fails the test, and leaves everything in a folder.
func TestEvidence(t *testing.T) {
	quiet := &verdict{TB: t}
	c := &campaign{Plan: Plan{Workloads: workloads, Hosts: 3}, t: quiet, shared: t.TempDir()}
	path := filepath.Join(c.shared, "register-ann-1.history")
	r, err := newRecorder(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.file.Close()
	for _, o := range []Operation{{Place: "register/0/0", Do: write, New: 7}, {Place: "register/0/0", Do: read}} {
		if err := r.do(0, o, func() (Result, error) { return Result{}, nil }); err != nil {
			t.Fatal(err)
		}
	}
	c.past = []past{{histories: []*history{newHistory(path, client{})}}}
	c.report.fault("cut", "nothing passes")
	c.judge()
	if !strings.Contains(quiet.said, "register/0/0, 2 operations") {
		t.Errorf("of an old value the judgement says %q", quiet.said)
	}
	_, folder, named := strings.Cut(quiet.said, "are in ")
	if folder = strings.TrimSpace(folder); !named || !filepath.IsAbs(folder) {
		t.Fatalf("the folder is not named: %q", quiet.said)
	}
	defer os.RemoveAll(folder)
	for name, want := range map[string]string{
		"report": "cut: nothing passes", "histories/register-ann-1.history": `"do":"read"`, "register-0-0.html": "<html",
	} {
		if text, err := os.ReadFile(filepath.Join(folder, name)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s in the folder (%v) has not %q", name, err, want)
		}
	}
}
