package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// connected begins with a peer that the base transport has reached.
func (t *Transport) connected(p *peer) {
	if p.cut {
		return
	}
	p.since = time.Now()
	if hello := t.base.PeerHello(p.id); !bytes.Equal(hello, Hello) {
		reason := "it offers no RDMA: it was started with --transport tcp, built without RDMA, or has no usable device"
		if len(hello) > 0 {
			reason = fmt.Sprintf("it offers another version of RDMA (%q)", hello)
		}
		if t.required {
			t.disconnect(p, fmt.Errorf("rdma: node %d: %w: %s", p.id, ErrRequired, reason))
			return
		}
		t.log(fmt.Sprintf("rdma: node %d is reached by TCP: %s", p.id, reason))
		t.setPath(p, pathPlain)
		p.plain = true
		t.counts.plain.Add(1)
		t.report(p)
		return
	}
	t.setPath(p, pathChoose)
	if t.initiates(p) {
		t.offer(p)
		return
	}
	t.setDue(p, setupPatience)
}

// offer makes a queue pair and tells the peer of it.
func (t *Transport) offer(p *peer) {
	p.generation++
	if err := t.makeLink(p); err != nil {
		t.tellBroken(p, err) // It waits for an offer.
		t.attemptFailed(p, err)
		return
	}
	p.link.mine = true
	if !t.giveBase(p, appendTerms(nil, noteOffer, t.termsFor(p)), nil) {
		t.breakLink(p, errors.New("rdma: the base transport takes no offer now"), false)
		return
	}
	t.setDue(p, setupPatience)
}

// makeLink makes this side's queue pair.
func (t *Transport) makeLink(p *peer) error {
	if t.broken != nil {
		return t.broken
	}
	end, err := t.fabric.endpoint()
	if err != nil {
		return err
	}
	p.link = &link{peer: p, end: end}
	t.links[end.number()] = p.link
	t.counts.linksTried.Add(1)
	return nil
}

// termsFor are what a peer must know to reach the queue pair and the slots that are the peer's.
func (t *Transport) termsFor(p *peer) terms {
	return terms{
		generation: p.generation, window: t.sizes.Window, slots: t.sizes.Slots, key: t.recvSlots.rkey,
		address: t.recvSlots.addr + uint64(p.index*t.sizes.Slots*t.sizes.SlotBytes), device: p.link.end.describe(),
	}
}

// noted deals with what a peer says about queue pairs.
func (t *Transport) noted(p *peer, frame []byte) error {
	switch n := note(frame[0]); n {
	case noteOffer, noteAnswer:
		terms, err := readTerms(frame)
		if err != nil {
			return err
		}
		if n == noteAnswer {
			t.answered(p, terms)
			return nil
		}
		return t.offered(p, terms)
	case noteReady, noteBroken:
		generation, text, err := readGeneration(frame)
		if err != nil {
			return err
		}
		reason := fmt.Errorf("rdma: node %d says: %s", p.id, text)
		switch {
		case p.link == nil && n == noteBroken:
			t.attemptFailed(p, reason)
			return nil
		case generation != p.generation || p.link == nil:
			return nil // It is about a queue pair that has been given up here as well.
		}
		if n == noteReady {
			t.linkUp(p)
			return nil
		}
		t.breakLink(p, reason, false)
		return nil
	default:
		return fmt.Errorf("%w: an unknown note %d", ErrMalformed, n)
	}
}

// offered answers an offer. Whatever was between the two before is over.
func (t *Transport) offered(p *peer, theirs terms) error {
	if t.initiates(p) || theirs.generation <= p.generation {
		return fmt.Errorf("%w: an offer of generation %d, which is not its turn", ErrMalformed, theirs.generation)
	}
	if p.link != nil {
		t.breakLink(p, errors.New("rdma: the peer has made a new queue pair"), false)
	}
	p.generation = theirs.generation
	err := t.makeLink(p)
	if err == nil {
		p.link.terms = theirs
		err = p.link.end.accept(theirs.device)
	}
	if err == nil && t.giveBase(p, appendTerms(nil, noteAnswer, t.termsFor(p)), nil) {
		t.setDue(p, setupPatience)
		return nil
	}
	if p.link != nil {
		t.breakLink(p, err, true)
		return nil
	}
	t.tellBroken(p, err)
	t.attemptFailed(p, err)
	return nil
}

