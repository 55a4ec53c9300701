package protocol

import (
	"slices"
	"testing"
)

// TestBackupsEndWithTheirMemory: what is allocated where replicated memory was freed must never
// come back with its contents.
func TestBackupsEndWithTheirMemory(t *testing.T) {
	e := New(Config{Self: 1, Nodes: 3, Pages: 8, HomeStripe: 1})
	say := func(m Message) []Effect { return e.Step(Event{Kind: EventMessage, Message: &m}, nil) }
	rejected := func(out []Effect) bool { return len(out) == 1 && out[0].Kind == EffectReject }
	backup := Backup{Contents: PageContents, Copies: 1}.To(0, PageObject(3)).SentBy(2)
	out := say(backup)
	if len(out) != 2 || out[0].Kind != EffectBackup || out[1].Message.Kind != KindBackupAck || out[1].Message.To != 2 {
		t.Fatalf("a backup is answered by %+v", out)
	}
	forget := Free{Run: AppendRun(nil, 2, 4)}.To(0, PageObject(2))
	for forget.word = 1; forget.word <= 2; forget.word++ {
		if out := say(forget); len(out) != 1 || rejected(out) {
			t.Fatalf("phase %d of freeing is answered by %+v", forget.word, out)
		}
	}
	if !rejected(say(backup)) {
		t.Error("a backup of a page is kept that all nodes have dropped")
	}
	e.Step(Event{Kind: EventFreed, Object: PageObject(2)}, nil)
	if out := say(forget); len(out) != 1 || out[0].Message.Kind != KindFreeAck {
		t.Fatalf("the last phase of freeing is answered by %+v", out)
	}
	e.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{0, 1}}, nil)
	out = say(EpochMarker{Epoch: 1}.To(0).SentBy(0))
	i := slices.IndexFunc(out, func(f Effect) bool { return f.Message.Kind == KindReportHeld })
	if i < 0 {
		t.Fatalf("no report follows from the last mark, but %+v", out)
	}
	_ = eachEntry(out[i].Message.Payload, func(x *entry) {
		if x.tag == tagBackup {
			t.Errorf("a backup of %v is reported", x.id)
		}
	})
}

// TestMemoryWithBackupsStaysInUse: when nobody is left who used replicated memory, and the
// allocator is lost, nobody may get it as new memory: what is kept of it would show.
func TestMemoryWithBackupsStaysInUse(t *testing.T) {
	e := New(Config{Self: 2, Nodes: 3, Pages: 8, HomeStripe: 1})
	e.Step(Event{Kind: EventMessage, Message: new(Backup{Contents: PageContents, Copies: 1}.To(0, PageObject(3)).SentBy(0))}, nil)
	e.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{1, 2}}, nil)
	out := e.Step(Event{Kind: EventMessage, Message: new(EpochMarker{Epoch: 1}.To(0).SentBy(1))}, nil)
	top := uint64(0)
	for _, f := range out {
		if f.Message.Kind == KindReportHeld && f.Message.To == e.allocator() {
			_ = eachEntry(f.Message.Payload, func(x *entry) {
				if x.tag == tagTop {
					top = max(top, x.first)
				}
			})
		}
	}
	if top < 4 {
		t.Errorf("the new directory is told that all memory from page %d on is free, and there is a backup of page 3: %+v", top, out)
	}
}

// TestBackupsKeepTheirNodes: who keeps a backup keeps it as long as it lives, whoever else is lost.
// Otherwise it had an old one that might be believed.
func TestBackupsKeepTheirNodes(t *testing.T) {
	const nodes, copies = 7, 2
	for page := range uint64(50) {
		e := New(Config{Self: 0, Nodes: nodes, Pages: 64, HomeStripe: 2})
		members := e.memberList()
		before := e.backupsOf(PageObject(page), copies)
		if before[0] != e.home(PageObject(page)) || len(before) != copies+1 {
			t.Fatalf("page %d has backups at %v, and its home at %d", page, before, e.home(PageObject(page)))
		}
		for lost := NodeID(nodes - 1); lost > 0; lost-- {
			members = slices.Delete(slices.Clone(members), int(lost), int(lost)+1)
			e.view.members = members
			after := e.backupsOf(PageObject(page), copies)
			for _, n := range before {
				if n != lost && !slices.Contains(after, n) {
					t.Fatalf("page %d had backups at %v, and has them at %v when %d is lost", page, before, after, lost)
				}
			}
			if len(after) != min(copies+1, len(members)) {
				t.Fatalf("page %d has backups at %v of %v", page, after, members)
			}
			before = after
		}
	}
}

