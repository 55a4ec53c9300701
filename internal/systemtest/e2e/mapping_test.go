package e2e

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/node"
)

// The common ground of guardians and vandals: pages of which each rank has words of its own, and
// the second half never changes.
const (
	groundPages   = 6
	wordsPerRank  = 8
	guardians     = 2 // goroutines of each guardian
	groundPattern = 0x5eed<<32 + 1
)

// ground is that memory in a program.
type ground struct {
	c         *dsm.Cluster
	words     []uint64
	pageWords int
}

func joinGround(s *testcluster.Self) (*ground, error) {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return nil, err
	}
	g := &ground{c: c, pageWords: c.PageBytes() / 8}
	if g.words, err = dsm.Alloc[uint64](s.Ctx, c, "ground", groundPages*g.pageWords); err != nil {
		return nil, err
	}
	return g, nil
}

// own is a word of this rank.
func (g *ground) own(page, word int) *uint64 {
	return &g.words[page*g.pageWords+g.c.Rank()*wordsPerRank+word]
}

// constant is a word of the half that never changes, and its value.
func (g *ground) constant(page, word int) (*uint64, uint64) {
	i := page*g.pageWords + g.pageWords/2 + word%(g.pageWords/2)
	return &g.words[i], groundPattern + uint64(i)
}

// found writes what never changes.
func (g *ground) found() {
	for page := range groundPages {
		for word := range g.pageWords / 2 {
			p, v := g.constant(page, word)
			*p = v
		}
	}
}

// guardian keeps counting in its words, from several goroutines, and finds each of them as it was
// left, whatever others do to their own memory. On "pages" it says how many pages its node has
// received.
var guardian = testcluster.Define("guardian", func(s *testcluster.Self) error {
	g, err := joinGround(s)
	if err != nil {
		return err
	}
	if g.c.Rank() == 1 {
		g.found()
	}
	s.Say("joined")
	if err := s.Await("begin"); err != nil {
		return err
	}
	var over atomic.Bool
	var all sync.WaitGroup
	wrong := make(chan error, guardians)
	for n := range guardians {
		all.Go(func() {
			var count [groundPages]uint64
			for !over.Load() {
				page := rand.IntN(groundPages)
				count[page]++
				if v := atomic.AddUint64(g.own(page, n), 1); v != count[page] {
					wrong <- fmt.Errorf("page %d, word %d of rank %d is %d, want %d", page, n, g.c.Rank(), v, count[page])
					return
				}
				if p, want := g.constant(page, rand.IntN(g.pageWords)); atomic.LoadUint64(p) != want {
					wrong <- fmt.Errorf("page %d: a word that never changes is %#x, want %#x", page, *p, want)
					return
				}
				time.Sleep(100 * time.Microsecond) // leaves the processors to others
			}
		})
	}
	for line, err := s.Next(); err != io.EOF; line, err = s.Next() {
		if err != nil {
			return err
		}
		if line == "pages" {
			stats, err := g.c.Stats(s.Ctx)
			if err != nil {
				return err
			}
			s.Say("%d", stats.Traffic.PagesReceived)
		}
	}
	over.Store(true)
	all.Wait()
	select {
	case err := <-wrong:
		return err
	default:
		return g.c.Close()
	}
})

// deed is something that a program can do to its own mapping of shared memory.
type deed struct {
	name string
	do   func(at unsafe.Pointer, bytes uintptr) error
	// harmless deeds leave the program's own accesses as they were; of all others it may have to
	// suffer.
	harmless bool
}

const populate = 23 // MADV_POPULATE_WRITE

func deeds() []deed {
	advise := func(advice int) func(unsafe.Pointer, uintptr) error {
		return func(at unsafe.Pointer, bytes uintptr) error {
			return unix.Madvise(unsafe.Slice((*byte)(at), bytes), advice)
		}
	}
	protect := func(prot int) func(unsafe.Pointer, uintptr) error {
		return func(at unsafe.Pointer, bytes uintptr) error {
			return unix.Mprotect(unsafe.Slice((*byte)(at), bytes), prot)
		}
	}
	return []deed{
		{"madvise dontneed", advise(unix.MADV_DONTNEED), true},
		{"madvise pageout", advise(unix.MADV_PAGEOUT), true},
		{"madvise populate", func(at unsafe.Pointer, bytes uintptr) error {
			// It fails where the kernel's own faults don't trap, and then has done nothing.
			if err := advise(populate)(at, bytes); err != nil && err != unix.EFAULT && err != unix.EINVAL {
				return err
			}
			return nil
		}, true},
		{"mprotect to all", protect(unix.PROT_READ | unix.PROT_WRITE), false},
		{"mprotect to read", protect(unix.PROT_READ), false},
		{"mprotect to none", protect(unix.PROT_NONE), false},
		{"munmap", unix.MunmapPtr, false},
		{"mmap over it", func(at unsafe.Pointer, bytes uintptr) error {
			_, err := unix.MmapPtr(-1, 0, at, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED)
			return err
		}, false},
		{"mremap a copy", func(at unsafe.Pointer, bytes uintptr) error { return move(at, bytes, unix.MREMAP_DONTUNMAP) }, false},
		{"mremap away", func(at unsafe.Pointer, bytes uintptr) error { return move(at, bytes, 0) }, false},
	}
}

