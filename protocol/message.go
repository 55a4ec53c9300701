package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Kind tells messages apart.
type Kind uint8

const (
	// Request goes from a node that wants access to the object's home. FlagHasCopy: it holds a read
	// copy, so that no contents need travel.
	Request Kind = iota + 1
	// Forward goes from the home to the node that supplies the object to Requester. For Read the supplier
	// becomes (or stays) a reader; for Write it gives up its copy. Acks is passed on in the Grant.
	Forward
	// Invalidate goes from the home to a reader: give up the copy, then tell Requester.
	Invalidate
	// InvalidateAck goes from a reader that has given up its copy to the node that will write.
	InvalidateAck
	// Grant goes to the requester, from the supplier or the home. Contents: FlagData (the page
	// travels beside the message), FlagZero (it is all zeros), or neither (the requester
	// has it already). Acks says how many InvalidateAcks must arrive before the grant takes effect.
	Grant
	// Done goes from the requester to the home: the grant has taken effect.
	Done

	// BarrierArrive goes from a node to the barrier's home: Ticket has arrived, with a Payload to gather.
	BarrierArrive
	// BarrierCancel withdraws Ticket from a barrier, if it was not released yet.
	BarrierCancel
	// BarrierRelease goes from the home to each arrived ticket; Payload is all payloads, in the order of ranks.
	BarrierRelease
	// BarrierGather goes from a node to the one above it in the tree of a home, Requester: arrivals and cancels of nodes there and below, put together.
	BarrierGather
	// BarrierGatherAck answers it: the next may come.
	BarrierGatherAck
	// BarrierSpread goes down the tree of a home, Requester: all who are named have been released. Ticket is a number by which the home knows the release.
	BarrierSpread
	// BarrierSpreadAck answers it, when all below have heard it.
	BarrierSpreadAck

	// NameRequest goes to the directory of names: bind or unbind a name of shared memory.
	NameRequest
	// NameReply answers it.
	NameReply
	// Forget goes from the directory of names to all nodes: drop a run of pages that was freed.
	Forget
	// ForgetAck answers it.
	ForgetAck

	// Lost goes from the home to the requester in place of a Grant: the only copy of the page was on node Rank, which is lost.
	Lost
	// Backup goes from the owner of a page of replicated memory to each node that keeps a backup of it, with the contents (FlagData or
	// FlagZero). Aux is the epoch, Rank how many lost nodes the page is to survive. With FlagBackup it is a copy of a backup, for a node that may have none, and Ticket its version; without
	// contents it asks for an acknowledgement when the commit has come that made that version.
	Backup
	// BackupAck answers it.
	BackupAck
	// EpochMark goes from each member of a new view to each other: what I say from here on is said in epoch Aux.
	EpochMark
	// ReportHeld goes from each member to each: what it holds of the objects whose home that is in epoch Aux. Ticket is how many of them there are.
	ReportHeld
	// ReportBound goes from the directory of names to all members: the runs of memory that were in use. Ticket is how many of them there are.
	ReportBound
	// EpochReady goes from each member to each: my part of the directory stands in epoch Aux.
	EpochReady

	kindEnd
)

var kindNames = [kindEnd]string{
	Request: "Request", Forward: "Forward", Invalidate: "Invalidate", InvalidateAck: "InvalidateAck",
	Grant: "Grant", Done: "Done", BarrierArrive: "BarrierArrive", BarrierCancel: "BarrierCancel",
	BarrierRelease: "BarrierRelease", BarrierGather: "BarrierGather", BarrierGatherAck: "BarrierGatherAck", BarrierSpread: "BarrierSpread", BarrierSpreadAck: "BarrierSpreadAck",
	NameRequest: "NameRequest", NameReply: "NameReply",
	Forget: "Forget", ForgetAck: "ForgetAck", Lost: "Lost", Backup: "Backup", BackupAck: "BackupAck", EpochMark: "EpochMark", ReportHeld: "ReportHeld", ReportBound: "ReportBound", EpochReady: "EpochReady",
}

