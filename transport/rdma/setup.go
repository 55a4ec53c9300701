package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// connected begins with a peer that the base transport has reached.
func (r *router) connected(p *peer) {
	if p.cut {
		return
	}
	p.since = time.Now()
	if hello := r.base.PeerHello(p.id); !bytes.Equal(hello, Hello) {
		reason := "it offers no RDMA: it was started with --transport tcp, built without RDMA, or has no usable device"
		if len(hello) > 0 {
			reason = fmt.Sprintf("it offers another version of RDMA (%q)", hello)
		}
		if r.required {
			r.disconnect(p, fmt.Errorf("rdma: node %d: %w: %s", p.id, ErrRequired, reason))
			return
		}
		r.log(fmt.Sprintf("rdma: node %d is reached by TCP: %s", p.id, reason))
		r.setPath(p, pathPlain)
		p.plain = true
		r.counts.plain.Add(1)
		r.report(p)
		return
	}
	r.setPath(p, pathChoose)
	if r.initiates(p) {
		r.offer(p)
		return
	}
	r.setDue(p, setupPatience)
}

// offer makes a queue pair and tells the peer of it.
func (r *router) offer(p *peer) {
	p.generation++
	if err := r.makeLink(p); err != nil {
		r.tellBroken(p, err) // It waits for an offer.
		r.attemptFailed(p, err)
		return
	}
	p.link.mine = true
	if !r.giveBase(p, appendTerms(nil, noteOffer, r.termsFor(p)), nil) {
		r.breakLink(p, errors.New("rdma: the base transport takes no offer now"), false)
		return
	}
	p.silent = true
	r.setDue(p, setupPatience)
}

// heard notes that a peer has said something on the base transport. One that had said nothing since
// the last offer gets another one, if that has come to nothing.
func (r *router) heard(p *peer) {
	if p.silent = false; p.link == nil && r.broken == nil {
		r.setDue(p, p.pause)
	}
}

// makeLink makes this side's queue pair.
func (r *router) makeLink(p *peer) error {
	if r.broken != nil {
		return r.broken
	}
	end, err := r.fabric.endpoint()
	if err != nil {
		return err
	}
	p.link = &link{peer: p, end: end}
	r.links[end.number()] = p.link
	r.counts.linksTried.Add(1)
	return nil
}

// termsFor are what a peer must know to reach the queue pair and the slots that are the peer's.
func (r *router) termsFor(p *peer) terms {
	return terms{
		generation: p.generation, window: uint16(r.sizes.Window), slots: uint16(r.sizes.Slots), key: r.recvSlots.rkey,
		address: r.recvSlots.addr + uint64(p.index*r.sizes.Slots*r.sizes.SlotBytes), device: p.link.end.describe(),
	}
}

// noted deals with what a peer says about queue pairs.
func (r *router) noted(p *peer, frame []byte) error {
	switch n := note(frame[0]); n {
	case noteOffer, noteAnswer:
		terms, err := readTerms(frame)
		if err != nil {
			return err
		}
		if n == noteAnswer {
			r.answered(p, terms)
			return nil
		}
		return r.offered(p, terms)
	case noteReady, noteBroken:
		generation, text, err := readGeneration(frame)
		if err != nil {
			return err
		}
		reason := fmt.Errorf("rdma: node %d says: %s", p.id, text)
		switch {
		case p.link == nil && n == noteBroken && generation != p.generation:
			r.attemptFailed(p, reason)
			return nil
		case generation != p.generation || p.link == nil:
			return nil // It is about a queue pair that has been given up here as well.
		}
		if n == noteReady {
			if p.link.mine {
				return fmt.Errorf("%w: it is ready for a queue pair that it was offered", ErrMalformed)
			}
			r.linkUp(p)
			return nil
		}
		r.breakLink(p, reason, false)
		return nil
	default:
		return fmt.Errorf("%w: an unknown note %d", ErrMalformed, n)
	}
}

// offered answers an offer. Whatever was between the two before is over.
func (r *router) offered(p *peer, theirs terms) error {
	if r.initiates(p) || theirs.generation <= p.generation {
		return fmt.Errorf("%w: an offer of generation %d, which is not its turn", ErrMalformed, theirs.generation)
	}
	if p.link != nil {
		r.breakLink(p, errors.New("rdma: the peer has made a new queue pair"), false)
	}
	p.generation = theirs.generation
	err := r.makeLink(p)
	if err == nil {
		p.link.terms = theirs
		err = p.link.end.accept(theirs.device)
	}
	if err == nil && !r.giveBase(p, appendTerms(nil, noteAnswer, r.termsFor(p)), nil) {
		err = errors.New("rdma: the base transport takes no answer now")
	}
	switch {
	case err == nil:
		r.setDue(p, setupPatience)
	case p.link != nil:
		r.breakLink(p, err, true)
	default:
		r.tellBroken(p, err)
		r.attemptFailed(p, err)
	}
	return nil
}

// answered connects the queue pair that this side has offered.
func (r *router) answered(p *peer, theirs terms) {
	l := p.link
	if l == nil || !l.mine || l.up || l.answered || theirs.generation != p.generation {
		return
	}
	l.terms, l.answered = theirs, true
	done, err := l.end.connect(theirs.device)
	switch {
	case err != nil:
		r.breakLink(p, err, true)
	case done:
		r.try(p)
	}
}

// try asks the peer for an answer by the queue pair that this side has offered. That it is
// connected means little: where all was exchanged over the base transport, no packet may pass.
func (r *router) try(p *peer) {
	r.setDue(p, silentLooks*r.watchPause)
	r.greet(p, flagAck)
}