// moved is where a vandal has moved its shared memory to.
var moved unsafe.Pointer

// move moves memory, page by page, because with one of the back ends each page may be a mapping of
// its own.
func move(at unsafe.Pointer, bytes uintptr, flags int) error {
	to, err := unix.MmapPtr(-1, 0, nil, bytes, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	page := uintptr(os.Getpagesize())
	for i := uintptr(0); err == nil && i < bytes; i += page {
		_, err = unix.MremapPtr(unsafe.Add(at, i), page, unsafe.Add(to, i), page, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED|flags)
	}
	moved = to
	return err
}

// vandal counts in its words as told, and does deeds to its mapping meanwhile.
var vandal = testcluster.Define("vandal", func(s *testcluster.Self) error {
	g, err := joinGround(s)
	if err != nil {
		return err
	}
	debug.SetPanicOnFault(true) // to tell of it
	s.Say("joined")
	for {
		line, err := s.Next()
		if err != nil {
			return err
		}
		switch line {
		case "touch":
			s.Say("%s", g.touch())
			continue
		case "found":
			g.found()
			s.Say("founded")
			continue
		case "free":
			if err := dsm.Free(s.Ctx, g.c, g.words); err != nil {
				return err
			}
			moved = nil
			if g.words, err = dsm.Alloc[uint64](s.Ctx, g.c, "ground", groundPages*g.pageWords); err != nil {
				return err
			}
			s.Say("freed")
			continue
		}
		for _, d := range deeds() {
			if d.name == line {
				err = d.do(unsafe.Pointer(&g.words[0]), uintptr(8*len(g.words)))
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
		s.Say("done")
	}
})

// touch counts in every page, at the memory's place and where it was moved to, and reports whether
// all was as it should be.
func (g *ground) touch() (answer string) {
	defer func() {
		if r := recover(); r != nil {
			answer = fmt.Sprintf("hurt: %v", r)
		}
	}()
	if moved != nil {
		there := ground{c: g.c, words: unsafe.Slice((*uint64)(moved), len(g.words)), pageWords: g.pageWords}
		for page := range groundPages {
			atomic.AddUint64(there.own(page, wordsPerRank-1), 1)
		}
	}
	for page := range groundPages {
		before := atomic.LoadUint64(g.own(page, 0))
		if after := atomic.AddUint64(g.own(page, 0), 1); after != before+1 {
			return fmt.Sprintf("wrong: page %d went from %d to %d", page, before, after)
		}
		if p, want := g.constant(page, rand.IntN(g.pageWords)); atomic.LoadUint64(p) != want {
			return fmt.Sprintf("wrong: page %d has %#x, want %#x", page, atomic.LoadUint64(p), want)
		}
	}
	return "ok"
}

// TestVandals has programs do to their mapping whatever the kernel lets them, while pages move.
// They may suffer from it. The programs beside them, on the same node and on another, and the
// daemons do not.
func TestVandals(t *testing.T) {
	t.Parallel()
	c := serve(t, 2, 3)
	guards := []*testcluster.Process{c.Program(t, guardian, 0, 1), c.Program(t, guardian, 1, 2)}
	for _, p := range guards {
		p.Expect(t, "joined")
		p.Say(t, "begin")
		pages(t, p)
	}
	for _, d := range deeds() {
		t.Run(d.name, func(t *testing.T) {
			p := c.Program(t, vandal, 0, 0)
			p.Expect(t, "joined")
			p.Do(t, "ok", "touch")
			p.Do(t, "done", "%s", d.name)
			for range 3 {
				suffer(t, p, d)
			}
			for _, guard := range guards {
				goesOn(t, guard)
			}
			suffer(t, p, d)
			p.Kill(t)
		})
	}
	for _, p := range guards {
		goesOn(t, p)
	}
	for _, p := range guards {
		p.Succeed(t)
	}
	for _, d := range c.Daemons {
		if !d.Running() {
			t.Error("a daemon has ended")
		}
	}
}

// suffer has a vandal touch its memory. Only after a deed that is not harmless may that fail, or
// end the program: a fault is a panic, but not where it happens in a function of the race detector.
// There Go's report of it may fault, too, and never end. It reports whether the program goes on.
func suffer(t *testing.T, p *testcluster.Process, d deed) bool {
	t.Helper()
	ends := func() bool { return !p.Running() || strings.Contains(p.Errors(), "fatal error: ") }
	if ends() {
		return false
	}
	p.Say(t, "touch")
	testcluster.Eventually(t, "the program says how its memory is, or ends", func() bool { return p.Pending() || ends() })
	got, lives := "the program's end", p.Pending()
	if lives {
		got = p.Hear(t)
	}
	switch {
	case got == "ok":
	case d.harmless:
		t.Errorf("after %s the memory is %s", d.name, got)
	default:
		t.Logf("after %s the memory is %s", d.name, got)
	}
	return lives
}

// pages is how many pages a guardian's node has received.
func pages(t *testing.T, p *testcluster.Process) int {
	t.Helper()
	n, err := strconv.Atoi(p.Ask(t, "pages"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// goesOn waits until more pages have come to a guardian's node.
func goesOn(t *testing.T, p *testcluster.Process) {
	t.Helper()
	const more = 10
	before := pages(t, p)
	testcluster.Eventually(t, "pages come to a guardian's node", func() bool { return pages(t, p) >= before+more })
}

// TestVandalAlone has a program that nobody disturbs change the protection of pages that it has:
// what it touches then is an ordinary fault or is mapped anew, but never the same fault for ever.
func TestVandalAlone(t *testing.T) {
	c := serve(t, 1, 1)
	p := c.Program(t, vandal, 0, 0)
	p.Expect(t, "joined")
	p.Do(t, "founded", "found")
	for _, name := range []string{"mprotect to none", "mprotect to read"} {
		p.Do(t, "ok", "touch")
		p.Do(t, "done", "%s", name)
		if !suffer(t, p, deed{name: name}) {
			return
		}
		p.Do(t, "done", "mprotect to all")
	}
	p.Do(t, "ok", "touch")
}

// TestFreeAfterDeed frees memory whose mapping is no longer what it was. It can be allocated again,
// and is as it should be.
func TestFreeAfterDeed(t *testing.T) {
	t.Parallel()
	c := serve(t, 1, 2)
	witness := c.Program(t, vandal, 0, 1) // which keeps the memory alive
	witness.Expect(t, "joined")
	witness.Do(t, "founded", "found")
	for _, d := range deeds() {
		p := c.Program(t, vandal, 0, 0)
		p.Expect(t, "joined")
		p.Do(t, "ok", "touch")
		p.Do(t, "done", "%s", d.name)
		p.Do(t, "freed", "free")
		p.Do(t, "ok", "touch")
		p.Kill(t)
	}
	witness.Do(t, "ok", "touch")
}

// inheritor looks for what a parent may have left it of the shared memory.
var _ = testcluster.Define("inheritor", func(s *testcluster.Self) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	var found []error
	for _, e := range entries {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil {
			continue // the directory itself
		}
		if strings.Contains(to, "memfd") || strings.Contains(to, "userfaultfd") || strings.HasPrefix(to, "socket") {
			found = append(found, fmt.Errorf("descriptor %s is %s", e.Name(), to))
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(maps)) {
		from, _, _ := strings.Cut(line, "-")
		if at, err := strconv.ParseUint(from, 16, 64); err != nil {
			return err
		} else if strings.Contains(line, "memfd") || at>>32 == node.DefaultRegionBase>>32 {
			found = append(found, fmt.Errorf("mapping %s", line))
		}
	}
	return errors.Join(found...)
})

// testator has shared memory, and children that look for it, while its goroutines count.
var testator = testcluster.Define("testator", func(s *testcluster.Self) error {
	g, err := joinGround(s)
	if err != nil {
		return err
	}
	if p, err := os.ReadFile("/proc/self/maps"); err != nil || !strings.Contains(string(p), "memfd") {
		return fmt.Errorf("this program has no memory file mapped itself (%v), so its children can't be expected to", err)
	}
	var over atomic.Bool
	var all sync.WaitGroup
	var counted uint64
	all.Go(func() {
		for !over.Load() {
			counted++
			atomic.AddUint64(g.own(rand.IntN(groundPages), 0), 1)
		}
	})
	for range 5 {
		child := exec.CommandContext(s.Ctx, os.Args[0])
		child.Env = append(os.Environ(), envProgram+"=inheritor")
		if out, err := child.CombinedOutput(); err != nil {
			return fmt.Errorf("a child: %w\n%s", err, out)
		}
	}
	over.Store(true)
	all.Wait()
	var sum uint64
	for page := range groundPages {
		sum += atomic.LoadUint64(g.own(page, 0))
	}
	if sum != counted {
		return fmt.Errorf("%d was counted, and %d is there", counted, sum)
	}
	return errors.Join(g.c.Barrier(s.Ctx), g.c.Close())
})

// TestChildrenInheritNothing checks that a child process has neither the memory nor any descriptor
// of it, and that having children disturbs nothing.
func TestChildrenInheritNothing(t *testing.T) {
	c := serve(t, 2, 2)
	var all []*testcluster.Process
	for rank := range 2 {
		all = append(all, c.Program(t, testator, rank, rank))
	}
	for _, p := range all {
		p.Succeed(t)
	}
}
