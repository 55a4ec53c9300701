// Package readahead guesses which pages a program will touch next.
//
// A thread that faults on one page after another pays for each the way to another node and back.
// When it is seen to go over a run of pages, or over pages at equal distances, the next ones can be
// asked for together with the one that it waits for, and arrive together (Threads). Where a node
// has a group lease, its threads touch pages in any order, and the neighbours of a page that one
// misses are worth asking for (Neighbours). Neither goes beyond the allocation that the page is in
// (Extents). What threads miss again after the same step is asked for when that comes (Trail). Why
// they still miss pages is counted (Causes).
//
// What is fetched ahead is a valid copy like any other, got by the same transactions, so no order
// of accesses becomes possible that was not before. What can be lost is speed, if pages are taken
// from others and not used. So it begins small, and doubles only as long as the thread goes on
// exactly where the last window ended.
//
// The package looks at faults and names pages. It asks nobody for them, and has no clock.
package readahead
