package nemesis

import (
	"math"
	"strings"
)

// What operations do, by the kind of the place at which they do it. A place is called KIND/NAME;
// models has the kinds. A key of a map is a register and a sum.
const (
	read  = "read"  // register: Got is the value. sum: Got is the value
	write = "write" // register: becomes New
	swap  = "swap"  // register: becomes New if it is Old; Got is 1 if it was
	add   = "add"   // sum: becomes one more; Got is the new value
	// lock: the client has it then; Got is fromDead or fromLost if the last owner died holding it,
	// or may have, and Dead says who that was
	acquire = "acquire"
	release = "release" // lock: the client has had it
	put     = "put"     // queue: New is at the end of its lane
	take    = "take"    // queue: Got was the first of its lane
	// progress: something was computed, which says by itself whether it is right
	step = "step"
)

// What an acquire has Got that came with the news of a death.
const (
	fromDead = 1 // of a program; Dead is its rank
	fromLost = 2 // of a node; Dead is its number
)

// unknown is the Return of an operation of which nobody has seen the end: it may have happened at
// any time since its call, or never.
const unknown = math.MaxInt64

// client is a goroutine of a program. A program that takes the place of a dead one has another
// life, and on a host that has come back another stay.
type client struct{ Workload, Rank, Stay, Life, Thread int }

// Operation is something that a client did at a place in shared memory, or to a lock.
type Operation struct {
	client client
	Place  string
	Do     string
	Old    uint64
	New    uint64
	Result
	Call   int64 // on the clock of now
	Return int64 // unknown if it was not seen
	// Void says that it has surely not happened, though it was tried.
	Void bool
	// doubtful says that it was done on a host that was being lost: what it has found says nothing,
	// and it may have happened only there. It is set when it is judged.
	doubtful bool
	// taken says of a put that somebody has taken the item. It is set when it is judged.
	taken bool
	// lost are the hosts that had been lost before it returned. It is set when it is judged.
	lost deaths
}

// Result is what came of an operation.
type Result struct {
	Got  uint64 `json:"got,omitempty"`
	Lost bool   `json:"lost,omitempty"` // the page is lost: nothing was read or written
	// Dead: the rank or the node of the dead, where Got is fromDead or fromLost, or Lost is set.
	Dead int `json:"dead,omitempty"`
}

// kind is the part of the place that says how it behaves.
func (o Operation) kind() string {
	kind, _, _ := strings.Cut(o.Place, "/")
	return kind
}

// known reports whether the end of the operation was seen, and what it has found is true for all.
func (o Operation) known() bool { return o.Return != unknown && !o.doubtful }
