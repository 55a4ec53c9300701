package protocol

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestValidate: each number of a configuration has the bounds that the errors name, and just these.
func TestValidate(t *testing.T) {
	good := Config{Nodes: 4, Pages: 8, HomeStripe: 1, Hold: 5, MaxHold: 5}
	for _, c := range []struct {
		change func(*Config)
		bad    bool
	}{
		{func(*Config) {}, false},
		{func(c *Config) { c.Nodes = 0 }, true},
		{func(c *Config) { c.Nodes = 1 }, false},
		{func(c *Config) { c.Nodes = MaxNodes }, false},
		{func(c *Config) { c.Nodes = MaxNodes + 1 }, true},
		{func(c *Config) { c.Self = 3 }, false},
		{func(c *Config) { c.Self = 4 }, true},
		{func(c *Config) { c.Pages = 0 }, true},
		{func(c *Config) { c.Pages = uint64(lockBit) }, true},
		{func(c *Config) { c.Pages = uint64(lockBit) - 1 }, false},
		{func(c *Config) { c.HomeStripe = 0 }, true},
		{func(c *Config) { c.ContentionThreshold = -1 }, true},
		{func(c *Config) { c.TreeFrom = -1 }, true},
		{func(c *Config) { c.TreeArity = -1 }, true},
		{func(c *Config) { c.TreeArity = MaxTreeArity }, false},
		{func(c *Config) { c.TreeArity = MaxTreeArity + 1 }, true},
		{func(c *Config) { c.ExactNodes = -1 }, true},
		{func(c *Config) { c.ExactNodes = DefaultExactNodes }, false},
		{func(c *Config) { c.ExactNodes = DefaultExactNodes + 1 }, true},
		{func(c *Config) { c.Pointers = -1 }, true},
		{func(c *Config) { c.Pointers = DefaultPointers }, false},
		{func(c *Config) { c.Pointers = DefaultPointers + 1 }, true},
		{func(c *Config) { c.Nodes = MaxNodes; c.GroupNodes = c.smallestGroup() }, false},
		{func(c *Config) { c.Nodes = MaxNodes; c.GroupNodes = c.smallestGroup() - 1 }, true},
		{func(c *Config) { c.MaxHold = 4 }, true},
	} {
		config := good
		c.change(&config)
		if err := config.Validate(); (err != nil) != c.bad {
			t.Errorf("%+v: %v", config, err)
		}
	}
}

// TestNodeSet: a set of any nodes has just those.
func TestNodeSet(t *testing.T) {
	s := make(nodeSet, MaxNodes/64)
	for n := range NodeID(MaxNodes) {
		s[n/64] |= 1 << (n % 64)
		for m := range NodeID(MaxNodes) {
			if s.has(m) != (m == n) {
				t.Fatalf("the set of %d alone has %d: %v", n, m, s.has(m))
			}
		}
		if s.empty() || s.remove((n+1)%MaxNodes) || !s.remove(n) || s.remove(n) || !s.empty() {
			t.Fatalf("node %d cannot be taken out once", n)
		}
	}
}

// TestCoarseCopysetNamesItsGroups: where a copyset names groups it names those of the nodes that
// were added, and no others.
func TestCoarseCopysetNamesItsGroups(t *testing.T) {
	c := (&Config{Self: 0, Nodes: MaxNodes}).withDefaults()
	var s copyset
	groups := map[int]bool{}
	for n := NodeID(1); n < MaxNodes; n += MaxNodes / 16 {
		s.add(n, &c)
		groups[int(n)/c.GroupNodes] = true
	}
	if s.exact(&c) {
		t.Fatal("16 nodes fit into an exact set: the test tests nothing")
	}
	for _, n := range s.appendTo(nil, &c) {
		if !groups[int(n)/c.GroupNodes] {
			t.Errorf("node %d is listed, and none of its group was added", n)
		}
	}
}

// TestSmallestGroup: a coarse set has a bit for the group of each node, and one for the home.
func TestSmallestGroup(t *testing.T) {
	for nodes := 1; nodes <= MaxNodes; nodes++ {
		c := Config{Nodes: nodes}
		if g := c.smallestGroup(); (nodes-1)/g >= coarseBits || g > 1 && (nodes-1)/(g-1) < coarseBits {
			t.Errorf("%d nodes in groups of %d need %d bits of %d", nodes, g, (nodes-1)/g+1, coarseBits)
		}
	}
}

