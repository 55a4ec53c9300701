package attach

import (
	"fmt"
	"math/bits"
	"slices"
	"time"

	"dsmd/internal/wire"
)

// Access is a right to a lock or a page. The numbers are those of protocol.Access.
type Access uint8

const (
	Read  Access = 1 // shared with other readers
	Write Access = 2 // alone
)

// PinPatience is how long others wait for a pinned page before the daemon breaks the pin.
const PinPatience = time.Second

// MaxReplicas bounds the lost nodes that memory can be asked to survive. The number is that of
// package protocol.
const MaxReplicas = 7

// MaxTicket is the largest ticket; 0 names no call.
const MaxTicket = 1<<64 - 1

// Call is a program's request. Which fields an Op uses is said there; all others are zero.
type Call struct {
	Op       Op
	Replicas uint8  // OpBind: how many lost nodes the memory survives, at most MaxReplicas
	Fold     Fold   // OpArrive: what becomes of the payloads
	Access   Access // OpAcquire, OpRepair, OpTry, OpRelease, OpPrefetch, OpPin; OpBind: see there
	Parties  uint32 // OpArrive, at least 1
	Ticket   uint64 // all but OpRelease and OpUnpin, never 0
	// Name hash of a lock, barrier or allocation; OpPrefetch, OpPin, OpLostPage: page number;
	// OpContents: page number; OpUnpin: ticket; OpCheckpoint, OpFaultLog, OpStacks: see there
	Object uint64
	// OpBind: elements. OpPrefetch, OpPin, OpContents: pages, at least 1. OpArrive: ranks known to
	// be lost.
	// OpRelease, OpFaultLog, OpStacks: see there
	Count     uint64
	ElemBytes uint64 // OpBind
	TypeHash  uint64 // OpBind
	Site      uint64 // OpArrive: where in the program that is, in numbers of its own
	Name      string // OpBind, OpUnbind, OpKeep, OpDiscard: 1 to MaxName bytes. OpName: see there
	Signature string // OpBind: at most MaxSignature bytes
	// OpArrive, OpCheckpoint, OpContents, OpFallback: at most MaxContribution bytes. After decoding
	// it points into the frame
	Payload []byte
}

// check tells what is wrong with a call.
func (m *Call) check() error {
	uses := opFields[m.Op]
	switch {
	case (m.Ticket != 0) != uses.ticket:
		return fmt.Errorf("%w: %v with ticket %d", ErrMalformed, m.Op, m.Ticket)
	case uses.access && m.Access != Read && m.Access != Write, !uses.access && m.Access != 0 && (m.Op != OpBind || m.Access != Read), m.Op == OpRepair && m.Access != Write:
		return fmt.Errorf("%w: %v with access %d", ErrMalformed, m.Op, m.Access)
	case (m.Parties != 0) != (m.Op == OpArrive):
		return fmt.Errorf("%w: %v with %d parties", ErrMalformed, m.Op, m.Parties)
	case m.Fold != NoFold && m.Op != OpArrive:
		return fmt.Errorf("%w: %v with a fold", ErrMalformed, m.Op)
	case m.Replicas > MaxReplicas, m.Replicas != 0 && m.Op != OpBind:
		return fmt.Errorf("%w: %v of memory that survives the loss of %d nodes", ErrMalformed, m.Op, m.Replicas)
	case m.Object != 0 && !uses.object:
		return fmt.Errorf("%w: %v with object %#x", ErrMalformed, m.Op, m.Object)
	case m.Count != 0 && !uses.count, (m.Op == OpPrefetch || m.Op == OpPin || m.Op == OpContents) && m.Count == 0, m.Op == OpRelease && (m.Count > 1<<32-1 || m.Count != 0 && m.Access != Write):
		return fmt.Errorf("%w: %v with count %d", ErrMalformed, m.Op, m.Count)
	case (m.ElemBytes != 0 || m.TypeHash != 0 || m.Signature != "") && m.Op != OpBind:
		return fmt.Errorf("%w: %v with a type", ErrMalformed, m.Op)
	case m.Site != 0 && m.Op != OpArrive:
		return fmt.Errorf("%w: %v with a place in the program", ErrMalformed, m.Op)
	case (m.Name != "") != uses.name && m.Op != OpName, m.Op == OpName && len(m.Name) > MaxCalled:
		return fmt.Errorf("%w: %v with name %q", ErrMalformed, m.Op, m.Name)
	case uses.name && m.Object != NameHash(NameMemory, m.Name):
		return fmt.Errorf("%w: %v of %q with hash %#x, which is another name's", ErrMalformed, m.Op, m.Name, m.Object)
	case len(m.Payload) != 0 && !uses.payload:
		return fmt.Errorf("%w: %v with a payload", ErrMalformed, m.Op)
	}
	return nil
}

