package protocol

import (
	"cmp"
	"fmt"
	"slices"
)

// registry is the allocator of shared memory: which memory has which name, and who uses it. Only
// one node is it, the lowest home.
//
// When nobody uses a name any more its memory is freed everywhere, in phases (see freeing), before
// it is bound again. In a recovery another node may become the allocator. It learns from the one
// before what that knew, or, if that is lost, from those who use names (see rebuild).
type registry struct {
	*env
	here    bool       // this is that node
	bound   []*binding // in ascending order of first page
	free    []run      // in ascending order, never adjacent
	freeing []freeing
	// Binds of new names that fit only when what is being freed is free; the oldest first
	waiting []waiting
	uses    int    // of all that are bound
	since   uint32 // the epoch in which this node became the allocator; 0: it was from the start
}

type run struct{ first, count uint64 }

// overlaps reports whether two runs have pages in common.
func (r run) overlaps(x run) bool {
	return max(r.first, x.first) < min(r.first+r.count, x.first+x.count)
}

// minus is what is left of a run without the pages of another.
func (r run) minus(x run) (left []run) {
	if !r.overlaps(x) {
		return []run{r}
	}
	if r.first < x.first {
		left = append(left, run{r.first, x.first - r.first})
	}
	if end := x.first + x.count; end < r.first+r.count {
		left = append(left, run{end, r.first + r.count - end})
	}
	return left
}

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

// waiting is a Bind that waits for memory. The memory that is free goes to the oldest first, or
// none that is large would ever get any. Of a user and a name there is one at most: if there is a
// second, the program has cancelled the first.
type waiting struct {
	user
	ticket Ticket
	call   NameCall
}

// freeing is a run of pages that all nodes are dropping. First all nodes stop asking for its pages
// and finish what is under way (phase 1), then all forget them (phase 2), then all may ask again
// (phase 3); only then the run can be used again. Fewer phases would not do. Without the first, a
// request still on its way could revive a directory entry that was dropped already; without the
// third, so could a node that has forgotten, with a fault reported late, while another still has
// its copy.
type freeing struct {
	run
	phase   uint32
	missing nodeSet // who has not acknowledged the phase
	// caller gave up the pages, and is told when they can be used again: it may ask for them at
	// once.
	caller caller
}

// caller is who waits for the answer to a name call; nobody, if its user has died.
type caller struct {
	waits  bool
	node   NodeID
	ticket Ticket
}

func newRegistry(in *env, here bool) registry {
	return registry{env: in, here: here, free: []run{{0, in.cfg.Pages}}}
}

func (n *registry) onRequest(m *Message) {
	c, err := DecodeNameCall(m.AsNameRequest().Call)
	if err != nil || n.cfg.Self != n.allocator() {
		n.reject(m, "not a name call, or not for this node")
		return
	}
	n.serveName(m, &c, user{m.From, c.Client})
	n.goOnBinding() // who waits next may wait for less
}

// serveName does what a name call asks for, or puts it in line.
func (n *registry) serveName(m *Message, c *NameCall, u user) {
	if c.Op == Unbind || c.Op == UnbindAll {
		n.waiting = slices.DeleteFunc(n.waiting, func(w waiting) bool {
			return w.user == u && (c.Op == UnbindAll || c.Name == w.call.Name)
		})
	}
	from := caller{true, m.From, m.AsNameRequest().Ticket}
	b := n.lookup(c.Name)
	switch {
	case c.Op == UnbindAll:
		for _, b := range slices.Clone(n.bound) {
			n.unbind(b, u, caller{})
		}
	case c.Op == AwaitFree:
		n.awaitFree(c.Pages, from)
	case c.Op == Bind && b == nil:
		n.await(waiting{u, from.ticket, *c})
	case c.Op == Bind:
		status, answer := n.join(b, c, u)
		n.reply(from, status, answer)
	case b == nil, c.Op == Keep && !slices.Contains(b.users, u):
		n.reply(from, StatusUnknown, nil)
	case c.Op == Unbind:
		n.unbind(b, u, from)
	case c.Op == Keep:
		b.kept = true
		n.reply(from, StatusOK, nil)
	case c.Op == Discard:
		b.kept = false
		n.dropUnused(b, from)
	}
}