// TestContributed: what ranks have brought is counted in each message that carries it.
func TestContributed(t *testing.T) {
	payload := []byte("four")
	two := relayed{node: 1, object: LockObject(1), parties: 2, ticket: 1, payload: payload}
	for _, c := range []struct {
		m    Message
		want int
	}{
		{BarrierArrive{Contribution: payload}.To(0, 0), 4},
		{BarrierRelease{Result: payload}.To(0, 0), 4},
		{BarrierOpen{Releases: appendBroadcast(nil, []addressee{{1, 1}}, payload)}.To(0, 0), 4},
		{BarrierCombine{Arrivals: two.append(two.append(nil))}.To(0), 8},
		{BarrierBroadcast{Releases: appendBroadcast(nil, []addressee{{1, 1}}, payload)}.To(0, 0), 4},
		{NameRequest{Call: payload}.To(0), 0},
	} {
		if got := Contributed(&c.m); got != c.want {
			t.Errorf("%v: %d bytes, want %d", c.m.Kind, got, c.want)
		}
	}
}

// TestReportsArePieces: what an allocator reports goes in messages that are not too long,
// and what they say can be read, to the last entry.
func TestReportsArePieces(t *testing.T) {
	e := New(Config{Nodes: 2, Pages: 1 << 20, HomeStripe: 1})
	long := strings.Repeat("s", MaxSignature)
	const names = 6 * MaxPayload / MaxSignature
	for i := range uint64(names) {
		c := NameCall{Op: Bind, Client: 1, Pages: 1, Name: fmt.Sprintf("%0*d", MaxName, i), Signature: long[:MaxSignature-i*37%1000]}
		e.Step(Event{Kind: EventName, Client: 1, Ticket: Ticket(i + 1), Payload: c.Append(nil)}, nil)
	}
	p := parcel{to: 1}
	e.registry.report(&p)
	found := 0
	for _, piece := range p.pieces {
		if len(piece) > MaxPayload {
			t.Errorf("a piece has %d bytes", len(piece))
		}
		if err := eachEntry(piece, func(x *entry) {
			if x.tag == tagBound {
				found++
			}
		}); err != nil {
			t.Error(err)
		}
	}
	if found != names {
		t.Errorf("%d of %d names are reported", found, names)
	}
	e.view.came, e.view.members = []uint32{3, 0}, []NodeID{0, 1}
	p = parcel{to: 1}
	e.dir.reportPast(&p)
	came := 0
	for _, piece := range p.pieces {
		for cut := range piece {
			if cut > 0 && eachEntry(piece[:cut], func(*entry) {}) == nil {
				t.Errorf("%d of %d bytes are a report", cut, len(piece))
			}
		}
		if err := eachEntry(piece, func(x *entry) {
			if x.tag == tagCame && x.owner == 0 && x.since == 3 {
				came++
			}
		}); err != nil {
			t.Error(err)
		}
	}
	if came != 1 {
		t.Errorf("that node 0 came in epoch 3 is reported %d times", came)
	}
}

// TestReportedIsBounded: who keeps names may report more than who does not, for each name and each
// use.
func TestReportedIsBounded(t *testing.T) {
	e := New(Config{Nodes: 2, Pages: 8, HomeStripe: 1})
	most := e.recovery.maxReported()
	for _, less := range []func(*limits){func(l *limits) { l.names-- }, func(l *limits) { l.uses-- }, func(l *limits) { l.locks-- }} {
		e.limits = allLimits
		if less(&e.limits); e.recovery.maxReported() >= most {
			t.Errorf("with limits %+v there may be %d bytes, and %d with %+v", e.limits, e.recovery.maxReported(), most, allLimits)
		}
	}
	other := New(Config{Self: 1, Nodes: 2, Pages: 8, HomeStripe: 1})
	if other.recovery.maxReported() >= most {
		t.Errorf("who keeps no names may report %d bytes, and who does %d", other.recovery.maxReported(), most)
	}
}

// TestWaiting: a node waits for a page from when it has asked for it until it has it, and for more
// access likewise.
func TestWaiting(t *testing.T) {
	f := newFew(t, Config{Nodes: 2, Pages: 8, HomeStripe: 1})
	page := PageObject(1) // its home is node 1
	f.withhold = func(m *Message) bool { return m.Kind == KindGrant }
	for _, access := range []Access{Read, Write} {
		if f.engines[0].Waiting(page) {
			t.Fatalf("node 0 waits before it wants to %v", access)
		}
		f.fault(0, access, 1)
		f.settle()
		if !f.engines[0].Waiting(page) {
			t.Fatalf("node 0 does not wait to %v", access)
		}
		f.release(0)
		if access == Read { // another reader, so that more has to be asked for
			f.fault(1, Read, 1)
			f.settle()
			f.release(0)
		}
	}
	if f.engines[0].Access(page) != Write || f.engines[0].Waiting(page) {
		t.Error("node 0 waits for what it has")
	}
	if entry, ok := f.engines[1].Entry(page); !ok || entry.Owner != 0 || !entry.Exclusive {
		t.Errorf("the home says %+v, %v", entry, ok)
	}
	f.fault(1, Write, 1)
	f.settle()
	if entry, ok := f.engines[1].Entry(page); ok {
		t.Errorf("while the page is on its way the home says %+v", entry)
	}
	if entry, ok := f.engines[1].Entry(PageObject(3)); ok || entry.Owner != NoNode {
		t.Errorf("of a page that nobody has touched the home says %+v", entry)
	}
}

