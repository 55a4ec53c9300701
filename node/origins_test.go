package node

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"dsmd/internal/attach"
	"dsmd/pagetable"

	"golang.org/x/sys/unix"
)

// over has pages that begin in files begin with what a checkpoint has of them: every third page is
// page 100+i, those behind these are zeros, and the others are in the files. Some are said of no
// chunk of the table at all.
func (p *prog) over(page pagetable.Page, count uint64, id byte) {
	p.Helper()
	p.ok(p.overCall(page, count, id))
}

// overCall is the call of over.
func (p *prog) overCall(page pagetable.Page, count uint64, id byte) attach.Call {
	p.Helper()
	var places []byte
	for i := range count {
		place := attach.Place{File: 1, Slot: i, CRC: crc32.Checksum(pageOf(100+i), crc32.MakeTable(crc32.Castagnoli))}
		switch {
		case i%3 == 1:
			place = attach.Place{Slot: attach.ZeroSlot}
		case i%3 == 2 || i >= 2*chunkPages:
			place = attach.Place{}
		}
		places = attach.AppendPlace(places, place)
	}
	file := laid(p, int64(count)*4096, func(i uint64) uint64 { return 100 + i })
	table := p.inMemory(places[:2*chunkPages*attach.PlaceBytes], uint64(len(places)))
	what := attach.Contents{Files: 1, First: p.give(file), Table: p.give(table), ID: [16]byte{id}}
	return attach.Call{Op: attach.OpContents, Object: uint64(page), Count: count, Payload: attach.AppendContents(nil, &what)}
}

// asOver is what page i holds of memory that begins in a file with page i at i, and over that.
func asOver(i int) []byte {
	switch {
	case i%3 == 2 || i >= 2*chunkPages:
		return pageOf(uint64(i))
	case i%3 == 1:
		return make([]byte, 4096)
	}
	return pageOf(uint64(100 + i))
}

// TestContentsOverFiles: a checkpoint lies over the files of a mapping, one at each node. Pages
// that it lacks are as in those. A checkpoint that is based on it has neither; one that is not has
// what was in it, zeros too, whether anybody has loaded it or not.
func TestContentsOverFiles(t *testing.T) {
	const pages, stripe = 3 * chunkPages, 32
	either(t, func(t *testing.T, async bool) {
		c := start(t, setup{nodes: 2, async: async})
		file := func(node uint64) func(uint64) uint64 {
			return func(i uint64) uint64 { return i/stripe*2*stripe + node*stripe + i%stripe }
		}
		what := attach.Contents{Readers: []uint16{0, 1}, Stripe: stripe, Bytes: pages / 2 * 4096}
		first, p := c.mapped("x", pages, what, laid(t, pages/2*4096, file(0)), laid(t, pages/2*4096, file(1)))
		for range 2 { // what a second program says is not looked at
			for _, p := range p {
				p.over(first, pages, 9)
			}
		}
		p[1].ok(p[1].beginsCall(first, pages, what, laid(t, pages/2*4096, same)))
		p[0].wantPages(first, pages/4, asOver)
		p[1].wantPages(first+pages/8, pages/4, func(i int) []byte { return asOver(pages/8 + i) })
		all := func(id, base byte) (words map[uint64]uint64) {
			t.Helper()
			words = map[uint64]uint64{}
			saves := []*save{p[0].save(id, base, first, pages), p[1].save(id, base, first, pages)}
			for _, s := range saves {
				s.ok(s.call(false, true))
			}
			for _, s := range saves {
				maps.Copy(words, s.finish())
			}
			return words
		}
		for i, w := range all(10, 9) {
			if i%3 != 1 || w != 0 { // zeros that were loaded are not known to be as they began
				t.Errorf("page %d is in the checkpoint before, and is saved with %x", i, w)
			}
		}
		p[0].store(first+2, 0, 77)
		if words := all(11, 10); len(words) != 1 || words[2] != 77 {
			t.Errorf("of what was changed are saved %v", words)
		}
		words := all(12, 0)
		if n := (2*chunkPages*2 + 2) / 3; len(words) != 1+n || words[2] != 77 {
			t.Errorf("%d pages are saved, where the checkpoint has %d and one was changed; page 2 with %d", len(words), n, words[2])
		}
		delete(words, 2)
		for i, w := range words {
			if i%3 == 2 || w != binary.NativeEndian.Uint64(asOver(int(i))) {
				t.Errorf("page %d is saved with %x", i, w)
			}
		}
		p[1].wantLoad(first+2, 0, 77)
		p[0].wantPages(first+3, pages-3, func(i int) []byte { return asOver(3 + i) })
		c.quiet()
	})
}

