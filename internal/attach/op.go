package attach

// Op is what a Call asks for.
type Op uint8

const (
	// OpAcquire: wait for the lock Object with Access. Reply: StatusOK or StatusByWord, which grant
	// it; or StatusUnrepaired with Rank, which does not.
	OpAcquire Op = iota + 1
	// OpRelease: give back the lock Object, held with Access. Ticket is 0; no Reply. Count is 0, or
	// 1 + the Rank of the StatusOwnerDied that granted the lock, if what it protects is not
	// repaired.
	OpRelease
	// OpArrive: arrive at the barrier Object of Parties parties, bringing Payload, which is empty
	// unless the barrier is a reduction. Reply: all payloads in the order of ranks, or what Fold
	// makes of them; StatusNodeLost, at once, if more ranks of the job are lost than Count, which
	// the program knows of; StatusMismatch if the payload is not what Fold is for.
	OpArrive
	// OpBind: find or make the memory called Name: Count elements of ElemBytes each. TypeHash
	// decides whether types are the same, and Signature describes the type. All ranks must agree on
	// Call.Identity. Access is Read, or none, if it begins with what is in files (OpContents), and
	// may be more than there is memory for. Reply: AppendPages, a run of Call.Pages pages; or
	// StatusMismatch with the identity that the name has; or StatusNoSpace.
	OpBind
	// OpUnbind: this program needs the memory called Name no longer. Reply: StatusOK or
	// StatusUnknown.
	OpUnbind
	// OpKeep: keep the memory called Name, which this program has bound, until OpDiscard, also when
	// nobody uses it any more. Reply: StatusOK or StatusUnknown.
	OpKeep
	// OpDiscard: the memory called Name need not stay, whoever uses it. Reply, after the pages are
	// free if nobody does: StatusOK or StatusUnknown.
	OpDiscard
	// OpPrefetch: fetch Count pages from page number Object on, with Access. Reply when they are
	// here.
	OpPrefetch
	// OpPin: OpPrefetch, and the pages stay here until OpUnpin. Reply when all are held: StatusOK;
	// StatusNoSpace if the program would hold too many; StatusUnknown if they are no allocated part
	// of the region.
	OpPin
	// OpUnpin: give back what the OpPin with the ticket Object holds. Ticket is 0; no Reply.
	OpUnpin
	// OpCancel: end the wait of the call Ticket. That call's Reply comes, no other.
	OpCancel
	// OpStats: tell the daemon's counters. Reply: AppendCounters.
	OpStats
	// OpLostPage: is the page with number Object lost? Reply: StatusOK with the node in Rank that
	// had its only copy, or StatusUnknown if it is not known to be lost.
	OpLostPage
	// OpLostRanks: which ranks of the program's job were lost with their nodes since it attached?
	// Reply: AppendRanks.
	OpLostRanks
	// OpDrain: let the node leave the cluster, after it has handed over all that others need. Reply
	// when it has left, and then the daemon ends; or StatusUnknown, with the reason why it does not
	// leave as payload. When the node has left, files that the program has given (OpFile) stay open
	// until the daemon's process has ended.
	OpDrain
	// OpCommit: send what was written on this node to replicated memory to the nodes that keep its
	// backups. Reply when they have it: StatusOK.
	OpCommit
	// OpRepair: OpAcquire with Write, and the lock is granted also if its last holder died holding
	// it. Reply: StatusOK, StatusByWord, or StatusOwnerDied with Rank; all grant it.
	OpRepair
	// OpTry: OpAcquire, and if the lock is at this node and somebody here holds it, or waits for
	// it, the Reply is StatusHeld, at once.
	OpTry
	// OpUsage: count how many pages of each allocation are at this node. A program has at most one
	// of these open. Reply, when all pages are counted: AppendUsage.
	OpUsage
	// OpFile: keep the descriptor that comes with this frame for a later call. Reply: its number in
	// Rank. A program has at most MaxFiles that no call has taken.
	OpFile
	// OpCheckpoint: have the pages of an Order saved as they are now. Object is the number of the
	// file that they are written to, and Count that of the memory file that has the Order; both are
	// the daemon's from here on. Payload: AppendCheckpoint. Reply when no program of this node can
	// change one of them any more before it is saved: StatusOK, and the order has what this node
	// saves; or StatusUnknown with a text.
	OpCheckpoint
	// OpSaved: wait until all is written that OpCheckpoint has begun. If Count is SavedTwice, the
	// order's bits are by now those of pages that another node saves, too. If it is GiveUpSaving,
	// give it up, and wait only for what the disk has been given. Reply: StatusOK with AppendSaved,
	// and the order has the index; or StatusUnknown with a text.
	OpSaved
	// OpContents: Count pages from page number Object on begin with what is in files, and not with
	// zeros. Payload: AppendContents; the files are the daemon's from here on. Reply: StatusOK, or
	// StatusUnknown with a text.
	OpContents
	// OpFallback: from here on lost pages begin anew with the contents whose ID is the payload, of
	// all memory for which OpContents has given them. Reply, at once: StatusOK.
	OpFallback
	// OpPrograms: which programs are attached to this daemon. Reply, at once: AppendPrograms.
	OpPrograms
	// OpFaultLog: tell what the log of faults has from place Object on, and keep it for some
	// seconds more, with the faultlog.Detail in Count, or what another reader wants besides. Each
	// reactor has a log; FaultLogOf makes Count for one of them. A program is told of its own
	// faults, an observer of all, and both of all departures that there are. Reply, at once: a
	// faultlog.Batch.
	OpFaultLog
	// OpName: the program calls the lock or barrier Object by Name, which is cut to MaxCalled bytes
	// and may be empty. The daemon keeps the first MaxNames names for as long as the program is
	// attached, and says by them what is waited for. Reply, at once: StatusOK.
	OpName
	// OpWaits: what have threads of this node waited for? Reply, at once: AppendWaits.
	OpWaits
	// OpStacks: have the program of this daemon that is process Count, as OpPrograms lists it,
	// write its stacks to the file with the number Object, which is the daemon's from here on.
	// Reply, at once: AppendTellBody with what the daemon knows of the program; or StatusUnknown if
	// there is none.
	OpStacks

	opEnd
)

