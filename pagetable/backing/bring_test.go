package backing

import (
	"bytes"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"dsmd/internal/diskio"
	"dsmd/pagetable"
	"dsmd/pagetable/pagetabletest"
)

// contents makes a file with the contents of all pages, each filled with its number.
func contents(t *testing.T) *os.File {
	t.Helper()
	var all []byte
	for p := range pagetable.Page(pages) {
		all = append(all, filled(p)...)
	}
	name := filepath.Join(t.TempDir(), "contents")
	if err := os.WriteFile(name, all, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func in(f *os.File, p pagetable.Page) Location {
	return Location{FD: int(f.Fd()), Offset: int64(p) * 4096, Check: true, CRC: crc32.Checksum(filled(p), crc32.MakeTable(crc32.Castagnoli))}
}

// empty makes a table in which nothing is, with a spill file or without.
func empty(t *testing.T, async, spills bool) *Table {
	t.Helper()
	dir := ""
	if spills {
		dir = t.TempDir()
	}
	table, _, err := New(pagetabletest.NewFake(pagetabletest.FakeConfig{Pages: pages, Async: async}), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	table.Left = func(pagetable.Page) {}
	table.Came = func(p pagetable.Page) {
		if !spills {
			t.Errorf("page %d has come back, and could not leave", p)
		}
	}
	return table
}

// ended polls until so many operations have ended, and returns how.
func ended(t *testing.T, table *Table, count int) (list []pagetable.Event) {
	t.Helper()
	until(t, table, "the operations have ended", func(events []pagetable.Event) bool {
		list = append(list, events...)
		return len(list) >= count
	})
	if len(list) > count {
		t.Fatalf("%d operations were under way, and %d have ended: %v", count, len(list), list)
	}
	return list
}

// forAll runs a test on tables that finish at once or later, with a spill file or without.
func forAll(t *testing.T, f func(t *testing.T, table *Table)) {
	for _, async := range []bool{false, true} {
		for _, spills := range []bool{false, true} {
			name := map[bool]string{false: "Done", true: "Pending"}[async] + map[bool]string{false: "", true: "Spills"}[spills]
			t.Run(name, func(t *testing.T) { f(t, empty(t, async, spills)) })
		}
	}
}

// bring brings a page.
func bring(t *testing.T, table *Table, p pagetable.Page, from Location) {
	t.Helper()
	if out, err := table.Bring(p, from, true, 1); out != pagetable.Pending || err != nil {
		t.Fatalf("page %d: %v, %v", p, out, err)
	}
}

// clean checks that nothing is under way.
func clean(t *testing.T, table *Table) {
	t.Helper()
	if len(table.moving) != 0 || table.loading != 0 || table.writing != 0 || table.file != nil && table.file.slots.used != len(table.stored) {
		t.Errorf("%d pages are on their way, %d of them back; %d are written", len(table.moving), table.loading, table.writing)
	}
}

// TestBring: pages come with the contents of a file, and each has an event of its own. They are not
// taken for pages that come back.
func TestBring(t *testing.T) {
	forAll(t, func(t *testing.T, table *Table) {
		f, fd := contents(t), table.WaitFD()
		for _, p := range all() {
			bring(t, table, p, in(f, p))
			if table.Spilled(p) || table.Loading() != 0 {
				t.Fatalf("page %d is taken for spilled: %t; %d pages for such that come back", p, table.Spilled(p), table.Loading())
			}
		}
		want(t, table) // also while they are on their way
		came := map[pagetable.Page]bool{}
		for _, ev := range ended(t, table, pages) {
			if ev.Kind != pagetable.Completed || ev.Op != pagetable.OpInstall || ev.Err != nil || came[ev.Page] {
				t.Fatalf("%+v", ev)
			}
			came[ev.Page] = true
		}
		if table.touches(0, pages) || table.WaitFD() != fd {
			t.Error("pages are not in memory although they have come, or the descriptor is another")
		}
		want(t, table)
		clean(t, table)
	})
}

// TestBringFails: a page whose contents can't be read, or are others, is absent as before. The
// event says why, and the page can be brought again.
func TestBringFails(t *testing.T) {
	forAll(t, func(t *testing.T, table *Table) {
		f := contents(t)
		damaged := in(f, 3)
		damaged.CRC++
		if err := f.Truncate(200*4096 + 10); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			page pagetable.Page
			from Location
			why  error
		}{
			{3, damaged, ErrDamaged},
			{200, in(f, 200), diskio.ErrShort},
			{201, in(f, 201), diskio.ErrShort},
			{202, Location{FD: 1 << 30}, unix.EBADF},
		} {
			bring(t, table, c.page, c.from)
			ev := ended(t, table, 1)[0]
			if ev.Kind != pagetable.Completed || ev.Op != pagetable.OpInstall || ev.Page != c.page || !errors.Is(ev.Err, c.why) || !strings.Contains(ev.Err.Error(), "read the contents of page") {
				t.Errorf("page %d: %+v, want %v", c.page, ev, c.why)
			}
			clean(t, table)
		}
		bring(t, table, 3, in(f, 3))
		if ev := ended(t, table, 1)[0]; ev.Err != nil {
			t.Error(ev.Err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4096)
		if err := table.Read(3, got); err != nil || !bytes.Equal(got, filled(3)) {
			t.Errorf("page 3 holds %d, %v", got[0], err)
		}
	})
}

// TestBringPads: behind the end of a file are zeros, if the caller says where that was; if it has
// moved since, that is an error.
func TestBringPads(t *testing.T) {
	table, f := empty(t, false, false), contents(t)
	if err := f.Truncate(7*4096 + 10); err != nil {
		t.Fatal(err)
	}
	for p, there := range map[pagetable.Page]int{6: 4096, 7: 10} {
		bring(t, table, p, Location{FD: int(f.Fd()), Offset: int64(p) * 4096, Least: there})
		got, want := make([]byte, 4096), append(filled(p)[:there], make([]byte, 4096-there)...)
		if ev := ended(t, table, 1)[0]; ev.Err != nil {
			t.Fatal(ev.Err)
		}
		if err := table.Read(p, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("page %d is not as it should be, %v", p, err)
		}
	}
	bring(t, table, 8, Location{FD: int(f.Fd()), Offset: 8 * 4096, Least: 1})
	if ev := ended(t, table, 1)[0]; !errors.Is(ev.Err, diskio.ErrShort) {
		t.Errorf("a page that is there no longer: %v", ev.Err)
	}
}

// TestOperationsWaitForBring: what is done to a page that is on its way is done when it is there,
// and fails with it.
func TestOperationsWaitForBring(t *testing.T) {
	for name, o := range map[string]pagetable.Operation{
		"take":         {Op: pagetable.OpRevoke, Into: []byte{}}, // a buffer for each page
		"revoke":       {Op: pagetable.OpRevoke},
		"downgrade":    {Op: pagetable.OpDowngrade},
		"makeWritable": {Op: pagetable.OpMakeWritable},
		"map":          {Op: pagetable.OpMap, Proc: 1, Writable: true},
	} {
		t.Run(name, func(t *testing.T) {
			forAll(t, func(t *testing.T, table *Table) { operateOnWhatIsBrought(t, table, o) })
		})
	}
}

func operateOnWhatIsBrought(t *testing.T, table *Table, o pagetable.Operation) {
	const damaged = 9
	f, taken := contents(t), make([]byte, pages*4096)
	for _, p := range all() {
		from := in(f, p)
		if p == damaged {
			from.CRC++
		}
		bring(t, table, p, from)
		if o.Page = p; o.Into != nil {
			o.Into = taken[p*4096:][:4096]
		}
		if out, err := pagetable.Perform(table, &o); out != pagetable.Pending || err != nil {
			t.Fatalf("page %d: %v, %v", p, out, err)
		}
	}
	brought := map[pagetable.Page]bool{}
	for _, ev := range ended(t, table, 2*pages) {
		if (ev.Err != nil) != (ev.Page == damaged) {
			t.Fatalf("%+v", ev)
		}
		want := pagetable.OpInstall
		if brought[ev.Page] {
			want = o.Op
		}
		if brought[ev.Page] = true; ev.Op != want {
			t.Fatalf("%+v, want the end of %v", ev, want)
		}
	}
	got := make([]byte, 4096)
	for _, p := range all() {
		want := filled(p)
		if o.Into != nil && p != damaged && !bytes.Equal(taken[p*4096:][:4096], want) {
			t.Fatalf("page %d had %d when it was taken", p, taken[p*4096])
		}
		if o.Op == pagetable.OpRevoke || p == damaged {
			want = make([]byte, 4096)
		}
		if err := table.Read(p, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("page %d holds %d, %v", p, got[0], err)
		}
	}
	clean(t, table)
}

// TestDropOfWhatIsBrought: a page that is freed on its way ends its Bring, and can be brought anew
// at once. What was read for the first has no effect.
func TestDropOfWhatIsBrought(t *testing.T) {
	forAll(t, func(t *testing.T, table *Table) {
		f := contents(t)
		for range 20 {
			for _, p := range all() {
				bring(t, table, p, Location{FD: int(f.Fd()), Offset: int64((p+1)%pages) * 4096})
			}
			var buf [8]pagetable.Event
			n, err := table.Poll(buf[:]) // some may be in memory
			if err != nil {
				t.Fatal(err)
			}
			out, err := table.Drop(0, pages)
			if err != nil {
				t.Fatal(err)
			}
			events := pages - n
			if out == pagetable.Pending {
				events++
			}
			ended(t, table, events)
			for _, p := range all() {
				bring(t, table, p, in(f, p))
			}
			for _, ev := range ended(t, table, pages) {
				if ev.Err != nil {
					t.Fatal(ev.Err)
				}
			}
			want(t, table)
			clean(t, table)
			if out, err := table.Drop(0, pages); err != nil {
				t.Fatal(err)
			} else if out == pagetable.Pending {
				ended(t, table, 1)
			}
		}
	})
}

// TestBringAndSpill: pages that were brought leave memory and come back as others do, and free the
// slots of the spill file alone.
func TestBringAndSpill(t *testing.T) {
	table, f := empty(t, false, true), contents(t)
	came := 0
	table.Came = func(pagetable.Page) { came++ }
	for _, p := range all() {
		bring(t, table, p, in(f, p))
	}
	if n, err := table.Spill(all()...); n != 0 || err != nil {
		t.Errorf("%d pages leave before they have come, %v", n, err)
	}
	ended(t, table, pages)
	if n, err := table.Spill(all()...); n != pages || err != nil {
		t.Fatalf("%d pages leave, %v", n, err)
	}
	until(t, table, "all is written", func([]pagetable.Event) bool { return table.Stored() == pages })
	f.Close()
	want(t, table)
	for _, p := range all() {
		if out, err := table.Map(p, true, 1); out != pagetable.Pending || err != nil {
			t.Fatalf("page %d: %v, %v", p, out, err)
		}
	}
	if n := table.Loading(); n != pages {
		t.Errorf("%d pages are on their way back", n)
	}
	ended(t, table, pages)
	if came != pages {
		t.Errorf("%d pages have come back", came)
	}
	want(t, table)
	clean(t, table)
}

// TestWithoutSpillFile: nothing can leave, and the error says why.
func TestWithoutSpillFile(t *testing.T) {
	table := empty(t, false, false)
	if _, err := table.Install(5, filled(5), true, 1); err != nil {
		t.Fatal(err)
	}
	if n, err := table.Spill(5); n != 0 || !errors.Is(err, errNoFile) || table.CanSpill() {
		t.Errorf("%d pages leave, %v; the table can spill: %t", n, err, table.CanSpill())
	}
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Bring(6, Location{}, true, 1); !errors.Is(err, pagetable.ErrClosed) {
		t.Errorf("Bring after Close: %v", err)
	}
}

// TestCloseWhileTheyCome: Close waits for no page.
func TestCloseWhileTheyCome(t *testing.T) {
	forAll(t, func(t *testing.T, table *Table) {
		f := contents(t)
		for _, p := range all() {
			bring(t, table, p, in(f, p))
		}
		if err := table.Close(); err != nil {
			t.Fatal(err)
		}
		if n, err := table.Poll(make([]pagetable.Event, 8)); n != 0 || !errors.Is(err, pagetable.ErrClosed) {
			t.Errorf("%d events after Close, %v", n, err)
		}
	})
}
