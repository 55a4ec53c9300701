package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	_ "dsmd/internal/patience" // watches
)

// pageBytes is more than a sector, so that pages can be torn.
const pageBytes = 1024

// memories of the tests. The second is large and of little use, the third ends within a page.
var memories = []Memory{
	{Name: "grid", Type: "float64", TypeHash: 1<<64 - 1, ElemBytes: 8, Count: 10 * pageBytes / 8},
	{Name: "sparse <&> \u00e9", Type: "struct { a, b uint32 }", TypeHash: 7, ElemBytes: 8, Count: 1 << 37},
	{Name: "odd", Type: "[3]byte", TypeHash: 9, ElemBytes: 3, Count: 700},
	{Name: "empty", Type: "int", TypeHash: 3, ElemBytes: 8, Count: 0},
}

// at names a page of a memory.
type at struct {
	memory uint32
	page   uint64
}

// state is the contents of all memories: pages that are not in it are zeros.
type state map[at][]byte

// filled is a page that nothing else looks like.
func filled(x at, version byte) []byte {
	b := bytes.Repeat([]byte{version, byte(x.memory), 0, 0, 0, 0, 0, 0}, pageBytes/8)
	for i := 0; i < pageBytes; i += 8 {
		binary.LittleEndian.PutUint32(b[i+2:], uint32(x.page))
		binary.LittleEndian.PutUint16(b[i+6:], uint16(i))
	}
	return b
}

// changes are what a rank writes of a checkpoint. A nil page is zeros.
type changes map[at][]byte

// writePart writes the part of a rank, as a daemon and a program do together.
func writePart(s *Store, sequence uint64, rank int, what changes) (Part, error) {
	f, err := s.CreatePart(sequence, rank)
	if err != nil {
		return Part{}, err
	}
	order := slices.SortedFunc(maps.Keys(what), func(a, b at) int { return int(a.page) - int(b.page) + 1<<20*(int(a.memory)-int(b.memory)) })
	var entries []Entry
	slots := uint64(1) // one that is wasted
	for _, x := range order {
		e := Entry{Memory: x.memory, Page: x.page, Slot: Zeros}
		if page := what[x]; page != nil {
			e.Slot, e.CRC = slots, CRC(page)
			if err := writeAll(f.file, page, int64(slots*pageBytes)); err != nil {
				return Part{}, errors.Join(err, f.Abort())
			}
			slots++
		}
		entries = append(entries, e)
	}
	if slots == 1 {
		slots = 0
	}
	return f.Finish(pageBytes, slots, slices.Values(entries))
}

// take takes a checkpoint, which is incremental if base is not nil. Each rank has changes.
func take(s *Store, base *Manifest, ranks ...changes) (*Manifest, error) {
	sequence, err := s.Next()
	if err != nil {
		return nil, err
	}
	m := &Manifest{Sequence: sequence, PageBytes: pageBytes, Ranks: len(ranks), Memories: memories, Program: []byte{byte(sequence), 0, 255}}
	if base != nil {
		m.Base, m.Parts = base.Sequence, slices.Clone(base.Parts)
	}
	for rank, what := range ranks {
		r, ok := s.disk.(*recorder)
		if ok {
			r.remote = rank > 0
		}
		p, err := writePart(s, sequence, rank, what)
		if ok {
			r.remote = false
		}
		if err != nil {
			return nil, err
		}
		m.Parts = append(m.Parts, p)
	}
	return m, s.Commit(m)
}

// after is the state once the changes of all ranks are in it.
func (s state) after(ranks ...changes) state {
	s = maps.Clone(s)
	if s == nil {
		s = state{}
	}
	for _, what := range ranks {
		for x, page := range what {
			if page == nil {
				delete(s, x)
			} else {
				s[x] = page
			}
		}
	}
	return s
}

