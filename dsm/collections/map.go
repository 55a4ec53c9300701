package collections

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	wide "math/bits"
	"reflect"
	"slices"
	"sync/atomic"

	"dsmd/dsm"
)

// Map is a hash table that all ranks share. It is divided into shards of a page each, which has its
// lock with it: whoever changes a key has the page come once, and finds everything there; to load
// keys costs nothing while nobody changes one on their page. A page that is full is divided in two.
//
// Keys are strings, or types that dsm.Alloc allows, without floating-point numbers. Values are of
// types that dsm.Alloc allows. A key and its value must fit into an eighth of a page together; of
// larger values keep an index.
//
// Load, Store, Delete, LoadOrStore, CompareAndSwap and Update are linearizable: each takes effect
// at one moment between its call and its return, for everybody. That also holds if the program
// dies meanwhile: then it has taken effect, or not. Combiner and All say what holds for them.
//
// All methods return dsm.ErrNoSpace (the map is full, or key and value are too large), errors that
// wrap dsm.ErrPageLost or dsm.ErrNodeLost (the page of the key was lost with a node, or one from
// which that was divided, or one into which it has to be, to make room; keys on other pages need
// not be), ctx's, dsm.ErrClosed, dsm.ErrLost. With an error nothing was changed, unless it is one
// of dsm.Replicated memory, of which nobody knows then whether the change would survive.
type Map[K, V comparable] struct {
	table
	frees  []func(ctx context.Context) error // for each thing that has to be freed
	keys   coder[K]
	wanted string // what its caller has asked for
}

// control is what ranks agree on beside the pages.
type control struct {
	planned atomic.Int64  // entries, that NewMap was told
	owners  atomic.Uint64 // ids of owners that are drawn
}

// controlOf is the control of a map of these types, and of this layout of pages, which ranks agree
// on too.
type controlOf[K, V any] struct {
	_ [pageLayout]struct{}
	control
	_ K
	_ V
}

// pageLayout is raised with each change of what lies where in a page. Programs that were built with
// another number are refused, and so are their checkpoints.
const pageLayout = 2

// textKey stands for keys that are strings.
type textKey struct{ Text [0]byte }

const (
	// least is how many entries a page has room for. With fewer, pages are full at very different
	// depths.
	least = 8
	// textBytes is for how long strings are taken where their number is to tell how much memory
	// they need.
	textBytes = 16
	// firstRoom is for how many times the planned entries the first pages have room: few of them
	// are divided before there are as many entries.
	firstRoom = 2
	// lastRoom is for how many times the planned entries there are addresses. Then the first pages
	// are 16 apart, so that their homes are all nodes in turn.
	lastRoom = 2
	// mostDepth bounds the number of pages.
	mostDepth = 32
)

// NewMap returns the map of that name, empty if it is new, for about n entries: its first pages
// have room for those, and are used when keys come that belong there. It grows to twice as many at
// least, and then returns dsm.ErrNoSpace. Keys that are strings count as 16 bytes. Addresses for 10
// to 20 times as many entries are taken at once, more if entries are large. All ranks must agree on
// n.
//
// Options are those of dsm.Alloc: with dsm.Replicated each change is committed before the method
// returns, and this rank's share of the first pages before NewMap does, which takes their memory.
// When all ranks have made the map, a loss that it survives takes none of them. Errors are those of
// dsm.Alloc and Map.
func NewMap[K, V comparable](ctx context.Context, c *dsm.Cluster, name string, n int, opts ...dsm.AllocOption) (*Map[K, V], error) {
	m := newMap[K, V]("Map", fmt.Sprintf("a Map of %v to %v for %d entries", reflect.TypeFor[K](), reflect.TypeFor[V](), n))
	if err := m.open(ctx, c, name, n, opts); err != nil {
		return nil, err
	}
	return m, nil
}

