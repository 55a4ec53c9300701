package model

import (
	"fmt"
	"reflect"
	"strings"
	"unicode"

	"dsmd/protocol"
)

// ActionKind is one kind of thing that can happen at a node.
type ActionKind uint8

const (
	// ActFault: a thread meets a page that the page table does not allow it, and the engine hears
	// of it.
	ActFault ActionKind = iota + 1
	// ActAgain: the fault of a waiting thread is reported again, as when a signal restarts the
	// instruction.
	ActAgain
	// ActSpurious: a thread faults although the page table allows the access, as on a page that is
	// in the daemon's memory but not mapped in this program.
	ActSpurious
	// ActStray: the fault of an access that has retired meanwhile is reported once more.
	ActStray
	// ActAccess: a read or write retires.
	ActAccess
	// ActCall: a thread prefetches, takes or gives back a lock, or arrives at a barrier.
	ActCall
	// ActCancel: a waiting call is cancelled.
	ActCancel
	// ActDie: a client ends.
	ActDie
	// ActDeliver: a message arrives.
	ActDeliver
	// ActPerform: the next operation that the engine ordered on a page happens.
	ActPerform
	// ActComplete: the engine hears that the operation has happened.
	ActComplete
	// ActHoldOver: the time of a hold is over.
	ActHoldOver
	// ActCrash: the node is lost.
	ActCrash
	// ActEpoch: the node learns who is in the cluster.
	ActEpoch
	// ActTake: a thread takes a lock by its word.
	ActTake
	// ActBlock: the node, which the others have gone on without, learns that it has no quorum.
	ActBlock
	// ActHeal: the node, which had no quorum, has one again, and nobody has gone on without it.
	ActHeal
	// ActLeave: it is decided that the node leaves.
	ActLeave
	// ActDepart: it is decided that the node is gone, to whom nothing belongs any more.
	ActDepart
	// ActJoin: it is decided that the node is in.
	ActJoin
	// ActAsk: a thread asks for a lock whose word is free: it looked before the lock was published.
	ActAsk
	// ActCut: the others take the node for lost, and all that may be cut off with it.
	ActCut
	// ActEnd: a node that is cut off is ended.
	ActEnd
	// ActReturn: another node takes the place of one that was cut off and has ended, and waits to
	// be let in.
	ActReturn
)

var actionNames = [...]string{
	ActFault: "fault", ActAgain: "fault again", ActSpurious: "fault spuriously", ActStray: "fault late",
	ActAccess: "access", ActCall: "call", ActCancel: "cancel", ActDie: "die", ActDeliver: "deliver",
	ActPerform: "perform", ActComplete: "complete", ActHoldOver: "hold over",
	ActCrash: "crash", ActEpoch: "go on with", ActLeave: "leave", ActDepart: "depart", ActJoin: "join", ActTake: "take", ActAsk: "ask", ActBlock: "block", ActHeal: "heal", ActCut: "cut off", ActEnd: "end", ActReturn: "return",
}

func (k ActionKind) String() string { return actionNames[k] }

// Optional reports whether the action may also never happen: a thread that waits must not need it.
func (k ActionKind) Optional() bool {
	return k == ActAgain || k == ActSpurious || k == ActStray || k == ActCancel || k == ActCrash || k >= ActLeave
}

// ofThread tells the actions of threads from those of nodes and of the network.
func (a *Action) ofThread() bool {
	switch a.Kind {
	case ActFault, ActAgain, ActSpurious, ActStray, ActAccess, ActCall, ActCancel, ActDie, ActTake, ActAsk:
		return true
	}
	return false
}

// Action is one thing that happens at one node.
type Action struct {
	Kind    ActionKind
	Node    protocol.NodeID
	Thread  int                 // index on the node: thread actions
	Op      Op                  // thread actions
	Effect  protocol.EffectKind // ActPerform, ActComplete
	Object  protocol.ObjectID   // ActPerform, ActComplete, ActHoldOver
	Flight  *Flight             // ActDeliver
	Epoch   uint32              // ActEpoch
	Left    []protocol.NodeID   // ActEpoch: members
	Homes   []protocol.NodeID   // ActEpoch
	Orderly bool                // ActEpoch: see protocol.Event
	// ActEpoch: it goes on without those that are cut off, though others may be in their place by
	// now
	Apart bool
}

