package protocol

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
)

// report is what one member has told this node, in one message of several.
type report struct {
	from    NodeID
	payload []byte
}

// What a Report is made of, each with its tag before it.
const (
	tagObject = iota + 1 // id, access: None if the node once knew the object, and its directory entry was lost
	tagName              // run, kept, length, NameCall: a program of this node has bound it
	tagTop               // the first page above all that the node knows of
)

const objectBytes = 1 + 8 + 1

// AppendHolding appends to the payload of a ReportHeld that its sender has this access to an object.
func AppendHolding(b []byte, id ObjectID, a Access) []byte {
	b = append(b, tagObject)
	b = binary.LittleEndian.AppendUint64(b, uint64(id))
	return append(b, byte(a))
}

// EachHolding calls f for each object in the payload of a ReportHeld, as far as that can be read.
func EachHolding(payload []byte, f func(ObjectID, Access)) {
	_ = eachEntry(payload, func(x *entry) {
		if x.tag == tagObject {
			f(x.id, x.access)
		}
	})
}

// parcel fills Reports, or whatever has pieces, to one member.
type parcel struct {
	to     NodeID
	pieces [][]byte
}

// room returns where to append the next n bytes.
func (p *parcel) room(n int) *[]byte {
	if last := len(p.pieces) - 1; last >= 0 && len(p.pieces[last])+n <= MaxPayload {
		return &p.pieces[last]
	}
	p.pieces = append(p.pieces, make([]byte, 0, n))
	return &p.pieces[len(p.pieces)-1]
}

// dispatch sends a parcel, in at least one message, each of which says how many there are.
func (e *Engine) dispatch(p *parcel, kind Kind) {
	if len(p.pieces) == 0 {
		p.pieces = [][]byte{nil}
	}
	for _, piece := range p.pieces {
		e.send(Message{Kind: kind, To: p.to, Requester: e.cfg.Self, Aux: e.view.epoch, Ticket: Ticket(len(p.pieces)), Payload: piece})
	}
}

// sendReports tells each member what this node has of the objects whose home that is.
func (e *Engine) sendReports() {
	members := e.memberList()
	parcels := make([]parcel, len(members))
	for i, n := range members {
		parcels[i].to = n
	}
	parcelFor := func(n NodeID) *parcel {
		i, _ := slices.BinarySearch(members, n)
		return &parcels[i]
	}
	top := uint64(0)
	for _, id := range e.sortedIDs() {
		if !id.IsLock() {
			top = id.Page() + 1
		}
		o := e.objects.find(id)
		if o.has() == None {
			if _, lost := e.formerHome(id); !lost {
				continue
			}
		}
		b := parcelFor(e.home(id)).room(objectBytes)
		*b = AppendHolding(*b, id, o.has())
	}
	e.reportNames(parcelFor(e.directory()), top)
	for i := range parcels {
		e.dispatch(&parcels[i], ReportHeld)
	}
}

// formerHome is a node with which the directory entry of an object was lost since the last recovery that was completed; false if there is none.
func (e *Engine) formerHome(id ObjectID) (NodeID, bool) {
	return e.cfg.homeLost(id, e.view.before, e.view.members)
}

// reportNames says which names programs of this node use. Those that they are giving up are not: if the directory of names is lost, nobody knows
// whether their pages are in use again already.
func (e *Engine) reportNames(p *parcel, top uint64) {
	for i := range e.uses {
		u := &e.uses[i]
		top = max(top, u.first+u.count)
		if slices.ContainsFunc(e.calls, func(c call) bool { return c.op == Unbind && c.client == u.client && c.name == u.name() }) {
			continue
		}
		b := p.room(1 + 16 + 1 + 2 + len(u.call))
		*b = append(*b, tagName)
		*b = AppendRun(*b, u.first, u.count)
		*b = append(*b, bits(u.kept))
		*b = binary.LittleEndian.AppendUint16(*b, uint16(len(u.call)))
		*b = append(*b, u.call...)
	}
	for _, d := range e.dead {
		top = max(top, d.first.Page()+d.count)
	}
	b := p.room(9)
	*b = append(*b, tagTop)
	*b = binary.LittleEndian.AppendUint64(*b, top)
}

