// Package backing knows where the contents of pages are that are not in memory: in the spill file,
// or in a file from which they come first. To everybody above it such a page is present, or on its
// way here: a Table says nothing of where the contents of a page are, and the protocol need not
// know.
//
// A page leaves memory when the node says so (Spill), and comes back when a program touches it
// (Map), or it is to become writable. What others want of it is read from the file without that.
// A page whose contents are in another file comes by Bring, which is an Install that takes its
// contents from there.
//
// A page on its way out is made read-only first, then read, then revoked, then written. So at each
// moment its contents can be had at once, in memory, in a buffer or in the file, and an operation
// on it waits no longer than what is under way.
package backing
