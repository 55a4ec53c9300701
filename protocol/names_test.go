package protocol

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// A namesRun lets programs of a small cluster bind and give up names at random, while nodes are
// lost, leave and come, and compares each answer and the directory with what a naive one would do.
type namesRun struct {
	*few
	rng     *rand.Rand
	members []NodeID
	homes   []NodeID
	epoch   uint32
	tickets Ticket
	answers map[Ticket]Effect

	limits limits
	pages  []string // by page: the name that it belongs to, empty if it is free
	known  map[string]*naiveName
}

// naiveName is what a naive directory knows of a name.
type naiveName struct {
	run
	signature string
	replicas  uint8
	kept      bool
	users     map[user]bool // those who have kept it
}

func newNamesRun(t *testing.T, seed uint64) *namesRun {
	r := &namesRun{
		few: newFew(t, Config{Nodes: 4, Pages: 24, HomeStripe: 1}), rng: rand.New(rand.NewPCG(seed, 3)),
		members: []NodeID{0, 1, 2, 3}, homes: []NodeID{0, 1, 2, 3}, answers: map[Ticket]Effect{}, known: map[string]*naiveName{}, pages: make([]string, 24),
	}
	r.limits = allLimits
	r.limits.names, r.limits.uses = 5, 9
	for _, e := range r.engines {
		e.limits = r.limits
	}
	r.completed = func(_ NodeID, x Effect) { r.answers[x.Ticket] = x }
	return r
}

func (r *namesRun) failf(format string, args ...any) {
	r.t.Helper()
	r.t.Fatalf("epoch %d of %v, homes %v: %s\nknown %v\npages %q", r.epoch, r.members, r.homes, fmt.Sprintf(format, args...), r.known, r.pages)
}

// user is some program.
func (r *namesRun) user(nodes []NodeID) user {
	return user{nodes[r.rng.IntN(len(nodes))], ClientID(1 + r.rng.IntN(2))}
}

// start lets a program of one of some nodes call, and returns its call and ticket.
func (r *namesRun) start(nodes []NodeID) (user, NameCall, Ticket) {
	u := r.user(nodes)
	name := string(rune('a' + r.rng.IntN(8)))
	c := NameCall{Op: Bind, Client: u.client, Name: name}
	switch {
	case r.rng.IntN(2) == 0:
		c.Pages, c.Signature = 1+uint64(name[0]-'a'), "of "+name
		switch r.rng.IntN(12) { // what others do not agree to
		case 0:
			c.Pages++
		case 1:
			c.Signature = "other"
		case 2:
			c.Replicas = 1
		}
	default:
		c.Op = []NameOp{Unbind, Unbind, Keep, Discard}[r.rng.IntN(4)]
		if used := r.usedBy(u); len(used) > 0 && r.rng.IntN(2) == 0 {
			name = used[r.rng.IntN(len(used))]
			c.Name = name
		}
		// A directory that is new at it keeps what any user has kept, also if another has discarded
		// it since. So nobody does that here.
		if n := r.known[name]; c.Op == Discard && n != nil {
			for x, kept := range n.users {
				if kept && x != u {
					c.Op = Keep
				}
			}
		}
	}
	r.tickets++
	r.ask(u.node, r.tickets, c)
	return u, c, r.tickets
}

// ask lets a program call. What completes with the ticket is the answer.
func (f *few) ask(n NodeID, ticket Ticket, c NameCall) {
	f.t.Helper()
	f.step(n, Event{Kind: EventName, Client: c.Client, Ticket: ticket, Payload: c.Append(nil)})
}

// usedBy are the names that a program uses.
func (r *namesRun) usedBy(u user) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(r.known)) {
		if r.known[name].has(u) {
			names = append(names, name)
		}
	}
	return names
}

// call lets a program call, and checks the answer.
func (r *namesRun) call() {
	u, c, ticket := r.start(r.homes)
	r.settle()
	got, ok := r.answers[ticket]
	if !ok {
		r.failf("%+v of %v is not answered", c, u)
	}
	var want Status
	var payload []byte
	switch c.Op {
	case Bind:
		want, payload = r.bind(u, &c)
	case Unbind:
		want = r.unbind(u, c.Name)
	default:
		want = r.keep(u, &c)
	}
	if got.Status != want || (payload != nil || want == StatusOK) && !bytes.Equal(got.Payload, payload) || got.Client != u.client {
		r.failf("%+v of %v is answered by status %d, payload %q; want %d, %q", c, u, got.Status, got.Payload, want, payload)
	}
	r.compare()
}

