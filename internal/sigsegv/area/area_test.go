package area_test

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/internal/sigsegv/area"
)

const pages, pageBytes = 100, 4096

// Where the header has what the program writes; see trap.h.
const (
	doneAt   = 264
	turnAt   = area.FaultsOffset
	pageAt   = turnAt + 8
	threadAt = turnAt + 16
	accessAt = turnAt + 20
)

// newFile makes an area's file as a program does, and returns the program's view of it.
func newFile(t *testing.T, bytes uint64, seals int) (file int, mem []byte) {
	t.Helper()
	file, err := unix.MemfdCreate("area-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(file) })
	if err := unix.Ftruncate(file, int64(bytes)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(file), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	if mem, err = unix.Mmap(file, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	area.Create(mem, pages, pageBytes)
	return file, mem
}

// open is the daemon's side of a correct file.
func open(t *testing.T) (*area.Area, []byte) {
	t.Helper()
	file, mem := newFile(t, area.Size(pages), unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	a, err := area.Open(file, pages, pageBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a, mem
}

// TestOpenRefuses: what a program hands over is looked at before anything relies on it.
func TestOpenRefuses(t *testing.T) {
	short, _ := newFile(t, area.Size(pages)-1, unix.F_SEAL_SHRINK)
	loose, _ := newFile(t, area.Size(pages), unix.F_SEAL_GROW)
	other, mem := newFile(t, area.Size(pages), unix.F_SEAL_SHRINK)
	binary.NativeEndian.PutUint64(mem, area.Magic+1)
	fine, _ := newFile(t, area.Size(pages), unix.F_SEAL_SHRINK)
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(event)
	for name, c := range map[string]struct {
		file             int
		pages, pageBytes uint64
	}{
		"a file that is too short":      {short, pages, pageBytes},
		"a file that can be shortened":  {loose, pages, pageBytes},
		"a file with another beginning": {other, pages, pageBytes},
		"an area of other pages":        {fine, pages, 2 * pageBytes},
		"an area of fewer pages":        {fine, pages + 1, pageBytes},
		"no memory file":                {event, pages, pageBytes},
	} {
		if a, err := area.Open(c.file, c.pages, c.pageBytes); !errors.Is(err, area.ErrBad) {
			t.Errorf("%s: %v, %v; want ErrBad", name, a, err)
		}
	}
}

// TestCommands: there is room for as many as the ring has slots, and for more when the agent has
// carried some out.
func TestCommands(t *testing.T) {
	a, mem := open(t)
	for i := range uint64(area.CommandSlots) {
		if !a.Post(i) {
			t.Fatalf("there is no room for command %d", i)
		}
	}
	if a.Post(0) {
		t.Error("there is room for more commands than the ring has slots")
	}
	binary.NativeEndian.PutUint64(mem[doneAt:], 2)
	if !a.Post(0) || !a.Post(1) || a.Post(2) {
		t.Error("two commands were carried out, and there is not room for exactly two more")
	}
}

// TestCommandsThatNobodyGave: a program that says it has carried out more than it was told to does
// itself no good, and its daemon no harm: commands don't pile up behind a ring that seems to be
// full.
func TestCommandsThatNobodyGave(t *testing.T) {
	a, mem := open(t)
	for _, said := range []uint64{1, area.CommandSlots, 1 << 63, 1<<64 - 1} {
		binary.NativeEndian.PutUint64(mem[doneAt:], said)
		before := a.Done()
		if !a.Post(7) {
			t.Fatalf("there is no room after the program has said that it has carried out %d commands", said)
		}
		if done := a.Done(); done > before+1 {
			t.Errorf("%d commands count as carried out, %d were given", done, before+1)
		}
	}
}

// TestFaultsThatAreRubbish: what a program writes is returned as it is, and the ring goes on.
func TestFaultsThatAreRubbish(t *testing.T) {
	a, mem := open(t)
	if f, ok := a.TakeFault(); ok {
		t.Fatalf("an empty ring has %+v", f)
	}
	binary.NativeEndian.PutUint64(mem[pageAt:], 1<<64-1)
	binary.NativeEndian.PutUint32(mem[threadAt:], 5)
	binary.NativeEndian.PutUint32(mem[accessAt:], 1<<32-1)
	binary.NativeEndian.PutUint64(mem[turnAt:], 1)
	want := area.Fault{Page: 1<<64 - 1, Thread: 5, Offset: 1<<31 - 1, Write: true}
	if f, ok := a.TakeFault(); !ok || f != want {
		t.Errorf("got %+v, %v; want %+v", f, ok, want)
	}
	if f, ok := a.TakeFault(); ok {
		t.Errorf("the ring has %+v, which nobody posted", f)
	}
}

// TestWord: what the daemon does to a word leaves the program's part alone and counts the
// generation on.
func TestWord(t *testing.T) {
	a, mem := open(t)
	const page = 9
	word := (*uint32)(unsafe.Pointer(&mem[area.WordsOffset+4*page]))
	touched := func() bool { _, ok := a.NextTouched(page, page+1); return ok }
	if touched() {
		t.Error("a new page was touched")
	}
	*word = uint32(area.Writable)<<area.AppliedShift | area.Waiters
	for i, step := range []struct {
		do   func()
		want area.Level // granted afterwards
	}{
		{func() { a.Raise(page, area.Writable) }, area.None},
		{func() { a.Grant(page, area.ReadOnly) }, area.ReadOnly},
		{func() { a.Raise(page, area.Writable) }, area.Writable},
		{func() { a.Wake(page) }, area.Writable},
		{func() { a.Limit(page, area.ReadOnly) }, area.ReadOnly},
		{func() { a.Limit(page, area.Writable) }, area.ReadOnly},
		{func() { a.Limit(page, area.None) }, area.None},
		{func() { a.Grant(page, area.Lost) }, area.Lost},
		{func() { a.Raise(page, area.Writable) }, area.Lost},
		{func() { a.Limit(page, area.ReadOnly) }, area.Lost},
		{func() { a.Wake(page) }, area.Lost},
		{func() { a.Grant(page, area.None) }, area.None},
	} {
		step.do()
		if want := uint32(i+1)*area.GenStep | uint32(area.Writable)<<area.AppliedShift | uint32(step.want); *word != want {
			t.Errorf("after step %d the word is %#x, want %#x", i, *word, want)
		}
	}
	if applied := a.Limit(page, area.None); applied != area.Writable || !touched() {
		t.Errorf("applied is %d, touched %v; want %d, true", applied, touched(), area.Writable)
	}
}

// TestUntouchedWordsTakeNoMemory: in a large region the few pages with which something was done are
// found without a look at the words of the others.
func TestUntouchedWordsTakeNoMemory(t *testing.T) {
	const many = 1 << 20
	file, mem := newFile(t, area.Size(many), unix.F_SEAL_SHRINK)
	area.Create(mem, many, pageBytes)
	a, err := area.Open(file, many, pageBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	want := []uint64{0, 5, 1024, 200_000, many - 1}
	for _, page := range want[1:] {
		a.Wake(page)
	}
	// a thread waits for the first, and the daemon knows that by its fault alone
	binary.NativeEndian.PutUint64(mem[pageAt:], 0)
	binary.NativeEndian.PutUint64(mem[turnAt:], 1)
	binary.NativeEndian.PutUint32(mem[area.WordsOffset:], area.Waiters)
	if _, ok := a.TakeFault(); !ok {
		t.Fatal("the fault is not taken")
	}
	blocks := func() int64 {
		var st unix.Stat_t
		if err := unix.Fstat(file, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks
	}
	before := blocks()
	var got []uint64
	for page, ok := a.NextTouched(0, many); ok; page, ok = a.NextTouched(page+1, many) {
		got = append(got, page)
	}
	if !slices.Equal(got, want) {
		t.Errorf("touched are %v, want %v", got, want)
	}
	if now := blocks(); now != before {
		t.Errorf("the area has grown from %d to %d blocks", before, now)
	}
}
