package pagetable_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/internal/patience"
	"dsmd/internal/sigsegv/area"
	"dsmd/internal/sigsegv/sigsegvtest"
	"dsmd/pagetable"
)

// ---- the child's side ----

// performMore is what children do that trap by SIGSEGV.
func (c *child) performMore(p *packet) error {
	switch p.Command {
	case cmdPanics:
		p.Value = c.panics()
	case cmdCrash:
		sigsegvtest.Crash()
	case cmdStorm:
		return c.storm(int(p.Page), int(p.Off), int(p.Value))
	case cmdUnmap:
		return unix.MunmapPtr(c.at(p.Page*c.setup.PageBytes), uintptr(c.setup.PageBytes))
	case cmdStats:
		p.Value = c.segv.Evictions()
	default:
		return c.performReadOnly(p)
	}
	return nil
}

// panics counts the faults that end as the Go language and runtime promise.
func (c *child) panics() (count uint64) {
	recovered := func(access func()) (err runtime.Error) {
		defer func() { err, _ = recover().(runtime.Error) }()
		access()
		return nil
	}
	if err := recovered(func() { store((*uint64)(nil), 1) }); err != nil && strings.Contains(err.Error(), "nil pointer") {
		count++
	}
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	other, err := unix.MmapPtr(-1, 0, nil, 4096, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return 0
	}
	at := uintptr(other)
	// A store to memory of somebody else that forbids it: the same code of the same signal as ours.
	err1 := recovered(func() { store((*uint64)(other), 1) })
	if addr, ok := err1.(interface{ Addr() uintptr }); ok && addr.Addr() == at {
		count++
	}
	// A load from a part of the region that was unmapped again, after the trap has let go of it.
	page := uintptr(c.setup.PageBytes)
	last := c.base + uintptr(c.setup.Pages-1)*page
	if c.segv.Unregister(c.base, uintptr(c.setup.Pages)*page) != nil || c.segv.Register(c.base, uintptr(c.setup.Pages-1)*page, false) != nil {
		return 0
	}
	err2 := recovered(func() { load((*uint64)(c.at(uint64(last - c.base)))) })
	if addr, ok := err2.(interface{ Addr() uintptr }); ok && addr.Addr() == last {
		count++
	}
	return count
}

// storm adds to words of random pages while the collector runs without a pause, the number of Ps
// changes, a profile is taken, and stacks grow in the function that faults.
func (c *child) storm(pages, goroutines, rounds int) error {
	debug.SetGCPercent(1)
	defer debug.SetGCPercent(-1)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	if err := pprof.StartCPUProfile(io.Discard); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	var workers, others sync.WaitGroup
	var done atomic.Bool
	others.Go(func() {
		for n := 0; !done.Load(); n++ {
			runtime.GOMAXPROCS(1 + n%8)
			runtime.GC()
			time.Sleep(time.Millisecond)
		}
	})
	for g := range goroutines {
		workers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), uint64(unix.Getpid())))
			for range rounds {
				at := c.at(uint64(rng.IntN(pages)) * c.setup.PageBytes)
				grow(rng.IntN(40), (*uint64)(at))
				if rng.IntN(4) == 0 {
					// A copy, in which a goroutine can't be preempted.
					garbage.Store(append([]byte(nil), unsafe.Slice((*byte)(at), 4096)...))
				}
			}
		})
	}
	workers.Wait()
	done.Store(true)
	others.Wait()
	return nil
}

var garbage atomic.Value

// grow uses up stack before it faults.
//
//go:noinline
func grow(depth int, at *uint64) byte {
	var frame [512]byte
	if depth == 0 {
		atomic.AddUint64(at, 1)
		return frame[0]
	}
	frame[depth] = grow(depth-1, at)
	return frame[depth]
}

// ---- the test's side ----

// TestSigsegvLeavesOtherFaultsAlone: what is not ours panics and can be recovered as in every Go
// program.
func TestSigsegvLeavesOtherFaultsAlone(t *testing.T) {
	r := NewRig(t, sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, programOptions{}))
	p, _ := r.Start()
	if n := r.Value(p.(*testProgram).order(cmdPanics, 0, 0, 0)); n != 3 {
		t.Errorf("%d of 3 faults were recovered as they should be", n)
	}
}

