package dsm

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"dsmd/internal/attach"
)

// Stats are what a daemon has counted since its start, for all programs that are attached to it.
// Subtract two of them to see what has happened in between.
type Stats struct {
	Faults  FaultStats
	Traffic TrafficStats
	Sync    SyncStats
	// FalseSharing has, by the name of an allocation, how often a writer on another node took a
	// page of it before the program here that had gained the page synchronised.
	FalseSharing map[string]uint64

	counters map[string]uint64
}

// FaultStats are about accesses that were trapped.
type FaultStats struct {
	Read    uint64        // loads from pages that were not here
	Write   uint64        // stores to pages that were not here
	Upgrade uint64        // stores to pages that were here for reading
	Local   uint64        // accesses to pages that were here, or had just come
	Wait    time.Duration // from the faults to their end, summed over pages
	// GoneBack are lost pages that this node has taken from the last checkpoint, with
	// `dsmd run --lost checkpoint`
	GoneBack uint64
}

// Remote is how many faults were on pages that were not here, or here for reading only. Some of
// them a node settles alone.
func (f FaultStats) Remote() uint64 { return f.Read + f.Write + f.Upgrade }

// TrafficStats are about what went over the network.
type TrafficStats struct {
	PagesSent, PagesReceived       uint64 // with contents
	Invalidations                  uint64 // copies for reading given up because another node stores
	Prefetched                     uint64 // pages that Prefetch has asked for
	ReadAhead                      uint64 // pages that the daemon has asked for ahead of a thread
	MessagesSent, MessagesReceived uint64 // of every kind
	BytesSent, BytesReceived       uint64 // of all messages, headers included
}

// SyncStats are about locks, barriers and replicated memory. What a program takes by a word,
// without a call, is not counted.
type SyncStats struct {
	Locks       uint64        // calls that asked for a lock
	LockWait    time.Duration // of these calls, summed
	Repairs     uint64        // locks that LockRepair got unrepaired
	Barriers    uint64        // arrivals at barriers and reductions
	BarrierWait time.Duration // of these arrivals, summed
	Commits     uint64        // commits of replicated memory
}

// Counter is one of the daemon's counters by its name, as `dsmd status` and the metrics have it; ok
// is false if there is none. Which there are may change between versions; the fields of Stats stay.
func (s *Stats) Counter(name string) (value uint64, ok bool) {
	value, ok = s.counters[name]
	return value, ok
}

// Counters are all of the daemon's counters, by their names.
func (s *Stats) Counters() map[string]uint64 { return maps.Clone(s.counters) }

// Stats asks the daemon of this node for what it has counted. Errors: ctx's, ErrClosed, ErrLost.
func (c *Cluster) Stats(ctx context.Context) (Stats, error) {
	r, err := c.query(ctx, attach.Call{Op: attach.OpStats})
	if err == nil && r.Status != attach.StatusOK {
		err = fmt.Errorf("the daemon answered with %v", r.Status)
	}
	var list []attach.Counter
	if err == nil {
		list, err = attach.DecodeCounters(r.Payload)
	}
	if err != nil {
		return Stats{}, failure("Stats", err)
	}
	counters := make(map[string]uint64, len(list))
	for _, x := range list {
		counters[x.Name] = x.Value
	}
	return newStats(counters), nil
}

// newStats sorts a daemon's counters into fields. A test with a daemon asks that it has all of
// them.
func newStats(n map[string]uint64) Stats {
	s := Stats{
		Faults: FaultStats{
			Read: n["faults_read"], Write: n["faults_write"], Upgrade: n["faults_upgrade"], Local: n["faults_map"],
			Wait: time.Duration(n["fault_wait_ns"]), GoneBack: n["pages_gone_back"],
		},
		Traffic: TrafficStats{
			PagesSent: n["pages_sent"], PagesReceived: n["pages_received"], Invalidations: n["invalidations"],
			Prefetched: n["prefetched_pages"], ReadAhead: n["ahead_pages"],
			MessagesSent: n["messages_sent"], MessagesReceived: n["messages_received"],
			BytesSent: n["bytes_sent"], BytesReceived: n["bytes_received"],
		},
		Sync: SyncStats{
			Locks: n["lock_calls"], LockWait: time.Duration(n["lock_wait_ns"]), Repairs: n["owner_deaths"],
			Barriers: n["barrier_calls"], BarrierWait: time.Duration(n["barrier_wait_ns"]), Commits: n["commit_calls"],
		},
		FalseSharing: make(map[string]uint64),
		counters:     n,
	}
	for name, taken := range n {
		if allocation, ok := strings.CutPrefix(name, attach.ContendedIn); ok {
			s.FalseSharing[allocation] = taken
		}
	}
	return s
}
