package node

import (
	"dsmd/node/readahead"
	"dsmd/pagetable"
	"dsmd/protocol"
)

// predictor asks for the pages that threads will miss next, if they go on as they did before.
//
// A page that it has asked for is present when it comes, but not mapped in any program, and not
// opened for stores where it was here for reading: so the first access is reported, and is known to
// have come. Until then the page is said to be untouched.
type predictor struct {
	intake *intake
	trail  *readahead.Trail // nil: nothing is predicted
	next   []readahead.Prediction
	cues   []cue // not followed yet
}

// cue is where a program goes on.
type cue struct {
	client protocol.ClientID
	place  uint64
}

// goesOn notes that a program goes on from a place where it has waited for others. This happens
// within an effect; follow asks for what the program will miss there.
func (r *predictor) goesOn(client protocol.ClientID, place uint64) {
	if r.trail != nil {
		r.cues = append(r.cues, cue{client, place})
	}
}

// isDue is whether there is something to follow.
func (r *predictor) isDue() bool { return len(r.cues) > 0 }

// follow asks for what programs will miss that have gone on. It returns whether there were any.
func (r *predictor) follow() bool {
	if len(r.cues) == 0 {
		return false
	}
	for i := 0; i < len(r.cues); i++ { // asking may let another program go on
		c := r.cues[i]
		r.next = r.trail.Cue(c.place, r.next[:0])
		r.ask(pagetable.ProcID(c.client))
	}
	r.cues = r.cues[:0]
	r.intake.drive.end()
	return true
}

// touched notes that a thread has come for a page to which this node has some access. It returns
// the miss that this would be if the page had not been predicted, and whether it was.
func (r *predictor) touched(ev *pagetable.Event, has, access protocol.Access) (miss readahead.Miss, predicted bool) {
	miss = readahead.Miss{Thread: ev.Thread, Page: ev.Page, Has: has, Access: access}
	if r.trail == nil {
		return miss, false
	}
	a, untouched := r.trail.Untouched(ev.Page)
	if !untouched || access <= a.Had { // another program loads from a page that is to be stored to
		return miss, false
	}
	r.trail.Touched(ev.Page, access)
	miss.Has = a.Had
	count := &r.intake.meter.count.predictionCounts
	switch {
	case has >= access:
		count.predictedUsed.Add(1)
	case r.intake.drive.engine.Waiting(protocol.PageObject(uint64(ev.Page))):
		count.predictedLate.Add(1)
	default: // less was asked for, or it was lost with a node
		miss.Has = has
		return miss, false
	}
	return miss, true
}

// missed notes a miss of a thread of a program, and asks for what it will miss next.
func (r *predictor) missed(m readahead.Miss, proc pagetable.ProcID) {
	if r.trail != nil {
		r.next = r.trail.Missed(m, r.next[:0])
		r.ask(proc)
	}
}

// ask asks for what is predicted, in a program's name.
func (r *predictor) ask(proc pagetable.ProcID) {
	t := r.intake
	if t.quorum.lost() {
		return
	}
	for _, p := range r.next {
		has := t.drive.engine.Access(protocol.PageObject(uint64(p.Page)))
		if has < p.Access && r.mayAsk(p.Page) && r.trail.MayAsk(p.Page) {
			t.meter.count.predictedPages.Add(1)
			r.trail.Ask(p.Page, readahead.Asked{Had: has, Access: p.Access})
			t.fetch(p.Page, p.Access, proc)
			r.askBeyond(p, has, proc)
		}
	}
}

// askBeyond asks for the pages beyond one that was predicted, to which this node had some access.
// Like readahead it leaves pages alone to which it has less: others use them.
func (r *predictor) askBeyond(p readahead.Prediction, had protocol.Access, proc pagetable.ProcID) {
	t := r.intake
	own := t.drive.partition
	for i := range int64(p.Reach.Pages) {
		page := own.at(own.index(p.Page) + pagetable.Page((i+1)*int64(p.Reach.Stride)))
		has := t.drive.engine.Access(protocol.PageObject(uint64(page)))
		if has >= had && has < p.Reach.Access && r.mayAsk(page) {
			t.meter.count.predictedBeyond.Add(1)
			t.fetch(page, p.Reach.Access, proc)
		}
	}
}

// mayAsk is whether a page can be asked for that no thread waits for. To store to a page that is
// protected asks nobody.
func (r *predictor) mayAsk(page pagetable.Page) bool {
	t := r.intake
	id := protocol.PageObject(uint64(page))
	return !t.drive.engine.Waiting(id) && !t.drive.engine.Protected(id) && t.extents.Find(page) != nil && t.drive.partition.has(page) && t.mayGuess()
}

// isUntouched is whether a page that is about to be installed was predicted, and no thread has come
// for it yet.
func (r *predictor) isUntouched(page pagetable.Page) bool {
	if r.trail == nil {
		return false
	}
	a, untouched := r.trail.Untouched(page)
	return untouched && a.Had == protocol.None
}

// withholds is whether stores to a page that becomes writable are to be reported.
func (r *predictor) withholds(page pagetable.Page) bool {
	if r.trail == nil {
		return false
	}
	a, untouched := r.trail.Untouched(page)
	return untouched && a.Access == protocol.Write
}

// opened notes that stores to a page are not reported.
func (r *predictor) opened(page pagetable.Page) {
	if r.trail != nil {
		r.trail.Forget(page)
	}
}

// leaves notes that a page leaves this node for another one, or is for reading only from now on
// because that reads it. It returns whether it was here in vain.
func (r *predictor) leaves(page pagetable.Page, f *protocol.Effect) (vain bool) {
	if r.trail == nil || f.Kind == protocol.EffectDowngrade && f.Heir == protocol.NoNode {
		return false
	}
	if vain = r.trail.Gone(page, f.Kind == protocol.EffectRevoke); vain {
		r.intake.meter.count.predictedInVain.Add(1)
	}
	return vain
}

// contended notes that a writer on another node has taken a page before any program here had
// synchronised.
func (r *predictor) contended(page pagetable.Page) {
	if r.trail != nil {
		r.trail.Contended(page)
	}
}

// freed forgets pages whose memory is free, or that are lost.
func (r *predictor) freed(first pagetable.Page, count uint64) {
	if r.trail != nil {
		r.trail.Freed(first, count)
	}
}
