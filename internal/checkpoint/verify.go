package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	// verifyAtOnce is how many parts are read at a time: a disk is faster with more than one.
	verifyAtOnce = 4
	// verifyBuffer is how many bytes are read at a time, unless a page is larger.
	verifyBuffer = 1 << 20
)

// Verify reads every page that the checkpoint needs, and compares its CRC. progress, if it is not
// nil, is called with the bytes that were read and that are to be read, from one goroutine at a
// time. The error is a *DamageError if pages or parts are damaged. While somebody sweeps the
// directory parts may be missing.
func (m *Manifest) Verify(progress func(done, total uint64)) error {
	images, err := m.merge()
	if err != nil {
		return err
	}
	v := &verifier{m: m, images: images, progress: progress}
	for _, g := range images {
		for range g.each() {
			v.total += uint64(m.PageBytes)
		}
	}
	v.advance(0)
	found := make([]DamageError, len(m.Parts))
	var next atomic.Int64
	var working sync.WaitGroup
	for range min(verifyAtOnce, len(m.Parts)) {
		working.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(m.Parts); i = int(next.Add(1)) - 1 {
				v.part(i, &found[i])
			}
		})
	}
	working.Wait()
	return m.explain(found)
}

// verifier reads the pages of a checkpoint.
type verifier struct {
	m      *Manifest
	images []*Image // with file numbers of Manifest.Parts
	total  uint64

	mu       sync.Mutex
	done     uint64 // guarded by mu
	progress func(done, total uint64)
}

func (v *verifier) advance(bytes int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.done += uint64(bytes)
	if v.progress != nil {
		v.progress(v.done, v.total)
	}
}

// part reads what is needed of a part, in the order of slots, and notes damage.
func (v *verifier) part(i int, damage *DamageError) {
	p := v.m.Parts[i]
	f, err := p.open(v.m.dir)
	if err != nil {
		damage.add(Damage{File: p.File, What: err.Error(), cause: err})
		return
	}
	defer f.Close() // it is only read
	var needed []Entry
	err = p.eachEntry(f, func(e Entry) error {
		if uint64(e.Memory) < uint64(len(v.images)) && e.Slot != Zeros {
			if at := v.images[e.Memory].At(e.Page); at == (Place{CRC: e.CRC, File: uint32(i + 1), Slot: e.Slot}) {
				needed = append(needed, e)
			}
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("%s: %w", filepath.Join(v.m.dir, p.File), err)
		damage.add(Damage{File: p.File, What: err.Error(), cause: err})
		return
	}
	slices.SortFunc(needed, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.Memory, b.Memory), cmp.Compare(a.Page, b.Page))
	})
	needed = slices.Compact(needed)
	b := make([]byte, min(max(verifyBuffer/v.m.PageBytes, 1), len(needed))*v.m.PageBytes)
	for len(needed) > 0 {
		n := 1
		for n < len(needed) && n < len(b)/v.m.PageBytes && needed[n].Slot == needed[0].Slot+uint64(n) {
			n++
		}
		v.pages(f, p, needed[:n], b[:n*v.m.PageBytes], damage)
		needed = needed[n:]
		v.advance(n * v.m.PageBytes)
	}
}

// pages reads neighbouring pages into b, and notes damage.
func (v *verifier) pages(f *os.File, p Part, list []Entry, b []byte, damage *DamageError) {
	_, err := f.ReadAt(b, int64(list[0].Slot)*int64(v.m.PageBytes))
	if err != nil && len(list) > 1 { // which of them?
		for i := range list {
			v.pages(f, p, list[i:i+1], b[:v.m.PageBytes], damage)
		}
		return
	}
	for i, e := range list {
		what := ""
		if got := CRC(b[i*v.m.PageBytes:][:v.m.PageBytes]); err == nil && got != e.CRC {
			what = fmt.Sprintf("its CRC is %08x, want %08x", got, e.CRC)
		}
		if errors.Is(err, io.EOF) {
			what = "the file ends before it"
		} else if err != nil {
			what = fmt.Sprintf("it cannot be read: %v", err)
		}
		if what != "" {
			memory := v.m.Memories[e.Memory]
			d := Damage{File: p.File, What: what, Memory: memory.Name, Page: e.Page, cause: err}
			d.First, d.Last, d.Elements = memory.elements(e.Page, v.m.PageBytes)
			damage.add(d)
		}
	}
}