// isWatched is whether anything in this process waits for a file by epoll.
func isWatched(t *testing.T, file *os.File) bool {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range infos {
		info, _ := os.ReadFile(name) // some are closed meanwhile
		if strings.Contains(string(info), fmt.Sprintf("ino:%x ", st.Ino)) {
			return true
		}
	}
	return false
}

// TestContentsInNonBlockingFile: a file may be non-blocking in which memory begins. The node does
// not ask whether it is readable, to which a file system may not answer, nor does it wait until it
// is closed, when the memory is free.
func TestContentsInNonBlockingFile(t *testing.T) {
	var closed atomic.Int64
	c := start(t, setup{nodes: 1, before: func(n *Node) { n.programs.replies.closer.hold = func() { closed.Add(1) } }})
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[1])
	file := os.NewFile(uintptr(ends[0]), "pipe")
	defer file.Close()
	// Not before: this test itself is not to watch it.
	if err := unix.SetNonblock(ends[0], true); err != nil {
		t.Fatal(err)
	}
	p := c.members[0].join()
	p.ok(p.beginsCall(p.bind("x", 1), 1, attach.Contents{Bytes: 4096}, file))
	if isWatched(t, file) {
		t.Error("the node waits until the file is readable")
	}
	p.ok(unbindCall("x"))
	eventually(t, "it is left to be closed", func() bool {
		runtime.GC()
		return closed.Load() == 1
	})
	c.quiet()
}

// TestBeginsElsewhereTooLate: a program says that memory begins as a table has it when pages of it
// have come from the file that was given before, and have left again. It is refused, and they come
// back from where they were.
func TestBeginsElsewhereTooLate(t *testing.T) {
	t.Parallel()
	const pages = 2 * leastRoom
	c := startTight(t, setup{nodes: 2, pages: pages + HomeStripe}, 0)
	first, all := c.mapped("x", pages, attach.Contents{Bytes: pages * 4096, Readers: []uint16{0}}, laid(t, pages*4096, same))
	p := all[0]
	p.wantPages(first, pages, asLaid)
	if n := c.members[0].counter("pages_unloaded"); n == 0 {
		t.Error("no page has left")
	}
	var zeros []byte
	for range pages {
		zeros = attach.AppendPlace(zeros, attach.Place{Slot: attach.ZeroSlot})
	}
	short := zeros[:attach.PlaceBytes] // to read it would be to no purpose, and is not tried
	for _, table := range [][]byte{zeros, short} {
		call := p.beginsCall(first, pages, attach.Contents{Table: p.give(p.inMemory(table, uint64(len(table))))}, nil)
		if r := p.do(call); r.Status != attach.StatusUnknown || string(r.Payload) != errInUse.Error() {
			t.Errorf("of a table of %d bytes the answer is %v %q", len(table), r.Status, r.Payload)
		}
	}
	p.wantPages(first, pages, asLaid)
	c.quiet()
}

// wantPage checks what a page holds, at the reactor that has it.
func (c *parted) wantPage(p *prog, page pagetable.Page, want []byte) {
	c.Helper()
	p.settled(c.touch(p, 0, page, false, func(b []byte) {
		if !bytes.Equal(b, want) {
			c.Errorf("page %d holds %x, want %x", page, b[:16], want[:16])
		}
	}))
}

// holds has a reactor of node 0 do nothing, after what it was told before, until it is released.
func (c *parted) holds(reactor int) (release func()) {
	released := make(chan struct{})
	release = sync.OnceFunc(func() { close(released) })
	c.Cleanup(release)
	c.members[0].node.partition.all[reactor].news.tell(func() { <-released })
	return release
}

// haveTable counts the reactors that have a table of places for an allocation.
func (c *parted) haveTable(first pagetable.Page) (n int) {
	c.Helper()
	for reactor := range c.tables[0] {
		c.onReactor(0, reactor, func(o *Node) {
			if x := o.origins.find(first); x != nil && x.places != nil {
				n++
			}
		})
	}
	return n
}

