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
	tagObject    = iota + 1 // id, access: None if the node once knew the object, and its directory entry was lost
	tagName                 // run, kept, length, NameCall: a program of this node has bound it
	tagTop                  // the first page above all that the node knows of
	tagEntry                // entry: what the former home knows, for when nobody has the object
	tagDirectory            // epoch: the node was the directory of names since then, and what follows is what it has
	tagBound                // run, kept, replicas, lengths, name, signature
	tagFree                 // run
	tagFreeing              // run
	tagBefore               // nodes: homes of a view before, for a node that has come since
	tagSuspect              // run, nodes, nodes: for such a node too
	tagCame                 // node, epoch: the member came in then; for such a node too
	tagBackup               // id, version: the node has a backup of the page
)

const (
	objectBytes = 1 + 8 + 1
	entryBytes  = 1 + 8 + 2 + 1 + 4
	cameBytes   = 1 + 2 + 4
	backupBytes = 1 + 8 + 4 + 4
)

// AppendHolding appends to the payload of a ReportHeld that its sender has this access to an object.
func AppendHolding(b []byte, id ObjectID, a Access) []byte {
	b = append(b, tagObject)
	b = binary.LittleEndian.AppendUint64(b, uint64(id))
	return append(b, byte(a))
}

// AppendBackup appends to the payload of a ReportHeld that its sender has a backup of a page, of the epoch's last commit but for what came after, of which there were count.
func AppendBackup(b []byte, id ObjectID, epoch, count uint32) []byte {
	b = append(b, tagBackup)
	b = binary.LittleEndian.AppendUint64(b, uint64(id))
	b = binary.LittleEndian.AppendUint32(b, epoch)
	return binary.LittleEndian.AppendUint32(b, count)
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
		to := parcelFor(e.home(id))
		e.reportEntry(to, o)
		if o.has() == None {
			if _, lost := e.formerHome(id); !lost {
				continue
			}
		}
		b := to.room(objectBytes)
		*b = AppendHolding(*b, id, o.has())
	}
	for _, id := range e.replicas.kept {
		top = max(top, id.Page()+1)
	}
	e.reportBackups(parcelFor)
	e.reportNames(parcelFor(e.directory()), top)
	e.reportDirectory(parcelFor(e.directory()))
	if known := slices.IndexFunc(members, func(n NodeID) bool { return !slices.Contains(e.view.fresh, n) }); known >= 0 && members[known] == e.cfg.Self {
		for _, n := range e.view.fresh {
			e.reportPast(parcelFor(n))
		}
	}
	for i := range parcels {
		e.dispatch(&parcels[i], ReportHeld)
	}
}

// formerHome is a node with which the directory entry of an object was lost since the last recovery that was completed; false if there is none.
func (e *Engine) formerHome(id ObjectID) (NodeID, bool) {
	return e.cfg.homeLost(id, e.view.before, e.view.members)
}

