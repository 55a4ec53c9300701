package protocol

import "slices"

// Turns. Where many nodes write to many of the same pages at random, none gets anywhere: while it waits for one page it loses the
// others, and after each store it waits again. Each of them would be through in a moment if it had all the pages together. So a node that
// loses pages in this way keeps what it gains for a while, and gives way to others afterwards.
//
// What tells such pages from others is that a node gains one and loses it to a writer before it has synchronised. Programs
// whose nodes pass data on do so at locks and barriers; a page that is taken in between is falsely shared, or shared without order. And what
// synchronises ends the turn, so that nobody waits for a page whose data it has been told of.
//
// Nodes do not agree on whose turn it is. Several begin theirs together, and then soon wait for each other. One whose thread has
// waited for as long as it has patience lets go of everything; the last one goes on. Who gave up is more patient the next time, and who has had a whole turn
// takes none for as long again.
//
// A turn delays only what takes away pages that the node may write, and has gained within it; readers get their copies.

const (
	// DefaultCrowd is Config.Crowd when none is given: more pages than programs synchronise by without the library's locks and barriers.
	DefaultCrowd = 16
	// impatience is how many times the least patience is in the length of a turn.
	impatience = 16
	// mostPatience bounds how many times the least patience a node may have, so that it is shorter than a turn.
	mostPatience = 7
)

// turn is what an engine knows of the present turn of its node, and of whether there should be one.
type turn struct {
	number  uint32 // of turns so far
	active  bool
	resting bool // the last turn took its whole time
	since   Time // when the turn began, or, resting, when it ended
	gaveUp  Time // turns that were given up since one took its whole time

	synchronised Time       // when a program of this node last synchronised with others
	fought       []ObjectID // different pages that were gained and lost since; at most Config.Crowd

	asked   ObjectID // the page that a thread waits for, or has waited for last
	askedAt Time
	waits   bool // it has not been gained yet

	kept  []ObjectID // pages that are kept in this turn and wanted elsewhere
	timer ObjectID   // of one of them an EffectHold is under way, after which one looks whether the turn goes on
	timed bool       // timer is valid. It may be of a turn before
	over  []ObjectID // those of turns that are over, to be given up before Step returns
}

func (e *Engine) crowd() int {
	if e.cfg.Crowd == 0 {
		return DefaultCrowd
	}
	return e.cfg.Crowd
}

// patience is for how long a thread of this node may wait for a page before the node gives up its turn. Nodes differ a little, so that
// of those that wait for each other one is the first.
func (e *Engine) patience() Time {
	least := e.cfg.MaxHold / impatience
	return least + min(e.turn.gaveUp, mostPatience-2)*least + Time(e.cfg.Self%4)*least/2
}

// Turn is the number of the turn that this node has: 0 if it has none. In a turn whatever it gains for writing it keeps for some milliseconds,
// so that it is worth while to ask for much at once.
func (e *Engine) Turn() uint32 {
	if !e.turn.active {
		return 0
	}
	return e.turn.number
}

// demanded notes that a thread waits for a page.
func (e *Engine) demanded(o *object) {
	t := &e.turn
	t.asked, t.askedAt, t.waits = o.id, e.now, true
}

// takesTurn begins a turn when a page that a thread has waited for is here, if the pages of this node are fought for.
func (e *Engine) takesTurn(o *object) {
	t := &e.turn
	if !t.waits || t.asked != o.id {
		return
	}
	t.waits = false
	if t.active || len(t.fought) < e.crowd() || o.has() != Write || t.resting && e.now-t.since < e.cfg.MaxHold {
		return
	}
	t.active, t.resting, t.since = true, false, e.now
	t.number++
}

// losesTo notes that a page goes to a writer on another node. It says whether it was gained since a program of this node has synchronised.
func (e *Engine) losesTo(o *object) bool {
	t := &e.turn
	if e.now-o.since > e.now-t.synchronised {
		return false
	}
	if len(t.fought) < e.crowd() && !slices.Contains(t.fought, o.id) {
		t.fought = append(t.fought, o.id)
	}
	return true
}

// synchronises ends the turn: others may be waiting for what was written in it.
func (e *Engine) synchronises() {
	t := &e.turn
	t.synchronised, t.fought, t.gaveUp = e.now, t.fought[:0], 0
	if t.active {
		e.endTurn()
	}
}

func (e *Engine) endTurn() {
	t := &e.turn
	t.active, t.since = false, e.now
	t.over, t.kept = append(t.over, t.kept...), t.kept[:0]
}

// keeps says for how long a page that is wanted elsewhere is kept because of the turn, before one has to look again: 0 if it is not. It ends the turn
// if that has to be.
func (e *Engine) keeps(o *object, p *pending) Time {
	t := &e.turn
	if !t.active || o.has() != Write || p.deferred.Access != Write || e.now-o.since > e.now-t.since {
		return 0
	}
	left := e.cfg.MaxHold - min(e.now-t.since, e.cfg.MaxHold)
	patience := e.patience()
	if t.waits {
		patience -= min(e.now-t.askedAt, patience)
	}
	switch {
	case left == 0:
		t.resting, t.gaveUp = true, 0
	case patience == 0:
		t.gaveUp++
	default:
		return min(left, patience)
	}
	e.endTurn()
	return 0
}

// keep puts aside what takes a page away.
func (e *Engine) keep(o *object, p *pending, after Time) {
	if !p.kept {
		p.kept = true
		e.turn.kept = append(e.turn.kept, o.id)
	}
	if e.turn.timed {
		return
	}
	e.turn.timer, e.turn.timed = o.id, true
	if !p.holdArmed {
		e.armHold(o, p, after)
	}
}

// looksAtTurn looks whether the turn goes on, when the hold of a page is over and that was the one to wait for.
func (e *Engine) looksAtTurn(id ObjectID) {
	t := &e.turn
	if t.timed && t.timer == id {
		t.timed = false
	}
	for i := 0; i < len(t.kept) && !t.timed; i++ {
		o := e.objects.find(t.kept[i])
		if p := e.peek(o); p != nil && p.kept {
			e.retryDeferred(o, p)
			e.settle(o)
		}
	}
}

// yield gives up what was kept in turns that are over.
func (e *Engine) yield() {
	t := &e.turn
	for len(t.over) > 0 {
		last := len(t.over) - 1
		o := e.objects.find(t.over[last])
		t.over = t.over[:last]
		if p := e.peek(o); p != nil && p.kept {
			p.kept = false
			e.retryDeferred(o, p)
			e.settle(o)
		}
	}
}