// TestCommitsOfOthersWait: a call that comes while a commit is under way is not answered by that:
// it may be about a later store.
func TestCommitsOfOthersWait(t *testing.T) {
	e := New(Config{Self: 0, Nodes: 2, Pages: 8, HomeStripe: 8})
	call := NameCall{Op: Bind, Client: 1, Pages: 4, Replicas: 1, Name: "a"}
	e.Step(Event{Kind: EventName, Client: 1, Ticket: 1, Payload: call.Append(nil)}, nil)
	answered := func(out []Effect, ticket Ticket) bool {
		return slices.ContainsFunc(out, func(f Effect) bool { return f.Kind == EffectComplete && f.Ticket == ticket })
	}
	done := func(op EffectKind, page uint64) []Effect {
		return e.Step(Event{Kind: EventCompleted, Effect: op, Object: PageObject(page)}, nil)
	}
	write := func(page uint64) {
		e.Step(Event{Kind: EventFault, Client: 1, Thread: 1, Access: Write, Object: PageObject(page)}, nil)
		done(EffectInstall, page)
	}
	ack := func(page uint64) []Effect {
		return e.Step(Event{Kind: EventMessage, Message: new(BackupAck{}.To(0, PageObject(page)).SentBy(1))}, nil)
	}
	write(0)
	if out := e.Step(Event{Kind: EventCommit, Client: 1, Ticket: 2}, nil); answered(out, 2) {
		t.Fatal("a commit is over before it has begun")
	}
	write(1)
	e.Step(Event{Kind: EventCommit, Client: 2, Ticket: 3}, nil)
	done(EffectDowngrade, 0)
	out := ack(0)
	if !answered(out, 2) || answered(out, 3) {
		t.Fatalf("when the first page is committed the answers are %+v", out)
	}
	done(EffectDowngrade, 1)
	if out := ack(1); !answered(out, 3) {
		t.Fatalf("when the second page is committed the answers are %+v", out)
	}
	if out := e.Step(Event{Kind: EventCommit, Client: 2, Ticket: 4}, nil); !answered(out, 4) {
		t.Error("a commit of nothing waits")
	}
}

// TestCommitEndsWithItsMemory: who waits for the commit of memory that is freed does not wait for
// ever.
func TestCommitEndsWithItsMemory(t *testing.T) {
	e := New(Config{Self: 1, Nodes: 2, Pages: 8, HomeStripe: 8})
	call := NameCall{Op: Bind, Client: 1, Pages: 4, Replicas: 1, Name: "a"}
	say := func(m Message) []Effect { return e.Step(Event{Kind: EventMessage, Message: &m}, nil) }
	e.Step(Event{Kind: EventName, Client: 1, Ticket: 1, Payload: call.Append(nil)}, nil)
	say(NameReply{Ticket: 1, Answer: AppendRun(nil, 0, 4)}.To(0))
	e.Step(Event{Kind: EventFault, Client: 1, Thread: 1, Access: Write}, nil)
	say(Grant{Access: Write, Contents: ZeroContents}.To(0, 0))
	e.Step(Event{Kind: EventCompleted, Effect: EffectInstall}, nil)
	say(Free{Phase: 1, Run: AppendRun(nil, 0, 4)}.To(0, 0))
	out := e.Step(Event{Kind: EventCommit, Client: 2, Ticket: 2}, nil)
	if len(out) != 1 || out[0].Kind != EffectComplete || out[0].Ticket != 2 {
		t.Fatalf("a commit of memory that is being freed has the effects %+v", out)
	}
}

// TestRestoredPageIsCommittedFirst: a page that came from a backup may be newer than the other
// backups, so whoever has it shows it to nobody before they have it too, also when the grant comes
// in the midst of a recovery.
func TestRestoredPageIsCommittedFirst(t *testing.T) {
	page := PageObject(3)
	e := New(Config{Self: 1, Nodes: 3, Pages: 8, HomeStripe: 1})
	say := func(m Message) []Effect { m.Object = page; return e.Step(Event{Kind: EventMessage, Message: &m}, nil) }
	e.backups.replicate(run{0, 8}, 1)
	e.Step(Event{Kind: EventFault, Client: 1, Thread: 1, Access: Read, Object: page}, nil)
	grant := Grant{Access: Write, Contents: PageContents, Backup: true}.To(0, 0).SentBy(2)
	say(grant)
	e.Step(Event{Kind: EventCompleted, Effect: EffectInstall, Object: page}, nil)
	out := say(Forward{Requester: 2, Access: Read}.To(0, 0).SentBy(e.home(page)))
	if len(out) != 1 || out[0].Kind != EffectDowngrade {
		t.Fatalf("a page from a backup is wanted elsewhere: %+v", out)
	}
	out = e.Step(Event{Kind: EventCompleted, Effect: EffectDowngrade, Object: page}, nil)
	if !slices.ContainsFunc(out, func(f Effect) bool { return f.Message.Kind == KindBackup }) || slices.ContainsFunc(out, func(f Effect) bool { return f.Message.Kind == KindGrant }) {
		t.Errorf("a page from a backup goes on with the effects %+v", out)
	}

	e = New(Config{Self: 2, Nodes: 3, Pages: 8, HomeStripe: 1})
	e.backups.put(page, backup{copies: 1})
	out = say(Forward{Requester: 1, Access: Write, Backup: true}.To(0, 0).SentBy(e.home(page)))
	if len(out) != 1 || out[0].Source != SourceBackup || out[0].Message.AsGrant() != grant.AsGrant() {
		t.Errorf("a page is given from its backup by %+v", out)
	}

	e = New(Config{Self: 1, Nodes: 3, Pages: 8, HomeStripe: 1})
	e.Step(Event{Kind: EventFault, Client: 1, Thread: 1, Access: Read, Object: page}, nil)
	e.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{0, 1, 2}}, nil)
	if out := say(grant); len(out) != 0 {
		t.Errorf("a page from a backup that comes during a recovery has the effects %+v", out)
	}
}

