// Package faultlog is what a node remembers of the last faults of its threads, and of the pages
// that other nodes took from it. The daemon keeps a log while somebody reads it; a Batch is a piece
// of it, as it travels to a program, to the launcher, and into files. Traces, profiles, the sharing
// report and the dashboard are views of it.
package faultlog

import "time"

// Access is what a thread, or another node, needed of a page.
type Access uint8

// The accesses.
const (
	Read    Access = iota + 1 // to load from it; it was not here
	Write                     // to store to it; it was not here
	Upgrade                   // to store to it; it was here for reading

	accessEnd
)

func (a Access) String() string {
	if a > 0 && a < accessEnd {
		return [...]string{Read: "read", Write: "write", Upgrade: "upgrade"}[a]
	}
	return "none"
}

// Detail is how much a reader wants to know of what happens: what nobody wants costs nothing.
type Detail uint64

// The details; each has those before it.
const (
	OfFaults     Detail = iota // and why the pages were not here
	OfDepartures               // of all
	OfWords                    // which ones were written before a departure, of some
)

// NoNode stands for no node.
const NoNode = 1<<32 - 1

// Fault is a wait of a thread for a page, which has ended.
type Fault struct {
	Page   uint64 // its number in the region
	Offset uint32 // which byte of the page was accessed; 0 also if the kernel does not say
	Access Access

	PID    uint32 // the program's
	Thread uint32 // as the kernel numbers it; 0: the kernel does not say
	// Began is when the daemon learned of it, in nanoseconds since 1970 by this machine's clock.
	Began int64
	// Granted is the part of Waited until the grant came; 0: none did.
	Granted, Waited time.Duration

	// From is the node that sent the contents, or only the right; NoNode: nobody had to.
	From     uint32
	Contents bool // came with that; false: there are none but zeros, or they were here
	// Taker is the node because of which this one had the page no longer, or no longer for writing,
	// and TakerAccess is what that needed it for. NoNode: this node never had it, or gave it up by
	// itself, or lost it when it kept no log: before the first reader, or after ten seconds without
	// one.
	Taker       uint32
	TakerAccess Access
	// Lock is the hash of the name of the lock that the program had by a word on its control page;
	// 0: none, or several, or only such as its daemon has granted it in a call. A reactor that has
	// to ask another one may hear of it too late.
	Lock uint64
}

// Departure is a page that another node took from this one, or that it may only read from then on.
type Departure struct {
	Place uint64 // in the log, so that who is told by several programs takes none twice
	Page  uint64
	At    int64 // as Fault.Began
	By    uint32
	// Access is what By needs: with Read this node keeps a copy.
	Access Access
	// Written are the words of 8 bytes that have changed since this node could last write the page,
	// one bit for each, the lowest bit of the first element for the first word. It is nil if nobody
	// has compared, which a node does for some pages only.
	Written []uint64
}

// Batch is a piece of a log.
type Batch struct {
	// First is the place in the log from which on it has what this reader may see, and Next where
	// the next batch goes on. Faults and departures are numbered together, from 0; a daemon uses no
	// number twice.
	First, Next uint64
	// Lost is how many entries before First were overwritten before this reader came.
	Lost uint64

	Faults     []Fault     // in the order in which they ended
	Departures []Departure // in order
}
