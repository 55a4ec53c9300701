package pagetable_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/pagetable"
)

// These tests have programs in which a part of the region is registered read-only.

// ---- the child's side ----

// performReadOnly is what children do for these tests.
func (c *child) performReadOnly(p *packet) error {
	at, bytes := c.at(p.Page*c.setup.PageBytes), uintptr(p.Value*c.setup.PageBytes)
	switch p.Command {
	case cmdUnregister:
		if c.segv != nil {
			return c.segv.Unregister(uintptr(at), bytes)
		}
	case cmdMapGranted:
		c.segv.Map(uintptr(at), bytes)
	case cmdBareStore:
		store((*uint64)(unsafe.Add(at, p.Off)), p.Value)
	case cmdWatch:
		return c.watch(int(p.Page), int(p.Off), int(p.Value))
	}
	return nil
}

// watch loads from the first words of random pages, which somebody else adds to. None may become
// less. Now and then it tries to store to one.
func (c *child) watch(pages, goroutines, rounds int) error {
	var workers sync.WaitGroup
	wrong := make(chan error, goroutines)
	for g := range goroutines {
		workers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), uint64(unix.Getpid())))
			seen := make([]uint64, pages)
			for range rounds {
				i := rng.IntN(pages)
				at := c.at(uint64(i) * c.setup.PageBytes)
				if v := load((*uint64)(at)); v < seen[i] {
					wrong <- unix.ERANGE
					return
				} else {
					seen[i] = v
				}
				if rng.IntN(16) == 0 && c.unlessLost(at, func() { store((*uint64)(at), 0) }) == nil {
					wrong <- unix.EPERM
					return
				}
			}
		})
	}
	workers.Wait()
	close(wrong)
	return <-wrong
}

// ---- the test's side ----

// firstReadOnly is the first of the pages that the program of a readOnlyRig has read-only, and
// inside one that has such neighbours.
const firstReadOnly, inside = RegionPages / 2, firstReadOnly + 8

// readOnlyRig has a program whose pages from firstReadOnly on are read-only.
type readOnlyRig struct {
	*Rig
	p  *testProgram
	id pagetable.ProcID
}

func newReadOnlyRig(t testing.TB, fx Fixture, opt programOptions) *readOnlyRig {
	r := &readOnlyRig{Rig: NewRig(t, fx), id: 99}
	opt.unregistered = true
	r.p = attachProgram(t, fx.Table, r.id, opt)
	r.Value(r.p.order(cmdRegister, 0, 0, firstReadOnly))
	r.Value(r.p.order(cmdRegister, firstReadOnly, 1, RegionPages-firstReadOnly))
	return r
}

// refuse orders something that stores to a page, and checks that it ends with an error, and that
// the table does not hear of it.
func (r *readOnlyRig) refuse(c command, page pagetable.Page, want error, why string) {
	r.Helper()
	unheard := func() {
		for _, ev := range r.faults {
			if ev.Proc == r.id && ev.Write {
				r.Fatalf("a store to page %d, which is %s, was reported as a fault: %+v", page, why, ev)
			}
		}
	}
	a := r.p.order(c, page, 8, 99)
	r.until(fmt.Sprintf("a store to page %d, which is %s, to fail", page, why), false, func() bool {
		unheard()
		select {
		case got := <-a.done:
			if !errors.Is(got.err, want) {
				r.Fatalf("a store to page %d, which is %s, ended with %v; want %v", page, why, got.err, want)
			}
			return true
		default:
			return false
		}
	})
	r.pump(false)
	unheard()
}

// refused checks that the program can't store to a page: a store panics with its address (see
// unlessLost), and read(2) into it fails.
func (r *readOnlyRig) refused(page pagetable.Page, why string) {
	r.Helper()
	r.refuse(cmdStore, page, ErrLost, why)
	r.refuse(cmdReadCall, page, unix.EFAULT, why)
}

// loaded checks the first word of a page in the program, also for write(2).
func (r *readOnlyRig) loaded(page pagetable.Page, want uint64, what string) {
	r.Helper()
	r.Want(r.Value(r.p.Load(page, 0)), want, what)
	r.Want(r.Value(r.p.order(cmdWriteCall, page, 0, 0)), want, what+", for write(2)")
}

