package protocol

import "encoding/binary"

// slots are fields of a Message, as a set.
type slots uint16

const (
	slotObject slots = 1 << iota
	slotAccess
	slotHasCopy
	slotBackup
	slotAnew
	slotMoves
	slotContents
	slotFold
	slotStatus
	slotNode
	slotAcks
	slotWord
	slotRank
	slotTicket
	slotPayload
)

// kindTable says by kind how it is called, which slots of a message it uses, and how it is read.
var kindTable = [kindEnd]struct {
	name string
	uses slots
	body func(*Message) any
}{
	KindRequest:             {"Request", slotObject | slotAccess | slotHasCopy | slotAnew | slotMoves, as((*Message).AsRequest)},
	KindForward:             {"Forward", slotObject | slotAccess | slotNode | slotBackup | slotAcks | slotMoves, as((*Message).AsForward)},
	KindInvalidate:          {"Invalidate", slotObject | slotNode | slotPayload | slotMoves, as((*Message).AsInvalidate)},
	KindInvalidateAck:       {"InvalidateAck", slotObject | slotWord, as((*Message).AsInvalidateAck)},
	KindVerify:              {"Verify", slotObject | slotNode | slotMoves, as((*Message).AsVerify)},
	KindGrant:               {"Grant", slotObject | slotAccess | slotContents | slotBackup | slotAcks | slotWord, as((*Message).AsGrant)},
	KindDone:                {"Done", slotObject | slotAccess | slotWord, as((*Message).AsDone)},
	KindMulticast:           {"Multicast", slotObject | slotNode | slotContents, as((*Message).AsMulticast)},
	KindMulticastAck:        {"MulticastAck", slotObject | slotPayload, as((*Message).AsMulticastAck)},
	KindMulticastEnd:        {"MulticastEnd", slotObject | slotNode | slotPayload, as((*Message).AsMulticastEnd)},
	KindOffer:               {"Offer", slotObject | slotWord | slotRank | slotPayload, as((*Message).AsOffer)},
	KindDecline:             {"Decline", slotObject, as((*Message).AsDecline)},
	KindLost:                {"Lost", slotObject | slotNode, as((*Message).AsLost)},
	KindBarrierArrive:       {"BarrierArrive", slotObject | slotTicket | slotWord | slotRank | slotFold | slotPayload, as((*Message).AsBarrierArrive)},
	KindBarrierCancel:       {"BarrierCancel", slotObject | slotTicket, as((*Message).AsBarrierCancel)},
	KindBarrierRelease:      {"BarrierRelease", slotObject | slotStatus | slotTicket | slotPayload, as((*Message).AsBarrierRelease)},
	KindBarrierOpen:         {"BarrierOpen", slotObject | slotStatus | slotPayload, as((*Message).AsBarrierOpen)},
	KindBarrierCombine:      {"BarrierCombine", slotNode | slotPayload, as((*Message).AsBarrierCombine)},
	KindBarrierCombineAck:   {"BarrierCombineAck", slotNode, as((*Message).AsBarrierCombineAck)},
	KindBarrierBroadcast:    {"BarrierBroadcast", slotObject | slotNode | slotStatus | slotTicket | slotPayload, as((*Message).AsBarrierBroadcast)},
	KindBarrierBroadcastAck: {"BarrierBroadcastAck", slotNode | slotTicket, as((*Message).AsBarrierBroadcastAck)},
	KindNameRequest:         {"NameRequest", slotTicket | slotPayload, as((*Message).AsNameRequest)},
	KindNameReply:           {"NameReply", slotStatus | slotTicket | slotPayload, as((*Message).AsNameReply)},
	KindFree:                {"Free", slotObject | slotWord | slotPayload, as((*Message).AsFree)},
	KindFreeAck:             {"FreeAck", slotObject | slotWord, as((*Message).AsFreeAck)},
	KindBackup:              {"Backup", slotObject | slotContents | slotWord | slotRank, as((*Message).AsBackup)},
	KindBackupAck:           {"BackupAck", slotObject | slotWord, as((*Message).AsBackupAck)},
	KindBackupCopy:          {"BackupCopy", slotObject | slotContents | slotWord | slotRank | slotTicket, as((*Message).AsBackupCopy)},
	KindBackupCopyAck:       {"BackupCopyAck", slotObject | slotWord, as((*Message).AsBackupCopyAck)},
	KindEpochMarker:         {"EpochMarker", slotWord, as((*Message).AsEpochMarker)},
	KindReportHeld:          {"ReportHeld", slotRank | slotWord | slotPayload, as((*Message).AsReportHeld)},
	KindReportBound:         {"ReportBound", slotRank | slotWord | slotTicket | slotPayload, as((*Message).AsReportBound)},
	KindEpochReady:          {"EpochReady", slotWord, as((*Message).AsEpochReady)},
}