// TestSigsegvForeignCrash: a crash in C code ends the program with Go's message.
func TestSigsegvForeignCrash(t *testing.T) {
	r := NewRig(t, sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, programOptions{}))
	started, _ := r.Start()
	p := started.(*testProgram)
	if _, err := r.Result(p.order(cmdCrash, 0, 0, 0)); err != errProgramEnded {
		t.Fatalf("the program goes on: %v", err)
	}
	p.Kill()
	if said := p.stderr.String(); !strings.Contains(said, "SIGSEGV: segmentation violation") || !strings.Contains(said, "signal arrived during cgo execution") {
		t.Errorf("the program said:\n%s", said)
	}
}

// TestSigsegvUnmapped: a program that unmaps shared memory by itself hurts nobody else, and loses
// the rest of it as others do.
func TestSigsegvUnmapped(t *testing.T) {
	r := NewRig(t, sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, programOptions{}))
	started, id := r.Start()
	p := started.(*testProgram)
	for page := pagetable.Page(3); page < 7; page++ {
		r.Value(r.Installed(p, id, page, uint64(page), true))
		r.Value(p.Store(page, 8, uint64(page)))
	}
	r.Value(p.order(cmdUnmap, 4, 0, 0))
	for page := pagetable.Page(3); page < 7; page++ {
		r.Want(Word(r.Revoke(page), 8), uint64(page), "the last word")
	}
	load := p.Load(6, 0)
	r.Fault(id, 6, false)
	r.StillWaits(load, "the page was revoked")
	r.Install(6, r.Filled(9), false, id)
	r.Want(r.Value(load), 9, "the word loaded")
}

// server settles faults over few pages and takes pages away at random.
type server struct {
	t       testing.TB
	table   *pagetable.Sigsegv
	rng     *rand.Rand
	level   []int // 0 absent, 1 read-only, 2 writable
	pending []bool
	bytes   [][]byte // of absent pages, and where a revocation goes
	settled int
}

func newServer(t testing.TB, table *pagetable.Sigsegv, pages int) *server {
	s := &server{t: t, table: table, rng: rand.New(rand.NewPCG(1, 2)), level: make([]int, pages), pending: make([]bool, pages), bytes: make([][]byte, pages)}
	for i := range s.bytes {
		s.bytes[i] = make([]byte, table.PageBytes())
	}
	return s
}

func (s *server) turn() {
	var events [8]pagetable.Event
	n, err := s.table.Poll(events[:])
	if err != nil {
		s.t.Fatal(err)
	}
	for _, ev := range events[:n] {
		switch ev.Kind {
		case pagetable.Completed:
			s.completed(ev.Op, ev.Page, ev.Err)
		case pagetable.Fault:
			s.fault(ev)
			if s.settled++; s.settled%3 == 0 {
				s.steal(pagetable.Page(s.rng.IntN(len(s.level))))
			}
		}
	}
	if n > 0 {
		return
	}
	if s.settled > 0 {
		s.steal(pagetable.Page(s.rng.IntN(len(s.level))))
	}
	waitFor(s.t, s.table.WaitFD())
}

func waitFor(t testing.TB, fd int) {
	set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if _, err := unix.Ppoll(set, &unix.Timespec{Nsec: 50_000}, nil); err != nil && err != unix.EINTR {
		t.Fatal(err)
	}
}

func (s *server) fault(ev pagetable.Event) {
	var err error
	out := pagetable.Done
	switch level := s.level[ev.Page]; {
	case s.pending[ev.Page]:
		return
	case level == 2 || level == 1 && !ev.Write:
		out, err = s.table.Map(ev.Page, level == 2, ev.Proc)
	case level == 1:
		s.level[ev.Page] = 2
		out, err = s.table.MakeWritable(ev.Page)
	default:
		s.level[ev.Page] = 1
		if ev.Write {
			s.level[ev.Page] = 2
		}
		out, err = s.table.Install(ev.Page, s.bytes[ev.Page], ev.Write, ev.Proc)
	}
	if out != pagetable.Done || err != nil {
		s.t.Fatal(out, err)
	}
}

func (s *server) steal(p pagetable.Page) {
	if s.pending[p] || s.level[p] == 0 {
		return
	}
	op := pagetable.OpRevoke
	if s.level[p] == 2 && s.rng.IntN(2) == 0 {
		op = pagetable.OpDowngrade
	}
	var out pagetable.Outcome
	var err error
	if op == pagetable.OpDowngrade {
		out, err = s.table.Downgrade(p)
	} else {
		out, err = s.table.Revoke(p, s.bytes[p])
	}
	s.pending[p] = true
	if out == pagetable.Done || err != nil {
		s.completed(op, p, err)
	}
}

