// Package heap allocates values one by one in shared memory, as new does in a program's own:
// nodes of trees and lists, rows, strings. A Ref takes the place of a pointer. It may be in shared
// memory itself, and means the same in all programs.
//
//	type node struct {
//		Key         int64
//		Left, Right heap.Ref[node]
//	}
//
//	h, err := heap.Open(ctx, c, "tree", 0)
//	...
//	root, err := heap.New[node](h)
//	...
//	root.Get().Key = 7
//
// Values are not collected: Free gives them back, in any program. What many ranks use as a whole,
// like a vector, is better off in dsm.Alloc.
//
// # What travels
//
// Each program has an arena of its own: what it allocates lies together, values of about one size
// in the order in which they were allocated, so that whoever fetches the page of one gets its
// neighbours. A value of up to a page lies on one page, which begins with the node that has
// allocated it.
//
//   - New, and Free of a value of the own arena, are some atomic instructions, and make nothing
//     travel, unless the value's page is elsewhere. Goroutines mostly allocate in different blocks
//     of 65 pages, and do not wait for each other.
//   - Free of another program's value notes it. When there are some 500 of such, or a block's
//     worth, one page with their addresses goes home, where New finds it when it runs out of slots.
//     Until then the memory is not used again. Flush sends what there is.
//   - A block that an arena takes, or gives back because it has no values any more, changes an
//     entry of a table that all share. Each program takes them from a place of its own as long as
//     it can.
//   - Get is nothing: a Ref is an address. To touch the value is a memory access.
//
// A heap has a fixed range of addresses, because then a Ref needs no looking up. Memory is used
// when it is touched, and stays with the heap. When the range is full, New returns dsm.ErrNoSpace.
// It has looked then for what was freed here and by others, and, unless it did so within the last
// second, for programs that have ended. What is free in the arenas of others that live is theirs,
// until they call Flush.
//
// # Loss
//
// Values are memory: when a program dies they stay, for the others and for who opens the heap next,
// and when a node is lost, pages are lost whose only copy was there (docs/consistency.md). No two
// values overlap, whatever dies when. That holds because what is lost is known to be lost. So Open
// refuses dsm.Replicated: with it pages would come back as they were, each as of its own moment,
// and a heap with old marks would give out memory that somebody uses. For the same reason lost
// pages of a heap stay lost with `dsmd run --lost checkpoint`, too (dsm.StaysLost). A job that is
// restored has the heap as it was at the checkpoint.
//
//   - The arena of a program that has died, or has closed the heap, goes with its values and its
//     free memory to the program that opens the heap next as the same rank. A program whose heap is
//     full takes it, too.
//   - What leaks, that is stays allocated: values that the dead program had freed and not yet sent
//     home, at most some 500 for each arena, a value that it was allocating or freeing, and what
//     others had freed if it was just taking that back. Close leaves the pages behind in which
//     addresses had come home last, at most 64 for each arena they had come from.
//   - When a page is lost, free memory in its block leaks, and New and Free take another block; a
//     new value of several pages may have a lost one that is not its first. What others have freed
//     leaks if it was on its way. A Free returns an error that wraps dsm.ErrPageLost if it needs a
//     page that is lost: of the table, of a mailbox, the first one of an own value's block, or, in
//     a full heap, those of the values that it sends.
//
// Who frees a value twice is told so, at once or later, unless the memory has been allocated again
// in between. Then nobody can tell, as with any memory.
package heap