func (r *namesRun) bind(u user, c *NameCall) (Status, []byte) {
	n := r.known[c.Name]
	switch {
	case n != nil && (n.signature != c.Signature || n.count != c.Pages || n.replicas != c.Replicas):
		return StatusMismatch, []byte(n.signature)
	case n != nil && n.has(u):
		return StatusOK, AppendRun(nil, n.first, n.count)
	case r.uses() >= r.limits.uses:
		return StatusNoSpace, nil
	case n == nil && len(r.known) >= r.limits.names:
		return StatusNoSpace, nil
	}
	if n == nil {
		first, ok := r.firstFit(c.Pages)
		if !ok {
			return StatusNoSpace, nil
		}
		n = &naiveName{run: run{first, c.Pages}, signature: c.Signature, replicas: c.Replicas, users: map[user]bool{}}
		r.known[c.Name] = n
		r.fill(n.run, c.Name)
	}
	n.users[u] = false
	return StatusOK, AppendRun(nil, n.first, n.count)
}

func (n *naiveName) has(u user) bool {
	_, ok := n.users[u]
	return ok
}

func (r *namesRun) unbind(u user, name string) Status {
	n := r.known[name]
	if n == nil || !n.has(u) {
		return StatusUnknown
	}
	delete(n.users, u)
	r.drop(name)
	return StatusOK
}

// drop frees a name that nobody uses, and that need not stay.
func (r *namesRun) drop(name string) {
	if n := r.known[name]; len(n.users) == 0 && !n.kept {
		delete(r.known, name)
		r.fill(n.run, "")
	}
}

func (r *namesRun) keep(u user, c *NameCall) Status {
	n := r.known[c.Name]
	if n == nil || c.Op == Keep && !n.has(u) {
		return StatusUnknown
	}
	if n.kept = c.Op == Keep; n.has(u) {
		n.users[u] = n.kept
	}
	r.drop(c.Name)
	return StatusOK
}

func (r *namesRun) uses() (sum int) {
	for _, n := range r.known {
		sum += len(n.users)
	}
	return sum
}

func (r *namesRun) firstFit(count uint64) (uint64, bool) {
	length := uint64(0)
	for p, owner := range r.pages {
		if length++; owner != "" {
			length = 0
		}
		if length == count {
			return uint64(p) + 1 - count, true
		}
	}
	return 0, false
}

func (r *namesRun) fill(x run, owner string) {
	for p := x.first; p < x.first+x.count; p++ {
		r.pages[p] = owner
	}
}

// compare compares the directory, and what nodes remember of their programs' uses, with what they
// should be.
func (r *namesRun) compare() {
	r.t.Helper()
	n := &r.engines[r.homes[0]].registry
	var free []run
	for p := 0; p < len(r.pages); p++ {
		if r.pages[p] == "" {
			first := p
			for p < len(r.pages) && r.pages[p] == "" {
				p++
			}
			free = append(free, run{uint64(first), uint64(p - first)})
		}
	}
	if !slices.Equal(free, n.free) || len(n.freeing)+len(n.waiting) > 0 || n.uses != r.uses() || len(n.bound) != len(r.known) {
		r.failf("free are %v, want %v; freeing %v, waiting %v; %d names with %d uses, want %d with %d", n.free, free, n.freeing, n.waiting, len(n.bound), n.uses, len(r.known), r.uses())
	}
	if !slices.IsSortedFunc(n.bound, func(a, b *binding) int { return int(a.first) - int(b.first) }) {
		r.failf("names are not in the order of their pages")
	}
	for _, b := range n.bound {
		want := r.known[b.name]
		if want == nil || b.run != want.run || b.signature != want.signature || b.replicas != want.replicas || b.kept != want.kept ||
			len(b.users) != len(want.users) || slices.ContainsFunc(b.users, func(u user) bool { return !want.has(u) }) {
			r.failf("a name is %+v, want %+v", *b, want)
		}
	}
	for _, node := range r.homes {
		e, uses := r.engines[node], 0
		for name, n := range r.known {
			for u, kept := range n.users {
				if u.node != node {
					continue
				}
				uses++
				i := slices.IndexFunc(e.names.uses, func(x use) bool { return x.name == name && x.client == u.client })
				if i < 0 || e.names.uses[i].run != n.run || e.names.uses[i].kept != kept {
					r.failf("node %d knows of its uses %+v; %v uses %s, and has kept it: %v", node, e.names.uses, u, name, kept)
				}
			}
		}
		if uses != len(e.names.uses) {
			r.failf("node %d knows of its uses %+v, which are %d", node, e.names.uses, uses)
		}
	}
}

