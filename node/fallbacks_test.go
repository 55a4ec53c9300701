package node

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/pagetable/pagetabletest"
	"dsmd/transport/sim"
)

// fallback is the call that gives what the pages of an allocation begin anew with: page i has the
// value from+i, and page 3 zeros.
func (p *prog) fallback(page pagetable.Page, count uint64, id byte, from uint64) attach.Call {
	p.Helper()
	file, err := os.Create(filepath.Join(p.TempDir(), "fallback"))
	if err != nil {
		p.Fatal(err)
	}
	defer file.Close()
	var places []byte
	for i := range count {
		contents := make([]byte, 4096)
		binary.NativeEndian.PutUint64(contents, from+i)
		if _, err := file.WriteAt(contents, int64(i)*4096); err != nil {
			p.Fatal(err)
		}
		place := attach.Place{File: 1, Slot: i, CRC: crc32.Checksum(contents, crc32.MakeTable(crc32.Castagnoli))}
		if i == 3 {
			place = attach.Place{}
		}
		places = attach.AppendPlace(places, place)
	}
	table := p.inMemory(places, uint64(len(places)))
	what := attach.Contents{Files: 1, First: p.give(file), Table: p.give(table), ID: [16]byte{id}, Fallback: true}
	return attach.Call{Op: attach.OpContents, Object: uint64(page), Count: count, Payload: attach.AppendContents(nil, &what)}
}

// fallsBack has lost pages begin anew with the contents of an ID.
func (p *prog) fallsBack(id byte) {
	p.Helper()
	p.ok(attach.Call{Op: attach.OpFallback, Payload: append([]byte{id}, make([]byte, 15)...)})
}

// TestPagesGoBack: a page that was only on the node that is lost begins anew with what nodes were
// told, once. Its neighbours are as they were. A node that was not told, or has been told of
// something later that is not ready yet, says that the page is lost.
func TestPagesGoBack(t *testing.T) {
	c := start(t, surviving(3, sim.Options{}))
	a, b, lost := c.members[0].join(), c.members[1].join(), c.members[2].join()
	const pages = 3 * HomeStripe
	x, y, z := a.bind("x", pages), a.bind("y", 10), a.bind("z", 10)
	for _, p := range []*prog{b, lost} {
		p.bind("x", pages)
		p.bind("y", 10)
		p.bind("z", 10)
	}
	for i := range pagetable.Page(pages) {
		if i%5 == 1 {
			a.store(x+i, 0, 7)
			continue
		}
		lost.store(x+i, 0, 1)
	}
	lost.store(y, 0, 1)
	lost.store(z, 0, 1)
	for _, p := range []*prog{a, b} {
		p.ok(p.fallback(x, pages, 8, 500))
		p.ok(p.fallback(y, 10, 8, 500))
		p.ok(p.fallback(x, pages, 9, 100))
		p.ok(p.fallback(x, pages, 9, 300)) // another program of the node was earlier
		p.fallsBack(9)
	}
	b.fallsBack(8)
	b.ok(b.fallback(y, 10, 9, 100))
	c.sever(2)
	var first error = <-a.access(y, false, func([]byte) {})
	var second error = <-b.access(y, true, func([]byte) {})
	if !errors.Is(first, pagetabletest.ErrLost) || !errors.Is(second, pagetabletest.ErrLost) {
		t.Errorf("memory of which no fallback is ready is there: %v, %v", first, second)
	}
	if err := <-a.access(z, false, func([]byte) {}); !errors.Is(err, pagetabletest.ErrLost) {
		t.Errorf("memory that has no fallback is there: %v", err)
	}
	c.recovered(1, 0, 1)
	for i := range pagetable.Page(pages) {
		p, other, want := a, b, uint64(100+i)
		if i%2 == 1 {
			p, other = b, a
		}
		switch {
		case i == 3:
			want = 0
		case i%5 == 1:
			want = 7
		}
		p.wantLoad(x+i, 0, want)
		other.wantLoad(x+i, 0, want)
		other.store(x+i, 0, want+1000)
		p.wantLoad(x+i, 0, want+1000)
	}
	went := c.members[0].counter("pages_gone_back") + c.members[1].counter("pages_gone_back")
	if want := uint64(pages - (pages+3)/5); went != want {
		t.Errorf("%d pages have gone back, want %d", went, want)
	}
	c.members[0].want(map[string]uint64{"pages_lost": 2})
	c.without(2)
	c.quiet()
}

