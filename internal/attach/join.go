package attach

import (
	"cmp"
	"slices"
)

// JoinAnswers makes one payload of two that reactors of a daemon have answered the same call with,
// each for its own pages. It panics if op is none of OpStats, OpUsage, OpPrograms and OpWaits.
func JoinAnswers(op Op, a, b []byte) ([]byte, error) {
	switch op {
	case OpStats:
		return joined(a, b, DecodeCounters, joinCounters, AppendCounters)
	case OpUsage:
		return joined(a, b, DecodeUsage, joinUsage, func(b []byte, u Usage) []byte { return AppendUsage(b, &u) })
	case OpPrograms:
		return joined(a, b, DecodePrograms, joinPrograms, func(b []byte, p Programs) []byte { return AppendPrograms(b, &p) })
	case OpWaits:
		return joined(a, b, DecodeWaits, joinWaits, func(b []byte, w Waits) []byte { return AppendWaits(b, &w) })
	}
	panic("attach: answers of " + op.String() + " cannot be joined")
}

func joined[T any](a, b []byte, decode func([]byte) (T, error), join func(T, T) T, appendTo func([]byte, T) []byte) ([]byte, error) {
	x, err := decode(a)
	if err != nil {
		return nil, err
	}
	y, err := decode(b)
	if err != nil {
		return nil, err
	}
	return appendTo(nil, join(x, y)), nil
}

// joinBy adds to a list what another has, by key.
func joinBy[T any, K comparable](a, b []T, key func(*T) K, add func(to, x *T)) []T {
	at := make(map[K]int, len(a))
	for i := range a {
		at[key(&a[i])] = i
	}
	for i := range b {
		if j, known := at[key(&b[i])]; known {
			add(&a[j], &b[i])
		} else {
			a = append(a, b[i])
		}
	}
	return a
}

func joinCounters(a, b []Counter) []Counter {
	a = joinBy(a, b, func(c *Counter) string { return c.Name }, func(to, x *Counter) { to.Value += x.Value })
	return a[:min(len(a), MaxCounters)]
}

func joinUsage(a, b Usage) Usage {
	a.Largest = joinBy(a.Largest, b.Largest, func(x *AllocationUsage) uint64 { return x.First }, func(to, x *AllocationUsage) {
		x.Pages = 0 // both have the size of the whole
		to.add(x.Held)
	})
	a.More, b.Rest.Pages = max(a.More, b.More), 0
	a.Rest.add(b.Rest)
	a.Foreign.add(b.Foreign)
	slices.SortStableFunc(a.Largest, func(x, y AllocationUsage) int { return cmp.Compare(y.Pages, x.Pages) })
	for len(a.Largest) > MaxAllocations {
		last := len(a.Largest) - 1
		a.Add(&a.Largest[last])
		a.Largest = a.Largest[:last]
	}
	return a
}

// joinPrograms adds how long programs have waited. All reactors have the same, but for those that
// come or go.
func joinPrograms(a, b Programs) Programs {
	// The processes of containers may have no number that this daemon knows.
	type key struct {
		job  string
		rank uint32
	}
	waits := make(map[key][WaitKinds]Cost, len(b.Attached))
	for _, x := range b.Attached {
		waits[key{x.Job, x.Rank}] = x.Waits
	}
	for i := range a.Attached {
		x := &a.Attached[i]
		for kind, w := range waits[key{x.Job, x.Rank}] {
			x.Waits[kind].Add(w)
		}
	}
	return a
}

func joinWaits(a, b Waits) Waits {
	for kind := range a.All {
		a.All[kind].Add(b.All[kind])
	}
	a.Taken += b.Taken
	type key struct {
		kind      WaitKind
		job, name string
	}
	list := joinBy(a.List, b.List, func(x *Awaited) key { return key{x.Kind, x.Job, x.Name} }, func(to, x *Awaited) {
		to.Add(x.Cost)
		to.Taken += x.Taken
	})
	slices.SortStableFunc(list, func(x, y Awaited) int { return cmp.Or(cmp.Compare(x.Kind, y.Kind), cmp.Compare(y.Time, x.Time)) })
	var listed [WaitKinds]int
	a.List = slices.DeleteFunc(list, func(x Awaited) bool {
		listed[x.Kind]++
		return listed[x.Kind] > MaxAwaited
	})
	return a
}
