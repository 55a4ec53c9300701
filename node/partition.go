package node

import (
	"maps"
	"sync"
	"sync/atomic"

	"dsmd/internal/stripes"
	"dsmd/node/readahead"
	"dsmd/pagetable"
	"dsmd/protocol"
)

// partition is the place of a node's reactor among those of its daemon (Config.Reactors). Each of
// them is a Node for its stripes of the pages, with an engine, a page table and connections of its
// own, so that a fault is served without any other. Partition 0 leads: programs talk to it alone,
// and locks, barriers, names and members are its business. What concerns the others it tells them,
// by functions that their reactors call (news.tell), and they tell it what came of that in the same
// way.
type partition struct {
	number   int
	division stripes.Division
	all      []*Node // of the daemon, by number, this one among them
	// leases is whether this reactor has a group lease: then it must hear of it when programs
	// synchronise.
	leases atomic.Bool
	// latency is where all of them count how long faults take.
	latency histograms
	// freeing is how many of the others have not done their part of a phase of freeing the memory
	// from a page on; of the one that leads.
	freeing map[partFreeing]int
	// let is closed when the others may connect, which is at once, or when this node was let in
	// (Config.Rejoin).
	let     chan struct{}
	letOnce sync.Once
}

// newPartition is the place of one of so many reactors as all has.
func newPartition(number int, of stripes.Division, all []*Node, latency histograms) *partition {
	return &partition{number: number, division: of, all: all, latency: latency, freeing: map[partFreeing]int{}, let: make(chan struct{})}
}

// partFreeing is memory that is being freed, from a page on, since a view.
type partFreeing struct {
	first protocol.ObjectID
	epoch uint32
}

// open lets the other reactors connect.
func (s *partition) open() {
	if s.number == 0 {
		s.letOnce.Do(func() { close(s.let) })
	}
}

// several is whether the daemon has more reactors than this one.
func (s *partition) several() bool { return len(s.all) > 1 }

// reactors is how many the daemon has.
func (s *partition) reactors() int { return max(len(s.all), 1) }

// others are those that this one leads.
func (s *partition) others() []*Node {
	if s.number != 0 || !s.several() {
		return nil
	}
	return s.all[1:]
}

// has is whether this reactor serves a page.
func (s *partition) has(page pagetable.Page) bool { return s.division.Of(uint64(page)) == s.number }

// index is the place of a page among those that this reactor serves, whose stripes follow each
// other there.
func (s *partition) index(page pagetable.Page) pagetable.Page {
	return pagetable.Page(s.division.Index(uint64(page)))
}

// indexes is where the pages of an allocation are among those that this reactor serves.
func (s *partition) indexes(of readahead.Extent) (first, end pagetable.Page) {
	first = s.index(s.next(of.First))
	return first, first + pagetable.Page(s.pages(of.First, of.End))
}

// at is the page at a place among those that this reactor serves.
func (s *partition) at(index pagetable.Page) pagetable.Page {
	return pagetable.Page(s.division.At(s.number, uint64(index)))
}

// next is the first page from page on that this reactor serves.
func (s *partition) next(page pagetable.Page) pagetable.Page {
	return pagetable.Page(s.division.Next(s.number, uint64(page)))
}

// pages is how many pages of a run this reactor serves.
func (s *partition) pages(first, end pagetable.Page) int {
	if first >= end {
		return 0
	}
	return int(s.division.Count(s.number, uint64(first), uint64(end-first)))
}

// tellOthers has the other reactors call a function, each with its node.
func (s *partition) tellOthers(f func(*Node)) {
	for _, o := range s.others() {
		o.news.tell(func() { f(o) })
	}
}

// tellLead has the reactor that leads call a function.
func (s *partition) tellLead(f func(lead *Node)) {
	lead := s.all[0]
	lead.news.tell(func() { f(lead) })
}

// gather has the other reactors call ask, each with its node, and then this one call then with what
// they have returned. Without others it does so at once.
func gather[T any](s *partition, ask func(*Node) T, then func([]T)) {
	others := s.others()
	if len(others) == 0 {
		then(nil)
		return
	}
	var answers []T
	for _, o := range others {
		o.news.tell(func() {
			x := ask(o)
			s.tellLead(func(*Node) {
				if answers = append(answers, x); len(answers) == len(others) {
					then(answers)
				}
			})
		})
	}
}

// freePhase deals with a phase of freeing memory of which this reactor has done its part. All have
// to have before the node says so.
func (d *driver) freePhase(f *protocol.Effect) {
	ev := protocol.Event{Kind: protocol.EventFreePhase, Object: f.Object, Count: f.Count, Phase: f.Phase, Epoch: f.Epoch}
	if d.partition.number != 0 {
		d.partition.tellLead(func(lead *Node) { lead.drive.partFreed(ev) })
		return
	}
	maps.DeleteFunc(d.partition.freeing, func(of partFreeing, _ int) bool { return of.epoch < ev.Epoch })
	d.partition.freeing[partFreeing{ev.Object, ev.Epoch}] = len(d.partition.others())
	d.partition.tellOthers(func(o *Node) {
		o.drive.step(ev)
	})
}

// partFreed notes that another reactor has done its part.
func (d *driver) partFreed(ev protocol.Event) {
	of := partFreeing{ev.Object, ev.Epoch}
	if _, known := d.partition.freeing[of]; !known {
		return // of a view that is over
	}
	if d.partition.freeing[of]--; d.partition.freeing[of] == 0 {
		delete(d.partition.freeing, of)
		d.step(ev)
	}
}

// inUse tells the other reactors which memory was in use when a recovery began.
func (d *driver) inUse(f *protocol.Effect) {
	ev := protocol.Event{Kind: protocol.EventInUse, Epoch: f.Epoch, Payload: f.Payload}
	d.partition.tellOthers(func(o *Node) { o.drive.step(ev) })
}

// synchronised lets the other reactors know that a program has passed a barrier or got a lock, or
// is about to let others have what it has stored.
func (k *calls) synchronised() {
	for _, o := range k.drive.partition.others() {
		if o.partition.leases.Load() { // it is nothing to the others
			o.news.tell(func() { o.drive.step(protocol.Event{Kind: protocol.EventSynchronised}) })
		}
	}
}

// noteLease lets the reactor that leads know whether this one has a group lease.
func (d *driver) noteLease() {
	if has := d.engine.GroupLease() != 0; has != d.partition.leases.Load() {
		d.partition.leases.Store(has)
	}
}

// goesOn notes that a program goes on from a place where it has waited for others.
func (t *intake) goesOn(id protocol.ClientID, place uint64) {
	t.causes.Cue()
	t.predictor.goesOn(id, place)
	for _, o := range t.drive.partition.others() {
		o.news.hint(func() { o.intake.goesOn(id, place) })
	}
}
