package model

import (
	"fmt"
	"slices"

	"dsmd/protocol"
)

// Plant is a bug put into the host or the network on purpose. The engine never knows.
type Plant uint8

const (
	// NoPlant leaves everything as it should be.
	NoPlant Plant = iota
	// AckBeforeRevoke: the completion of a revoke reaches the engine before the page table changes.
	AckBeforeRevoke
	// LostInvalidation: the network answers Invalidate itself and never delivers it.
	LostInvalidation
	// DowngradeNotDone: a downgrade is reported complete and leaves the page writable.
	DowngradeNotDone
	// DuplicatedGrant: the network delivers every Grant twice.
	DuplicatedGrant
	// LostDone: the network loses every Done.
	LostDone
	// LostWake: installing a page wakes nobody.
	LostWake
	// StaleSave: a revoke saves the page as it was before the last write.
	StaleSave
	// ForgottenZero: a page of zeros is installed with whatever the frame held before, here one
	// write too many.
	ForgottenZero
	// DuplicatedAck: the network delivers every InvalidateAck twice.
	DuplicatedAck
	// StaleHolder: who reports, after a node was lost, that it once knew an object is taken for one
	// that holds it.
	StaleHolder
	// ForgottenHolder: what members report of what they hold is lost.
	ForgottenHolder
	// ReplicaAckedEarly: a backup is acknowledged when it is sent, and comes too late to be of use
	// to anybody.
	ReplicaAckedEarly
	// ForgottenCopy: the network answers copies of backups itself and never delivers them.
	ForgottenCopy
	// LostArrivals: where barriers are trees, a relay loses what it has collected, all but the
	// first.
	LostArrivals
	// ConfirmedEarly: where barriers are trees, a release is confirmed when it is sent on, and may
	// yet be lost with a relay.
	ConfirmedEarly
	// KeptWord: a message about a lock does not take its word back.
	KeptWord
	// PublishedUnasked: a lock is published although the engine was not asked whether somebody
	// waits for it.
	PublishedUnasked
	// WordsWithoutQuorum: a node that learns that it has no quorum recalls no words, and goes on
	// publishing.
	WordsWithoutQuorum
	// GrantedWithoutQuorum: what the engine grants on a node that has no quorum its clients are
	// told.
	GrantedWithoutQuorum
	// SkippedProgram: with Config.Spaces, stores are not cut off in a program that was expelled.
	SkippedProgram
	// ReadBeforeProtected: with Config.Spaces, the contents of a page are read before stores to it
	// are cut off.
	ReadBeforeProtected
	// DroppedOffer: a page that is offered to another node is dropped, as if that had it.
	DroppedOffer
	// ForgottenOthers: who is to pass an invalidation on hears of nobody else that it concerns.
	ForgottenOthers
	// AckedUnheard: the network acknowledges an invalidation that a sharer passes on when it is
	// sent, in the name of the one that is yet to hear it.
	AckedUnheard
	// AnewAnyway: a page that a node has asked for to begin anew does so there, also when another
	// was earlier, and the grant brings what it has now.
	AnewAnyway
	// ForgottenTakers: where a page is sent to all who wait, nobody hears who has taken it.
	ForgottenTakers
	// LostEnd: where a page was sent to all who waited, they do not hear that their requests are
	// over.
	LostEnd

	plantEnd
)

var plantNames = [plantEnd]string{
	NoPlant: "none", AckBeforeRevoke: "ack-before-revoke", LostInvalidation: "lost-invalidation",
	DowngradeNotDone: "downgrade-not-done", DuplicatedGrant: "duplicated-grant", LostDone: "lost-done",
	LostWake: "lost-wake", StaleSave: "stale-save", ForgottenZero: "forgotten-zero",
	DuplicatedAck: "duplicated-ack", StaleHolder: "stale-holder", ForgottenHolder: "forgotten-holder",
	ReplicaAckedEarly: "replica-acked-early", ForgottenCopy: "forgotten-copy",
	LostArrivals: "lost-arrivals", ConfirmedEarly: "confirmed-early",
	KeptWord: "kept-word", PublishedUnasked: "published-unasked",
	WordsWithoutQuorum: "words-without-quorum", GrantedWithoutQuorum: "granted-without-quorum",
	SkippedProgram: "skipped-program", ReadBeforeProtected: "read-before-protected", DroppedOffer: "dropped-offer",
	ForgottenOthers: "forgotten-others", AckedUnheard: "acked-unheard",
	AnewAnyway: "anew-anyway", ForgottenTakers: "forgotten-takers", LostEnd: "lost-end",
}

