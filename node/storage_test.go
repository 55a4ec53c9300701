package node

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/diskio"
	"dsmd/pagetable"
)

// countersOfStorage move only where programs have files at nodes of their own, or more of one than
// there is room for. TestPagesOfAnotherNode, TestInPlace and TestUnload check that they do.
var countersOfStorage = []string{"pages_read_for_others", "pages_written_for_others", "pages_unloaded"}

// word is word i of page p of what these tests lay into files. No page is zeros.
func word(p, i uint64) uint64 { return (p+1)<<32 | i }

// pageOf is the page of that number.
func pageOf(p uint64) []byte {
	b := make([]byte, 0, 4096)
	for i := range uint64(512) {
		b = binary.NativeEndian.AppendUint64(b, word(p, i))
	}
	return b
}

// laid makes a file in which each page holds the page of the number that is told, but for what is
// behind its end, and which has nothing else.
func laid(t testing.TB, size int64, number func(uint64) uint64) *os.File {
	t.Helper()
	var all []byte
	for p := uint64(0); int64(len(all)) < size; p++ {
		all = append(all, pageOf(number(p))...)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(all[:size]); err != nil {
		t.Fatal(err)
	}
	return f
}

func same(p uint64) uint64 { return p }

// beginsCall is a call that has the pages of an allocation begin with what is in files, one of them
// here or none.
func (p *prog) beginsCall(page pagetable.Page, count uint64, what attach.Contents, file *os.File) attach.Call {
	p.Helper()
	if file != nil {
		what.Files, what.First = 1, p.give(file)
	}
	return attach.Call{Op: attach.OpContents, Object: uint64(page), Count: count, Payload: attach.AppendContents(nil, &what)}
}

// mapped binds pages in the first program of each node, and has them begin with files, of which
// each node has the one of its number, or none.
func (c *cluster) mapped(name string, count uint64, what attach.Contents, files ...*os.File) (first pagetable.Page, programs []*prog) {
	c.Helper()
	for _, m := range c.members {
		if len(m.programs) == 0 {
			m.join()
		}
		programs = append(programs, m.programs[0])
	}
	first = share(name, count, programs...)
	begin(first, count, what, files, programs...)
	return first, programs
}

// begin has memory that programs of all nodes have bound begin in files: one for each node that has
// one.
func begin(first pagetable.Page, count uint64, what attach.Contents, files []*os.File, programs ...*prog) {
	for i, p := range programs {
		p.Helper()
		var file *os.File
		if i < len(files) {
			file = files[i]
		}
		p.ok(p.beginsCall(first, count, what, file))
	}
}

// wantPage checks all of what a page of a program holds.
func (p *prog) wantPage(page pagetable.Page, want []byte) {
	p.Helper()
	var got []byte
	p.settled(p.access(page, false, func(b []byte) { got = bytes.Clone(b) }))
	if !bytes.Equal(got, want) {
		p.Errorf("page %d holds %x, want %x", page, got[:8], want[:8])
	}
}

// TestPagesOfAnotherNode: one node has a file. Others read its pages from there, in order or not,
// each from the disk once. Behind its end are zeros.
func TestPagesOfAnotherNode(t *testing.T) {
	const pages, bytesInAll = 104, 99*4096 + 24
	either(t, func(t *testing.T, async bool) {
		c := start(t, setup{nodes: 3, async: async})
		first, all := c.mapped("x", pages, attach.Contents{Bytes: bytesInAll, Readers: []uint16{0}}, laid(t, bytesInAll, same))
		want := func(i int) []byte {
			b := pageOf(uint64(i))
			if i == 99 {
				clear(b[24:])
			} else if i > 99 {
				clear(b)
			}
			return b
		}
		all[1].walk(1, first, 60, false, func(i int, b []byte) {
			if !bytes.Equal(b, want(i)) {
				t.Errorf("in order, page %d holds %x", i, b[:8])
			}
		})
		for _, i := range rand.Perm(pages - 60) {
			all[2].wantPage(first+60+pagetable.Page(i), want(60+i))
		}
		for i := range pages {
			for _, p := range all {
				p.wantPage(first+pagetable.Page(i), want(i))
			}
		}
		c.quiet()
		c.members[0].want(map[string]uint64{"pages_read_for_others": 100, "pages_from_files": 0})
		one, two := c.members[1].counter("pages_from_files"), c.members[2].counter("pages_from_files")
		if one < 60 || one+two != 100 {
			t.Errorf("%d and %d pages came from the file, 100 are in it", one, two)
		}
	})
}

// TestStripes: each of three nodes has a part of the pages, some in turn, behind something else.
func TestStripes(t *testing.T) {
	const rounds, stripe, unit = 5, 4, 4096
	either(t, func(t *testing.T, async bool) {
		c := start(t, setup{nodes: 3, async: async})
		readers := []uint16{2, 0, 1}
		var files []*os.File // by node
		for node := range 3 {
			turn := uint64(slices.Index(readers, uint16(node)))
			files = append(files, laid(t, (1+rounds*stripe)*unit, func(p uint64) uint64 {
				if p == 0 {
					return 1 << 20 // what is before
				}
				return ((p-1)/stripe*3+turn)*stripe + (p-1)%stripe
			}))
		}
		what := attach.Contents{Offset: unit, Bytes: rounds * stripe * unit, Readers: readers, Stripe: stripe}
		const pages = 3 * rounds * stripe
		first, all := c.mapped("x", pages+1, what, files...)
		for k, p := range all {
			p.walk(1, first+pagetable.Page(k*pages/3), pages/3, false, func(i int, b []byte) {
				if want := pageOf(uint64(k*pages/3 + i)); !bytes.Equal(b, want) {
					t.Errorf("page %d holds %x, want %x", k*pages/3+i, b[:8], want[:8])
				}
			})
		}
		for i := range pages + 1 {
			want := pageOf(uint64(i))
			if i == pages {
				clear(want)
			}
			all[i%3].wantPage(first+pagetable.Page(i), want)
		}
		c.quiet()
		for i, m := range c.members {
			if n := m.counter("pages_read_for_others"); n == 0 || n > rounds*stripe {
				t.Errorf("node %d has read %d pages of its %d for others", i, n, rounds*stripe)
			}
		}
	})
}

// inPlace is the call by which what has changed is written to the files in which it began.
func (s *save) inPlace(first bool) attach.Call {
	c := attach.Call{Op: attach.OpCheckpoint, Payload: attach.AppendCheckpoint(nil, &attach.Checkpoint{ID: [16]byte{s.id}, Base: [16]byte{s.base}, InPlace: true})}
	if first {
		c.Count = uint64(s.give(s.memo))
	}
	return c
}

// writeBack has all nodes write what has changed of a run since another time, and returns how many
// pages that were.
func writeBack(id, base byte, first pagetable.Page, count uint64, all []*prog) (written uint64) {
	var saves []*save
	for _, p := range all {
		p.Helper()
		s := p.save(id, base, first, count)
		s.ok(s.inPlace(true))
		saves = append(saves, s)
	}
	covered := make([]bool, count)
	for _, s := range saves {
		for i, is := range s.covered() {
			covered[i] = covered[i] || is
		}
	}
	for i, is := range covered {
		if !is {
			saves[0].Errorf("no node has taken page %d", i)
		}
	}
	for _, s := range saves {
		saved, err := attach.DecodeSaved(s.ok(attach.Call{Op: attach.OpSaved}).Payload)
		if err != nil {
			s.Fatal(err)
		}
		written += saved.Slots
	}
	return written
}

// fileAt is how file and page of it a page has that is stripe 2 of two nodes.
func fileAt(page uint64) (node int, at int64) {
	return int(page / 2 % 2), int64(page/4*2+page%2) * 4096
}

// TestInPlace: what has changed goes to the file in which it began, here or at another node; and
// nothing else, nor twice. A page that a node may store to, and that it has only loaded, has not
// changed.
func TestInPlace(t *testing.T) {
	const pages = 64
	either(t, func(t *testing.T, async bool) {
		c := start(t, setup{nodes: 3, async: async})
		var files []*os.File
		for node := range uint64(2) {
			files = append(files, laid(t, pages/2*4096, func(p uint64) uint64 { return p/2*4 + node*2 + p%2 }))
		}
		what := attach.Contents{Bytes: pages / 2 * 4096, Readers: []uint16{0, 1}, Stripe: 2, Written: true}
		first, all := c.mapped("x", pages, what, files...)
		for i := range pages {
			all[i%3].wantPage(first+pagetable.Page(i), pageOf(uint64(i)))
		}
		// So it is seen if a page is written that has not changed.
		want := make([][]byte, pages)
		for i := range uint64(pages) {
			want[i] = bytes.Repeat([]byte{0xee, byte(i)}, 2048)
			node, at := fileAt(i)
			if _, err := files[node].WriteAt(want[i], at); err != nil {
				t.Fatal(err)
			}
		}
		change := func(by int, page uint64, v uint64) {
			all[by].store(first+pagetable.Page(page), 8, v)
			want[page] = pageOf(page)
			binary.NativeEndian.PutUint64(want[page][8:], v)
		}
		wantFiles := func() {
			t.Helper()
			for i, want := range want {
				node, at := fileAt(uint64(i))
				got := make([]byte, 4096)
				if _, err := files[node].ReadAt(got, at); err != nil || !bytes.Equal(got, want) {
					t.Errorf("page %d is in the file as %x, want %x; %v", i, got[:16], want[:16], err)
				}
			}
		}
		wantWritten := func(id, base byte, want uint64) {
			t.Helper()
			if n := writeBack(id, base, first, pages, all); n != want {
				t.Errorf("%d pages were written, want %d", n, want)
			}
			wantFiles()
		}
		wantWritten(1, 0, 0)
		far := func() uint64 {
			return c.members[0].counter("pages_written_for_others") + c.members[1].counter("pages_written_for_others")
		}
		others := uint64(0) // changed at a node that has not their file
		for i := uint64(0); i < pages; i += 5 {
			by := int(i / 5 % 3)
			change(by, i, i+1)
			if node, _ := fileAt(i); node != by {
				others++
			}
		}
		wantWritten(2, 1, 13)
		if n := far(); n != others || others == 0 {
			t.Errorf("%d pages were written for other nodes, want %d", n, others)
		}
		wantWritten(3, 2, 0)
		change(2, 5, 77) // it was another node's
		change(0, 6, 78) // it was only loaded
		all[1].wantPage(first+6, append(binary.NativeEndian.AppendUint64(pageOf(6)[:8], 78), pageOf(6)[16:]...))
		wantWritten(4, 3, 2)
		change(1, 60, 0)
		wantWritten(5, 9, 14) // nobody knows what has changed since 9, but what never has
		c.quiet()
	})
}

// wantPages checks all of what a run of pages holds, by a thread that goes over them.
func (p *prog) wantPages(first pagetable.Page, count int, want func(i int) []byte) {
	p.Helper()
	p.walk(3, first, count, false, func(i int, b []byte) {
		if w := want(i); !bytes.Equal(b, w) {
			p.Errorf("page %d of the run holds %x, want %x", i, b[:16], w[:16])
		}
	})
}

// asLaid is what pages hold that nobody has changed.
func asLaid(i int) []byte { return pageOf(uint64(i)) }

// TestUnload: a program goes over twice as much as its node has room for, of files here and at
// another node. Pages that nobody has changed leave without being written anywhere, and come back
// exact, here and at other nodes.
func TestUnload(t *testing.T) {
	t.Parallel()
	const pages = 2 * leastRoom
	for name, what := range map[string]attach.Contents{
		"here": {Readers: []uint16{1}}, "elsewhere": {Readers: []uint16{0}}, "striped": {Readers: []uint16{0, 1}, Stripe: 8},
	} {
		t.Run(name, func(t *testing.T) {
			either(t, func(t *testing.T, async bool) {
				c := startTight(t, setup{nodes: 3, pages: pages + HomeStripe, async: async}, 1)
				files := make([]*os.File, 2)
				n := uint64(len(what.Readers))
				for turn, node := range what.Readers {
					files[node] = laid(t, pages*4096/int64(n), func(p uint64) uint64 {
						if n == 1 {
							return p
						}
						return (p/8*2+uint64(turn))*8 + p%8
					})
				}
				what.Bytes = pages * 4096 / n
				first, all := c.mapped("x", pages, what, files...)
				for range 2 {
					all[1].wantPages(first, pages, asLaid)
				}
				m := c.members[1]
				if n := m.counter("pages_unloaded"); n < 2*pages-2*leastRoom {
					t.Errorf("%d pages have left", n)
				}
				m.want(map[string]uint64{"spill_writes": 0, "page_offers": 0, "pages_sent": 0})
				before := c.members[2].counter("pages_from_files")
				if before != 0 {
					t.Errorf("%d pages have begun at a node that has touched none", before)
				}
				for _, i := range rand.Perm(pages)[:100] {
					all[2].wantPage(first+pagetable.Page(i), pageOf(uint64(i)))
				}
				all[2].wantPages(first, pages, asLaid)
				// Who has them has said so, and no more.
				if n := c.members[2].counter("pages_from_files"); n < pages/2 {
					t.Errorf("%d pages came from files to the node that was last", n)
				}
				stored := map[int]uint64{}
				for k, i := range rand.Perm(pages)[:200] {
					stored[i] = uint64(k)
					all[1+k%2].store(first+pagetable.Page(i), 0, stored[i])
				}
				changed := func(i int) []byte {
					b := pageOf(uint64(i))
					if v, is := stored[i]; is {
						binary.NativeEndian.PutUint64(b, v)
					}
					return b
				}
				for _, p := range all {
					p.wantPages(first, pages, changed)
				}
				c.quiet()
				c.wantBound()
			})
		})
	}
}

// TestFreeOfUnloaded: memory is freed some of whose pages are not in memory, while some of those
// are being fetched. What comes later belongs to nobody, and other files can take the place.
func TestFreeOfUnloaded(t *testing.T) {
	t.Parallel()
	const pages = 2 * leastRoom
	either(t, func(t *testing.T, async bool) {
		c := startTight(t, setup{nodes: 2, pages: pages + HomeStripe, async: async}, 0)
		what := attach.Contents{Bytes: pages * 4096, Readers: []uint16{1}}
		for round := range uint64(3) {
			number := func(p uint64) uint64 { return p + 1000*round }
			first, all := c.mapped("x", pages, what, nil, laid(t, pages*4096, number))
			if first != 0 {
				t.Fatalf("the memory is at page %d", first)
			}
			all[0].wantPages(first, pages, func(i int) []byte { return pageOf(number(uint64(i))) })
			c.net.Stall(1, 0)
			_, fetched := all[0].prefetch(first, 300, attach.Read)
			all[0].sync()
			// Node 1 must say that it frees the memory, and says nothing before it resumes.
			_, one := all[1].call(unbindCall("x"))
			_, two := all[0].call(unbindCall("x"))
			all[0].sync()
			c.net.Resume(1, 0)
			all[1].answer(one)
			all[0].answer(two)
			all[0].answer(fetched)
			eventually(t, "nothing of it is here", func() bool { return c.members[0].counter("pages") == 0 })
		}
		c.quiet()
		c.wantBound()
		for i, m := range c.members {
			s := m.node.drive.storage
			if len(s.asks)+len(s.fresh)+len(s.writes)+len(s.waiting) != 0 || s.reading.Free() != mostReading {
				t.Errorf("node %d has %d pages to come, room to read %d bytes", i, len(s.asks), s.reading.Free())
			}
			if n := len(m.node.origins.list); n != 0 {
				t.Errorf("node %d has %d origins of memory that is freed", i, n)
			}
		}
	})
}

// TestCheckpointOfFiles: an ordinary checkpoint has the pages of a file that is written to and that
// nobody has changed, whether they are in memory, have left it, or leave it while it goes on.
func TestCheckpointOfFiles(t *testing.T) {
	t.Parallel()
	const pages = 2 * leastRoom
	either(t, func(t *testing.T, async bool) {
		c := startTight(t, setup{nodes: 2, pages: pages + HomeStripe, async: async}, 0)
		first, all := c.mapped("x", pages, attach.Contents{Bytes: pages * 4096, Readers: []uint16{1}, Written: true}, nil, laid(t, pages*4096, same))
		a := all[0]
		a.wantPages(first, pages, asLaid)
		for round := range byte(3) {
			a.store(first+pagetable.Page(round), 0, 7)
			s := a.save(round+1, 0, first, pages)
			s.ok(s.call(true, true))
			a.store(first+pagetable.Page(round), 0, 8)
			// It had not changed.
			a.store(first+100+pagetable.Page(round), 0, word(100+uint64(round), 0)+1)
			a.walk(1, first+200, pages-200, false, func(int, []byte) {}) // pages leave
			covered := s.covered()
			words := s.finish()
			for i, is := range covered {
				want := word(uint64(i), 0)
				switch {
				case i == int(round):
					want = 7
				case i < int(round):
					want = 8
				case i >= 100 && i < 100+int(round):
					want++
				}
				if got, has := words[uint64(i)]; !is || !has || got != want {
					t.Fatalf("page %d is taken, %t, and saved as %x, want %x", i, is, got, want)
				}
			}
		}
		c.quiet()
		c.wantBound()
	})
}

// TestCheckpointOfUntouched: pages that begin in files that are written to, and that nobody has
// touched, are copied from there by their homes, at the first asking. They come into no node's
// memory.
func TestCheckpointOfUntouched(t *testing.T) {
	const pages = 2 * HomeStripe
	either(t, func(t *testing.T, async bool) {
		c := start(t, setup{nodes: 2, pages: pages + HomeStripe, async: async})
		first, all := c.mapped("x", pages, attach.Contents{Bytes: pages * 4096, Readers: []uint16{1}, Written: true}, nil, laid(t, pages*4096, same))
		words := map[uint64]uint64{}
		for _, p := range all {
			s := p.save(1, 0, first, pages)
			s.ok(s.call(false, true))
			covered := s.covered()
			mine := s.finish()
			for page, w := range mine {
				if !covered[page] || w != word(page, 0) {
					t.Errorf("page %d is taken, %t, and saved as %x", page, covered[page], w)
				}
			}
			maps.Copy(words, mine)
		}
		if len(words) != pages {
			t.Errorf("%d pages of %d are saved at the first asking", len(words), pages)
		}
		c.quiet()
		for i, m := range c.members {
			if n := m.counter("pages"); n != 0 {
				t.Errorf("node %d has %d pages in memory", i, n)
			}
		}
	})
}

// TestCheckpointAsksAtOnce: what a checkpoint needs of another node's file is asked for although
// nothing else happens, also by a node that never polls.
func TestCheckpointAsksAtOnce(t *testing.T) {
	const pages = 2 * HomeStripe
	c := start(t, setup{nodes: 2, pages: pages + HomeStripe, change: func(cfg *Config) { cfg.Core.Spin = -1 }})
	first, all := c.mapped("x", pages, attach.Contents{Bytes: pages * 4096, Readers: []uint16{1}, Written: true}, nil, laid(t, pages*4096, same))
	s := all[0].save(1, 0, first, pages)
	s.ok(s.call(true, true))
	eventually(t, "pages are read for the checkpoint", func() bool { return c.members[1].counter("pages_read_for_others") >= pages/2 })
	if n := len(s.finish()); n != pages/2 { // which have their home here
		t.Errorf("%d pages are saved", n)
	}
	c.quiet()
}

// giveUp begins a checkpoint of node 0 for which node 1 reads pages, and has its program die then.
func (c *cluster) giveUp(s *save) {
	c.Helper()
	s.ok(s.call(true, true))
	eventually(c, "the other node has read pages", func() bool { return c.members[1].counter("pages_read_for_others") > 0 })
	s.die()
	eventually(c, "the program has gone", func() bool { return c.members[0].counter("programs") == 1 })
}

// TestCheckpointIsGone: the program that has asked for a checkpoint goes while pages for it are
// read at another node. They come for nobody, and the next checkpoint is whole.
func TestCheckpointIsGone(t *testing.T) {
	const pages = 64
	c := start(t, setup{nodes: 2, ranks: 4})
	first, all := c.mapped("x", pages, attach.Contents{Bytes: pages * 4096, Readers: []uint16{1}, Written: true}, nil, laid(t, pages*4096, same))
	other := c.members[0].join()
	other.bind("x", pages)
	c.net.Stall(1, 0)
	c.giveUp(all[0].save(1, 0, first, pages))
	c.net.Resume(1, 0)
	next := other.save(2, 1, first, pages)
	next.ok(next.call(true, true))
	for i, v := range next.finish() {
		if v != word(i, 0) {
			t.Errorf("page %d is saved as %x", i, v)
		}
	}
	other.wantPage(first, pageOf(0))
	c.quiet()
}

// TestInPlaceOfWhatIsNot: pages that are in no file, or in one that is not to be written, are
// refused by name, whatever has become of them, and the file stays as it is.
func TestInPlaceOfWhatIsNot(t *testing.T) {
	const pages = 64
	c := start(t, setup{nodes: 1})
	file := laid(t, pages*4096, same)
	first, all := c.mapped("x", pages, attach.Contents{Bytes: pages * 4096}, file)
	a := all[0]
	a.number(first, pages)
	none := a.bind("y", pages)
	a.number(none, pages)
	for id, page := range map[byte]pagetable.Page{1: first, 2: none} {
		s := a.save(id, 0, page, pages)
		if r := a.do(s.inPlace(true)); r.Status != attach.StatusUnknown || !strings.Contains(string(r.Payload), "in no file that it could be written to") {
			t.Errorf("page %d is answered with %v %q", page, r.Status, r.Payload)
		}
		a.do(attach.Call{Op: attach.OpSaved})
	}
	got, err := os.ReadFile(file.Name())
	if err != nil || !bytes.Equal(got[:4096], pageOf(0)) || !bytes.Equal(got[63*4096:], pageOf(63)) {
		t.Errorf("the file was written, %v", err)
	}
	a.wantNumbers(first, pages)
	a.wantNumbers(none, pages)
	c.quiet()
}

// TestInPlaceNoLonger: while pages are being written to their file a program says that they begin
// in another, which is not to be written. What is left is refused, and the node goes on.
func TestInPlaceNoLonger(t *testing.T) {
	const pages = 2*inPlaceOnTheWay/4096 + 64
	diskio.WriteDelay.Store(int64(20 * time.Millisecond))
	t.Cleanup(func() { diskio.WriteDelay.Store(0) })
	c := start(t, setup{nodes: 1, pages: pages + HomeStripe})
	file := laid(t, pages*4096, same)
	first, all := c.mapped("x", pages, attach.Contents{Bytes: pages * 4096, Written: true}, file)
	a := all[0]
	a.number(first, pages)
	s := a.save(1, 0, first, pages)
	a.ok(s.inPlace(true))
	var places []byte
	for i := range uint64(pages) {
		places = attach.AppendPlace(places, attach.Place{File: 1, Slot: i})
	}
	what := attach.Contents{Files: 1, First: a.give(file), Table: a.give(a.inMemory(places, uint64(len(places))))}
	a.ok(attach.Call{Op: attach.OpContents, Object: uint64(first), Count: pages, Payload: attach.AppendContents(nil, &what)})
	if r := a.do(attach.Call{Op: attach.OpSaved}); r.Status != attach.StatusUnknown || !strings.Contains(string(r.Payload), "in no file that it could be written to") {
		t.Errorf("what is left is answered with %v %q", r.Status, r.Payload)
	}
	a.wantNumbers(first, pages)
	c.quiet()
}

// TestPrefetchOfWhatHasLeft: what a program prefetches, or pins, is in memory afterwards, also what
// its node has, and has parted with for want of room: to a spill file, or because it is in a file.
func TestPrefetchOfWhatHasLeft(t *testing.T) {
	t.Parallel()
	const pages = 2 * leastRoom
	for _, spill := range []bool{false, true} {
		t.Run(map[bool]string{false: "unloaded", true: "spilled"}[spill], func(t *testing.T) {
			either(t, func(t *testing.T, async bool) {
				c := startTight(t, setup{nodes: 2, pages: pages + HomeStripe, async: async, spill: spill}, 0)
				first, all := c.mapped("x", pages, attach.Contents{Bytes: pages * 4096, Readers: []uint16{1}}, nil, laid(t, pages*4096, same))
				p, m := all[0], c.members[0]
				if spill {
					p.number(first, pages)
				} else {
					p.wantPages(first, pages, asLaid)
				}
				for _, access := range []attach.Access{attach.Read, attach.Write} {
					_, fetched := p.prefetch(first, 300, access)
					if r := p.answer(fetched); r.Status != attach.StatusOK {
						t.Errorf("prefetched for %v: %v", access, r.Status)
					}
					before := m.counter("spill_reads")
					p.walk(1, first+250, 50, false, func(int, []byte) {})
					if n := m.counter("spill_reads") - before; n != 0 {
						t.Errorf("%d of 50 pages come back that were prefetched", n)
					}
					p.walk(1, first+300, pages-300, false, func(int, []byte) {}) // they leave again
				}
				ticket := p.pin(first, 200, attach.Read)
				before := m.counter("spill_reads")
				for i := range pagetable.Page(200) {
					p.load(first+i, 0)
				}
				if n := m.counter("spill_reads") - before; n != 0 {
					t.Errorf("%d of 200 pinned pages come back", n)
				}
				p.unpin(ticket)
				c.quiet()
				c.wantBound()
			})
		})
	}
}

// TestFreeOfWhatIsSaved: memory is freed while pages of it are read at another node for a
// checkpoint. Who waits for that is answered.
func TestFreeOfWhatIsSaved(t *testing.T) {
	const pages = 64
	c := start(t, setup{nodes: 2, before: func(n *Node) {
		if n.cfg.Self == 1 {
			n.drive.storage.reading = diskio.NewShares(0) // its disk is slow
		}
	}})
	first, all := c.mapped("x", pages, attach.Contents{Bytes: pages * 4096, Readers: []uint16{1}}, nil, laid(t, pages*4096, same))
	a, b := all[0], all[1]
	b.ok(unbindCall("x"))
	s := a.save(1, 0, first, pages)
	s.ok(s.call(true, true))
	_, saved := a.call(attach.Call{Op: attach.OpSaved})
	a.sync()
	a.ok(unbindCall("x"))
	a.answer(saved)
	c.quiet()
}