// TestFallbackOfMemoryThatIsLetGo: a node has the fallback of memory as long as one program has the
// memory that has given it. Nobody else would tell the node of later checkpoints, to which pages go
// back on other nodes.
func TestFallbackOfMemoryThatIsLetGo(t *testing.T) {
	const pages = 10
	setup := surviving(3, sim.Options{})
	setup.ranks = 4
	c := start(t, setup)
	a, b, lost := c.members[0].joinAs(0), c.members[1].joinAs(1), c.members[2].joinAs(2)
	names := []string{"freed", "died", "shared"}
	all := map[string]pagetable.Page{}
	gives := func(p *prog, id byte, from uint64, names ...string) {
		for _, name := range names {
			p.ok(p.fallback(all[name], pages, id, from))
		}
		p.fallsBack(id)
	}
	for _, name := range names {
		all[name] = a.bind(name, pages)
		b.bind(name, pages)
		lost.bind(name, pages)
		lost.store(all[name], 0, 1)
	}
	gives(a, 8, 500, names...)
	gives(b, 8, 500, "freed", "shared")
	other := c.members[1].joinAs(3)
	other.bind("shared", pages)
	other.bind("died", pages)
	gives(other, 8, 600, "died", "shared")
	b.ok(unbindCall("freed"))
	b.ok(unbindCall("shared"))
	gives(a, 9, 100, "freed", "died")
	b.bind("freed", pages)
	b.bind("shared", pages)
	c.sever(2)
	b.wantLoad(all["shared"], 0, 500)
	other.die()
	eventually(t, "the program is gone", func() bool { return c.members[1].counter("programs") == 1 })
	for _, name := range names[:2] {
		if err := <-b.access(all[name], false, func([]byte) {}); !errors.Is(err, pagetabletest.ErrLost) {
			t.Errorf("%s: a node that was not told of the last checkpoint has the page: %v", name, err)
		}
		a.wantLoad(all[name], 0, 100)
	}
	c.without(2)
	c.quiet()
}

// TestRefusedFallbackChangesNothing: what pages begin anew with stays when it was to be replaced by
// what can't be read.
func TestRefusedFallbackChangesNothing(t *testing.T) {
	const pages = 4
	c := start(t, surviving(3, sim.Options{}))
	all := []*prog{c.members[0].join(), c.members[1].join(), c.members[2].join()}
	page := share("x", pages, all...)
	all[2].store(page, 0, 1)
	for _, p := range all[:2] {
		p.ok(p.fallback(page, pages, 8, 500))
		p.fallsBack(8)
		short := p.inMemory(nil, pages*attach.PlaceBytes-1)
		what := attach.Contents{Files: 1, First: p.give(short), Table: p.give(short), ID: [16]byte{9}, Fallback: true}
		r := p.do(attach.Call{Op: attach.OpContents, Object: uint64(page), Count: pages, Payload: attach.AppendContents(nil, &what)})
		if r.Status != attach.StatusUnknown || !strings.Contains(string(r.Payload), "is shorter than") {
			t.Errorf("a table that is too short is answered with %v %q", r.Status, r.Payload)
		}
	}
	c.sever(2)
	c.recovered(1, 0, 1)
	all[0].wantLoad(page, 0, 500)
	all[1].wantLoad(page, 0, 500)
	c.without(2)
	c.quiet()
}

// TestFallbackIsRefused: what cannot be what pages begin anew with.
func TestFallbackIsRefused(t *testing.T) {
	c := start(t, surviving(2, sim.Options{}))
	a := c.members[0].join()
	page := a.bind("x", 40)
	if r := a.do(a.fallback(page, 39, 1, 0)); r.Status != attach.StatusUnknown {
		t.Errorf("a fallback for a part of an allocation is answered with %v", r.Status)
	}
	a.ok(a.fallback(page, 40, 1, 0))
	a.ok(unbindCall("x"))
	eventually(t, "the memory is free", func() bool { return a.bind("x", 40) == page })
	a.fallsBack(1)
	a.call(attach.Call{Op: attach.OpFallback, Payload: []byte{1}})
	select {
	case <-a.ended:
	case <-time.After(patience):
		t.Error("an ID of one byte is taken for one")
	}
	c.quiet()
	c.stop()
	if x := c.members[0].node.origins.fallbacks; len(x.list) > 0 {
		t.Errorf("memory that was freed has the fallback of what was there before")
	}
}
