package protocol

// EventKind tells events apart.
type EventKind uint8

const (
	// EventFault: a thread of Client waits for Access to Object, a page. Client 0: nobody waits,
	// the page is fetched in advance. The same fault may be reported any number of times.
	EventFault EventKind = iota + 1
	// EventMessage: Message has arrived from Message.From. Messages may arrive in any order, each
	// exactly once; but a BarrierCancel must not overtake what it withdraws, a NameRequest must not
	// overtake an earlier one of the same program, and what takes an object away or has it sent to
	// others (a Forward, an Invalidate, a Multicast without contents) must not overtake a Grant of
	// it that the same node sent before.
	EventMessage
	// EventCompleted: the effect Install, Map, MakeWritable, Downgrade, Revoke or Lost (named by
	// Effect) on Object has taken effect. Anew, with Lost: nobody was told, because the host has
	// contents with which the page can begin anew. Threads wait on for Access, that of the effect.
	EventCompleted
	// EventHoldOver: the time of an EffectHold has passed.
	EventHoldOver

	// EventAcquire: Client asks for Access to Object, a lock; EffectComplete with Ticket answers.
	// Repair, with Write: it takes the lock also if the program that held it last died holding it.
	EventAcquire
	// EventRelease: Client gives back Access to Object, a lock, that it holds. Unrepaired: it was
	// given that with StatusOwnerDied and Rank, and has not repaired what the lock protects.
	EventRelease
	// EventArrive: Client arrives at barrier Object, with Parties, Rank, Fold and Payload;
	// EffectComplete answers.
	EventArrive
	// EventName: Client binds or unbinds a name, as Payload says (see NameCall); EffectComplete
	// answers.
	EventName
	// EventCancel: Client waits no longer for Ticket. EffectComplete with StatusCanceled answers,
	// unless the ticket was completed already.
	EventCancel
	// EventClientGone: Client (with Rank) has ended. Its locks pass on marked with its death.
	EventClientGone
	// EventFreed: the effect Free is done.
	EventFreed
	// EventFreePhase, where a node has several partitions (Config.Partitions): to partition 0, that
	// all partitions of the node have done their part of Phase of freeing Count pages from Object
	// on, in Epoch; to another, that it has to do its part. EffectFreePhase follows there. One of
	// an epoch that is over is too late for anything.
	EventFreePhase
	// EventBound, to the partitions but 0: a program of this node has bound Count pages from Object
	// on, of which Replicas are to be kept. It comes before the program can touch them.
	EventBound
	// EventInUse, to the partitions but 0: which memory was in use when Epoch began, as Payload of
	// EffectInUse.
	EventInUse
	// EventSynchronised: a program of the node has synchronised by a call that another
	// partition has served.
	EventSynchronised
	// EventCommit: what programs of this node have written to replicated memory is to be at its
	// backups before EffectComplete answers Ticket of Client.
	EventCommit

	// EventEvict: the host has no room for the copy of Object, a page. One for reading is dropped
	// if it is certain that another node has the page; else the page is offered to Node, if that is
	// a member that stays. Nothing follows if something is under way about the page.
	EventEvict
	// EventAccept: the host has room for Object, a page that was offered: as EventFault for Write,
	// of no client, except that the others know that the page only moves.
	EventAccept
	// EventDecline: the host has no room for Object, a page that Node has offered.
	EventDecline

	// EventEpoch: the nodes have agreed that they are Members, this one among them, and to call
	// that Epoch. Nothing that comes from others counts from here on. Homes, some of the members,
	// keep directory entries; the other members are leaving, and what only they have is handed over
	// to homes (see EffectHandedOver). They have no programs any more: a thread there that wants
	// access waits for good. EffectResumed follows when the protocol has recovered, unless another
	// EventEpoch comes before.
	//
	// Epochs grow. A member that was in no view before, or was left out of one, is a process that
	// knows nothing (see Config.Outside), and comes in by a view that begins when some member's
	// recovery for the view before is over, and that leaves nobody out.
	EventEpoch

	eventEnd
)

