package node

import (
	"encoding/binary"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/diskio"
	"dsmd/internal/memfile"
	"dsmd/pagetable"
)

// give gives a file to the daemon.
func (p *prog) give(f *os.File) uint32 {
	p.Helper()
	p.mu.Lock()
	p.ticket++
	ticket, answer := p.ticket, make(chan attach.Reply, 1)
	p.open[ticket] = answer
	p.mu.Unlock()
	if err := p.conn.Write(attach.AppendCall(nil, &attach.Call{Op: attach.OpFile, Ticket: ticket}), int(f.Fd())); err != nil {
		p.Fatal(err)
	}
	return p.answer(answer).Rank
}

// save is a checkpoint of a run of pages, as a program asks its daemon for it.
type save struct {
	*prog
	order      attach.Order
	data, memo *os.File
	id, base   byte // the first byte of each
	twice      uint64
}

func (p *prog) save(id, base byte, first pagetable.Page, count uint64) *save {
	p.Helper()
	s := &save{prog: p, order: attach.Order{Runs: []attach.Run{{First: uint64(first), Count: count}}}, id: id, base: base}
	var err error
	if s.data, err = os.Create(filepath.Join(p.TempDir(), "pages")); err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { s.data.Close() })
	s.memo = p.inMemory(attach.AppendOrder(nil, &s.order), uint64(s.order.IndexAt())+count*attach.EntryBytes)
	return s
}

