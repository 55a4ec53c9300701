package model

import (
	"fmt"
	"strings"

	"dsmd/protocol"
)

// ActionKind is one kind of thing that can happen at a node.
type ActionKind uint8

const (
	// ActFault: a thread meets a page that the page table does not allow it, and the engine hears of it.
	ActFault ActionKind = iota + 1
	// ActAgain: the fault of a waiting thread is reported again, as when a signal restarts the instruction.
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
	// ActLeave: it is decided that the node leaves.
	ActLeave
	// ActDepart: it is decided that the node is gone, to whom nothing belongs any more.
	ActDepart
	// ActJoin: it is decided that the node is in.
	ActJoin
)

var actionNames = [...]string{
	ActFault: "fault", ActAgain: "fault again", ActSpurious: "fault spuriously", ActStray: "fault late",
	ActAccess: "access", ActCall: "call", ActCancel: "cancel", ActDie: "die", ActDeliver: "deliver",
	ActPerform: "perform", ActComplete: "complete", ActHoldOver: "hold over",
	ActCrash: "crash", ActEpoch: "go on with", ActLeave: "leave", ActDepart: "depart", ActJoin: "join",
}

func (k ActionKind) String() string { return actionNames[k] }

// Optional says whether the action may also never happen: a thread that waits must not need it.
func (k ActionKind) Optional() bool {
	return k == ActAgain || k == ActSpurious || k == ActStray || k == ActCancel || k == ActCrash || k >= ActLeave
}

// Action is one thing that happens at one node.
type Action struct {
	Kind   ActionKind
	Node   protocol.NodeID
	Thread int                 // index on the node: thread actions
	Op     Op                  // thread actions
	Effect protocol.EffectKind // ActPerform, ActComplete
	Object protocol.ObjectID   // ActPerform, ActComplete, ActHoldOver
	Flight *Flight             // ActDeliver
	Epoch  uint32              // ActEpoch
	Left   []protocol.NodeID   // ActEpoch: members
	Homes  []protocol.NodeID   // ActEpoch
}

// String tells the action apart from all others that are possible in the same state; two messages that are equal
// in everything count as one.
func (a Action) String() string {
	switch a.Kind {
	case ActDeliver:
		return fmt.Sprintf("deliver %v", a.Flight)
	case ActPerform, ActComplete:
		return fmt.Sprintf("n%d %v %s %v", a.Node, a.Kind, effectNames[a.Effect], a.Object)
	case ActHoldOver:
		return fmt.Sprintf("n%d %v %v", a.Node, a.Kind, a.Object)
	case ActCrash, ActLeave, ActDepart, ActJoin:
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

// Flight is a message on its way, with the contents of the page if FlagData says so.
type Flight struct {
	Message  protocol.Message
	Contents uint32
}

// MustFollow says whether f may not overtake g. The protocol leans on the transport's order in three places only: a cancelled
// arrival at a barrier does not overtake the arrival, what takes an object away does not overtake the home's own Grant of it, and an EpochMark
// overtakes nothing that was said before, and is not overtaken by what is said after it.
func (f *Flight) MustFollow(g *Flight) bool {
	a, b := &f.Message, &g.Message
	if a.From != b.From || a.To != b.To {
		return false
	}
	switch {
	case a.Kind == protocol.EpochMark && b.Kind >= protocol.EpochMark:
		return b.Aux < a.Aux
	case a.Kind == protocol.EpochMark:
		return true
	case a.Kind > protocol.EpochMark && b.Kind == protocol.EpochMark:
		return b.Aux <= a.Aux
	case a.Object != b.Object:
		return false
	}
	switch a.Kind {
	case protocol.BarrierCancel:
		return b.Kind == protocol.BarrierArrive && a.Ticket == b.Ticket
	case protocol.Forward, protocol.Invalidate:
		return b.Kind == protocol.Grant
	}
	return false
}

// Ordered says whether there are messages that f may not overtake: a quick test before MustFollow.
func (f *Flight) Ordered() bool {
	k := f.Message.Kind
	return k == protocol.BarrierCancel || k == protocol.Forward || k == protocol.Invalidate || k >= protocol.EpochMark
}

// String shows everything that tells one flight from another.
func (f *Flight) String() string { return format(&f.Message, fmt.Sprintf("data=%d", f.Contents)) }

// format shows a message; data stands for the contents.
func format(m *protocol.Message, data string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v n%d>n%d %v", m.Kind, m.From, m.To, m.Object)
	if m.Access != protocol.None {
		fmt.Fprintf(&b, " %v", m.Access)
	}
	if m.Kind == protocol.Forward || m.Kind == protocol.Invalidate {
		fmt.Fprintf(&b, " for n%d", m.Requester)
	}
	for i, name := range []string{"has-copy", data, "zero", "owner-died", "backup"} {
		if m.Flags&(1<<i) != 0 {
			fmt.Fprintf(&b, " %s", name)
		}
	}
	for _, field := range []struct {
		name  string
		value uint64
	}{{"acks", uint64(m.Acks)}, {"status", uint64(m.Status)}, {"ticket", uint64(m.Ticket)}, {"aux", uint64(m.Aux)}, {"rank", uint64(m.Rank)}} {
		if field.value != 0 {
			fmt.Fprintf(&b, " %s=%d", field.name, field.value)
		}
	}
	if len(m.Payload) > 0 {
		fmt.Fprintf(&b, " payload=%x", m.Payload)
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
	protocol.EffectForget: "forget", protocol.EffectReject: "reject", protocol.EffectLost: "lose", protocol.EffectBackup: "back up", protocol.EffectResumed: "resume",
	protocol.EffectHandedOver: "handed over",
}

// FormatEffect says in one line what an engine wants done.
func FormatEffect(e *protocol.Effect) string {
	switch e.Kind {
	case protocol.EffectSend:
		if e.Backup {
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
	if e.Zero {
		s += " zero"
	}
	if e.Save {
		s += " save"
	}
	if e.Backup {
		s += " backup"
	}
	if e.Client != 0 {
		s += fmt.Sprintf(" client %d", e.Client)
	}
	return s
}
