package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// verify is Load and Verify.
func verify(path string) error {
	m, err := Load(path)
	if err != nil {
		return err
	}
	return m.Verify(nil)
}

// pair is a directory with a whole checkpoint, and one that is incremental to it.
func pair(t *testing.T) (*Store, *Manifest, state) {
	t.Helper()
	s := &Store{dir: memoryDir(t), disk: &recorder{}}
	unlock, err := s.Lock()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unlock(); err != nil {
			t.Error(err)
		}
	})
	m, err := take(s, nil, first...)
	if err == nil {
		m, err = take(s, m, second...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s, m, state{}.after(first...).after(second...)
}

// TestFlips alters every byte of a checkpoint. Verify refuses it, unless the byte is in a slot that
// is not needed.
func TestFlips(t *testing.T) {
	s, m, want := pair(t)
	images, err := m.Images()
	if err != nil {
		t.Fatal(err)
	}
	needed := map[string]map[uint64]bool{}
	for _, g := range images {
		for p := range g.each() {
			name := filepath.Base(g.Files[p.File-1])
			if needed[name] == nil {
				needed[name] = map[uint64]bool{}
			}
			needed[name][p.Slot] = true
		}
	}
	files := []string{ManifestName(2)}
	slots := map[string]uint64{}
	for _, p := range m.Parts {
		files, slots[p.File] = append(files, p.File), p.Slots
	}
	refused, passed := 0, 0
	for _, name := range files {
		path := filepath.Join(s.dir, name)
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(b); i++ {
			slot := uint64(i / pageBytes)
			isPage := slot < slots[name]
			if isPage && i%19 != 0 { // of pages, some
				continue
			}
			if _, err := f.WriteAt([]byte{b[i] ^ 1<<(i%8)}, int64(i)); err != nil {
				t.Fatal(err)
			}
			err := verify(s.dir)
			if isPage && !needed[name][slot] {
				if passed++; err != nil {
					t.Errorf("%s with byte %d altered, which nobody needs: %v", name, i, err)
				}
			} else if refused++; !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s with byte %d altered: %v", name, i, err)
			}
			if _, err := f.WriteAt(b[i:i+1], int64(i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if refused < 2500 || passed < 50 {
		t.Errorf("%d altered bytes were refused, and %d passed", refused, passed)
	}
	check(t, m, want)
}

// TestWrongFiles puts something else in place of a file.
func TestWrongFiles(t *testing.T) {
	harm := map[string]func(path string, b []byte) error{
		"empty":         func(path string, _ []byte) error { return os.Truncate(path, 0) },
		"one byte less": func(path string, b []byte) error { return os.Truncate(path, int64(len(b)-1)) },
		"one byte more": func(path string, b []byte) error { return os.Truncate(path, int64(len(b)+1)) },
		"half":          func(path string, b []byte) error { return os.Truncate(path, int64(len(b)/2)) },
		"zeros":         func(path string, b []byte) error { return os.WriteFile(path, make([]byte, len(b)), 0o600) },
		"twice":         func(path string, b []byte) error { return os.WriteFile(path, slices.Concat(b, b), 0o600) },
		"missing":       func(path string, _ []byte) error { return os.Remove(path) },
		"a directory":   func(path string, _ []byte) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"a pipe":        func(path string, _ []byte) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) },
		"a symbolic link": func(path string, _ []byte) error {
			return errors.Join(os.Rename(path, path+"~"), os.Symlink(path+"~", path))
		},
		"a link to nothing": func(path string, _ []byte) error {
			return errors.Join(os.Remove(path), os.Symlink("/no/such/file", path))
		},
	}
	for what, harm := range harm {
		for _, name := range []string{ManifestName(2), PartName(1, 1), PartName(2, 0), PartName(2, 2)} {
			s, m, _ := pair(t)
			path := filepath.Join(s.dir, name)
			b, err := os.ReadFile(path)
			if len(b) == 0 && slices.Contains([]string{"empty", "one byte less", "half", "zeros", "twice"}, what) {
				continue // a part of no bytes stays as it is
			}
			if err == nil {
				err = harm(path, b)
			}
			if err != nil {
				t.Fatal(err)
			}
			if name == ManifestName(2) && what == "missing" {
				if got, err := Load(s.dir); err != nil || got.Sequence != 1 {
					t.Errorf("without its manifest: %v", err)
				}
				continue
			}
			for from, err := range map[string]error{"the directory": verify(s.dir), "the manifest": verify(m.Path())} {
				if err == nil {
					t.Errorf("%s is %s, and Verify of %s succeeds", name, what, from)
				} else if !strings.Contains(err.Error(), name) {
					t.Errorf("%s is %s, and the error of %s does not name it: %v", name, what, from, err)
				}
			}
			list, err := s.List()
			if err != nil || list[len(list)-1].Problem == "" && what != "zeros" {
				t.Errorf("%s is %s: %+v, %v", name, what, list, err)
			}
		}
	}
}

// TestSwapped: files of another checkpoint, of the same size, are noticed.
func TestSwapped(t *testing.T) {
	s, m, _ := pair(t)
	a, err := os.ReadFile(filepath.Join(s.dir, PartName(1, 0)))
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Clone(a)
	copy(other[2*pageBytes:3*pageBytes], filled(at{9, 9}, 9))
	if err := os.WriteFile(filepath.Join(s.dir, PartName(1, 0)), other, 0o600); err != nil {
		t.Fatal(err)
	}
	// The page in slot 2 was overridden by zeros.
	if err := m.Verify(nil); err != nil {
		t.Errorf("a page that nobody needs is damaged: %v", err)
	}
	if err := verify(filepath.Join(s.dir, ManifestName(1))); !errors.Is(err, ErrDamaged) {
		t.Errorf("another page: %v", err)
	}
	if err := os.Rename(m.Path(), filepath.Join(s.dir, ManifestName(7))); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(s.dir); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "give it its name back, "+ManifestName(2)) || !strings.Contains(err.Error(), "what could be tried is "+filepath.Join(s.dir, ManifestName(1))) {
		t.Errorf("a manifest under another name: %v", err)
	}
}

// TestDamageIsNamed: the error names pages, memory and elements, and the list is bounded.
func TestDamageIsNamed(t *testing.T) {
	s, m, _ := pair(t)
	path := filepath.Join(s.dir, PartName(2, 1))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		_, err = f.WriteAt([]byte("damage"), 2*pageBytes+100)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	err = m.Verify(nil)
	var damage *DamageError
	if !errors.As(err, &damage) || damage.Total != 1 || damage.Older != filepath.Join(s.dir, ManifestName(1)) {
		t.Fatalf("%+v", err)
	}
	d := damage.List[0]
	d.What, d.cause = "", nil
	if want := (Damage{File: PartName(2, 1), Memory: "odd", Page: 2, Elements: true, First: 682, Last: 699}); d != want {
		t.Errorf("%+v, want %+v", d, want)
	}
	for _, want := range []string{m.Path(), `page 2 of "odd", elements 682 to 699, in pages-000002-0001.dsm: its CRC is `, "; what could be tried is "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not said: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("an error of several lines: %v", err)
	}
	var many DamageError
	for range 10 {
		other := DamageError{}
		other.add(slices.Repeat([]Damage{{File: "f", What: "w"}}, 25)...)
		many.addAll(&other)
	}
	if many.Total != 250 || len(many.List) != maxDamage || !strings.Contains(many.Error(), "; and 234 more") {
		t.Errorf("%d, %d listed: %v", many.Total, len(many.List), &many)
	}
}

// TestManifestsThatLie have the right checksum, and say what cannot be.
func TestManifestsThatLie(t *testing.T) {
	s, m, _ := pair(t)
	whole := string(encoded(t, m))
	body := whole[:len(whole)-sealBytes]
	part := func(file string, slots, entries, size uint64) string {
		return fmt.Sprintf(`"parts": [{"file": %q, "sequence": 2, "rank": 0, "slots": %d, "entries": %d, "bytes": %d, "index_crc32c": 0}]`, file, slots, entries, size)
	}
	parts := body[strings.Index(body, `"parts"`):]
	lies := []struct{ old, new, want string }{
		{`"format": "dsmd checkpoint"`, `"format": "other"`, `format is "other"`},
		{`"version": 1`, `"version": 2`, "unknown version 2, this program knows 1: use the release"},
		{`"version": 1`, `"version": 2, "more": 3`, "unknown version 2"},
		{`"version": 1`, `"version": 1, "more": 3`, "unknown field"},
		{`"version": 1`, `"version": "1"`, "cannot unmarshal"},
		{`"sequence": 2`, `"sequence": 0`, "sequence 0"},
		{`"sequence": 2`, `"sequence": 281474976710657`, "sequence 281474976710657"},
		{`"sequence": 2`, `"sequence": 3`, "belongs neither to sequence 3 nor"},
		{`"sequence": 2`, `"sequence": -1`, "cannot unmarshal"},
		{`"id": "`, `"id": "X`, "id "},
		{`"page_bytes": 1024`, `"page_bytes": 0`, "pages of 0 bytes"},
		{`"page_bytes": 1024`, `"page_bytes": -1024`, "pages of -1024 bytes"},
		{`"page_bytes": 1024`, `"page_bytes": 1536`, "pages of 1536 bytes"},
		{`"page_bytes": 1024`, `"page_bytes": 512`, "make"},
		{`"ranks": 3`, `"ranks": 0`, "0 ranks"},
		{`"ranks": 3`, `"ranks": 65537`, "65537 ranks"},
		{`"ranks": 3`, `"ranks": 2`, "is of rank 2, of 2 ranks"},
		{`"base": 1`, `"base": 2`, "which is not earlier"},
		{`"base": 1`, `"base": 0`, "belongs neither to sequence 2 nor to its base"},
		{`"name": "odd"`, `"name": "grid"`, `two memories are called "grid"`},
		{`"name": "odd"`, `"name": ""`, "the name of memory 2"},
		{`"element_bytes": 3`, `"element_bytes": 18446744073709551615`, "bytes of memory"},
		{`"count": 700`, `"count": 24019198012642645`, "bytes of memory"},
		{parts, part("../../etc/passwd", 0, 0, 0), "is not the name of the part"},
		{parts, part("/etc/passwd", 0, 0, 0), "is not the name of the part"},
		{parts, part("x/"+PartName(2, 0), 0, 0, 0), "is not the name of the part"},
		{parts, part(PartName(2, 0)+"\t", 0, 0, 0), "is not the name of the part"},
		{parts, part(PartName(2, 1), 0, 0, 0), "is not the name of the part"},
		{parts, part(PartName(2, 0), 1<<54, 1, 24), "are more than"},
		{parts, part(PartName(2, 0), 0, 1<<61, 0), "are more than"},
		{parts, part(PartName(2, 0), 1, 1, 1024), "make 1048 bytes"},
		{`"rank": 0`, `"rank": -1`, "is not the name of the part"},
		{`"slots": 5`, `"slots": 6`, "make"},
		{`"entries": 4`, `"entries": 1e3`, "cannot unmarshal"},
		{parts, `"parts": null} {"x": [`, "after top-level value"},
		{parts, `"parts": [`, "invalid character"},
	}
	for _, lie := range lies {
		if !strings.Contains(body, lie.old) {
			t.Fatalf("there is no %s in\n%s", lie.old, body)
		}
		b := seal([]byte(strings.Replace(body, lie.old, lie.new, 1)))
		if err := os.WriteFile(m.Path(), b, 0o600); err != nil {
			t.Fatal(err)
		}
		err := verify(s.dir)
		if err == nil || !strings.Contains(err.Error(), lie.want) || !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), ManifestName(1)) {
			t.Errorf("%.60s: %v, want %q", lie.new, err, lie.want)
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("an error of several lines: %v", err)
		}
	}
}