// newMap is a map that has no memory yet. kind is what people know it as, and wanted what they have
// asked for.
func newMap[K, V comparable](kind, wanted string) *Map[K, V] {
	return &Map[K, V]{table: table{kind: kind}, wanted: wanted}
}

// open makes the memory, or leaves nothing behind.
func (m *Map[K, V]) open(ctx context.Context, c *dsm.Cluster, name string, n int, opts []dsm.AllocOption) (err error) {
	if m.keys, err = newCoder[K](); err == nil {
		err = cmp.Or(dsm.Shareable[V](), m.size(c.PageBytes(), n))
	}
	if err == nil {
		err = m.alloc(ctx, c, name, n, opts)
	}
	if err != nil {
		err = errors.Join(err, m.Free(context.WithoutCancel(ctx)))
		return fmt.Errorf("collections: New%s %q: %w", m.kind, name, err)
	}
	return nil
}

// alloc is open for a map whose size is known.
func (m *Map[K, V]) alloc(ctx context.Context, c *dsm.Cluster, name string, n int, opts []dsm.AllocOption) (err error) {
	// What went back would hide what has moved to other pages since.
	opts = append(slices.Clip(opts), dsm.StaysLost())
	var freeControl func(context.Context) error
	if m.keys.text {
		m.control, freeControl, err = newControl[textKey, V](ctx, c, name+"/map", opts)
	} else {
		m.control, freeControl, err = newControl[K, V](ctx, c, name+"/map", opts)
	}
	if err != nil {
		return wanting(m.wanted, err)
	}
	m.frees = append(m.frees, freeControl)
	draw := func() (id uint64, err error) {
		lost := dsm.Guard(func() {
			if p := &m.control.planned; !p.CompareAndSwap(0, int64(n)) && p.Load() != int64(n) {
				err = fmt.Errorf("%w: another rank has made it for %d entries, this one for %d", dsm.ErrMismatch, p.Load(), n)
				return
			}
			id = m.control.owners.Add(1)
		})
		return id, errors.Join(lost, err)
	}
	if m.owner, err = newOwner(ctx, clusterFor(c, opts), name, draw); err != nil {
		return err
	}
	m.frees = append(m.frees, func(context.Context) error { return m.life.Unlock() })
	if m.memory, err = dsm.Alloc[atomic.Uint64](ctx, c, name, m.pageWords<<m.lastDepth, opts...); err != nil {
		return wanting(m.wanted, err)
	}
	m.frees = append(m.frees, func(ctx context.Context) error { return dsm.Free(ctx, c, m.memory) })
	m.hints = make([]atomic.Uint32, 1<<m.lastDepth)
	return m.commitShare(ctx)
}

// commitShare commits this rank's share of the first pages, if they are replicated. When as many
// nodes have been lost as the map survives, a page that was never committed is lost with the next
// one, if that has it or is its home, though there is no key on it.
func (m *Map[K, V]) commitShare(ctx context.Context) error {
	if !m.c.replicated {
		return nil
	}
	for i := m.c.Rank(); i < 1<<m.firstDepth; i += m.c.Size() {
		if err := ctx.Err(); err != nil {
			return err
		}
		// Add is a store that changes nothing. A page that is lost already is an error when
		// somebody wants a key of it.
		_ = dsm.Guard(func() { m.page(i << (m.lastDepth - m.firstDepth))[lockWord].Add(0) })
	}
	return m.c.Commit(ctx)
}

func newControl[K, V any](ctx context.Context, c *dsm.Cluster, name string, opts []dsm.AllocOption) (*control, func(context.Context) error, error) {
	x, err := dsm.Isolate[controlOf[K, V]](ctx, c, name, opts...)
	if err != nil {
		return nil, nil, err
	}
	return &x.control, func(ctx context.Context) error { return dsm.FreeIsolated(ctx, c, x) }, nil
}

