package node

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/pagetable/backing"

	"golang.org/x/sys/unix"
)

// origins are the files in which pages begin that nobody has touched yet (OpContents). The home of
// such a page grants it, and who gets the grant reads the page from the file, so that its contents
// go over no network but the file's. Each node has all that its programs have said; they say the
// same everywhere.
type origins struct {
	intake *intake
	bytes  uint64    // of a page
	list   []*origin // in ascending order, disjoint
}

// origin is the file, or files, of an allocation.
type origin struct {
	first, end pagetable.Page
	ids        [][16]byte // of the checkpoints that have the pages so which nobody has touched
	files      []*os.File // closed by the runtime when no read needs them any more
	offset     uint64
	// places are where the pages are, if not one behind the other, in chunks of chunkPages pages. A
	// chunk that is not there has zeros.
	places map[uint64][]byte
}

// chunkPages is how many pages' places are kept together.
const chunkPages = 256

// add has pages begin in files. The error is the program's.
func (o *origins) add(p *program, c *attach.Call) error {
	what, err := attach.DecodeContents(c.Payload)
	if err != nil {
		return err
	}
	x := &origin{first: pagetable.Page(c.Object), end: pagetable.Page(c.Object + c.Count), offset: what.Offset}
	if what.ID != [16]byte{} {
		x.ids = [][16]byte{what.ID}
	}
	for i := range what.Files {
		fd, err := p.files.take(what.First + i)
		if err != nil {
			return err
		}
		x.files = append(x.files, os.NewFile(uintptr(fd), "contents"))
	}
	var table *os.File
	if what.Table != 0 {
		fd, err := p.files.take(what.Table)
		if err != nil {
			return err
		}
		table = os.NewFile(uintptr(fd), "places")
		defer table.Close()
	}
	if e := o.intake.extents.Find(x.first); e == nil || e.First != x.first || e.End != x.end {
		p.refuseCall(c, fmt.Errorf("%d pages from page %d on are not an allocation that this program has", c.Count, c.Object))
		return nil
	}
	if o.find(x.first) != nil { // another program of this node was earlier
		p.answer(&attach.Reply{Ticket: c.Ticket})
		return nil
	}
	if table != nil {
		if err := x.read(table, c.Count, o.bytes); err != nil {
			p.refuseCall(c, err)
			return nil
		}
	}
	o.list = append(o.list, x)
	slices.SortFunc(o.list, func(a, b *origin) int { return cmp.Compare(a.first, b.first) })
	p.answer(&attach.Reply{Ticket: c.Ticket})
	return nil
}

// read reads and checks where the pages are. Of a large memory that is hardly used the table has
// holes.
func (x *origin) read(table *os.File, pages, pageBytes uint64) error {
	const chunkBytes = chunkPages * attach.PlaceBytes
	if err := inMemory(int(table.Fd())); err != nil {
		return fmt.Errorf("the table of places: %w", err)
	}
	end := pages * attach.PlaceBytes
	if info, err := table.Stat(); err != nil || uint64(info.Size()) < end {
		return fmt.Errorf("the table of places is shorter than %d bytes: %w", end, orEnd(err))
	}
	x.places = map[uint64][]byte{}
	for from := int64(0); ; {
		at, err := unix.Seek(int(table.Fd()), from, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && uint64(at) >= end {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the table of places: %w", err)
		}
		chunk := uint64(at) / chunkBytes
		list := make([]byte, min(chunkBytes, end-chunk*chunkBytes))
		if _, err := table.ReadAt(list, int64(chunk*chunkBytes)); err != nil {
			return fmt.Errorf("the table of places: %w", err)
		}
		for at := 0; at < len(list); at += attach.PlaceBytes {
			if _, err := attach.PlaceIn(list[at:], len(x.files), pageBytes); err != nil {
				return err
			}
		}
		x.places[chunk] = list
		from = int64((chunk + 1) * chunkBytes)
	}
}

// find is the origin of a page, or nil.
func (o *origins) find(page pagetable.Page) *origin {
	i, _ := slices.BinarySearchFunc(o.list, page, func(x *origin, p pagetable.Page) int {
		if p >= x.end {
			return -1
		}
		return 1
	})
	if i < len(o.list) && o.list[i].first <= page {
		return o.list[i]
	}
	return nil
}

// of is where the contents of a page are, if it does not begin with zeros.
func (o *origins) of(page pagetable.Page) (at backing.Location, is bool) {
	if len(o.list) == 0 {
		return at, false
	}
	x := o.find(page)
	if x == nil {
		return at, false
	}
	if x.places == nil {
		return backing.Location{FD: int(x.files[0].Fd()), Offset: int64(x.offset + uint64(page-x.first)*o.bytes), Pad: true, Keep: x.files[0]}, true
	}
	number := uint64(page - x.first)
	chunk := x.places[number/chunkPages]
	if chunk == nil {
		return at, false
	}
	place, err := attach.PlaceIn(chunk[number%chunkPages*attach.PlaceBytes:], len(x.files), o.bytes)
	if err != nil || place.File == 0 {
		return at, false
	}
	f := x.files[place.File-1]
	return backing.Location{FD: int(f.Fd()), Offset: int64(place.Slot * o.bytes), CRC: place.CRC, Check: true, Keep: f}, true
}

// isIn reports whether a page that nobody has touched needs not be saved in a checkpoint which is
// based on that one: it is zeros, or in that one already.
func (o *origins) isIn(page pagetable.Page, base [16]byte) bool {
	if _, is := o.of(page); !is {
		return true
	}
	return slices.Contains(o.find(page).ids, base)
}

// saved notes that a checkpoint was taken that is based on another: it has of that what nobody has
// touched. The last ones are enough to know: the next is based on the newest that is whole.
func (o *origins) saved(base, id [16]byte) {
	for _, x := range o.list {
		if slices.Contains(x.ids, base) {
			x.ids = append(x.ids[max(len(x.ids)-3, 0):], id)
		}
	}
}

// drop forgets the origin of an allocation that is freed.
func (o *origins) drop(first pagetable.Page) {
	o.list = slices.DeleteFunc(o.list, func(x *origin) bool { return x.first == first })
}