// TestAwaits: a node needs others from when it has asked for more than it can grant itself until
// all have answered, also if it can ask only when something else is over. Then the page table alone
// has something to do.
func TestAwaits(t *testing.T) {
	e := New(Config{Nodes: 2, Pages: 8, HomeStripe: 8})
	page := PageObject(3)
	step := func(what string, ev Event, waiting, awaits bool, effects ...EffectKind) {
		t.Helper()
		ev.Object = page
		var kinds []EffectKind
		for _, f := range e.Step(ev, nil) {
			kinds = append(kinds, f.Kind)
		}
		if w, a := e.Waiting(page), Awaits(e, page); w != waiting || a != awaits || !slices.Equal(kinds, effects) {
			t.Fatalf("%s: the node waits: %v, for others: %v, after effects %v; want %v, %v, %v", what, w, a, kinds, waiting, awaits, effects)
		}
	}
	fault := func(access Access) Event { return Event{Kind: EventFault, Access: access, Client: 1, Thread: 1} }
	done := func(kind EffectKind) Event { return Event{Kind: EventCompleted, Effect: kind} }
	peer := func(m Message) Event {
		m = m.SentBy(1)
		return Event{Kind: EventMessage, Message: &m}
	}
	if Awaits(e, page) {
		t.Fatal("the node waits for others before it has asked for anything")
	}
	step("a first touch at home", fault(Write), true, false, EffectInstall)
	step("it is here", done(EffectInstall), false, false)
	step("the other node wants it", peer(Request{Access: Write}.To(0, page)), false, false, EffectRevoke)
	step("a fault meanwhile", fault(Read), true, true)
	step("it has left, and is asked for", done(EffectRevoke), true, true, EffectSend, EffectSend)
	step("the other grants it", peer(Grant{Access: Read, Contents: ZeroContents}.To(0, page)), true, false, EffectInstall)
	step("it is here again", done(EffectInstall), false, false)
	step("a store", fault(Write), true, true, EffectSend)
	step("the other has no copy any more", peer(InvalidateAck{}.To(0, page)), true, false, EffectMakeWritable)
	step("it is for writing", done(EffectMakeWritable), false, false)
}

// TestDeadDoNotArrive: who ends while it waits at a barrier has not come.
func TestDeadDoNotArrive(t *testing.T) {
	f := newFew(t, Config{Nodes: 2, Pages: 8, HomeStripe: 1})
	barrier := LockObject(2)
	for f.engines[0].home(barrier) != 0 {
		barrier++
	}
	f.step(1, Event{Kind: EventArrive, Client: 7, Ticket: 1, Object: barrier, Parties: 2})
	f.settle()
	if f.engines[0].barriers.arrived != 1 {
		t.Fatalf("%d have arrived", f.engines[0].barriers.arrived)
	}
	f.step(1, Event{Kind: EventClientGone, Client: 7})
	f.settle()
	if f.engines[0].barriers.arrived != 0 || len(f.engines[0].barriers.open) > 0 {
		t.Errorf("%d have arrived, and it is dead", f.engines[0].barriers.arrived)
	}
}

// TestOnlyReplicatedMemoryIsNoted: of other memory a node keeps no list.
func TestOnlyReplicatedMemoryIsNoted(t *testing.T) {
	for copies := range uint8(2) {
		e := New(Config{Nodes: 2, Pages: 8, HomeStripe: 1})
		c := NameCall{Op: Bind, Client: 1, Pages: 1, Name: "a", Replicas: copies}
		e.Step(Event{Kind: EventName, Client: 1, Ticket: 1, Payload: c.Append(nil)}, nil)
		if len(e.backups.runs) != int(copies) {
			t.Errorf("of memory with %d replicas %v is noted", copies, e.backups.runs)
		}
	}
}

// own is a page whose home this node is, and outside is so far behind the region that its home
// would be this node.
func (e *Engine) own() ObjectID {
	for p := uint64(0); ; p++ {
		if e.home(PageObject(p)) == e.cfg.Self {
			return PageObject(p)
		}
	}
}