// size decides on the number of pages. Pages that are full at different depths need more than the
// entries would: 3.92/b n^(1+1/b) are expected for n entries with b to a page (Flajolet, "On the
// Performance Evaluation of Extendible Hashing and Trie Searching", Acta Informatica 20, 1983).
// There are twice to four times as many.
func (m *Map[K, V]) size(pageBytes, planned int) error {
	var v V
	m.pageWords, m.valueWords = pageBytes/wordBytes, wordsFor(len(bytesOf(&v)))
	key := m.keys.len
	if m.keys.text {
		key = textBytes
	}
	words := 1 + m.valueWords + wordsFor(key)
	room := m.pageWords - firstRecord(m.pageWords)
	if words > room/least {
		return fmt.Errorf("%w: a key and its value take %d bytes, at most %d are allowed; keep an index of what is large",
			dsm.ErrNoSpace, words*wordBytes, room/least*wordBytes)
	}
	if planned < 1 {
		return fmt.Errorf("%w: it is to be for %d entries; 1 is the least", dsm.ErrNoSpace, planned)
	}
	n, b := lastRoom*float64(planned), float64(room/words)
	m.lastDepth = min(1+int(max(math.Ceil(math.Log2(3.92/b*math.Pow(n, 1+1/b))), 0)), mostDepth)
	m.firstDepth = min(int(max(math.Log2(firstRoom*float64(planned)/b), 0)), m.lastDepth)
	return nil
}

// Free gives the memory back, as dsm.Free does, with its errors. No other method is under way.
func (m *Map[K, V]) Free(ctx context.Context) (err error) {
	for _, free := range slices.Backward(m.frees) {
		err = errors.Join(err, free(ctx))
	}
	return err
}

// keyOf packs a key into words.
func (m *Map[K, V]) keyOf(k *K, into []uint64) key {
	b := m.keys.bytesOf(k)
	return key{hashOf(b), len(b), pack(into, b)}
}

// Load returns the value of a key, and whether there is one.
func (m *Map[K, V]) Load(ctx context.Context, k K) (v V, there bool, err error) {
	var buffer [8]uint64
	key := m.keyOf(&k, buffer[:0])
	err = m.read(ctx, key.hash, func(p page, _ int) {
		at := p.find(&key).at
		if there = at != 0 && at+1+m.valueWords <= len(p); there {
			p.unpack(at+1, bytesOf(&v))
		}
	})
	if err != nil || !there {
		return *new(V), false, err
	}
	return v, true, nil
}

// Store sets the value of a key.
func (m *Map[K, V]) Store(ctx context.Context, k K, v V) error {
	var value V
	return m.change(ctx, &k, &value, func(bool) action {
		value = v
		return store
	})
}

// Delete removes a key, and reports whether it was there.
func (m *Map[K, V]) Delete(ctx context.Context, k K) (was bool, err error) {
	var old V
	err = m.change(ctx, &k, &old, func(there bool) action {
		was = there
		return remove
	})
	return was && err == nil, err
}

// LoadOrStore returns the value of a key if there is one, and stores v if not. loaded says which.
func (m *Map[K, V]) LoadOrStore(ctx context.Context, k K, v V) (actual V, loaded bool, err error) {
	if old, there, err := m.Load(ctx, k); err != nil || there {
		return old, there, err
	}
	err = m.change(ctx, &k, &actual, func(there bool) action {
		if loaded = there; there {
			return leave
		}
		actual = v
		return store
	})
	return actual, loaded, err
}

// CompareAndSwap sets the value of a key to v if it is there and is old, and reports whether it
// did.
func (m *Map[K, V]) CompareAndSwap(ctx context.Context, k K, old, v V) (swapped bool, err error) {
	var is V
	err = m.change(ctx, &k, &is, func(there bool) action {
		if swapped = there && is == old; !swapped {
			return leave
		}
		is = v
		return store
	})
	return swapped && err == nil, err
}