// inMemory is a memory file of a size that begins with some bytes.
func (p *prog) inMemory(b []byte, size uint64) *os.File {
	p.Helper()
	fd, err := memfile.Create("test", size)
	if err != nil {
		p.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	p.Cleanup(func() { f.Close() })
	if _, err := f.WriteAt(b, 0); err != nil {
		p.Fatal(err)
	}
	return f
}

func (s *save) call(copies, first bool) attach.Call {
	c := attach.Call{Op: attach.OpCheckpoint, Payload: attach.AppendCheckpoint(nil, &attach.Checkpoint{ID: [16]byte{s.id}, Base: [16]byte{s.base}, Copies: copies})}
	if first {
		c.Object, c.Count = uint64(s.give(s.data)), uint64(s.give(s.memo))
	}
	return c
}

// covered is which pages are saved.
func (s *save) covered() (all []bool) {
	s.Helper()
	b := make([]byte, s.order.IndexAt()-s.order.BitsAt())
	if _, err := s.memo.ReadAt(b, s.order.BitsAt()); err != nil {
		s.Fatal(err)
	}
	for i := range s.order.Pages() {
		all = append(all, b[i/8]&(1<<(i%8)) != 0)
	}
	return all
}

// elsewhere says that another node saves pages of the order, too: those that are set in these bits.
func (s *save) elsewhere(bits byte) {
	s.Helper()
	b := make([]byte, s.order.IndexAt()-s.order.BitsAt())
	b[0] = bits
	if _, err := s.memo.WriteAt(b, s.order.BitsAt()); err != nil {
		s.Fatal(err)
	}
	s.twice = attach.SavedTwice
}

// finish waits until all is written, and returns the first words of the pages that were.
func (s *save) finish() map[uint64]uint64 {
	s.Helper()
	return s.written(s.ok(attach.Call{Op: attach.OpSaved, Count: s.twice}))
}

// written are the first words of the pages that were written, as the node says when all are.
func (s *save) written(r attach.Reply) map[uint64]uint64 {
	s.Helper()
	saved, err := attach.DecodeSaved(r.Payload)
	if err != nil {
		s.Fatal(err)
	}
	words, index := map[uint64]uint64{}, make([]byte, saved.Entries*attach.EntryBytes)
	if _, err := s.memo.ReadAt(index, s.order.IndexAt()); len(index) > 0 && err != nil {
		s.Fatal(err)
	}
	for at := 0; at < len(index); at += attach.EntryBytes {
		e, page := attach.EntryIn(index[at:]), make([]byte, 4096)
		if e.Slot != attach.ZeroSlot {
			if _, err := s.data.ReadAt(page, int64(e.Slot)*4096); err != nil || crc32.Checksum(page, crc32.MakeTable(crc32.Castagnoli)) != e.CRC || e.Slot >= saved.Slots {
				s.Fatalf("page %d in slot %d of %d: %v, or another checksum", e.Page, e.Slot, saved.Slots, err)
			}
		}
		if _, twice := words[e.Page]; twice {
			s.Errorf("page %d was written twice", e.Page)
		}
		words[e.Page] = binary.NativeEndian.Uint64(page)
	}
	return words
}

// TestCheckpoint: each page is saved by one node, as it was when the nodes were asked, whatever is
// stored later. What has not changed since is not saved again.
func TestCheckpoint(t *testing.T) {
	either(t, func(t *testing.T, async bool) {
		c := start(t, setup{nodes: 2, async: async})
		a, b := c.members[0].join(), c.members[1].join()
		page := a.bind("x", 40)
		b.bind("x", 40)
		for i := range pagetable.Page(32) { // 8 pages nobody touches
			[]*prog{a, b}[i%2].store(page+i, 0, 100+uint64(i))
		}
		a.store(page+2, 0, 0) // a page of zeros
		b.load(page, 0)       // a copy
		saves := []*save{a.save(1, 0, page, 40), b.save(1, 0, page, 40)}
		for _, s := range saves {
			s.ok(s.call(false, true))
		}
		first, second := saves[0].covered(), saves[1].covered()
		for i := range first {
			if first[i] == second[i] {
				t.Errorf("page %d is saved by node 0: %t, and by node 1: %t", i, first[i], second[i])
			}
		}
		for i := range pagetable.Page(32) {
			[]*prog{b, a}[i%2].store(page+i, 0, 7)
		}
		all := saves[0].finish()
		for i, v := range saves[1].finish() {
			all[i] = v
		}
		for i := range uint64(32) {
			want := 100 + i
			if i == 2 {
				want = 0
			}
			if v, is := all[i]; !is || v != want {
				t.Errorf("page %d is saved, %t, as %d, want %d", i, is, v, want)
			}
		}
		if len(all) != 32 {
			t.Errorf("%d pages were written, 32 were stored to", len(all))
		}
		again := []*save{a.save(2, 1, page, 40), b.save(2, 1, page, 40)}
		a.store(page+5, 0, 8)
		for _, s := range again {
			s.ok(s.call(false, true))
		}
		// Of those that have changed owner some are still as they were saved.
		words := again[0].finish()
		for i, v := range again[1].finish() {
			words[i] = v
		}
		if words[5] != 8 || len(words) != 32 {
			t.Errorf("then %d pages were written: %v", len(words), words)
		}
		last := []*save{a.save(3, 2, page, 40), b.save(3, 2, page, 40)}
		a.store(page+7, 0, 9) // it has that
		for _, s := range last {
			s.ok(s.call(false, true))
		}
		words = last[0].finish()
		if more := last[1].finish(); len(more) != 0 || len(words) != 1 || words[7] != 9 {
			t.Errorf("one page has changed; written were %v and %v", words, more)
		}
		c.quiet()
	})
}

// TestSavedByTwoNodes: a page goes from one node to another between their looks, and is stored to
// there for the last time. Both save it, and what is in the checkpoint may be what it was before.
// So the next one has it again.
func TestSavedByTwoNodes(t *testing.T) {
	either(t, func(t *testing.T, async bool) {
		c := start(t, setup{nodes: 2, async: async})
		a, b := c.members[0].join(), c.members[1].join()
		page := a.bind("x", 8)
		b.bind("x", 8)
		b.store(page, 0, 1)
		b.store(page+1, 0, 1)
		saves := []*save{a.save(1, 0, page, 8), b.save(1, 0, page, 8)}
		saves[1].ok(saves[1].call(false, true))
		a.store(page, 0, 2)
		saves[0].ok(saves[0].call(false, true))
		for i, s := range saves {
			if !s.covered()[0] {
				t.Fatalf("node %d does not save the page", i)
			}
			s.elsewhere(1)
		}
		if there, here := saves[1].finish()[0], saves[0].finish()[0]; there != 1 || here != 2 {
			t.Errorf("the page is saved as %d and %d", there, here)
		}
		words := map[uint64]uint64{}
		for _, s := range []*save{a.save(2, 1, page, 8), b.save(2, 1, page, 8)} {
			s.ok(s.call(false, true))
			maps.Copy(words, s.finish())
		}
		if len(words) != 1 || words[0] != 2 {
			t.Errorf("the next checkpoint has %v", words)
		}
		c.quiet()
	})
}

// TestCheckpointThatFails: what can't be written is told to who waits, and programs go on. So do
// they when the one that has asked has gone, or has thought better of it.
func TestCheckpointThatFails(t *testing.T) {
	c := start(t, setup{nodes: 1, ranks: 2})
	a, b := c.members[0].join(), c.members[0].join()
	page := a.bind("x", 40)
	b.bind("x", 40)
	fill := func(v uint64) {
		for i := range pagetable.Page(40) {
			b.store(page+i, 0, v)
		}
	}
	fill(1)
	s := a.save(1, 0, page, 40)
	readOnly, err := os.Open(s.data.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer readOnly.Close()
	s.data = readOnly
	s.ok(s.call(false, true))
	fill(2)
	if r := a.do(attach.Call{Op: attach.OpSaved}); r.Status != attach.StatusUnknown || !strings.Contains(string(r.Payload), "bad file descriptor") {
		t.Errorf("it is answered with %v %q", r.Status, r.Payload)
	}
	fill(3)
	s = a.save(2, 1, page, 40)
	s.ok(s.call(false, true))
	if words := s.finish(); len(words) != 40 {
		t.Errorf("after one that has failed %d pages were written, want all", len(words))
	}
	s = a.save(3, 2, page, 40)
	s.ok(s.call(false, true))
	ticket, answer := a.prog().call(attach.Call{Op: attach.OpSaved})
	a.cancel(ticket)
	if r := a.answer(answer); r.Status != attach.StatusOK && r.Status != attach.StatusCanceled {
		t.Errorf("it is canceled with %v", r.Status)
	}
	s = a.save(4, 0, page, 40)
	s.ok(s.call(false, true))
	other := b.save(5, 0, page, 40)
	if r := b.do(other.call(false, true)); r.Status != attach.StatusUnknown {
		t.Errorf("a second one at the same time is answered with %v", r.Status)
	}
	a.die()
	fill(5)
	last := b.save(6, 4, page, 40)
	last.ok(last.call(false, true))
	if words := last.finish(); len(words) != 40 || words[0] != 5 {
		t.Errorf("after one whose program has gone %d pages were written, want all", len(words))
	}
	c.quiet()
}

// prog is the program itself: that of save has a call of its own.
func (p *prog) prog() *prog { return p }

// contents has the pages of an allocation that nobody has touched begin with what a file has, one
// behind the other.
func (p *prog) contents(page pagetable.Page, count uint64) {
	p.Helper()
	file, err := os.Create(filepath.Join(p.TempDir(), "contents"))
	if err != nil {
		p.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(int64(count) * 4096); err != nil {
		p.Fatal(err)
	}
	what := attach.Contents{Files: 1, First: p.give(file), Bytes: count * 4096}
	p.ok(attach.Call{Op: attach.OpContents, Object: uint64(page), Count: count, Payload: attach.AppendContents(nil, &what)})
}

// stuckDisk is a queue of which no transfer ends before it is let.
type stuckDisk struct {
	diskQueue
	submitted *atomic.Int32 // transfers
	let       chan struct{}
}

func (d *stuckDisk) Submit(list ...*diskio.Transfer) { d.submitted.Add(int32(len(list))) }

func (d *stuckDisk) Close() error {
	<-d.let
	return d.diskQueue.Close()
}

func (d *stuckDisk) Abandon(over func(error)) { go func() { over(d.Close()) }() }

// TestCheckpointGivenUp: the node does not wait for a disk that does not answer when the checkpoint
// is given up that it writes, nor at its own end. Others can be taken, but not any number that are
// given up, too, before the disk answers.
func TestCheckpointGivenUp(t *testing.T) {
	var works atomic.Bool
	var submitted atomic.Int32
	let := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	var now atomic.Int32 // of let
	c := start(t, setup{nodes: 1, before: func(n *Node) {
		n.saver.disk = func(bufBytes int) (diskQueue, error) {
			q, err := newDiskQueue(bufBytes)
			if err != nil || works.Load() {
				return q, err
			}
			return &stuckDisk{q, &submitted, let[now.Load()]}, nil
		}
	}})
	a := c.members[0].join()
	page := a.bind("x", 40)
	for i := range pagetable.Page(40) {
		a.store(page+i, 0, 1+uint64(i))
	}
	id := byte(0)
	begin := func() (*save, attach.Reply) {
		id++
		s := a.save(id, 0, page, 40)
		return s, a.do(s.call(false, true))
	}
	giveUp := func() {
		before := submitted.Load()
		_, r := begin()
		ticket, answer := a.call(attach.Call{Op: attach.OpSaved})
		eventually(t, "something is being written", func() bool { return submitted.Load() > before })
		a.cancel(ticket)
		if end := a.answer(answer); r.Status != attach.StatusOK || end.Status != attach.StatusCanceled {
			t.Fatalf("a checkpoint begins with %v and is given up with %v", r.Status, end.Status)
		}
		a.store(page, 0, 7)
	}
	giveUp()
	works.Store(true)
	s, _ := begin()
	if words := s.finish(); len(words) != 40 || words[uint64(0)] != 7 {
		t.Errorf("saved are %v", words)
	}
	works.Store(false)
	for range mostStuck - 1 {
		giveUp()
	}
	if _, r := begin(); r.Status != attach.StatusUnknown || !strings.Contains(string(r.Payload), "given up") {
		t.Errorf("one more is answered with %v %q", r.Status, r.Payload)
	}
	works.Store(true)
	close(let[0])
	eventually(t, "the disk has answered", func() bool { return c.members[0].node.saver.stuck.Load() == 0 })
	s, _ = begin()
	s.finish()
	works.Store(false)
	now.Store(1)
	defer close(let[1])
	before := submitted.Load()
	begin()
	a.call(attach.Call{Op: attach.OpSaved})
	eventually(t, "something is being written", func() bool { return submitted.Load() > before })
	c.stop()
}

// slowDisk takes a while for each transfer, and counts those that are under way.
type slowDisk struct {
	diskQueue
	underWay *atomic.Int32
	since    time.Time // the last transfer
}

func (d *slowDisk) Submit(list ...*diskio.Transfer) {
	if d.underWay.Add(int32(len(list))); len(list) > 0 {
		d.since = time.Now()
	}
	d.diskQueue.Submit(list...)
}

func (d *slowDisk) Take() []*diskio.Transfer {
	if time.Since(d.since) < 20*time.Millisecond {
		return nil
	}
	list := d.diskQueue.Take()
	d.underWay.Add(-int32(len(list)))
	return list
}

// TestCheckpointGivenUpByItsProgram: who gives a checkpoint up is answered when nothing is being
// written of it any more, which would have room on the disk, and no more is than has begun.
func TestCheckpointGivenUpByItsProgram(t *testing.T) {
	const pages = 200
	var underWay atomic.Int32
	c := start(t, setup{nodes: 1, before: func(n *Node) {
		n.saver.disk = func(bufBytes int) (diskQueue, error) {
			q, err := newDiskQueue(bufBytes)
			return &slowDisk{diskQueue: q, underWay: &underWay}, err
		}
	}})
	a := c.members[0].join()
	page := a.bind("x", pages)
	for i := range pagetable.Page(pages) {
		a.store(page+i, 0, 1+uint64(i))
	}
	for id := range byte(3) {
		s := a.save(1+id, 0, page, pages)
		s.ok(s.call(false, true))
		eventually(t, "something is being written", func() bool { return underWay.Load() > 0 })
		r := a.do(attach.Call{Op: attach.OpSaved, Count: 1})
		if r.Status != attach.StatusUnknown || !strings.Contains(string(r.Payload), "gives it up") {
			t.Fatalf("it is given up with %v %q", r.Status, r.Payload)
		}
		if n := underWay.Load(); n != 0 {
			t.Errorf("%d transfers are under way", n)
		}
	}
	if stuck := c.members[0].node.saver.stuck.Load(); stuck != 0 {
		t.Errorf("%d checkpoints are waited for", stuck)
	}
	s := a.save(20, 0, page, pages)
	s.ok(s.call(false, true))
	if words := s.finish(); len(words) != pages {
		t.Errorf("%d pages are saved", len(words))
	}
}

// TestContents: pages that nobody has touched begin with what files have. A page that is damaged
// ends the node, which says so.
func TestContents(t *testing.T) {
	c := start(t, setup{nodes: 2, async: true})
	a, b := c.members[0].join(), c.members[1].join()
	page := a.bind("x", 40)
	b.bind("x", 40)
	a.store(page+1, 0, 5) // has been touched
	file, err := os.Create(filepath.Join(t.TempDir(), "pages"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var places []byte
	for i := range uint64(40) {
		contents := make([]byte, 4096)
		binary.NativeEndian.PutUint64(contents, 100+i)
		if _, err := file.WriteAt(contents, int64(39-i)*4096); err != nil {
			t.Fatal(err)
		}
		p := attach.Place{File: 1, Slot: 39 - i, CRC: crc32.Checksum(contents, crc32.MakeTable(crc32.Castagnoli))}
		switch i {
		case 3:
			p = attach.Place{}
		case 4:
			p.CRC++
		}
		places = attach.AppendPlace(places, p)
	}
	for _, p := range []*prog{a, b} {
		table := p.inMemory(places, uint64(len(places)))
		call := func(count uint64) attach.Call {
			what := attach.Contents{Files: 1, First: p.give(file), Table: p.give(table), ID: [16]byte{9}}
			return attach.Call{Op: attach.OpContents, Object: uint64(page), Count: count, Payload: attach.AppendContents(nil, &what)}
		}
		if r := p.do(call(39)); r.Status != attach.StatusUnknown {
			t.Errorf("contents of a part of an allocation are answered with %v", r.Status)
		}
		p.ok(call(40))
	}
	a.wantLoad(page+1, 0, 5)
	a.wantLoad(page, 0, 100)
	b.wantLoad(page, 0, 100)
	b.wantLoad(page+2, 0, 102)
	b.wantLoad(page+3, 0, 0)
	b.walk(1, page+5, 30, true, func(i int, contents []byte) {
		if got := binary.NativeEndian.Uint64(contents); got != uint64(105+i) {
			t.Errorf("page %d holds %d", 5+i, got)
		}
	})
	if n := c.members[1].counter("pages_from_files"); n < 31 {
		t.Errorf("%d pages came from files", n)
	}
	// What the checkpoint 9 has, one that is based on it need not have; one that is not must.
	s := a.save(10, 9, page, 40)
	s.ok(s.call(false, true))
	if n := len(s.finish()); n > 3 {
		t.Errorf("node 0 has written %d pages", n)
	}
	a.access(page+4, false, func([]byte) {})
	<-c.members[0].done
	if err := c.members[0].err; err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("the node with a damaged page ends with %v", err)
	}
}

// TestCheckpointOfLies: orders and tables that are none are refused, and the program can go on.
func TestCheckpointOfLies(t *testing.T) {
	c := start(t, setup{nodes: 1})
	a := c.members[0].join()
	page := a.bind("x", 40)
	onDisk, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer onDisk.Close()
	if err := onDisk.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	order := func(runs ...attach.Run) []byte { return attach.AppendOrder(nil, &attach.Order{Runs: runs}) }
	id := byte(0)
	for what, memo := range map[string]*os.File{
		"on a disk":         onDisk,
		"beyond the region": a.inMemory(order(attach.Run{First: 1 << 40, Count: 1}), 1<<12),
		"an overlap":        a.inMemory(order(attach.Run{First: 0, Count: 9}, attach.Run{First: 8, Count: 9}), 1<<12),
		"too many runs":     a.inMemory([]byte{0, 0, 0, 0, 1}, 1<<12),
		"short of runs":     a.inMemory([]byte{9}, 20),
		"short of bits":     a.inMemory(order(attach.Run{First: 0, Count: testPages}), 30),
	} {
		id++
		s := a.save(id, 0, page, 40)
		s.memo = memo
		if r := a.do(s.call(false, true)); r.Status != attach.StatusUnknown || len(r.Payload) == 0 {
			t.Errorf("an order that is %s is answered with %v %q", what, r.Status, r.Payload)
		}
		a.do(attach.Call{Op: attach.OpSaved}) // some have begun
	}
	place := attach.AppendPlace(nil, attach.Place{File: 2})
	for what, table := range map[string]*os.File{
		"on a disk": onDisk, "short": a.inMemory(nil, 39*attach.PlaceBytes), "of another file": a.inMemory(place, 40*attach.PlaceBytes),
	} {
		contents := attach.Contents{Files: 1, First: a.give(onDisk), Table: a.give(table)}
		r := a.do(attach.Call{Op: attach.OpContents, Object: uint64(page), Count: 40, Payload: attach.AppendContents(nil, &contents)})
		if r.Status != attach.StatusUnknown || len(r.Payload) == 0 {
			t.Errorf("a table that is %s is answered with %v %q", what, r.Status, r.Payload)
		}
	}
	a.wantLoad(page, 0, 0)
	s := a.save(id+1, 0, page, 40)
	s.ok(s.call(false, true))
	s.finish()
	c.quiet()
}

// TestContentsOfLies: files that don't fit together are refused with a reason, and the allocation
// stays as it was. What no Contents can be ends the connection of the program, and of no other.
func TestContentsOfLies(t *testing.T) {
	const pages = 16
	c := start(t, setup{nodes: 2, ranks: 20})
	m := c.members[0]
	a := m.join()
	page := a.bind("x", pages)
	file := laid(t, pages*4096, same)
	for what, is := range map[string]struct {
		contents attach.Contents
		file     bool
		first    pagetable.Page
		count    uint64
	}{
		"a file where another node has the only one": {attach.Contents{Readers: []uint16{1}}, true, page, pages},
		"no file where this node has one":            {attach.Contents{Readers: []uint16{1, 0}, Stripe: 1}, false, page, pages},
		"this node twice":                            {attach.Contents{Readers: []uint16{0, 1, 0}, Stripe: 1}, true, page, pages},
		"a node that is none":                        {attach.Contents{Readers: []uint16{0, 2}, Stripe: 1}, true, page, pages},
		"a node far beyond all":                      {attach.Contents{Readers: []uint16{1<<16 - 1}}, false, page, pages},
		"an offset within a page":                    {attach.Contents{Offset: 100}, true, page, pages},
		"the pages of nobody":                        {attach.Contents{}, true, page + pages, pages},
		"a part of an allocation":                    {attach.Contents{}, true, page, pages - 1},
		"more than an allocation":                    {attach.Contents{}, true, page, pages + 1},
		"its end alone":                              {attach.Contents{}, true, page + 1, pages - 1},
	} {
		is.contents.Bytes = pages * 4096
		var with *os.File
		if is.file {
			with = file
		}
		if r := a.do(a.beginsCall(is.first, is.count, is.contents, with)); r.Status != attach.StatusUnknown || len(r.Payload) == 0 {
			t.Errorf("%s: it is answered with %v %q", what, r.Status, r.Payload)
		}
	}
	a.wantLoad(page, 0, 0) // it begins with zeros
	for what, contents := range map[string]attach.Contents{
		"several nodes, and none in turn": {Readers: []uint16{0, 1}},
		"a table, and nodes that read":    {Table: 1, Files: 1, First: 2, Readers: []uint16{0}},
		"a table, and it is written":      {Table: 1, Files: 1, First: 2, Written: true},
		"no file at all":                  {},
		"two files without a table":       {Files: 2, First: 1},
		"files without end":               {Table: 1, Files: attach.MaxFiles + 1, First: 2},
		"a file that was never given":     {Files: 1, First: 99},
		"a length beyond all":             {Files: 1, First: 1, Bytes: 1<<62 + 1},
		"an offset beyond all":            {Files: 1, First: 1, Offset: 1<<62 + 1},
		"a stripe beyond all":             {Files: 1, First: 1, Readers: []uint16{0}, Stripe: 1<<62 + 1},
	} {
		p := m.join()
		p.bind("x", pages)
		p.give(file)
		p.give(file)
		p.call(attach.Call{Op: attach.OpContents, Object: uint64(page), Count: pages, Payload: attach.AppendContents(nil, &contents)})
		select {
		case <-p.ended:
		case <-time.After(patience):
			t.Fatalf("%s: the program goes on", what)
		}
		p.table.Kill(p.id)
	}
	a.ok(a.beginsCall(page, pages, attach.Contents{Bytes: pages * 4096}, file))
	a.wantLoad(page, 0, 0) // has been touched
	a.wantPage(page+1, pageOf(1))
	a.wantPage(page+2, pageOf(2))
	// Who comes later says the same, and what it says is not looked at again.
	b := m.join()
	b.bind("x", pages)
	b.ok(b.beginsCall(page, pages, attach.Contents{Bytes: pages * 4096}, file))
	b.wantPage(page+3, pageOf(3))
	c.quiet()
}

// TestCheckpointWithoutIndex: there is no room for the index of a checkpoint in the file that a
// program gives. It is told so, and the next checkpoint is one.
func TestCheckpointWithoutIndex(t *testing.T) {
	t.Parallel()
	const pages = 4
	c := start(t, setup{nodes: 1})
	a := c.members[0].join()
	first := a.bind("x", pages)
	a.number(first, pages)
	s := a.save(1, 0, first, pages)
	s.memo = a.inMemory(attach.AppendOrder(nil, &s.order), uint64(s.order.IndexAt()))
	s.ok(s.call(false, true))
	if r := a.do(attach.Call{Op: attach.OpSaved}); r.Status != attach.StatusUnknown || !strings.Contains(string(r.Payload), "index") {
		t.Errorf("it is answered with %v %q", r.Status, r.Payload)
	}
	s = a.save(2, 0, first, pages)
	s.ok(s.call(false, true))
	if words := s.finish(); len(words) != pages {
		t.Errorf("then %d of %d pages are saved", len(words), pages)
	}
	c.quiet()
}