// Pages is how many pages of pageBytes an OpBind needs: at least one, also for no bytes, so that
// ranks which disagree about an empty allocation learn of it. ok is false if the bytes overflow 64
// bits.
func (m *Call) Pages(pageBytes uint32) (pages uint64, ok bool) {
	hi, lo := bits.Mul64(m.Count, m.ElemBytes)
	pages = lo / uint64(pageBytes)
	if lo%uint64(pageBytes) != 0 {
		pages++
	}
	return max(pages, 1), hi == 0
}

// maxIdentity bounds Identity, in bytes.
const maxIdentity = 4 << 10

// Identity is what all ranks that bind a name must agree on, as an error shows it: the number of
// elements, the type, and its hash, which decides where the type is too long to be shown whole. At
// most 4 KiB.
func (m *Call) Identity() string {
	count, hash := fmt.Sprintf("%d elements of ", m.Count), fmt.Sprintf(" (%d bytes each, layout %016x)", m.ElemBytes, m.TypeHash)
	if m.Replicas > 0 {
		hash += fmt.Sprintf(", which survive the loss of %d nodes", m.Replicas)
	}
	return count + clip(m.Signature, maxIdentity-len(count)-len(hash)) + hash
}

// opFields says which fields that several ops share an op uses.
var opFields = [opEnd]struct{ ticket, access, object, name, count, payload bool }{
	OpAcquire:  {ticket: true, access: true, object: true},
	OpRepair:   {ticket: true, access: true, object: true},
	OpTry:      {ticket: true, access: true, object: true},
	OpRelease:  {access: true, object: true, count: true},
	OpArrive:   {ticket: true, object: true, count: true, payload: true},
	OpBind:     {ticket: true, object: true, name: true, count: true},
	OpUnbind:   {ticket: true, object: true, name: true},
	OpKeep:     {ticket: true, object: true, name: true},
	OpDiscard:  {ticket: true, object: true, name: true},
	OpPrefetch: {ticket: true, access: true, object: true, count: true},
	OpPin:      {ticket: true, access: true, object: true, count: true},
	OpUnpin:    {object: true},
	OpCancel:   {ticket: true},
	OpStats:    {ticket: true},
	OpUsage:    {ticket: true},
	OpPrograms: {ticket: true},
	OpFaultLog: {ticket: true, object: true, count: true},
	OpWaits:    {ticket: true},
	OpName:     {ticket: true, object: true},
	OpStacks:   {ticket: true, object: true, count: true},

	OpLostPage:  {ticket: true, object: true},
	OpLostRanks: {ticket: true},
	OpDrain:     {ticket: true},
	OpCommit:    {ticket: true},

	OpFile:       {ticket: true},
	OpCheckpoint: {ticket: true, object: true, count: true, payload: true},
	OpSaved:      {ticket: true, count: true},
	OpContents:   {ticket: true, object: true, count: true, payload: true},
	OpFallback:   {ticket: true, payload: true},
}

// AppendCall appends m as a frame. It panics if DecodeCall would refuse m: whatever a user of the
// library does wrong must have been caught before.
func AppendCall(b []byte, m *Call) []byte {
	if m.Op == 0 || m.Op >= opEnd {
		panic(fmt.Sprintf("attach: call with unknown %v", m.Op))
	}
	if err := m.check(); err != nil {
		panic(err)
	}
	start := len(b)
	b = beginFrame(b, KindCall)
	b = append(b, byte(m.Op), byte(m.Access), m.Replicas, byte(m.Fold))
	b = le.AppendUint32(b, m.Parties)
	for _, v := range [...]uint64{m.Ticket, m.Object, m.Count, m.ElemBytes, m.TypeHash, m.Site} {
		b = le.AppendUint64(b, v)
	}
	b = appendBytes(b, m.Name, MaxName)
	b = appendBytes(b, m.Signature, MaxSignature)
	b = appendBytes(b, m.Payload, MaxContribution)
	return endFrame(b, start)
}

// appendBytes appends a field that cutBytes takes.
func appendBytes[S ~string | ~[]byte](b []byte, s S, max int) []byte {
	if len(s) > max {
		panic(fmt.Sprintf("attach: a field of %d bytes, at most %d are allowed", len(s), max))
	}
	return append(le.AppendUint16(b, uint16(len(s))), s...)
}

// cutBytes takes a field of at most max bytes off the front of b. A nil rest: there is none.
func cutBytes(b []byte, max int) (field, rest []byte) {
	if len(b) < 2 {
		return nil, nil
	}
	n, b := int(le.Uint16(b)), b[2:]
	if n > min(max, len(b)) {
		return nil, nil
	}
	return b[:n:n], b[n:]
}