// masks are by kind which bits of a header may be set, eight bytes in each word.
var masks = func() (all [kindEnd][headerBytes / 8]uint64) {
	for k := range all {
		header := [headerBytes]byte{0: 0xff, 4: 0xff, 5: 0xff} // kind and sender
		uses := kindTable[k].uses
		for _, x := range []struct {
			slot       slots
			first, end int
			bits       byte
		}{
			{slotAccess, 1, 2, 0xff}, {slotHasCopy, 2, 3, byte(flagHasCopy)}, {slotBackup, 2, 3, byte(flagBackup)}, {slotAnew, 2, 3, byte(flagAnew)},
			{slotMoves, 2, 3, byte(flagMoves)},
			{slotStatus, 3, 4, 0xff}, {slotNode, 6, 8, 0xff}, {slotAcks, 8, 10, 0xff}, {slotContents, 10, 11, 0xff}, {slotFold, 11, 12, 0xff},
			{slotWord, 12, 16, 0xff}, {slotObject, 16, 24, 0xff}, {slotTicket, 24, 32, 0xff}, {slotRank, 32, 36, 0xff}, {slotPayload, 36, 40, 0xff},
		} {
			for i := x.first; i < x.end && uses&x.slot != 0; i++ {
				header[i] |= x.bits
			}
		}
		for i := range all[k] {
			all[k][i] = binary.LittleEndian.Uint64(header[8*i:])
		}
	}
	return all
}()

// strays reports whether a header has set bits that messages of its kind do not use.
func strays(header []byte) bool {
	m := &masks[header[0]]
	var stray uint64
	for i := range m {
		stray |= binary.LittleEndian.Uint64(header[8*i:]) &^ m[i]
	}
	return stray != 0
}

// Body is what the message says, as the type of its kind; nil if there is no such kind. It is for
// tests and for logs.
func (m *Message) Body() any {
	if m.Kind >= kindEnd || kindTable[m.Kind].body == nil {
		return nil
	}
	return kindTable[m.Kind].body(m)
}

// as reads a message as one of its kind.
func as[T any](read func(*Message) T) func(*Message) any {
	return func(m *Message) any { return read(m) }
}

// How each kind lies in the slots of a Message, one way and the other. To makes the message to a
// node, about an object unless the kind is about none; As… reads one of that kind. Both are plain
// assignments, because every fault passes through some of them.

func (k Request) To(n NodeID, id ObjectID) Message {
	return Message{
		Kind: KindRequest, To: n, Object: id, access: k.Access,
		flags: flagIf(k.HasCopy, flagHasCopy) | flagIf(k.Anew, flagAnew) | flagIf(k.Moves, flagMoves),
	}
}
func (m *Message) AsRequest() Request {
	return Request{m.access, m.flags&flagHasCopy != 0, m.flags&flagAnew != 0, m.flags&flagMoves != 0}
}

func (k Forward) To(n NodeID, id ObjectID) Message {
	return Message{
		Kind: KindForward, To: n, Object: id, access: k.Access, node: k.Requester,
		flags: flagIf(k.Backup, flagBackup) | flagIf(k.Moves, flagMoves), acks: k.Acks,
	}
}
func (m *Message) AsForward() Forward {
	return Forward{m.access, m.node, m.flags&flagBackup != 0, m.acks, m.flags&flagMoves != 0}
}

func (k Invalidate) To(n NodeID, id ObjectID) Message {
	return Message{Kind: KindInvalidate, To: n, Object: id, node: k.Requester, flags: flagIf(k.Moves, flagMoves), Payload: k.Others}
}
func (m *Message) AsInvalidate() Invalidate {
	return Invalidate{m.node, m.Payload, m.flags&flagMoves != 0}
}

func (k InvalidateAck) To(n NodeID, id ObjectID) Message {
	return Message{Kind: KindInvalidateAck, To: n, Object: id, word: k.Died}
}
func (m *Message) AsInvalidateAck() InvalidateAck { return InvalidateAck{m.word} }

