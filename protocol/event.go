package protocol

// EventKind tells events apart.
type EventKind uint8

const (
	// EventFault: a thread of Client waits for Access to Object, a page. Client 0: nobody waits, the page is
	// fetched in advance. The same fault may be reported any number of times.
	EventFault EventKind = iota + 1
	// EventMessage: Message has arrived from Message.From. Messages may arrive in any
	// order, each exactly once; but what withdraws (a
	// BarrierCancel, an unbinding NameRequest) must not overtake what it withdraws, and what takes an object away (a Forward,
	// an Invalidate) must not overtake a Grant of it that the same node sent before.
	EventMessage
	// EventCompleted: the effect Install, Map, MakeWritable, Downgrade, Revoke or Lost (named by Effect) on
	// Object has taken effect.
	EventCompleted
	// EventHoldOver: the time of an EffectHold has passed.
	EventHoldOver

	// EventAcquire: Client asks for Access to Object, a lock; EffectComplete with Ticket answers.
	EventAcquire
	// EventRelease: Client gives back Access to Object, a lock, that it holds.
	EventRelease
	// EventArrive: Client arrives at barrier Object, with Parties, Rank and Payload; EffectComplete answers.
	EventArrive
	// EventName: Client binds or unbinds a name, as Payload says (see NameCall); EffectComplete answers.
	EventName
	// EventCancel: Client waits no longer for Ticket. EffectComplete with StatusCanceled answers, unless the
	// ticket was completed already.
	EventCancel
	// EventClientGone: Client (with Rank) has ended. Its locks pass on marked with its death.
	EventClientGone
	// EventForgotten: the effect Forget is done.
	EventForgotten
	// EventCommit: what programs of this node have written to replicated memory is to be at its backups before EffectComplete answers Ticket of Client.
	EventCommit

	// EventEpoch: the nodes have agreed that they are Members, this one among them, and to call that Epoch. Nothing that comes from others counts from
	// here on. Homes, some of the members, keep directory entries; the other members are leaving, and what only they have is handed over to homes (see
	// EffectHandedOver). EffectResumed follows when the protocol has recovered, unless another EventEpoch comes before.
	//
	// Epochs grow. A member that was in no view before, or was left out of one, is a process that knows nothing (see Config.Outside), and comes in by a view
	// that begins when some member's recovery for the view before is over, and that leaves nobody out.
	EventEpoch

	eventEnd
)

// Event is what happens to an engine. Only the fields that its kind names have meaning.
type Event struct {
	Kind    EventKind
	Access  Access
	Effect  EffectKind // EventCompleted
	Thread  uint32     // EventFault: which thread of the node, never 0; to notice which access has got through
	Offset  uint32     // EventFault: where in the page, if that is known
	Client  ClientID
	Now     Time // always
	Object  ObjectID
	Ticket  Ticket
	Parties uint32
	Rank    uint32
	Payload []byte
	Message *Message
	Epoch   uint32   // EventEpoch: greater than that of all before
	Members []NodeID // EventEpoch: in ascending order
	Homes   []NodeID // EventEpoch: in ascending order, at least one; nil: all members
}

// synchronises says whether the event may be one by which a program orders what it has stored before what others load.
func (ev *Event) synchronises() bool {
	return ev.Kind == EventAcquire || ev.Kind == EventRelease || ev.Kind == EventArrive
}

// EffectKind tells effects apart.
type EffectKind uint8