// reportNames says which names programs of this node use. Those that they are giving up are not, if the directory of names is lost that was asked: nobody
// knows whether their pages are in use again already.
func (e *Engine) reportNames(p *parcel, top uint64) {
	for i := range e.uses {
		u := &e.uses[i]
		top = max(top, u.first+u.count)
		if slices.ContainsFunc(e.calls, func(c call) bool {
			return c.op == Unbind && e.isLost(c.to) && c.client == u.client && c.name == u.name()
		}) {
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

// reportEntry tells an object's new home what this node, which has been it, knows of the object and no holder can tell.
func (e *Engine) reportEntry(p *parcel, o *object) {
	if p.to == e.cfg.Self {
		return
	}
	died := uint32(0)
	if l := e.peekLock(o.id); l != nil && o.has() == None {
		died = l.died
	}
	owner, written := o.owner, o.is(exclusiveFlag)
	if q := e.peek(o); q != nil && q.mode == homeSole && q.requester != NoNode && !e.isMember(q.requester) {
		owner, written = q.requester, written || q.sole == Write // see lose
	}
	if died == 0 && (owner == NoNode || !o.lost() && !e.view.losses) {
		return // if somebody has touched it, somebody has it
	}
	b := p.room(entryBytes)
	*b = append(*b, tagEntry)
	*b = binary.LittleEndian.AppendUint64(*b, uint64(o.id))
	*b = binary.LittleEndian.AppendUint16(*b, uint16(owner))
	*b = append(*b, bits(owner != NoNode && o.lost(), written))
	*b = binary.LittleEndian.AppendUint32(*b, died)
}

// reportDirectory gives all names to the node that keeps them from now on.
func (e *Engine) reportDirectory(p *parcel) {
	n := &e.names
	if p.to == e.cfg.Self || !n.here {
		return
	}
	b := p.room(1 + 4)
	*b = binary.LittleEndian.AppendUint32(append(*b, tagDirectory), n.since)
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

// reportPast tells a node that has come what may be lost, and when others came.
func (e *Engine) reportPast(p *parcel) {
	for n, came := range e.view.came {
		if came > 0 && e.isMember(NodeID(n)) {
			b := p.room(cameBytes)
			*b = binary.LittleEndian.AppendUint16(append(*b, tagCame), uint16(n))
			*b = binary.LittleEndian.AppendUint32(*b, came)
		}
	}
	for _, homes := range e.view.before {
		b := p.room(1 + listBytes(homes))
		*b = appendList(append(*b, tagBefore), homes)
	}
	for _, s := range e.suspects {
		for _, homes := range s.before {
			b := p.room(1 + 16 + listBytes(homes) + listBytes(s.after))
			*b = appendList(appendList(AppendRun(append(*b, tagSuspect), s.first, s.count), homes), s.after)
		}
	}
}

func listBytes(nodes []NodeID) int { return 2 + 2*len(nodes) }

func appendList(b []byte, nodes []NodeID) []byte {
	b = binary.LittleEndian.AppendUint16(b, uint16(len(nodes)))
	for _, n := range nodes {
		b = binary.LittleEndian.AppendUint16(b, uint16(n))
	}
	return b
}

// decodeList reads what appendList wrote, and says whether that is a list of nodes in ascending order; rest is what follows.
func decodeList(b []byte) (nodes []NodeID, rest []byte, ok bool) {
	if len(b) < 2 || len(b) < 2+2*int(binary.LittleEndian.Uint16(b)) {
		return nil, nil, false
	}
	count := int(binary.LittleEndian.Uint16(b))
	for i := range count {
		nodes = append(nodes, NodeID(binary.LittleEndian.Uint16(b[2+2*i:])))
	}
	return nodes, b[2+2*count:], count > 0 && count <= MaxNodes && nodes[count-1] < MaxNodes && slices.IsSorted(nodes)
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
		case x.tag == tagEntry && !x.id.IsLock() && x.id.Page() >= e.cfg.Pages, x.tag == tagEntry && x.owner != NoNode && int(x.owner) >= e.cfg.Nodes:
			why = "a page outside the region, or an owner outside the cluster"
		case x.tag == tagBackup && (x.id.IsLock() || x.id.Page() >= e.cfg.Pages):
			why = "a backup of no page of the region"
		case x.tag == tagCame && int(x.owner) >= e.cfg.Nodes:
			why = "a node outside the cluster"
		case (x.tag == tagObject || x.tag == tagEntry || x.tag == tagBackup) && e.home(x.id) != e.cfg.Self:
			why = "this node is not the object's home"
		case (x.tag == tagName || x.tag >= tagBound && x.tag <= tagFreeing) && (x.count == 0 || x.count > e.cfg.Pages || x.first > e.cfg.Pages-x.count), x.tag == tagTop && x.first > e.cfg.Pages:
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
	run    // tagName, tagBound, tagFree, tagFreeing, tagSuspect; tagTop: first
	kept   bool
	call   NameCall // tagBound: without operation and client
	version

	owner         NodeID // tagEntry, tagCame
	lost, written bool   // tagEntry
	died          uint32 // tagEntry: see lock
	since         uint32 // tagDirectory, tagCame
	before, after []NodeID
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
		case x.tag == tagBackup && len(b) >= backupBytes-1:
			x.id = ObjectID(binary.LittleEndian.Uint64(b))
			x.version = version{binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])}
			b = b[backupBytes-1:]
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
		case x.tag == tagEntry && len(b) >= entryBytes-1:
			x.id, x.owner = ObjectID(binary.LittleEndian.Uint64(b)), NodeID(binary.LittleEndian.Uint16(b[8:]))
			x.lost, x.written, x.died = b[10]&1 != 0, b[10]&2 != 0, binary.LittleEndian.Uint32(b[11:])
			b = b[entryBytes-1:]
		case x.tag == tagDirectory && len(b) >= 4:
			x.since, b = binary.LittleEndian.Uint32(b), b[4:]
		case x.tag == tagBound && len(b) >= 22 && b[17] <= MaxReplicas:
			x.first, x.count, _ = DecodeRun(b[:16])
			x.kept, x.call.Replicas = b[16] != 0, b[17]
			name, signature := int(binary.LittleEndian.Uint16(b[18:])), int(binary.LittleEndian.Uint16(b[20:]))
			if b = b[22:]; name > MaxName || signature > MaxSignature || len(b) < name+signature {
				return fmt.Errorf("%w: a report of a name with %d and %d bytes of %d", ErrMalformed, name, signature, len(b))
			}
			x.call.Name, x.call.Signature, b = string(b[:name]), string(b[name:name+signature]), b[name+signature:]
		case (x.tag == tagFree || x.tag == tagFreeing) && len(b) >= 16:
			x.first, x.count, _ = DecodeRun(b[:16])
			b = b[16:]
		case x.tag == tagCame && len(b) >= cameBytes-1:
			x.owner, x.since = NodeID(binary.LittleEndian.Uint16(b)), binary.LittleEndian.Uint32(b[2:])
			b = b[cameBytes-1:]
		case x.tag == tagBefore || x.tag == tagSuspect && len(b) >= 16:
			if x.tag == tagSuspect {
				x.first, x.count, _ = DecodeRun(b[:16])
				b = b[16:]
			}
			var ok bool
			if x.before, b, ok = decodeList(b); ok && x.tag == tagSuspect {
				x.after, b, ok = decodeList(b)
			}
			if !ok {
				return fmt.Errorf("%w: a report with no list of nodes", ErrMalformed)
			}
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
	known := map[ObjectID]bool{} // pages that are known to be lost
	for _, id := range e.sortedIDs() {
		o := e.objects.find(id)
		if e.home(id) != e.cfg.Self {
			continue // see leaveDirectory
		}
		if o.lost() && !id.IsLock() {
			known[id] = true
		}
		o.sharers = copyset{}
		o.replica &^= backedFlag
		o.setMigrant(0)
	}
	e.applyHoldings(known)
	for _, id := range e.sortedIDs() {
		o := e.objects.find(id)
		if e.home(id) == e.cfg.Self && o.owner != NoNode && o.lost() && !known[id] {
			e.lose(o)
		}
	}
	e.eachPending(func(_ *object, p *pending) { p.mode = homeIdle })
	e.dead = nil
	e.dropArrivals()
	for i := range e.names.freeing {
		f := &e.names.freeing[i]
		f.phase = 0
		clear(f.missing)
	}
	if e.directory() == e.cfg.Self {
		e.applyNames()
		e.sendBound()
	}
	v.reports = nil
}

// eachReported calls f for each entry of all reports, which were found sound when they came.
func (e *Engine) eachReported(f func(from NodeID, x *entry)) {
	for i := range e.view.reports {
		r := &e.view.reports[i]
		_ = eachEntry(r.payload, func(x *entry) { f(r.from, x) })
	}
}

// applyHoldings enters who has what, and then what former homes know of the rest. It adds to known what those know to be lost.
func (e *Engine) applyHoldings(known map[ObjectID]bool) {
	if slices.Contains(e.view.fresh, e.cfg.Self) {
		e.eachReported(func(_ NodeID, x *entry) {
			switch x.tag {
			case tagBefore:
				e.view.before = append(e.view.before, x.before)
			case tagSuspect:
				e.suspects = append(e.suspects, suspect{x.run, [][]NodeID{x.before}, x.after})
			case tagCame:
				e.noteCome(x.owner, x.since)
			}
		})
	}
	e.eachReported(func(from NodeID, x *entry) {
		if x.tag == tagObject {
			e.applyHolder(from, x)
		}
	})
	e.eachReported(func(_ NodeID, x *entry) {
		if x.tag == tagEntry && e.knowsOrCan(x.id) && e.applyEntry(x) {
			known[x.id] = true
		}
	})
	best := map[ObjectID]version{}
	e.eachReported(func(from NodeID, x *entry) {
		if x.tag == tagBackup {
			e.applyBackup(from, x, best)
		}
	})
}

// applyEntry enters what a former home knows, and says whether it is that a page was lost before.
func (e *Engine) applyEntry(x *entry) (lost bool) {
	o := e.objects.get(x.id)
	if l := x.died; l != 0 && x.id.IsLock() && o.owner == NoNode {
		if k := e.getLock(x.id); k.died == 0 {
			k.died = l
		}
	}
	if o.owner != NoNode || x.owner == NoNode {
		return false
	}
	o.owner = x.owner
	o.set(exclusiveFlag, x.written)
	return x.lost && !x.id.IsLock()
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

// dropArrivals forgets who has come to barriers. Those who still wait come again: see resendCalls.
func (e *Engine) dropArrivals() { e.barriers, e.arrived = nil, 0 }

// applyNames makes the directory of names anew if it was elsewhere.
func (e *Engine) applyNames() {
	n := &e.names
	if !n.here {
		*n = names{here: true, since: e.view.epoch}
		former, free := e.formerNames()
		n.free = free
		e.eachReported(func(from NodeID, x *entry) {
			if x.tag == tagName {
				e.applyUse(from, x)
			}
		})
		e.applyFormerNames(former)
	}
	for _, b := range n.bound {
		n.uses -= len(b.users)
		b.users = slices.DeleteFunc(b.users, func(u user) bool { return !e.isMember(u.node) })
		n.uses += len(b.users)
	}
}

// formerNames is what the node reports that was the directory of names last, if it is there, and what is free. If it is not, memory that was in use
// by nobody who is left stays unused from then on, all of it that lies below what somebody is known to use: nobody knows what the lost directory had
// done with it.
func (e *Engine) formerNames() (former []entry, free []run) {
	var last, since int64 = -1, -1 // the former directory, and since when it was that
	top := uint64(0)
	e.eachReported(func(from NodeID, x *entry) {
		switch {
		case x.tag == tagTop:
			top = max(top, x.first)
		case x.tag == tagDirectory && int64(x.since) > since:
			last, since = int64(from), int64(x.since)
		}
	})
	if last < 0 {
		if top < e.cfg.Pages {
			free = []run{{top, e.cfg.Pages - top}}
		}
		return nil, free
	}
	e.eachReported(func(from NodeID, x *entry) {
		switch {
		case int64(from) != last:
		case x.tag == tagFree:
			free = append(free, x.run)
		case x.tag == tagBound || x.tag == tagFreeing:
			former = append(former, *x)
		}
	})
	return former, sortRuns(free)
}

// applyUse enters that a program of a member uses a name.
func (e *Engine) applyUse(from NodeID, x *entry) {
	n := &e.names
	b := n.lookup(x.call.Name)
	switch {
	case b != nil && b.run != x.run, b == nil && n.overlaps(x.run), len(n.bound) >= e.limits.names, n.uses >= e.limits.uses:
		e.contradicts(from, PageObject(x.first), "others have that memory under another name, or that name for other memory, or there are too many")
		return
	}
	if b == nil {
		b = &binding{run: x.run, name: x.call.Name, signature: x.call.Signature, replicas: x.call.Replicas}
		n.insert(b)
		n.take(x.run)
	}
	b.kept = b.kept || x.kept
	if u := (user{from, x.call.Client}); !slices.Contains(b.users, u) {
		b.users = append(b.users, u)
		n.uses++
	}
}

// applyFormerNames enters what the former directory knows and no user can tell. Where users contradict it, they are right: names have changed since.
func (e *Engine) applyFormerNames(former []entry) {
	n := &e.names
	for i := range former {
		x := &former[i]
		b := n.lookup(x.call.Name)
		switch {
		case x.tag == tagBound && b != nil && b.run == x.run:
			b.kept = b.kept || x.kept
			continue
		case n.overlaps(x.run) || x.tag == tagBound && b != nil || len(n.bound)+len(n.freeing) >= e.limits.names:
			continue
		case x.tag == tagBound:
			n.insert(&binding{run: x.run, name: x.call.Name, signature: x.call.Signature, replicas: x.call.Replicas, kept: x.kept})
		default:
			n.freeing = append(n.freeing, freeing{run: x.run})
		}
		n.take(x.run)
	}
}

// take removes a run from what is free, as far as it was.
func (n *names) take(r run) {
	var out []run
	for _, f := range n.free {
		if f.first+f.count <= r.first || r.first+r.count <= f.first {
			out = append(out, f)
			continue
		}
		if f.first < r.first {
			out = append(out, run{f.first, r.first - f.first})
		}
		if end := r.first + r.count; end < f.first+f.count {
			out = append(out, run{end, f.first + f.count - end})
		}
	}
	n.free = out
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

// onBound keeps which memory was in use.
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
}

// addSuspects notes which memory was in use when nodes were lost.
func (e *Engine) addSuspects() {
	v := &e.view
	if !slices.ContainsFunc(v.before, func(homes []NodeID) bool {
		return slices.ContainsFunc(homes, func(n NodeID) bool { return !e.isMember(n) })
	}) {
		return
	}
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
			if bound, err := DecodeNameCall(c.payload); err == nil {
				e.replicas.replicate(run{first, count}, int(bound.Replicas))
			}
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