func (e *Engine) outside() uint64 {
	for p := uint64(0); ; p++ {
		if e.home(PageObject(e.cfg.Pages+p)) == e.cfg.Self {
			return p
		}
	}
}

// entryOf is what a former home reports of a page that was lost with a node.
func entryOf(id ObjectID, owner NodeID) []byte {
	b := binary.LittleEndian.AppendUint64([]byte{tagEntry}, uint64(id))
	b = append(binary.LittleEndian.AppendUint16(b, uint16(owner)), 1)
	return binary.LittleEndian.AppendUint32(b, 0)
}

// refuses reports whether an engine rejects a message and does nothing else.
func refuses(e *Engine, m Message) bool {
	before := string(e.AppendState(nil))
	out := e.Step(Event{Kind: EventMessage, Object: m.Object, Message: &m}, nil)
	return len(out) == 1 && out[0].Kind == EffectReject && string(e.AppendState(nil)) == before
}

// TestRefused: what no peer that keeps to the rules says is rejected, each for one thing that is
// wrong with it.
func TestRefused(t *testing.T) {
	fresh := func(self NodeID) *Engine { return New(Config{Self: self, Nodes: 3, Pages: 8, HomeStripe: 1}) }
	for k := Kind(1); k < kindEnd; k++ {
		m := Message{Kind: k, From: 1, node: 1, Object: PageObject(8), access: Read, contents: PageContents, rank: 1}
		if k > KindDecline && (k < KindLost || k > KindBackupCopyAck) {
			continue
		}
		if e := fresh(0); !refuses(e, m) {
			t.Errorf("%v of a page outside of the region is not rejected", k)
		}
	}
	asks := func(c NameCall) *Engine {
		e := fresh(1)
		e.Step(Event{Kind: EventName, Client: 1, Ticket: 1, Payload: c.Append(nil)}, nil)
		return e
	}
	bind := NameCall{Op: Bind, Client: 1, Pages: 1, Name: "a"}
	for what, m := range map[string]Message{
		"a name reply that speaks of a lock": {Kind: KindNameReply, ticket: 1, status: StatusOwnerDied, Payload: AppendRun(nil, 0, 1)},
		"a name reply of another node":       {Kind: KindNameReply, From: 2, ticket: 1, Payload: AppendRun(nil, 0, 1)},
		"memory outside of the region":       {Kind: KindNameReply, ticket: 1, Payload: AppendRun(nil, 8, 1)},
		"more memory than there is":          {Kind: KindNameReply, ticket: 1, Payload: AppendRun(nil, 0, 9)},
	} {
		if e := asks(bind); !refuses(e, m) {
			t.Errorf("%s is not rejected", what)
		}
	}
	if e := asks(bind); refuses(e, NameReply{Ticket: 1, Answer: AppendRun(nil, 7, 1)}.To(0)) {
		t.Error("memory at the end of the region is rejected")
	}
	// The home of page 0 wants to write it, and node 1 owns it: a Grant comes from there.
	f := newFew(t, Config{Nodes: 3, Pages: 8, HomeStripe: 1})
	f.fault(1, Write, 0)
	f.settle()
	f.withhold = func(m *Message) bool { return true }
	f.fault(0, Write, 0)
	f.settle()
	grant := Grant{Access: Write, Contents: PageContents}.To(0, 0).SentBy(2)
	if !refuses(f.engines[0], grant) {
		t.Error("a page from a node that was not asked is not rejected")
	}
	grant.From = 1
	if refuses(f.engines[0], grant) {
		t.Error("the page is rejected")
	}
	// Node 2 has a backup of page 0, and the page itself.
	f = newFew(t, Config{Nodes: 3, Pages: 8, HomeStripe: 1})
	f.step(2, Event{Kind: EventMessage, Message: new(Backup{Contents: PageContents, Copies: 1}.To(0, 0).SentBy(1))})
	f.queue = nil
	f.fault(2, Read, 0)
	f.settle()
	restore := Forward{Requester: 1, Access: Write, Backup: true}.To(0, 0)
	if !refuses(f.engines[2], restore) {
		t.Error("a node that has a page is asked for its backup")
	}
	// Nobody who has the only copy is told to give up one of many; nobody installs a backup that is
	// not there; nobody has copied what was not sent.
	f = newFew(t, Config{Nodes: 3, Pages: 8, HomeStripe: 1})
	f.fault(1, Write, 0)
	f.settle()
	if !refuses(f.engines[1], Invalidate{Requester: 2}.To(0, 0)) {
		t.Error("who may write a page is told that it is one of many")
	}
	f.withhold = func(m *Message) bool { return true }
	f.fault(2, Write, 0)
	f.settle()
	if !refuses(f.engines[2], Grant{Access: Write, Backup: true}.To(0, 0)) {
		t.Error("a backup that is not there is installed")
	}
	if !refuses(f.engines[2], BackupCopyAck{}.To(0, 0)) {
		t.Error("a copy that was not sent is acknowledged")
	}
	// A recovery: what was in use comes from the directory, in at least one piece.
	e := fresh(1)
	e.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{0, 1}}, nil)
	e.Step(Event{Kind: EventMessage, Message: new(EpochMarker{Epoch: 1}.To(0))}, nil)
	for what, m := range map[string]Message{
		"a page outside of the region": {Kind: KindReportHeld, word: 1, rank: 1, Payload: entryOf(PageObject(8+e.outside()), 0)},
		"an owner outside":             {Kind: KindReportHeld, word: 1, rank: 1, Payload: entryOf(e.own(), 3)},
		"no piece of a report":         {Kind: KindReportHeld, word: 1},
		"no piece of what is in use":   {Kind: KindReportBound, word: 1},
	} {
		if !refuses(e, m) {
			t.Errorf("%s is not rejected", what)
		}
	}
	if refuses(e, ReportHeld{Epoch: 1, Pieces: 1}.To(0)) {
		t.Error("an empty report is rejected")
	}
	if slices.Contains(e.view.members, 2) {
		t.Error("the node that is lost is a member")
	}
}

