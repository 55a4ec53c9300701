package node

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/diskio"
	"dsmd/internal/faultlog"
	"dsmd/pagetable"
	"dsmd/pagetable/backing"
	"dsmd/pagetable/pagetabletest"
	"dsmd/protocol"
	"dsmd/transport/sim"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"
)

// TestBackingWithoutSpill: pages of every node can come from files. They go to one only where the
// node was told so, and only then its room counts with that.
func TestBackingWithoutSpill(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		cfg := Config{Log: zap.NewNop(), Memory: Memory{Bytes: MinMemoryBytes, Spill: dir}}
		table, err := withSpill(&cfg, pagetabletest.NewFake(pagetabletest.FakeConfig{Pages: 1}))
		if err != nil {
			t.Fatal(err)
		}
		defer table.Close()
		with, ok := table.(*backing.Table)
		if !ok || with.CanSpill() != (dir != "") {
			t.Fatalf("with the directory %q the table is a %T", dir, table)
		}
		r := newRoom(&driver{exec: &executor{table: with, store: with, meter: &meter{}}}, &cfg, table.PageBytes())
		if dir == "" && r.toFile([]pagetable.Page{0}) != 0 {
			t.Error("a page goes to a file that is not there")
		}
	}
}

// countersOfSpill are what moves only where there is a spill file.
var countersOfSpill = []string{"pages_spilled", "spill_writes", "spill_reads"}

// TestSpill: a program writes more than all nodes have room for. What does not fit goes to its
// node's file, and is as it was written wherever it is read; no node has more in memory than it
// should. What is freed takes no room in the file.
func TestSpill(t *testing.T) {
	t.Parallel()
	const pages = 3 * leastRoom / 2 // three times
	either(t, func(t *testing.T, async bool) {
		c := startTight(t, setup{nodes: 2, pages: 3*pages + HomeStripe, async: async, spill: true}, 0, 1)
		a, b := c.members[0].join(), c.members[1].join()
		arrays := map[string]pagetable.Page{"x": 0, "y": 0, "z": 0}
		for name := range arrays {
			arrays[name] = share(name, pages, a, b)
			a.number(arrays[name], pages)
		}
		for range 2 {
			for _, first := range arrays {
				b.wantNumbers(first, pages)
				a.wantNumbers(first, pages)
			}
		}
		spilled := func() (n uint64) {
			for _, m := range c.members {
				n += m.counter("pages_spilled")
			}
			return n
		}
		// Pages on their way from node to node, or to a file, are in neither.
		eventually(t, "what the nodes have no room for is in files", func() bool { return spilled() >= 3*pages-2*leastRoom })
		for _, name := range countersOfSpill {
			if c.members[0].counter(name)+c.members[1].counter(name) == 0 {
				t.Errorf("nothing moves %s", name)
			}
		}
		for name := range arrays {
			a.ok(unbindCall(name))
			b.ok(unbindCall(name))
		}
		eventually(t, "nothing is in the files", func() bool { return spilled() == 0 })
		c.quiet()
		c.wantBound()
	})
}

// TestRandomAccessWithSpill: four nodes that have room for half of what is in use.
func TestRandomAccessWithSpill(t *testing.T) {
	t.Parallel()
	either(t, func(t *testing.T, async bool) { accessAtRandom(t, 2*4*leastRoom, setup{async: async, spill: true}) })
}

// TestLeaverWithSpill: a node that leaves hands over what is in its file to nodes that have no room
// for it in memory.
func TestLeaverWithSpill(t *testing.T) {
	t.Parallel()
	leaveWithLittleRoom(t, 5*leastRoom, true)
}

// TestSpillAlone: one node has room for a quarter of what its program goes over, again and again.
func TestSpillAlone(t *testing.T) {
	t.Parallel()
	const pages = 4 * leastRoom
	either(t, func(t *testing.T, async bool) {
		c := startTight(t, setup{nodes: 1, pages: pages + HomeStripe, async: async, spill: true}, 0)
		a := c.members[0].join()
		first := share("x", pages, a)
		a.number(first, pages)
		for range 2 {
			a.wantNumbers(first, pages)
		}
		c.quiet()
		c.wantBound()
		c.members[0].want(map[string]uint64{"page_offers": 0, "pages_evicted": 0})
	})
}

