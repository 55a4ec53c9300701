// Package runstats is where the time of a run went, and why a run does not move. A rank's library
// writes to the descriptor that Env names: a Record of what it has measured, every few seconds and
// when it leaves the cluster, a Hang, when there is one, and, if somebody wants them, Pieces of
// what happens. The launcher makes a Report of the last records. Find and Because say, out of what
// each rank waits for and has, who waits for whom.
package runstats

import (
	"time"
)

// Env names the descriptor, a pipe, to which a rank writes lines, each a Statement: a Hang, Pieces
// while it runs, if EnvTrace is set to anything, and if EnvStats is, Records of what it has
// measured so far, the last when it leaves the cluster.
const (
	Env      = "DSM_REPORT_FD"
	EnvStats = "DSM_STATS"
)

// MaxBytes bounds an encoded Record.
const MaxBytes = 4 << 20

// MaxItems bounds the items of each kind of a Record, but for one more that is all others of the
// kind, so that it stays within MaxBytes.
const MaxItems = 32

// maxName bounds a name in a Record, in bytes.
const maxName = 200

// Record is where the time of one rank went between joining and leaving the cluster. Times are
// summed over its threads and goroutines, but for Wall.
type Record struct {
	Rank int           `json:"rank"`
	Node int           `json:"node"`
	Wall time.Duration `json:"wall_ns"`
	CPU  time.Duration `json:"cpu_ns"` // processor time, in the program and in the kernel for it
	// Queue is how long threads of the program were ready to run and had no processor, without
	// those of the garbage collector. 0: not known.
	Queue     time.Duration `json:"queue_ns"`
	FaultWait time.Duration `json:"fault_wait_ns"` // for pages
	Waits     []Item        `json:"waits"`         // in calls

	// Of the node, and so the same for all ranks there:

	Read     uint64 `json:"read"`    // faults by what they needed, in pages
	Write    uint64 `json:"write"`   // …
	Upgrade  uint64 `json:"upgrade"` // …
	Sent     uint64 `json:"bytes_sent"`
	Received uint64 `json:"bytes_received"`
	Memory   []Item `json:"memory"` // waits for the pages of allocations

	// SpillWrites is how many pages have gone to the spill file for want of room.
	SpillWrites uint64 `json:"spill_writes,omitempty"`
	// SpillReads is how many have come from there, or from mapped files and checkpoints.
	SpillReads uint64 `json:"spill_reads,omitempty"`

	// Partial: the rank went on after it. The last one of a rank counts.
	Partial bool `json:"partial,omitempty"`

	// Profile is where in the program it has waited, if somebody wants that.
	Profile *Profile `json:"profile,omitempty"`
	Note    string   `json:"note,omitempty"` // what the profile lacks
}

// Kind is what is waited for.
type Kind string

// The kinds.
const (
	Memory   Kind = "memory"
	Lock     Kind = "lock"
	Barrier  Kind = "barrier"
	Prefetch Kind = "prefetch"

	Reduction Kind = "reduction"

	// These are no items of a Record: other waits may be part of them.
	Allocating Kind = "allocation"
	Committing Kind = "commit"

	// Announced is what code on top of package dsm waits for. Its name completes "rank 0 waits".
	Announced Kind = "announced"
)

// Item is the waits for one thing.
type Item struct {
	Kind  Kind          `json:"kind"`
	Name  string        `json:"name"`
	Count uint64        `json:"count"` // waits
	Time  time.Duration `json:"ns"`    // all of them together
	// Taken is how often others have taken pages of an allocation before they were used up: false
	// sharing.
	Taken uint64 `json:"taken,omitempty"`
	// Of is how many things these are, if they are several: a family, whose Name has stars for
	// digits, or all that had no place in a record, without a Name.
	Of uint64 `json:"of,omitempty"`
}

// FalselyShared reports whether other nodes took pages of an allocation, while they were in use,
// more than once for every four waits. Without false sharing a few are taken, too: a node that asks
// ahead asks for some that it does not need.
func (x *Item) FalselyShared() bool { return 4*x.Taken > x.Count }

// Encode returns the record as one line of at most MaxBytes. Of what there is too much the least is
// put together.
func (r Record) Encode() []byte {
	r.Waits, r.Memory = largest(r.Waits, MaxItems), largest(r.Memory, MaxItems)
	b := r.encode()
	if len(b) > MaxBytes {
		r.Profile, r.Note = nil, "the profile is too large to be passed on"
		b = r.encode()
	}
	return b
}

func (r *Record) encode() []byte { return encodeLine(Statement{Record: r}) }
