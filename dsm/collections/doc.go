// Package collections has values in shared memory that many ranks change, laid out so that pages
// travel as little as they can. Everything in it is built on package dsm alone.
//
//   - Padded: a value for each rank or thread, no two of which share a page. Whoever stores to its
//     own makes no page of another travel.
//   - Counter: one number that all add to, exact at every moment. Its page goes to whoever adds.
//   - Accumulator: a sum that all add to, each in a part of its own, and that is added up when
//     somebody asks. Adding makes nothing travel; asking fetches a page from each rank that has added
//     since.
//
// All of them are made by every rank that uses them, under the same name, and may be used by any
// number of goroutines.
//
// # Loss
//
// They are memory, and are lost as memory is (docs/consistency.md). A program that dies takes
// nothing with it: what it has added stays. When a node is lost, a page is lost whose only copy was
// there. To touch it is a memory fault, which dsm.Guard turns into an error; Accumulator.Sum
// returns one. It is never another number than the right one. Options for the memory, such as
// dsm.Replicated, are passed on to dsm.Alloc.
package collections
