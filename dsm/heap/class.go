package heap

import "sort"

const (
	// blockPages is how many pages a block has. The first has the marks, a bit for each slot, and
	// the others have the slots. One page is enough for the marks of slots of granule bytes. It is
	// odd, since homes take turns every 16 pages: else, with 2 or 4 nodes, one would be the home of
	// all marks, and with it all blocks be lost that nobody has touched.
	blockPages = 65
	// granule divides the size of all slots. It is a multiple of every alignment of Go.
	granule = 16
	// fine is up to which size there is a class for each multiple of granule.
	fine = 128
)

// class is how a block is divided into slots of one size. A slot lies within a page, or is whole
// pages: so to touch a value is to touch as few pages as can be.
type class struct {
	bytes   uintptr // of a slot
	unit    uintptr // a page, or the bytes of a slot if they are more
	perUnit int     // slots
	slots   int     // in a block
	page    uintptr
}

// newClasses are the classes for pages of a size, the smallest first. Up to a page one is larger
// than the one before by a twelfth or more, as long as slots fill a page. The last one is that of
// parcels.
func newClasses(page uintptr) (all []class) {
	for bytes := uintptr(granule); bytes <= page; bytes += granule {
		last := uintptr(0)
		if len(all) > 0 {
			last = all[len(all)-1].bytes
		}
		n := page / bytes
		if fills := page/n&^(granule-1) == bytes && bytes >= last*13/12; fills || bytes <= fine || bytes == page {
			all = append(all, class{bytes, page, int(n), int(n) * (blockPages - 1), page})
		}
	}
	for pages := 2; pages < blockPages; pages++ {
		n := (blockPages - 1) / pages
		pages = (blockPages - 1) / n // as many as n slots leave room for
		all = append(all, class{uintptr(pages) * page, uintptr(pages) * page, 1, n, page})
	}
	return append(all, class{page, page, 1, blockPages - 1, page})
}

// parcelKind is the last class, that of parcels.
func (h *Heap) parcelKind() int { return len(h.classes) - 1 }

// classOf is the class for values of a size; none: they take whole blocks.
func classOf(all []class, bytes uintptr) (kind int, ok bool) {
	kind = sort.Search(len(all)-1, func(i int) bool { return all[i].bytes >= bytes })
	return kind, kind < len(all)-1
}

// offset is where a slot lies in its block.
func (k *class) offset(slot int) uintptr {
	return k.page + uintptr(slot/k.perUnit)*k.unit + uintptr(slot%k.perUnit)*k.bytes
}

// slotAt is the slot that begins at an offset, if one does.
func (k *class) slotAt(offset uintptr) (slot int, ok bool) {
	in := offset - k.page // a large number, if the offset is that of a mark
	slot = int(in/k.unit)*k.perUnit + int(in%k.unit/k.bytes)
	return slot, slot >= 0 && slot < k.slots && k.offset(slot) == offset
}