// startSpilling starts a node with little room and a spill file. A program has stored to so many
// pages, which are more than fit.
func startSpilling(t *testing.T, pages int) (c *tight, a *prog, first pagetable.Page) {
	t.Helper()
	c = startTight(t, setup{nodes: 1, pages: uint64(pages) + HomeStripe, spill: true}, 0)
	a = c.members[0].join()
	first = share("x", uint64(pages), a)
	a.number(first, pages)
	return c, a, first
}

// TestNoRoomInSpillFile: the disk of the spill file is full. The node goes on with more pages than
// it has room for, and says to give it a directory with more room.
func TestNoRoomInSpillFile(t *testing.T) {
	t.Parallel()
	const pages = 2 * leastRoom
	c := startTight(t, setup{nodes: 1, pages: pages + HomeStripe, spill: true}, 0)
	c.members[0].inReactor(func() { c.members[0].node.room.noSpill = unix.ENOSPC })
	a := c.members[0].join()
	first := share("x", pages, a)
	a.number(first, pages)
	a.wantNumbers(first, pages)
	if said := c.logs[0].FilterMessageSnippet("give it a directory with more room (--spill)").Len(); c.warnings(0) != 1 || said != 1 {
		t.Errorf("the node has said so %d times, and %d times what to do", c.warnings(0), said)
	}
	c.quiet()
}

// TestRoomIsLookedAt: the tests of little memory see it when a node is wrong about which pages are
// in memory, also where others are in the spill file.
func TestRoomIsLookedAt(t *testing.T) {
	t.Parallel()
	c, _, first := startSpilling(t, 2*leastRoom)
	m := c.members[0]
	eventually(t, "nothing is under way", m.roomIsRight)
	done := make(chan struct{})
	m.node.news.tell(func() {
		defer close(done)
		queue := m.node.room.queue
		for _, in := range []bool{true, false} {
			page := first
			for queue.Has(page) != in {
				page++
			}
			change, undo := queue.Add, queue.Remove
			if in {
				change, undo = undo, change
			}
			change(page)
			if _, wrong := m.node.whatIsHere(); len(wrong) == 0 {
				t.Errorf("nobody sees that page %d, in memory: %t, is taken for elsewhere", page, in)
			}
			undo(page)
		}
	})
	<-done
	c.quiet()
}

// TestSlowSpill: the disk takes nothing for a while, and the program stores faster than it writes.
// The node waits for it, and takes no more memory than it may. Not parallel: all disks are slow.
func TestSlowSpill(t *testing.T) {
	diskio.WriteDelay.Store(int64(200 * time.Millisecond))
	defer diskio.WriteDelay.Store(0)
	const pages = 3 * leastRoom
	c, a, first := startSpilling(t, pages)
	a.wantNumbers(first, pages)
	c.quiet()
	c.wantBound()
}

// TestHungSpill: programs wait for a disk that takes nothing, and the log says so, once until it
// has taken something. Whenever as long has passed, all that is here is looked at again at once.
// Not parallel: all disks are slow.
func TestHungSpill(t *testing.T) {
	diskio.WriteDelay.Store(int64(100 * time.Millisecond))
	defer diskio.WriteDelay.Store(0)
	observed, logs := observer.New(zap.WarnLevel)
	cfg := Config{Log: zap.New(observed), Memory: Memory{Bytes: MinMemoryBytes, Spill: t.TempDir()}}
	table, err := withSpill(&cfg, pagetabletest.NewFake(pagetabletest.FakeConfig{Pages: 2 * leastRoom}))
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	d := &driver{exec: &executor{table: table, store: table.(*backing.Table), meter: &meter{}}, engine: protocol.New(protocol.Config{Pages: 1, HomeStripe: 1, Nodes: 1}), clock: &clock{}}
	r := newRoom(d, &cfg, table.PageBytes())
	for p := range pagetable.Page(2 + r.most) {
		if _, err := table.Install(p, make([]byte, table.PageBytes()), true, 0); err != nil {
			t.Fatal(err)
		}
		if r.arrived(p); p != 1 {
			continue
		}
		if n, err := r.store.Spill(0, 1); n != 2 || err != nil {
			t.Fatalf("%d of 2 pages leave: %v", n, err)
		}
	}
	for i, want := range []struct {
		lines int
		on    bool
	}{{0, false}, {1, true}, {1, false}, {1, true}} {
		r.seen, r.hang.left = 0, 0 // it has looked at all that is here, and has offered pages since
		on := r.lookedInVain(time.Duration(i+1) * diskPatience * 2 / 3)
		if logs.Len() != want.lines || on != want.on {
			t.Errorf("look %d, after two thirds of the patience each: %v, and it looks on: %t; want %d lines, %t", i, logs.All(), on, want.lines, want.on)
		}
	}
}

