package protocol

import (
	"fmt"
	"slices"
)

// Group leases. Where many nodes write to many of the same pages at random, none gets anywhere:
// while it waits for one page it loses the others, and after each store it waits again. Each of
// them would be through in a moment if it had all the pages together. So a node that loses pages
// in this way takes a lease on all that it gains for a while, and gives way to others afterwards.
//
// Such a page is contended: a node gains it and loses it to a writer before it has synchronised.
// Programs whose nodes pass data on do so at locks and barriers; a page that is taken in between is
// falsely shared, or shared without order. And what synchronises ends the lease, so that nobody
// waits for a page whose data it has been told of.
//
// Nodes do not agree on who has a lease. Several begin theirs together, and then soon wait for each
// other. One whose thread has waited for its yield time lets go of everything; the last one goes
// on. Who has yielded waits longer the next time. Who has had a whole lease takes none for as long
// again, and its next one may be twice as long, as it was too short for what the node had to do. A
// lease goes on only as long as it gains pages. Who has gained few in it has a shorter one, and
// after some of these rests for longer each time.
//
// A group lease delays only what takes away pages that the node may write, and has gained within
// it; readers get their copies.

const (
	// DefaultContentionThreshold is Config.ContentionThreshold when none is given: more pages than
	// programs synchronise by without the library's locks and barriers.
	DefaultContentionThreshold = 16
	// yieldTimes is how many times the least yield time is in the length of a group lease.
	yieldTimes = 16
	// mostYieldTimes bounds how many times the least yield time a node may wait, so that it is
	// shorter than a group lease.
	mostYieldTimes = 7
	// lostShare: a node takes a lease if it loses at least one in so many of the pages that it
	// gains before it synchronises.
	lostShare = 4
	// shareOfFew: a group lease in which fewer than Config.ContentionThreshold pages are gained
	// lasts one in so many of its time.
	shareOfFew = 4
	// mostDoublings is how often the length of a group lease doubles.
	mostDoublings = 4
	// fewFutile: after so many futile leases in a row a node rests twice as long after each, until
	// there were mostFutile.
	fewFutile, mostFutile = 2, 8
)

// pacing decides for how long a page stays that is wanted elsewhere. The rest of the protocol asks
// it one question: mayTake.
type pacing struct {
	*pages
	groupLease
	lastFaults []lastFault // of the threads that fault here; at most maxLastFaults
	prompt     uint32      // how many threads have faulted promptly: see noteProgress
}

// clone returns an independent copy, of other pages.
func (t *pacing) clone(of *pages) pacing {
	c := *t
	c.pages = of
	c.contended, c.kept, c.over = slices.Clone(t.contended), slices.Clone(t.kept), slices.Clone(t.over)
	c.gathered = slices.Clone(t.gathered)
	c.lastFaults = slices.Clone(t.lastFaults)
	return c
}

// groupLease is what an engine knows of its node's present group lease, and of whether there should
// be one.
type groupLease struct {
	number  uint32 // of leases so far
	active  bool
	resting bool // the last lease took all the time that it had earned
	since   Time // when the lease began, or, after it, when it ended
	gaveUp  Time // leases that were given up since one took all its time
	grown   Time // how often the length of a lease was doubled: see length
	futile  Time // leases in a row in which few pages were gained; at most mostFutile

	synchronised Time // when a program of this node last synchronised with others
	// contended: different pages that were gained and lost since; at most ContentionThreshold.
	contended []ObjectID
	// gains and losses since are how often a page was gained for writing, and lost to another
	// writer: a lease is worth while if much of what is gained is lost.
	gains, losses uint32
	// gathers is how many different pages were gained for writing in this lease, or in the last
	// one, and gathered the last of them, at most ContentionThreshold: others may count again.
	gathers  uint32
	gathered []ObjectID

	kept []ObjectID // pages that are kept in this lease and wanted elsewhere
	// of one of them an EffectHold is under way, after which one looks whether the lease goes on
	timer ObjectID
	timed bool       // timer is valid. It may be of a lease before
	over  []ObjectID // those of leases that are over, to be given up before Step returns
}

