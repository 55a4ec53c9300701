package protocol

// Kind tells messages apart. Each has a type of its own, with the same name, which says what it is
// about and names its fields: To makes a Message of that, and the Message's As… gives it back.
type Kind uint8

const (
	KindRequest Kind = iota + 1
	KindForward
	KindInvalidate
	KindInvalidateAck
	KindVerify
	KindGrant
	KindDone
	KindMulticast
	KindMulticastAck
	KindMulticastEnd
	KindOffer
	KindDecline

	KindBarrierArrive
	KindBarrierCancel
	KindBarrierRelease
	KindBarrierOpen
	KindBarrierCombine
	KindBarrierCombineAck
	KindBarrierBroadcast
	KindBarrierBroadcastAck

	KindNameRequest
	KindNameReply
	KindFree
	KindFreeAck

	KindLost
	KindBackup
	KindBackupAck
	KindBackupCopy
	KindBackupCopyAck
	KindEpochMarker
	KindReportHeld
	KindReportBound
	KindEpochReady

	kindEnd
)

// Request goes from a node that wants access to the object's home. HasCopy: it holds a read copy,
// so that no contents need travel. Anew: if the page is lost it begins anew, with the requester.
type Request struct {
	Access        Access
	HasCopy, Anew bool
	Moves         bool // the page was offered for want of room, and nobody is known to want it
}

// Forward goes from the home to the node that supplies the object to Requester. For Read the
// supplier becomes (or stays) a reader; for Write it gives up its copy. Acks is passed on in the
// Grant. Backup: nobody has the page; it is supplied from the backup.
type Forward struct {
	Access    Access
	Requester NodeID
	Backup    bool
	Acks      uint16
	Moves     bool // as in the Request
}

// Invalidate goes from the home to a reader: give up the copy, then tell Requester. Where there are
// many readers it has Others, in ascending order and two bytes each: pass it on to them, and tell
// Requester when they have given up their copies, too. A reader to which it is passed on tells the
// one that has done so.
type Invalidate struct {
	Requester NodeID
	Others    []byte
	Moves     bool // as in the Request
}

// InvalidateAck goes from a reader that has given up its copy to the node that will write, or to
// the one that has passed the Invalidate on. Died is as in a Grant.
type InvalidateAck struct{ Died uint32 }

// Verify goes from a reader to the home: I was told by another reader that Requester is to have the
// object; is it so? An Invalidate answers it.
type Verify struct {
	Requester NodeID
	Moves     bool // as in the Invalidate that it was told, and in the answer
}

// Grant goes to the requester, from the supplier or the home. Without Contents the requester has
// the page already. Acks says how many InvalidateAcks must arrive before it takes effect.
type Grant struct {
	Access   Access
	Contents Contents
	// Backup: the contents are those of a backup, the receiver's own if none come.
	Backup bool
	Acks   uint16
	// Died is 1 + the rank of the program that held the lock last, and died holding it; 0: none.
	Died uint32
}

// Done goes from the requester to the home: the grant has taken effect. Died is that of the grant:
// the home remembers that the lock is marked, for when all who have it are lost.
type Done struct {
	Access Access
	Died   uint32
}

// Multicast goes down the tree of Root, which has the page: whoever waits to read the page takes it
// from here, and all pass it on. Without Contents it goes from the home to Root: begin.
type Multicast struct {
	Root     NodeID
	Contents Contents
}

// MulticastAck goes back up, when all below have heard it. Takers are those who have taken the
// page, two bytes each.
type MulticastAck struct{ Takers []byte }

// MulticastEnd goes from the home to Root, and down its tree: the requests of those in Served, two
// bytes each, are over.
type MulticastEnd struct {
	Root   NodeID
	Served []byte
}

// Offer goes from a node that has no room for a page that it owns to one that may have: ask for it.
// Frees is how many runs of memory have been freed, as far as the sender knows (see reclaim), so
// that an offer is not taken for one of memory that came afterwards. Of replicated memory it says
// how many lost nodes that is to survive, and which pages it is (AppendRun): the receiver may not
// have bound it, and has to commit the page all the same.
type Offer struct {
	Frees, Copies uint32
	Run           []byte
}

