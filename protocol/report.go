package protocol

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// What a Report is made of, each with its tag before it.
const (
	// id, access: None if the node once knew the object, and its directory entry was lost
	tagObject = iota + 1
	tagName   // run, length, NameCall: programs of this node use it; whose call it is means nothing
	tagTop    // the first page above all that the node knows of
	tagEntry  // entry: what the former home knows, for when nobody has the object
	// epoch: the node was the allocator since then, and what follows is what it has
	tagAllocator
	tagBound   // run, kept, replicas, lengths, name, signature
	tagFree    // run
	tagFreeing // run
	tagBefore  // nodes: homes of a view before, for a node that has come since
	tagSuspect // run, nodes, nodes: for such a node too
	tagCame    // node, epoch: the member came in then; for such a node too
	tagBackup  // id, version: the node has a backup of the page
	tagUse     // run, kept, client: the program uses the name of that run, which was said before
)

const (
	objectBytes = 1 + 8 + 1
	entryBytes  = 1 + 8 + 2 + 1 + 4
	cameBytes   = 1 + 2 + 4
	backupBytes = 1 + 8 + 4 + 4
	useBytes    = 1 + runBytes + 1 + 4
)

// PageReportBytes is how many bytes of reports one member may send another about a page in a
// recovery.
const PageReportBytes = objectBytes + entryBytes + backupBytes

// AppendHolding appends to the payload of a ReportHeld that its sender has this access to an
// object.
func AppendHolding(b []byte, id ObjectID, a Access) []byte {
	b = append(b, tagObject)
	b = binary.LittleEndian.AppendUint64(b, uint64(id))
	return append(b, byte(a))
}

// AppendBackup appends to the payload of a ReportHeld that its sender has a backup of a page, of
// the epoch's last commit but for what came after, of which there were count.
func AppendBackup(b []byte, id ObjectID, epoch, count uint32) []byte {
	b = append(b, tagBackup)
	b = binary.LittleEndian.AppendUint64(b, uint64(id))
	b = binary.LittleEndian.AppendUint32(b, epoch)
	return binary.LittleEndian.AppendUint32(b, count)
}

// appendEntry appends what a former home knows of an object: the owner, whether the object is lost
// and may have been written, and the mark of a dead owner; or, of a lock, the mark that its holder
// has.
func appendEntry(b []byte, id ObjectID, owner NodeID, flags byte, died uint32) []byte {
	b = binary.LittleEndian.AppendUint64(append(b, tagEntry), uint64(id))
	b = append(binary.LittleEndian.AppendUint16(b, uint16(owner)), flags)
	return binary.LittleEndian.AppendUint32(b, died)
}

// EachHolding calls f for each object in the payload of a ReportHeld, as far as that can be read.
func EachHolding(payload []byte, f func(ObjectID, Access)) {
	_ = eachEntry(payload, func(x *entry) {
		if x.tag == tagObject {
			f(x.id, x.access)
		}
	})
}

// parcel fills Reports, or whatever has pieces, to one member.
type parcel struct {
	to     NodeID
	pieces [][]byte
}

// room returns where to append the next n bytes.
func (p *parcel) room(n int) *[]byte {
	if last := len(p.pieces) - 1; last >= 0 && len(p.pieces[last])+n <= MaxPayload {
		return &p.pieces[last]
	}
	p.pieces = append(p.pieces, make([]byte, 0, n))
	return &p.pieces[len(p.pieces)-1]
}

// dispatch sends a parcel in at least one message. Each is made of a piece, and says how many there
// are.
func (e *env) dispatch(p *parcel, message func(pieces uint32, piece []byte) Message) {
	if len(p.pieces) == 0 {
		p.pieces = [][]byte{nil}
	}
	for _, piece := range p.pieces {
		e.send(message(uint32(len(p.pieces)), piece))
	}
}

func listBytes(nodes []NodeID) int { return 2 + 2*len(nodes) }

func appendList(b []byte, nodes []NodeID) []byte {
	b = binary.LittleEndian.AppendUint16(b, uint16(len(nodes)))
	for _, n := range nodes {
		b = binary.LittleEndian.AppendUint16(b, uint16(n))
	}
	return b
}

// decodeList reads what appendList wrote, and reports whether that is a list of nodes in ascending
// order; rest is what follows.
func decodeList(b []byte) (nodes []NodeID, rest []byte, ok bool) {
	if len(b) < 2 || len(b) < 2+2*int(binary.LittleEndian.Uint16(b)) {
		return nil, nil, false
	}
	count := int(binary.LittleEndian.Uint16(b))
	for i := range count {
		nodes = append(nodes, NodeID(binary.LittleEndian.Uint16(b[2+2*i:])))
	}
	return nodes, b[2+2*count:], count > 0 && count <= MaxNodes && nodes[count-1] < MaxNodes && slices.IsSorted(nodes)
}

