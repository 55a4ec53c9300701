package node

import (
	"fmt"

	"dsmd/internal/attach"
	"dsmd/internal/faultlog"
	"dsmd/pagetable"
	"dsmd/protocol"
)

// spread is the programs of a daemon with several reactors: what those that do not lead have to
// know of them, and the calls in which they have a part.
type spread struct{ *programs }

// joint is a call of a program that several reactors answer, each for its pages.
type joint struct {
	op      attach.Op
	missing int // answers
	reply   attach.Reply
	any     bool // there was one
}

// mayJoin is whether each reactor has a part in a call.
func mayJoin(op attach.Op) bool {
	switch op {
	case attach.OpPrefetch, attach.OpPin, attach.OpCommit, attach.OpStats, attach.OpUsage, attach.OpPrograms, attach.OpWaits:
		return true
	}
	return false
}

// share has the other reactors do their part of a call. The caller does this one's.
func (s spread) share(p *program, c *attach.Call) {
	pages := s.drive.exec.table.Pages()
	fetches := c.Op == attach.OpPrefetch || c.Op == attach.OpPin
	if !mayJoin(c.Op) || c.Op == attach.OpCommit && !s.cfg.Survive || fetches && (c.Object >= pages || c.Count > pages-c.Object) {
		return // this one finds out what is wrong with it
	}
	j := &joint{op: c.Op, missing: 1}
	for _, o := range s.drive.partition.others() {
		if fetches && o.partition.pages(pagetable.Page(c.Object), pagetable.Page(c.Object+c.Count)) == 0 {
			continue
		}
		j.missing++
		s.forward(p, c, o)
	}
	if j.missing > 1 {
		if p.joint == nil {
			p.joint = map[uint64]*joint{}
		}
		p.joint[c.Ticket] = j
	}
}

// forward has another reactor answer a call, or do its part of it.
func (s spread) forward(p *program, c *attach.Call, to *Node) {
	call, who := *c, p.identity
	id, ranked, relay := p.id, p.ranked, s.relay(p)
	to.news.tell(func() {
		as := to.programs.byID[id]
		switch {
		case as != nil:
		case !mayObserve(call.Op): // it has gone
			return
		default: // an observer, which is not known there
			as = &program{replies: &to.programs.replies, id: id, identity: who, ranked: ranked, relay: relay}
		}
		if err := to.programs.call(as, &call); err != nil {
			as.cutOff(err)
		}
	})
}

// relay is how another reactor reaches a program of this one.
func (s spread) relay(p *program) func(func(*program)) {
	return func(f func(*program)) {
		s.drive.partition.tellLead(func(lead *Node) {
			if lead.programs.byID[p.id] == p {
				f(p)
			}
		})
	}
}

// add takes an answer of one reactor, and returns whether it was the last.
func (j *joint) add(r *attach.Reply) bool {
	j.missing--
	switch observes := mayObserve(j.op); {
	case !j.any, j.reply.Status == attach.StatusOK && r.Status != attach.StatusOK:
		j.reply, j.any = *r, true
	case r.Status == attach.StatusOK && j.reply.Status == attach.StatusOK && observes:
		payload, err := attach.JoinAnswers(j.op, j.reply.Payload, r.Payload)
		if err != nil {
			panic(fmt.Sprintf("node: a reactor has answered %v with what is none: %v", j.op, err))
		}
		j.reply.Payload = payload
	}
	return j.missing == 0
}

// join takes a reactor's answer to a call that several have a part in. It returns nil if others are
// missing, and else what the program is told.
func (p *program) join(j *joint, r *attach.Reply) *attach.Reply {
	if !j.add(r) {
		return nil
	}
	delete(p.joint, r.Ticket)
	if j.op == attach.OpPin && j.reply.Status != attach.StatusOK {
		p.replies.unpin(p, r.Ticket) // what some have pinned
	}
	return &j.reply
}

// unpinAll ends what a program's Pin call has pinned here and at the other reactors.
func (s spread) unpinAll(p *program, ticket uint64) {
	if p.pins[ticket] != nil {
		_ = s.pins.unpin(p, ticket) // it is there
	}
	s.drive.partition.tellOthers(func(o *Node) {
		if as := o.programs.byID[p.id]; as != nil && as.pins[ticket] != nil {
			_ = o.pins.unpin(as, ticket)
		}
	})
}