// read reads all of a checkpoint, as a daemon does.
func read(m *Manifest) (state, error) {
	images, err := m.Images()
	if err != nil {
		return nil, err
	}
	s := state{}
	for i, memory := range m.Memories {
		g := images[memory.Name]
		before := uint64(0)
		for first, table := range g.Tables() {
			if first < before || len(table) == 0 || len(table)%PlaceBytes != 0 || first+uint64(len(table)/PlaceBytes) > g.Pages() {
				return nil, errors.New("a table that is not in order, or not of the memory")
			}
			before = first + uint64(len(table)/PlaceBytes)
			for j := range len(table) / PlaceBytes {
				x := at{uint32(i), first + uint64(j)}
				place := placeIn(table[j*PlaceBytes:])
				if place != g.At(x.page) {
					return nil, errors.New("the table says another place than At")
				}
				if place.File == 0 {
					continue
				}
				b, err := os.ReadFile(g.Files[place.File-1])
				if err != nil {
					return nil, err
				}
				page := b[place.Slot*uint64(m.PageBytes):][:m.PageBytes]
				if CRC(page) != place.CRC {
					return nil, errors.New("a page has another CRC")
				}
				s[x] = page
			}
		}
	}
	return s, nil
}

// check checks that a checkpoint is whole, and what its contents are.
func check(t *testing.T, m *Manifest, want state) {
	t.Helper()
	if err := m.Verify(nil); err != nil {
		t.Errorf("%s: %v", m.Path(), err)
		return
	}
	got, err := read(m)
	if err != nil {
		t.Errorf("%s: %v", m.Path(), err)
	} else if !maps.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("%s has pages %v, want %v", m.Path(), slices.Collect(maps.Keys(got)), slices.Collect(maps.Keys(want)))
	}
}

