package area_test

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"dsmd/internal/sigsegv/area"
)

// FuzzArea lets a program write what it likes into the area that it shares with its daemon, between
// the daemon's own steps. The daemon neither crashes nor believes that more was done than it has
// asked for.
func FuzzArea(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 9})
	f.Add(binary.LittleEndian.AppendUint64([]byte{5, doneAt & 0xff, doneAt >> 8, 0}, 1<<64-1))
	f.Add(binary.LittleEndian.AppendUint64([]byte{1, turnAt & 0xff, turnAt >> 8, 0}, 1))
	f.Fuzz(func(t *testing.T, said []byte) {
		file, err := unix.MemfdCreate("area-fuzz", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(file)
		size := int(area.Size(pages))
		if err := unix.Ftruncate(file, int64(size)); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(file), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
			t.Fatal(err)
		}
		mem, err := unix.Mmap(file, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(mem)
		area.Create(mem, pages, pageBytes)
		a, err := area.Open(file, pages, pageBytes)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		posted := uint64(0)
		for ; len(said) >= 12; said = said[12:] {
			at := int(said[1]) | int(said[2])<<8 | int(said[3])<<16
			copy(mem[at%(size-8)&^7:], said[4:12])
			page := uint64(said[3]) % pages
			switch level := area.Level(said[0] % 3); said[0] / 3 % 6 {
			case 0:
				for range 2 * area.FaultSlots { // as many as it pretends, but a poll has its limit
					if _, ok := a.TakeFault(); !ok {
						break
					}
				}
			case 1:
				if a.Post(page) {
					posted++
				}
			case 2:
				a.Grant(page, level)
			case 3:
				a.Limit(page, level)
			case 4:
				a.Raise(page, level)
				a.Wake(page)
			case 5:
				a.Signalled()
				a.Unsignal()
				a.NextTouched(page, pages)
			}
			if done := a.Done(); done > posted {
				t.Fatalf("%d commands are done of %d", done, posted)
			}
		}
	})
}

// TestOpenRefusesHugePages: memory that is not there when it is touched would end the daemon by
// SIGBUS.
func TestOpenRefusesHugePages(t *testing.T) {
	file, err := unix.MemfdCreate("area-huge", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB)
	if err != nil {
		t.Logf("this kernel makes no files of huge pages, so no program can hand one over: %v", err)
		return
	}
	defer unix.Close(file)
	if err := unix.Ftruncate(file, 1<<30); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(file), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		t.Fatal(err)
	}
	if _, err := area.Open(file, pages, pageBytes); err == nil {
		t.Error("an area of huge pages is opened")
	}
}
