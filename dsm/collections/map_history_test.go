package collections_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"dsmd/dsm"
	"dsmd/dsm/collections"
	"dsmd/dsm/dsmtest"
	"dsmd/internal/kittest"
)

// table is what the history is of: a map, or one with a planted bug.
type table interface {
	Load(ctx context.Context, k int64) (wide, bool, error)
	Store(ctx context.Context, k int64, v wide) error
	Delete(ctx context.Context, k int64) (bool, error)
	LoadOrStore(ctx context.Context, k int64, v wide) (wide, bool, error)
	CompareAndSwap(ctx context.Context, k int64, old, v wide) (bool, error)
	Update(ctx context.Context, k int64, f func(wide, bool) wide) (wide, error)
}

const (
	doLoad = iota
	doStore
	doDelete
	doLoadOrStore
	doSwap
	doAdd
	kinds
)

// place is what a key is, as the model has it.
type place struct {
	value int64
	there bool
}

// mapModel is the keys of a map, each by itself.
var mapModel = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := map[int64][]porcupine.Operation{}
		for _, o := range history {
			k := o.Input.(operation).Place
			parts[k] = append(parts[k], o)
		}
		var all [][]porcupine.Operation
		for _, p := range parts {
			all = append(all, p)
		}
		return all
	},
	Init: func() []any { return []any{place{}} },
	Step: func(state, input, _ any) []any {
		p, o := state.(place), input.(operation)
		becomes, possible := p, false
		switch o.Do {
		case doLoad:
			possible = o.Is == p.there && (!p.there || o.Out == p.value)
		case doStore:
			becomes, possible = place{o.In, true}, true
		case doDelete:
			becomes, possible = place{}, o.Is == p.there
		case doLoadOrStore:
			if possible = o.Is == p.there && (!p.there || o.Out == p.value); !p.there {
				becomes = place{o.In, true}
			}
		case doSwap:
			matches := p.there && p.value == o.Old
			if possible = o.Is == matches; matches {
				becomes = place{o.In, true}
			}
		case doAdd:
			becomes, possible = place{p.value + 1, true}, o.Out == p.value+1
		}
		if o.Return == unknown { // what it has found nobody knows
			return []any{p, becomes}
		}
		if !possible {
			return nil
		}
		return []any{becomes}
	},
}

// playMap does operations at some keys of a table, and returns what was done.
func playMap(t *testing.T, ctx context.Context, c *dsm.Cluster, m table, keys, threads, steps int) []operation {
	var mu sync.Mutex
	var all []operation
	var team sync.WaitGroup
	for thread := range threads {
		team.Go(func() {
			r := rand.New(rand.NewPCG(uint64(c.Rank()), uint64(thread)))
			for step := range steps {
				o := operation{Client: int64(thread), Do: int64(r.IntN(kinds)), Place: int64(r.IntN(keys)), Old: r.Int64N(5)}
				if o.In = r.Int64N(5); r.IntN(2) == 0 {
					o.In = int64((c.Rank()*threads+thread+1)*steps + step) // nobody else stores it
				}
				var got wide
				var err error
				o.Call = now()
				switch o.Do {
				case doLoad:
					got, o.Is, err = m.Load(ctx, o.Place)
				case doStore:
					err = m.Store(ctx, o.Place, wideOf(o.In))
				case doDelete:
					o.Is, err = m.Delete(ctx, o.Place)
				case doLoadOrStore:
					got, o.Is, err = m.LoadOrStore(ctx, o.Place, wideOf(o.In))
				case doSwap:
					o.Is, err = m.CompareAndSwap(ctx, o.Place, wideOf(o.Old), wideOf(o.In))
				case doAdd:
					got, err = m.Update(ctx, o.Place, func(old wide, _ bool) wide { return wideOf(old[0] + 1) })
				}
				o.Return, o.Out = now(), got[0]
				if err != nil || !got.whole() {
					t.Errorf("found %v, %v", got, err)
					return
				}
				mu.Lock()
				all = append(all, o)
				mu.Unlock()
				rest(r)
			}
		})
	}
	team.Wait()
	return all
}

// lossy is a map with a bug: Update is no single step.
type lossy struct {
	*collections.Map[int64, wide]
}

func (m lossy) Update(ctx context.Context, k int64, f func(wide, bool) wide) (wide, error) {
	old, there, err := m.Load(ctx, k)
	if err != nil {
		return old, err
	}
	v := f(old, there)
	time.Sleep(100 * time.Microsecond)
	return v, m.Store(ctx, k, v)
}

// stale is a map with a bug: a rank knows what it has loaded before.
type stale struct {
	*collections.Map[int64, wide]
	known *sync.Map
}

func (m stale) Load(ctx context.Context, k int64) (wide, bool, error) {
	if v, known := m.known.Load(k); known && rand.IntN(2) == 0 {
		return v.(wide), true, nil
	}
	v, there, err := m.Map.Load(ctx, k)
	if there {
		m.known.Store(k, v)
	}
	return v, there, err
}

// TestMapHistory: what ranks find in a map that grows meanwhile can be explained by single steps,
// and what they find in one with a bug can't.
func TestMapHistory(t *testing.T) {
	const keys, threads, steps = 12, 3, 100
	dsmtest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const others = 1000 // keys because of which pages are divided
		newMap := func(name string) *collections.Map[int64, wide] {
			m := kittest.Must[*collections.Map[int64, wide]](t)(collections.NewMap[int64, wide](ctx, c, name, others*c.Size()/2))
			kittest.Barrier(t, ctx, c)
			return m
		}
		m := newMap("whole")
		var team sync.WaitGroup
		team.Go(func() {
			for i := range others {
				if err := m.Store(ctx, int64(keys+i*c.Size()+c.Rank()), wideOf(int64(i))); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Duration(i%50) * time.Microsecond)
			}
		})
		all := playMap(t, ctx, c, m, keys, threads, steps)
		team.Wait()
		if result := judge(t, ctx, c, all, mapModel.ToModel()); c.Rank() == 0 && result != porcupine.Ok {
			t.Errorf("the history of a map: %s", result)
		}
		small := newMap("planted")
		for _, planted := range []table{lossy{small}, stale{small, new(sync.Map)}} {
			findPlanted(t, ctx, c, fmt.Sprintf("%T", planted), mapModel.ToModel(), func() []operation {
				for k := range int64(keys) {
					if _, err := small.Delete(ctx, k); err != nil {
						t.Error(err)
					}
				}
				kittest.Barrier(t, ctx, c)
				return playMap(t, ctx, c, planted, 3, threads, steps/4)
			})
		}
	})
}
