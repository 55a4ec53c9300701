package node

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
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
	p.ok(attach.Call{Op: attach.OpContents, Object: uint64(page), Count: count, Payload: attach.AppendContents(nil, &what)})
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
		want := func(i int) []byte {
			switch {
			case i >= 2*chunkPages || i%3 == 2:
				return pageOf(uint64(i))
			case i%3 == 1:
				return make([]byte, 4096)
			}
			return pageOf(uint64(100 + i))
		}
		p[0].wantPages(first, pages/4, want)
		p[1].wantPages(first+pages/8, pages/4, func(i int) []byte { return want(pages/8 + i) })
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
			if i%3 == 2 || w != binary.NativeEndian.Uint64(want(int(i))) {
				t.Errorf("page %d is saved with %x", i, w)
			}
		}
		p[1].wantLoad(first+2, 0, 77)
		p[0].wantPages(first+3, pages-3, func(i int) []byte { return want(3 + i) })
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
