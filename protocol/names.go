package protocol

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// NameOp is what a NameCall asks for.
type NameOp uint8

const (
	// Bind: give me the pages of this name; new zero pages if nobody has bound it.
	Bind NameOp = iota + 1
	// Unbind: this client uses the name no longer. When nobody does, the pages are dropped and reused.
	Unbind
	// UnbindAll: this client uses nothing any longer.
	UnbindAll
	// Keep: the pages of this name, which this client uses, stay when nobody uses them.
	Keep
	// Discard: the pages of this name need not stay. When nobody uses them, they are dropped and reused.
	Discard
)

// NameCall is the payload of EventName and of NameRequest.
type NameCall struct {
	Op        NameOp
	Client    ClientID
	Pages     uint64
	Replicas  uint8  // Bind: how many lost nodes the memory is to survive, at most MaxReplicas. All must agree
	Name      string // at most MaxName bytes
	Signature string // of the elements' type and their number: all must agree; at most MaxSignature bytes
}

// Limits of a NameCall, in bytes.
const (
	MaxName      = 320
	MaxSignature = 4096
)

// Append appends c in wire form.
func (c *NameCall) Append(b []byte) []byte {
	b = append(b, byte(c.Op))
	b = binary.LittleEndian.AppendUint32(b, uint32(c.Client))
	b = binary.LittleEndian.AppendUint64(b, c.Pages)
	b = append(b, c.Replicas)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(c.Name)))
	b = append(b, c.Name...)
	return append(b, c.Signature...)
}

// DecodeNameCall reads what Append wrote.
func DecodeNameCall(b []byte) (NameCall, error) {
	const fixed = 16
	if len(b) < fixed {
		return NameCall{}, fmt.Errorf("%w: a name call of %d bytes", ErrMalformed, len(b))
	}
	c := NameCall{
		Op:     NameOp(b[0]),
		Client: ClientID(binary.LittleEndian.Uint32(b[1:])),
		Pages:  binary.LittleEndian.Uint64(b[5:]),

		Replicas: b[13],
	}
	n := int(binary.LittleEndian.Uint16(b[14:]))
	if c.Op < Bind || c.Op > Discard || c.Replicas > MaxReplicas || n > MaxName || n > len(b)-fixed || len(b)-fixed-n > MaxSignature {
		return NameCall{}, fmt.Errorf("%w: name call with operation %d, a name of %d bytes, %d bytes in all", ErrMalformed, c.Op, n, len(b))
	}
	c.Name, c.Signature = string(b[fixed:fixed+n]), string(b[fixed+n:])
	return c, nil
}

// AppendRun and DecodeRun are the payload of a NameReply: a run of pages.
func AppendRun(b []byte, first, pages uint64) []byte {
	b = binary.LittleEndian.AppendUint64(b, first)
	return binary.LittleEndian.AppendUint64(b, pages)
}

// DecodeRun reads what AppendRun wrote.
func DecodeRun(b []byte) (first, pages uint64, err error) {
	if len(b) != 16 {
		return 0, 0, fmt.Errorf("%w: a run of pages in %d bytes", ErrMalformed, len(b))
	}
	return binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), nil
}

// names is the directory of allocations. Only one node uses it, the lowest.
type names struct {
	here    bool       // this is that node
	bound   []*binding // in ascending order of first page
	free    []run      // in ascending order, never adjacent
	freeing []freeing
	uses    int    // of all that are bound
	since   uint32 // the epoch in which this node became the directory; 0: it was from the start
}

type run struct{ first, count uint64 }

type binding struct {
	run
	name, signature string
	users           []user
	replicas        uint8
	kept            bool // stays without users
}

type user struct {
	node   NodeID
	client ClientID
}