// locked opens a directory for writing, with a disk that does not wait for the real one.
func locked(t *testing.T, dir string, d disk) *Store {
	t.Helper()
	s, err := Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	s.disk = d
	unlock, err := s.Lock()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unlock(), unlock()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// names lists a directory.
func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// The checkpoints of the tests: a whole one, two that are incremental to each other, and a whole
// one again.
var (
	first = []changes{
		{{0, 0}: filled(at{0, 0}, 1), {0, 1}: filled(at{0, 1}, 1), {0, 9}: filled(at{0, 9}, 1), {1, 1 << 29}: filled(at{1, 1 << 29}, 1)},
		{{0, 2}: filled(at{0, 2}, 1), {0, 3}: nil, {1, 0}: filled(at{1, 0}, 1), {1, 1<<30 - 1}: filled(at{1, 1<<30 - 1}, 1)},
	}
	second = []changes{
		{{0, 0}: filled(at{0, 0}, 2), {0, 1}: nil, {2, 2}: filled(at{2, 2}, 2), {3, 0}: filled(at{3, 0}, 2), {1, 300}: nil},
		{{0, 4}: filled(at{0, 4}, 2), {2, 2}: filled(at{2, 2}, 2)}, // two ranks have the same page
		{},
	}
	third = []changes{
		{{0, 1}: filled(at{0, 1}, 3), {0, 0}: nil},
	}
	fourth = []changes{
		{{0, 7}: filled(at{0, 7}, 4), {1, 5}: filled(at{1, 5}, 4)},
		{{0, 8}: filled(at{0, 8}, 4)},
	}
)

// TestThereAndBack writes checkpoints and reads them, on a real disk.
func TestThereAndBack(t *testing.T) {
	s := locked(t, filepath.Join(t.TempDir(), "new"), realDisk{})
	if _, err := s.Latest(); !errors.Is(err, ErrNone) {
		t.Fatalf("an empty directory has a checkpoint: %v", err)
	}
	var all []*Manifest
	var want []state
	for i, ranks := range [][]changes{first, second, third, fourth} {
		var base *Manifest
		var before state
		if i == 1 || i == 2 {
			base, before = all[i-1], want[i-1]
		}
		m, err := take(s, base, ranks...)
		if err != nil {
			t.Fatal(err)
		}
		all, want = append(all, m), append(want, before.after(ranks...))
		check(t, m, want[i])
		loaded, err := Load(s.Dir())
		if err != nil {
			t.Fatal(err)
		}
		if a, b := encoded(t, m), encoded(t, loaded); !bytes.Equal(a, b) || loaded.Path() != m.Path() {
			t.Errorf("written:\n%s\nloaded:\n%s", a, b)
		}
	}
	for i, m := range all {
		loaded, err := Load(m.Path())
		if err != nil {
			t.Fatal(err)
		}
		check(t, loaded, want[i])
	}
	list, err := s.List()
	if err != nil || len(list) != 4 {
		t.Fatalf("%d checkpoints are listed: %v", len(list), err)
	}
	for i, x := range list {
		bytes, own := all[i].PartBytes()
		if x.Problem != "" || x.Sequence != uint64(i+1) || x.ID != all[i].ID || x.Bytes != bytes || x.OwnBytes != own || x.MemoryBytes != 10*pageBytes+1<<40+2100 {
			t.Errorf("listed: %+v", x)
		}
	}
	if list[2].Parts != 6 || list[3].Parts != 2 || list[2].Base != 2 || list[2].Bytes <= list[2].OwnBytes {
		t.Errorf("listed: %+v", list[2:])
	}
	images, err := all[2].Images()
	if err != nil {
		t.Fatal(err)
	}
	// Files are those that are still needed, for each memory.
	for name, want := range map[string][]string{"grid": {PartName(1, 0), PartName(1, 1), PartName(2, 1), PartName(3, 0)}, "odd": {PartName(2, 1)}, "empty": {PartName(2, 0)}} {
		var got []string
		for _, f := range images[name].Files {
			got = append(got, filepath.Base(f))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s needs %q, want %q", name, got, want)
		}
	}
	if n := len(images["sparse <&> \u00e9"].chunks); n != 3 {
		t.Errorf("a memory with 3 pages has a table of %d chunks", n)
	}
}

func encoded(t *testing.T, m *Manifest) []byte {
	t.Helper()
	b, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestSweep: what stays is what is needed, and what is not ours.
func TestSweep(t *testing.T) {
	s := locked(t, t.TempDir(), &recorder{})
	other := []string{"notes.txt", "pages-1-1.dsm", "checkpoint-12.json", "checkpoint-000002.json.bak", "pages-000009-0001.dsm.part", "tmp.tmp"}
	stale := []string{PartName(77, 3), ManifestName(78) + tempSuffix, PartName(1, 9) + tempSuffix}
	for _, name := range slices.Concat(other, stale) {
		if err := os.WriteFile(filepath.Join(s.Dir(), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(s.Dir(), PartName(5, 5)), 0o700); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Next(); err != nil || n != 79 {
		t.Fatalf("the next sequence is %d, %v: want one above what an attempt has left", n, err)
	}
	var base *Manifest
	want := state{}
	for _, ranks := range [][]changes{first, second, third} {
		m, err := take(s, base, ranks...)
		if err != nil {
			t.Fatal(err)
		}
		base, want = m, want.after(ranks...)
	}
	if err := s.Sweep(0); err == nil {
		t.Error("all checkpoints may be removed")
	}
	for keep, left := range map[int][]uint64{9: {79, 80, 81}, 3: {79, 80, 81}, 2: {80, 81}, 1: {81}} {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(s.Dir())); err != nil {
			t.Fatal(err)
		}
		s := locked(t, dir, &recorder{})
		if err := s.Sweep(keep); err != nil {
			t.Fatal(err)
		}
		have := slices.Concat(other, []string{lockName, PartName(5, 5)})
		for _, n := range left {
			have = append(have, ManifestName(n))
		}
		for _, p := range base.Parts {
			have = append(have, p.File)
		}
		slices.Sort(have)
		if got := names(t, dir); !slices.Equal(got, have) {
			t.Errorf("after Sweep(%d) there is\n%q\nwant\n%q", keep, got, have)
		}
		m, err := s.Latest()
		if err != nil {
			t.Fatal(err)
		}
		check(t, m, want)
		// A whole one needs no other.
		if m, err = take(s, nil, fourth...); err == nil {
			err = s.Sweep(1)
		}
		if err != nil {
			t.Fatal(err)
		}
		check(t, m, state{}.after(fourth...))
		if got, want := len(names(t, dir)), len(other)+5; got != want {
			t.Errorf("%d files are left, want %d: %q", got, want, names(t, dir))
		}
	}
}

// TestSweepKeepsWhatIsUsed: a checkpoint that a job goes on to read stays, with its parts.
func TestSweepKeepsWhatIsUsed(t *testing.T) {
	s := locked(t, t.TempDir(), &recorder{})
	var used *Manifest
	want := state{}
	for i := range 4 {
		m, err := take(s, nil, fourth...) // a whole one
		if err != nil {
			t.Fatal(err)
		}
		if used == nil {
			used, want = m, want.after(fourth...)
		}
		if err := s.Sweep(1, used.Path(), filepath.Join(t.TempDir(), "elsewhere")); err != nil {
			t.Fatal(err)
		}
		check(t, used, want)
		if c, err := scan(s.Dir()); err != nil || len(c.manifests) != min(i+1, 2) {
			t.Errorf("round %d leaves %v, %v", i, c.manifests, err)
		}
	}
	if err := s.Sweep(1); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(used.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("when it is used no more it stays: %v", err)
	}
}

// TestSweepIsCareful: nothing is removed while a checkpoint that is to stay cannot be used.
func TestSweepIsCareful(t *testing.T) {
	for _, harm := range []func(dir string) error{
		func(dir string) error { return os.WriteFile(filepath.Join(dir, ManifestName(2)), []byte("{}"), 0o600) },
		func(dir string) error { return os.Truncate(filepath.Join(dir, PartName(2, 0)), 3) },
		func(dir string) error { return os.Remove(filepath.Join(dir, PartName(1, 1))) },
	} {
		s := locked(t, t.TempDir(), &recorder{})
		m, err := take(s, nil, first...)
		if err == nil {
			_, err = take(s, m, second...)
		}
		if err == nil {
			err = harm(s.Dir())
		}
		if err != nil {
			t.Fatal(err)
		}
		before := names(t, s.Dir())
		if err := s.Sweep(1); !errors.Is(err, ErrDamaged) && !errors.Is(err, fs.ErrNotExist) && !strings.Contains(err.Error(), "is not complete") {
			t.Errorf("Sweep: %v", err)
		}
		if after := names(t, s.Dir()); !slices.Equal(before, after) {
			t.Errorf("there was %q, and there is %q", before, after)
		}
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	one, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	two, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{one.Commit(&Manifest{}), one.Sweep(1), second1(one.Next())} {
		if !errors.Is(err, ErrNotLocked) {
			t.Errorf("without the lock: %v", err)
		}
	}
	unlock, err := one.Lock()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{one, two} {
		if _, err := s.Lock(); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), dir) {
			t.Errorf("locked twice: %v", err)
		}
	}
	if _, err := two.Lock(); !strings.Contains(err.Error(), "process ") {
		t.Errorf("nobody says who holds the lock: %v", err)
	}
	if err := errors.Join(unlock(), unlock()); err != nil {
		t.Fatal(err)
	}
	again, err := two.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unlock(), again()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, lockName)), os.Symlink("elsewhere", filepath.Join(dir, lockName))); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Lock(); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a lock file that is a link: %v", err)
	}
}

