package protocol

import (
	"cmp"
	"fmt"
	"slices"
)

// reclaim has memory freed that no name has any more, on every node: first nobody asks for its
// pages any more, then all forget them. See freeing for the phases, which the allocator
// goes through with all nodes.
type reclaim struct {
	*pages
	freed []freedExtent // runs of pages that are being freed
	// frees is how many are free since the last recovery. All nodes hear of that from the
	// allocator, in one order.
	frees uint32
	// bound is the memory that programs of this node have bound, until it is free. Whether a name
	// has it still or not, this node and its host remember things of it.
	bound []run
	// early are the phases that partition 0 has told this one, another, before its recovery was
	// over.
	early []freePhase
}

// freePhase is a phase of freeing a run that another partition has told.
type freePhase struct {
	run
	phase uint32
}

// freedExtent is a run of pages that is being freed, on every node.
type freedExtent struct {
	first    ObjectID
	count    uint64
	phase    uint32
	busy     bool // this phase is not acknowledged yet
	dropping bool // EffectFree is under way
}

// has reports whether a page is one of the run's.
func (d *freedExtent) has(id ObjectID) bool { return id >= d.first && uint64(id-d.first) < d.count }

// Freeing reports whether a page is being freed: until that is over this node asks for it no more.
func (e *Engine) Freeing(id ObjectID) bool { return e.reclaim.isDead(id) }

func (r *reclaim) onFree(m *Message) {
	k := m.AsFree()
	first, count, err := DecodeRun(k.Run)
	if err != nil || m.From != r.allocator() || PageObject(first) != m.Object || count == 0 || count > r.cfg.Pages || first > r.cfg.Pages-count {
		r.reject(m, "not a run of pages of the region, or not from the allocator")
		return
	}
	if !r.begin(run{first, count}, k.Phase) {
		r.reject(m, "not the next step of freeing these pages")
	}
}

// begin begins a phase of freeing a run. It returns false if that is not the next one.
func (r *reclaim) begin(x run, phase uint32) bool {
	i := slices.IndexFunc(r.freed, func(d freedExtent) bool { return d.first == PageObject(x.first) })
	switch {
	case phase == 1 && !r.overlapsDead(x.first, x.count) && len(r.freed) < r.limits.runs():
		r.freed = append(r.freed, freedExtent{first: PageObject(x.first), count: x.count, phase: 1, busy: true})
	case phase == 2 && i >= 0 && r.freed[i].phase == 1 && !r.freed[i].busy && r.freed[i].count == x.count:
		r.freed[i].phase, r.freed[i].busy = 2, true
	case phase == lastPhase && i >= 0 && r.freed[i].phase == 2 && !r.freed[i].busy && r.freed[i].count == x.count:
		r.freed = slices.Delete(r.freed, i, i+1)
		r.frees++
		r.done(x, lastPhase)
		return true
	default:
		return false
	}
	r.dropDead()
	return true
}

// done acknowledges a phase of freeing a run, or says that this partition has done its part of it.
func (r *reclaim) done(x run, phase uint32) {
	if r.cfg.Partitions > 1 {
		r.emit(Effect{Kind: EffectFreePhase, Object: PageObject(x.first), Count: x.count, Phase: phase, Epoch: r.view.epoch})
		return
	}
	r.send(FreeAck{Phase: phase}.To(r.allocator(), PageObject(x.first)))
}

// phase acknowledges a phase of which all partitions of this node have done their part, or begins
// this one's. What was being freed in an epoch that is over is freed anew.
func (r *reclaim) phase(ev Event) {
	switch x := (freePhase{run{ev.Object.Page(), ev.Count}, ev.Phase}); {
	case ev.Epoch < r.view.epoch:
	case r.cfg.Partition == 0:
		r.send(FreeAck{Phase: ev.Phase}.To(r.allocator(), ev.Object))
	case !r.view.changes():
		r.early = append(r.early, x)
	default:
		r.beginOwn(x)
	}
}

// beginOwn begins this partition's part of a phase.
func (r *reclaim) beginOwn(x freePhase) {
	if !r.begin(x.run, x.phase) {
		panic("protocol: the host has pages freed out of order")
	}
}

// ready begins what partition 0 has told while this one had not recovered.
func (r *reclaim) ready() {
	early := r.early
	r.early = nil
	for _, x := range early {
		r.beginOwn(x)
	}
}

// noteBound notes that a program of this node has bound memory.
func (r *reclaim) noteBound(x run) {
	if !slices.Contains(r.bound, x) {
		r.bound = append(r.bound, x)
	}
}

// top is the end of the memory of which this node remembers that it was bound.
func (r *reclaim) top() (end uint64) {
	for _, x := range r.bound {
		end = max(end, x.first+x.count)
	}
	for _, d := range r.freed {
		end = max(end, d.first.Page()+d.count)
	}
	for i := range r.backups.runs {
		end = max(end, r.backups.runs[i].first+r.backups.runs[i].count)
	}
	for _, s := range r.dir.suspects {
		end = max(end, s.first+s.count)
	}
	return end
}