// freeing is a run of pages that all nodes are dropping. First all nodes stop asking for its pages and finish what
// is under way (phase 1), then all forget them (phase 2), then all may ask again (phase 3); only then the run can
// be used again. Fewer phases would not do. Without the first, a request still on its way could revive a directory
// entry that was dropped already; without the third, so could a node that has forgotten, with a fault reported
// late, while another still has its copy.
type freeing struct {
	run
	phase   uint32
	missing nodeSet // who has not acknowledged the phase
	// reply answers the call that gave up the pages, once they can be used again: whoever is told that memory
	// is free may ask for it at once. Its Kind is 0 if the last user died, and nobody waits.
	reply Message
}

func newNames(pages uint64, here bool) names { return names{here: here, free: []run{{0, pages}}} }

func (e *Engine) name(ev Event) {
	c, err := DecodeNameCall(ev.Payload)
	if err != nil {
		panic("protocol: the host sends what is no name call: " + err.Error())
	}
	to := e.directory()
	if e.view.phase != running {
		to = NoNode
	} else {
		e.send(Message{Kind: NameRequest, To: to, Requester: e.cfg.Self, Ticket: ev.Ticket, Payload: ev.Payload})
	}
	e.calls = append(e.calls, call{client: ev.Client, ticket: ev.Ticket, to: to, op: c.Op, name: c.Name, payload: slices.Clone(ev.Payload)})
}

func (e *Engine) onNameRequest(m *Message) {
	c, err := DecodeNameCall(m.Payload)
	if err != nil || e.cfg.Self != e.directory() {
		e.reject(m, "not a name call, or not for this node")
		return
	}
	u := user{m.From, c.Client}
	if c.Op == UnbindAll {
		for _, b := range slices.Clone(e.names.bound) {
			e.unbind(b, u, Message{})
		}
		return
	}
	reply := Message{Kind: NameReply, To: m.From, Ticket: m.Ticket}
	b := e.names.lookup(c.Name)
	switch {
	case c.Op != Bind && b == nil, c.Op == Keep && !slices.Contains(b.users, u):
		reply.Status = StatusUnknown
	case c.Op == Unbind:
		e.unbind(b, u, reply)
		return
	case c.Op == Keep:
		b.kept = true
	case c.Op == Discard:
		b.kept = false
		e.dropUnused(b, reply)
		return
	case b == nil:
		reply.Status, reply.Payload = e.allocate(&c, u)
	case b.signature != c.Signature || b.count != c.Pages || b.replicas != c.Replicas:
		reply.Status, reply.Payload = StatusMismatch, []byte(b.signature)
	default:
		// A program binds a name once. When it cancels the call it cannot know whether the name was bound, and
		// may ask again.
		switch {
		case slices.Contains(b.users, u):
		case e.names.uses >= e.limits.uses:
			reply.Status, reply.Payload = StatusNoSpace, fmt.Appendf(nil, "memory has %d uses by name already", e.names.uses)
			e.send(reply)
			return
		default:
			b.users = append(b.users, u)
			e.names.uses++
		}
		reply.Payload = AppendRun(nil, b.first, b.count)
	}
	e.send(reply)
}

func (n *names) lookup(name string) *binding {
	if i := slices.IndexFunc(n.bound, func(b *binding) bool { return b.name == name }); i >= 0 {
		return n.bound[i]
	}
	return nil
}

// allocate binds a new name to the first free run that is long enough.
func (e *Engine) allocate(c *NameCall, u user) (Status, []byte) {
	n := &e.names
	if len(n.bound)+len(n.freeing) >= e.limits.names || n.uses >= e.limits.uses {
		return StatusNoSpace, fmt.Appendf(nil, "%d names with %d uses are bound already; free some", len(n.bound)+len(n.freeing), n.uses)
	}
	i := slices.IndexFunc(n.free, func(r run) bool { return r.count >= c.Pages })
	if i < 0 || c.Pages == 0 {
		return StatusNoSpace, nil
	}
	b := &binding{run: run{n.free[i].first, c.Pages}, name: c.Name, signature: c.Signature, replicas: c.Replicas, users: []user{u}}
	n.free[i].first += c.Pages
	if n.free[i].count -= c.Pages; n.free[i].count == 0 {
		n.free = slices.Delete(n.free, i, i+1)
	}
	n.insert(b)
	n.uses++
	return StatusOK, AppendRun(nil, b.first, b.count)
}