// Event is what happens to an engine. Only the fields that its kind names have meaning.
type Event struct {
	Kind   EventKind
	Access Access
	Effect EffectKind // EventCompleted
	// EventFault: which thread of the node, never 0; to notice which access has got through
	Thread  uint32
	Offset  uint32 // EventFault: where in the page, if that is known
	Client  ClientID
	Now     Time // always
	Object  ObjectID
	Ticket  Ticket
	Parties uint32
	Rank    uint32
	Fold    Fold // EventArrive: fits Payload
	Repair  bool // EventAcquire
	Anew    bool // EventCompleted
	// Unrepaired is of EventRelease.
	Unrepaired bool
	Payload    []byte
	Message    *Message
	Count      uint64   // EventFreePhase, EventBound: pages
	Phase      uint32   // EventFreePhase
	Replicas   uint8    // EventBound: as in NameCall
	Node       NodeID   // EventEvict, EventDecline
	Epoch      uint32   // EventEpoch: greater than that of all before; EventFreePhase, EventInUse
	Members    []NodeID // EventEpoch: in ascending order
	Homes      []NodeID // EventEpoch: in ascending order, at least one; nil: all members
	// Orderly, of EventEpoch: all that are members no longer had been leaving, and left when every
	// member of the view before had handed over all in that. Not to know it costs only copies.
	Orderly bool
}

// synchronises reports whether the event may be one by which a program orders what it has stored
// before what others load.
func (ev *Event) synchronises() bool {
	return ev.Kind == EventAcquire || ev.Kind == EventRelease || ev.Kind == EventArrive || ev.Kind == EventSynchronised
}

// EffectKind tells effects apart.
type EffectKind uint8

const (
	// EffectSend: send Message, with the contents of the page from Source, unless that is
	// SourceNone. Of contents that are all zeros the message may say so instead
	// (Message.ZeroPage).
	EffectSend EffectKind = iota + 1
	// EffectInstall: make the page present with Access and the contents from Source. Threads that
	// wait for the page are woken. EventCompleted follows.
	EffectInstall
	// EffectStash: keep the contents that came with this event's message until EffectInstall.
	EffectStash
	// EffectMap: the page is present with Access: settle a fault of Client, or wake all threads
	// that wait for the page if Client is 0. Access None: the page is being freed, only wake who
	// waits. EventCompleted follows.
	EffectMap
	// EffectMakeWritable: the page, present for reading, becomes writable. EventCompleted follows.
	EffectMakeWritable
	// EffectDowngrade: the page becomes read-only, because node Heir will read it; NoNode: it is
	// committed. EventCompleted follows.
	EffectDowngrade
	// EffectRevoke: the page becomes absent. Save: its contents are kept as SourceSaved, most
	// likely for a Grant to node Heir. EventCompleted follows.
	EffectRevoke
	// EffectHold: report EventHoldOver for Object in After microseconds.
	EffectHold
	// EffectComplete: answer Ticket of Client with Status, Rank (StatusOwnerDied, StatusUnrepaired:
	// of the dead owner) and Payload.
	EffectComplete
	// EffectFree: drop Count pages from Object on; EventFreed follows.
	EffectFree
	// EffectFreePhase, where a node has several partitions: this one has done its part of Phase of
	// freeing Count pages from Object on, in Epoch. The host of partition 0 has the others do
	// theirs, and reports EventFreePhase when they have; that of another tells the host of
	// partition 0.
	EffectFreePhase
	// EffectInUse, of partition 0 where a node has several: the host has the others know by
	// EventInUse which memory was in use, without which their recovery for Epoch does not end.
	EffectInUse
	// EffectReject: Message can not be explained by any state of a correct peer. Reason says why.
	// The engine has ignored it; the host should part with Message.From.
	EffectReject
	// EffectLost: the only copy of the page was on node Rank, which is lost. All threads that wait
	// for the page, and all that touch it from here on, are told so by a fault, until it is freed.
	// EventCompleted follows. Access is what was asked for.
	EffectLost
	// EffectBackup: keep a backup of the page with the contents from Source, in place of the one
	// that there is, until EffectFree.
	EffectBackup
	// EffectResumed: the recovery that began with EventEpoch is over on this node; Count is the
	// epoch.
	EffectResumed
	// EffectHandedOver, after each recovery: of all that has its home here, members that are not
	// leaving have a copy too, and those that keep backups have those that this node had to copy.
	// Count is the epoch. It follows once on EffectResumed, on all members, if some are leaving:
	// when all have it, those can go.
	EffectHandedOver

	// EffectOffered: node Heir has no room for the page, which it owns. If the host has, it reports
	// EventAccept, else EventDecline.
	EffectOffered
	// EffectDeclined: node Heir has no room for the page that was offered to it, or does not want
	// it.
	EffectDeclined

	effectEnd
)

