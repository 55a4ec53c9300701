package nemesis

import (
	"cmp"
	"errors"
	"slices"
	"testing"
	"time"
)

// tenure is a time in which a program surely had the memory of its workload.
type tenure struct {
	workload, program int
	from, to          int64
}

// generations are numbers of programs. Memory ends with the last program that has it. So where no
// program of a workload surely had it, those that come later have another number: they may have
// found new memory, which is zero, or that of those before.
func generations(all []Operation) map[int]int {
	of := map[int]*tenure{}
	for _, o := range all {
		t := of[o.client.Life]
		if t == nil {
			t = &tenure{o.client.Workload, o.client.Life, o.Call, o.Call}
			of[o.client.Life] = t
		}
		if t.from = min(t.from, o.Call); o.known() {
			t.to = max(t.to, o.Return)
		}
	}
	var list []*tenure
	for _, t := range of {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *tenure) int {
		return cmp.Or(cmp.Compare(a.workload, b.workload), cmp.Compare(a.from, b.from))
	})
	number, n, end := map[int]int{}, 0, int64(0)
	for i, t := range list {
		if i == 0 || t.workload != list[i-1].workload || t.from > end {
			n, end = n+1, t.to
		}
		number[t.program], end = n, max(end, t.to)
	}
	return number
}

// explain is checkPlace where memory may have begun anew with a generation.
func explain(all []Operation, generation map[int]int, limit time.Duration) error {
	err := checkPlace(all, limit)
	if !errors.Is(err, errNotLinearizable) || all[0].kind() == "lock" {
		return err
	}
	var numbers []int
	for _, o := range all {
		numbers = append(numbers, generation[o.client.Life])
	}
	slices.Sort(numbers)
	for _, first := range slices.Compact(numbers)[1:] {
		later := func(o Operation) bool { return generation[o.client.Life] >= first }
		before := slices.DeleteFunc(slices.Clone(all), later)
		after := slices.DeleteFunc(slices.Clone(all), func(o Operation) bool { return !later(o) })
		if checkPlace(before, limit) == nil && explain(after, generation, limit) == nil {
			return nil
		}
	}
	return err
}

// held is the story with a program beside it that has the memory all the time.
func (s story) held() story { return s.at(-1, 1<<50, by(7, 70), "other/0", read, 0, 0, 0) }

// TestMemoryThatEnds: what begins when no program has the memory may find zeros.
func TestMemoryThatEnds(t *testing.T) {
	ann, bob, eve, next := by(0, 1), by(1, 2), by(2, 3), by(0, 4)
	other := eve
	other.Workload = 1
	const n, m, l = "sum/0/0", "sum/0/1", "lock/0/0"
	for _, test := range []struct {
		name  string
		story story
		wrong bool
	}{
		{"zeros", story{}.at(0, 1, ann, n, add, 0, 0, 1).at(10, 11, bob, n, add, 0, 0, 1), false},
		{"what was there", story{}.at(0, 1, ann, n, add, 0, 0, 1).at(10, 11, bob, n, add, 0, 0, 2), false},
		{"something else", story{}.at(0, 1, ann, n, add, 0, 0, 1).at(10, 11, bob, n, add, 0, 0, 3), true},
		{"zeros twice", story{}.at(0, 1, ann, n, add, 0, 0, 1).at(10, 11, bob, n, add, 0, 0, 1).at(20, 21, next, n, add, 0, 0, 1), false},
		{"zeros the second time", story{}.at(0, 1, ann, n, add, 0, 0, 1).at(10, 11, bob, n, add, 0, 0, 2).at(20, 21, next, n, add, 0, 0, 1), false},
		{"after one who was killed", story{}.at(0, 1, ann, n, add, 0, 0, 1).at(2, unknown, ann, n, add, 0, 0, 0).at(10, 11, bob, n, add, 0, 0, 1), false},
		{"and somebody had it", story{}.at(0, 1, ann, n, add, 0, 0, 1).at(0, 10, eve, m, read, 0, 0, 0).at(10, 11, bob, n, add, 0, 0, 1), true},
		{"and two had it in turn", story{}.at(0, 1, ann, n, add, 0, 0, 1).at(0, 5, eve, m, read, 0, 0, 0).at(1, 2, next, m, read, 0, 0, 0).at(5, 10, next, m, read, 0, 0, 0).at(10, 11, bob, n, add, 0, 0, 1), true},
		{"and somebody had other memory", story{}.at(0, 1, ann, n, add, 0, 0, 1).at(0, 10, other, m, read, 0, 0, 0).at(10, 11, bob, n, add, 0, 0, 1), false},
		{"zeros within a generation", story{}.at(0, 1, ann, n, add, 0, 0, 1).at(10, 11, bob, n, add, 0, 0, 1).at(11, 12, next, n, add, 0, 0, 1), true},
		{"a lock, which does not end", story{}.at(0, 1, ann, l, acquire, 0, 0, 0).at(10, 11, bob, l, acquire, 0, 0, 0), true},
	} {
		if got := check(test.story, nil, keeping{}, time.Minute); len(got) > 0 != test.wrong {
			t.Errorf("%s: the judgement is %v, want something wrong: %t", test.name, got, test.wrong)
		}
	}
}