// TestIndexesThatLie have the right CRC, and say what cannot be.
func TestIndexesThatLie(t *testing.T) {
	for _, lie := range []struct {
		Entry
		want string
	}{
		{Entry{Memory: 4, Slot: Zeros}, "its index names memory 4, of 4"},
		{Entry{Memory: 1<<32 - 1, Slot: 0}, "its index names memory 4294967295, of 4"},
		{Entry{Page: 10, Slot: Zeros}, `its index names page 10 of "grid", which has 10`},
		{Entry{Page: 1<<64 - 1, Slot: 0}, "its index names page 18446744073709551615"},
		{Entry{Memory: 3, Page: 1, Slot: Zeros}, `page 1 of "empty", which has 1`},
		{Entry{Slot: 1}, "slot 1, of 1"},
		{Entry{Slot: Zeros - 1}, "slot 18446744073709551614, of 1"},
	} {
		s, m, _ := pair(t)
		index := lie.append(nil)
		p := Part{File: PartName(3, 0), Sequence: 3, Slots: 1, Entries: 1, Bytes: pageBytes + EntryBytes, IndexCRC: crc32.Checksum(index, castagnoli)}
		if err := os.WriteFile(filepath.Join(s.dir, p.File), append(make([]byte, pageBytes), index...), 0o600); err != nil {
			t.Fatal(err)
		}
		bad := &Manifest{Sequence: 3, PageBytes: pageBytes, Ranks: 1, Memories: memories, Base: 2, Parts: append(slices.Clone(m.Parts), p)}
		if err := s.Commit(bad); err != nil {
			t.Fatal(err)
		}
		err := verify(s.dir)
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), lie.want) || !strings.Contains(err.Error(), p.File) || !strings.Contains(err.Error(), "tried is "+m.Path()) {
			t.Errorf("%+v: %v, want %q", lie.Entry, err, lie.want)
		}
	}
}