func second1[T any](_ T, err error) error { return err }

func TestWholeNext(t *testing.T) {
	chain := func(bytes ...uint64) *Manifest {
		m := &Manifest{}
		for i, n := range bytes { // two ranks each
			m.Parts = append(m.Parts, Part{Sequence: uint64(i + 1), Bytes: n / 2}, Part{Sequence: uint64(i + 1), Bytes: n / 2})
		}
		return m
	}
	for i, test := range []struct {
		m    *Manifest
		want bool
	}{
		{chain(), false}, {chain(100), false}, {chain(100, 100, 100), false}, {chain(100, 100, 100, 2), true},
		{chain(0, 0), false}, {chain(10, 100, 100, 90), false}, {chain(10, 100, 100, 92), true},
		{chain(slices.Concat([]uint64{1000}, slices.Repeat([]uint64{2}, 15))...), false},
		{chain(slices.Concat([]uint64{1000}, slices.Repeat([]uint64{2}, 16))...), true},
		{&Manifest{Ranks: maxParts - 4, Parts: chain(100, 100).Parts}, false},
		{&Manifest{Ranks: maxParts - 3, Parts: chain(100, 100).Parts}, true},
	} {
		if got := WholeNext(test.m); got != test.want {
			t.Errorf("case %d: %v, want %v", i, got, test.want)
		}
	}
}

func TestElements(t *testing.T) {
	for _, test := range []struct {
		elem, count, page, first, last uint64
		ok                             bool
	}{
		{8, 128, 0, 0, 127, true}, {3, 700, 0, 0, 341, true}, {3, 700, 1, 341, 682, true}, {3, 700, 2, 682, 699, true},
		{4096, 2, 1, 0, 0, true}, {4096, 2, 4, 1, 1, true}, {8, 0, 0, 0, 0, false}, {0, 5, 0, 0, 0, false},
	} {
		first, last, ok := Memory{ElemBytes: test.elem, Count: test.count}.elements(test.page, 1024)
		if ok != test.ok || ok && (first != test.first || last != test.last) {
			t.Errorf("page %d of %d elements of %d bytes: %d to %d, %v", test.page, test.count, test.elem, first, last, ok)
		}
	}
}