func (k Kind) String() string {
	if k < kindEnd && kindNames[k] != "" {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// hasPayload says whether messages of the kind have a payload.
func (k Kind) hasPayload() bool {
	switch k {
	case BarrierArrive, BarrierRelease, BarrierGather, BarrierSpread, NameRequest, NameReply, Forget, ReportHeld, ReportBound:
		return true
	}
	return false
}

// Flags of a Message.
type Flags uint8

const (
	FlagHasCopy   Flags = 1 << iota // Request: the requester holds a read copy
	FlagData                        // Grant, Backup: the page's contents travel beside the message
	FlagZero                        // Grant, Backup: the contents are all zeros
	FlagOwnerDied                   // Grant of a lock: its last holder died holding it; Aux is that program's rank
	FlagBackup                      // Forward: nobody has the page, give it from your backup. Grant: the contents are those of a backup, the receiver's own if none come. Backup: a copy of that of the sender

	flagsAll = FlagHasCopy | FlagData | FlagZero | FlagOwnerDied | FlagBackup
)

// Message is what engines say to each other. Page contents never are part of it.
type Message struct {
	Kind      Kind
	Access    Access // Request, Forward, Grant, Done
	Flags     Flags
	From, To  NodeID
	Requester NodeID   // Forward, Invalidate: who gets the object. BarrierGather…, BarrierSpread…: the home whose tree it is
	Acks      uint16   // Forward, Grant: InvalidateAcks that the requester must wait for
	Status    Status   // BarrierRelease, NameReply
	Object    ObjectID // or the hash of a barrier's name, or the first page of a run
	Ticket    Ticket   // Barrier…, Name…; Report…: how many there are. Backup: see FlagBackup
	Aux       uint32   // Grant: see FlagOwnerDied. BarrierArrive: parties. Backup…, EpochMark, Report…, EpochReady: the epoch
	Rank      uint32   // BarrierArrive: the arriving program's rank, which orders payloads. Lost: the node. Backup: of how many the loss is to be survived
	Payload   []byte   // Barrier…, Name…, Forget…, Report…; at most MaxPayload bytes
}

// headerBytes is the length of a Message without its payload on the wire.
const headerBytes = 40

// MaxPayload bounds Message.Payload, in bytes. A BarrierSpread of the longest result to every node is the largest.
const MaxPayload = MaxResult + 4 + MaxNodes*addresseeBytes

// MaxResult bounds what is answered to a call, in bytes. A reduction over MaxNodes ranks with MaxContribution bytes each is the longest.
const MaxResult = MaxNodes * MaxContribution

// MaxContribution bounds what one party may bring to a reduction, in bytes.
const MaxContribution = 64

// ErrMalformed is wrapped by all errors of DecodeMessage.
var ErrMalformed = errors.New("protocol: malformed message")

// AppendMessage appends m in wire form (little-endian, fixed header, payload). To is not sent: it is
// whoever receives.
func AppendMessage(b []byte, m *Message) []byte {
	b = append(b, byte(m.Kind), byte(m.Access), byte(m.Flags), byte(m.Status))
	b = binary.LittleEndian.AppendUint16(b, uint16(m.From))
	b = binary.LittleEndian.AppendUint16(b, uint16(m.Requester))
	b = binary.LittleEndian.AppendUint16(b, m.Acks)
	b = binary.LittleEndian.AppendUint16(b, 0)
	b = binary.LittleEndian.AppendUint32(b, m.Aux)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.Object))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.Ticket))
	b = binary.LittleEndian.AppendUint32(b, m.Rank)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m.Payload)))
	return append(b, m.Payload...)
}

// DecodeMessage reads what AppendMessage wrote. It accepts nothing else, never panics, and checks all that can
// be checked without state; Engine.Step checks the rest. m.Payload points into b.
func DecodeMessage(b []byte) (Message, error) {
	if len(b) < headerBytes {
		return Message{}, fmt.Errorf("%w: %d bytes, a header has %d", ErrMalformed, len(b), headerBytes)
	}
	m := Message{
		Kind: Kind(b[0]), Access: Access(b[1]), Flags: Flags(b[2]), Status: Status(b[3]),
		From:      NodeID(binary.LittleEndian.Uint16(b[4:])),
		Requester: NodeID(binary.LittleEndian.Uint16(b[6:])),
		Acks:      binary.LittleEndian.Uint16(b[8:]),
		Aux:       binary.LittleEndian.Uint32(b[12:]),
		Object:    ObjectID(binary.LittleEndian.Uint64(b[16:])),
		Ticket:    Ticket(binary.LittleEndian.Uint64(b[24:])),
		Rank:      binary.LittleEndian.Uint32(b[32:]),
	}
	n := binary.LittleEndian.Uint32(b[36:])
	switch {
	case m.Kind == 0 || m.Kind >= kindEnd:
		return Message{}, fmt.Errorf("%w: unknown kind %d", ErrMalformed, b[0])
	case m.Access > Write:
		return Message{}, fmt.Errorf("%w: %v with unknown access %d", ErrMalformed, m.Kind, b[1])
	case m.Flags&^flagsAll != 0:
		return Message{}, fmt.Errorf("%w: %v with unknown flags %#x", ErrMalformed, m.Kind, b[2])
	case m.Status >= statusEnd:
		return Message{}, fmt.Errorf("%w: %v with unknown status %d", ErrMalformed, m.Kind, b[3])
	case binary.LittleEndian.Uint16(b[10:]) != 0:
		return Message{}, fmt.Errorf("%w: %v with reserved bits set", ErrMalformed, m.Kind)
	case m.Acks > MaxNodes:
		return Message{}, fmt.Errorf("%w: %v with %d acks, a cluster has at most %d nodes", ErrMalformed, m.Kind, m.Acks, MaxNodes)
	case n > 0 && !m.Kind.hasPayload():
		return Message{}, fmt.Errorf("%w: %v with a payload of %d bytes", ErrMalformed, m.Kind, n)
	case n > MaxPayload || int(n) != len(b)-headerBytes:
		return Message{}, fmt.Errorf("%w: %v says %d payload bytes and carries %d", ErrMalformed, m.Kind, n, len(b)-headerBytes)
	}
	if n > 0 {
		m.Payload = b[headerBytes:]
	}
	return m, nil
}