// end is the end of a program.
func (r *namesRun) end() {
	u := r.user(r.homes)
	r.step(u.node, Event{Kind: EventClientGone, Client: u.client})
	r.settle()
	r.leave(func(x user) bool { return x == u })
	r.compare()
}

// leave takes users away.
func (r *namesRun) leave(gone func(user) bool) {
	for _, name := range slices.Sorted(maps.Keys(r.known)) {
		maps.DeleteFunc(r.known[name].users, func(u user, _ bool) bool { return gone(u) })
		r.drop(name)
	}
}

// deliverSome delivers some of the messages that a call takes.
func (r *namesRun) deliverSome() {
	for range r.rng.IntN(12) {
		if len(r.queue) > 0 {
			m := r.queue[0]
			r.queue = r.queue[1:]
			r.step(m.To, Event{Kind: EventMessage, Object: m.Object, Message: &m})
		}
	}
}

// interrupt lets a program call or end, of which some is under way when the next view begins. It
// returns what checks the answer then. The program is one that is there then.
func (r *namesRun) interrupt(homes []NodeID) (finish func()) {
	there := slices.DeleteFunc(slices.Clone(r.homes), func(n NodeID) bool { return !slices.Contains(homes, n) })
	if len(there) == 0 || r.rng.IntN(3) == 0 {
		return func() {}
	}
	if r.rng.IntN(4) == 0 { // it ends
		u := r.user(there)
		r.step(u.node, Event{Kind: EventClientGone, Client: u.client})
		r.deliverSome()
		r.leave(func(x user) bool { return x == u })
		return func() {}
	}
	u, c, ticket := r.start(there)
	r.deliverSome()
	if c.Op == Unbind { // whether it was heard or not: it is not used any more
		before := r.known[c.Name]
		ok := r.unbind(u, c.Name) == StatusOK
		return func() {
			if got, answered := r.answers[ticket]; !answered || ok && before != nil && got.Status != StatusOK && got.Status != StatusUnknown {
				r.failf("%+v of %v is answered: %v, by status %d", c, u, answered, got.Status)
			}
		}
	}
	old := r.known[c.Name]
	return func() {
		got, answered := r.answers[ticket]
		if !answered {
			r.failf("%+v of %v is not answered", c, u)
		}
		if c.Op == Discard && got.Status == StatusUnknown && old != nil {
			r.keep(u, &c) // it was said twice: the first time it was known
		}
		if got.Status != StatusOK {
			return
		}
		if c.Op != Bind {
			r.keep(u, &c)
			return
		}
		first, count, err := DecodeRun(got.Payload)
		n := r.known[c.Name]
		// it was bound before the others were lost
		if n == nil && old != nil && old.run == (run{first, count}) && old.signature == c.Signature && old.replicas == c.Replicas {
			n = &naiveName{run: old.run, signature: old.signature, replicas: old.replicas, kept: old.kept, users: map[user]bool{}}
		} else if n == nil {
			n = &naiveName{run: run{first, count}, signature: c.Signature, replicas: c.Replicas, users: map[user]bool{}}
		}
		if err != nil || n.run != (run{first, count}) {
			r.failf("%+v of %v gets pages from %d, want %+v", c, u, first, n)
		}
		if r.known[c.Name] == nil {
			r.known[c.Name] = n
			r.fill(n.run, c.Name)
		}
		if !n.has(u) {
			n.users[u] = false
		}
	}
}

