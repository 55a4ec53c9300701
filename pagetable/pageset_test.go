package pagetable

import (
	"testing"

	"pgregory.net/rapid"
)

// TestPageSet compares the set with a plain one.
func TestPageSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s PageSet
		model := map[Page]bool{}
		page := rapid.Custom(func(t *rapid.T) Page {
			// Near the ends of words, and far apart.
			return Page(rapid.SampledFrom([]uint64{0, 60, 1 << 20, 1<<32 - 70}).Draw(t, "from") + rapid.Uint64Range(0, 70).Draw(t, "plus"))
		})
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				p := page.Draw(t, "page")
				s.Add(p)
				model[p] = true
			},
			"remove": func(t *rapid.T) {
				p := page.Draw(t, "page")
				if got := s.Remove(p); got != model[p] {
					t.Fatalf("remove of page %d: %v", p, got)
				}
				delete(model, p)
			},
			"removeRun": func(t *rapid.T) {
				first, count := page.Draw(t, "first"), rapid.SampledFrom([]uint64{0, 1, 3, 64, 200, 1 << 33}).Draw(t, "count")
				s.RemoveRun(first, count)
				for p := range model {
					if p >= first && uint64(p-first) < count {
						delete(model, p)
					}
				}
			},
			"": func(t *rapid.T) {
				for p := range model {
					if !s.Has(p) {
						t.Fatalf("page %d is missing", p)
					}
				}
				if p := page.Draw(t, "any"); s.Has(p) != model[p] {
					t.Fatalf("page %d: has is %v", p, s.Has(p))
				}
				first := page.Draw(t, "first")
				if some := model[first] || model[first+1] || model[first+2]; s.HasSome(first, 3) != some {
					t.Fatalf("pages %d to %d: hasSome is %v", first, first+2, !some)
				}
				for at, word := range s.words {
					if word == 0 {
						t.Fatalf("the word of page %d is kept, and is empty", at*64)
					}
				}
				if len(model) == 0 && len(s.words) != 0 {
					t.Fatalf("an empty set has %d words", len(s.words))
				}
			},
		})
	})
}