// TestRefused is what Finish and Commit do not write.
func TestRefused(t *testing.T) {
	s, m, want := pair(t)
	for _, lie := range []struct {
		entries []Entry
		slots   uint64
		want    string
	}{
		{[]Entry{{Slot: 1}}, 1, "is in slot 1, of 1"},
		{[]Entry{{Slot: 0}, {Page: 1, Slot: 0}}, 1, "is in slot 0, and so is another"},
		{nil, 2, "not all were written"},
		{nil, 1 << 60, "are more than"},
	} {
		p, err := s.CreatePart(3, 0)
		if err == nil {
			err = p.file.Truncate(pageBytes)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.CreatePart(3, 0); !errors.Is(err, fs.ErrExist) {
			t.Errorf("a part is created twice: %v", err)
		}
		if _, err := p.Finish(pageBytes, lie.slots, slices.Values(lie.entries)); err == nil || !strings.Contains(err.Error(), lie.want) {
			t.Errorf("%v, want %q", err, lie.want)
		}
	}
	whole := m.Parts[:2]
	for _, lie := range []struct {
		m    Manifest
		want string
	}{
		{Manifest{Sequence: 2, Base: 1, Parts: m.Parts, Memories: memories}, "there is checkpoint 2 already"},
		{Manifest{Sequence: 1, Parts: whole, Memories: memories}, "there is checkpoint 2 already"},
		{Manifest{Sequence: 3, Base: 2, Parts: whole, Memories: memories}, "its parts do not begin with those of its base"},
		{Manifest{Sequence: 3, Base: 1, Parts: whole, Memories: memories[1:]}, "its memories do not begin with those of its base"},
		{Manifest{Sequence: 4, Base: 3, Parts: whole, Memories: memories}, "cannot be used, write a whole one"},
		{Manifest{Sequence: 4, Base: 2, Parts: append(slices.Clone(m.Parts), Part{File: PartName(4, 0), Sequence: 4}), Memories: memories}, PartName(4, 0)},
	} {
		lie.m.PageBytes, lie.m.Ranks = pageBytes, 3
		if err := s.Commit(&lie.m); err == nil || !strings.Contains(err.Error(), lie.want) || !strings.Contains(err.Error(), "is not written") {
			t.Errorf("%v, want %q", err, lie.want)
		}
	}
	check(t, m, want)
	if err := os.Truncate(filepath.Join(s.dir, PartName(2, 0)), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(&Manifest{Sequence: 3, Base: 2, Parts: m.Parts, PageBytes: pageBytes, Ranks: 1, Memories: memories}); err == nil || !strings.Contains(err.Error(), "has 0 bytes, want") {
		t.Errorf("a part that is not complete: %v", err)
	}
	if _, err := (&Manifest{}).Images(); err == nil {
		t.Error("a manifest that lies nowhere has images")
	}
}

// TestDirectories that cannot be used.
func TestDirectories(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none"):           "no such file",
		file:                                 "is neither a directory nor a manifest",
		filepath.Join(dir, ManifestName(3)):  "no such file",
		dir:                                  ErrNone.Error(),
		filepath.Join(file, ManifestName(3)): "not a directory",
	} {
		if err := verify(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := Open(file); err == nil {
		t.Error("a file is opened as a directory")
	}
	if _, err := Create(filepath.Join(dir, "none", "below")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if os.Geteuid() == 0 {
		return // who may do everything
	}
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(dir, 0o700) // or it can't be removed
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lock(); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "give this user the permission to write") {
		t.Error(err)
	}
}

// FuzzManifest: what decodes says nothing that cannot be, and is encoded again.
func FuzzManifest(f *testing.F) {
	m := &Manifest{
		Format: Format, Version: Version, Sequence: 3, ID: strings.Repeat("0a", 16), PageBytes: 4096, Ranks: 2, Base: 2, Memories: memories,
		Parts: []Part{{File: PartName(1, 1), Sequence: 1, Rank: 1, Slots: 2, Entries: 3, Bytes: 2*4096 + 3*EntryBytes}, {File: PartName(3, 0), Sequence: 3}},
	}
	b, err := m.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)-sealBytes])
	f.Add([]byte(`{"format":"dsmd checkpoint","version":2`))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, file := range [][]byte{b, seal(b)} {
			m, err := decodeManifest(file)
			if err != nil {
				if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrVersion) {
					t.Errorf("%v", err)
				}
				continue
			}
			again, err := m.encode()
			if err != nil {
				t.Fatal(err)
			}
			other, err := decodeManifest(again)
			if err != nil {
				t.Fatalf("%v:\n%s", err, again)
			}
			if third, err := other.encode(); err != nil || !bytes.Equal(again, third) {
				t.Errorf("%v: encoded\n%s\nand then\n%s", err, again, third)
			}
			for _, p := range m.Parts {
				if strings.ContainsAny(p.File, "/\x00") || p.Bytes > maxPartBytes {
					t.Errorf("%+v", p)
				}
			}
		}
	})
}