// view lets the members enter the next view, perhaps in the middle of a call.
func (r *namesRun) view(members, homes []NodeID) {
	lost := !slices.Contains(members, r.homes[0])
	defer r.interrupt(homes)()
	r.members, r.homes = members, homes
	r.epoch++
	if r.rng.IntN(3) == 0 {
		r.passing()
	}
	r.queue = slices.DeleteFunc(r.queue, func(m Message) bool { return !slices.Contains(members, m.To) })
	r.enter(r.epoch, members, homes)
	gone := func(u user) bool { return !slices.Contains(members, u.node) }
	if !lost {
		r.leave(gone)
		return
	}
	// What nobody uses who is left is forgotten, and free. Kept is what a user has kept.
	for name, n := range r.known {
		maps.DeleteFunc(n.users, func(u user, _ bool) bool { return gone(u) })
		n.kept = slices.Contains(slices.Collect(maps.Values(n.users)), true)
		r.drop(name)
	}
}

// passing has a node come that is lost before all have entered the view that lets it in. Those that
// have not learn of the view after it only.
func (r *namesRun) passing() {
	n := slices.IndexFunc(r.engines, func(e *Engine) bool { return !slices.Contains(r.members, e.cfg.Self) })
	if n < 0 {
		return
	}
	add := func(nodes []NodeID) []NodeID {
		return slices.Sorted(slices.Values(append(slices.Clone(nodes), NodeID(n))))
	}
	for _, m := range r.members {
		if r.rng.IntN(2) == 0 {
			r.step(m, Event{Kind: EventEpoch, Epoch: r.epoch, Members: add(r.members), Homes: add(r.homes)})
		}
	}
	r.queue = slices.DeleteFunc(r.queue, func(m Message) bool { return !slices.Contains(r.members, m.To) })
	r.deliverSome()
	r.epoch++
}

// change has a node be lost, leave or come.
func (r *namesRun) change() {
	n := NodeID(r.rng.IntN(len(r.engines)))
	switch {
	case !slices.Contains(r.members, n):
		c := Config{Self: n, Nodes: len(r.engines), Pages: uint64(len(r.pages)), HomeStripe: 1, Outside: true}
		r.engines[n] = New(c)
		r.engines[n].limits = r.limits
		members := slices.Clone(r.members)
		at, _ := slices.BinarySearch(members, n)
		members = slices.Insert(members, at, n)
		r.view(members, members)
	case len(r.members) == 1:
		return
	case r.rng.IntN(2) == 0: // it leaves, in order
		for c := range ClientID(2) {
			r.step(n, Event{Kind: EventClientGone, Client: c + 1})
		}
		r.settle()
		r.leave(func(u user) bool { return u.node == n })
		rest := slices.DeleteFunc(slices.Clone(r.members), func(m NodeID) bool { return m == n })
		r.view(r.members, rest)
		r.compare()
		r.view(rest, rest)
	default:
		rest := slices.DeleteFunc(slices.Clone(r.members), func(m NodeID) bool { return m == n })
		r.view(rest, rest)
	}
	r.compare()
}