func (s *server) completed(op pagetable.Op, p pagetable.Page, err error) {
	if err != nil || !s.pending[p] {
		s.t.Fatalf("%v of page %d completed: %v", op, p, err)
	}
	s.pending[p] = false
	s.level[p] = 0
	if op == pagetable.OpDowngrade {
		s.level[p] = 1
	}
}

// sum adds up the first words of all pages.
func (s *server) sum() (sum uint64) {
	for i := range s.level {
		if s.level[i] != 0 {
			if err := s.table.Read(pagetable.Page(i), s.bytes[i]); err != nil {
				s.t.Fatal(err)
			}
		}
		sum += binary.NativeEndian.Uint64(s.bytes[i])
	}
	return sum
}

func (s *server) until(what string, ok func() bool) {
	for deadline := time.Now().Add(patience.Or(time.Minute)); !ok(); s.turn() {
		if time.Now().After(deadline) {
			s.t.Fatalf("waited a minute for %s; %d faults were settled", what, s.settled)
		}
	}
}

// TestSigsegvStorm: no addition is lost, and nothing hangs, whatever the runtimes of two programs
// do and however often their pages are taken away; also when there are so few mappings that they
// are joined all the time.
func TestSigsegvStorm(t *testing.T) {
	t.Parallel()
	for _, maxSplits := range []uint64{0, 4} {
		t.Run(fmt.Sprintf("MaxSplits%d", maxSplits), func(t *testing.T) {
			const pages, goroutines = 12, 6
			rounds := 1200 * *longer
			fx := sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, programOptions{maxSplits: maxSplits})
			s := newServer(t, fx.Table.(*pagetable.Sigsegv), pages)
			var answers []chan error
			var programs []*testProgram
			for id := pagetable.ProcID(1); id <= 2; id++ {
				p := fx.Start(t, id).(*testProgram)
				programs = append(programs, p)
				answers = append(answers, p.answer(p.order(cmdStorm, pages, goroutines, uint64(rounds))))
			}
			for _, answer := range answers {
				s.until("a storm to end", func() bool {
					select {
					case err := <-answer:
						if err != nil {
							t.Fatal(err)
						}
						return true
					default:
						return false
					}
				})
			}
			s.until("what is pending", func() bool {
				for _, pending := range s.pending {
					if pending {
						return false
					}
				}
				return true
			})
			if got, want := s.sum(), uint64(len(programs)*goroutines*rounds); got != want {
				t.Errorf("the words add up to %d, want %d", got, want)
			}
			t.Logf("%d faults were settled", s.settled)
			if s.settled < rounds/10 {
				t.Errorf("only %d faults were settled", s.settled)
			}
		})
	}
}

// TestSigsegvManyMappings: a program touches every other page of a region with more of them than it
// may have mappings. It has the most of them that fit, and all of its words.
func TestSigsegvManyMappings(t *testing.T) {
	t.Parallel()
	const pages, limit = 512, 64
	fx := sigsegvFixture(t, pagetable.Config{Pages: pages}, programOptions{maxSplits: limit})
	table := fx.Table.(*pagetable.Sigsegv)
	p := fx.Start(t, 1).(*testProgram)
	for i := pagetable.Page(0); i < pages; i += 2 {
		done(t)(table.Install(i, nil, true, 1))
	}
	s := newServer(t, table, pages)
	for round := range uint64(2) {
		for i := 0; i < pages; i += 2 {
			access := p.answer(p.order(cmdStore, pagetable.Page(i), 8, uint64(i)+round))
			s.until("a store", func() bool {
				select {
				case err := <-access:
					return err == nil
				default:
					return false
				}
			})
		}
	}
	if s.settled != 0 {
		t.Errorf("%d faults reached the table, although all pages were granted", s.settled)
	}
	into := make([]byte, table.PageBytes())
	for i := 0; i < pages; i += 2 {
		if err := table.Read(pagetable.Page(i), into); err != nil || Word(into, 8) != uint64(i)+1 {
			t.Fatalf("page %d holds %d, %v", i, Word(into, 8), err)
		}
	}
	stats := NewRig(t, fx)
	if n := stats.Value(p.order(cmdStats, 0, 0, 0)); n == 0 {
		t.Error("the limit was never reached")
	}
}

