package uffd_test

import (
	"testing"

	"dsmd/internal/uffd"
)

// TestMissing: of a run that is read in several parts, what a load and what a store would fault at;
// pages that are in the file and not mapped are missing, too.
func TestMissing(t *testing.T) {
	const pages = 1300
	r := newRegion(t, pages)
	m, err := uffd.OpenPagemap()
	if err != nil {
		t.Fatal(err)
	}
	want := func(what string, write bool, first, count int) {
		t.Helper()
		at, bytes := m.Missing(r.at(0), pages*pageBytes, write)
		if bytes != uintptr(count)*pageBytes || count > 0 && at != r.at(first) {
			t.Errorf("%s, write %t: %d pages are missing from %d, want %d from %d", what, write, bytes/pageBytes, (at-r.addr)/pageBytes, count, first)
		}
	}
	fill := func(page, count int, mode uint64) {
		t.Helper()
		for p := page; p < page+count; p++ {
			if _, errno := r.fd.Copy(r.at(p), filled(1, 1), mode); errno != 0 {
				t.Fatal(errno)
			}
		}
	}
	want("nothing is here", false, 0, pages)
	fill(0, 1, 0)
	fill(700, 1, 0)
	want("the first page, and one in the middle", false, 1, pages-1)
	fill(1299, 1, 0)
	fill(1, 698, 0)
	want("all up to 699, and the last", false, 699, 600)
	fill(699, 1, uffd.WriteProtected)
	fill(701, 598, 0)
	want("all, one write-protected", false, 0, 0)
	want("all, one write-protected", true, 699, 1)
	if errno := r.fd.WriteProtect(r.at(699), pageBytes, false, true); errno != 0 {
		t.Fatal(errno)
	}
	want("all", true, 0, 0)
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	want("nobody can look", true, 0, pages)
}
