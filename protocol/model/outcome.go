package model

import "dsmd/protocol"

// RetireKind says what a Retirement is.
type RetireKind uint8

const (
	// RetireAccess: a page was read or written; Contents are what was read, or what was there
	// before the write.
	RetireAccess RetireKind = iota + 1
	// RetireLock: a lock was obtained, with Status and OwnerRank.
	RetireLock
	// RetireTurnedAway: a lock was not obtained, because of the death of OwnerRank.
	RetireTurnedAway
	// RetireUnlock: a lock was given back.
	RetireUnlock
	// RetireArrive: a thread reached a barrier.
	RetireArrive
	// RetireWithdraw: the cancelled arrival at a barrier never was.
	RetireWithdraw
	// RetirePass: a thread left a barrier, with Payload.
	RetirePass
	// RetireBind: a client has bound a name, or (RetireUnbind) given it up.
	RetireBind
	RetireUnbind
	// RetireDeath: a client ended.
	RetireDeath
	// RetireCrash: a node was lost.
	RetireCrash
	// RetireLeave: a node is to leave.
	RetireLeave
	// RetireCut: the others go on without a node, and those that are cut off with it.
	RetireCut
	// RetireEnd: a node that was cut off is ended.
	RetireEnd
	// RetireLost: a thread was told that the page it wanted is lost.
	RetireLost
	// RetireBegin: a page came that has what it begins with. Only where pages may begin anew.
	RetireBegin
	// RetireCommitting: a thread asks for what was written on its node to be committed.
	RetireCommitting
	// RetireCommit: what a thread wrote is at its backups.
	RetireCommit
)

// Retirement is something that one node did and that makes sense only beside what other nodes do:
// see Ledger.
type Retirement struct {
	Kind      RetireKind
	Node      protocol.NodeID
	Client    protocol.ClientID
	Thread    int // in Config.Threads
	Op        Op
	Contents  uint32
	Status    protocol.Status
	OwnerRank uint32
	Rank      uint32
	Payload   []byte
	Blocked   bool // the node knows that it has no quorum
	Alone     bool // the node has gone on without those that are cut off
}

// HoldOrder says that ActHoldOver on Object is due After microseconds from now.
type HoldOrder struct {
	Object protocol.ObjectID
	After  protocol.Time
}

// Outcome is what one action led to. Do resets and fills it.
type Outcome struct {
	Effects  []protocol.Effect   // all that the engine wanted done
	Sent     []Flight            // what is on its way now
	Ordered  []protocol.ObjectID // pages with a new operation
	Holds    []HoldOrder
	Runnable []int               // threads (indexes on the node) that have become ready
	Changed  []protocol.ObjectID // pages whose access in the page table may have changed
	Lost     []protocol.ObjectID // pages of which threads were told that they are lost
	Retired  []Retirement
	// Violation is the first thing that the node itself found wrong, or nil.
	Violation *Violation
}

func (out *Outcome) reset() {
	*out = Outcome{
		Effects: out.Effects[:0], Sent: out.Sent[:0], Ordered: out.Ordered[:0], Holds: out.Holds[:0],
		Runnable: out.Runnable[:0], Changed: out.Changed[:0], Lost: out.Lost[:0], Retired: out.Retired[:0],
	}
}

func (out *Outcome) violate(rule, format string, args ...any) {
	if out.Violation == nil {
		out.Violation = violated(rule, format, args...)
	}
}