// String tells the action apart from all others that are possible in the same state; two messages
// that are equal in everything count as one.
func (a Action) String() string {
	switch a.Kind {
	case ActDeliver:
		return fmt.Sprintf("deliver %v", a.Flight)
	case ActPerform, ActComplete:
		return fmt.Sprintf("n%d %v %s %v", a.Node, a.Kind, effectNames[a.Effect], a.Object)
	case ActHoldOver:
		return fmt.Sprintf("n%d %v %v", a.Node, a.Kind, a.Object)
	case ActCrash, ActLeave, ActDepart, ActJoin, ActBlock, ActHeal, ActCut, ActEnd, ActReturn:
		return fmt.Sprintf("n%d %v", a.Node, a.Kind)
	case ActEpoch:
		if len(a.Homes) < len(a.Left) {
			return fmt.Sprintf("n%d %v %v, homes %v, epoch %d", a.Node, a.Kind, a.Left, a.Homes, a.Epoch)
		}
		return fmt.Sprintf("n%d %v %v, epoch %d", a.Node, a.Kind, a.Left, a.Epoch)
	case ActAccess, ActCall, ActDie:
		return fmt.Sprintf("n%d.t%d %v", a.Node, a.Thread, a.Op)
	default:
		return fmt.Sprintf("n%d.t%d %v: %v", a.Node, a.Thread, a.Kind, a.Op)
	}
}

// Flight is a message on its way, with the contents of the page if it says so.
type Flight struct {
	Message  protocol.Message
	Contents uint32
}

// MustFollow reports whether f may not overtake g. The protocol leans on the transport's order in
// four places only: a cancelled arrival at a barrier does not overtake the arrival, a NameRequest
// does not overtake an earlier one of the same program, what takes an object away, or has it sent
// to all, does not overtake the home's own Grant of it, and an EpochMarker overtakes nothing that
// was said before, and is not overtaken by what is said after it.
func (f *Flight) MustFollow(g *Flight) bool {
	a, b := &f.Message, &g.Message
	if a.From != b.From || a.To != b.To || !f.Ordered() {
		return false
	}
	switch {
	case a.Kind == protocol.KindEpochMarker && b.Kind >= protocol.KindEpochMarker:
		return epochOf(b) < epochOf(a)
	case a.Kind == protocol.KindEpochMarker:
		return true
	case a.Kind > protocol.KindEpochMarker && b.Kind == protocol.KindEpochMarker:
		return epochOf(b) <= epochOf(a)
	case a.Object != b.Object:
		return false
	}
	switch a.Kind {
	case protocol.KindBarrierCancel:
		return b.Kind == protocol.KindBarrierArrive && a.AsBarrierCancel().Ticket == b.AsBarrierArrive().Ticket
	case protocol.KindNameRequest:
		return b.Kind == protocol.KindNameRequest && laterCall(a, b)
	case protocol.KindForward, protocol.KindInvalidate, protocol.KindMulticast:
		return b.Kind == protocol.KindGrant
	}
	return false
}

// laterCall reports whether a program has made name call a after name call b: the last is that it
// uses nothing any more, and the tickets of a thread grow.
func laterCall(a, b *protocol.Message) bool {
	later, earlier := a.AsNameRequest(), b.AsNameRequest()
	x, err := protocol.DecodeNameCall(later.Call)
	y, bad := protocol.DecodeNameCall(earlier.Call)
	if err != nil || bad != nil || x.Client != y.Client || y.Op == protocol.UnbindAll {
		return false
	}
	if later.Ticket == earlier.Ticket { // a cancelled Bind, which is undone
		return x.Op == protocol.Unbind && y.Op == protocol.Bind
	}
	return x.Op == protocol.UnbindAll || later.Ticket>>32 == earlier.Ticket>>32 && later.Ticket > earlier.Ticket
}

// epochOf is the epoch of a recovery that a message belongs to.
// Preconditions: it belongs to one, see Recovers.
func epochOf(m *protocol.Message) uint32 {
	switch m.Kind {
	case protocol.KindEpochMarker:
		return m.AsEpochMarker().Epoch
	case protocol.KindReportHeld:
		return m.AsReportHeld().Epoch
	case protocol.KindReportBound:
		return m.AsReportBound().Epoch
	default:
		return m.AsEpochReady().Epoch
	}
}

// Recovers tells the messages of recoveries from others.
func (f *Flight) Recovers() bool {
	switch f.Message.Kind {
	case protocol.KindEpochMarker, protocol.KindReportHeld, protocol.KindReportBound, protocol.KindEpochReady:
		return true
	}
	return false
}