// TestUseAtTheEnd: a use of a name may be the last of a report.
func TestUseAtTheEnd(t *testing.T) {
	e := New(Config{Nodes: 2, Pages: 8, HomeStripe: 1})
	c := NameCall{Op: Bind, Client: 1, Pages: 1, Name: "a"}
	e.Step(Event{Kind: EventName, Client: 1, Ticket: 1, Payload: c.Append(nil)}, nil)
	var p parcel
	e.names.report(&p, 0)
	const top = 9
	found := 0
	if err := eachEntry(p.pieces[0][:len(p.pieces[0])-top], func(x *entry) {
		if x.tag == tagUse && x.run == (run{0, 1}) && x.call.Client == 1 {
			found++
		}
	}); err != nil || found != 1 {
		t.Errorf("the use is found %d times, %v", found, err)
	}
}

// TestSortRuns: runs in any order are put in order, and those that touch are one.
func TestSortRuns(t *testing.T) {
	got := sortRuns([]run{{8, 2}, {0, 2}, {5, 1}, {2, 3}, {9, 3}})
	if want := []run{{0, 6}, {8, 4}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestNeighboursShareAHome: so many pages as a stripe has, whoever is lost. Homes move only from
// who is lost, and all that are left have a share.
func TestNeighboursShareAHome(t *testing.T) {
	const pages = 1024
	e := New(Config{Nodes: 7, Pages: pages, HomeStripe: 4})
	members := e.memberList()
	var before []NodeID
	for {
		homes := map[NodeID]bool{}
		var after []NodeID
		for p := range uint64(pages) {
			home := e.Home(PageObject(p))
			if first := e.Home(PageObject(p / 4 * 4)); home != first {
				t.Errorf("with homes %v, page %d has its home on node %d, and the first of its stripe on node %d", members, p, home, first)
			}
			if before != nil && home != before[p] && slices.Contains(members, before[p]) {
				t.Errorf("with homes %v, page %d has its home on node %d, and had it on node %d", members, p, home, before[p])
			}
			homes[home] = true
			after = append(after, home)
		}
		if len(homes) != len(members) {
			t.Errorf("of homes %v, %d are homes", members, len(homes))
		}
		if len(members) == 1 {
			return
		}
		members = slices.Delete(slices.Clone(members), len(members)/2, len(members)/2+1)
		e.view.homes, before = members, after
	}
}

// TestHoldTime: a page that was just gained stays for the time of a hold, counted from when it
// came, and longer for an access that has failed to get through.
func TestHoldTime(t *testing.T) {
	const hold = 50
	for _, c := range []struct{ gained, wanted, after Time }{{1000, 1000, hold}, {1000, 1030, 20}, {1000, 1050, 0}, {^Time(0) - 9, 10, hold - 20}} {
		f := newFew(t, Config{Nodes: 2, Pages: 8, HomeStripe: 1, Hold: hold, MaxHold: 4 * hold})
		var after Time
		f.held = func(_ NodeID, x Effect) { after = x.After }
		f.now = c.gained
		f.fault(1, Write, 0)
		f.settle()
		f.now = c.wanted
		f.fault(0, Write, 0)
		f.settle()
		if after != c.after {
			t.Errorf("gained at %d and wanted at %d, the page is held for %d, want %d", c.gained, c.wanted, after, c.after)
		}
	}
	h := newHolding(Config{Nodes: 2, Pages: 8, HomeStripe: 1, Hold: hold, MaxHold: 4 * hold})
	for failed := range 3 * retriesPerDoubling {
		if want := min(Time(hold)<<(failed/retriesPerDoubling), 4*hold); h.time() != want {
			t.Errorf("an access that has failed %d times holds the page for %d, want %d", failed, h.time(), want)
		}
		h.again(h.time())
	}
	h.o.set(contestedFlag, true)
	if h.pace.noteProgress(h.o, Event{Kind: EventFault, Thread: 2, Offset: 8}); h.o.retries() != 0 {
		t.Errorf("another access has failed %d times", h.o.retries())
	}
}

// holding is a page that one thread wants and another node, too, all the time.
type holding struct {
	*Engine
	o *object
}

func newHolding(cfg Config) holding {
	e := New(cfg)
	h := holding{e, e.objects.get(PageObject(0))}
	e.pace.noteProgress(h.o, Event{Kind: EventFault, Thread: 1, Offset: 8})
	return h
}

func (h holding) time() Time { return h.pace.holdTime(h.o) }

// again has the page held and given up, and the thread fault on it again some time later.
func (h holding) again(later Time) {
	h.o.set(contestedFlag, true)
	h.now += h.time()
	h.pace.leaves(h.o, &recall{access: Write})
	h.now += later
	h.pace.noteProgress(h.o, Event{Kind: EventFault, Thread: 1, Offset: 8})
}

// TestPolling: a thread that looks at a page in a loop, and so faults soon after it has left, has
// it held for a short time, always. One that gets through only if the page is held for some time
// has it held for so long, whatever that time is.
func TestPolling(t *testing.T) {
	const hold, most = 20, 20480
	cfg := Config{Nodes: 2, Pages: 8, HomeStripe: 1, Hold: hold, MaxHold: most}
	for soon := Time(0); soon <= hold; soon++ {
		h, sum, longest := newHolding(cfg), Time(0), Time(0)
		const rounds = 10000
		for range rounds {
			h.again(soon)
			sum, longest = sum+h.time(), max(longest, h.time())
		}
		if bound := 2 * max(hold, promptShare*soon); sum/rounds > bound || longest > 4*bound {
			t.Errorf("a page that a thread looks at again after %d is held for %d, at most %d", soon, sum/rounds, longest)
		}
	}
	for needs := Time(hold); needs <= most; needs++ {
		h, failed := newHolding(cfg), 0
		for h.time() < needs && failed < 1000 {
			h.again(needs - h.time())
			failed++
		}
		if bound := 20 * retriesPerDoubling; failed > bound {
			t.Fatalf("an access that needs the page for %d has it after %d failures, want at most %d", needs, failed, bound)
		}
	}
}

// TestMovedOn: a thread that faults elsewhere has got through with the page before, which need not
// be held any more.
func TestMovedOn(t *testing.T) {
	f := newFew(t, Config{Nodes: 2, Pages: 8, HomeStripe: 1, Hold: 50, MaxHold: 50})
	f.fault(1, Write, 0)
	f.settle()
	f.fault(0, Write, 0)
	f.settle()
	if f.engines[0].Access(PageObject(0)) == Write {
		t.Fatal("the page is not held")
	}
	f.fault(1, Write, 2)
	f.settle()
	if f.engines[0].Access(PageObject(0)) != Write {
		t.Error("the page is held for a thread that has moved on")
	}
}

// TestContended: a page that goes to a writer elsewhere is contended unless a program here has
// synchronised since it came.
func TestContended(t *testing.T) {
	for _, synchronised := range []bool{false, true} {
		f := newFew(t, Config{Nodes: 2, Pages: 8, HomeStripe: 1})
		contended := false
		f.revoked = func(_ NodeID, x Effect) { contended = x.Contended }
		f.now = 1000
		f.fault(1, Write, 0)
		f.settle()
		f.now = 1010
		if synchronised {
			f.step(1, Event{Kind: EventAcquire, Client: 1, Ticket: 1, Access: Write, Object: LockObject(1), Now: f.now})
			f.settle()
		}
		f.now = 1020
		f.fault(0, Write, 0)
		f.settle()
		if contended == synchronised {
			t.Errorf("a program has synchronised: %v, and the page was contended: %v", synchronised, contended)
		}
	}
}

// TestReportsFillTheirPieces: an entry that just fits goes into a piece that was begun, and one
// that is a byte too long into the next.
func TestReportsFillTheirPieces(t *testing.T) {
	e := New(Config{Nodes: 2, Pages: 8, HomeStripe: 1})
	c := NameCall{Op: Bind, Client: 1, Pages: 1, Name: "a", Signature: "b"}
	e.Step(Event{Kind: EventName, Client: 1, Ticket: 1, Payload: c.Append(nil)}, nil)
	for what, report := range map[string]func(*parcel){"a use": func(p *parcel) { e.names.report(p, 0) }, "a directory": e.registry.report} {
		whole := parcel{to: 1}
		report(&whole)
		var lengths []int // of the report after each entry
		for end := range whole.pieces[0] {
			if eachEntry(whole.pieces[0][:end+1], func(*entry) {}) == nil {
				lengths = append(lengths, end+1)
			}
		}
		for missing := range 2 {
			for i, length := range lengths {
				p := parcel{to: 1, pieces: [][]byte{make([]byte, MaxPayload-length+missing)}}
				report(&p)
				first, want := len(p.pieces[0]), MaxPayload
				if missing == 1 {
					want -= length - 1
					if i > 0 {
						want += lengths[i-1]
					}
				}
				if first != want {
					t.Errorf("%s: with %d bytes for the %d of %d entries, a piece has %d bytes, want %d", what, length-missing, length, i+1, first, want)
				}
			}
		}
	}
}

// recovering is node 1 of three, which waits for reports after node 0 was lost, and is the
// allocator then.
func recovering(l limits) *Engine {
	e := New(Config{Self: 1, Nodes: 3, Pages: 8, HomeStripe: 1})
	e.limits = l
	e.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{1, 2}}, nil)
	e.Step(Event{Kind: EventMessage, Message: new(EpochMarker{Epoch: 1}.To(0).SentBy(2))}, nil)
	return e
}