// TestSigsegvDetachOfLivingProgram: a program that is detached loses its access before anybody else
// gets the page.
func TestSigsegvDetachOfLivingProgram(t *testing.T) {
	r := NewRig(t, sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, programOptions{}))
	table := r.Table().(*pagetable.Sigsegv)
	started, id := r.Start()
	p := started.(*testProgram)
	r.Value(r.Installed(p, id, 4, 1, true))
	r.Value(p.Store(4, 0, 2))
	table.Detach(id, false)
	if page := r.Revoke(4); Word(page, 0) != 2 {
		t.Errorf("the last word is %d", Word(page, 0))
	}
	store := p.Store(4, 0, 3)
	q, qid := r.Start()
	r.Value(r.Installed(q, qid, 4, 5, true))
	r.Want(Word(r.Read(4), 0), 5, "the word in the table")
	r.StillWaits(store, "its program was detached")
	p.Kill()
	r.until("only the living program to be known", true, func() bool { return table.ProgramCount() == 1 })
}

// TestSigsegvDetachOfOneThatEnded: of programs that have ended those are reported that nobody has
// detached.
func TestSigsegvDetachOfOneThatEnded(t *testing.T) {
	r := NewRig(t, sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, programOptions{}))
	for range 3 {
		p, _ := r.Start()
		p.Kill()
	}
	next := func() pagetable.ProcID {
		t.Helper()
		// one at a time: the others must be there when they are detached
		var events [1]pagetable.Event
		for deadline := time.Now().Add(patience.Or(10 * time.Second)); ; {
			n, err := r.Table().Poll(events[:])
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("no end is reported: %v", err)
			}
			if n == 1 && events[0].Kind == pagetable.ProcGone {
				return events[0].Proc
			}
		}
	}
	all := map[pagetable.ProcID]bool{1: true, 2: true, 3: true}
	delete(all, next())
	for id := range all {
		r.Table().Detach(id, false)
		delete(all, id)
		break
	}
	if got := next(); !all[got] {
		t.Errorf("the end of program %d is reported, want one of %v", got, all)
	}
}

// TestSigsegvOneOperationPerPage: a second operation on a page whose first is pending is a bug of
// the caller.
func TestSigsegvOneOperationPerPage(t *testing.T) {
	r := NewRig(t, sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, programOptions{}))
	started, id := r.Start()
	p := started.(*testProgram)
	r.Value(r.Installed(p, id, 4, 1, true))
	r.Value(p.Store(4, 0, 2))
	p.stop(t)
	defer p.resume(t)
	if out, err := r.Table().Downgrade(4); out != pagetable.Pending || err != nil {
		t.Fatalf("Downgrade with a stopped program: %v, %v; want it to be pending", out, err)
	}
	defer func() {
		if recover() == nil {
			t.Error("the second did not panic")
		}
	}()
	_, _ = r.Table().Revoke(4, nil)
}

// TestSigsegvManyCommands: a program that is stopped is told more than its ring of commands has
// room for. It does all when it goes on.
func TestSigsegvManyCommands(t *testing.T) {
	t.Parallel()
	const pages = area.CommandSlots + 8
	r := NewRig(t, sigsegvFixture(t, pagetable.Config{Pages: pages}, programOptions{}))
	started, id := r.Start()
	p := started.(*testProgram)
	for page := range pagetable.Page(pages) {
		r.Install(page, nil, true, id)
	}
	r.Value(p.order(cmdScan, 0, 0, pages)) // it may, and so asks nobody
	p.stop(t)
	for page := range pagetable.Page(pages) {
		if out, err := r.Table().Downgrade(page); out != pagetable.Pending || err != nil {
			t.Fatalf("Downgrade of page %d with a stopped program: %v, %v; want it to be pending", page, out, err)
		}
	}
	p.resume(t)
	for page := range pagetable.Page(pages) {
		r.Finish(pagetable.OpDowngrade, page, pagetable.Pending, nil)
	}
}

// TestSigsegvDropDoesNotWait: memory can be freed while a program that has touched it is stopped.
// The operation ends when the program goes on, and the table's owner does not wait for that.
func TestSigsegvDropDoesNotWait(t *testing.T) {
	r := NewRig(t, sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, programOptions{}))
	started, id := r.Start()
	p := started.(*testProgram)
	r.Value(r.Installed(p, id, 4, 1, true))
	r.Value(p.Store(4, 0, 2))
	p.stop(t)
	out, err := r.Table().Drop(4, 2)
	if out != pagetable.Pending || err != nil {
		t.Fatalf("Drop with a stopped program: %v, %v; want it to be pending", out, err)
	}
	p.resume(t)
	r.Finish(pagetable.OpDrop, 4, out, err)
	r.Want(Word(r.Read(4), 0), 0, "a word of a dropped page")
}