// TestCheckpointOfBadSpill: pages of a checkpoint cannot be read from the spill file. Who waits for
// the checkpoint is told so.
func TestCheckpointOfBadSpill(t *testing.T) {
	const pages = 2 * leastRoom
	_, a, first := startSpilling(t, pages)
	spoilSpill(t)
	s := a.save(1, 0, first, pages)
	s.ok(s.call(false, true))
	if r := a.do(attach.Call{Op: attach.OpSaved}); r.Status != attach.StatusUnknown || !strings.Contains(string(r.Payload), "read") {
		t.Errorf("it is answered with %v %q", r.Status, r.Payload)
	}
}

// hungDisk has all reads hang that io_uring does not make, those of the reactor itself among them,
// until goOn, which is called at the end of the test at the latest. hangs is whether one does.
func hungDisk(t *testing.T) (hangs func() bool, goOn func()) {
	t.Helper()
	let := make(chan struct{})
	var any atomic.Bool
	hang := func(int) {
		any.Store(true)
		<-let
	}
	diskio.BeforeRead.Store(&hang)
	goOn = sync.OnceFunc(func() { close(let) })
	t.Cleanup(func() {
		diskio.BeforeRead.Store(nil)
		goOn()
	})
	return any.Load, goOn
}

// TestCheckpointOfHungSpill: the node answers while a checkpoint waits for pages in the spill file.
// They are saved as they were when it was asked. Not parallel: all disks hang.
func TestCheckpointOfHungSpill(t *testing.T) {
	const pages = 2 * leastRoom
	c, a, first := startSpilling(t, pages)
	hangs, goOn := hungDisk(t)
	s := a.save(1, 0, first, pages)
	s.ok(s.call(false, true))
	_, answer := a.call(attach.Call{Op: attach.OpSaved})
	// io_uring's reads do not hang.
	eventually(t, "the checkpoint is taken, or the disk hangs", func() bool { return len(answer) > 0 || hangs() })
	a.sync()
	goOn()
	words := s.written(a.answer(answer))
	for i := range uint64(pages) {
		if words[i] != i+1 {
			t.Fatalf("page %d is saved as %d", i, words[i])
		}
	}
	c.quiet()
}

// TestCommitOfHungSpill: the node answers while pages in the spill file are read for their backups,
// one of which is its own. They are as they were when they were committed. Not parallel: all disks
// hang.
func TestCommitOfHungSpill(t *testing.T) {
	const pages, lost = 5 * leastRoom, 0
	s := surviving(3, sim.Options{})
	s.pages, s.spill = pages+HomeStripe, true
	c := startTight(t, s, 0, 1, 2)
	c.lossy = true
	var all []*prog
	var first pagetable.Page
	for _, m := range c.members {
		p := m.join()
		all, first = append(all, p), p.bindAs(replicatedCall("x", pages, 1))
	}
	writer := all[lost]
	writer.number(first, pages)
	hangs, goOn := hungDisk(t)
	_, answer := writer.call(attach.Call{Op: attach.OpCommit})
	eventually(t, "the pages are committed, or the disk hangs", func() bool { return len(answer) > 0 || hangs() })
	for _, p := range all {
		p.sync()
	}
	goOn()
	writer.answer(answer)
	c.sever(lost)
	c.inView(1, 1, 2)
	c.without(lost)
	all[2].wantNumbers(first, pages)
	c.quiet()
}