// callHeadBytes is the length of a Call's body before its name.
const callHeadBytes = 4 + 4 + 6*8

// DecodeCall reads the body of a Call.
func DecodeCall(b []byte) (Call, error) {
	if len(b) < callHeadBytes {
		return Call{}, fmt.Errorf("%w: Call of %d bytes", ErrMalformed, len(b))
	}
	name, rest := cutBytes(b[callHeadBytes:], MaxName)
	signature, rest := cutBytes(rest, MaxSignature)
	payload, rest := cutBytes(rest, MaxContribution)
	if rest == nil || len(rest) > 0 {
		return Call{}, fmt.Errorf("%w: Call of %d bytes is cut short, too long, or has a field that is", ErrMalformed, len(b))
	}
	m := Call{
		Op: Op(b[0]), Access: Access(b[1]), Replicas: b[2], Fold: Fold(b[3]), Parties: le.Uint32(b[4:]), Ticket: le.Uint64(b[8:]),
		Object: le.Uint64(b[16:]), Count: le.Uint64(b[24:]), ElemBytes: le.Uint64(b[32:]), TypeHash: le.Uint64(b[40:]), Site: le.Uint64(b[48:]),
		Name: string(name), Signature: string(signature),
	}
	if len(payload) > 0 {
		m.Payload = payload
	}
	if m.Op == 0 || m.Op >= opEnd {
		return Call{}, fmt.Errorf("%w: call with unknown %v", ErrMalformed, m.Op)
	}
	if err := m.check(); err != nil {
		return Call{}, err
	}
	return m, nil
}

// Status is the outcome of a call. The numbers are those of protocol.Status; a test of the
// daemon, which imports both, compares them.
type Status uint8

const (
	StatusOK       Status = iota
	StatusCanceled        // OpCancel ended the wait
	// the lock is granted to who repairs; the program that held it last, Rank, died holding it, or
	// died with its node (OwnerNode)
	StatusOwnerDied
	// another rank gave another type, length or number of parties; the payload is a text
	StatusMismatch
	// the region has no room for this; or, if there is a payload, a limit is reached, and the text
	// says which
	StatusNoSpace
	StatusUnknown // the name is not bound, or the pages are not part of the region
	// a node was lost, and with it a rank of the job, a page, or the knowledge of who has passed a
	// barrier; the payload is a text
	StatusNodeLost
	// the lock is not granted, for the reason of StatusOwnerDied, with the same Rank
	StatusUnrepaired
	// OpAcquire, OpRepair, OpTry: the lock is granted, by the word for it on the program's control
	// page, and is given back there. No protocol.Status
	StatusByWord
	// OpTry: the lock is not granted, because it is in use. No protocol.Status
	StatusHeld

	statusEnd
)

var statusNames = [statusEnd]string{
	StatusOK: "ok", StatusCanceled: "canceled", StatusOwnerDied: "owner died",
	StatusMismatch: "mismatch", StatusNoSpace: "no space", StatusUnknown: "unknown",
	StatusByWord: "by its word", StatusNodeLost: "node lost", StatusUnrepaired: "unrepaired", StatusHeld: "held",
}

func (s Status) String() string { return nameOf(s, "Status", statusNames[:]) }

// replyHeaderBytes is the length of a Reply's body without its payload.
const replyHeaderBytes = 8 + 4 + 1 + 3

// Reply is the answer to the call Ticket.
type Reply struct {
	Ticket  uint64
	Status  Status
	Rank    uint32 // StatusOwnerDied, StatusUnrepaired; OpLostPage: the node; OpFile: see there
	Payload []byte // at most MaxPayload bytes. After decoding it points into the frame
}

// AppendReply appends m as a frame.
func AppendReply(b []byte, m *Reply) []byte {
	if m.Ticket == 0 || m.Status >= statusEnd {
		panic(fmt.Sprintf("attach: reply to ticket %d with %v", m.Ticket, m.Status))
	}
	start := len(b)
	b = beginFrame(b, KindReply)
	b = le.AppendUint64(b, m.Ticket)
	b = le.AppendUint32(b, m.Rank)
	b = append(b, byte(m.Status), 0, 0, 0)
	b = append(b, m.Payload...)
	return endFrame(b, start)
}

