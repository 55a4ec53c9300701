// Package stripes says which of several reactors of a daemon serves which page: stripes of
// neighbouring pages go to the reactors in turn. A daemon and its programs, and all nodes of a
// cluster, must agree on it.
package stripes

import "iter"

const (
	// minPages is the least that a stripe has: as many as are asked for ahead at a time, since what
	// is asked for together travels in runs of neighbours.
	minPages = 256
	// most bounds the stripes of a region: each is a mapping of its own in programs, and the kernel
	// lets a process have 65,530 (vm.max_map_count).
	most = 1 << 14
)

// Division is how the pages of a region are divided among partitions. The zero Division has one.
type Division struct {
	partitions uint64
	pages      uint64 // of a stripe
}

// Of is the division of pages among so many partitions, in stripes of so many.
func Of(stripePages uint32, partitions int) Division {
	return Division{uint64(max(partitions, 1)), uint64(max(stripePages, 1))}
}

// Pages is how many pages the stripes of a region of so many should have.
func Pages(regionPages uint64) uint32 {
	pages := uint32(minPages)
	for regionPages/uint64(pages) > most {
		pages *= 2
	}
	return pages
}

// Partitions is the number of partitions.
func (d Division) Partitions() int { return int(max(d.partitions, 1)) }

// Of is the partition that serves a page.
func (d Division) Of(page uint64) int {
	if d.partitions <= 1 {
		return 0
	}
	return int(page / d.pages % d.partitions)
}

// Next is the first page from page on that a partition serves.
func (d Division) Next(partition int, page uint64) uint64 {
	if d.partitions <= 1 {
		return page
	}
	stripe := page / d.pages
	ahead := (uint64(partition) + d.partitions - stripe%d.partitions) % d.partitions
	if ahead == 0 {
		return page
	}
	return (stripe + ahead) * d.pages
}

// Index is the place of a page among all pages of its partition, in ascending order.
func (d Division) Index(page uint64) uint64 {
	if d.partitions <= 1 {
		return page
	}
	return page/d.pages/d.partitions*d.pages + page%d.pages
}

// At is the page at a place among all pages of a partition.
func (d Division) At(partition int, index uint64) uint64 {
	if d.partitions <= 1 {
		return index
	}
	return (index/d.pages*d.partitions+uint64(partition))*d.pages + index%d.pages
}

// End is the end of the stripe that a page lies in: the first page behind it.
func (d Division) End(page uint64) uint64 {
	if d.partitions <= 1 {
		return 1<<64 - 1
	}
	return (page/d.pages + 1) * d.pages
}

// Count is how many pages of a run a partition serves.
func (d Division) Count(partition int, first, count uint64) (n uint64) {
	if d.partitions <= 1 {
		return count
	}
	round := d.pages * d.partitions
	n = count / round * d.pages
	first, end := first+count/round*round, first+count
	for at := d.Next(partition, first); at < end; at = d.Next(partition, at) {
		part := min(end, d.End(at))
		n, at = n+part-at, part
	}
	return n
}

// Parts are the parts of a run of pages that lie in one stripe each, by their first page and how
// many they are, in ascending order. With one partition that is the run.
func (d Division) Parts(first, count uint64) iter.Seq2[uint64, uint64] {
	return func(yield func(first, count uint64) bool) {
		for end := first + count; first < end; {
			part := min(end, d.End(first))
			if !yield(first, part-first) {
				return
			}
			first = part
		}
	}
}
