package readahead

import (
	"fmt"
	"testing"

	"dsmd/pagetable"

	"pgregory.net/rapid"
)

// TestExtents compares Extents with a plain set of pages.
func TestExtents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x Extents
		owner := map[pagetable.Page]Extent{}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				first, count := pagetable.Page(rapid.IntRange(0, 60).Draw(t, "first")), uint64(rapid.IntRange(0, 8).Draw(t, "count"))
				e := Extent{First: first, End: first + pagetable.Page(count), Name: fmt.Sprint(first)}
				for p := e.First; p < e.End; p++ {
					if _, taken := owner[p]; taken && owner[p] != e {
						return // the allocator gives no page out twice
					}
				}
				x.Add(first, count, e.Name)
				for p := e.First; p < e.End; p++ {
					owner[p] = e
				}
			},
			"drop": func(t *rapid.T) {
				first := pagetable.Page(rapid.IntRange(0, 60).Draw(t, "first"))
				x.Drop(first)
				for p, e := range owner {
					if e.First == first {
						delete(owner, p)
					}
				}
			},
			"": func(t *rapid.T) {
				for p := range pagetable.Page(70) {
					want, ok := owner[p]
					if !ok {
						want = Extent{First: p, End: p + 1}
					}
					if got := x.Of(p); got != want {
						t.Fatalf("page %d is in %v, want %v (%v)", p, got, want, x.list)
					}
					if in := x.Find(p); (in != nil) != ok || ok && *in != want {
						t.Fatalf("page %d is found in %v, want %v (%v)", p, in, want, x.list)
					}
					if from := x.From(p); ok && from[0] != want || !ok && len(from) > 0 && from[0].First <= p {
						t.Fatalf("from page %d on there are %v (%v)", p, from, x.list)
					}
				}
			},
		})
	})
}