// Decline answers it: this node has no room either.
type Decline struct{}

// BarrierArrive goes from a node to the barrier's home: Ticket has arrived. Rank orders what each
// contributes, and Fold says what becomes of it.
type BarrierArrive struct {
	Ticket        Ticket
	Parties, Rank uint32
	Fold          Fold
	Contribution  []byte
}

// BarrierCancel withdraws Ticket from a barrier, if it was not released yet.
type BarrierCancel struct{ Ticket Ticket }

// BarrierRelease goes from the home to one arrived ticket: the answer to it alone, or the release
// where not all are named. Result is all contributions, in the order of ranks, or what their Fold
// makes of them.
type BarrierRelease struct {
	Status Status
	Ticket Ticket
	Result []byte
}

// BarrierOpen goes from the home to each node on which somebody has arrived: all who are named,
// here and elsewhere, are released. If the home is lost, those who have heard it tell the others.
type BarrierOpen struct {
	Status   Status
	Releases []byte
}

// BarrierCombine goes from a node to the one above it in the tree of a home, Root: arrivals and
// cancels of nodes there and below, put together.
type BarrierCombine struct {
	Root     NodeID
	Arrivals []byte
}

// BarrierCombineAck answers it: the next may come.
type BarrierCombineAck struct{ Root NodeID }

// BarrierBroadcast goes down the tree of a home, Root: all who are named have been released. Serial
// is a number by which the home knows the release.
type BarrierBroadcast struct {
	Root     NodeID
	Status   Status
	Serial   Ticket
	Releases []byte
}

// BarrierBroadcastAck answers it, when all below have heard it.
type BarrierBroadcastAck struct {
	Root   NodeID
	Serial Ticket
}

// NameRequest goes to the allocator: Call is a NameCall.
type NameRequest struct {
	Ticket Ticket
	Call   []byte
}

// NameReply answers it.
type NameReply struct {
	Status Status
	Ticket Ticket
	Answer []byte
}

// Free goes from the allocator to all nodes: the next phase of dropping a run of pages
// that was freed.
type Free struct {
	Phase uint32
	Run   []byte
}

// FreeAck answers it.
type FreeAck struct{ Phase uint32 }

// Lost goes from the home to the requester in place of a Grant: the only copy of the page was on
// Node, which is lost.
type Lost struct{ Node NodeID }

// Backup goes from the owner of a page of replicated memory to each node that keeps a backup of it,
// with the contents. The page is to survive the loss of Copies nodes.
type Backup struct {
	Contents      Contents
	Epoch, Copies uint32
}

// BackupAck answers it.
type BackupAck struct{ Epoch uint32 }

// BackupCopy goes from a node that keeps a backup to one that may have none. Without Contents it
// asks for an acknowledgement when the commit of this epoch has come that made that version.
type BackupCopy struct {
	Contents      Contents
	Epoch, Copies uint32
	Made, Commits uint32 // the version: in which epoch it was made, by which commit there
}

// BackupCopyAck answers it.
type BackupCopyAck struct{ Epoch uint32 }

// EpochMarker goes from each member of a new view to each other: what I say from here on is said in
// this epoch.
type EpochMarker struct{ Epoch uint32 }

// ReportHeld goes from each member to each, in so many Pieces: what it holds of the objects whose
// home that is in this epoch.
type ReportHeld struct {
	Pieces, Epoch uint32
	Records       []byte
}

// ReportBound goes from the allocator to all members, in so many Pieces: the runs of memory that
// were in use. What the allocator was asked before the epoch Since, it has forgotten.
type ReportBound struct {
	Pieces, Epoch, Since uint32
	Runs                 []byte
}

// EpochReady goes from each member to each: my part of the directory stands in this epoch.
type EpochReady struct{ Epoch uint32 }

// Contents says what a Grant or a Backup brings of a page.
type Contents uint8

const (
	NoContents   Contents = iota
	PageContents          // they travel beside the message
	ZeroContents          // they are all zeros
	// nobody has changed the page, or it begins anew, and it has what it begins with: zeros, unless
	// the host knows better
	FirstContents
)
