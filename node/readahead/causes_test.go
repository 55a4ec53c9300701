package readahead

import (
	"testing"

	"dsmd/pagetable"
	"dsmd/protocol"

	"pgregory.net/rapid"
)

// TestCauses compares Causes with what is known of each page by itself.
func TestCauses(t *testing.T) {
	type known struct {
		left, guessed bool
		taken         int // in which phase, from 1
	}
	rapid.Check(t, func(t *rapid.T) {
		var c Causes
		pages, phase := map[pagetable.Page]known{}, 1
		change := func(do func(pagetable.Page), how func(*known)) func(*rapid.T) {
			return func(t *rapid.T) {
				page := pagetable.Page(rapid.IntRange(0, 200).Draw(t, "page"))
				is := pages[page]
				how(&is)
				pages[page] = is
				do(page)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"left":    change(c.Left, func(is *known) { is.left = true }),
			"taken":   change(c.Taken, func(is *known) { is.taken = phase }),
			"guessed": change(c.Guessed, func(is *known) { is.guessed = true }),
			"waited":  change(func(page pagetable.Page) { c.Waited(page) }, func(is *known) { is.guessed = false }),
			"goes on": func(*rapid.T) { phase++; c.Cue() },
			"freed": func(t *rapid.T) {
				first, count := pagetable.Page(rapid.IntRange(0, 200).Draw(t, "first")), uint64(rapid.IntRange(0, 100).Draw(t, "count"))
				c.Freed(first, count)
				for page := range count {
					delete(pages, first+pagetable.Page(page))
				}
			},
			"": func(t *rapid.T) {
				for page := range pagetable.Page(201) {
					is := pages[page]
					for _, has := range []protocol.Access{protocol.None, protocol.Read} {
						want := Unpredicted
						if is.taken == phase {
							want = Retaken
						} else if !is.left && has == protocol.None {
							want = Cold
						}
						if got := c.Of(page, has); got != want {
							t.Fatalf("page %d, of which the node has %v, is missed for cause %d, want %d", page, has, got, want)
						}
					}
					if first := c.Waited(page); first != is.guessed {
						t.Fatalf("page %d was asked for when nobody waited for it: %v, want %v", page, first, is.guessed)
					} else if first {
						c.Guessed(page)
					}
				}
			},
		})
	})
}