// TestReadOfHungSpill: the node answers while other ones wait for pages in its spill file, one
// after the other. For the first of them the pages are made read-only, for the next they are that
// already. The readers have room for them: they would read again what they had to drop before their
// programs have seen it. Not parallel: all disks hang.
func TestReadOfHungSpill(t *testing.T) {
	const pages = 6 * leastRoom
	c := startTight(t, setup{nodes: 3, pages: pages + HomeStripe, spill: true}, 0, 1, 2)
	a, b, d := c.members[0].join(), c.members[1].join(), c.members[2].join()
	first := share("x", pages, a, b, d)
	a.number(first, pages)
	if c.members[0].counter("pages_spilled") == 0 {
		t.Fatal("no page is in the spill file")
	}
	for _, m := range c.members[1:] {
		m.node.SetMemory(2 * MinMemoryBytes)
		eventually(t, "the reader has room", func() bool { return m.counter("pages_room") == 2*leastRoom })
	}
	for _, reader := range []*prog{b, d} {
		hangs, goOn := hungDisk(t)
		var reads []chan error
		var got [64]uint64
		each := func(i int) pagetable.Page { return first + pagetable.Page(i*pages/len(got)) }
		for i := range got {
			reads = append(reads, reader.access(each(i), false, func(page []byte) { got[i] = binary.NativeEndian.Uint64(page) }))
		}
		eventually(t, "they are read, or the disk hangs", func() bool {
			return hangs() || !slices.ContainsFunc(reads, func(read chan error) bool { return len(read) == 0 })
		})
		a.sync()
		goOn()
		for i, read := range reads {
			reader.settled(read)
			if want := uint64(each(i)-first) + 1; got[i] != want {
				t.Errorf("page %d of the run holds %d", want-1, got[i])
			}
		}
	}
	c.quiet()
}

// TestLogOfSpilled: the reactor does not wait for the disk to tell the log what was written to a
// page in the spill file, and tells it if it has read the page anyhow.
func TestLogOfSpilled(t *testing.T) {
	cfg := Config{Log: zap.NewNop(), Memory: Memory{Spill: t.TempDir()}}
	table, err := withSpill(&cfg, pagetabletest.NewFake(pagetabletest.FakeConfig{Pages: 2}))
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	store := table.(*backing.Table)
	var leave []pagetable.Page
	for p := range pagetable.Page(2) {
		if _, err := table.Install(p, pageOf(1), true, 0); err != nil {
			t.Fatal(err)
		}
		leave = append(leave, p)
	}
	if n, err := store.Spill(leave...); n != 2 || err != nil {
		t.Fatalf("%d of 2 pages leave: %v", n, err)
	}
	eventually(t, "the pages are in the file", func() bool {
		_, err := table.Poll(make([]pagetable.Event, 1))
		return err != nil || store.Stored() == 2
	})
	x := &executor{table: table, store: store, meter: &meter{clock: &clock{}}, contents: newContents(), batch: batch{pageBytes: table.PageBytes()}}
	l := &x.meter.log
	l.pageBytes = table.PageBytes()
	reader := &attach.Call{Count: uint64(faultlog.OfWords)}
	l.batch(reader, x.meter.clock, nil)
	for p := range pagetable.Page(2) {
		clear(l.keep(p))
		l.leaves(p, protocol.EffectDowngrade, 1)
	}
	reads, goOn := hungDisk(t)
	goOn()
	x.contents.loaded[1] = pageOf(1)
	for p := range pagetable.Page(2) {
		x.left(pagetable.OpDowngrade, p)
	}
	if reads() {
		t.Error("the disk is read")
	}
	log, err := faultlog.Decode(l.batch(reader, x.meter.clock, nil))
	if d := log.Departures; err != nil || len(d) != 2 || d[0].Written != nil || d[1].Written == nil {
		t.Errorf("the log has %+v, %v", d, err)
	}
}

// TestCheckpointAfterHungSpill: while the disk has not given what checkpoints wanted to read that
// were given up, there is no other, and the program is told why.
func TestCheckpointAfterHungSpill(t *testing.T) {
	c := start(t, setup{nodes: 1, before: func(n *Node) { n.saver.fetching = mostStuck * fetchedOnTheWay / n.saver.table.PageBytes() }})
	a := c.members[0].join()
	s := a.save(1, 0, a.bind("x", 8), 8)
	if r := a.do(s.call(false, true)); r.Status != attach.StatusUnknown || !strings.Contains(string(r.Payload), "given up") {
		t.Errorf("it is answered with %v %q", r.Status, r.Payload)
	}
	c.quiet()
}

// spoilSpill makes the spill file of a test with one node one that cannot be read.
func spoilSpill(t *testing.T) {
	t.Helper()
	all, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.OpenFile(filepath.Join(t.TempDir(), "other"), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, path := range all {
		name, err := os.Readlink(path)
		fd, notNumber := strconv.Atoi(filepath.Base(path))
		if err != nil || notNumber != nil || fd == int(other.Fd()) || !strings.Contains(name, "/"+t.Name()) {
			continue
		}
		if err := unix.Dup3(int(other.Fd()), fd, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("there is no spill file")
}