// Ordered reports whether there are messages that f may not overtake: a quick test before
// MustFollow.
func (f *Flight) Ordered() bool {
	k := f.Message.Kind
	return k == protocol.KindBarrierCancel || k == protocol.KindNameRequest || k == protocol.KindForward || k == protocol.KindInvalidate || k == protocol.KindMulticast && f.Message.Contents() == protocol.NoContents || k >= protocol.KindEpochMarker
}

// String shows everything that tells one flight from another.
func (f *Flight) String() string { return format(&f.Message, fmt.Sprintf("data=%d", f.Contents)) }

// format shows a message, with the fields of its kind that are not zero; data stands for the
// contents.
func format(m *protocol.Message, data string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v n%d>n%d", m.Kind, m.From, m.To)
	if m.Kind.HasObject() {
		fmt.Fprintf(&b, " %v", m.Object)
	}
	says := reflect.ValueOf(m.Body())
	for i := range says.NumField() {
		name := dashed(says.Type().Field(i).Name)
		switch v := says.Field(i).Interface().(type) {
		case protocol.NodeID:
			if name == "requester" {
				fmt.Fprintf(&b, " for n%d", v)
			} else {
				fmt.Fprintf(&b, " %s=n%d", name, v)
			}
		case protocol.Contents:
			b.WriteString([...]string{"", " " + data, " zero", " first"}[v])
		case protocol.Access:
			if v != protocol.None {
				fmt.Fprintf(&b, " %v", v)
			}
		case bool:
			if v {
				b.WriteString(" " + name)
			}
		case []byte:
			if len(v) > 0 {
				fmt.Fprintf(&b, " %s=%x", name, v)
			}
		default:
			if !says.Field(i).IsZero() {
				fmt.Fprintf(&b, " %s=%d", name, v)
			}
		}
	}
	return b.String()
}

// dashed is the name of a field as in "has-copy".
func dashed(name string) string {
	var b strings.Builder
	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// Append appends a canonical encoding: equal flights and only those have equal encodings.
func (f *Flight) Append(b []byte) []byte {
	b = append(b, byte(f.Message.To), byte(f.Message.To>>8))
	b = append(b, byte(f.Contents), byte(f.Contents>>8), byte(f.Contents>>16), byte(f.Contents>>24))
	return protocol.AppendMessage(b, &f.Message)
}

var effectNames = [...]string{
	protocol.EffectSend: "send", protocol.EffectInstall: "install", protocol.EffectStash: "stash",
	protocol.EffectMap: "map", protocol.EffectMakeWritable: "make-writable", protocol.EffectDowngrade: "downgrade",
	protocol.EffectRevoke: "revoke", protocol.EffectHold: "hold", protocol.EffectComplete: "answer",
	protocol.EffectFree: "forget", protocol.EffectReject: "reject", protocol.EffectLost: "lose", protocol.EffectBackup: "back up", protocol.EffectResumed: "resume",
	protocol.EffectHandedOver: "handed over", protocol.EffectOffered: "offered", protocol.EffectDeclined: "declined",
}

// FormatEffect says in one line what an engine wants done.
func FormatEffect(e *protocol.Effect) string {
	switch e.Kind {
	case protocol.EffectSend:
		if e.Source == protocol.SourceBackup {
			return "send " + format(&e.Message, "data of backup")
		}
		return "send " + format(&e.Message, "data")
	case protocol.EffectReject:
		return fmt.Sprintf("reject %s: %s", format(&e.Message, "data"), e.Reason)
	case protocol.EffectComplete:
		s := fmt.Sprintf("answer client %d ticket %d status %d", e.Client, e.Ticket, e.Status)
		if len(e.Payload) > 0 {
			s += fmt.Sprintf(" payload=%x", e.Payload)
		}
		return s
	case protocol.EffectHold:
		return fmt.Sprintf("hold %v for %d µs", e.Object, e.After)
	}
	if e.Kind == protocol.EffectResumed || e.Kind == protocol.EffectHandedOver {
		return fmt.Sprintf("%s, epoch %d", effectNames[e.Kind], e.Count)
	}
	s := fmt.Sprintf("%s %v", effectNames[e.Kind], e.Object)
	if e.Access != protocol.None {
		s += " " + e.Access.String()
	}
	switch {
	case e.Source == protocol.SourceFirst:
		s += " first"
	case e.Source == protocol.SourceZeros:
		s += " zero"
	case e.Save || e.Source == protocol.SourceSaved:
		s += " save"
	case e.Source == protocol.SourceBackup:
		s += " backup"
	}
	if e.Client != 0 {
		s += fmt.Sprintf(" client %d", e.Client)
	}
	return s
}
