package report

import (
	"strings"
)

// Names of the daemon's counters that results are made of. What follows faultPrefix is the kind of
// fault, what follows remotePrefix why it waited for another node, and what follows predictedPrefix
// what became of predicted pages.
const (
	faultPrefix         = "faults_"
	remotePrefix        = "remote_faults_"
	predictedPrefix     = "predicted_"
	counterBytesSent    = "bytes_sent"
	counterMessagesSent = "messages_sent"
	counterLocks        = "lock_calls"
	counterBarriers     = "barrier_calls"
	counterFaultWait    = "fault_wait_ns"
	counterLockWait     = "lock_wait_ns"
	counterBarrierWait  = "barrier_wait_ns"
)

// misses are the kinds of faults that other nodes have to do with. The others are served here:
// "map" (the page was here and not mapped) and "duplicate" (the fault was reported before).
var misses = []string{"read", "write", "upgrade"}

// A Result is what one run of a program measured, as the JSON output has it. Times are in seconds.
type Result struct {
	Kernel  string `json:"kernel"`
	Nodes   int    `json:"nodes"`
	Threads int    `json:"threads"` // per node
	// Size is as it was asked for, N the number that it stands for. With an input, Size is the
	// file's name.
	Size      string `json:"size"`
	N         int    `json:"n"`
	Trap      string `json:"trap"`
	Transport string `json:"transport"`
	// Verified says that the result of the program is the right one.
	Verified bool `json:"verified"`

	Seconds           float64 `json:"seconds"`
	SecondsSerial     float64 `json:"seconds_serial"`
	SecondsGoroutines float64 `json:"seconds_goroutines"`
	// Speedup is serial time by ours, Overhead ours by that of as many goroutines on ordinary
	// memory.
	Speedup  float64 `json:"speedup"`
	Overhead float64 `json:"overhead"`

	// Traffic is that of all nodes together.
	Traffic
	// Figures are the program's own, by the names that the original program's output gives them.
	Figures map[string]any `json:"result"`

	PerNode []Node `json:"per_node"`
}

// A Node is one node's part of a Result.
type Node struct {
	Rank    int     `json:"rank"`
	Seconds float64 `json:"seconds"`
	Traffic
	// Counters is by how much each counter of the node's daemon grew.
	Counters map[string]uint64 `json:"counters"`
}

// Traffic is what the computing made the daemons do, and for how long it waited for that.
type Traffic struct {
	Faults map[string]uint64 `json:"faults"` // by kind
	// Remote faults waited for another node, each for one reason: "cold" (this node had never had
	// the page), "retaken" (another has taken it since a program here last passed a barrier or got
	// a lock), "late" (it was on its way already) or "unpredicted" (all others).
	Remote map[string]uint64 `json:"remote_faults"`
	// Predicted pages: "pages", "used" (misses avoided), "late", "in_vain", and "beyond", which
	// were asked for with them.
	Predicted  map[string]uint64 `json:"predicted"`
	BytesMoved uint64            `json:"bytes_moved"` // sent to other nodes, headers included
	Messages   uint64            `json:"messages"`    // sent to other nodes
	// Locks counts acquisitions; Barriers counts arrivals of processes at barriers and reductions,
	// which is one for a team of goroutines.
	Locks    uint64 `json:"lock_calls"`
	Barriers uint64 `json:"barrier_calls"`
	// Waiting for pages, locks and barriers. Threads that wait at the same time for different
	// things count each; a team that waits at a barrier counts once, from the arrival of its last
	// goroutine.
	SecondsFaults   float64 `json:"seconds_faults"`
	SecondsLocks    float64 `json:"seconds_locks"`
	SecondsBarriers float64 `json:"seconds_barriers"`
}

// NewNode makes a node's part of a result from the growth of its daemon's counters during the given
// seconds.
func NewNode(rank int, seconds float64, counters map[string]uint64) Node {
	inSeconds := func(counter string) float64 { return float64(counters[counter]) / 1e9 }
	n := Node{Rank: rank, Seconds: seconds, Counters: counters, Traffic: Traffic{
		Faults:          map[string]uint64{},
		Remote:          map[string]uint64{},
		Predicted:       map[string]uint64{},
		BytesMoved:      counters[counterBytesSent],
		Messages:        counters[counterMessagesSent],
		Locks:           counters[counterLocks],
		Barriers:        counters[counterBarriers],
		SecondsFaults:   inSeconds(counterFaultWait),
		SecondsLocks:    inSeconds(counterLockWait),
		SecondsBarriers: inSeconds(counterBarrierWait),
	}}
	for name, value := range counters {
		if kind, ok := strings.CutPrefix(name, faultPrefix); ok {
			n.Faults[kind] = value
		}
		if why, ok := strings.CutPrefix(name, remotePrefix); ok {
			n.Remote[why] = value
		}
		if what, ok := strings.CutPrefix(name, predictedPrefix); ok {
			n.Predicted[what] = value
		}
	}
	return n
}

// SumUp makes from PerNode, SecondsSerial and SecondsGoroutines what follows from them. The slowest
// node's time counts.
func (r *Result) SumUp() {
	r.Seconds, r.Traffic = 0, Traffic{Faults: map[string]uint64{}, Remote: map[string]uint64{}, Predicted: map[string]uint64{}}
	for _, n := range r.PerNode {
		r.Seconds = max(r.Seconds, n.Seconds)
		r.Traffic.add(n.Traffic)
	}
	r.Speedup = r.SecondsSerial / r.Seconds
	r.Overhead = r.Seconds / r.SecondsGoroutines
}

func (t *Traffic) add(u Traffic) {
	for kind, count := range u.Faults {
		t.Faults[kind] += count
	}
	for why, count := range u.Remote {
		t.Remote[why] += count
	}
	for what, count := range u.Predicted {
		t.Predicted[what] += count
	}
	t.BytesMoved += u.BytesMoved
	t.Messages += u.Messages
	t.Locks += u.Locks
	t.Barriers += u.Barriers
	t.SecondsFaults += u.SecondsFaults
	t.SecondsLocks += u.SecondsLocks
	t.SecondsBarriers += u.SecondsBarriers
}

// Misses counts the faults that other nodes had to do with.
func (t *Traffic) Misses() uint64 {
	total := uint64(0)
	for _, kind := range misses {
		total += t.Faults[kind]
	}
	return total
}

// Shares says where the time of a run went, on the average of its threads. The parts add up to 1.
type Shares struct {
	// Computing is the rest: the program's own work, and whatever else it waited for, such as a
	// processor.
	Computing, Faults, Locks, Barriers float64
}

// Shares returns where the time went. Barriers of teams are waited for by all threads of a node at
// once, but faults and locks by each for itself, so these are divided by the threads.
func (r *Result) Shares() Shares {
	whole := 0.0
	for _, n := range r.PerNode {
		whole += n.Seconds
	}
	if whole <= 0 {
		return Shares{Computing: 1}
	}
	threads := float64(max(r.Threads, 1))
	s := Shares{
		Faults:   r.SecondsFaults / threads / whole,
		Locks:    r.SecondsLocks / threads / whole,
		Barriers: r.SecondsBarriers / whole,
	}
	// One thread can have two waits counted at the same time, if the second begins before the
	// daemon notices the first's end.
	lost := s.Faults + s.Locks + s.Barriers
	if lost > 1 {
		s.Faults, s.Locks, s.Barriers, lost = s.Faults/lost, s.Locks/lost, s.Barriers/lost, 1
	}
	s.Computing = 1 - lost
	return s
}
