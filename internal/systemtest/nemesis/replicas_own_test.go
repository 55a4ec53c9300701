package nemesis

import (
	"testing"
	"time"
)

// TestJudgementOfReplicas: eve's host is lost at 10, and the others have gone on without it at 20;
// bob's is lost at 40.
func TestJudgementOfReplicas(t *testing.T) {
	ann, bob, eve := by(0, 1), by(1, 2), by(2, 3)
	const x, y = "replica/0/0", "replica/0/4"
	for _, test := range []struct {
		name  string
		story story
		wrong bool
	}{
		{"what it wrote last is there", story{}.at(0, 1, bob, x, write, 0, 7, 0).at(2, 3, eve, x, write, 0, 8, 0).at(30, 31, ann, x, read, 0, 0, 8), false},
		{"and is not lost", story{}.at(0, 1, bob, x, write, 0, 7, 0).at(2, 3, eve, x, write, 0, 8, 0).lost(30, 31, ann, x, read, 2), true},
		{"nor a neighbour on the page", story{}.at(2, 3, eve, y, swap, 0, 8, 1).lost(30, 31, ann, x, read, 2), true},
		{"nor what was there before", story{}.at(0, 1, eve, x, write, 0, 8, 0).at(2, 3, eve, x, write, 0, 9, 0).at(30, 31, ann, x, read, 0, 0, 8), true},
		{"what it was about to write is there or not", story{}.at(0, 1, eve, x, write, 0, 7, 0).at(9, 11, eve, x, write, 0, 8, 0).at(30, 31, ann, x, read, 0, 0, 7), false},
		{"but what was written before is", story{}.at(0, 1, eve, x, write, 0, 7, 0).at(9, 11, eve, x, write, 0, 8, 0).lost(30, 31, ann, x, read, 2), true},
		{"what was only read there may be lost", story{}.at(2, 3, eve, x, read, 0, 0, 0).lost(30, 31, ann, x, read, 2), false},
		{"and what was not swapped", story{}.at(2, 3, eve, x, swap, 5, 8, 0).lost(30, 31, ann, x, read, 2), false},
		{"with another host it may be lost", story{}.at(2, 3, eve, x, write, 0, 8, 0).lost(50, 51, ann, x, read, 1), false},
		{"also if it was written before all knew of the first", story{}.at(12, 13, bob, x, write, 0, 8, 0).lost(50, 51, ann, x, read, 1), false},
		{"but not if it was written since", story{}.at(2, 3, eve, x, write, 0, 8, 0).at(30, 31, bob, x, write, 0, 9, 0).lost(50, 51, ann, x, read, 1), true},
	} {
		if got := check(test.story.held(), deaths{{host: 2, at: 10, settled: 20}, {host: 1, at: 40, settled: unknown}}, keeping{}, time.Minute); len(got) > 0 != test.wrong {
			t.Errorf("%s: the judgement is %v, want something wrong: %t", test.name, got, test.wrong)
		}
	}
	// Between 5 and 8 there was one host, and at 9 all was handed over to another.
	for _, test := range []struct {
		name  string
		kept  keeping
		story story
		wrong bool
	}{
		{"what was written before may be nowhere else", keeping{shortages: []shortage{{5, 8}}}, story{}.at(2, 3, eve, x, write, 0, 8, 0).lost(30, 31, ann, x, read, 2), false},
		{"and what was written then", keeping{shortages: []shortage{{5, 8}}}, story{}.at(6, 7, eve, x, write, 0, 8, 0).lost(30, 31, ann, x, read, 2), false},
		{"but not what was written since", keeping{shortages: []shortage{{5, 8}}}, story{}.at(2, 3, eve, x, write, 0, 8, 0).at(9, 10, eve, x, write, 0, 9, 0).lost(30, 31, ann, x, read, 2), true},
		{"nor what was handed over", keeping{shortages: []shortage{{5, 8}}, rests: []int64{9}}, story{}.at(2, 3, eve, x, write, 0, 8, 0).lost(30, 31, ann, x, read, 2), true},
	} {
		if got := check(test.story.held(), deaths{{host: 2, at: 10, settled: 20}}, test.kept, time.Minute); len(got) > 0 != test.wrong {
			t.Errorf("%s: the judgement is %v, want something wrong: %t", test.name, got, test.wrong)
		}
	}
	// One host is lost at 10, another at 40.
	written := story{}.at(2, 3, eve, x, write, 0, 8, 0).lost(50, 51, ann, x, read, 1)
	for _, test := range []struct {
		name  string
		rests []int64
		wrong bool
	}{
		{"two are lost, and nothing was handed over", nil, false},
		{"or only before", []int64{1}, false},
		{"or only afterwards", []int64{45}, false},
		{"or while it was not clear that the first is lost", []int64{15}, false},
		{"it was handed over before the second was lost", []int64{30}, true},
	} {
		lost := deaths{{host: 2, at: 10, settled: 20}, {host: 1, at: 40, settled: unknown}}
		if got := check(written.held(), lost, keeping{rests: test.rests}, time.Minute); len(got) > 0 != test.wrong {
			t.Errorf("%s: the judgement is %v, want something wrong: %t", test.name, got, test.wrong)
		}
	}
}