// join adds a user to a name that is bound.
func (n *registry) join(b *binding, c *NameCall, u user) (Status, []byte) {
	switch {
	case b.signature != c.Signature || b.count != c.Pages || b.replicas != c.Replicas:
		return StatusMismatch, []byte(b.signature)
	case slices.Contains(b.users, u):
		// A program binds a name once. When it cancels the call it cannot know whether the name was
		// bound, and may ask again.
	case n.uses >= n.limits.uses:
		return StatusNoSpace, fmt.Appendf(nil, "memory has %d uses by name already", n.uses)
	default:
		b.users = append(b.users, u)
		n.uses++
	}
	return StatusOK, AppendRun(nil, b.first, b.count)
}

// await puts a Bind in line.
func (n *registry) await(w waiting) {
	n.waiting = slices.DeleteFunc(n.waiting, func(x waiting) bool { return x.user == w.user && x.call.Name == w.call.Name })
	n.waiting = append(n.waiting, w)
}

// goOnBinding answers the Binds that wait, in order, up to one that has to wait on. Each has to
// wait as long as there is not enough memory, and will be when what is being freed is free.
func (n *registry) goOnBinding() {
	for len(n.waiting) > 0 {
		w := &n.waiting[0]
		var status Status
		var answer []byte
		if b := n.lookup(w.call.Name); b != nil { // somebody else has waited for the same
			status, answer = n.join(b, &w.call, w.user)
		} else if status, answer = n.allocate(&w.call, w.user); status == StatusNoSpace && n.fitsLater(&w.call) && len(n.waiting) <= n.limits.names {
			return
		}
		from := caller{true, w.node, w.ticket}
		n.waiting = slices.Delete(n.waiting, 0, 1)
		n.reply(from, status, answer)
	}
}

// fitsLater reports whether a new name fits when all that is being freed is free.
func (n *registry) fitsLater(c *NameCall) bool {
	if len(n.freeing) == 0 || len(n.bound) >= n.limits.names || n.uses >= n.limits.uses {
		return false
	}
	later := slices.Clone(n.free)
	for i := range n.freeing {
		later = append(later, n.freeing[i].run)
	}
	return slices.ContainsFunc(sortRuns(later), func(r run) bool { return c.Pages > 0 && r.count >= c.Pages })
}

func (n *registry) lookup(name string) *binding {
	if i := slices.IndexFunc(n.bound, func(b *binding) bool { return b.name == name }); i >= 0 {
		return n.bound[i]
	}
	return nil
}