const (
	// EffectSend: send Message. If Message.Flags has FlagData the page's contents go with it: those
	// saved by the last Revoke of the page, or, if the page is still present, its contents now. The
	// host may send FlagZero in place of contents that are all zeros. Backup: the contents are those of the page's backup.
	EffectSend EffectKind = iota + 1
	// EffectInstall: make the page present with Access. Its contents came with the Grant: with this
	// event's message, or with the earlier one that EffectStash named. Zero: they are zeros. Save: they are those saved by the last Revoke of
	// the page, which nobody needs any more. Backup: they are those of the page's backup.
	// Threads that wait for the page are woken. EventCompleted follows.
	EffectInstall
	// EffectStash: keep the contents that came with this event's message until EffectInstall.
	EffectStash
	// EffectMap: the page is present with Access: settle a fault of Client, or wake all threads
	// that wait for the page if Client is 0. Access None: the page is being freed, only wake who waits. EventCompleted follows.
	EffectMap
	// EffectMakeWritable: the page, present for reading, becomes writable. EventCompleted follows.
	EffectMakeWritable
	// EffectDowngrade: the page becomes read-only. EventCompleted follows.
	EffectDowngrade
	// EffectRevoke: the page becomes absent. Save: its contents are kept for the next EffectSend of the page with
	// FlagData, which goes to Message.Requester. EventCompleted follows.
	EffectRevoke
	// EffectHold: report EventHoldOver for Object in After microseconds.
	EffectHold
	// EffectComplete: answer Ticket of Client with Status, Rank (StatusOwnerDied: of the dead owner) and Payload.
	EffectComplete
	// EffectForget: drop Count pages from Object on; EventForgotten follows.
	EffectForget
	// EffectReject: Message can not be explained by any state of a correct peer. Reason says why. The
	// engine has ignored it; the host should part with Message.From.
	EffectReject
	// EffectLost: the only copy of the page was on node Rank, which is lost. All threads that wait for the page, and all that touch it from here
	// on, are told so by a fault, until it is freed. EventCompleted follows.
	EffectLost
	// EffectBackup: keep a backup of the page, in place of the one that there is, until EffectForget. Its contents came with this event's message,
	// a Backup; if Message has no Kind, they are those of the page, which is present and can't be written. Zero: they are zeros.
	EffectBackup
	// EffectResumed: the recovery that began with EventEpoch is over on this node; Count is the epoch.
	EffectResumed
	// EffectHandedOver, after each recovery: of all that has its home here, members that are not leaving have a copy too, and those that keep backups have those that this node had to copy. Count is
	// the epoch. It follows once on EffectResumed, on all members, if some are leaving: when all have it, those can go. What they ask for afterwards is not counted.
	EffectHandedOver

	effectEnd
)

// Effect is what an engine wants done. The host carries out the effects of one Step in order.
type Effect struct {
	Kind    EffectKind
	Access  Access
	Zero    bool
	Save    bool
	Fought  bool // EffectRevoke: a writer takes the page although no program of this node has synchronised since it came
	Backup  bool
	Status  Status
	Client  ClientID
	After   Time
	Rank    uint32
	Object  ObjectID
	Count   uint64
	Ticket  Ticket
	Payload []byte
	Reason  string
	Message Message
}

// Status is the answer to a client's call.
type Status uint8

const (
	StatusOK Status = iota
	// StatusCanceled: the wait was ended by EventCancel.
	StatusCanceled
	// StatusOwnerDied: the lock is granted, but the program that held it last for writing died holding it, and
	// no writer has been told yet. (Several readers may be told.) If its whole node was lost, the rank is LostRank of that node, and
	// whether one of its programs held the lock, or had held it last, is not known.
	StatusOwnerDied
	// StatusMismatch: another rank gave another type, length or number of parties. Payload says what it gave.
	StatusMismatch
	// StatusNoSpace: the region has no room for an allocation of this size; or one of the limits of this package is reached, and
	// Payload says which. A reduction that is too large for one message has no Payload.
	StatusNoSpace
	// StatusUnknown: the name is not bound, or the lock is not held.
	StatusUnknown
	// StatusNodeLost: a node was lost that had a part in this: nobody can tell who has passed the barrier.
	StatusNodeLost

	statusEnd
)

const lostRank = 1 << 31

// LostRank stands for the rank of a program that may have died with its node, in StatusOwnerDied.
func LostRank(n NodeID) uint32 { return lostRank | uint32(n) }

// LostNode is the node of which LostRank made the rank; false if it was made of none.
func LostNode(rank uint32) (NodeID, bool) { return NodeID(rank &^ lostRank), rank&lostRank != 0 }
