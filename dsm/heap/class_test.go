package heap

import "testing"

// TestClasses: slots of a class lie in the block, behind the marks, do not overlap, and lie on as
// few pages as they can; and no value takes much more than it needs.
func TestClasses(t *testing.T) {
	for _, page := range []uintptr{4 << 10, 16 << 10, 64 << 10} {
		h := &Heap{page: page, blockBytes: blockPages * page, classes: newClasses(page)}
		for kind := range h.classes {
			k := &h.classes[kind]
			if k.slots > int(page*8) || kind > 1<<8-1-int(divided) {
				t.Errorf("pages of %d: class %d has %d slots, too many for the marks or the table", page, kind, k.slots)
			}
			end := page
			for n := range k.slots {
				at := k.offset(n)
				last := at + k.bytes - 1
				if at < end || last >= h.blockBytes || at%granule != 0 || k.bytes <= page && at/page != last/page || k.bytes > page && at%page != 0 {
					t.Fatalf("pages of %d: slot %d of %d bytes lies at %d", page, n, k.bytes, at)
				}
				end = last + 1
				if got, ok := k.slotAt(at); !ok || got != n {
					t.Fatalf("pages of %d: at %d is slot %d of %d bytes, not %d", page, at, n, k.bytes, got)
				}
				if _, ok := k.slotAt(at + granule/2); ok {
					t.Fatalf("pages of %d: a slot of %d bytes begins at %d", page, k.bytes, at+granule/2)
				}
			}
			if _, ok := k.slotAt(0); ok {
				t.Errorf("pages of %d: a slot of %d bytes lies on the marks", page, k.bytes)
			}
			if _, ok := k.slotAt(end); ok && end < h.blockBytes {
				t.Errorf("pages of %d: behind the last slot of %d bytes is one", page, k.bytes)
			}
		}
		for bytes := uintptr(0); bytes <= h.blockBytes-page; bytes += 1 + bytes/64 {
			kind, ok := classOf(h.classes, bytes)
			if !ok || h.classes[kind].bytes < bytes || kind > 0 && h.classes[kind-1].bytes >= bytes {
				t.Fatalf("pages of %d: %d bytes have class %d", page, bytes, kind)
			}
			if has := h.classes[kind].bytes; bytes > granule && has > bytes+bytes/3+granule && bytes <= page/3 {
				t.Errorf("pages of %d: %d bytes take %d", page, bytes, has)
			}
		}
		if _, ok := classOf(h.classes, h.blockBytes-page+1); ok {
			t.Errorf("pages of %d: a value that does not fit into a block has a class", page)
		}
	}
}