// DecodeReply reads the body of a Reply.
func DecodeReply(b []byte) (Reply, error) {
	if len(b) < replyHeaderBytes {
		return Reply{}, fmt.Errorf("%w: Reply of %d bytes", ErrMalformed, len(b))
	}
	m := Reply{Ticket: le.Uint64(b), Rank: le.Uint32(b[8:]), Status: Status(b[12])}
	payload := b[replyHeaderBytes:]
	switch {
	case m.Ticket == 0:
		return Reply{}, fmt.Errorf("%w: Reply to no ticket", ErrMalformed)
	case m.Status >= statusEnd:
		return Reply{}, fmt.Errorf("%w: Reply with unknown %v", ErrMalformed, m.Status)
	case b[13]|b[14]|b[15] != 0:
		return Reply{}, fmt.Errorf("%w: Reply with reserved bits set", ErrMalformed)
	case len(payload) > MaxPayload:
		return Reply{}, fmt.Errorf("%w: Reply with %d bytes of payload, at most %d are allowed", ErrMalformed, len(payload), MaxPayload)
	case len(payload) > 0:
		m.Payload = payload
	}
	return m, nil
}

// AppendPages appends the payload that answers OpBind: a run of pages of the region.
func AppendPages(b []byte, first, count uint64) []byte {
	return le.AppendUint64(le.AppendUint64(b, first), count)
}

// DecodePages reads what AppendPages wrote. The caller checks the run against the region.
func DecodePages(b []byte) (first, count uint64, err error) {
	err = decodeFields(b, "a run of pages", &first, &count)
	return first, count, err
}

// OwnerNode is the node that was lost, perhaps with a program that held the lock, which
// StatusOwnerDied and StatusUnrepaired name by such a Rank; false if it names a program's rank.
func OwnerNode(rank uint32) (node int, lost bool) {
	const whole = 1 << 31
	return int(rank &^ whole), rank&whole != 0
}

// MaxRank is the largest rank that a job can have.
const MaxRank = 1<<16 - 1

// AppendRanks appends the payload that answers OpLostRanks: a bit for each rank, at most 8 KiB. It
// panics if one is above MaxRank.
func AppendRanks(b []byte, ranks []uint32) []byte {
	start := len(b)
	for _, rank := range ranks {
		if rank > MaxRank {
			panic(fmt.Sprintf("attach: rank %d, at most %d is possible", rank, MaxRank))
		}
		for len(b)-start <= int(rank/8) {
			b = append(b, 0)
		}
		b[start+int(rank/8)] |= 1 << (rank % 8)
	}
	return b
}

// DecodeRanks reads what AppendRanks wrote. The ranks are in ascending order.
func DecodeRanks(b []byte) ([]uint32, error) {
	if len(b) > (MaxRank+1)/8 || len(b) > 0 && b[len(b)-1] == 0 {
		return nil, fmt.Errorf("%w: a set of ranks of %d bytes, with zeros at its end or too many", ErrMalformed, len(b))
	}
	var ranks []uint32
	for i, bits8 := range b {
		for ; bits8 != 0; bits8 &= bits8 - 1 {
			ranks = append(ranks, uint32(8*i+bits.TrailingZeros8(bits8)))
		}
	}
	return ranks, nil
}

// Counter is a named figure of a daemon.
type Counter struct {
	Name  string // 1 to 255 bytes
	Value uint64
}

// MaxCounters bounds the counters in one reply.
const MaxCounters = 240

// ContendedIn begins the names of counters that are of one allocation, whose name follows: how
// often writers on other nodes have taken pages of it that had been gained by programs of this node
// which had not synchronised since.
const ContendedIn = "contended_pages_in/"

// What a daemon counts for one program, and for one allocation, whose name follows: for those that
// threads of its node have waited for longest.
const (
	// OwnWait is how long threads of the program that asks have waited for pages, summed, in
	// nanoseconds; OwnWaits is how many of their faults had to wait.
	OwnWait  = "own_wait_ns"
	OwnWaits = "own_waits"
	// WaitIn and WaitsIn are that for threads of this node and pages of the allocation.
	WaitIn  = "wait_ns_in/"
	WaitsIn = "waits_in/"
)

func (c *Counter) fields() []any { return []any{wire.Text(&c.Name, 255), &c.Value} }

// AppendCounters appends the payload that answers OpStats: a list of named numbers, so that a
// daemon can add figures without a new version. It panics on more than MaxCounters and on names
// that are too long.
func AppendCounters(b []byte, counters []Counter) []byte {
	return wire.Append(b, wire.List(&counters, MaxCounters, (*Counter).fields))
}

// DecodeCounters reads what AppendCounters wrote.
func DecodeCounters(b []byte) (counters []Counter, err error) {
	err = decodeFields(b, "counters", wire.List(&counters, MaxCounters, (*Counter).fields))
	if err == nil && slices.ContainsFunc(counters, func(c Counter) bool { return c.Name == "" }) {
		err = fmt.Errorf("%w: a counter without a name", ErrMalformed)
	}
	return counters, err
}
