package pagetable_test

import (
	"os"
	"testing"

	"dsmd/internal/uffd/uffdtest"
	"dsmd/pagetable"
	"dsmd/pagetable/pagetabletest"
)

func TestUffdConforms(t *testing.T) {
	pagetabletest.Run(t, newFixture)
}

// TestUffdConformsWithLargePages: a page of the table is several of the operating system's, which faults and ioctls can
// settle in part.
func TestUffdConformsWithLargePages(t *testing.T) {
	pagetabletest.Run(t, func(t testing.TB) pagetabletest.Fixture {
		uffdtest.Require(t)
		return fixtureOf(t, pagetable.UffdConfig{Pages: pagetabletest.RegionPages, PageBytes: 4 * os.Getpagesize()})
	})
}
