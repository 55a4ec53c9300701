// Package collections has values in shared memory that many ranks change, laid out so that pages
// travel as little as they can. Everything in it is built on package dsm alone.
//
//   - Padded: a value for each rank or thread, no two of which share a page. Whoever stores to its
//     own makes no page of another travel.
//   - Counter: one number that all add to, exact at every moment. Its page goes to whoever adds.
//   - Accumulator: a sum that all add to, each in a part of its own, and that is added up when
//     somebody asks. Adding makes nothing travel; asking fetches a page from each rank that has
//     added since.
//   - Map and Set: a hash table of pages. To change a key brings its page, with its lock, to the
//     node; to load one brings a copy, which stays until somebody changes the page. Combiner brings
//     each page once for all that a program has to say, and Combiner.FlushAll brings none: ranks
//     send each other what was added.
//   - Queue: items from those who put them to those who take them, which travel by the page.
//
// All of them are made by every rank that uses them, under the same name, and may be used by any
// number of goroutines. Names that begin with a value's name and a slash are its own, of memory,
// locks and reductions.
//
// # Loss
//
// They are memory, and are lost as memory is (docs/consistency.md). A program that dies takes
// nothing with it: what it has added stays. When a node is lost, a page is lost whose only copy was
// there. To touch it is a memory fault, which dsm.Guard turns into an error; Accumulator.Sum
// returns one. It is never another number than the right one. Methods of Map, Set and Queue return
// such errors, too. With `dsmd run --lost checkpoint` lost pages of Padded, Counter and Accumulator
// go back, as those of other memory do; those of Map, Set and Queue stay lost (dsm.StaysLost).
//
// A program that dies in the middle of a method of Map, Set or Queue has done all of it, or
// nothing, and those who wait for it go on after a tenth of a second. What it has added to a
// Combiner and not flushed, and what it has taken from a Queue, is lost with it. When a node is
// lost, keys and items on lost pages are errors, and others are as they were; with dsm.Replicated
// none is lost that was stored or put before. Options for the memory, such as dsm.Replicated, are
// passed on to dsm.Alloc.
package collections
