package nemesis

import (
	"fmt"
	"math/rand/v2"

	"dsmd/dsm"
	"dsmd/dsm/collections"
)

const (
	// mapKind is the kind of the keys of a map.
	mapKind = "map"
	// mapKeys is how many keys of an era are looked at. Each is a thing of its own for thingOf.
	mapKeys = spreadPages
	// mapRoom is for how many entries the map has room at first, and mapOthers how many other keys
	// there are, because of which pages are divided.
	mapRoom, mapOthers = 2000, 3000
)

// mapWorkload does operations at keys of a map that survives the loss of a host. To the judge a key
// is a word, which is 0 while the key is not there.
var mapWorkload = define(&Workload{Name: mapKind, Threads: 1, work: func(m *member) (job, error) {
	keys, err := collections.NewMap[uint64, uint64](m.ctx, m.c, mapKind, mapRoom, dsm.Replicated(replicas), dsm.Keep())
	w := table{m, keys}
	return job{w.step, w.finish}, err
}})

type table struct {
	m    *member
	keys *collections.Map[uint64, uint64]
}

// step does an operation at a key of this era, or at one of the others.
func (w table) step(thread int, r *rand.Rand) error {
	o := Operation{Do: read}
	switch r.IntN(7) {
	case 0:
		return w.other(thread, r)
	case 1:
		o.Do, o.New = write, 1+r.Uint64()>>1
	case 2:
		o.Do = write // it deletes
	case 3, 4:
		o.Do, o.Old, o.New = swap, r.Uint64N(distinct), 1+r.Uint64N(distinct)
	case 5:
		o.Do = add
	}
	return w.do(thread, w.m.era(), r.IntN(mapKeys), o)
}

// other stores or deletes a key that nobody looks at.
func (w table) other(thread int, r *rand.Rand) error {
	k := 1<<32 | r.Uint64N(mapOthers)
	return w.m.record.do(thread, Operation{Place: fmt.Sprintf("other/%d", k), Do: write}, func() (result Result, err error) {
		if r.IntN(8) == 0 {
			_, err = w.keys.Delete(w.m.ctx, k)
		} else {
			err = w.keys.Store(w.m.ctx, k, k)
		}
		return result, err
	})
}

func (w table) do(thread, era, i int, o Operation) error {
	o.Place = fmt.Sprintf("%s/%d/%d", mapKind, era, i)
	return w.m.record.do(thread, o, func() (result Result, err error) {
		k, there := uint64(era*mapKeys+i), false
		switch {
		case o.Do == read:
			result.Got, _, err = w.keys.Load(w.m.ctx, k)
		case o.Do == add:
			result.Got, err = w.keys.Update(w.m.ctx, k, func(old uint64, _ bool) uint64 { return old + 1 })
		case o.Do == write && o.New == 0:
			_, err = w.keys.Delete(w.m.ctx, k)
		case o.Do == write:
			err = w.keys.Store(w.m.ctx, k, o.New)
		case o.Old == 0:
			if _, there, err = w.keys.LoadOrStore(w.m.ctx, k, o.New); !there {
				result.Got = 1
			}
		default:
			var done bool
			if done, err = w.keys.CompareAndSwap(w.m.ctx, k, o.Old, o.New); done {
				result.Got = 1
			}
		}
		return result, err
	})
}

// finish reads the keys of this era and the one before.
func (w table) finish() error {
	return w.m.ofLateEras(mapKeys, func(era, i int) error { return w.do(lastThread, era, i, Operation{Do: read}) })
}