func (k Verify) To(n NodeID, id ObjectID) Message {
	return Message{Kind: KindVerify, To: n, Object: id, node: k.Requester, flags: flagIf(k.Moves, flagMoves)}
}
func (m *Message) AsVerify() Verify { return Verify{m.node, m.flags&flagMoves != 0} }

func (k Grant) To(n NodeID, id ObjectID) Message {
	return Message{
		Kind: KindGrant, To: n, Object: id, access: k.Access, contents: k.Contents,
		flags: flagIf(k.Backup, flagBackup), acks: k.Acks, word: k.Died,
	}
}
func (m *Message) AsGrant() Grant {
	return Grant{m.access, m.contents, m.flags&flagBackup != 0, m.acks, m.word}
}

func (k Done) To(n NodeID, id ObjectID) Message {
	return Message{Kind: KindDone, To: n, Object: id, access: k.Access, word: k.Died}
}
func (m *Message) AsDone() Done { return Done{m.access, m.word} }

func (k Multicast) To(n NodeID, id ObjectID) Message {
	return Message{Kind: KindMulticast, To: n, Object: id, node: k.Root, contents: k.Contents}
}
func (m *Message) AsMulticast() Multicast { return Multicast{m.node, m.contents} }

func (k MulticastAck) To(n NodeID, id ObjectID) Message {
	return Message{Kind: KindMulticastAck, To: n, Object: id, Payload: k.Takers}
}
func (m *Message) AsMulticastAck() MulticastAck { return MulticastAck{m.Payload} }

func (k MulticastEnd) To(n NodeID, id ObjectID) Message {
	return Message{Kind: KindMulticastEnd, To: n, Object: id, node: k.Root, Payload: k.Served}
}
func (m *Message) AsMulticastEnd() MulticastEnd { return MulticastEnd{m.node, m.Payload} }

func (k Offer) To(n NodeID, id ObjectID) Message {
	return Message{Kind: KindOffer, To: n, Object: id, word: k.Frees, rank: k.Copies, Payload: k.Run}
}
func (m *Message) AsOffer() Offer { return Offer{m.word, m.rank, m.Payload} }

func (k Decline) To(n NodeID, id ObjectID) Message {
	return Message{Kind: KindDecline, To: n, Object: id}
}
func (m *Message) AsDecline() Decline { return Decline{} }

func (k Lost) To(n NodeID, id ObjectID) Message {
	return Message{Kind: KindLost, To: n, Object: id, node: k.Node}
}
func (m *Message) AsLost() Lost { return Lost{m.node} }

func (k BarrierArrive) To(n NodeID, id ObjectID) Message {
	return Message{
		Kind: KindBarrierArrive, To: n, Object: id, ticket: k.Ticket, word: k.Parties,
		rank: k.Rank, fold: k.Fold, Payload: k.Contribution,
	}
}
func (m *Message) AsBarrierArrive() BarrierArrive {
	return BarrierArrive{m.ticket, m.word, m.rank, m.fold, m.Payload}
}

func (k BarrierCancel) To(n NodeID, id ObjectID) Message {
	return Message{Kind: KindBarrierCancel, To: n, Object: id, ticket: k.Ticket}
}
func (m *Message) AsBarrierCancel() BarrierCancel { return BarrierCancel{m.ticket} }

func (k BarrierRelease) To(n NodeID, id ObjectID) Message {
	return Message{
		Kind: KindBarrierRelease, To: n, Object: id, status: k.Status, ticket: k.Ticket,
		Payload: k.Result,
	}
}
func (m *Message) AsBarrierRelease() BarrierRelease {
	return BarrierRelease{m.status, m.ticket, m.Payload}
}

func (k BarrierOpen) To(n NodeID, id ObjectID) Message {
	return Message{Kind: KindBarrierOpen, To: n, Object: id, status: k.Status, Payload: k.Releases}
}
func (m *Message) AsBarrierOpen() BarrierOpen { return BarrierOpen{m.status, m.Payload} }

func (k BarrierCombine) To(n NodeID) Message {
	return Message{Kind: KindBarrierCombine, To: n, node: k.Root, Payload: k.Arrivals}
}
func (m *Message) AsBarrierCombine() BarrierCombine { return BarrierCombine{m.node, m.Payload} }

func (k BarrierCombineAck) To(n NodeID) Message {
	return Message{Kind: KindBarrierCombineAck, To: n, node: k.Root}
}
func (m *Message) AsBarrierCombineAck() BarrierCombineAck { return BarrierCombineAck{m.node} }

