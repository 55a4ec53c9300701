package protocol

import (
	"reflect"
	"runtime"
	"testing"

	"pgregory.net/rapid"
)

// TestTableAgainstMap drives the table and a Go map with the same operations.
func TestTableAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tab table
		ref := map[ObjectID]NodeID{}
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			id := ObjectID(rapid.Uint64Range(0, 60).Draw(t, "id"))
			if rapid.IntRange(0, 2).Draw(t, "op") == 0 {
				if _, ok := ref[id]; ok {
					tab.remove(id)
					delete(ref, id)
				}
			} else {
				n := NodeID(rapid.Uint16().Draw(t, "n"))
				tab.get(id).owner = n
				ref[id] = n
			}
			if tab.count != len(ref) {
				t.Fatalf("the table has %d objects, the map %d", tab.count, len(ref))
			}
			for id := ObjectID(0); id <= 60; id++ {
				n, ok := ref[id]
				if o := tab.find(id); (o != nil) != ok || ok && o.owner != n {
					t.Fatalf("object %v: table says %v, map says %v %v", id, o, n, ok)
				}
			}
		}
		if got := len(tab.ids(0, 61)) + len(tab.ids(0, 1<<60)); got != 2*len(ref) {
			t.Fatalf("ids lists %d objects in two ways, want %d", got, 2*len(ref))
		}
	})
}

// TestCopies: whoever goes over an engine's objects by and by, while some come and go, is told once
// of each page that stays, and whether it can be dropped, and of none that is not here.
func TestCopies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := New(Config{Nodes: 2, Pages: 100, HomeStripe: 1})
		change := func() (id ObjectID) {
			id = ObjectID(rapid.Uint64Range(0, 30).Draw(t, "id"))
			if rapid.IntRange(0, 9).Draw(t, "is a lock") == 0 {
				id = LockObject(uint64(id))
			}
			if o := e.objects.find(id); o != nil && !id.IsLock() && rapid.Bool().Draw(t, "remove") {
				e.objects.remove(id)
				return id
			}
			o := e.objects.get(id)
			o.owner = NodeID(rapid.Uint16Range(0, 1).Draw(t, "owner"))
			o.setAccess(rapid.SampledFrom([]Access{None, Read, Write}).Draw(t, "access"))
			o.set(droppableFlag, o.has() == Read && rapid.Bool().Draw(t, "droppable"))
			return id
		}
		for range rapid.IntRange(0, 60).Draw(t, "before") {
			change()
		}
		told, changed := map[uint64]int{}, map[ObjectID]bool{}
		most := rapid.IntRange(1, 40).Draw(t, "most")
		for place, looks := 0, 0; ; {
			before := place
			place = Copies(e, place, most, func(page uint64, droppable bool) {
				told[page]++
				looks++
				o := e.objects.find(PageObject(page))
				if o == nil || o.has() == None || droppable != e.holder.mayDrop(o) {
					t.Fatalf("page %d is told as droppable %t, and is %+v", page, droppable, o)
				}
			})
			if looks > most || place != 0 && place != before+most {
				t.Fatalf("%d of at most %d are told, from %d to %d", looks, most, before, place)
			}
			if looks = 0; place == 0 {
				break
			}
			changed[change()] = true
		}
		for page := range uint64(31) {
			id := PageObject(page)
			if changed[id] {
				continue
			}
			if want := map[bool]int{true: 1}[e.Access(id) != None]; told[page] != want {
				t.Errorf("page %d is told %d times, want %d", page, told[page], want)
			}
		}
	})
}

