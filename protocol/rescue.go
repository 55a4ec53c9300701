package protocol

import "slices"

// Handing over: after each recovery backups are copied to nodes that keep them since then (see listSpread), and when members are leaving each home
// fetches for itself what only they have. Then those can be left out of the next view, and nothing is lost with them.

// maxRescues bounds how many objects a home fetches at once for that, and how many copies of backups a node has sent that are not acknowledged: enough to keep a
// connection busy, and few beside what programs ask for.
const maxRescues = 64

// rescue is how far a member is with it.
type rescue struct {
	on      bool       // from the end of a recovery
	left    []ObjectID // ascending, and those that are being fetched first
	spread  []ObjectID // backups that this node has to copy, ascending
	unsaved []copying
}

// copying is a copy of a backup that was sent and is not acknowledged.
type copying struct {
	id ObjectID
	to NodeID
}

func (r rescue) clone() rescue {
	return rescue{r.on, slices.Clone(r.left), slices.Clone(r.spread), slices.Clone(r.unsaved)}
}

// startRescue lists what this node has to copy, and what only leaving members have.
func (e *Engine) startRescue() {
	e.rescue.on = true
	e.listSpread()
	if len(e.homeList()) == len(e.memberList()) || !isIn(e.view.homes, e.cfg.Self) {
		return
	}
	for _, id := range e.sortedIDs() {
		if e.home(id) == e.cfg.Self && e.onlyLeaving(e.objects.find(id)) {
			e.rescue.left = append(e.rescue.left, id)
		}
	}
}

// onlyLeaving says, at the home, whether leaving members alone have an object. It is as well if nobody has it: its backups are copied.
func (e *Engine) onlyLeaving(o *object) bool {
	if o == nil || o.owner == NoNode || o.lost() || o.backed() || e.isDead(o.id) {
		return false
	}
	var scratch [16]NodeID
	return !slices.ContainsFunc(o.sharers.appendTo(scratch[:0], &e.cfg), func(n NodeID) bool { return isIn(e.view.homes, n) })
}

// goOnRescuing asks for what is next, and says when all is here.
func (e *Engine) goOnRescuing() {
	left := e.rescue.left
	kept := left[:0]
	for i, id := range left {
		if len(kept) == maxRescues {
			kept = append(kept, left[i:]...)
			break
		}
		o := e.objects.find(id)
		if !e.onlyLeaving(o) {
			continue
		}
		kept = append(kept, id)
		if p := e.pendingOf(o); p.want == None && p.op == 0 {
			access := Read
			if id.IsLock() {
				access = Write
			}
			e.ask(o, p, access)
		}
		e.settle(o)
	}
	e.rescue.left = kept
	e.goOnSpreading()
	if r := &e.rescue; len(r.left)+len(r.spread)+len(r.unsaved) == 0 {
		e.rescue, e.replicas.newcomers = rescue{}, e.view.epoch+1
		e.emit(Effect{Kind: EffectHandedOver, Count: uint64(e.view.epoch)})
	}
}