// onReport keeps a report until all have come.
func (e *Engine) onReport(m *Message) {
	if e.isStale(m) {
		return
	}
	v := &e.view
	if m.Ticket == 0 || m.Ticket > 1<<31 {
		e.reject(m, "a report in no pieces, or too many")
		return
	}
	if why := e.noReport(m.Payload); why != "" {
		e.reject(m, why)
		return
	}
	if e.reportsFrom(m.From) >= int(m.Ticket) {
		e.reject(m, "more of a report than there is")
		return
	}
	if v.due == nil {
		v.due = make([]uint32, e.cfg.Nodes)
	}
	v.due[m.From] = uint32(m.Ticket)
	v.reports = append(v.reports, report{m.From, slices.Clone(m.Payload)})
}

func (e *Engine) reportsFrom(n NodeID) int {
	sum := 0
	for i := range e.view.reports {
		if e.view.reports[i].from == n {
			sum++
		}
	}
	return sum
}

// noReport says what is wrong with a report: "" if nothing is.
func (e *Engine) noReport(payload []byte) string {
	why := ""
	err := eachEntry(payload, func(x *entry) {
		switch {
		case x.tag == tagObject && !x.id.IsLock() && x.id.Page() >= e.cfg.Pages:
			why = "a page outside the region"
		case x.tag == tagObject && e.home(x.id) != e.cfg.Self:
			why = "this node is not the object's home"
		case x.tag == tagName && (x.count == 0 || x.count > e.cfg.Pages || x.first > e.cfg.Pages-x.count), x.tag == tagTop && x.first > e.cfg.Pages:
			why = "not a run of pages of the region"
		}
	})
	if err != nil {
		return err.Error()
	}
	return why
}

// entry is one thing that a report says.
type entry struct {
	tag    byte
	id     ObjectID
	access Access
	run    // tagName; tagTop: first
	kept   bool
	call   NameCall
}

// eachEntry calls f for each entry of a report.
func eachEntry(b []byte, f func(*entry)) error {
	for len(b) > 0 {
		x := entry{tag: b[0]}
		b = b[1:]
		switch {
		case x.tag == tagObject && len(b) >= objectBytes-1 && Access(b[8]) <= Write:
			x.id, x.access = ObjectID(binary.LittleEndian.Uint64(b)), Access(b[8])
			b = b[objectBytes-1:]
		case x.tag == tagTop && len(b) >= 8:
			x.first = binary.LittleEndian.Uint64(b)
			b = b[8:]
		case x.tag == tagName && len(b) >= 19 && len(b) >= 19+int(binary.LittleEndian.Uint16(b[17:])):
			x.first, x.count, _ = DecodeRun(b[:16])
			x.kept = b[16] != 0
			n := 19 + int(binary.LittleEndian.Uint16(b[17:]))
			call, err := DecodeNameCall(b[19:n])
			if err != nil {
				return err
			}
			x.call, b = call, b[n:]
		default:
			return fmt.Errorf("%w: a report with tag %d and %d bytes", ErrMalformed, x.tag, len(b))
		}
		f(&x)
	}
	return nil
}

// reported says whether all reports are in.
func (e *Engine) reported() bool {
	return e.view.due != nil && !slices.ContainsFunc(e.memberList(), func(n NodeID) bool {
		return e.view.due[n] == 0 || e.reportsFrom(n) < int(e.view.due[n])
	})
}

// applyReports makes this node's part of the directory anew.
func (e *Engine) applyReports() {
	v := &e.view
	v.applied = true
	e.eachPending(func(_ *object, p *pending) {
		p.serving, p.deferred, p.hasDeferred, p.acks = Message{}, Message{}, false, 0
		p.reading, p.queue = p.reading[:0], p.queue[:0]
		if p.mode == homeSole && e.isMember(p.requester) {
			p.requester = NoNode // see lose
		}
	})
	// This node believes itself first. If others contradict it, or each other, they lie.
	slices.SortStableFunc(v.reports, func(a, b report) int {
		return cmp.Compare(e.order(a.from), e.order(b.from))
	})
	for _, id := range e.sortedIDs() {
		o := e.objects.find(id)
		o.sharers = copyset{}
		o.setMigrant(0)
	}
	var names []entry
	var users []NodeID
	top := uint64(0)
	for i := range v.reports {
		r := &v.reports[i]
		_ = eachEntry(r.payload, func(x *entry) { // it was found sound when it came
			switch x.tag {
			case tagObject:
				e.applyHolder(r.from, x)
			case tagName:
				names, users = append(names, *x), append(users, r.from)
			case tagTop:
				top = max(top, x.first)
			}
		})
	}
	for _, id := range e.sortedIDs() {
		o := e.objects.find(id)
		if o.owner != NoNode && o.lost() {
			e.lose(o)
		}
	}
	e.eachPending(func(_ *object, p *pending) { p.mode = homeIdle })
	v.reports = nil
	e.dead = nil
	e.dropArrivals()
	for i := range e.names.freeing {
		f := &e.names.freeing[i]
		f.phase = 0
		clear(f.missing)
	}
	if e.directory() == e.cfg.Self {
		e.applyNames(names, users, top)
		e.sendBound()
	}
}