// TestReportsBeyondLimits: a member that reports more names, or more locks, than this node keeps is
// parted with, and one that reports just so many is not.
func TestReportsBeyondLimits(t *testing.T) {
	names := func(n int) []byte {
		e := New(Config{Nodes: 3, Pages: 8, HomeStripe: 1})
		for i := range n {
			c := NameCall{Op: Bind, Client: 1, Pages: 1, Name: fmt.Sprint(i)}
			e.Step(Event{Kind: EventName, Client: 1, Ticket: Ticket(i + 1), Payload: c.Append(nil)}, nil)
		}
		var p parcel
		e.names.report(&p, 0)
		return p.pieces[0]
	}
	locks := func(n int) (b []byte) {
		e := recovering(allLimits)
		for id := uint64(0); n > 0; id++ {
			if e.home(LockObject(id)) == 1 {
				b = AppendHolding(b, LockObject(id), Write)
				n--
			}
		}
		return b
	}
	for _, c := range []struct {
		what    string
		payload []byte
		refused bool
	}{{"two names", names(2), false}, {"three names", names(3), true}, {"two locks", locks(2), false}, {"three locks", locks(3), true}} {
		l := allLimits
		l.names, l.locks = 2, 2
		refused := slices.ContainsFunc(recovering(l).Step(Event{Kind: EventMessage, Message: new(ReportHeld{Epoch: 1, Pieces: 1, Records: c.payload}.To(0).SentBy(2))}, nil),
			func(x Effect) bool { return x.Kind == EffectReject })
		if refused != c.refused {
			t.Errorf("with room for two, %s are refused: %v", c.what, refused)
		}
	}
}