// cancelAll ends the parts that other reactors have in a call.
func (s spread) cancelAll(p *program, ticket uint64) {
	if p.joint[ticket] == nil {
		return
	}
	s.drive.partition.tellOthers(func(o *Node) {
		if as := o.programs.byID[p.id]; as != nil && !o.fetcher.cancel(as, ticket) && !o.usage.cancel(as, ticket) {
			o.calls.cancel(as, ticket)
		}
	})
}

// lostPage tells a program whether a page is lost, which the reactor knows that serves it.
func (s spread) lostPage(p *program, c *attach.Call) {
	of := s.drive.partition
	if serves := of.division.Of(c.Object); serves != of.number {
		s.forward(p, c, of.all[serves])
		return
	}
	s.losses.answer(p, c)
}

// tellBound has the other reactors know what memory a program has bound, of which so many replicas
// are to be kept, and then calls then. The program must not touch it before.
func (s spread) tellBound(run []byte, name string, replicas uint8, then func()) {
	first, count, err := protocol.DecodeRun(run)
	if err != nil {
		then() // the program finds out
		return
	}
	s.intake.extents.Add(pagetable.Page(first), count, name)
	ev := protocol.Event{Kind: protocol.EventBound, Object: protocol.PageObject(first), Count: count, Replicas: replicas}
	gather(s.drive.partition, func(o *Node) struct{} {
		o.intake.extents.Add(pagetable.Page(first), count, name)
		o.drive.step(ev)
		return struct{}{}
	}, func([]struct{}) { then() })
}

// enrol has the other reactors serve the faults of a program, each by its descriptor, and then
// calls then with what went wrong, if anything did.
func (s spread) enrol(p *program, fds []int, then func(error)) {
	who, id, relay := p.identity, p.id, s.relay(p)
	gather(s.drive.partition, func(o *Node) error { return spread{o.programs}.take(id, who, fds[o.partition.number-1], relay) }, func(errs []error) {
		for _, err := range errs {
			if err != nil {
				then(err)
				return
			}
		}
		then(nil)
	})
}

// take has a reactor that does not lead serve a program's faults.
func (s spread) take(id protocol.ClientID, who identity, fd int, relay func(func(*program))) error {
	if err := s.drive.exec.table.Attach(pagetable.ProcID(id), fd, uintptr(s.cfg.RegionBase)); err != nil {
		return err
	}
	p := &program{replies: &s.replies, id: id, fd: -1, identity: who, ranked: true, relay: relay, stage: stageTrapped,
		files: files{closer: s.replies.closer}, waiting: map[uint64]protocol.Ticket{}, fetches: map[uint64]*fetch{}, pins: map[uint64]*pin{}}
	s.byID[id] = p
	s.end.attached++
	s.begin(p)
	return nil
}

// leave has a reactor that does not lead forget a program.
func (s spread) leave(id protocol.ClientID) {
	p := s.byID[id]
	if p == nil {
		return
	}
	s.untrap(id)
	for ticket := range p.waiting {
		s.calls.cancel(p, ticket)
	}
	delete(s.byID, id)
	s.end.attached--
	s.fetcher.dropProgram(p)
	s.saver.dropProgram(p)
	s.origins.fallbacks.dropProgram(p)
	s.intake.dropProgram(id)
}

// lockAt is programs.lockOf for a fault. Another reactor than the one that leads asks that one: the
// thread still has what it had as long as it waits, and what comes later is not noted.
func (s spread) lockAt(f *faultlog.Fault, proc pagetable.ProcID) uint64 {
	of := s.drive.partition
	switch {
	case of.number == 0:
		return s.lockOf(proc)
	case of.all[0].meter.count.wordsPublished.Load() == 0:
		return 0
	}
	asked, own := *f, of.all[of.number]
	of.tellLead(func(lead *Node) {
		if lock := lead.programs.lockOf(proc); lock != 0 {
			own.news.tell(func() { own.meter.lockIs(&asked, lock) })
		}
	})
	return 0
}

// faultLog tells a program what the log of faults has. Each reactor has one.
func (s spread) faultLog(p *program, c *attach.Call) error {
	reactor, detail := attach.FaultLogIn(c.Count)
	switch others := s.drive.partition.others(); {
	case reactor > uint64(len(others)):
		return fmt.Errorf("%w: the log of reactor %d, of %d", attach.ErrMalformed, reactor, 1+len(others))
	case reactor > 0:
		own := *c
		own.Count = detail
		s.forward(p, &own, others[reactor-1])
	default:
		p.answer(&attach.Reply{Ticket: c.Ticket, Payload: s.meter.log.batch(c, s.meter.clock, p.maySee)})
	}
	return nil
}