// GroupLease is the number of the group lease that this node has: 0 if it has none. In a group
// lease it keeps for some milliseconds whatever it gains for writing, so that it is worth while to
// ask for much at once.
func (e *Engine) GroupLease() uint32 {
	if !e.pace.groupLease.active {
		return 0
	}
	return e.pace.groupLease.number
}

// yieldTime is for how long a thread of this node may wait for a page before the node gives up its
// group lease. Nodes differ a little, so that of those that wait for each other one is the first.
func (t *pacing) yieldTime() Time {
	least := t.cfg.MaxHold / yieldTimes
	return least + min(t.gaveUp, mostYieldTimes-2)*least + Time(t.cfg.Self%4)*least/2
}

// length is how long a group lease lasts, or the last one may have lasted. Each time it has
// gathered as many pages as make a lease begin, it may last for another MaxHold. But who gathers
// few pages has nothing to do with many of them together: it waits in a loop for what another node
// will store, say, and that one for a page that is kept.
func (t *pacing) length() Time {
	if t.gathersFew() {
		return t.cfg.MaxHold / shareOfFew
	}
	return min(t.mostLength(), t.cfg.MaxHold*Time(t.gathers)/Time(t.cfg.ContentionThreshold))
}

// mostLength bounds the length of a group lease. One that took all that was too short for what the
// node has to do before it synchronises: the next one may be twice as long.
func (t *pacing) mostLength() Time { return t.cfg.MaxHold << t.grown }

// rest is for how long a node takes no lease after the last one: for as long as that lasted, if it
// took its whole time. Where leases gain few pages, however they end, nobody needs many pages
// together. Each of the nodes wants one now and then, as with atomic operations on a queue, and in
// a lease it only makes the others wait.
func (t *pacing) rest() (rest Time) {
	if t.resting {
		rest = t.length()
	}
	if t.futile > fewFutile {
		rest = max(rest, t.cfg.MaxHold/shareOfFew<<(t.futile-fewFutile))
	}
	return rest
}

func (t *pacing) gathersFew() bool { return int(t.gathers) < t.cfg.ContentionThreshold }

// gather notes that a page was gained in the lease. It may have been before, and then others have
// read it.
func (t *pacing) gather(o *object) {
	most := uint32(t.cfg.ContentionThreshold)
	switch {
	case slices.Contains(t.gathered, o.id) || t.gathers == most<<mostDoublings: // more buy nothing
		return
	case t.gathers < most:
		t.gathered = append(t.gathered, o.id)
	default:
		t.gathered[t.gathers%most] = o.id
	}
	t.gathers++
}

// demanded notes that a thread waits for access to a page, from the first one that does on.
func (t *pacing) demanded(p *pending, access Access) {
	if p.demand == None {
		p.demandedAt = t.now
	}
	p.demand = max(p.demand, access)
}

// waited is for how long a thread has waited for a page in this lease: the one that waits longest.
func (t *pacing) waited() (longest Time) {
	for _, p := range t.pendings {
		if p.inUse && p.demand != None {
			longest = max(longest, t.now-p.demandedAt)
		}
	}
	return min(longest, t.now-t.since)
}

// takeGroupLease begins a lease when a page that a thread has waited for is here, if the pages of
// this node are contended.
func (t *pacing) takeGroupLease(o *object, p *pending) {
	if o.has() == Write {
		t.gains++
		if t.active {
			t.gather(o)
		}
	}
	if p.demand == None {
		return
	}
	if p.demand <= o.has() {
		p.demand = None
	}
	if t.active || len(t.contended) < t.cfg.ContentionThreshold || t.losses*lostShare < t.gains || o.has() != Write || t.now-t.since < t.rest() {
		return
	}
	if t.resting && t.length() == t.mostLength() && t.now-t.since <= t.now-t.synchronised {
		t.grown = min(t.grown+1, mostDoublings)
	}
	t.active, t.resting, t.since, t.gathers, t.gathered = true, false, t.now, 0, t.gathered[:0]
	t.gather(o)
	t.number++
}

// leaves notes that a page goes to another node, wholly or for reading, and when if it was wanted
// while it was held. It returns whether that makes it a contended one.
func (t *pacing) leaves(o *object, r *recall) (contended bool) {
	contended = r.access == Write && !r.moves && t.noteContention(o)
	if o.is(contestedFlag) {
		o.since = t.now
	}
	return contended
}