// Plants are all planted bugs.
func Plants() []Plant {
	var all []Plant
	for p := NoPlant + 1; p < plantEnd; p++ {
		all = append(all, p)
	}
	return all
}

func (p Plant) String() string {
	if p < plantEnd {
		return plantNames[p]
	}
	return fmt.Sprintf("Plant(%d)", uint8(p))
}

// ParsePlant reads what String wrote.
func ParsePlant(s string) (Plant, error) {
	if i := slices.Index(plantNames[:], s); i >= 0 {
		return Plant(i), nil
	}
	return 0, fmt.Errorf("%w: planted bug %q is none of %v", ErrSyntax, s, plantNames)
}

// post appends what the network makes of one message about an object of this home: the message
// itself, unless a bug is planted there.
func (p Plant) post(f Flight, home protocol.NodeID, out []Flight) []Flight {
	m := f.Message
	switch {
	case p == LostInvalidation && m.Kind == protocol.KindInvalidate:
		return append(out, Flight{Message: protocol.InvalidateAck{}.To(m.AsInvalidate().Requester, m.Object).SentBy(m.To)})
	case p == DuplicatedGrant && m.Kind == protocol.KindGrant, p == DuplicatedAck && m.Kind == protocol.KindInvalidateAck:
		return append(out, f, f)
	case p == AckedUnheard && m.Kind == protocol.KindInvalidate && m.From != home:
		return append(out, f, Flight{Message: protocol.InvalidateAck{}.To(m.From, m.Object).SentBy(m.To)})
	case p == ReplicaAckedEarly && m.Kind == protocol.KindBackup:
		return append(out, Flight{Message: protocol.BackupAck{Epoch: m.AsBackup().Epoch}.To(m.From, m.Object).SentBy(m.To)})
	case (p == ReplicaAckedEarly || p == ForgottenCopy) && m.Kind == protocol.KindBackupCopy:
		return append(out, Flight{Message: protocol.BackupCopyAck{Epoch: m.AsBackupCopy().Epoch}.To(m.From, m.Object).SentBy(m.To)})
	case p == ConfirmedEarly && m.Kind == protocol.KindBarrierBroadcast:
		k := m.AsBarrierBroadcast()
		return append(out, f, Flight{Message: protocol.BarrierBroadcastAck{Root: k.Root, Serial: k.Serial}.To(m.From).SentBy(m.To)})
	case p == LostDone && m.Kind == protocol.KindDone, p == LostEnd && m.Kind == protocol.KindMulticastEnd, p == ConfirmedEarly && m.Kind == protocol.KindBarrierBroadcastAck:
		return out
	}
	if p == LostArrivals && m.Kind == protocol.KindBarrierCombine {
		f.Message.Payload = protocol.SplitCombined(m.Payload)[0]
	}
	if p == ForgottenOthers && m.Kind == protocol.KindInvalidate || p == ForgottenTakers && m.Kind == protocol.KindMulticastAck {
		f.Message.Payload = nil
	}
	if m.Kind == protocol.KindReportHeld {
		f.Message.Payload = p.report(m.Payload)
	}
	return append(out, f)
}

// report is what the network makes of a report.
func (p Plant) report(payload []byte) []byte {
	if p != StaleHolder && p != ForgottenHolder {
		return payload
	}
	var out []byte
	protocol.EachHolding(payload, func(o protocol.ObjectID, a protocol.Access) {
		if p == StaleHolder {
			out = protocol.AppendHolding(out, o, max(a, protocol.Read))
		}
	})
	return out
}
