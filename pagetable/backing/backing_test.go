package backing

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/diskio"
	"dsmd/internal/patience"
	"dsmd/pagetable"
	"dsmd/pagetable/pagetabletest"
)

// The conformance suite, with pages that leave at random, is pagetable's TestSpillConforms.

const pages = 256

// with makes a table with so many pages, each filled with its number, in memory.
func with(t *testing.T) (*Table, string) {
	t.Helper()
	dir := t.TempDir()
	table, _, err := New(pagetabletest.NewFake(pagetabletest.FakeConfig{Pages: pages}), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	for p := range pagetable.Page(pages) {
		if _, err := table.Install(p, filled(p), true, 1); err != nil {
			t.Fatal(err)
		}
	}
	return table, dir
}

func filled(p pagetable.Page) []byte { return bytes.Repeat([]byte{byte(p)}, 4096) }

func all() (list []pagetable.Page) {
	for p := range pagetable.Page(pages) {
		list = append(list, p)
	}
	return list
}

// until polls until ok says so, which is told what was polled.
func until(t *testing.T, table *Table, what string, ok func([]pagetable.Event) bool) {
	t.Helper()
	var buf [8]pagetable.Event
	for deadline := time.Now().Add(patience.Or(10 * time.Second)); ; {
		n, err := table.Poll(buf[:])
		if err != nil {
			t.Fatal(err)
		}
		if ok(buf[:n]) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// want checks what pages hold, by Read and by taking them.
func want(t *testing.T, table *Table) {
	t.Helper()
	got := make([]byte, 4096)
	for _, p := range all() {
		if err := table.Read(p, got); err != nil || !bytes.Equal(got, filled(p)) {
			t.Fatalf("page %d holds %d, %v", p, got[0], err)
		}
	}
}

// TestThereAndBack: what leaves memory is in the file, and nothing in the directory has a name.
// What is needed comes back, and its slot is free again.
func TestThereAndBack(t *testing.T) {
	table, dir := with(t)
	left, came := 0, 0
	table.Left, table.Came = func(pagetable.Page) { left++ }, func(pagetable.Page) { came++ }
	if n, err := table.Spill(all()...); n != pages || err != nil || left != pages {
		t.Fatalf("%d of %d pages leave, %d have left, %v", n, pages, left, err)
	}
	if n, err := table.Spill(all()...); n != 0 || err != nil {
		t.Errorf("%d pages leave once more, %v", n, err)
	}
	want(t, table)
	until(t, table, "all is written", func([]pagetable.Event) bool { return table.Stored() == pages })
	want(t, table)
	if names, err := os.ReadDir(dir); len(names) > 0 || err != nil {
		t.Errorf("the directory has %v, %v", names, err)
	}
	for _, p := range all() {
		if out, err := table.Map(p, true, 1); out != pagetable.Pending || err != nil {
			t.Fatalf("page %d: %v, %v", p, out, err)
		}
	}
	if n := table.Loading(); n != pages {
		t.Errorf("%d pages are on their way back", n)
	}
	done := 0
	until(t, table, "all are back", func(events []pagetable.Event) bool {
		for _, ev := range events {
			if ev.Kind == pagetable.Completed && ev.Op == pagetable.OpMap && ev.Err == nil {
				done++
			}
		}
		return done == pages && came == pages && table.Loading() == 0
	})
	want(t, table)
	if table.Stored() != 0 || table.file.slots.used != 0 || len(table.moving) != 0 || table.writing != 0 {
		t.Errorf("left in the file: %d pages, %d slots; %d on their way", table.Stored(), table.file.slots.used, len(table.moving))
	}
}

// instead has the file's descriptor stand for another file.
func instead(t *testing.T, table *Table, path string, flags int) {
	t.Helper()
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Dup3(fd, table.file.fd, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
}

// TestFullDisk: pages that cannot be written stay available, and no more are taken.
func TestFullDisk(t *testing.T) {
	table, _ := with(t)
	instead(t, table, "/dev/full", unix.O_RDWR)
	if n, err := table.Spill(all()[:100]...); n != 100 || err != nil {
		t.Fatalf("%d pages leave, %v", n, err)
	}
	until(t, table, "writing has failed", func([]pagetable.Event) bool { return table.writing == 0 })
	if n, err := table.Spill(all()...); n != 0 || !errors.Is(err, ErrFull) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%d pages leave although the disk is full, %v", n, err)
	}
	want(t, table)
	for _, p := range all()[2:] {
		if out, err := table.Map(p, true, 1); out != pagetable.Done || err != nil {
			t.Fatalf("page %d: %v, %v", p, out, err)
		}
	}
	want(t, table)
	got := make([]byte, 4096)
	if out, err := table.Revoke(0, got); out != pagetable.Done || err != nil || !bytes.Equal(got, filled(0)) {
		t.Errorf("page 0 is taken with %d: %v, %v", got[0], out, err)
	}
	if out, err := table.Drop(1, 1); out != pagetable.Done || err != nil {
		t.Errorf("page 1 is freed: %v, %v", out, err)
	}
	if n := table.queue.Lent(); len(table.moving) > 0 || table.file.slots.used > 0 || n > 0 {
		t.Errorf("%d pages are still on their way, %d slots in use, and %d buffers not recycled", len(table.moving), table.file.slots.used, n)
	}
}

// TestUnreadableFile: a page that cannot be read is told to the caller, by Read and by the end of
// the operation that needed it.
func TestUnreadableFile(t *testing.T) {
	table, _ := with(t)
	if _, err := table.Spill(all()...); err != nil {
		t.Fatal(err)
	}
	until(t, table, "all is written", func([]pagetable.Event) bool { return table.Stored() == pages })
	instead(t, table, "/dev/null", unix.O_RDWR)
	if err := table.Read(7, make([]byte, 4096)); !errors.Is(err, diskio.ErrShort) {
		t.Errorf("Read: %v", err)
	}
	if out, err := table.Map(9, true, 1); out != pagetable.Pending || err != nil {
		t.Fatalf("Map: %v, %v", out, err)
	}
	until(t, table, "the Map has failed", func(events []pagetable.Event) bool {
		return len(events) == 1 && events[0].Kind == pagetable.Completed && events[0].Page == 9 && errors.Is(events[0].Err, diskio.ErrShort)
	})
}

// TestCopy: what is in the file is copied as it is, whatever is done to the page before the file
// answers, and the page stays there. What is not in the file is not copied.
func TestCopy(t *testing.T) {
	for name, change := range map[string]func(*Table, pagetable.Page) (pagetable.Outcome, error){
		"stays":    func(*Table, pagetable.Page) (pagetable.Outcome, error) { return pagetable.Done, nil },
		"comes":    func(table *Table, p pagetable.Page) (pagetable.Outcome, error) { return table.MakeWritable(p) },
		"is taken": func(table *Table, p pagetable.Page) (pagetable.Outcome, error) { return table.Revoke(p, nil) },
		"is freed": func(table *Table, p pagetable.Page) (pagetable.Outcome, error) { return table.Drop(p, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			table, _ := with(t)
			copied := 0
			copy := func(p pagetable.Page) bool {
				if !InFile(table, p) {
					return false
				}
				if err := Copy(table, p, func(contents []byte, why error) {
					if copied++; why != nil || !bytes.Equal(contents, filled(p)) {
						t.Errorf("page %d is copied as %d, %v", p, contents[0], why)
					}
				}); err != nil {
					t.Fatal(err)
				}
				return true
			}
			if copy(0) {
				t.Error("a page is copied that is in memory")
			}
			some := all()[:pages/2]
			if _, err := table.Spill(some...); err != nil {
				t.Fatal(err)
			}
			until(t, table, "all is written", func([]pagetable.Event) bool { return table.Stored() == len(some) })
			for _, p := range some {
				if !copy(p) {
					t.Fatalf("page %d is not copied", p)
				}
				if _, err := change(table, p); err != nil {
					t.Fatal(err)
				}
				if name == "comes" && !copy(p) { // also on its way back
					t.Fatalf("page %d is not copied on its way back", p)
				}
			}
			if _, err := table.Spill(all()[pages/2:]...); err != nil { // into slots that are free
				t.Fatal(err)
			}
			if taken := name == "is taken" || name == "is freed"; taken && table.file.slots.used != pages {
				t.Errorf("%d slots are in use for %d pages that are read, and as many that are written", table.file.slots.used, len(some))
			}
			wanted := len(some)
			if name == "comes" {
				wanted *= 2
			}
			until(t, table, "all is copied, and nothing is under way", func([]pagetable.Event) bool {
				return copied == wanted && len(table.moving) == 0
			})
			if n := table.queue.Lent(); n > 0 || table.file.slots.used != table.Stored() || len(table.file.slots.lent) > 0 {
				t.Errorf("%d buffers are not recycled; %d slots are in use for %d pages, %d of them lent", n, table.file.slots.used, table.Stored(), len(table.file.slots.lent))
			}
		})
	}
}

// TestDropOfWhatIsOnItsWay: pages are freed in whatever stage of their way they are. Nothing is
// left of them.
func TestDropOfWhatIsOnItsWay(t *testing.T) {
	for _, async := range []bool{false, true} {
		fake := pagetabletest.NewFake(pagetabletest.FakeConfig{Pages: pages, Async: async})
		table, _, err := New(fake, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer table.Close()
		for round := range uint64(50) {
			rng := rand.New(rand.NewPCG(round, 1))
			var installed, dropped int
			count := func(events []pagetable.Event) {
				for _, ev := range events {
					switch {
					case ev.Op == pagetable.OpInstall:
						installed++
					case ev.Op == pagetable.OpDrop:
						dropped++
					}
				}
			}
			for _, p := range all() {
				if out, err := table.Install(p, filled(p), true, 1); err != nil {
					t.Fatal(err)
				} else if out == pagetable.Done {
					installed++
				}
			}
			var buf [8]pagetable.Event
			until(t, table, "all are here", func(events []pagetable.Event) bool {
				count(events)
				return installed == pages
			})
			if _, err := table.Spill(all()...); err != nil {
				t.Fatal(err)
			}
			for range rng.IntN(4) {
				n, _ := table.Poll(buf[:])
				count(buf[:n])
			}
			if out, err := table.Drop(0, pages); err != nil {
				t.Fatal(err)
			} else if out == pagetable.Done {
				dropped++
			}
			until(t, table, "all is dropped", func(events []pagetable.Event) bool {
				count(events)
				return dropped == 1 && table.writing == 0
			})
			if table.Stored() != 0 || table.file.slots.used != 0 || len(table.moving) != 0 || table.loading != 0 {
				t.Fatalf("round %d: left in the file: %d pages, %d slots; %d on their way", round, table.Stored(), table.file.slots.used, len(table.moving))
			}
			if n := table.queue.Lent(); n > 0 {
				t.Fatalf("round %d: %d buffers are not recycled", round, n)
			}
		}
	}
}

// TestSlots: each slot is given once, whichever are free, and the file grows only when none is.
func TestSlots(t *testing.T) {
	var s slots
	used, most := map[uint32]bool{}, 0
	for range 20_000 {
		if rand.IntN(2) == 0 && len(used) > 0 {
			for i := range used {
				s.free(i)
				delete(used, i)
				break
			}
			continue
		}
		i := s.take()
		if used[i] {
			t.Fatalf("slot %d was given twice", i)
		}
		used[i] = true
		most = max(most, len(used))
		if int(i) >= most+64 {
			t.Fatalf("slot %d was given, and no more than %d were ever in use", i, most)
		}
	}
	if s.used != len(used) {
		t.Errorf("%d slots are in use, and %d are counted", len(used), s.used)
	}
}

// TestCheckDir: a directory in memory is none to spill to.
func TestCheckDir(t *testing.T) {
	if err := CheckDir("/proc/self/no such directory"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
	var fs unix.Statfs_t
	if unix.Statfs("/dev/shm", &fs) == nil && fs.Type == unix.TMPFS_MAGIC && CheckDir("/dev/shm") == nil {
		t.Error("a tmpfs is taken for a disk")
	}
	if _, _, err := New(pagetabletest.NewFake(pagetabletest.FakeConfig{Pages: 1}), "/proc"); err == nil {
		t.Error("a file was made in /proc")
	}
}