// order puts this node before all others.
func (e *Engine) order(n NodeID) int {
	if n == e.cfg.Self {
		return -1
	}
	return int(n)
}

// contradicts refuses what a member has reported.
func (e *Engine) contradicts(from NodeID, id ObjectID, why string) {
	if from == e.cfg.Self {
		return // it was lied to before: a directory of names has given it the same memory twice
	}
	e.reject(&Message{Kind: ReportHeld, From: from, Object: id, Aux: e.view.epoch}, why)
}

// applyHolder enters in the directory what one member has of an object.
func (e *Engine) applyHolder(from NodeID, x *entry) {
	if !e.knowsOrCan(x.id) {
		e.contradicts(from, x.id, "this node knows as many locks as it can")
		return
	}
	o := e.objects.get(x.id)
	switch {
	case x.access != None && o.owner != NoNode && !o.lost() && (o.is(exclusiveFlag) || x.access == Write):
		e.contradicts(from, x.id, "it has a copy beside somebody who has the only one")
	case x.access == None:
		// Somebody had it once. If it turns out that nobody has it now, it is lost, unless this node has known better since an epoch whose end the
		// reporter has not seen.
		if home, lost := e.formerHome(x.id); lost && o.owner == NoNode {
			o.owner = home
			o.set(exclusiveFlag, true)
		}
	case o.lost() || o.owner == NoNode:
		o.owner = from
		o.sharers.add(from, &e.cfg)
		o.set(exclusiveFlag, x.access == Write)
	default:
		o.sharers.add(from, &e.cfg)
	}
}

// lose deals with an object that somebody has touched and no member has. A page is lost from here on: its owner is a node that is no member, and its copyset is
// empty. A lock can be taken, and if a lost node may have held it, whoever takes it is told.
func (e *Engine) lose(o *object) {
	p, written := e.peek(o), o.is(exclusiveFlag)
	switch {
	case p != nil && p.mode == homeSole && p.requester != NoNode:
		// It was on its way there, or was there already.
		o.owner, written = p.requester, written || p.sole == Write
	case e.isMember(o.owner):
		// It gave it away, to whom the home has not heard.
		o.owner, written = e.lostNode(o.owner), true
	}
	if !o.id.IsLock() {
		o.set(exclusiveFlag, false)
		return
	}
	if l := e.getLock(o.id); written && l.died == 0 {
		l.died = LostRank(o.owner) + 1
	} else {
		e.dropLock(l)
	}
	o.owner = NoNode
	o.set(exclusiveFlag, false)
}

// lostNode is a node that was lost since the last recovery that was completed, or without one, the node that is given.
func (e *Engine) lostNode(or NodeID) NodeID {
	for _, members := range e.view.before {
		for _, n := range members {
			if !e.isMember(n) {
				return n
			}
		}
	}
	return or
}

// dropArrivals forgets who has come to barriers from nodes that are lost.
func (e *Engine) dropArrivals() {
	for _, b := range slices.Clone(e.barriers) {
		e.arrived -= len(b.arrivals)
		b.arrivals = slices.DeleteFunc(b.arrivals, func(a arrival) bool { return !e.isMember(a.node) })
		e.arrived += len(b.arrivals)
		if len(b.arrivals) == 0 {
			e.dropBarrier(b)
		}
	}
}

