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
	for _, c := range r.cues {
		r.next = r.trail.Cue(c.place, r.next[:0])
		r.ask(pagetable.ProcID(c.client))
	}
	r.cues = r.cues[:0]
	r.intake.drive.end()
	return true
}

// touched notes that a thread has come for a page to which this node has some access. It returns
// whether the thread would have missed it if it had not been predicted, and the access that the
// node would have now.
func (r *predictor) touched(page pagetable.Page, has protocol.Access) (had protocol.Access, predicted bool) {
	if r.trail == nil {
		return has, false
	}
	had, predicted = r.trail.Touched(page)
	count := &r.intake.meter.count.predictionCounts
	switch {
	case !predicted:
		return has, false
	case r.intake.drive.engine.Waiting(protocol.PageObject(uint64(page))):
		count.predictedLate.Add(1)
	case has > had:
		count.predictedUsed.Add(1)
	default: // it was lost with a node
		return has, false
	}
	return had, true
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
		if has >= p.Access || !r.mayAsk(p.Page) {
			continue
		}
		t.meter.count.predictedPages.Add(1)
		r.trail.Asked(p.Page, has == protocol.Read)
		t.fetch(p.Page, p.Access, proc)
		for i := range int64(p.Reach.Pages) {
			page := p.Page + pagetable.Page((i+1)*int64(p.Reach.Stride))
			if t.drive.engine.Access(protocol.PageObject(uint64(page))) == protocol.None && r.mayAsk(page) {
				t.meter.count.predictedBeyond.Add(1)
				t.fetch(page, p.Access, proc)
			}
		}
	}
}

// mayAsk is whether a page can be asked for that no thread waits for.
func (r *predictor) mayAsk(page pagetable.Page) bool {
	t := r.intake
	return !t.drive.engine.Waiting(protocol.PageObject(uint64(page))) && t.extents.Find(page) != nil && t.mayGuess()
}

// isUntouched is whether a page was predicted, and no thread has come for it yet.
func (r *predictor) isUntouched(page pagetable.Page) bool {
	return r.trail != nil && r.trail.Untouched(page)
}

// leaves notes that a page leaves this node, or is for reading only from now on.
func (r *predictor) leaves(page pagetable.Page, f *protocol.Effect) {
	if r.trail == nil {
		return
	}
	if r.trail.Gone(page, f.Kind == protocol.EffectRevoke) {
		r.intake.meter.count.predictedInVain.Add(1)
	}
	if f.Contended {
		r.trail.Contended(page)
	}
}

// freed forgets pages whose memory is free.
func (r *predictor) freed(first pagetable.Page, count uint64) {
	if r.trail != nil {
		r.trail.Freed(first, count)
	}
}
