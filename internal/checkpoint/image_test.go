package checkpoint

import (
	"bytes"
	"testing"
)

// TestZerosOverFile: a page of zeros is told from one that the checkpoint lacks, in memory that
// begins with something else, and only there. What is saved later overrides it.
func TestZerosOverFile(t *testing.T) {
	s := locked(t, t.TempDir(), &recorder{})
	mapped := Memory{Name: "/a", Type: "byte", ElemBytes: 1, Count: 9 * pageBytes, Begins: "its file"}
	plain := Memory{Name: "b", Type: "byte", ElemBytes: 1, Count: 9 * pageBytes}
	page := bytes.Repeat([]byte{7}, pageBytes)
	var m *Manifest
	for sequence, what := range []changes{
		{{0, 1}: nil, {0, 2}: page, {0, 3}: nil, {1, 1}: nil, {1, 2}: page},
		{{0, 2}: nil, {0, 3}: page, {1, 2}: nil},
	} {
		part, err := writePart(s, uint64(sequence+1), 0, what)
		if err != nil {
			t.Fatal(err)
		}
		next := &Manifest{Sequence: uint64(sequence + 1), Base: uint64(sequence), PageBytes: pageBytes, Ranks: 1, Memories: []Memory{mapped, plain}}
		if m != nil {
			next.Parts = m.Parts
		}
		next.Parts = append(next.Parts, part)
		if err := s.Commit(next); err != nil {
			t.Fatal(err)
		}
		m = next
	}
	if err := verify(m.Path()); err != nil {
		t.Fatal(err)
	}
	m, err := Load(m.Path())
	if err != nil {
		t.Fatal(err)
	}
	images, err := m.Images()
	if err != nil {
		t.Fatal(err)
	}
	zeros, stored := Place{Slot: Zeros}, Place{CRC: CRC(page), File: 1, Slot: 1}
	for name, want := range map[string][]Place{mapped.Name: {{}, zeros, zeros, stored, {}}, plain.Name: {{}, {}, {}, {}}} {
		for i, want := range want {
			if got := images[name].At(uint64(i)); got != want {
				t.Errorf("page %d of %q is at %+v, want %+v", i, name, got, want)
			}
		}
	}
}