// TestNames: names lead back to what they are of, and others do not.
func TestNames(t *testing.T) {
	for _, n := range []uint64{1, 12, 999999, 1000000, MaxSequence} {
		if got, ok := parseManifestName(ManifestName(n)); !ok || got != n {
			t.Errorf("%s is of %d, %v", ManifestName(n), got, ok)
		}
		for _, rank := range []int{0, 9999, 10000, MaxRanks - 1} {
			if got, ok := parsePartName(PartName(n, rank)); !ok || got != n {
				t.Errorf("%s is of %d, %v", PartName(n, rank), got, ok)
			}
		}
	}
	for _, name := range []string{
		"", "checkpoint-.json", "checkpoint-000000.json", "checkpoint-12.json", "checkpoint-0000012.json", "checkpoint-+00012.json", "checkpoint-000012.json.json", "checkpoint-000012",
		"checkpoint-281474976710657.json", "pages-000001-65536.dsm", "pages-000001-1.dsm", "pages-000001-00001.dsm", "pages-000001.dsm", "pages-000000-0000.dsm", "pages-000001-0001-0001.dsm", "pages-000001--001.dsm",
	} {
		if _, ok := parseManifestName(name); ok {
			t.Errorf("%q is the name of a manifest", name)
		}
		if _, ok := parsePartName(name); ok {
			t.Errorf("%q is the name of a part", name)
		}
	}
}

// TestDirect: a part whose pages were written directly gets its index.
func TestDirect(t *testing.T) {
	s := locked(t, t.TempDir(), realDisk{})
	p, err := s.CreatePart(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.File().Truncate(3 * 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(p.File().Fd(), unix.F_SETFL, unix.O_DIRECT); errors.Is(err, unix.EINVAL) {
		t.Log("the file system has no direct writes")
	} else if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 4096)
	part, err := p.Finish(4096, 2, slices.Values([]Entry{{Page: 0, Slot: 1, CRC: CRC(zeros)}}))
	if err != nil || part.Bytes != 2*4096+EntryBytes {
		t.Fatalf("%+v, %v", part, err)
	}
	if err := p.Abort(); err != nil {
		t.Fatal(err)
	}
	m := &Manifest{Sequence: 1, PageBytes: 4096, Ranks: 1, Memories: memories[:1], Parts: []Part{part}}
	if err := s.Commit(m); err != nil {
		t.Fatal(err)
	}
	if err := m.Verify(nil); err != nil {
		t.Error(err)
	}
}

// TestManyEntries: an index that takes several reads, and pages that are far apart.
func TestManyEntries(t *testing.T) {
	s := locked(t, t.TempDir(), &recorder{})
	zeros := make([]byte, 512)
	const slots = 100_000
	p, err := s.CreatePart(1, 0)
	if err == nil {
		err = p.file.Truncate(slots * 512)
	}
	if err != nil {
		t.Fatal(err)
	}
	part, err := p.Finish(512, slots, func(yield func(Entry) bool) {
		for i := range uint64(slots) {
			if !yield(Entry{Memory: 1, Page: i/1000*100_000 + i%1000, Slot: slots - 1 - i, CRC: CRC(zeros)}) {
				return
			}
		}
	})
	if err != nil || part.Entries != slots {
		t.Fatalf("%+v, %v", part, err)
	}
	m := &Manifest{Sequence: 1, PageBytes: 512, Ranks: 1, Memories: memories, Parts: []Part{part}}
	if err := s.Commit(m); err != nil {
		t.Fatal(err)
	}
	var done, total uint64
	if err := m.Verify(func(d, all uint64) {
		if d < done {
			t.Errorf("%d of %d bytes after %d", d, all, done)
		}
		done, total = d, all
	}); err != nil || done != slots*512 || total != done {
		t.Errorf("%d of %d bytes are verified: %v", done, total, err)
	}
	images, err := m.Images()
	if err != nil {
		t.Fatal(err)
	}
	g := images[memories[1].Name]
	for _, i := range []uint64{0, 999, 1000, 55_555, slots - 1} {
		if got, want := g.At(i/1000*100_000+i%1000), (Place{CRC(zeros), 1, slots - 1 - i}); got != want {
			t.Errorf("page %d is at %+v, want %+v", i, got, want)
		}
	}
	if g.At(1000) != (Place{}) || g.At(g.Pages()-1) != (Place{}) {
		t.Error("pages that were not written have a place")
	}
}