// TestPiecesOfWhatIsInUse: there are so many as the first says, with no more than there can be.
func TestPiecesOfWhatIsInUse(t *testing.T) {
	waiting := func() *Engine {
		e := New(Config{Self: 2, Nodes: 3, Pages: 8, HomeStripe: 1})
		e.limits.names = 1
		e.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{1, 2}}, nil)
		for _, k := range []Kind{KindEpochMarker, KindReportHeld} {
			m := Message{Kind: k, From: 1, word: 1}
			if k == KindReportHeld {
				m.rank = 1
			}
			e.Step(Event{Kind: EventMessage, Message: &m}, nil)
		}
		return e
	}
	// With one name there may be what lies before and behind it, too.
	all := ReportBound{Epoch: 1, Pieces: 1, Runs: AppendRun(AppendRun(AppendRun(nil, 0, 2), 2, 2), 4, 4)}.To(0).SentBy(1)
	e := waiting()
	if refuses(e, all) {
		t.Error("as many runs as there may be are refused")
	}
	if !refuses(e, ReportBound{Epoch: 1, Pieces: 1}.To(0).SentBy(1)) {
		t.Error("one piece more than there should be is not refused")
	}
	more := all
	more.Payload = AppendRun(all.Payload, 6, 2)
	if !refuses(waiting(), more) {
		t.Error("more runs than there may be are not refused")
	}
}

