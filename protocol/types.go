package protocol

import "fmt"

// MaxNodes is the largest cluster: node sets are bounded by it, and so is the
// metadata of a page (see copyset).
const MaxNodes = 1024

// NodeID names a node, from 0 to Config.Nodes-1.
type NodeID uint16

// NoNode is the absence of a node: the owner of a page that nobody has touched.
const NoNode NodeID = 0xffff

// ObjectID names what the directory protocol keeps coherent: a page of the region, by its
// number, or a lock, by the hash of its name with the top bit set. One protocol serves both: a
// lock is a page without contents, whose access is given back when the holder unlocks.
type ObjectID uint64

const lockBit ObjectID = 1 << 63

// PageObject is the object of page number p of the region.
func PageObject(p uint64) ObjectID { return ObjectID(p) &^ lockBit }

// LockObject is the object of the lock whose name hashes to h.
func LockObject(h uint64) ObjectID { return ObjectID(h) | lockBit }

// IsLock tells locks from pages.
func (o ObjectID) IsLock() bool { return o&lockBit != 0 }

// Page is the page number. Preconditions: !o.IsLock().
func (o ObjectID) Page() uint64 { return uint64(o) }

func (o ObjectID) String() string {
	if o.IsLock() {
		return fmt.Sprintf("lock:%x", uint64(o&^lockBit))
	}
	return fmt.Sprintf("page:%d", uint64(o))
}

// Access is a right to an object, in ascending order of strength.
type Access uint8

const (
	None  Access = iota // absent
	Read                // one of many readers
	Write               // the only copy
)

func (a Access) String() string { return [...]string{"none", "read", "write"}[a&3%3] }

// ClientID names a program attached to this node. It means nothing on other nodes. 0 is no program:
// the node itself, which prefetches.
type ClientID uint32

// Ticket names one waiting call of a client: an acquire, a barrier arrival, an allocation. The host
// chooses it, and never the same twice on its node: a release of a barrier may come a second time
// when its wait is over.
type Ticket uint64

// Time is a reading of the host's monotonic clock in microseconds. It wraps after 71 minutes;
// the engine only subtracts readings, and a wrong "recently" costs one short wait.
type Time uint32