// answered connects the queue pair that this side has offered.
func (t *Transport) answered(p *peer, theirs terms) {
	l := p.link
	if l == nil || !l.mine || l.up || theirs.generation != p.generation {
		return
	}
	l.terms = theirs
	done, err := l.end.connect(theirs.device)
	switch {
	case err != nil:
		t.breakLink(p, err, true)
	case done:
		t.linkReady(p)
	}
}

// linkReady tells the peer that this side's queue pair works, and uses it.
func (t *Transport) linkReady(p *peer) {
	if !t.giveBase(p, appendGeneration(nil, noteReady, p.generation, ""), nil) {
		t.breakLink(p, errors.New("rdma: the base transport takes no word now"), true)
		return
	}
	t.linkUp(p)
}

// linkUp makes the queue pair the peer's path.
func (t *Transport) linkUp(p *peer) {
	l := p.link
	if l.up {
		return
	}
	l.up = true
	t.setPath(p, pathLink)
	p.pause, p.due, p.decide, p.complaint = firstPause, time.Time{}, false, ""
	p.complaints = 0
	t.counts.linksUp.Add(1)
	t.log(fmt.Sprintf("rdma: node %d is reached by RDMA, from device %s", p.id, t.fabric.name()))
	t.report(p)
	t.list(p)
}

// breakLink gives the peer's queue pair up. tell says whether the peer must be told. What was not acknowledged goes on the
// base transport, until there is another queue pair.
func (t *Transport) breakLink(p *peer, reason error, tell bool) {
	wasUp := p.link.up
	if tell {
		t.tellBroken(p, reason)
	}
	t.unlink(p)
	if wasUp {
		t.counts.linksFailed.Add(1)
		t.log(fmt.Sprintf("rdma: node %d is reached by TCP for now, its queue pair has failed: %v", p.id, reason))
		p.complaint = fmt.Sprint(reason)
	}
	t.attemptFailed(p, reason)
}

func (t *Transport) tellBroken(p *peer, reason error) {
	text := "no reason given"
	if reason != nil {
		text = reason.Error()
	}
	t.giveBase(p, appendGeneration(nil, noteBroken, p.generation, text), nil)
}

// unlink parts with the peer's queue pair, if there is one.
func (t *Transport) unlink(p *peer) {
	l := p.link
	if l == nil {
		return
	}
	l.end.fail()
	p.link = nil
	t.draining++
	l.until = time.Now().Add(drainPatience)
	t.ringAt(l.until)
	if l.up {
		t.counts.linksUp.Add(-1)
		t.setPath(p, pathBase)
	}
	// The receiver takes each number once, so that sending again is safe, and what it has not dealt with it will not.
	for n := max(p.acked, p.safe) + 1; n <= p.sent; n++ {
		f := &p.ring[p.place(n)]
		again := f.bytes
		if f.page != nil {
			again += t.pageBytes
		}
		p.queued += again
		t.counts.queuedBytes.Add(int64(again))
	}
	p.sent = min(p.sent, max(p.acked, p.safe))
	for _, h := range p.held {
		t.spend(h.block)
	}
	p.held = p.held[:0]
	// The last acknowledgement may have been lost with the queue pair, and the peer may wait for it.
	p.wantAck = true
	t.oweAck(p)
	t.list(p)
}

// attemptFailed sees to what comes after a queue pair that does not work.
func (t *Transport) attemptFailed(p *peer, reason error) {
	if p.lost != nil {
		return
	}
	if text := fmt.Sprint(reason); text != p.complaint && p.complaints < maxComplaints {
		p.complaint = text
		p.complaints++
		t.log(fmt.Sprintf("rdma: no queue pair to node %d: %s", p.id, text))
	}
	p.decide = true
	t.ringAt(time.Now())
	if t.initiates(p) && t.broken == nil {
		t.setDue(p, p.pause)
		p.pause = min(2*p.pause, longestPause)
	}
}

