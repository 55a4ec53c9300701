package runstats

import "testing"

// TestAllocations: a page is found in the allocation that was told of last.
func TestAllocations(t *testing.T) {
	var all Allocations[*Allocation]
	for _, a := range []Allocation{
		{Name: "c", First: 30, Pages: 10}, {Name: "a", First: 10, Pages: 10}, {Name: "b", First: 20, Pages: 5},
		{Name: "empty", First: 5}, {Name: "endless", First: 1 << 63, Pages: 1 << 63},
	} {
		a.PageBytes = 4096
		all.Add(&a)
	}
	look := func(want map[uint64]string) {
		t.Helper()
		for page, name := range want {
			got := ""
			if a := all.Find(page); a != nil {
				got = a.Name
			}
			if got != name {
				t.Errorf("page %d is in %q, want %q", page, got, name)
			}
		}
	}
	look(map[uint64]string{5: "", 9: "", 10: "a", 19: "a", 20: "b", 24: "b", 25: "", 30: "c", 39: "c", 40: ""})
	all.Add(&Allocation{Name: "d", First: 15, Pages: 10, PageBytes: 4096})
	look(map[uint64]string{10: "", 15: "d", 24: "d", 25: "", 30: "c"})
	all.Add(&Allocation{Name: "e", First: 15, Pages: 1, PageBytes: 4096})
	look(map[uint64]string{15: "e", 16: "", 30: "c"})
}

// TestElement: a byte of a page is named as the program would.
func TestElement(t *testing.T) {
	a := Allocation{
		Name: "p", First: 7, Pages: 9, PageBytes: 4096, ElemBytes: 24,
		Fields: []Field{{Name: "x", Bytes: 8}, {Name: "in.y", Offset: 16, Bytes: 4}},
	}
	for _, test := range []struct {
		page   uint64
		offset uint32
		want   string
	}{{7, 0, "p[0].x"}, {7, 10, "p[0]"}, {7, 24 + 16, "p[1].in.y"}, {7, 24 + 20, "p[1]"}, {8, 0, "p[170].in.y"}, {8, 8, "p[171].x"}} {
		if got := a.Element(test.page, test.offset); got != test.want {
			t.Errorf("page %d, byte %d: %s, want %s", test.page, test.offset, got, test.want)
		}
	}
}
