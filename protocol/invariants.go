package protocol

import "fmt"

// Builds with the tag invariants check every engine after every Step, and panic when something
// contradicts itself. Tests build their daemons so; a release is built without it.

// everyStep is up to how much an engine may know to have all of it checked after every step. One
// that knows more has the objects checked that the step was about, and everything once in about so
// many steps as there are things. So a step costs the same however much there is.
const everyStep = 64

// known counts what an engine has to go through to check everything.
func known(e *Engine) int {
	n := e.objects.count + len(e.locks.list) + len(e.locks.clients) + len(e.reclaim.freed) + len(e.barriers.calls) + e.barriers.arrived +
		e.barriers.waiting + len(e.names.calls) + len(e.names.uses)
	return n + len(e.registry.bound) + e.registry.uses + len(e.registry.free) + len(e.registry.freeing)
}

// allIsDue draws the steps after which everything is checked. It draws by the event and the time,
// so that an engine that is asked for much in one instant checks everything as seldom.
func allIsDue(e *Engine, ev *Event) bool {
	n := known(e)
	x := (uint64(e.now)*0x9e3779b97f4a7c15 ^ uint64(ev.Object)) * 0xbf58476d1ce4e5b9
	return n <= everyStep || (x>>32)%uint64(n) == 0
}

// verify checks an engine after a step, and what the step wants done.
func (e *Engine) verify(ev Event, out []Effect) {
	err := e.checkEffects(out)
	if err == nil && allIsDue(e, &ev) {
		err = e.Check()
	} else if err == nil {
		err = e.checkTouched(ev, out)
	}
	if err != nil {
		panic(fmt.Sprintf("protocol: node %d contradicts itself: %v\nafter %+v (message %+v)\nit wants %+v\nits state: %q",
			e.cfg.Self, err, ev, ev.Message, out, e.stateFor(ev)))
	}
}

// checkTouched checks the objects that a step was about.
func (e *Engine) checkTouched(ev Event, out []Effect) error {
	check := func(id ObjectID) error {
		o := e.objects.find(id)
		if o == nil {
			return nil
		}
		if err := e.checkObject(o, e.peek(o)); err != nil {
			return fmt.Errorf("%v: %w", id, err)
		}
		return nil
	}
	err := check(ev.Object)
	if ev.Message != nil && err == nil {
		err = check(ev.Message.Object)
	}
	for i := range e.local {
		if err == nil {
			err = check(e.local[i].Object)
		}
	}
	for i := range out {
		if err == nil {
			err = check(out[i].Object)
		}
	}
	return err
}

// checkEffects checks what holds of effects whatever the engine's state: messages go to others of
// the cluster, and what reports back is under way.
func (e *Engine) checkEffects(out []Effect) error {
	for i := range out {
		f := &out[i]
		o := e.objects.find(f.Object)
		p := e.peek(o)
		switch f.Kind {
		case EffectSend:
			if m := &f.Message; m.From != e.cfg.Self || m.To == e.cfg.Self || int(m.To) >= e.cfg.Nodes || m.Kind == 0 {
				return fmt.Errorf("a message of kind %v from %d to %d", m.Kind, m.From, m.To)
			}
		case EffectInstall, EffectMap, EffectMakeWritable, EffectDowngrade, EffectRevoke:
			if p == nil || p.op != f.Kind {
				return fmt.Errorf("effect %d on %v was ordered, and is not under way", f.Kind, f.Object)
			}
		case EffectHold:
			if p == nil || !p.holdArmed {
				return fmt.Errorf("a hold of %v was ordered, and is not under way", f.Object)
			}
		}
	}
	return nil
}

// stateFor is what is known of the object that an event is about, or, where there are few, of all.
func (e *Engine) stateFor(ev Event) []byte {
	if e.Objects() <= everyStep {
		return e.AppendState(nil)
	}
	if o := e.objects.find(ev.Object); o != nil {
		return e.appendObject(nil, o)
	}
	return nil
}