func (n *names) insert(b *binding) {
	j := slices.IndexFunc(n.bound, func(x *binding) bool { return x.first > b.first })
	if j < 0 {
		j = len(n.bound)
	}
	n.bound = slices.Insert(n.bound, j, b)
}

// unbind removes one use of b by u and answers with reply, if it has a Kind.
func (e *Engine) unbind(b *binding, u user, reply Message) {
	i := slices.Index(b.users, u)
	if i < 0 {
		reply.Status = StatusUnknown
		e.sendReply(reply)
		return
	}
	b.users = slices.Delete(b.users, i, i+1)
	e.names.uses--
	e.dropUnused(b, reply)
}

// dropUnused answers with reply, if it has a Kind. If nobody uses b and it need not stay, its pages are dropped everywhere before.
func (e *Engine) dropUnused(b *binding, reply Message) {
	if len(b.users) > 0 || b.kept {
		e.sendReply(reply)
		return
	}
	j := slices.Index(e.names.bound, b)
	e.names.bound = slices.Delete(e.names.bound, j, j+1)
	e.names.freeing = append(e.names.freeing, freeing{run: b.run, reply: reply})
	e.nextPhase(&e.names.freeing[len(e.names.freeing)-1])
}

// sendReply answers a call, unless nobody waits for the answer.
func (e *Engine) sendReply(reply Message) {
	if reply.Kind != 0 {
		e.send(reply)
	}
}

// lastPhase is the last phase of freeing.
const lastPhase = 3

func (e *Engine) nextPhase(f *freeing) {
	f.phase++
	f.missing = e.allMembers()
	for _, n := range e.memberList() {
		e.send(Message{Kind: Forget, To: n, Requester: e.cfg.Self, Object: PageObject(f.first), Aux: f.phase,
			Payload: AppendRun(nil, f.first, f.count)})
	}
}

func (e *Engine) onForgetAck(m *Message) {
	i := slices.IndexFunc(e.names.freeing, func(f freeing) bool {
		return PageObject(f.first) == m.Object && f.phase == m.Aux
	})
	if i < 0 || !e.names.freeing[i].missing.remove(m.From) {
		e.reject(m, "nothing is being freed there, or it was acknowledged already")
		return
	}
	f := &e.names.freeing[i]
	if !f.missing.empty() {
		return
	}
	if f.phase < lastPhase {
		e.nextPhase(f)
		return
	}
	done := *f
	e.names.freeing = slices.Delete(e.names.freeing, i, i+1)
	e.names.giveBack(done.run)
	e.sendReply(done.reply)
}

// giveBack makes a run free again and joins it with its neighbours.
func (n *names) giveBack(r run) {
	i := slices.IndexFunc(n.free, func(x run) bool { return x.first > r.first })
	if i < 0 {
		i = len(n.free)
	}
	n.free = slices.Insert(n.free, i, r)
	if i+1 < len(n.free) && n.free[i].first+n.free[i].count == n.free[i+1].first {
		n.free[i].count += n.free[i+1].count
		n.free = slices.Delete(n.free, i+1, i+2)
	}
	if i > 0 && n.free[i-1].first+n.free[i-1].count == n.free[i].first {
		n.free[i-1].count += n.free[i].count
		n.free = slices.Delete(n.free, i, i+1)
	}
}

// deadRun is a run of pages that is being freed, on every node.
type deadRun struct {
	first    ObjectID
	count    uint64
	phase    uint32
	busy     bool // this phase is not acknowledged yet
	dropping bool // EffectForget is under way
}