// TestProtectedPageIsNotHeldForEver: a program that stores to a page and commits it again and again
// keeps it from others no longer than one that only stores.
func TestProtectedPageIsNotHeldForEver(t *testing.T) {
	const hold = 100
	e := New(Config{Self: 0, Nodes: 2, Pages: 8, HomeStripe: 8, Hold: hold, MaxHold: hold})
	e.backups.replicate(run{0, 8}, 1)
	now := Time(0)
	step := func(ev Event) []Effect { now++; ev.Now = now; return e.Step(ev, nil) }
	fault := Event{Kind: EventFault, Client: 1, Thread: 1, Access: Write}
	done := func(op EffectKind) []Effect { return step(Event{Kind: EventCompleted, Effect: op}) }
	step(fault)
	done(EffectInstall)
	step(Event{Kind: EventMessage, Message: new(Request{Access: Write}.To(0, 0).SentBy(1))})
	for now < hold {
		step(Event{Kind: EventCommit, Client: 1, Ticket: 1})
		done(EffectDowngrade)
		step(Event{Kind: EventMessage, Message: new(BackupAck{}.To(0, 0).SentBy(1))})
		step(fault)
		done(EffectMakeWritable)
	}
	out := step(Event{Kind: EventHoldOver})
	if len(out) != 1 || out[0].Kind != EffectDowngrade {
		t.Fatalf("when the hold is over the effects are %+v", out)
	}
	done(EffectDowngrade)
	out = step(Event{Kind: EventMessage, Message: new(BackupAck{}.To(0, 0).SentBy(1))})
	if len(out) != 1 || out[0].Kind != EffectRevoke {
		t.Errorf("when it is committed the effects are %+v", out)
	}
}

// TestProtectedPageIsWritableInAGroupLease: a page that was committed in a group lease can be
// stored to for the rest of it, although others wait for it.
func TestProtectedPageIsWritableInAGroupLease(t *testing.T) {
	page := PageObject(0)
	e := New(Config{Self: 0, Nodes: 2, Pages: 8, HomeStripe: 8, Hold: 1, MaxHold: 1000})
	e.backups.replicate(run{0, 8}, 1)
	now := Time(10)
	step := func(ev Event) []Effect { ev.Now = now; return e.Step(ev, nil) }
	e.pace.contended, e.pace.losses = make([]ObjectID, e.cfg.ContentionThreshold), 1
	step(Event{Kind: EventFault, Client: 1, Thread: 1, Access: Write, Object: page})
	step(Event{Kind: EventCompleted, Effect: EffectInstall, Object: page})
	if e.GroupLease() == 0 {
		t.Fatal("no group lease begins")
	}
	now += 5
	step(Event{Kind: EventMessage, Message: new(Request{Access: Write}.To(0, page).SentBy(1))})
	step(Event{Kind: EventCommit, Client: 1, Ticket: 1})
	step(Event{Kind: EventCompleted, Effect: EffectDowngrade, Object: page})
	step(Event{Kind: EventMessage, Message: new(BackupAck{}.To(0, page).SentBy(1))})
	out := step(Event{Kind: EventFault, Client: 1, Thread: 1, Access: Write, Object: page})
	if len(out) != 1 || out[0].Kind != EffectMakeWritable {
		t.Fatalf("a store to what is kept in a group lease has the effects %+v", out)
	}
	if out := step(Event{Kind: EventCompleted, Effect: EffectMakeWritable, Object: page}); len(out) != 0 || e.Access(page) != Write {
		t.Fatalf("then the effects are %+v", out)
	}
	now += 10
	if out := step(Event{Kind: EventRelease, Client: 1, Object: LockObject(1), Access: Write}); !slices.ContainsFunc(out, func(f Effect) bool { return f.Kind == EffectDowngrade }) {
		t.Errorf("when the group lease is over the effects are %+v", out)
	}
}

// TestBatchPassesOverWhatLeftIt: a page of a batch that is not known any more, or was committed for
// another reason meanwhile, is not committed again.
func TestBatchPassesOverWhatLeftIt(t *testing.T) {
	e := New(Config{Nodes: 2, Pages: 8, HomeStripe: 1})
	e.objects.get(PageObject(1))
	e.commits.batch = []ObjectID{PageObject(1), PageObject(2)}
	e.commits.calls = []commitCall{{client: 1, ticket: 5}}
	e.commits.continueBatch()
	if len(e.out) != 1 || e.out[0].Kind != EffectComplete || e.out[0].Ticket != 5 || e.Pending() != 0 {
		t.Errorf("what follows is %+v, with %d objects pending", e.out, e.Pending())
	}
}
