package pagetable_test

import (
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

func TestSigsegvConforms(t *testing.T) {
	runSuite(t, func(t testing.TB) Fixture {
		return sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, programOptions{})
	})
}

// TestSigsegvConformsWithLargePages: a page of the table is several of the operating system's.
func TestSigsegvConformsWithLargePages(t *testing.T) {
	notInShort(t)
	runSuite(t, func(t testing.TB) Fixture {
		return sigsegvFixture(t, pagetable.Config{Pages: RegionPages, PageBytes: 4 * os.Getpagesize()}, programOptions{})
	})
}

// TestSigsegvConformsWithFewMappings: the program joins mappings all the time, and nobody notices.
func TestSigsegvConformsWithFewMappings(t *testing.T) {
	notInShort(t)
	runSuite(t, func(t testing.TB) Fixture {
		return sigsegvFixture(t, pagetable.Config{Pages: RegionPages}, programOptions{maxSplits: 3})
	})
}