// noteContention notes that a page goes to a writer on another node. It returns whether that makes
// it a contended one: it was gained since a program of this node has synchronised.
func (t *pacing) noteContention(o *object) bool {
	if t.now-o.since > t.now-t.synchronised {
		return false
	}
	t.losses++
	if len(t.contended) < t.cfg.ContentionThreshold && !slices.Contains(t.contended, o.id) {
		t.contended = append(t.contended, o.id)
	}
	return true
}

// synchronises ends the group lease: others may be waiting for what was written in it.
func (t *pacing) synchronises() {
	t.synchronised, t.contended, t.gaveUp, t.grown = t.now, t.contended[:0], 0, 0
	t.gains, t.losses = 0, 0
	if t.active {
		t.endGroupLease()
	}
}

func (t *pacing) endGroupLease() {
	t.active, t.since = false, t.now
	t.over, t.kept = append(t.over, t.kept...), t.kept[:0]
}

// keeps says for how long a page that is wanted elsewhere is kept because of the group lease,
// before one has to look again: 0 if it is not. It ends the lease if that has to be.
func (t *pacing) keeps(o *object, p *pending) Time {
	if !t.active || o.has() != Write || p.parked.access != Write || t.now-o.since > t.now-t.since {
		return 0
	}
	left := t.length() - min(t.now-t.since, t.length())
	yield := t.yieldTime()
	yield -= min(t.waited(), yield)
	switch {
	case left == 0:
		t.resting, t.gaveUp = true, 0
	case yield == 0:
		t.gaveUp++
	default:
		return min(left, yield)
	}
	if t.gathersFew() {
		t.futile = min(t.futile+1, mostFutile)
	} else {
		t.futile = 0
	}
	t.endGroupLease()
	return 0
}

// keep puts aside what takes a page away.
func (t *pacing) keep(o *object, p *pending, after Time) {
	if !p.kept {
		p.kept = true
		t.kept = append(t.kept, o.id)
	}
	if t.timed {
		return
	}
	t.timer, t.timed = o.id, true
	if !p.holdArmed {
		t.armHold(o, p, after)
	}
}

// lookAtGroupLease looks whether the lease goes on, when the hold of a page is over and that was
// the one to wait for.
func (t *pacing) lookAtGroupLease(id ObjectID) {
	if t.timed && t.timer == id {
		t.timed = false
	}
	for i := 0; i < len(t.kept) && !t.timed; i++ {
		o := t.objects.find(t.kept[i])
		if p := t.peek(o); p != nil && p.kept {
			t.holder.retryRecall(o, p)
			t.settle(o)
		}
	}
}

// yield gives up what was kept in leases that are over.
func (t *pacing) yield() {
	for len(t.over) > 0 {
		last := len(t.over) - 1
		o := t.objects.find(t.over[last])
		t.over = t.over[:last]
		if p := t.peek(o); p != nil && p.kept {
			p.kept = false
			t.holder.retryRecall(o, p)
			t.settle(o)
		}
	}
}

// noteProgress counts how often the same access faulted on a page that was wanted elsewhere all
// along: it seems to have lost the page before it got through.
//
// A thread that looks at the same place in a loop looks the same, but for one thing: it was running
// when the page left, and so faults promptly. For it the count goes down again. A thread that had
// to wait for a core may come just then by chance, so some of them count all the more: then none
// waits for ever, though it be so in each lease of the same length.
func (t *pacing) noteProgress(o *object, ev Event) {
	last := ev.which()
	prompt := t.now-o.since < t.holdTime(o)/promptShare
	switch {
	case last != o.last || !o.is(contestedFlag):
		o.setRetries(0)
	case !prompt:
		o.setRetries(o.retries() + 1)
	default:
		if t.prompt++; t.prompt%promptFailures == 0 {
			o.setRetries(o.retries() + retriesPerDoubling)
		} else {
			o.setRetries(max(o.retries()-1, 0))
		}
	}
	o.last = last
	o.set(contestedFlag, false)
}