// FuzzIndex: an index is refused, or all places are within their memory and their file.
func FuzzIndex(f *testing.F) {
	f.Add(Entry{Memory: 1, CRC: 2, Page: 3, Slot: 4}.append(Entry{Slot: Zeros}.append(nil)), uint64(5))
	f.Add(Entry{Memory: 3, Page: 1}.append(nil), uint64(1))
	f.Add([]byte{}, uint64(0))
	f.Fuzz(func(t *testing.T, b []byte, slots uint64) {
		p := Part{Slots: slots, Entries: uint64(len(b) / EntryBytes), Bytes: uint64(len(b)/EntryBytes) * EntryBytes}
		images := make([]*Image, len(memories))
		for i, m := range memories {
			images[i] = &Image{Memory: m, PageBytes: pageBytes, chunks: map[uint64]*chunk{}}
		}
		count := 0
		err := p.eachEntry(bytes.NewReader(b), func(e Entry) error {
			count++
			return place(images, 1, e)
		})
		if err == nil && count != len(b)/EntryBytes {
			t.Errorf("%d entries in %d bytes", count, len(b))
		}
		for _, g := range images {
			for key, c := range g.chunks {
				for i := range uint64(chunkPages) {
					at := placeIn(c[i*PlaceBytes:])
					if at.File > 1 || at.File == 1 && (at.Slot >= slots || key*chunkPages+i >= g.Pages()) {
						t.Errorf("page %d of %q is at %+v", key*chunkPages+i, g.Memory.Name, at)
					}
				}
			}
		}
	})
}
