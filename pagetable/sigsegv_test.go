package pagetable_test

import (
	"fmt"
	"os"
	"testing"

	"dsmd/internal/sigsegv"
	"dsmd/pagetable"
)

// requireCgo skips a test in a build without cgo, where no program can have this trap.
func requireCgo(t testing.TB) {
	t.Helper()
	if err := sigsegv.Available(); err != nil {
		t.Skip(err)
	}
}

func sigsegvFixture(t testing.TB, cfg pagetable.Config, opt programOptions) Fixture {
	t.Helper()
	requireCgo(t)
	s, err := pagetable.NewSigsegv(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return Fixture{Table: s, Start: func(t testing.TB, proc pagetable.ProcID) Program {
		return attachProgram(t, s, proc, opt)
	}}
}

// undisturbed are programs for tests in which a fault must not get lost. A thread that waits goes
// back to its access when a signal comes, as Go's scheduler sends them after some milliseconds, and
// faults again. So a fault that the table has dropped without a word would come once more.
var undisturbed = programOptions{unpreempted: true}

func TestSigsegvConforms(t *testing.T) {
	runSuite(t, func(t testing.TB) Fixture {
		return sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, undisturbed)
	})
}

// TestSigsegvConformsWithLargePages: a page of the table is several of the operating system's.
func TestSigsegvConformsWithLargePages(t *testing.T) {
	notInShort(t)
	runSuite(t, func(t testing.TB) Fixture {
		return sigsegvFixture(t, pagetable.Config{Pages: RegionPages, PageBytes: 4 * os.Getpagesize()}, undisturbed)
	})
}

// TestSigsegvConformsWithFewMappings: the program joins mappings all the time, and nobody notices.
func TestSigsegvConformsWithFewMappings(t *testing.T) {
	notInShort(t)
	runSuite(t, func(t testing.TB) Fixture {
		return sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, programOptions{maxSplits: 3, unpreempted: true})
	})
}

// TestSigsegvTellsAllThatAnEndSettles: the end of a program ends all operations that have waited
// for it. A caller who has room for a few, and polls only when told, hears of each.
func TestSigsegvTellsAllThatAnEndSettles(t *testing.T) {
	r := NewRig(t, sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, programOptions{}))
	started, id := r.Start()
	p := started.(*testProgram)
	for page := range pagetable.Page(RegionPages) {
		r.Value(r.Installed(p, id, page, 1, true))
	}
	p.stop(t)
	for page := range pagetable.Page(RegionPages) {
		if out, err := r.table.Downgrade(page); out != pagetable.Pending || err != nil {
			t.Fatalf("Downgrade of page %d: %v, %v", page, out, err)
		}
	}
	p.Kill()
	const total = RegionPages + 1 // and the end itself
	for told := 0; told < total; {
		awaitReadable(t, r.table.WaitFD(), fmt.Sprintf("%d of %d events are reported", told, total))
		var events [3]pagetable.Event
		n, err := r.table.Poll(events[:])
		if err != nil {
			t.Fatal(err)
		}
		told += n
	}
	if waitReadable(t, r.table.WaitFD(), 0) {
		t.Error("readable although all is told")
	}
}
