package protocol

import (
	"encoding/binary"
	"slices"
)

// stays reports whether this node has been the allocator in all views since the last
// recovery that was completed here. If another was in between, that may have bound names although
// this node has not heard that the recovery was over.
func (n *registry) stays() bool {
	return n.here && !slices.ContainsFunc(n.view.before, func(homes []NodeID) bool { return homes[0] != n.cfg.Self })
}

// rebuild makes the allocator anew if it was elsewhere.
func (n *registry) rebuild(said reports) {
	if !n.stays() {
		*n = registry{env: n.env, here: true, since: n.view.epoch}
		former, free, unknown := n.formerNames(said)
		n.free = free
		said.each(func(from NodeID, x *entry) {
			switch x.tag {
			case tagName:
				n.applyName(from, x)
			case tagUse:
				n.applyUse(from, x)
			}
		})
		n.applyFormerNames(former)
		n.applyUnknown(unknown)
	}
	for _, b := range n.bound {
		n.uses -= len(b.users)
		b.users = slices.DeleteFunc(b.users, func(u user) bool { return !n.isMember(u.node) })
		n.uses += len(b.users)
	}
	n.waiting = slices.DeleteFunc(n.waiting, func(w waiting) bool { return !n.isMember(w.node) })
}

// formerNames is what the node reports that was the allocator last, if it is there, and what is
// free. If it is lost, or another one that is lost has perhaps been it since, nobody knows what
// that had done with the memory that nobody is known to use, which is unknown below the end of all
// that somebody remembers, and free above.
func (n *registry) formerNames(said reports) (former []entry, free []run, unknown run) {
	var last, since int64 = -1, -1 // the former allocator, and since when it was that
	top := uint64(0)
	said.each(func(from NodeID, x *entry) {
		switch {
		case x.tag == tagTop:
			top = max(top, x.first)
		case x.tag == tagAllocator && int64(x.since) > since:
			last, since = int64(from), int64(x.since)
		}
	})
	isLost := last < 0 || slices.ContainsFunc(n.view.before, func(homes []NodeID) bool {
		return int64(homes[0]) != last && !n.isMember(homes[0])
	})
	said.each(func(from NodeID, x *entry) {
		switch {
		case int64(from) != last:
			return
		case x.tag == tagFree && !isLost:
			free = append(free, x.run)
		case x.tag == tagBound || x.tag == tagFreeing && !isLost:
			former = append(former, *x)
		}
		if x.tag == tagBound || x.tag == tagFreeing {
			top = max(top, x.first+x.count)
		}
	})
	if !isLost {
		return former, sortRuns(free), run{}
	}
	if top < n.cfg.Pages {
		free = []run{{top, n.cfg.Pages - top}}
	}
	return former, free, run{0, top}
}

// applyUnknown has all of a run freed that has no name, on every node, as if its last user had just
// given it up.
func (n *registry) applyUnknown(unknown run) {
	begin := unknown.first
	end := run{first: unknown.first + unknown.count}
	for _, b := range append(slices.Clone(n.bound), &binding{run: end}) {
		if gap := (run{begin, min(b.first, end.first) - begin}); gap.count > 0 {
			n.freeing = append(n.freeing, freeing{run: gap})
		}
		begin = min(b.first+b.count, end.first)
	}
}

// applyName enters a name that programs of a member use.
func (n *registry) applyName(from NodeID, x *entry) {
	b := n.lookup(x.call.Name)
	switch {
	case b != nil && b.run != x.run, b == nil && (n.overlaps(x.run) || len(n.bound) >= n.limits.names):
		n.contradicts(from, PageObject(x.first), "others have that memory under another name, or that name for other memory, or there are too many")
	case b == nil:
		n.insert(&binding{run: x.run, name: x.call.Name, signature: x.call.Signature, replicas: x.call.Replicas})
		n.take(x.run)
	}
}

