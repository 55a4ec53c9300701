package protocol

import "slices"

// A home that is lost may have told some of a release and not others, who would wait on. So it
// tells everybody who else is released, by a BarrierOpen, and who has heard that remembers it. If
// the home is lost, those who remember tell the others, before their EpochMarkers. Then it is true
// also of a lost home that a release has come before all marks (see resume): who still waits was
// released by nobody, or only on nodes that are lost, and arrives anew.
//
// A barrier with more parties than mostNamed, or that is a tree, names nobody else. Of a release
// that a lost home may have said nothing is known then.
//
// When a recovery is over all have heard what was said before it, and nobody remembers it: another
// process that comes as one of the nodes may use its tickets again.

// opening is a release of which this node has heard.
type opening struct {
	home     NodeID // that has said it
	object   ObjectID
	status   Status
	releases []byte // as in a BarrierOpen
}

const (
	// mostNamed is how many parties a release names, at most: 1.3 kB to each node.
	mostNamed = 128
	// mostOpenings and mostOpeningBytes bound what a node remembers: the last release of each
	// barrier, and earlier ones of which somebody may not have heard.
	mostOpenings, mostOpeningBytes = 64, 1 << 20
)

// isNamed reports whether a release of so many parties has named all of them, in each view since
// the last recovery that was completed.
func (e *env) isNamed(parties int) bool {
	return parties <= mostNamed && (parties < e.cfg.TreeFrom || !e.view.trees)
}

// sayOpen sends a BarrierOpen to each node that it names, but this one.
func (e *env) sayOpen(o *opening, to []addressee) {
	told := []NodeID{e.cfg.Self}
	for _, a := range to {
		if !slices.Contains(told, a.node) && e.isMember(a.node) {
			told = append(told, a.node)
			e.send(BarrierOpen{Status: o.status, Releases: o.releases}.To(a.node, o.object))
		}
	}
}

// onOpen answers the calls of this node that a release names. It comes from the home, or in its
// place from somebody else.
func (b *barriers) onOpen(m *Message) {
	k := m.AsBarrierOpen()
	to, result, err := decodeBroadcast(k.Releases)
	switch {
	case err != nil:
		b.reject(m, err.Error())
		return
	case !m.Object.IsLock() || k.Status != StatusOK && k.Status != StatusNoSpace:
		b.reject(m, "no release of a barrier, or one with an answer to one arrival")
		return
	}
	home := NoNode
	for _, a := range to {
		if a.node != b.cfg.Self {
			continue
		}
		i := slices.IndexFunc(b.calls, func(c arrivalCall) bool { return c.ticket == a.ticket && c.object == m.Object })
		if i < 0 {
			continue // canceled meanwhile
		}
		c := b.calls[i]
		if home = c.to; home == b.cfg.Self || home == NoNode {
			b.reject(m, "the call that it answers went to another node, or was another")
			return
		}
		b.calls = slices.Delete(b.calls, i, i+1)
		b.complete(&c, k.Status, result)
	}
	if home != NoNode {
		b.openings.add(opening{home: home, object: m.Object, status: k.Status, releases: slices.Clone(k.Releases)})
	}
}

// openings are the last releases of which a node has heard, the oldest first.
type openings []opening

// add adds a release. An earlier one of the barrier is over if all whom it names have arrived
// again.
func (l *openings) add(o opening) {
	to, _, _ := decodeBroadcast(o.releases)
	all := slices.DeleteFunc(*l, func(x opening) bool {
		if x.object != o.object {
			return false
		}
		former, _, _ := decodeBroadcast(x.releases)
		return !slices.ContainsFunc(former, func(f addressee) bool {
			return !slices.ContainsFunc(to, func(a addressee) bool { return a.node == f.node })
		})
	})
	all = append(all, o)
	bytes, keep := 0, len(all)
	for keep > 0 && len(all)-keep < mostOpenings && bytes+len(all[keep-1].releases) <= mostOpeningBytes {
		keep--
		bytes += len(all[keep].releases)
	}
	*l = slices.Delete(all, 0, keep)
}

// repeat tells the others of releases whose home is lost.
func (l openings) repeat(in *env) {
	for i := range l {
		if o := &l[i]; !in.isMember(o.home) {
			to, _, _ := decodeBroadcast(o.releases)
			in.sayOpen(o, to)
		}
	}
}