// Update sets the value of a key to what f makes of it, and returns that. f is told whether there
// is one; if not, old is zero. It is called once, while others wait for the page: it should be
// short, and must not change the map. If it panics nothing is changed.
func (m *Map[K, V]) Update(ctx context.Context, k K, f func(old V, there bool) V) (v V, err error) {
	err = m.change(ctx, &k, &v, func(there bool) action {
		v = f(v, there)
		return store
	})
	return v, err
}

// action is what becomes of a key.
type action int

const (
	leave action = iota
	store
	remove
)

// change has decide say what becomes of a key, once, while nobody else changes it. v has its value
// then if it is there, and else is zero; decide changes v to what is to be stored.
func (m *Map[K, V]) change(ctx context.Context, k *K, v *V, decide func(there bool) action) error {
	s := session{table: &m.table}
	return s.run(ctx, func() error { return m.changeIn(ctx, &s, k, v, decide) })
}

// changeIn is change in a session.
func (m *Map[K, V]) changeIn(ctx context.Context, s *session, k *K, v *V, decide func(there bool) action) error {
	var keyBuffer [8]uint64
	key := m.keyOf(k, keyBuffer[:0])
	l, err := s.lock(ctx, key.hash)
	if err != nil {
		return err
	}
	p := m.page(l.n)
	*v = *new(V)
	found := p.find(&key)
	there := found.at != 0
	if there {
		p.unpack(found.at+1, bytesOf(v))
	}
	switch what := decide(there); {
	case what == store:
		if words, most := 1+m.valueWords+len(key.words), (m.pageWords-firstRecord(m.pageWords))/least; words > most {
			return fmt.Errorf("collections: %s %q: %w: a key of %d bytes with its value; at most %d are allowed",
				m.kind, m.name, dsm.ErrNoSpace, key.bytes, (most-1-m.valueWords)*wordBytes)
		}
		return s.put(ctx, l, found, &key, bytesOf(v))
	case what == remove && there:
		p.begin()
		p.remove(found)
	}
	return nil
}

// Entry is a key and its value.
type Entry[K, V comparable] struct {
	Key   K
	Value V
}

// All returns all entries, page by page. It returns a key once that is there all the time, with a
// value that it has meanwhile; a key that is stored or deleted meanwhile may be returned or not.
// The entries of a page are those of one moment. The map may be changed in the loop. An error is
// the last that is returned.
func (m *Map[K, V]) All(ctx context.Context) iter.Seq2[Entry[K, V], error] { return m.Part(ctx, 0, 1) }

// Part is All for one of some parts of the map, from 0: each entry is in one of them. Ranks that
// go over a part each go over different pages, except where parts meet. It panics if there is no
// such part.
func (m *Map[K, V]) Part(ctx context.Context, part, parts int) iter.Seq2[Entry[K, V], error] {
	if part < 0 || part >= parts {
		panic(fmt.Sprintf("collections: part %d of %d of a map", part, parts))
	}
	lo, _ := wide.Div64(uint64(part), 0, uint64(parts))
	last := uint64(math.MaxUint64)
	if part+1 < parts {
		last, _ = wide.Div64(uint64(part+1), 0, uint64(parts))
		last--
	}
	return func(yield func(Entry[K, V], error) bool) {
		copied := make(page, m.pageWords)
		for at := lo; ; {
			depth := 0
			if err := m.read(ctx, at, func(p page, d int) {
				depth = d
				p.copyTo(copied)
			}); err != nil {
				yield(Entry[K, V]{}, err)
				return
			}
			goesOn := true
			copied.records(func(_ link, i int) bool {
				b := copied.keyAt(i, nil)
				if h := hashOf(b); h >= lo && h <= last {
					e := Entry[K, V]{Key: m.keys.value(b)}
					copied.unpack(i+1, bytesOf(&e.Value))
					goesOn = yield(e, nil)
				}
				return goesOn
			})
			end := at | uint64(math.MaxUint64)>>depth // the last hash of the page
			if !goesOn || end >= last {
				return
			}
			at = end + 1
		}
	}
}
