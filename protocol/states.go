package protocol

import "fmt"

// States says in which state each part of a node is for one object: the rows of the tables in
// docs/protocol.md. They are read off what the parts know; nothing is decided by them.
type States struct{ Requester, Holder, Directory string }

// StatesOf is in which states the parts of a node are for an object. It is for tests.
func StatesOf(e *Engine, id ObjectID) States {
	o := e.objects.find(id)
	if o == nil {
		o = &object{id: id, owner: NoNode}
	}
	p := e.peek(o)
	if p == nil {
		p = &pending{}
	}
	return States{e.requester.state(p).String(), holderState(o, p), directoryState(o, p)}
}

// requesterState is what a requester waits for.
type requesterState uint8

const (
	requesterIdle    requesterState = iota // nothing
	requesterParked                        // the end of a recovery, to ask then
	requesterAsked                         // the grant
	requesterCollect                       // acknowledgements that belong to the grant
	requesterFull                          // the operation that is under way, to fill then
	requesterFill                          // the page table, which lets the grant take effect
	requesterServed                        // to hear that its request is over: see multicasts
)

func (s requesterState) String() string {
	return [...]string{"idle", "parked", "asked", "collecting", "full", "filling", "served"}[s]
}

func (r *requester) state(p *pending) requesterState {
	switch {
	case p.op == EffectInstall || p.op == EffectMakeWritable:
		return requesterFill
	case p.granted && p.acks != 0:
		return requesterCollect
	case p.granted:
		return requesterFull
	case p.want == None:
		return requesterIdle
	case p.served:
		return requesterServed
	case r.view.phase != running || r.isLeaving(r.cfg.Self):
		return requesterParked
	}
	return requesterAsked
}

// holderState is the copy that a node has, in the terms of MESI, and what becomes of it.
func holderState(o *object, p *pending) string {
	s := [...]string{"I", "S", "M"}[o.has()]
	if o.protected() {
		s = "E"
	}
	switch {
	case p.op == EffectDowngrade && p.protecting:
		return s + ", to be committed"
	case p.op == EffectBackup:
		return s + ", committing"
	case p.op == EffectDowngrade:
		return s + ", downgrading"
	case p.op == EffectRevoke:
		return s + ", revoking"
	case p.hasParked:
		return s + ", wanted"
	}
	return s
}

// directoryState is what the home knows, and the transaction under way.
func directoryState(o *object, p *pending) string {
	s := "shared"
	switch {
	case o.owner == NoNode:
		s = "untouched"
	case o.lost():
		s = "lost"
	case o.backed():
		s = "backed up"
	case o.is(exclusiveFlag):
		s = "exclusive"
	}
	switch p.mode {
	case homeBusyShared:
		s += ", busy shared"
	case homeBusyExclusive:
		s += fmt.Sprintf(", busy for %v", p.granting)
	}
	return s
}