// TestCopysetIsASuperset checks, for small and large clusters, that a copyset never forgets a
// member and names no one else while it is exact; that it is certain of the home; and that it is
// exact for as long as it promises.
func TestCopysetIsASuperset(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.SampledFrom([]int{1, 2, 64, 128, 129, 500, MaxNodes}).Draw(t, "nodes")
		home := NodeID(rapid.Uint16Range(0, uint16(nodes-1)).Draw(t, "home"))
		members := rapid.SliceOfDistinct(rapid.Uint16Range(0, uint16(nodes-1)), rapid.ID).Draw(t, "members")
		c := Config{Self: home, Nodes: nodes}
		if rapid.Bool().Draw(t, "sizes of its own") {
			c.ExactNodes = rapid.IntRange(1, DefaultExactNodes).Draw(t, "exact")
			c.Pointers = rapid.IntRange(1, DefaultPointers).Draw(t, "pointers")
			c.GroupNodes = rapid.IntRange(c.smallestGroup(), nodes).Draw(t, "group")
		}
		c = c.withDefaults()
		var s copyset
		in := map[NodeID]bool{}
		for _, m := range members {
			s.add(NodeID(m), &c)
			s.add(NodeID(m), &c)
			in[NodeID(m)] = true
			if s.has(home, &c) != in[home] {
				t.Fatalf("has(home) = %v after %d members, the home among them: %v", s.has(home, &c), len(in), in[home])
			}
		}
		listed := map[NodeID]bool{}
		for _, n := range s.appendTo(nil, &c) {
			if listed[n] {
				t.Fatalf("node %d is listed twice", n)
			}
			listed[n] = true
			if !in[n] && s.exact(&c) {
				t.Fatalf("an exact set lists %d, which was not added", n)
			}
		}
		for n := range nodes {
			id := NodeID(n)
			if in[id] && (!listed[id] || !s.has(id, &c)) {
				t.Fatalf("member %d is forgotten", n)
			}
			if s.has(id, &c) != listed[id] {
				t.Fatalf("has(%d) = %v, listed: %v", n, s.has(id, &c), listed[id])
			}
			if s.certain(id, &c) && !in[id] {
				t.Fatalf("%d was not added, but is a member for certain", n)
			}
			if (id == home || s.exact(&c)) && s.certain(id, &c) != in[id] {
				t.Fatalf("certain(%d) = %v, of a member: %v", n, s.certain(id, &c), in[id])
			}
		}
		if (nodes <= c.ExactNodes || len(members) <= c.Pointers) && !s.exact(&c) {
			t.Fatalf("a set of %d of %d nodes is not exact", len(members), nodes)
		}
		s.only(0, &c)
		if got := s.appendTo(nil, &c); len(got) != 1 || got[0] != 0 {
			t.Fatalf("only(0) leaves %v", got)
		}
	})
}

// TestMetadataPerPage holds the table to its promise of at most 64 bytes for a page, at the loads
// where it is worst: just after the index has grown.
func TestMetadataPerPage(t *testing.T) {
	if s := reflect.TypeFor[object]().Size(); s > 40 {
		t.Fatalf("an object takes %d bytes", s)
	}
	// 3/4 of a power of two, plus one: the index has just doubled
	for _, pages := range []int{slabObjects * 12, 49153, 196609} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var tab table
		for i := range pages {
			tab.get(ObjectID(i * 977)) // sparse
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		per := float64(after.HeapAlloc-before.HeapAlloc) / float64(pages)
		t.Logf("%d pages: %.1f bytes each", pages, per)
		if per > 64 {
			t.Errorf("%d pages cost %.1f bytes each, want at most 64", pages, per)
		}
		runtime.KeepAlive(&tab)
	}
}

// TestMigrant: two upgrades that look like a migration are believed, for some readers; then one has
// to show it again.
func TestMigrant(t *testing.T) {
	o := object{access: accessMask | exclusiveFlag | heldFlag | contestedFlag}
	o.setRetries(retriesMax)
	before := o.access
	if o.migrates() {
		t.Error("an object migrates before anything has happened")
	}
	o.upgraded(true)
	if o.migrates() {
		t.Error("one upgrade is believed")
	}
	for range 3 {
		o.upgraded(true)
		granted := 0
		for o.migrates() {
			granted++
		}
		if granted != mostMigrant-2 {
			t.Errorf("%d readers are granted more than they asked for, want %d", granted, mostMigrant-2)
		}
	}
	o.upgraded(false)
	if o.upgraded(true); o.migrates() {
		t.Error("an object that stopped migrating is believed at once when it begins again")
	}
	if o.setMigrant(0); o.access != before {
		t.Errorf("the other bits were %#x and are %#x", before, o.access)
	}
}