// Source says where the contents of a page are that an effect needs.
type Source uint8

const (
	SourceNone    Source = iota // none are needed
	SourceZeros                 // they are zeros
	SourceFirst                 // it begins, or begins anew: zeros, or what the host knows better
	SourceMessage               // they came with this event's message
	SourceStash                 // EffectStash has kept them, for this effect alone
	SourceSaved                 // the last EffectRevoke has kept them, for this effect alone
	SourceBackup                // they are those of this node's backup of the page
	SourcePage                  // the page is present, and can't be written
)

// arriving is where contents are of which a message says that it brings them.
func arriving(c Contents) Source {
	return [...]Source{SourceNone, SourceMessage, SourceZeros, SourceFirst}[c]
}

// Effect is what an engine wants done. The host carries out the effects of one Step in order.
type Effect struct {
	Kind   EffectKind
	Access Access
	Source Source
	Save   bool
	// EffectRevoke: a writer takes the page although no program of this node has synchronised since
	// it came
	Contended bool
	Moves     bool   // EffectRevoke: the page was offered, and nobody at Heir is known to want it
	Heir      NodeID // EffectRevoke, EffectDowngrade, EffectOffered, EffectDeclined
	Status    Status
	Client    ClientID
	After     Time
	Rank      uint32
	Object    ObjectID
	Count     uint64
	Phase     uint32 // EffectFreePhase
	Epoch     uint32 // EffectFreePhase, EffectInUse
	Ticket    Ticket
	Payload   []byte
	Reason    string
	Message   Message
}

// Status is the answer to a client's call.
type Status uint8

const (
	StatusOK Status = iota
	// StatusCanceled: the wait was ended by EventCancel.
	StatusCanceled
	// StatusOwnerDied: the lock is granted to a client that repairs. The program that held it last
	// for writing died holding it, and nobody has repaired what it protects. If its whole node was
	// lost, the rank is LostRank of that node, and whether one of its programs held the lock, or
	// had held it last, is not known.
	StatusOwnerDied
	// StatusMismatch: another rank gave another type, length or number of parties. Payload says
	// what it gave.
	StatusMismatch
	// StatusNoSpace: the region has no room for an allocation of this size; or one of the limits of
	// this package is reached, and Payload says which. A reduction that is too large for one
	// message has no Payload.
	StatusNoSpace
	// StatusUnknown: the name is not bound, or the lock is not held.
	StatusUnknown
	// StatusNodeLost: a node was lost that had a part in this: nobody can tell who has passed the
	// barrier.
	StatusNodeLost
	// StatusUnrepaired: the lock is not granted. It is as with StatusOwnerDied, and the client does
	// not repair.
	StatusUnrepaired

	statusEnd
)

const lostRank = 1 << 31

// LostRank stands for the rank of a program that may have died with its node, in StatusOwnerDied
// and StatusUnrepaired.
func LostRank(n NodeID) uint32 { return lostRank | uint32(n) }

// LostNode is the node of which LostRank made the rank; false if it was made of none.
func LostNode(rank uint32) (NodeID, bool) { return NodeID(rank &^ lostRank), rank&lostRank != 0 }