// applyUse enters that a program of a member uses a name.
func (n *registry) applyUse(from NodeID, x *entry) {
	i := slices.IndexFunc(n.bound, func(b *binding) bool { return b.run == x.run })
	if i < 0 || n.uses >= n.limits.uses {
		n.contradicts(from, PageObject(x.first), "that memory has no name, or names have too many uses")
		return
	}
	b := n.bound[i]
	b.kept = b.kept || x.kept
	if u := (user{from, x.call.Client}); !slices.Contains(b.users, u) {
		b.users = append(b.users, u)
		n.uses++
	}
}

// applyFormerNames enters what the former allocator knows and no user can tell. Where users
// contradict it, they are right: names have changed since.
func (n *registry) applyFormerNames(former []entry) {
	for i := range former {
		x := &former[i]
		b := n.lookup(x.call.Name)
		switch {
		case x.tag == tagBound && b != nil && b.run == x.run:
			b.kept = b.kept || x.kept
			continue
		case n.overlaps(x.run) || x.tag == tagBound && b != nil || len(n.bound)+len(n.freeing) >= n.limits.runs():
			continue
		case x.tag == tagBound:
			n.insert(&binding{run: x.run, name: x.call.Name, signature: x.call.Signature, replicas: x.call.Replicas, kept: x.kept})
		default:
			n.freeing = append(n.freeing, freeing{run: x.run})
		}
		n.take(x.run)
	}
}

// sendBound tells all members which memory was in use.
func (n *registry) sendBound() {
	var runs []run
	for _, b := range n.bound {
		runs = append(runs, b.run)
	}
	for i := range n.freeing {
		runs = append(runs, n.freeing[i].run)
	}
	for _, to := range n.memberList() {
		p := parcel{to: to}
		for _, r := range sortRuns(slices.Clone(runs)) {
			b := p.room(16)
			*b = AppendRun(*b, r.first, r.count)
		}
		n.dispatch(&p, func(pieces uint32, piece []byte) Message {
			return ReportBound{pieces, n.view.epoch, n.since, piece}.To(to)
		})
	}
}

// resume begins anew to free what was being freed, and frees what only lost nodes have used.
func (n *registry) resume() {
	if !n.here {
		return
	}
	for i := range n.freeing {
		n.nextPhase(&n.freeing[i])
	}
	for _, b := range slices.Clone(n.bound) {
		n.dropUnused(b, caller{})
	}
	n.goOnBinding()
}

// report gives all names to the node that keeps them from now on.
func (n *registry) report(p *parcel) {
	if !n.here || p.to == n.cfg.Self && n.stays() {
		return
	}
	b := p.room(1 + 4)
	*b = binary.LittleEndian.AppendUint32(append(*b, tagAllocator), n.since)
	for _, x := range n.bound {
		b := p.room(1 + 16 + 2 + 4 + len(x.name) + len(x.signature))
		*b = append(AppendRun(append(*b, tagBound), x.first, x.count), bits(x.kept), x.replicas)
		*b = binary.LittleEndian.AppendUint16(*b, uint16(len(x.name)))
		*b = binary.LittleEndian.AppendUint16(*b, uint16(len(x.signature)))
		*b = append(append(*b, x.name...), x.signature...)
	}
	for _, r := range n.free {
		b := p.room(1 + 16)
		*b = AppendRun(append(*b, tagFree), r.first, r.count)
	}
	for i := range n.freeing {
		b := p.room(1 + 16)
		*b = AppendRun(append(*b, tagFreeing), n.freeing[i].first, n.freeing[i].count)
	}
}

// leave forgets all names when another node has become the allocator.
func (n *registry) leave() {
	if n.allocator() != n.cfg.Self {
		*n = newRegistry(n.env, false)
	}
}

// restartPhases has all that is being freed be freed anew, from the first phase, when the recovery
// is over.
func (n *registry) restartPhases() {
	for i := range n.freeing {
		f := &n.freeing[i]
		f.phase = 0
		clear(f.missing)
	}
}
