package dsm

import (
	"errors"
	"fmt"
	"strconv"
)

// ExitLost is the exit status of a program that has allocated shared memory and has lost its
// cluster. It is EX_SOFTWARE of sysexits.h.
const ExitLost = 70

// The errors that callers may want to tell apart, with errors.Is. The errors that are returned wrap
// them and say what, where, and what to do.
var (
	// ErrClosed: the Cluster was closed.
	ErrClosed = errors.New("the cluster was closed")
	// ErrLost: the daemon of this node, or another node, is gone; see the package comment.
	ErrLost = errors.New("the cluster is lost")
	// ErrNoDaemon: no daemon is at the socket, or it has ended before it took this program, or no
	// socket is known.
	ErrNoDaemon = errors.New("no daemon")
	// ErrRefused: the daemon does not take this program, for instance because its rank is taken.
	ErrRefused = errors.New("the daemon refused this program")
	// ErrVersion: the daemon is of another version than this program.
	ErrVersion = errors.New("the daemon speaks another version")
	// ErrAddressTaken: the addresses of the shared region are in use in this process.
	ErrAddressTaken = errors.New("the region's addresses are taken")
	// ErrNoTrap: page faults can't be trapped in this process.
	ErrNoTrap = errors.New("page faults can't be trapped")
	// ErrType: a type cannot live in shared memory.
	ErrType = errors.New("the type cannot be shared")
	// ErrMismatch: another rank has given another type, length or number of parties for the same
	// name.
	ErrMismatch = errors.New("ranks disagree")
	// ErrNoSpace: the request does not fit: in the region or what all nodes have room for,
	// or a reduction in a message.
	ErrNoSpace = errors.New("it does not fit")
	// ErrUnknown: there is no memory of that name.
	ErrUnknown = errors.New("unknown name")
	// ErrNotShared: the memory was not allocated by this Cluster, or was freed.
	ErrNotShared = errors.New("this is not shared memory")
	// ErrNotHeld: this process does not hold the lock that it gives back.
	ErrNotHeld = errors.New("the lock is not held by this process")
	// ErrInUse: this process has the same barrier or reduction under way already, or has pinned
	// what it wants to free.
	ErrInUse = errors.New("in use by another goroutine of this process")
	// ErrOwnerDied: the lock is not held, because a program died holding it, and what it protects
	// may be half changed. Mutex.LockRepair takes it all the same; see OwnerDiedError.
	ErrOwnerDied = errors.New("the last owner of the lock died")
	// ErrCheckpoint: a checkpoint can't be written or read.
	ErrCheckpoint = errors.New("no checkpoint")
	// ErrFile: a file can't be mapped, or what has changed can't be written to it.
	ErrFile = errors.New("the file can't be used")
	// ErrReadOnly: memory is mapped for reading only (Map).
	ErrReadOnly = errors.New("it is mapped for reading only")
	// ErrPageLost: the only copy of a page was on a node that is lost; see PageLostError.
	ErrPageLost = errors.New("the page is lost")
	// ErrNodeLost: a node is lost, and with it a rank that was waited for, or something that the
	// call needs. The cluster goes on without it; see Cluster.Survivors.
	ErrNodeLost = errors.New("a node is lost")
)

// OwnerDiedError is the error of a Lock that is not held: the program of rank Rank died while it
// held the lock for writing, or the lock was at a Node that is lost. So what the lock protects may
// be half changed. Everybody who asks for the lock is told so, until LockRepair has repaired it. It
// wraps ErrOwnerDied.
type OwnerDiedError struct {
	Lock string // the lock's name
	Rank int    // of the program that died, from 0 to Size-1; -1 if its whole node was lost
	// the node that was lost; -1 if only the program died. Whether one of its programs held the
	// lock is not known
	Node int
}

func (e *OwnerDiedError) Error() string {
	who := fmt.Sprintf("%v: rank %d", ErrOwnerDied, e.Rank)
	if e.Node >= 0 {
		who = fmt.Sprintf("it was last at node %d, which is lost: perhaps %v", e.Node, ErrOwnerDied)
	}
	return fmt.Sprintf("dsm: lock %q is not held: %s; what it protects may be half changed. LockRepair takes the lock and repairs that", e.Lock, who)
}

// Unwrap makes errors.Is find ErrOwnerDied.
func (e *OwnerDiedError) Unwrap() error { return ErrOwnerDied }

// failure wraps an error with what was being done: "dsm: Alloc "grid": ...".
func failure(what string, err error) error { return fmt.Errorf("dsm: %s: %w", what, err) }

// inUnits is a number of bytes in the largest unit of which there are at least two, rounded up, as
// flags of daemons have it.
func inUnits(bytes uint64) string {
	unit := 0
	for ; unit < len(units)-1 && bytes >= 2<<10; unit++ {
		bytes = bytes/1024 + min(bytes%1024, 1)
	}
	return strconv.FormatUint(bytes, 10) + units[unit]
}

var units = []string{"B", "KiB", "MiB", "GiB", "TiB"}