// greet sends a page that nobody looks at by a queue pair that is not used yet, and then an
// acknowledgement alone. So packets of full length must pass, too. All slots of the peer are free.
func (r *router) greet(p *peer, flags uint32) {
	r.requests = append(r.requests[:0], r.writePage(p, p.link, r.pool.bounce()))
	r.postAck(p, flags)
}

// greeted deals with the first acknowledgements by a queue pair that is not used yet. Who was asked
// answers. Who has asked knows now that packets pass in both directions.
func (r *router) greeted(l *link, h header) {
	switch {
	case l.mine:
		r.linkReady(l.peer)
	case h.flags&flagAck != 0:
		r.greet(l.peer, 0)
	}
}

// linkReady tells the peer that the queue pair works, and uses it.
func (r *router) linkReady(p *peer) {
	if !r.giveBase(p, appendGeneration(nil, noteReady, p.generation, ""), nil) {
		r.breakLink(p, errors.New("rdma: the base transport takes no word now"), true)
		return
	}
	r.linkUp(p)
}

// linkUp makes the queue pair the peer's path.
func (r *router) linkUp(p *peer) {
	l := p.link
	if l.up {
		return
	}
	l.up, l.began = true, time.Now()
	r.setPath(p, pathLink)
	p.due, p.decide = time.Time{}, false
	r.counts.linksUp.Add(1)
	if !p.quiet {
		r.log(fmt.Sprintf("rdma: node %d is reached by RDMA, from device %s", p.id, r.device))
	}
	r.report(p)
	r.list(p)
}

// breakLink gives the peer's queue pair up, and tells the peer if it is to. What was not
// acknowledged goes on the base transport, until there is another queue pair.
func (r *router) breakLink(p *peer, reason error, tell bool) {
	l := p.link
	if tell {
		r.tellBroken(p, reason)
	}
	r.unlink(p)
	if l.up {
		r.counts.linksFailed.Add(1)
		rarely := p.weigh(time.Since(l.began))
		if !p.quiet {
			r.log(fmt.Sprintf("rdma: node %d is reached by TCP for now, its queue pair has failed: %v%s", p.id, reason, rarely))
		}
		p.complaint = fmt.Sprint(reason)
	}
	r.attemptFailed(p, reason)
	if l.up && p.quiet { // if no other one comes up that is said
		p.complaint, p.complaints = "", min(p.complaints, maxComplaints-1)
	}
}

// weigh sees whether a queue pair has worked for long. If it has, all begins anew. If not, it
// returns why its end may not be logged when it comes to that again.
func (a *attempts) weigh(worked time.Duration) (rarely string) {
	if a.brief = worked < lasting; !a.brief {
		a.pause, a.complaints, a.quiet = firstPause, 0, false
		return ""
	}
	if a.quiet = time.Since(a.said) < briefSaid; !a.quiet {
		a.said = time.Now()
	}
	return fmt.Sprintf("; it has worked for less than %v, and while that is so it is said once in %v", lasting, briefSaid)
}

func (r *router) tellBroken(p *peer, reason error) {
	r.giveBase(p, appendGeneration(nil, noteBroken, p.generation, reason.Error()), nil)
}

// unlink parts with the peer's queue pair, if there is one.
func (r *router) unlink(p *peer) {
	l := p.link
	if l == nil {
		return
	}
	l.end.fail()
	p.link = nil
	r.draining++
	l.until = time.Now().Add(drainPatience)
	r.clock.ringAt(l.until)
	if l.up {
		r.counts.linksUp.Add(-1)
		r.setPath(p, pathBase)
	}
	// The receiver takes each number once, so that sending again is safe, and what it has not dealt
	// with it will not.
	for n := max(p.acked, p.safe) + 1; n <= p.sent; n++ {
		f := &p.ring[p.place(n)]
		again := f.bytes
		if f.page != nil {
			again += r.pageBytes
		}
		p.queued += again
		r.counts.QueuedBytes.Add(int64(again))
	}
	p.sent = min(p.sent, max(p.acked, p.safe))
	for _, h := range p.parked {
		r.spend(h.block)
	}
	p.parked = p.parked[:0]
	// The last acknowledgement may have been lost with the queue pair, and the peer may wait for
	// it.
	p.wantAck = true
	r.oweAck(p)
	r.list(p)
}

// attemptFailed sees to what comes after a queue pair that does not work.
func (r *router) attemptFailed(p *peer, reason error) {
	if p.lost != nil {
		return
	}
	if text := fmt.Sprint(reason); text != p.complaint && p.complaints < maxComplaints {
		p.complaint = text
		p.complaints++
		r.log(fmt.Sprintf("rdma: no queue pair to node %d: %s", p.id, text))
	}
	p.decide = true
	r.clock.ringAt(time.Now())
	if r.initiates(p) && r.broken == nil && !p.silent {
		r.setDue(p, p.pause)
		longest := longestPause
		if p.brief {
			longest = briefPause
		}
		p.pause = min(2*p.pause, longest)
	}
}

// setup goes on with connections that are being made.
func (r *router) setup() {
	err := r.fabric.setup(func(e endpoint, what occurrence, err error) {
		l := r.links[e.number()]
		if l == nil || l.end != e {
			return
		}
		current := l.peer.link == l
		switch {
		case what == occurDrained && !current:
			r.drained(l)
		case what == occurReady && current && !l.up:
			r.try(l.peer)
		case what == occurFailed && current:
			r.breakLink(l.peer, err, true)
		}
	})
	if err != nil {
		r.fail(err)
	}
}