// entry is one thing that a report says.
type entry struct {
	tag    byte
	id     ObjectID
	access Access
	run    // tagName, tagUse, tagBound, tagFree, tagFreeing, tagSuspect; tagTop: first
	kept   bool
	call   NameCall // tagBound: without operation and client; tagUse: client
	version

	owner         NodeID // tagEntry, tagCame
	lost, written bool   // tagEntry
	died          uint32 // tagEntry: see lock
	since         uint32 // tagAllocator, tagCame
	before, after []NodeID
}

// eachEntry calls f for each entry of a report.
func eachEntry(b []byte, f func(*entry)) error {
	for len(b) > 0 {
		x := entry{tag: b[0]}
		rest, ok := x.decode(b[1:])
		if !ok {
			return fmt.Errorf("%w: a report with tag %d and %d bytes", ErrMalformed, x.tag, len(b)-1)
		}
		b = rest
		f(&x)
	}
	return nil
}

// decode reads what follows the tag of an entry; rest is what follows that.
func (x *entry) decode(b []byte) (rest []byte, ok bool) {
	switch {
	case x.tag == tagObject && len(b) >= objectBytes-1 && Access(b[8]) <= Write:
		x.id, x.access = ObjectID(binary.LittleEndian.Uint64(b)), Access(b[8])
		return b[objectBytes-1:], true
	case x.tag == tagBackup && len(b) >= backupBytes-1:
		x.id = ObjectID(binary.LittleEndian.Uint64(b))
		x.version = version{binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])}
		return b[backupBytes-1:], true
	case x.tag == tagTop && len(b) >= 8:
		x.first = binary.LittleEndian.Uint64(b)
		return b[8:], true
	case x.tag == tagEntry && len(b) >= entryBytes-1:
		x.id, x.owner = ObjectID(binary.LittleEndian.Uint64(b)), NodeID(binary.LittleEndian.Uint16(b[8:]))
		x.lost, x.written, x.died = b[10]&1 != 0, b[10]&2 != 0, binary.LittleEndian.Uint32(b[11:])
		return b[entryBytes-1:], true
	case x.tag == tagAllocator && len(b) >= 4:
		x.since = binary.LittleEndian.Uint32(b)
		return b[4:], true
	case x.tag == tagCame && len(b) >= cameBytes-1:
		x.owner, x.since = NodeID(binary.LittleEndian.Uint16(b)), binary.LittleEndian.Uint32(b[2:])
		return b[cameBytes-1:], true
	case x.tag == tagBefore:
		x.before, rest, ok = decodeList(b)
		return rest, ok
	case (x.tag == tagName || x.tag >= tagBound && x.tag <= tagFreeing || x.tag == tagSuspect || x.tag == tagUse) && len(b) >= runBytes:
		x.first, x.count, _ = DecodeRun(b[:runBytes])
		return x.decodeOfRun(b[runBytes:])
	}
	return nil, false
}

// decodeOfRun reads what follows the run of an entry about one.
func (x *entry) decodeOfRun(b []byte) (rest []byte, ok bool) {
	switch {
	case x.tag == tagName && len(b) >= 2 && len(b) >= 2+int(binary.LittleEndian.Uint16(b)):
		n := 2 + int(binary.LittleEndian.Uint16(b))
		call, err := DecodeNameCall(b[2:n])
		x.call = call
		return b[n:], err == nil
	case x.tag == tagUse && len(b) >= useBytes-1-runBytes:
		x.kept, x.call.Client = b[0] != 0, ClientID(binary.LittleEndian.Uint32(b[1:]))
		return b[useBytes-1-runBytes:], true
	case x.tag == tagBound && len(b) >= 6 && b[1] <= MaxReplicas:
		x.kept, x.call.Replicas = b[0] != 0, b[1]
		name, signature := int(binary.LittleEndian.Uint16(b[2:])), int(binary.LittleEndian.Uint16(b[4:]))
		if b = b[6:]; name > MaxName || signature > MaxSignature || len(b) < name+signature {
			return nil, false
		}
		x.call.Name, x.call.Signature = string(b[:name]), string(b[name:name+signature])
		return b[name+signature:], true
	case x.tag == tagSuspect:
		if x.before, b, ok = decodeList(b); ok {
			x.after, b, ok = decodeList(b)
		}
		return b, ok
	}
	return b, x.tag == tagFree || x.tag == tagFreeing
}

// contradicts refuses what a member has reported.
func (e *env) contradicts(from NodeID, id ObjectID, why string) {
	if from == e.cfg.Self {
		return // it was lied to before: an allocator has given it the same memory twice
	}
	m := ReportHeld{Epoch: e.view.epoch}.To(e.cfg.Self).SentBy(from)
	m.Object = id // which shows in the log
	e.reject(&m, why)
}