// overlapsDead reports whether one of the pages is being freed already.
func (r *reclaim) overlapsDead(first, count uint64) bool {
	return slices.ContainsFunc(r.freed, func(d freedExtent) bool {
		return first < d.first.Page()+d.count && d.first.Page() < first+count
	})
}

// isForgotten reports whether a page is being freed at a point at which no node can ask for it: all
// have said that they won't, and this one has not yet said that it has dropped it, without which
// none may ask again.
func (r *reclaim) isForgotten(id ObjectID) bool {
	return slices.ContainsFunc(r.freed, func(d freedExtent) bool {
		return d.phase == 2 && d.busy && d.has(id)
	})
}

// isDead reports whether a page is being freed.
func (r *reclaim) isDead(id ObjectID) bool {
	return slices.ContainsFunc(r.freed, func(d freedExtent) bool { return d.has(id) })
}

// dropDead goes on with freeing where nothing is under way any more.
func (r *reclaim) dropDead() {
	if !r.view.changes() {
		return
	}
	for i := range r.freed {
		d := &r.freed[i]
		if !d.busy || d.dropping || r.anyPending(d) {
			continue
		}
		if d.phase == 1 {
			d.busy = false
			r.done(run{d.first.Page(), d.count}, 1)
			continue
		}
		d.dropping = true
		r.dir.clearSuspects(d.first.Page(), d.count)
		r.backups.dropReplicas(d.first, d.count)
		freed := run{d.first.Page(), d.count}
		r.bound = slices.DeleteFunc(r.bound, func(x run) bool { return len(x.minus(freed)) == 0 })
		for _, id := range r.objects.ids(d.first, d.count) {
			r.objects.remove(id)
		}
		r.emit(Effect{Kind: EffectFree, Object: d.first, Count: d.count})
	}
	if len(r.commits.batch) > 0 {
		r.commits.continueBatch()
	}
}

// anyPending reports whether anything is under way about the pages of a run: no copy of a backup
// may arrive after others have dropped theirs.
func (r *reclaim) anyPending(d *freedExtent) bool {
	return slices.ContainsFunc(r.evac.unsaved, func(c copying) bool { return d.has(c.id) }) || slices.ContainsFunc(r.objects.ids(d.first, d.count), func(id ObjectID) bool {
		return r.objects.find(id).pending != 0
	})
}

func (r *reclaim) forgotten(ev Event) {
	i := slices.IndexFunc(r.freed, func(d freedExtent) bool { return d.first == ev.Object && d.dropping })
	if i < 0 {
		panic("protocol: the host reports pages as forgotten that were not")
	}
	r.freed[i].busy, r.freed[i].dropping = false, false
	if r.view.changes() { // else all begins anew
		r.done(run{ev.Object.Page(), r.freed[i].count}, 2)
	}
}

// clone returns an independent copy, of other pages.
func (r *reclaim) clone(of *pages) reclaim {
	return reclaim{of, slices.Clone(r.freed), r.frees, slices.Clone(r.bound), slices.Clone(r.early)}
}

// appendState appends an encoding: see Engine.AppendState.
func (r *reclaim) appendState(b []byte) []byte {
	b = appendEach(appendNumbers(b, uint64(r.frees)), r.bound, func(b []byte, x run) []byte { return x.append(b) })
	b = appendEach(b, r.early, func(b []byte, x freePhase) []byte { return appendNumbers(x.run.append(b), uint64(x.phase)) })
	return appendEach(b, r.freed, func(b []byte, d freedExtent) []byte {
		return append(appendNumbers(b, uint64(d.first), d.count, uint64(d.phase)), bits(d.busy, d.dropping))
	})
}

// check tells what contradicts itself.
func (r *reclaim) check() error {
	if len(r.early) > 0 && (r.cfg.Partition == 0 || r.view.changes()) {
		return fmt.Errorf("%v wait for the end of a recovery, and there is none, or this partition has the say", r.early)
	}
	ordered := slices.SortedFunc(slices.Values(r.freed), func(a, b freedExtent) int { return cmp.Compare(a.first, b.first) })
	for i, d := range ordered {
		if d.phase < 1 || d.phase >= lastPhase || d.dropping && d.phase != 2 {
			return fmt.Errorf("%d pages from %v on are freed in phase %d, dropping: %t", d.count, d.first, d.phase, d.dropping)
		}
		if i > 0 && d.first < ordered[i-1].first+ObjectID(ordered[i-1].count) {
			return fmt.Errorf("pages from %v and from %v on are freed twice", ordered[i-1].first, d.first)
		}
	}
	return nil
}