// movedOn ends the hold of the page that a thread faulted on before, when it faults elsewhere: the
// access for which that page came has got through, and to keep the page from others any longer
// would only make them wait.
//
// One instruction can need two pages at once, and then a fault on the second does not mean that it
// is through with the first. So a page on which the same access has failed before is kept for its
// time.
func (t *pacing) movedOn(ev Event) {
	if ev.Thread == 0 {
		return
	}
	i := 0
	for i < len(t.lastFaults) && t.lastFaults[i].thread != ev.Thread {
		i++
	}
	step := lastFault{ev.Thread, ev.which(), ev.Object}
	switch {
	case i < len(t.lastFaults):
		before := t.lastFaults[i]
		t.lastFaults[i] = step
		if before.object != step.object {
			t.gotThrough(before)
		}
	case i < maxLastFaults:
		t.lastFaults = append(t.lastFaults, step)
	default:
		t.lastFaults[ev.Thread%maxLastFaults] = step
	}
}

// gotThrough ends the hold of a page if it was for that access.
func (t *pacing) gotThrough(f lastFault) {
	o := t.objects.find(f.object)
	if o == nil || !o.is(heldFlag) || o.last != f.which || o.retries() > 0 {
		return
	}
	o.set(heldFlag, false)
	if p := t.peek(o); p != nil {
		t.holder.retryRecall(o, p)
		t.settle(o)
	}
}

// holdTime is how long the page is kept from others after it was gained.
func (t *pacing) holdTime(o *object) Time {
	hold := t.cfg.Hold
	for range o.retries() / retriesPerDoubling {
		if hold *= 2; hold >= t.cfg.MaxHold {
			return t.cfg.MaxHold
		}
	}
	return hold
}

// armHold has the page looked at again after a while.
func (t *pacing) armHold(o *object, p *pending, after Time) {
	p.holdArmed, p.armedFor = true, o.since
	t.emit(Effect{Kind: EffectHold, Object: o.id, After: after})
}

// check tells if a page is kept and nothing will end that: neither a hold, nor an operation after
// which it is looked at again.
func (t *pacing) check() error {
	if p := t.peek(t.objects.find(t.timer)); t.timed && (p == nil || !p.holdArmed) {
		return fmt.Errorf("the group lease waits for the end of a hold of %v that is not under way", t.timer)
	}
	if !t.active || t.timed || !t.view.changes() {
		return nil
	}
	for _, id := range t.kept {
		if p := t.peek(t.objects.find(id)); p != nil && p.kept && p.hasParked && p.op == 0 && !p.granted {
			return fmt.Errorf("%v is kept in a group lease, and nothing ends that", id)
		}
	}
	return nil
}

// which tells accesses apart, as far as 16 bits can: the thread and where in the page.
func (ev *Event) which() uint16 {
	h := ev.Thread*0x9e3779b1 ^ ev.Offset*0x85ebca6b
	return uint16(h ^ h>>16)
}

// lastFault is where a thread faulted last.
type lastFault struct {
	thread uint32
	which  uint16
	object ObjectID
}

// maxLastFaults bounds the threads whose last fault is remembered. Of others it is not noticed that
// they have moved on, and their pages are held for the whole time.
const maxLastFaults = 64

const (
	// retriesPerDoubling is how many times in a row an access must fail to get through before its
	// page is held twice as long. More than 1, because a thread that spins on a contested word
	// looks the same.
	retriesPerDoubling = 4
	// promptShare: a fault is prompt if it comes, after the page has left, within one in so many of
	// the time for which the page was held.
	promptShare = 4
	// promptFailures: one in so many prompt faults counts as retriesPerDoubling failures. The
	// others must outweigh it, or the lease of a thread that polls would grow.
	promptFailures = 2 * retriesPerDoubling
)

// mayTake tells whether a page that is wanted elsewhere may be taken now. If not, it has the page
// looked at again when it may be.
func (t *pacing) mayTake(o *object, p *pending) bool {
	if o.is(heldFlag) {
		if p.holdArmed && p.armedFor == o.since {
			return false
		}
		hold := t.holdTime(o)
		if elapsed := t.now - o.since; elapsed < hold {
			o.set(contestedFlag, true)
			if !p.holdArmed { // else it is looked at again when that is over
				t.armHold(o, p, hold-elapsed)
			}
			return false
		}
		o.set(heldFlag, false)
	}
	if after := t.keeps(o, p); after > 0 {
		t.keep(o, p, after)
		return false
	}
	p.kept = false
	return true
}