// TestPartedContents: a checkpoint lies over the file of a mapping at all reactors, or, if one of
// them refuses it, at none. When there is no reason any more it is taken.
func TestPartedContents(t *testing.T) {
	const reactors, pages = 3, 3 * stripe
	for refuses := range reactors {
		c := startParted(t, 1, reactors, nil)
		p := c.join(0)
		first := p.bind("m", pages)
		p.ok(p.beginsCall(first, pages, attach.Contents{Bytes: pages * 4096}, laid(t, pages*4096, same)))
		used := c.members[0].node.partition.all[refuses].partition.next(first)
		c.wantPage(p, used, asLaid(int(used-first)))
		if r := p.do(p.overCall(first, pages, 9)); r.Status != attach.StatusUnknown || string(r.Payload) != errInUse.Error() {
			t.Errorf("reactor %d refuses, and the answer is %v %q", refuses, r.Status, r.Payload)
		}
		if n := c.haveTable(first); n > 0 {
			t.Errorf("reactor %d refuses, and %d reactors have the table", refuses, n)
		}
		for i := 1; i < pages; i += stripe + 2 { // of all reactors, and zeros in the checkpoint
			c.wantPage(p, first+pagetable.Page(i), asLaid(i))
			p.settled(c.touch(p, 0, first+pagetable.Page(i), true, func([]byte) {}))
		}
		p.settled(c.touch(p, 0, used, true, func([]byte) {})) // it counts as changed
		p.over(first, pages, 9)
		for i := 2; i < pages; i += stripe / 8 {
			c.wantPage(p, first+pagetable.Page(i), asOver(i))
		}
		c.wantPage(p, used, asLaid(int(used-first)))
	}
}

// TestPartedContentsMeanwhile: a page comes from the file of a mapping, and the program ends, after
// a reactor has agreed to a checkpoint that lies over the file, and before another has. All
// reactors have the checkpoint then. The page counts as changed: if it left memory as one that is
// in the file, it would come back from the checkpoint.
func TestPartedContentsMeanwhile(t *testing.T) {
	const reactors, pages = 3, 3 * stripe
	c := startPartedAs(t, 1, reactors, func(cfg *Config) { cfg.Ranks = 2 }, nil)
	p, other := c.join(0), c.join(0)
	first := share("m", pages, p, other)
	p.ok(p.beginsCall(first, pages, attach.Contents{Bytes: pages * 4096}, laid(t, pages*4096, same)))
	release := c.holds(2)
	p.call(p.overCall(first, pages, 9))
	p.ok(attach.Call{Op: attach.OpLostRanks}) // the one that leads has read all of it
	for reactor, n := range c.members[0].node.partition.all[:2] {
		c.onReactor(0, reactor, func(*Node) {})
		page := n.partition.next(first + 1)
		c.wantPage(p, page, asLaid(int(page-first)))
		c.onReactor(0, reactor, func(n *Node) {
			if n.drive.exec.snaps.IsUnchanged(page) {
				t.Errorf("page %d of reactor %d counts as one that is in the checkpoint", page, reactor)
			}
		})
	}
	p.die()
	eventually(t, "the program has gone", func() bool { return c.members[0].counter("programs") == 1 })
	release()
	for _, reactor := range []int{2, 0} { // it agrees, and the one that leads hears of it
		c.onReactor(0, reactor, func(*Node) {})
	}
	if n := c.haveTable(first); n != reactors {
		t.Errorf("%d reactors have the table", n)
	}
	for i := 2; i < pages; i += stripe / 8 {
		c.wantPage(other, first+pagetable.Page(i), asOver(i))
	}
}

// TestPartedContentsTooLate: a program says of memory where it begins when it has just let go of
// it, and the memory is free before all reactors have agreed. None of them keeps that for whatever
// lies there next.
func TestPartedContentsTooLate(t *testing.T) {
	const reactors, pages = 2, 3 * stripe
	c := startParted(t, 1, reactors, nil)
	p := c.join(0)
	first := p.bind("m", pages)
	p.ok(p.beginsCall(first, pages, attach.Contents{Bytes: pages * 4096}, laid(t, pages*4096, same)))
	lead := func(what string, is func(*Node) bool) {
		eventually(t, what, func() (yes bool) {
			c.onReactor(0, 0, func(n *Node) { yes = is(n) })
			return yes
		})
	}
	call, frees := p.overCall(first, pages, 9), c.holds(1)
	p.call(unbindCall("m"))
	lead("the others are to free it", func(n *Node) bool { return len(n.partition.freeing) > 0 })
	agrees := c.holds(1)
	_, answer := p.call(call)
	p.ok(attach.Call{Op: attach.OpLostRanks}) // the one that leads has read both
	frees()
	lead("it is free", func(n *Node) bool { return n.origins.find(first) == nil })
	agrees()
	if r := p.answer(answer); r.Status != attach.StatusUnknown || string(r.Payload) != errFreed.Error() {
		t.Errorf("the answer is %v %q", r.Status, r.Payload)
	}
	if n := c.haveTable(first); n > 0 {
		t.Errorf("%d reactors have the table", n)
	}
	next := p.bind("next", pages)
	for i := pagetable.Page(0); i < pages; i += stripe {
		c.wantPage(p, next+i, make([]byte, 4096))
	}
}