func (k BarrierBroadcast) To(n NodeID, id ObjectID) Message {
	return Message{
		Kind: KindBarrierBroadcast, To: n, Object: id, node: k.Root, status: k.Status,
		ticket: k.Serial, Payload: k.Releases,
	}
}
func (m *Message) AsBarrierBroadcast() BarrierBroadcast {
	return BarrierBroadcast{m.node, m.status, m.ticket, m.Payload}
}

func (k BarrierBroadcastAck) To(n NodeID) Message {
	return Message{Kind: KindBarrierBroadcastAck, To: n, node: k.Root, ticket: k.Serial}
}
func (m *Message) AsBarrierBroadcastAck() BarrierBroadcastAck {
	return BarrierBroadcastAck{m.node, m.ticket}
}

func (k NameRequest) To(n NodeID) Message {
	return Message{Kind: KindNameRequest, To: n, ticket: k.Ticket, Payload: k.Call}
}
func (m *Message) AsNameRequest() NameRequest { return NameRequest{m.ticket, m.Payload} }

func (k NameReply) To(n NodeID) Message {
	return Message{
		Kind: KindNameReply, To: n, status: k.Status, ticket: k.Ticket, Payload: k.Answer,
	}
}
func (m *Message) AsNameReply() NameReply { return NameReply{m.status, m.ticket, m.Payload} }

func (k Free) To(n NodeID, id ObjectID) Message {
	return Message{Kind: KindFree, To: n, Object: id, word: k.Phase, Payload: k.Run}
}
func (m *Message) AsFree() Free { return Free{m.word, m.Payload} }

func (k FreeAck) To(n NodeID, id ObjectID) Message {
	return Message{Kind: KindFreeAck, To: n, Object: id, word: k.Phase}
}
func (m *Message) AsFreeAck() FreeAck { return FreeAck{m.word} }

func (k Backup) To(n NodeID, id ObjectID) Message {
	return Message{
		Kind: KindBackup, To: n, Object: id, contents: k.Contents, word: k.Epoch, rank: k.Copies,
	}
}
func (m *Message) AsBackup() Backup { return Backup{m.contents, m.word, m.rank} }

func (k BackupAck) To(n NodeID, id ObjectID) Message {
	return Message{Kind: KindBackupAck, To: n, Object: id, word: k.Epoch}
}
func (m *Message) AsBackupAck() BackupAck { return BackupAck{m.word} }

func (k BackupCopy) To(n NodeID, id ObjectID) Message {
	return Message{
		Kind: KindBackupCopy, To: n, Object: id, contents: k.Contents, word: k.Epoch,
		rank: k.Copies, ticket: Ticket(k.Made)<<32 | Ticket(k.Commits),
	}
}
func (m *Message) AsBackupCopy() BackupCopy {
	return BackupCopy{m.contents, m.word, m.rank, uint32(m.ticket >> 32), uint32(m.ticket)}
}

func (k BackupCopyAck) To(n NodeID, id ObjectID) Message {
	return Message{Kind: KindBackupCopyAck, To: n, Object: id, word: k.Epoch}
}
func (m *Message) AsBackupCopyAck() BackupCopyAck { return BackupCopyAck{m.word} }

func (k EpochMarker) To(n NodeID) Message {
	return Message{Kind: KindEpochMarker, To: n, word: k.Epoch}
}
func (m *Message) AsEpochMarker() EpochMarker { return EpochMarker{m.word} }

func (k ReportHeld) To(n NodeID) Message {
	return Message{
		Kind: KindReportHeld, To: n, rank: k.Pieces, word: k.Epoch, Payload: k.Records,
	}
}
func (m *Message) AsReportHeld() ReportHeld {
	return ReportHeld{m.rank, m.word, m.Payload}
}

func (k ReportBound) To(n NodeID) Message {
	return Message{
		Kind: KindReportBound, To: n, rank: k.Pieces, word: k.Epoch, ticket: Ticket(k.Since), Payload: k.Runs,
	}
}
func (m *Message) AsReportBound() ReportBound {
	return ReportBound{m.rank, m.word, uint32(m.ticket), m.Payload}
}

func (k EpochReady) To(n NodeID) Message {
	return Message{Kind: KindEpochReady, To: n, word: k.Epoch}
}
func (m *Message) AsEpochReady() EpochReady { return EpochReady{m.word} }