func (e *Engine) onForget(m *Message) {
	first, count, err := DecodeRun(m.Payload)
	if err != nil || m.From != e.directory() || PageObject(first) != m.Object || count == 0 || count > e.cfg.Pages || first > e.cfg.Pages-count {
		e.reject(m, "not a run of pages of the region, or not from the directory of names")
		return
	}
	i := slices.IndexFunc(e.dead, func(d deadRun) bool { return d.first == m.Object })
	switch {
	case m.Aux == 1 && !e.overlapsDead(first, count) && len(e.dead) < e.limits.names:
		e.dead = append(e.dead, deadRun{first: m.Object, count: count, phase: 1, busy: true})
	case m.Aux == 2 && i >= 0 && e.dead[i].phase == 1 && !e.dead[i].busy && e.dead[i].count == count:
		e.dead[i].phase, e.dead[i].busy = 2, true
	case m.Aux == lastPhase && i >= 0 && e.dead[i].phase == 2 && !e.dead[i].busy && e.dead[i].count == count:
		e.dead = slices.Delete(e.dead, i, i+1)
		e.send(Message{Kind: ForgetAck, To: e.directory(), Object: m.Object, Aux: lastPhase})
		return
	default:
		e.reject(m, "not the next step of freeing these pages")
		return
	}
	e.dropDead()
}

// overlapsDead says whether one of the pages is being freed already.
func (e *Engine) overlapsDead(first, count uint64) bool {
	return slices.ContainsFunc(e.dead, func(d deadRun) bool {
		return first < d.first.Page()+d.count && d.first.Page() < first+count
	})
}

// isForgotten says whether a page is being freed at a point at which no node can ask for it: all have said that they won't, and this one
// has not yet said that it has dropped it, without which none may ask again.
func (e *Engine) isForgotten(id ObjectID) bool {
	return slices.ContainsFunc(e.dead, func(d deadRun) bool {
		return d.phase == 2 && d.busy && id >= d.first && uint64(id-d.first) < d.count
	})
}

// isDead says whether a page is being freed.
func (e *Engine) isDead(id ObjectID) bool {
	return slices.ContainsFunc(e.dead, func(d deadRun) bool { return id >= d.first && uint64(id-d.first) < d.count })
}

// wakeDead wakes a program that faulted on memory that is being freed.
func (e *Engine) wakeDead(ev Event) {
	if ev.Client == 0 {
		return
	}
	o := e.objects.get(ev.Object)
	switch p := e.pendingOf(o); {
	case p.op != 0:
		p.refault = max(p.refault, ev.Access)
	case p.want == None:
		e.startMap(o, p, 0)
	}
}

// dropDead goes on with freeing where nothing is under way any more.
func (e *Engine) dropDead() {
	if !e.view.changes() {
		return
	}
	for i := range e.dead {
		d := &e.dead[i]
		if !d.busy || d.dropping || e.anyPending(d) {
			continue
		}
		if d.phase == 1 {
			d.busy = false
			e.send(Message{Kind: ForgetAck, To: e.directory(), Object: d.first, Aux: 1})
			continue
		}
		d.dropping = true
		e.clearSuspects(d.first.Page(), d.count)
		e.dropReplicas(d.first, d.count)
		for _, id := range e.objects.ids(d.first, d.count) {
			e.objects.remove(id)
		}
		e.emit(Effect{Kind: EffectForget, Object: d.first, Count: d.count})
	}
	if len(e.replicas.batch) > 0 {
		e.continueBatch()
	}
}

// anyPending says whether anything is under way about the pages of a run: no copy of a backup may arrive after others have dropped theirs.
func (e *Engine) anyPending(d *deadRun) bool {
	return slices.ContainsFunc(e.rescue.unsaved, func(c copying) bool { return c.id >= d.first && uint64(c.id-d.first) < d.count }) || slices.ContainsFunc(e.objects.ids(d.first, d.count), func(id ObjectID) bool {
		return e.objects.find(id).pending != 0
	})
}

func (e *Engine) forgotten(ev Event) {
	i := slices.IndexFunc(e.dead, func(d deadRun) bool { return d.first == ev.Object && d.dropping })
	if i < 0 {
		panic("protocol: the host reports pages as forgotten that were not")
	}
	e.dead[i].busy, e.dead[i].dropping = false, false
	if e.view.changes() { // else all begins anew
		e.send(Message{Kind: ForgetAck, To: e.directory(), Object: ev.Object, Aux: 2})
	}
}
