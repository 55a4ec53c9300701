package checkpoint

import (
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"path/filepath"
	"slices"
)

// PlaceBytes is the length of a Place in a table.
const PlaceBytes = 16

// Place is where a page of a checkpoint lies. In a table it has 16 bytes, little endian: CRC, File,
// Slot. The zero Place is that of a page that the checkpoint lacks: it is as Memory.Begins says.
type Place struct {
	CRC  uint32 // CRC-32C of the page
	File uint32 // its number in Image.Files, from 1; 0: the page lies in none
	Slot uint64 // of that file; Zeros, without a file: it is zeros, and its memory begins otherwise
}

func (p Place) put(b []byte) {
	binary.LittleEndian.PutUint32(b, p.CRC)
	binary.LittleEndian.PutUint32(b[4:], p.File)
	binary.LittleEndian.PutUint64(b[8:], p.Slot)
}

func placeIn(b []byte) Place {
	le := binary.LittleEndian
	return Place{CRC: le.Uint32(b), File: le.Uint32(b[4:]), Slot: le.Uint64(b[8:])}
}

// chunkPages is how many places a chunk of a table has. A memory of which little was touched has
// few chunks.
const chunkPages = 256

// chunk has the places of neighbouring pages.
type chunk [chunkPages * PlaceBytes]byte

// Image says where each page of a memory lies. It takes 16 bytes for each page that has contents,
// and at most 256 times as much where those are far apart. Reading it is safe from any goroutine.
type Image struct {
	Memory    Memory
	PageBytes int
	// Files are the paths of the parts that the memory still needs, oldest first.
	Files []string

	chunks map[uint64]*chunk // by the number of the first page, in chunks
	order  []uint64          // the keys of chunks, ascending; set when all are there
	last   uint64            // the key of recent
	recent *chunk            // where the last entry was, or nil
}

// Pages is how many pages the memory has.
func (g *Image) Pages() uint64 { return g.Memory.Pages(g.PageBytes) }

// At is the place of a page, from 0 to Pages() - 1.
func (g *Image) At(page uint64) Place {
	if c := g.chunks[page/chunkPages]; c != nil {
		return placeIn(c[page%chunkPages*PlaceBytes:])
	}
	return Place{}
}

// Tables yields the places of all pages that have contents, in ascending order: the first page, and
// 16 bytes for each page from there on. Pages in between have the zero Place. The bytes are the
// Image's own, and are not to be changed.
func (g *Image) Tables() iter.Seq2[uint64, []byte] {
	return func(yield func(uint64, []byte) bool) {
		for _, key := range g.order {
			first := key * chunkPages
			count := min(g.Pages()-first, chunkPages)
			if !yield(first, g.chunks[key][:count*PlaceBytes]) {
				return
			}
		}
	}
}

// set notes the place of a page.
func (g *Image) set(page uint64, place Place) {
	key := page / chunkPages
	if g.recent == nil || g.last != key {
		c := g.chunks[key]
		if c == nil && place == (Place{}) {
			return
		}
		if c == nil {
			c = new(chunk)
			g.chunks[key] = c
		}
		g.last, g.recent = key, c
	}
	place.put(g.recent[page%chunkPages*PlaceBytes:])
}

// each yields the places of pages that have contents, with their bytes, in ascending order.
func (g *Image) each() iter.Seq2[Place, []byte] {
	return func(yield func(Place, []byte) bool) {
		for _, table := range g.Tables() {
			for b := range slices.Chunk(table, PlaceBytes) {
				if p := placeIn(b); p.File != 0 && !yield(p, b) {
					return
				}
			}
		}
	}
}

// Images reads the indexes of all parts, checks them and merges them: for each memory, by its name,
// it tells where each page lies. Pages are not read: whoever does compares their CRC. The error is
// a *DamageError, which names every part that cannot be used, if it is about parts.
func (m *Manifest) Images() (map[string]*Image, error) {
	list, err := m.merge()
	if err != nil {
		return nil, err
	}
	images := map[string]*Image{}
	for _, g := range list {
		g.number(m)
		images[g.Memory.Name] = g
	}
	return images, nil
}

