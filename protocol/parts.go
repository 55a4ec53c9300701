package protocol

// Part is one of the records that an engine's state consists of.
type Part struct {
	// Name is what the names of its fields begin with, as in Undecisive: engine, object or pending.
	Name   string
	Object ObjectID // what it is about; 0 where Name is engine
	Of     any      // a pointer to it
}

// Parts are the records that an engine's state consists of. Tests look into each field of them.
// Embedded pointers only lead from one part to another. Objects come in ascending order, so the
// parts of engines that know the same objects correspond.
func Parts(e *Engine) []Part {
	all := []Part{{"engine", 0, e}, {"engine", 0, e.pages}, {"engine", 0, e.env}}
	for _, id := range e.sortedIDs() {
		o := e.objects.find(id)
		all = append(all, Part{"object", id, o})
		if p := e.peek(o); p != nil {
			now := p.current()
			all = append(all, Part{"pending", id, &now})
		}
	}
	return all
}

// current is a pending without what is left over in it from an operation or a transaction that is
// over, and decides nothing.
func (p *pending) current() pending {
	now := *p
	if p.mode != homeBusyExclusive {
		now.supplier, now.invalidated = 0, 0
	}
	if !p.givesUp() {
		now.serving = recall{}
	}
	if !p.hasParked {
		now.parked = recall{}
	}
	return now
}

// Packed are the fields that have several values in their bits: by name, those of each value.
var Packed = map[string]map[string]uint64{
	"object.access": {
		"access": accessMask, "exclusive": exclusiveFlag, "held": heldFlag, "contested": contestedFlag,
		"migrant": migrantMask, "droppable": droppableFlag, "marked": markedFlag, "retries": retriesMax << retriesShift,
	},
}

// Undecisive are the fields of an engine's parts that AppendState leaves out, or in which it need
// not tell all values apart, and why. A name stands for all that is in it.
var Undecisive = map[string]string{
	"engine.cfg": "never changes", "engine.limits": "never changes",
	"engine.now": "what it decides is how long pages are held", "engine.pace": "the same",
	"object.since": "the same", "object.last": "the same", "object.access.contested": "the same", "object.access.retries": "the same", "pending.armedFor": "the same", "pending.kept": "the same", "pending.demand": "the same", "pending.demandedAt": "the same",
	"engine.out": "empty between Steps", "engine.local": "empty between Steps",
	"engine.objects": "an index: what is in it is encoded object by object", "engine.pendings": "the same", "engine.freePendings": "the same", "object.pending": "the same", "pending.inUse": "the same",
	"engine.backups.kept":  "the keys of its store; in which order they are reported decides nothing",
	"engine.locks.clients": "counted from the locks' holders and waiters", "engine.barriers.arrived": "counted from the barriers' arrivals", "engine.barriers.waiting": "counted from unconfirmed", "engine.registry.uses": "counted from the names' users",
	"engine.recovery.told[].pieces": "counted from the reports, until those are applied", "engine.recovery.told[].bytes": "the same", "engine.recovery.complete": "the same",
	"engine.recovery.parked": "counted from what is held",
	"engine.commits.missing": "counted from the objects' flags", "engine.wanted": "counted from what pages have pending",
	"engine.multicasts.readers": "what it decides is in which way pages come", "engine.multicasts.since": "the same", "engine.multicasts.rest": "the same", "engine.multicasts.restSince": "the same",
	"pending.acker": "whom a message names that is refused",
}