// TestReadOnly: in read-only pages loads are as ever, and stores fail, whatever the node may do
// with the page.
func TestReadOnly(t *testing.T) {
	t.Parallel() // most of it waits for programs
	small, large := pagetable.Config{Pages: RegionPages}, pagetable.Config{Pages: RegionPages, PageBytes: 4 * os.Getpagesize()}
	for name, start := range map[string]func(t testing.TB) *readOnlyRig{
		"Uffd": func(t testing.TB) *readOnlyRig { return newReadOnlyRig(t, newFixture(t), programOptions{}) },
		"UffdLargePages": func(t testing.TB) *readOnlyRig {
			newFixture(t) // or the test is skipped
			return newReadOnlyRig(t, fixtureOf(t, large), programOptions{})
		},
		"Sigsegv": func(t testing.TB) *readOnlyRig {
			return newReadOnlyRig(t, sigsegvFixture(t, small, programOptions{}), programOptions{})
		},
		"SigsegvLargePages": func(t testing.TB) *readOnlyRig {
			return newReadOnlyRig(t, sigsegvFixture(t, large, programOptions{}), programOptions{})
		},
		"SigsegvFewMappings": func(t testing.TB) *readOnlyRig {
			return newReadOnlyRig(t, sigsegvFixture(t, small, programOptions{}), programOptions{maxSplits: 3})
		},
	} {
		for what, run := range map[string]func(*readOnlyRig){
			"History":  readOnlyHistory,
			"Lost":     readOnlyLost,
			"Border":   readOnlyBorder,
			"Anew":     readOnlyAnew,
			"Reported": readOnlyReported,
		} {
			t.Run(name+"/"+what, func(t *testing.T) { run(start(t)) })
		}
	}
}

// readOnlyHistory takes a page through all that it can be. Another program stores to it.
func readOnlyHistory(r *readOnlyRig) {
	const page = inside
	q, _ := r.Start()
	r.refused(page, "absent")
	load := r.p.Load(page, 0)
	r.Fault(r.id, page, false)
	r.refused(page, "waited for")
	r.StillWaits(load, "the page is absent")
	r.Install(page, r.Filled(1), false, r.id)
	r.Want(r.Value(load), 1, "the word loaded")
	r.refused(page, "read-only at the node")

	r.MakeWritable(page)
	r.refused(page, "writable at the node since it was mapped")
	r.Value(q.Store(page, 0, 2))
	r.loaded(page, 2, "the word that another program stored")
	r.refused(page, "stored to by another program")
	r.Map(page, r.id)
	r.refused(page, "mapped as a writable page")
	r.Downgrade(page)
	r.loaded(page, 2, "the word after a downgrade")
	r.refused(page, "downgraded")

	r.Want(Word(r.Revoke(page), 0), 2, "the last word")
	r.refused(page, "revoked")
	load = r.p.Load(page, 0)
	r.Fault(r.id, page, false)
	r.StillWaits(load, "the page was revoked")
	r.Install(page, r.Filled(3), true, r.id)
	r.Want(r.Value(load), 3, "the word installed")
	r.refused(page, "installed writable")
	r.Want(Word(r.Read(page), 8), 3, "a word that the program tried to store to")
}

// readOnlyLost: a lost page fails loads, too. Only those succeed when somebody has it after all.
func readOnlyLost(r *readOnlyRig) {
	r.Lose(inside)
	r.refused(inside, "lost")
	r.Fails(r.p.Load(inside, 0), "a load from a lost page")
	r.refused(inside, "lost, and known to be")
	r.Install(inside, r.Filled(1), true, r.id)
	r.loaded(inside, 1, "the word of a page that is lost no more")
	r.refused(inside, "lost no more")
}

// readOnlyBorder: operations on runs reach pages on both sides of the border, and neither side
// becomes what the other is.
func readOnlyBorder(r *readOnlyRig) {
	n := r.runPages()
	first := pagetable.Page(firstReadOnly - n/2)
	run := pagetable.Run{First: first, Count: n, Proc: r.id}
	check := func(base uint64, why string) {
		r.Helper()
		for i := range n {
			r.loaded(first+pagetable.Page(i), base+uint64(i), "a word of a run that is "+why)
		}
		r.refused(firstReadOnly, why)
		r.refused(first+pagetable.Page(n-1), why)
	}
	run.Op, run.Data, run.Writable = pagetable.OpInstall, r.filledRun(10, n), true
	r.Operate(run)
	check(10, "installed writable")
	r.Value(r.p.Store(firstReadOnly-1, 8, 5))
	run.Data = nil
	run.Op = pagetable.OpDowngrade
	r.Operate(run)
	check(10, "downgraded")
	store := r.p.Store(firstReadOnly-1, 8, 6)
	r.Fault(r.id, firstReadOnly-1, true)
	r.StillWaits(store, "the page was downgraded")
	run.Op = pagetable.OpMakeWritable
	r.Operate(run)
	r.Value(store)
	r.faults = nil // repeats
	check(10, "made writable")
	run.Op = pagetable.OpRevoke
	r.Operate(run)
	r.refused(firstReadOnly, "revoked")
	run.Op, run.Data, run.Writable = pagetable.OpInstall, r.filledRun(20, n), false
	r.Operate(run)
	check(20, "installed read-only")
}