// merge makes the images, in the order of the memories. File numbers are those of Manifest.Parts,
// from 1.
func (m *Manifest) merge() ([]*Image, error) {
	if m.dir == "" {
		return nil, fmt.Errorf("checkpoint: the manifest of sequence %d was neither loaded nor committed, and has no directory", m.Sequence)
	}
	images := make([]*Image, len(m.Memories))
	for i, memory := range m.Memories {
		images[i] = &Image{Memory: memory, PageBytes: m.PageBytes, chunks: map[uint64]*chunk{}}
	}
	if err := m.eachPart(func(i int) error { return m.mergePart(images, i) }); err != nil {
		return nil, err
	}
	for _, g := range images {
		g.order = slices.Sorted(maps.Keys(g.chunks))
		g.recent = nil
	}
	return images, nil
}

// CheckFiles finds parts that are not there, or have another length than they had: the error is a
// *DamageError, which names each of them. It takes little time, for it reads none of them.
func (m *Manifest) CheckFiles() error {
	return m.eachPart(func(i int) error {
		f, err := m.Parts[i].open(m.dir)
		if err != nil {
			return err
		}
		return f.Close()
	})
}

// eachPart uses all parts. The error is a *DamageError that names those that could not be used.
func (m *Manifest) eachPart(use func(i int) error) error {
	found := make([]DamageError, len(m.Parts))
	for i, p := range m.Parts {
		if err := use(i); err != nil {
			found[i].add(Damage{File: p.File, What: err.Error(), cause: err})
		}
	}
	return m.explain(found)
}

// mergePart adds what the index of a part says.
func (m *Manifest) mergePart(images []*Image, i int) error {
	p := m.Parts[i]
	f, err := p.open(m.dir)
	if err != nil {
		return err
	}
	defer f.Close() // it is only read
	// Entries are not believed, and no memory is taken for them, before the CRC shows that they are
	// what was written.
	err = p.checkIndex(f)
	if err == nil {
		err = p.eachEntry(f, func(e Entry) error { return place(images, uint32(i+1), e) })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(m.dir, p.File), err)
	}
	return nil
}

// place notes what an entry of a file says.
func place(images []*Image, file uint32, e Entry) error {
	if uint64(e.Memory) >= uint64(len(images)) {
		return fmt.Errorf("its index names memory %d, of %d", e.Memory, len(images))
	}
	g := images[e.Memory]
	if e.Page >= g.Pages() {
		return fmt.Errorf("its index names page %d of %q, which has %d", e.Page, g.Memory.Name, g.Pages())
	}
	switch {
	case e.Slot != Zeros:
		g.set(e.Page, Place{CRC: e.CRC, File: file, Slot: e.Slot})
	case g.Memory.Begins == "":
		g.set(e.Page, Place{})
	default:
		g.set(e.Page, Place{Slot: Zeros})
	}
	return nil
}

// number makes Files, of the parts that are needed, and has places name those.
func (g *Image) number(m *Manifest) {
	numbers := make([]uint32, len(m.Parts)+1)
	for p := range g.each() {
		numbers[p.File] = 1
	}
	for i, p := range m.Parts {
		if numbers[i+1] != 0 {
			g.Files = append(g.Files, filepath.Join(m.dir, p.File))
			numbers[i+1] = uint32(len(g.Files))
		}
	}
	for p, b := range g.each() {
		p.File = numbers[p.File]
		p.put(b)
	}
}

// explain makes one error of what was found in each part, nil if that is nothing. It says which
// older checkpoint could be tried, without the damaged parts.
func (m *Manifest) explain(found []DamageError) error {
	damage := &DamageError{Manifest: m.Path()}
	damaged := map[string]bool{}
	for i, p := range m.Parts {
		damage.addAll(&found[i])
		damaged[p.File] = found[i].Total > 0
	}
	if damage.Total == 0 {
		return nil
	}
	s := &Store{dir: m.dir}
	damage.Older = s.older(m.Sequence, damaged)
	return damage
}
