package stripes

import (
	"testing"

	"pgregory.net/rapid"
)

// TestDivision compares a division with what it is by definition.
func TestDivision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions := rapid.IntRange(1, 16).Draw(t, "partitions")
		d := Of(rapid.SampledFrom([]uint32{1, 3, 256, Pages(1 << 26)}).Draw(t, "stripe"), partitions)
		of := func(page uint64) int { return int(page / d.pages % uint64(partitions)) }
		first, count := rapid.Uint64Range(0, 40*d.pages).Draw(t, "first"), rapid.Uint64Range(0, 40*d.pages).Draw(t, "count")
		counts := make([]uint64, partitions)
		for page := first; page < first+count; page++ {
			if d.Of(page) != of(page) {
				t.Fatalf("partition %d has page %d, want %d", d.Of(page), page, of(page))
			}
			counts[of(page)]++
			if got := d.At(of(page), d.Index(page)); got != page {
				t.Fatalf("page %d is number %d of partition %d, and that is page %d", page, d.Index(page), of(page), got)
			}
			if before := d.Count(of(page), 0, page); d.Index(page) != before {
				t.Fatalf("page %d is number %d of partition %d, of which %d lie before it", page, d.Index(page), of(page), before)
			}
		}
		next := first
		for at, n := range d.Parts(first, count) {
			if at != next || n == 0 || d.Of(at) != d.Of(at+n-1) || partitions > 1 && d.End(at) != d.End(at+n-1) {
				t.Fatalf("a part of %d pages from page %d on, want one stripe's from page %d on", n, at, next)
			}
			next = at + n
		}
		if next != first+count {
			t.Fatalf("the parts end at page %d, want %d", next, first+count)
		}
		for s, want := range counts {
			if got := d.Count(s, first, count); got != want {
				t.Fatalf("partition %d has %d of %d pages from page %d on, want %d", s, got, count, first, want)
			}
			want := first
			for of(want) != s {
				want++
			}
			if got := d.Next(s, first); got != want {
				t.Fatalf("the next page of partition %d from page %d on is %d, want %d", s, first, got, want)
			}
		}
	})
}