// TestNamesAtRandom: the allocator answers as a naive one would, whoever it is and
// whatever has become of those before.
func TestNamesAtRandom(t *testing.T) {
	for seed := range uint64(500) {
		r := newNamesRun(t, seed)
		for range 300 {
			switch dice := r.rng.IntN(40); {
			case dice == 0:
				r.change()
			case dice < 3:
				r.end()
			default:
				r.call()
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestDirectoryThatWasOvertaken: a node that was the allocator gives that to one that
// comes, and does not hear that all are ready. The others go on, and a program binds a name; then
// the new directory is lost. The old one takes the name from its user, and does not go on with what
// it had.
func TestDirectoryThatWasOvertaken(t *testing.T) {
	f := newFew(t, Config{Nodes: 3, Pages: 8, HomeStripe: 1})
	f.enter(1, []NodeID{1, 2}, []NodeID{1, 2})
	f.engines[0] = New(Config{Nodes: 3, Pages: 8, HomeStripe: 1, Outside: true})
	f.withhold = func(m *Message) bool { return m.Kind == KindEpochReady && m.To == 1 && m.From == 2 }
	f.enter(2, []NodeID{0, 1, 2}, []NodeID{0, 1, 2})
	var got *Effect
	f.completed = func(_ NodeID, x Effect) { got = &x }
	c := NameCall{Op: Bind, Client: 1, Pages: 3, Name: "a"}
	f.ask(2, 1, c)
	f.settle()
	if got == nil || got.Status != StatusOK {
		t.Fatalf("the name is bound by %+v", got)
	}
	f.withhold = func(m *Message) bool { return false }
	next := Event{Kind: EventEpoch, Epoch: 3, Members: []NodeID{1, 2}, Homes: []NodeID{1, 2}}
	f.step(1, next)
	f.release(0)
	f.step(2, next)
	f.settle()
	n := &f.engines[1].registry
	if len(n.bound) != 1 || n.uses != 1 || !slices.Equal(n.free, []run{{3, 5}}) {
		t.Errorf("%d names are bound, with %d uses, and free are %v", len(n.bound), n.uses, n.free)
	}
}

// TestBindBeforeUnbindIsAnswered: a program gives a name up, does not wait for the answer, which
// comes when the memory is free, and binds the name again. It uses the new memory, whenever the
// first answer comes, and also when the allocator is lost.
func TestBindBeforeUnbindIsAnswered(t *testing.T) {
	for _, test := range []struct{ interrupted, leaves bool }{{false, false}, {true, false}, {true, true}} {
		interrupted := test.interrupted
		f := newFew(t, Config{Nodes: 3, Pages: 24, HomeStripe: 1})
		answers := map[Ticket]Effect{}
		f.completed = func(_ NodeID, x Effect) { answers[x.Ticket] = x }
		call := func(n NodeID, ticket Ticket, op NameOp, name string) {
			c := NameCall{Op: op, Client: 7, Name: name}
			if op == Bind {
				c.Pages, c.Replicas = 2+uint64(ticket), 1
			}
			f.ask(n, ticket, c)
		}
		runOf := func(ticket Ticket) run {
			first, count, err := DecodeRun(answers[ticket].Payload)
			if err != nil {
				t.Fatalf("call %d is answered by %+v", ticket, answers[ticket])
			}
			return run{first, count}
		}
		call(2, 1, Bind, "a")
		f.settle()
		call(2, 2, Unbind, "a")
		call(2, 3, Bind, "a")
		if interrupted { // by a loss, when the second Bind is answered and the Unbind is not
			for answers[3].Payload == nil {
				m := f.queue[0]
				f.queue = f.queue[1:]
				f.step(m.To, Event{Kind: EventMessage, Object: m.Object, Message: &m})
			}
			if answers[2].Ticket != 0 {
				t.Fatal("the Unbind is answered first")
			}
		} else {
			f.settle()
		}
		is := runOf(3)
		if e := f.engines[2]; !slices.ContainsFunc(e.names.uses, func(u use) bool { return u.run == is }) || e.backups.copies(PageObject(is.first)) != 1 {
			t.Errorf("interrupted %v: it has bound %v, and knows of %+v, replicated %+v", interrupted, is, e.names.uses, e.backups.runs)
		}
		if test.leaves { // the allocator is another one, and the one before is there
			f.enter(1, []NodeID{0, 1, 2}, []NodeID{1, 2})
		} else {
			f.queue = slices.DeleteFunc(f.queue, func(m Message) bool { return m.To == 0 })
			f.enter(1, []NodeID{1, 2}, []NodeID{1, 2})
		}
		f.settle()
		if interrupted && answers[2].Status != StatusOK {
			t.Errorf("the Unbind is answered by %+v", answers[2])
		}
		r := &f.engines[1].registry
		if !slices.ContainsFunc(r.bound, func(b *binding) bool { return b.run == is }) || len(r.bound) != 1 || len(r.freeing) > 0 {
			t.Errorf("%+v: bound are %v, freeing %v, want %v", test, r.bound, r.freeing, is)
		}
		call(1, 4, Bind, "b")
		f.settle()
		if b := runOf(4); b.first < is.first+is.count && is.first < b.first+b.count {
			t.Errorf("interrupted %v: %v is bound, and another gets %v", interrupted, is, b)
		}
		call(2, 5, Unbind, "a")
		f.settle()
		if e := f.engines[2]; len(e.names.uses) > 0 || answers[5].Status != StatusOK {
			t.Errorf("interrupted %v: it has given that up, %+v, and knows of %+v", interrupted, answers[5], e.names.uses)
		}
	}
}

// TestUnbindBesideBindOfAnother: a program gives a name up, and before its memory is free one of
// another node binds the name anew. Then another node becomes the allocator, whether the one
// before is lost or not. The memory that was given up is free, and nobody contradicts anybody.
func TestUnbindBesideBindOfAnother(t *testing.T) {
	for _, members := range [][]NodeID{{1, 2}, {0, 1, 2}} {
		f := newFew(t, Config{Nodes: 3, Pages: 8, HomeStripe: 1})
		answers := map[Ticket]Effect{}
		f.completed = func(_ NodeID, x Effect) { answers[x.Ticket] = x }
		f.withhold = func(m *Message) bool { return m.Kind == KindFreeAck }
		call := func(n NodeID, ticket Ticket, op NameOp) {
			f.ask(n, ticket, NameCall{Op: op, Client: 1, Pages: 3, Name: "a"})
			f.settle()
		}
		call(2, 1, Bind)
		call(2, 2, Unbind)
		call(1, 3, Bind)
		if _, told := answers[2]; told || answers[3].Status != StatusOK {
			t.Fatalf("the calls are answered by %+v", answers)
		}
		f.withhold = func(*Message) bool { return false }
		f.enter(1, members, []NodeID{1, 2})
		f.settle()
		r := &f.engines[1].registry
		if answers[2].Status != StatusOK || len(r.bound) != 1 || r.uses != 1 || len(r.freeing) > 0 || r.bound[0].run != (run{0, 3}) && r.bound[0].run != (run{3, 3}) {
			t.Errorf("members %v: answered are %+v, %d names are bound with %d uses, free are %v", members, answers, len(r.bound), r.uses, r.free)
		}
	}
}

// TestGapsBesideAllNames: after the loss of the allocator what lies between names is freed, and at
// the same time all names there can be.
func TestGapsBesideAllNames(t *testing.T) {
	f := newFew(t, Config{Nodes: 3, Pages: 8, HomeStripe: 1})
	ticket := Ticket(0)
	call := func(op NameOp, n NodeID, client ClientID, name string) {
		ticket++
		f.ask(n, ticket, NameCall{Op: op, Client: client, Pages: 2, Name: name})
		f.settle()
	}
	call(Bind, 0, 1, "lost with its node")
	call(Bind, 2, 1, "a")
	call(Bind, 2, 2, "given up in the recovery")
	for _, e := range f.engines {
		e.limits.names = 1
	}
	f.withhold = func(m *Message) bool { return m.Kind == KindFreeAck }
	for n := NodeID(1); n <= 2; n++ {
		f.step(n, Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{1, 2}, Homes: []NodeID{1, 2}})
	}
	f.step(2, Event{Kind: EventClientGone, Client: 2})
	f.settle()
	r := &f.engines[1].registry
	if len(r.freeing) != 2 || len(r.bound) != 1 {
		t.Fatalf("%d runs are being freed beside %d names", len(r.freeing), len(r.bound))
	}
	call(Unbind, 2, 1, "a")
	f.withhold = func(*Message) bool { return false }
	for len(f.withheld) > 0 {
		f.release(0)
		f.settle()
	}
	if !slices.Equal(r.free, []run{{0, 8}}) {
		t.Errorf("free are %v, being freed %v", r.free, r.freeing)
	}
}

// TestUnbindOfTwoAllocators: an Unbind waits at the allocator for the end of a recovery, in which
// another node was to become the allocator, and is lost. The first one has no user of the name by
// then, and says so. The program is told that its memory is free.
func TestUnbindOfTwoAllocators(t *testing.T) {
	for _, isLate := range []bool{false, true} {
		f := newFew(t, Config{Nodes: 4, Pages: 8, HomeStripe: 1})
		rest := []NodeID{1, 2, 3}
		f.enter(1, rest, rest)
		answers := map[Ticket]Effect{}
		f.completed = func(_ NodeID, x Effect) { answers[x.Ticket] = x }
		call := func(ticket Ticket, op NameOp) {
			f.ask(2, ticket, NameCall{Op: op, Client: 1, Pages: 3, Name: "a"})
			f.settle()
		}
		call(1, Bind)
		f.withhold = func(m *Message) bool { return m.Kind == KindNameRequest }
		call(2, Unbind)
		f.engines[0] = New(Config{Nodes: 4, Pages: 8, HomeStripe: 1, Outside: true})
		all := []NodeID{0, 1, 2, 3}
		f.step(1, Event{Kind: EventEpoch, Epoch: 2, Members: all, Homes: all})
		f.withhold = func(m *Message) bool { return isLate && m.Kind == KindEpochReady && m.From == 3 && m.To == 2 }
		f.release(0)
		f.step(2, Event{Kind: EventEpoch, Epoch: 2, Members: all, Homes: all})
		f.step(3, Event{Kind: EventEpoch, Epoch: 2, Members: all, Homes: all})
		f.queue = slices.DeleteFunc(f.queue, func(m Message) bool { return m.To == 0 })
		f.enter(3, rest, rest)
		if isLate {
			f.withhold = func(m *Message) bool { return false }
			f.release(0)
			f.settle()
		}
		if uses := f.engines[2].names.uses; answers[2].Kind != EffectComplete || answers[2].Status != StatusOK || len(uses) > 0 {
			t.Errorf("late %v: the Unbind is answered by %+v, and the node knows of %+v", isLate, answers[2], uses)
		}
	}
}

// TestSkippedView: a node comes that is to be the allocator, and is lost before all members have
// entered the view that lets it in. Those that have not learn of the view after it only. The
// allocator may have forgotten what waits there, or not: every call is answered, and all agree on
// what is bound.
func TestSkippedView(t *testing.T) {
	for skips := range 8 {
		f := newFew(t, Config{Nodes: 4, Pages: 8, HomeStripe: 1})
		rest, all := []NodeID{1, 2, 3}, []NodeID{0, 1, 2, 3}
		f.enter(1, rest, rest)
		answers := map[Ticket]Effect{}
		f.completed = func(_ NodeID, x Effect) { answers[x.Ticket] = x }
		call := func(n NodeID, ticket Ticket, op NameOp, name string) {
			f.ask(n, ticket, NameCall{Op: op, Client: 1, Pages: 4, Name: name})
			f.settle()
		}
		call(2, 1, Bind, "a")
		call(3, 2, Bind, "b")
		f.withhold = func(m *Message) bool { return m.Kind == KindFreeAck }
		call(2, 3, Unbind, "a")
		call(3, 4, Bind, "c")
		if len(answers) != 2 {
			t.Fatalf("calls that should wait are answered: %+v", answers)
		}
		f.withhold = func(*Message) bool { return false }
		f.engines[0] = New(Config{Nodes: 4, Pages: 8, HomeStripe: 1, Outside: true})
		for _, n := range rest {
			if skips>>(n-1)&1 == 0 {
				f.step(n, Event{Kind: EventEpoch, Epoch: 2, Members: all, Homes: all})
			}
		}
		f.queue = slices.DeleteFunc(f.queue, func(m Message) bool { return m.To == 0 })
		f.enter(3, rest, rest)
		f.settle()
		r := &f.engines[1].registry
		if answers[3].Status != StatusOK || answers[4].Status != StatusOK || len(answers) != 4 || len(r.bound) != 2 || r.uses != 2 || len(r.freeing) != 0 {
			t.Errorf("skipped by %03b: the calls are answered by %+v, %d names are bound with %d uses, %v are being freed", skips, answers, len(r.bound), r.uses, r.freeing)
		}
	}
}

// TestParkedThroughAnAllocator: an Unbind waits at the allocator for the end of a recovery, of
// which that does not hear. The others go on with another allocator, which is lost, and the first
// one is it again. By then the program has the name again; or its node still waits for the other
// one's answer. What the Unbind was about is no more, and nobody is blamed.
func TestParkedThroughAnAllocator(t *testing.T) {
	for _, isAnswered := range []bool{true, false} {
		f := newFew(t, Config{Nodes: 4, Pages: 8, HomeStripe: 1})
		rest, all := []NodeID{1, 2, 3}, []NodeID{0, 1, 2, 3}
		f.enter(1, rest, rest)
		answers := map[Ticket]Effect{}
		f.completed = func(_ NodeID, x Effect) { answers[x.Ticket] = x }
		call := func(n NodeID, ticket Ticket, op NameOp) {
			f.ask(n, ticket, NameCall{Op: op, Client: 1, Pages: 3, Name: "a"})
			f.settle()
		}
		call(2, 1, Bind)
		call(3, 1, Bind)
		f.engines[0] = New(Config{Nodes: 4, Pages: 8, HomeStripe: 1, Outside: true})
		f.withhold = func(m *Message) bool { return m.To == 0 } // it has not come yet
		f.step(1, Event{Kind: EventEpoch, Epoch: 2, Members: all, Homes: all})
		call(2, 2, Unbind)
		f.withhold = func(m *Message) bool {
			return m.Kind == KindEpochReady && m.To == 1 && m.From == 3 || m.Kind == KindNameReply && !isAnswered
		}
		for _, n := range []NodeID{0, 2, 3} {
			f.step(n, Event{Kind: EventEpoch, Epoch: 2, Members: all, Homes: all})
		}
		f.release(0)
		if _, told := answers[2]; told != isAnswered {
			t.Fatalf("the Unbind is answered by the allocator in between: %v", told)
		}
		if isAnswered {
			call(2, 3, Bind)
		}
		f.withheld = nil
		f.withhold = func(m *Message) bool { return m.Kind == KindEpochReady && m.To == 2 && m.From == 3 && !isAnswered }
		f.enter(3, rest, rest)
		f.withhold = func(*Message) bool { return false }
		for len(f.withheld) > 0 {
			f.release(0)
		}
		users := map[bool]int{true: 2, false: 1}[isAnswered]
		if r := &f.engines[1].registry; len(r.bound) != 1 || r.uses != users || len(f.engines[2].names.uses) != users-1 || answers[2].Status != StatusOK || len(f.engines[2].names.calls) > 0 {
			t.Errorf("answered %v: %d names are bound with %d uses, its node knows of %+v; the Unbind is answered by %+v",
				isAnswered, len(r.bound), r.uses, f.engines[2].names.uses, answers[2])
		}
	}
}

// TestMemoryOfAllocatorInBetween: an allocator that has been overtaken is it again, after the loss
// of the other one. What that had bound, and its user has given up, is no page that nobody has
// touched.
func TestMemoryOfAllocatorInBetween(t *testing.T) {
	f := newFew(t, Config{Nodes: 3, Pages: 8, HomeStripe: 1})
	f.enter(1, []NodeID{1, 2}, []NodeID{1, 2})
	f.engines[0] = New(Config{Nodes: 3, Pages: 8, HomeStripe: 1, Outside: true})
	f.withhold = func(m *Message) bool { return m.Kind == KindEpochReady && m.To == 1 && m.From == 2 }
	f.enter(2, []NodeID{0, 1, 2}, []NodeID{0, 1, 2})
	var got *Effect
	f.completed = func(_ NodeID, x Effect) { got = &x }
	c := NameCall{Op: Bind, Client: 1, Pages: 3, Name: "a"}
	f.ask(2, 1, c)
	f.settle()
	f.fault(2, Write, 2)
	f.settle()
	if got == nil || got.Status != StatusOK || f.engines[2].objects.find(PageObject(2)).has() != Write {
		t.Fatalf("the name is bound by %+v, and not stored to", got)
	}
	f.withhold = func(m *Message) bool { return m.Kind == KindNameRequest }
	f.step(2, Event{Kind: EventClientGone, Client: 1})
	f.settle()
	f.withhold, f.withheld = func(*Message) bool { return false }, nil
	f.enter(3, []NodeID{1, 2}, []NodeID{1, 2})
	o := f.engines[2].objects.find(PageObject(2))
	if r := &f.engines[1].registry; !slices.Equal(r.free, []run{{0, 8}}) || o != nil && o.has() != None {
		t.Errorf("free are %v, being freed %v, and a page that was stored to is still there: %v", r.free, r.freeing, o != nil)
	}
}