// TestArrivalInARecovery: who comes to a barrier while the cluster recovers has told nobody yet. So
// it does not matter that the barrier's home is lost.
func TestArrivalInARecovery(t *testing.T) {
	f := newFew(t, Config{Nodes: 3, Pages: 8, HomeStripe: 1})
	barrier := LockObject(0)
	for f.engines[1].home(barrier) != 0 {
		barrier++
	}
	answered := false
	f.completed = func(NodeID, Effect) { answered = true }
	f.withhold = func(m *Message) bool { return m.Kind == KindEpochReady }
	f.enter(1, []NodeID{1, 2}, []NodeID{1, 2})
	f.step(1, Event{Kind: EventArrive, Client: 1, Ticket: 1, Object: barrier, Parties: 2})
	f.withhold = func(m *Message) bool { return false }
	for len(f.withheld) > 0 {
		f.release(0)
	}
	if answered || f.engines[1].barriers.arrived+f.engines[2].barriers.arrived != 1 {
		t.Errorf("it is answered: %v, and %d have arrived", answered, f.engines[1].barriers.arrived+f.engines[2].barriers.arrived)
	}
}

// TestMigration: where nodes in turn read a page and then write it, who reads it gets it for
// writing at once.
func TestMigration(t *testing.T) {
	f := newFew(t, Config{Nodes: 4, Pages: 8, HomeStripe: 1})
	turn := func(n NodeID) (together bool) {
		f.fault(n, Read, 0)
		f.settle()
		together = f.engines[n].Access(PageObject(0)) == Write
		f.fault(n, Write, 0)
		f.settle()
		return together
	}
	for i, want := range []bool{true, false, false, true, true} { // the first has it alone
		if got := turn(NodeID(1 + i%2)); got != want {
			t.Errorf("in turn %d the page comes for writing: %v, want %v", i, got, want)
		}
	}
	f = newFew(t, Config{Nodes: 4, Pages: 8, HomeStripe: 1})
	for i := range NodeID(8) { // there is always another reader, so nothing migrates
		f.fault(3, Read, 0)
		f.settle()
		if turn(1 + i%2) {
			t.Fatalf("in turn %d a page with several readers comes for writing", i)
		}
	}
}

// TestOnlyWhatIsFreedWaits: while memory is being freed the pages behind it and before it are
// served.
func TestOnlyWhatIsFreedWaits(t *testing.T) {
	f := newFew(t, Config{Nodes: 2, Pages: 8, HomeStripe: 1})
	c := NameCall{Op: Bind, Client: 1, Pages: 2}
	for _, c.Name = range []string{"a", "b", "c"} {
		f.step(1, Event{Kind: EventName, Client: 1, Ticket: Ticket(c.Name[0]), Payload: c.Append(nil)})
		f.settle()
	}
	f.withhold = func(m *Message) bool { return m.Kind == KindFreeAck }
	c = NameCall{Op: Unbind, Client: 1, Name: "b"}
	f.step(1, Event{Kind: EventName, Client: 1, Ticket: 9, Payload: c.Append(nil)})
	f.settle()
	for page := range uint64(6) {
		f.fault(1, Write, page)
		f.settle()
		if got, freed := f.engines[1].Access(PageObject(page)), page/2 == 1; (got == Write) == freed {
			t.Errorf("page %d is being freed: %v, and the access is %v", page, freed, got)
		}
	}
}

// TestLocksHaveNoContents: also in a recovery.
func TestLocksHaveNoContents(t *testing.T) {
	f := newFew(t, Config{Nodes: 3, Pages: 8, HomeStripe: 1})
	lock := LockObject(0)
	for f.engines[1].home(lock) != 2 {
		lock++
	}
	e := f.engines[1]
	e.Step(Event{Kind: EventAcquire, Client: 1, Ticket: 1, Access: Write, Object: lock}, nil)
	e.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{1, 2}}, nil)
	if !refuses(e, Grant{Access: Write, Contents: PageContents}.To(0, lock).SentBy(2)) {
		t.Error("a lock with contents is taken")
	}
	if refuses(e, Grant{Access: Write, Contents: ZeroContents}.To(0, lock).SentBy(2)) {
		t.Error("the lock is refused")
	}
}