// readOnlyAnew: memory that was freed and is mapped anew is what it was registered as last.
func readOnlyAnew(r *readOnlyRig) {
	for _, page := range []pagetable.Page{0, inside} {
		r.Install(page, r.Filled(1), true, r.id)
		r.loaded(page, 1, "the word installed")
	}
	r.Value(r.p.Store(0, 8, 2))
	r.Value(r.p.order(cmdUnregister, 0, 0, firstReadOnly))
	r.Value(r.p.order(cmdUnregister, firstReadOnly, 0, RegionPages-firstReadOnly))
	r.Value(r.p.order(cmdRegister, 0, 1, firstReadOnly))
	r.Value(r.p.order(cmdRegister, firstReadOnly, 0, RegionPages-firstReadOnly))
	r.refused(0, "registered read-only since")
	r.loaded(0, 1, "the word of a page that was registered read-only since")
	r.refused(0, "registered read-only since, and mapped")
	r.Value(r.p.Store(inside, 0, 2))
	r.loaded(inside, 2, "the word stored to a page that was registered read-only before")
}

// readOnlyReported: a store that nobody recovers from ends the program with Go's report.
func readOnlyReported(r *readOnlyRig) {
	r.Install(inside, r.Filled(1), true, r.id)
	r.loaded(inside, 1, "the word installed")
	r.refuse(cmdBareStore, inside, errProgramEnded, "read-only, and nobody recovers")
	r.p.Kill()
	at := r.p.base + uintptr(inside*r.table.PageBytes()) + 8
	for _, want := range []string{fmt.Sprintf("unexpected fault address %#x\n", at), "[signal SIGSEGV: segmentation violation code=0x2 ", "pagetable_test.store("} {
		if said := r.p.stderr.String(); !strings.Contains(said, want) {
			r.Errorf("the program did not say %q but\n%s", want, said)
		}
	}
}

// TestSigsegvReadOnlyMapGranted: what is granted of a run is mapped at once, on both sides of a
// border, though the node may store to all of it.
func TestSigsegvReadOnlyMapGranted(t *testing.T) {
	r := newReadOnlyRig(t, sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, programOptions{}), programOptions{})
	const first, end = firstReadOnly - 2, firstReadOnly + 6
	for page := pagetable.Page(first); page < end; page++ {
		r.Install(page, r.Filled(uint64(page)), true, r.id)
	}
	for range 2 { // the second finds all there
		r.Value(r.p.order(cmdMapGranted, first, 0, firstReadOnly-first))
		r.Value(r.p.order(cmdMapGranted, firstReadOnly, 0, end-firstReadOnly))
	}
	for page := pagetable.Page(first); page < end; page++ {
		r.Want(r.Value(r.p.order(cmdWriteCall, page, 0, 0)), uint64(page), "a word for write(2) that was never touched")
	}
	r.Value(r.p.order(cmdReadCall, firstReadOnly-1, 8, 7))
	r.refused(firstReadOnly, "mapped at once")
	r.refused(end-1, "mapped at once")
}

// TestSigsegvReadOnlyStorm: a program adds to words while pages are taken away at random, and
// another has them read-only. It never sees an old word, and can never store.
func TestSigsegvReadOnlyStorm(t *testing.T) {
	for _, maxSplits := range []uint64{0, 4} {
		t.Run(fmt.Sprintf("MaxSplits%d", maxSplits), func(t *testing.T) {
			const pages, goroutines = 12, 4
			rounds := uint64(700 * *longer)
			fx := sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, programOptions{maxSplits: maxSplits})
			s := newServer(t, fx.Table.(*pagetable.Sigsegv), pages)
			writer := fx.Start(t, 1).(*testProgram)
			reader := attachProgram(t, fx.Table, 2, programOptions{unregistered: true, maxSplits: maxSplits})
			ended := reader.answer(reader.order(cmdRegister, 0, 1, RegionPages))
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			for _, answer := range []chan error{
				writer.answer(writer.order(cmdStorm, pages, goroutines, rounds)),
				reader.answer(reader.order(cmdWatch, pages, goroutines, rounds)),
			} {
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
			if got, want := s.sum(), goroutines*rounds; got != want {
				t.Errorf("the words add up to %d, want %d", got, want)
			}
		})
	}
}