// applyNames makes the directory of names anew if it was lost. Memory that was in use by nobody who is left stays unused from then on, all of
// it that lies below what somebody is known to use: nobody knows what the lost directory had done with it.
func (e *Engine) applyNames(reported []entry, users []NodeID, top uint64) {
	n := &e.names
	if !n.here {
		*n = names{here: true}
		if top < e.cfg.Pages {
			n.free = []run{{top, e.cfg.Pages - top}}
		}
		for i := range reported {
			x := &reported[i]
			b := n.lookup(x.call.Name)
			switch {
			case b != nil && b.run != x.run, b == nil && n.overlaps(x.run), len(n.bound) >= e.limits.names, n.uses >= e.limits.uses:
				e.contradicts(users[i], PageObject(x.first), "others have that memory under another name, or that name for other memory, or there are too many")
				continue
			}
			if b == nil {
				b = &binding{run: x.run, name: x.call.Name, signature: x.call.Signature}
				n.insert(b)
			}
			b.kept = b.kept || x.kept
			if u := (user{users[i], x.call.Client}); !slices.Contains(b.users, u) {
				b.users = append(b.users, u)
				n.uses++
			}
		}
	}
	for _, b := range n.bound {
		n.uses -= len(b.users)
		b.users = slices.DeleteFunc(b.users, func(u user) bool { return !e.isMember(u.node) })
		n.uses += len(b.users)
	}
}

func (n *names) overlaps(r run) bool {
	return slices.ContainsFunc(n.bound, func(b *binding) bool { return r.first < b.first+b.count && b.first < r.first+r.count })
}

// sendBound tells all members which memory was in use.
func (e *Engine) sendBound() {
	var runs []run
	for _, b := range e.names.bound {
		runs = append(runs, b.run)
	}
	for i := range e.names.freeing {
		runs = append(runs, e.names.freeing[i].run)
	}
	for _, n := range e.memberList() {
		p := parcel{to: n}
		for _, r := range sortRuns(slices.Clone(runs)) {
			b := p.room(16)
			*b = AppendRun(*b, r.first, r.count)
		}
		e.dispatch(&p, ReportBound)
	}
}

// onBound notes which memory was in use when nodes were lost.
func (e *Engine) onBound(m *Message) {
	if e.isStale(m) {
		return
	}
	v := &e.view
	switch {
	case m.From != e.directory() || m.Ticket == 0 || len(v.pieces) >= int(m.Ticket) || len(m.Payload)%16 != 0:
		e.reject(m, "not the next piece of what the directory of names knows")
		return
	}
	for b := m.Payload; len(b) > 0; b = b[16:] {
		first, count, _ := DecodeRun(b[:16])
		if count == 0 || count > e.cfg.Pages || first > e.cfg.Pages-count {
			e.reject(m, "not a run of pages of the region")
			return
		}
	}
	v.pieces = append(v.pieces, slices.Clone(m.Payload))
	if len(v.pieces) < int(m.Ticket) {
		return
	}
	v.bound = true
	e.suspects = append(e.suspects, suspect{run{}, slices.Clone(v.before), v.members})
	for _, b := range v.pieces {
		for ; len(b) > 0; b = b[16:] {
			first, count, _ := DecodeRun(b[:16])
			e.suspects = append(e.suspects, suspect{run{first, count}, slices.Clone(v.before), v.members})
		}
	}
}

// restartFreeing begins anew to free what was being freed, and frees what only lost nodes have used.
func (e *Engine) restartFreeing() {
	n := &e.names
	if !n.here {
		return
	}
	for i := range n.freeing {
		e.nextPhase(&n.freeing[i])
	}
	for _, b := range slices.Clone(n.bound) {
		e.dropUnused(b, Message{})
	}
}

// use is a name that a program of this node has bound.
type use struct {
	client ClientID
	run
	kept bool
	call []byte // the NameCall
}

func (u *use) name() string {
	c, err := DecodeNameCall(u.call)
	if err != nil {
		panic("protocol: " + err.Error())
	}
	return c.Name
}

// noteUse keeps account of the names that programs of this node use, for when the directory of names is lost.
func (e *Engine) noteUse(c *call, m *Message) {
	i := slices.IndexFunc(e.uses, func(u use) bool { return u.client == c.client && u.name() == c.name })
	switch {
	case c.op == Bind && m.Status == StatusOK && i < 0:
		if first, count, err := DecodeRun(m.Payload); err == nil && count > 0 {
			e.uses = append(e.uses, use{client: c.client, run: run{first, count}, call: c.payload})
		}
	case i < 0 || m.Status != StatusOK:
	case c.op == Unbind:
		e.uses = slices.Delete(e.uses, i, i+1)
	case c.op == Keep:
		e.uses[i].kept = true
	case c.op == Discard:
		e.uses[i].kept = false
	}
}
