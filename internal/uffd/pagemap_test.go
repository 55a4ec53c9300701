package uffd_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
)

// TestMaps: one page of a run that is read in several parts is not mapped, or is write-protected,
// or is in the file and not mapped.
func TestMaps(t *testing.T) {
	const pages = 1300
	r := newRegion(t, pages)
	m, err := uffd.OpenPagemap()
	if err != nil {
		t.Fatal(err)
	}
	maps := func(what string, first, count int, load, store bool) {
		t.Helper()
		for write, want := range map[bool]bool{false: load, true: store} {
			if got := m.Maps(r.at(first), uintptr(count)*pageBytes, write); got != want {
				t.Errorf("%s, write %t: %t", what, write, got)
			}
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
	maps("nothing is here", 0, pages, false, false)
	fill(0, 700, 0)
	fill(702, pages-702, 0)
	fill(700, 1, uffd.WriteProtected)
	if _, err := unix.Pwrite(r.file, filled(1, 1), 701*int64(pageBytes)); err != nil {
		t.Fatal(err)
	}
	maps("those before", 0, 700, true, true)
	maps("with one that is write-protected", 0, 701, true, false)
	maps("one of them is in the file only", 0, pages, false, false)
	if n, errno := r.fd.Continue(r.at(701), pageBytes, 0); errno != 0 || n != int(pageBytes) {
		t.Fatal(errno)
	}
	maps("all, one write-protected", 0, pages, true, false)
	if errno := r.fd.WriteProtect(r.at(700), pageBytes, false, true); errno != 0 {
		t.Fatal(errno)
	}
	maps("all", 0, pages, true, true)
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	maps("nobody can look", 0, pages, false, false)
}