var opNames = [opEnd]string{
	OpAcquire: "Acquire", OpRelease: "Release", OpArrive: "Arrive", OpBind: "Bind", OpUnbind: "Unbind", OpKeep: "Keep", OpDiscard: "Discard",
	OpPrefetch: "Prefetch", OpPin: "Pin", OpUnpin: "Unpin", OpCancel: "Cancel", OpStats: "Stats", OpLostPage: "LostPage", OpLostRanks: "LostRanks",
	OpDrain:  "Drain",
	OpCommit: "Commit", OpRepair: "Repair", OpTry: "Try", OpUsage: "Usage",
	OpFile: "File", OpCheckpoint: "Checkpoint", OpSaved: "Saved", OpContents: "Contents", OpFallback: "Fallback", OpPrograms: "Programs", OpName: "Name", OpWaits: "Waits",
	OpFaultLog: "FaultLog", OpStacks: "Stacks",
}

func (o Op) String() string { return nameOf(o, "Op", opNames[:]) }

// TakesLock is whether the op asks for a lock.
func (o Op) TakesLock() bool { return o == OpAcquire || o == OpRepair || o == OpTry }

// FaultLogOf is the Count of an OpFaultLog that is for one of the daemon's reactors.
func FaultLogOf(reactor int, detail uint8) uint64 { return uint64(reactor)<<8 | uint64(detail) }

// FaultLogIn is what FaultLogOf has put into a Count. The daemon may have no such reactor.
func FaultLogIn(count uint64) (reactor uint64, detail uint64) { return count >> 8, count & 0xff }