// allocate binds a new name to the first free run that is long enough.
func (n *registry) allocate(c *NameCall, u user) (Status, []byte) {
	if len(n.bound)+len(n.freeing) >= n.limits.names || n.uses >= n.limits.uses {
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

func (n *registry) insert(b *binding) {
	j := slices.IndexFunc(n.bound, func(x *binding) bool { return x.first > b.first })
	if j < 0 {
		j = len(n.bound)
	}
	n.bound = slices.Insert(n.bound, j, b)
}

// unbind removes one use of b by u, and answers.
func (n *registry) unbind(b *binding, u user, from caller) {
	i := slices.Index(b.users, u)
	if i < 0 {
		n.reply(from, StatusUnknown, nil)
		return
	}
	b.users = slices.Delete(b.users, i, i+1)
	n.uses--
	n.dropUnused(b, from)
}

// dropUnused answers. If nobody uses b and it need not stay, its pages are dropped everywhere
// before.
func (n *registry) dropUnused(b *binding, from caller) {
	if len(b.users) > 0 || b.kept {
		n.reply(from, StatusOK, nil)
		return
	}
	j := slices.Index(n.bound, b)
	n.bound = slices.Delete(n.bound, j, j+1)
	n.freeing = append(n.freeing, freeing{run: b.run, caller: from})
	n.nextPhase(&n.freeing[len(n.freeing)-1])
}

// awaitFree answers when a page is not being freed any more. One caller is remembered for each run:
// another one is answered at once. No harm comes of that, because a Bind waits for what is being
// freed.
func (n *registry) awaitFree(page uint64, from caller) {
	i := slices.IndexFunc(n.freeing, func(f freeing) bool { return !f.caller.waits && f.overlaps(run{page, 1}) })
	if i < 0 {
		n.reply(from, StatusOK, nil)
		return
	}
	n.freeing[i].caller = from
}

// reply answers a call, unless nobody waits for the answer.
func (n *registry) reply(to caller, status Status, answer []byte) {
	if to.waits {
		n.send(NameReply{status, to.ticket, answer}.To(to.node))
	}
}

// lastPhase is the last phase of freeing.
const lastPhase = 3

func (n *registry) nextPhase(f *freeing) {
	f.phase++
	f.missing = n.allMembers()
	for _, to := range n.memberList() {
		n.send(Free{Phase: f.phase, Run: AppendRun(nil, f.first, f.count)}.To(to, PageObject(f.first)))
	}
}

func (n *registry) onFreeAck(m *Message) {
	i := slices.IndexFunc(n.freeing, func(f freeing) bool {
		return f.phase > 0 && PageObject(f.first) == m.Object && f.phase == m.AsFreeAck().Phase
	})
	if i < 0 || !n.freeing[i].missing.remove(m.From) {
		n.reject(m, "nothing is being freed there, or it was acknowledged already")
		return
	}
	f := &n.freeing[i]
	if !f.missing.empty() {
		return
	}
	if f.phase < lastPhase {
		n.nextPhase(f)
		return
	}
	done := *f
	n.freeing = slices.Delete(n.freeing, i, i+1)
	n.free = sortRuns(append(n.free, done.run))
	n.reply(done.caller, StatusOK, nil)
	n.goOnBinding()
}

// take removes a run from what is free, as far as it was.
func (n *registry) take(r run) {
	var out []run
	for _, f := range n.free {
		out = append(out, f.minus(r)...)
	}
	n.free = out
}

// overlaps reports whether pages of a run have a name, or are being freed.
func (n *registry) overlaps(r run) bool {
	return slices.ContainsFunc(n.bound, func(b *binding) bool { return r.overlaps(b.run) }) ||
		slices.ContainsFunc(n.freeing, func(f freeing) bool { return r.overlaps(f.run) })
}

// clone returns an independent copy, in another environment.
func (n *registry) clone(in *env) registry {
	c := *n
	c.env = in
	c.free, c.waiting = slices.Clone(n.free), slices.Clone(n.waiting)
	c.freeing, c.bound = nil, nil
	for _, f := range n.freeing {
		f.missing = slices.Clone(f.missing)
		c.freeing = append(c.freeing, f)
	}
	for _, b := range n.bound {
		k := *b
		k.users = slices.Clone(b.users)
		c.bound = append(c.bound, &k)
	}
	return c
}

// appendState appends an encoding: see Engine.AppendState.
func (n *registry) appendState(b []byte) []byte {
	b = appendNumbers(append(b, bits(n.here)), uint64(n.since))
	b = appendEach(b, n.free, func(b []byte, r run) []byte { return r.append(b) })
	b = appendEach(b, n.freeing, func(b []byte, f freeing) []byte {
		b = append(appendInts(appendNumbers(f.run.append(b), uint64(f.phase)), f.missing), bits(f.caller.waits))
		return appendNumbers(b, uint64(f.caller.node), uint64(f.caller.ticket))
	})
	b = appendEach(b, n.waiting, func(b []byte, w waiting) []byte {
		return appendText(appendNumbers(w.user.append(b), uint64(w.ticket)), w.call.Append(nil))
	})
	return appendEach(b, n.bound, func(b []byte, x *binding) []byte {
		b = appendText(appendText(append(x.run.append(b), x.replicas, bits(x.kept)), x.name), x.signature)
		return appendEach(b, x.users, func(b []byte, u user) []byte { return u.append(b) })
	})
}

// append appends an encoding, as that of user does: see Engine.AppendState.
func (r run) append(b []byte) []byte { return appendNumbers(b, r.first, r.count) }

func (u user) append(b []byte) []byte { return appendNumbers(b, uint64(u.node), uint64(u.client)) }

// check tells what contradicts itself.
func (n *registry) check() error {
	uses, end := 0, uint64(0)
	for _, b := range n.bound {
		uses += len(b.users)
		if b.first < end || b.count == 0 {
			return fmt.Errorf("%q has memory from page %d on, which others have up to page %d", b.name, b.first, end)
		}
		end = b.first + b.count
	}
	for i, f := range n.free {
		if f.count == 0 || n.overlaps(f) || i > 0 && n.free[i-1].first+n.free[i-1].count >= f.first {
			return fmt.Errorf("%d pages from page %d on are free, beside others that are, or have a name", f.count, f.first)
		}
	}
	if uses != n.uses {
		return fmt.Errorf("names have %d uses, %d are counted", uses, n.uses)
	}
	return nil
}

// sortRuns sorts runs and joins those that touch.
func sortRuns(runs []run) []run {
	slices.SortFunc(runs, func(a, b run) int { return cmp.Compare(a.first, b.first) })
	var out []run
	for _, r := range runs {
		if n := len(out); n > 0 && out[n-1].first+out[n-1].count >= r.first {
			out[n-1].count = max(out[n-1].first+out[n-1].count, r.first+r.count) - out[n-1].first
			continue
		}
		out = append(out, r)
	}
	return out
}