// setDue makes tick look at the peer after a while.
func (t *Transport) setDue(p *peer, after time.Duration) {
	p.due = time.Now().Add(after)
	t.ringAt(p.due)
}

// ringAt makes the reactor's descriptor readable at a time, or before.
func (t *Transport) ringAt(at time.Time) {
	if t.clock.at.IsZero() || at.Before(t.clock.at) {
		t.clock.at = at
		t.clock.timer.Reset(max(time.Until(at), 0))
	}
}

// ring is called by the timer, on a goroutine of its own.
func (t *Transport) ring() {
	t.clock.rang.Store(true)
	t.wait.event.Signal()
}

// tick does what is due.
func (t *Transport) tick() {
	t.clock.at = time.Time{}
	t.clock.rang.Store(false)
	t.wait.event.Clear()
	now := time.Now()
	for _, p := range t.peers {
		if p == nil || p.lost != nil {
			continue
		}
		if !p.due.IsZero() && !now.Before(p.due) {
			p.due = time.Time{}
			t.overdue(p)
		}
		if p.decide {
			p.decide = false
			t.settle(p, now)
		}
		if !p.due.IsZero() {
			t.ringAt(p.due)
		}
	}
	t.watched(now)
	for _, l := range t.links {
		switch {
		case l.until.IsZero():
		case now.Before(l.until):
			t.ringAt(l.until)
		default:
			l.drained = true
		}
	}
}

// overdue sees to a peer whose time has come: for the next attempt, or because the last one has taken too long.
func (t *Transport) overdue(p *peer) {
	switch {
	case p.link != nil && !p.link.up:
		t.breakLink(p, fmt.Errorf("rdma: node %d: no queue pair after %v", p.id, setupPatience), true)
	case p.link != nil:
	case t.initiates(p):
		t.offer(p)
	default:
		p.decide = true
	}
}

// settle lets a peer's frames take the base transport, because there will be no queue pair soon; or parts with the
// peer, if that is not allowed.
func (t *Transport) settle(p *peer, now time.Time) {
	if p.path != pathChoose {
		return
	}
	if t.required {
		if now.Before(p.since.Add(requiredPatience)) {
			if p.due.IsZero() {
				t.setDue(p, requiredPatience)
			}
			return
		}
		t.disconnect(p, fmt.Errorf("rdma: node %d: %w: %s", p.id, ErrRequired, p.complaint))
		return
	}
	t.log(fmt.Sprintf("rdma: node %d is reached by TCP for now", p.id))
	t.setPath(p, pathBase)
	t.report(p)
}

// setup goes on with connections that are being made.
func (t *Transport) setup() {
	err := t.fabric.setup(func(e endpoint, what occurrence, err error) {
		l := t.links[e.number()]
		if l == nil || l.end != e {
			return
		}
		current := l.peer.link == l
		switch {
		case what == occurDrained && !current:
			l.drained = true
		case what == occurReady && current && !l.up:
			t.linkReady(l.peer)
		case what == occurFailed && current:
			t.breakLink(l.peer, err, true)
		}
	})
	if err != nil {
		t.breakDevice(err)
	}
}

// reap gives queue pairs back that have failed. It is called when the device has no completion left, because some devices drop
// those of a queue pair with it, and with them the receives that they are about.
func (t *Transport) reap() {
	for number, l := range t.links {
		if !l.drained {
			continue
		}
		delete(t.links, number)
		t.draining--
		if err := l.end.close(); err != nil {
			t.log(err.Error())
		}
	}
}

// breakDevice stops using the device.
func (t *Transport) breakDevice(err error) {
	if t.broken != nil {
		return
	}
	t.broken = err
	t.log(fmt.Sprintf("rdma: device %s is no longer used: %v", t.fabric.name(), err))
	for _, p := range t.peers {
		if p != nil && p.link != nil {
			t.breakLink(p, err, true)
		}
	}
}
