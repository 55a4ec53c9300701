package protocol

import (
	"cmp"
	"slices"
)

// Replicated memory. Who allocates memory may ask (NameCall.Replicas) that what was written to it before a release survives the loss of any k nodes. Then its
// pages have backups: copies that no program can touch, beside and apart from the pages that are present there, at k+1 nodes. These are
// always the first that are left of the page's order (see backupsOf), so whoever is alive and was one of them once is one of them still: nobody keeps
// an old backup that could be believed.
//
// The owner of a page commits it: it has the page made read-only, so that its contents are those of one instant, sends them to the backups, and goes
// on when all have acknowledged. It does so
//
//   - when a program asks for it (EventCommit), which it does before it gives back a lock or arrives at a barrier, with all pages that were
//     written here since they were committed last;
//   - before the page leaves, be it for a reader or a writer elsewhere. So what any other node has ever seen of a page is at its backups.
//
// A page that was committed is sealed: it stays the owner's, alone, and nobody else hears of it when the owner's programs store to it again; but the page table must
// report that.
//
// A backup has a version: the epoch of the last commit, and how many there were in that epoch. All backups that are left have had all commits of an epoch, but for
// the last, which may have been cut short. When nodes were lost each home learns (ReportHeld) which backups there are of pages that nobody has. It notes the node
// with the latest version as the owner, and has it supply the page, from the backup, to whoever asks for the page first (startRestore).
//
// The order is one of seniority: who came later comes after all who were there before, and pushes nobody out. Members that are leaving keep their backups, and get
// all commits, until they go, but are not counted among the k+1. Whenever other nodes are the k+1, the first of each page's order copies its backup to them (listSpread),
// with its version: when nodes were lost, so that others may be lost after them; when some are leaving, before they go, so that one that left well is none of the k that may be lost; and
// when some come where there were not enough. The first has the backup if anybody has it who got it by a commit, because those who are left of them come first.

// MaxReplicas bounds NameCall.Replicas: the lost nodes that memory can be asked to survive.
const MaxReplicas = 7

// maxCommitting bounds the pages whose commits a call has begun and that are not acknowledged: enough to keep the network busy, few enough that others who wait for
// a page do not wait long.
const maxCommitting = 64

// object.replica
const (
	sealedFlag    = 1 << iota // this node has Write, and the page table lets programs read only
	committedFlag             // sealed, and the backups have it
	listedFlag                // it is in replicas.written
	batchedFlag               // it is in replicas.batch, and was not committed since that began
	backedFlag                // home: nobody has a copy, and the owner has a backup
)

func (o *object) sealed() bool { return o.replica&sealedFlag != 0 }
func (o *object) backed() bool { return o.replica&backedFlag != 0 }

// shown is the access that the page table gives.
func (o *object) shown() Access {
	if o.sealed() {
		return Read
	}
	return o.has()
}

// replicas is what a node knows of replicated memory.
type replicas struct {
	runs    []replicated        // of replicated memory that programs of this node use, or have used; until it is freed
	written []ObjectID          // pages that have become writable here since the last batch began, each once; some are not here any more
	batch   []ObjectID          // pages that the commit under way is about
	next    int                 // of batch: the first that was not begun
	missing int                 // of batch: how many are batched still
	calls   []commitCall        // wait for batch
	later   []commitCall        // wait for the next one
	store   map[ObjectID]backup // backups that this node has
	asked   []copying           // who is told when the first backup of a page comes in this epoch; at most maxRescues for each node
	kept    []ObjectID          // of them, in no order: what is decided must not depend on that of a map
	// newcomers says who may lack backups of which this node is the first: members that came in this epoch or later. 0: any.
	newcomers uint32
}

type replicated struct {
	run
	copies int // k
}

type commitCall struct {
	client ClientID
	ticket Ticket
}

// backup is what is known of a backup beside its contents.
type backup struct {
	version
	copies int // k
}

// version tells backups of a page apart.
type version struct{ epoch, commits uint32 }

func (v version) compare(w version) int {
	return cmp.Or(cmp.Compare(v.epoch, w.epoch), cmp.Compare(v.commits, w.commits))
}

func (r *replicas) clone() replicas {
	c := *r
	c.runs, c.written, c.batch = slices.Clone(r.runs), slices.Clone(r.written), slices.Clone(r.batch)
	c.calls, c.later, c.kept, c.store = slices.Clone(r.calls), slices.Clone(r.later), slices.Clone(r.kept), nil
	c.asked = slices.Clone(r.asked)
	for _, id := range r.kept {
		if c.store == nil {
			c.store = map[ObjectID]backup{}
		}
		c.store[id] = r.store[id]
	}
	return c
}

// put notes that this node has this backup of a page.
func (r *replicas) put(id ObjectID, b backup) {
	if r.store == nil {
		r.store = map[ObjectID]backup{}
	}
	if _, known := r.store[id]; !known {
		r.kept = append(r.kept, id)
	}
	r.store[id] = b
}

// replicate notes that a run of pages is replicated.
func (r *replicas) replicate(pages run, copies int) {
	if copies > 0 && !slices.ContainsFunc(r.runs, func(x replicated) bool { return x.run == pages }) {
		r.runs = append(r.runs, replicated{pages, copies})
	}
}

// copies is how many lost nodes a page is to survive: 0 if it is not replicated, as far as this node knows.
func (r *replicas) copies(id ObjectID) int {
	if id.IsLock() {
		return 0
	}
	for i := range r.runs {
		if x := &r.runs[i]; id.Page() >= x.first && id.Page()-x.first < x.count {
			return x.copies
		}
	}
	return 0
}

// backupsOf are the nodes that keep the backups of a page: the first of its order, by seniority and then as in homeAmong, until one more than copies of them
// are not leaving, or all are there. A node that is among them stays among them while it is a member.
func (e *Engine) backupsOf(id ObjectID, copies int) []NodeID {
	left := slices.Clone(e.memberList())
	var out []NodeID
	for staying := 0; staying <= copies && len(left) > 0; {
		n := e.cfg.homeAmong(id, e.seniors(left))
		out = append(out, n)
		left = slices.DeleteFunc(left, func(m NodeID) bool { return m == n })
		if isIn(e.view.homes, n) {
			staying++
		}
	}
	return out
}

// list notes that a page becomes writable here. That is before the page table says so: a program may have stored to it, and ask for that to be committed, before this
// node hears that it could.
func (e *Engine) list(o *object) {
	if r := &e.replicas; o.replica&listedFlag == 0 && r.copies(o.id) > 0 {
		o.replica |= listedFlag
		r.written = append(r.written, o.id)
	}
}

// uncommitted says whether a page is this node's alone and its backups may not have all that was written.
func (e *Engine) uncommitted(o *object) bool {
	return o.has() == Write && o.replica&committedFlag == 0 && e.replicas.copies(o.id) > 0
}

// becomesWritable says whether a page may be writable already in the page table, although this node has not heard of it.
func (e *Engine) becomesWritable(o *object) bool {
	p := e.peek(o)
	return p != nil && (p.op == EffectMakeWritable || p.op == EffectInstall && p.grant == Write)
}

// commit has all pages committed that were written here.
func (e *Engine) commit(ev Event) {
	e.replicas.later = append(e.replicas.later, commitCall{ev.Client, ev.Ticket})
	e.beginBatch()
}

// beginBatch begins to commit what was written, for all calls that wait, unless that is under way: what was stored before a
// call that comes meanwhile may have come too late for it.
func (e *Engine) beginBatch() {
	r := &e.replicas
	for len(r.later) > 0 && r.missing == 0 && e.view.phase == running {
		r.calls, r.later = r.later, nil
		r.batch, r.written, r.next = r.written, nil, 0
		r.batch = slices.DeleteFunc(r.batch, func(id ObjectID) bool {
			o := e.objects.find(id)
			if o == nil || o.replica&listedFlag == 0 {
				return true
			}
			o.replica &^= listedFlag
			if e.uncommitted(o) || e.becomesWritable(o) {
				o.replica |= batchedFlag
			}
			return o.replica&batchedFlag == 0
		})
		r.missing = len(r.batch)
		e.continueBatch()
	}
}

// continueBatch begins further commits of the batch, and answers who waits for it when there are none.
func (e *Engine) continueBatch() {
	r := &e.replicas
	for e.view.phase == running && r.next < len(r.batch) && r.next-(len(r.batch)-r.missing) < maxCommitting {
		o := e.objects.find(r.batch[r.next])
		r.next++
		switch {
		case o == nil || o.replica&batchedFlag == 0:
		case e.isDead(o.id):
			e.leaveBatch(o)
		default:
			e.beginCommit(o, e.pendingOf(o))
			e.settle(o)
		}
	}
	if r.missing > 0 {
		return
	}
	calls := r.calls
	r.calls, r.batch, r.next = nil, nil, 0
	for _, c := range calls {
		e.emit(Effect{Kind: EffectComplete, Client: c.client, Ticket: c.ticket, Status: StatusOK})
	}
	e.beginBatch()
}

// leaveBatch notes that the batch under way need not wait for a page.
func (e *Engine) leaveBatch(o *object) {
	if o.replica&batchedFlag != 0 {
		o.replica &^= batchedFlag
		e.replicas.missing--
	}
}

// endCommits forgets calls that nobody waits for any more, and says how many there were.
func (e *Engine) endCommits(ended func(commitCall) bool) int {
	r := &e.replicas
	before := len(r.calls) + len(r.later)
	r.calls, r.later = slices.DeleteFunc(r.calls, ended), slices.DeleteFunc(r.later, ended)
	return before - len(r.calls) - len(r.later)
}

// mayCommit says whether commits are possible: when all members are in this epoch. They are when this node has recovered, and also if another node
// has, which this one knows if the page is wanted there.
func (e *Engine) mayCommit(p *pending) bool {
	return e.view.phase == running || e.view.phase == ready && p.hasDeferred
}

// beginCommit commits a page, unless something else is under way; then it is done after that.
func (e *Engine) beginCommit(o *object, p *pending) {
	switch {
	case p.op != 0 || p.granted || !e.uncommitted(o) || !e.mayCommit(p):
	case o.sealed():
		e.sendBackups(o, p)
	default:
		p.op, p.sealing = EffectDowngrade, true
		e.emit(Effect{Kind: EffectDowngrade, Object: o.id})
	}
}

// seal notes that nobody can store to a page any more until this node has it made writable.
func (e *Engine) seal(o *object, p *pending) {
	p.sealing = false
	o.replica |= sealedFlag
	if e.mayCommit(p) {
		e.sendBackups(o, p)
	}
}

// sendBackups has the contents of a sealed page kept by all nodes that keep its backups.
func (e *Engine) sendBackups(o *object, p *pending) {
	p.op, p.unsaved = EffectBackup, nil
	copies := e.replicas.copies(o.id)
	for _, n := range e.backupsOf(o.id, copies) {
		if n == e.cfg.Self {
			e.keepBackup(o.id, copies)
			e.emit(Effect{Kind: EffectBackup, Object: o.id})
			continue
		}
		p.unsaved = append(p.unsaved, n)
		e.send(Message{Kind: Backup, To: n, Requester: e.cfg.Self, Object: o.id, Flags: FlagData, Aux: e.view.epoch, Rank: uint32(copies)})
	}
	if len(p.unsaved) == 0 {
		e.committed(o, p)
	}
}

// committed ends a commit.
func (e *Engine) committed(o *object, p *pending) {
	p.op, p.unsaved = 0, nil
	o.replica |= committedFlag
	e.leaveBatch(o)
}

// keepBackup notes that this node has a new backup of a page.
func (e *Engine) keepBackup(id ObjectID, copies int) {
	v := version{epoch: e.view.epoch, commits: 1}
	if old := e.replicas.store[id]; old.epoch == v.epoch {
		v.commits += old.commits
	}
	r := &e.replicas
	r.put(id, backup{v, copies})
	r.asked = slices.DeleteFunc(r.asked, func(c copying) bool {
		if c.id == id {
			e.ackBackup(id, c.to, FlagBackup)
		}
		return c.id == id
	})
}

// onBackup keeps the backup of a page.
func (e *Engine) onBackup(m *Message) {
	data, zero := m.Flags&FlagData != 0, m.Flags&FlagZero != 0
	switch {
	case m.Object.IsLock() || data && zero || data == zero && !e.asksForCommit(m):
		e.reject(m, "a backup of a lock, or without contents")
		return
	case m.Aux != e.view.epoch:
		e.reject(m, "a backup of another epoch")
		return
	case m.Rank == 0 || m.Rank > MaxReplicas:
		e.reject(m, "a backup of memory that is not replicated, or too often")
		return
	case m.Flags&FlagBackup != 0 && (data || zero) && versionOf(m).epoch >= e.view.epoch:
		e.reject(m, "a copy of a backup that was made in this epoch, by a commit that comes here too")
		return
	case slices.ContainsFunc(e.dead, func(d deadRun) bool {
		return d.phase == 2 && m.Object >= d.first && uint64(m.Object-d.first) < d.count
	}):
		e.reject(m, "a backup of a page that is being freed")
		return
	}
	if !data && !zero {
		e.onCommitAsked(m)
		return
	}
	if e.keepIfNewer(m) {
		e.emit(Effect{Kind: EffectBackup, Object: m.Object, Zero: zero, Message: *m})
	}
	e.ackBackup(m.Object, m.From, m.Flags)
}

func (e *Engine) ackBackup(id ObjectID, to NodeID, flags Flags) {
	e.send(Message{Kind: BackupAck, To: to, Requester: to, Object: id, Flags: flags & FlagBackup, Aux: e.view.epoch})
}

// asksForCommit says whether a Backup brings nothing, and asks for an acknowledgement when the commit has come that its sender has had in this epoch.
func (e *Engine) asksForCommit(m *Message) bool {
	return m.Flags&FlagBackup != 0 && versionOf(m).epoch == e.view.epoch
}

// onCommitAsked answers that question, now or when the commit comes. If its owner is lost before, there is another epoch, in which the sender copies its backup.
func (e *Engine) onCommitAsked(m *Message) {
	r := &e.replicas
	ask := copying{m.Object, m.From}
	switch {
	case r.store[m.Object].epoch == e.view.epoch:
		e.ackBackup(m.Object, m.From, FlagBackup)
	case len(r.asked) >= maxRescues*e.cfg.Nodes || slices.Contains(r.asked, ask):
		e.reject(m, "it was asked already, or more is asked than any node may")
	default:
		r.asked = append(r.asked, ask)
	}
}

// keepIfNewer notes that a backup has come, unless it is a copy and this node has as good a one.
func (e *Engine) keepIfNewer(m *Message) bool {
	if m.Flags&FlagBackup == 0 {
		e.keepBackup(m.Object, int(m.Rank))
		return true
	}
	old, known := e.replicas.store[m.Object]
	if v := versionOf(m); !known || old.compare(v) < 0 {
		e.replicas.put(m.Object, backup{v, int(m.Rank)})
		return true
	}
	return false
}

// versionOf is the version of a backup of which the message brings a copy.
func versionOf(m *Message) version { return version{uint32(m.Ticket >> 32), uint32(m.Ticket)} }

// onBackupAck goes on when all backups of a page are kept.
func (e *Engine) onBackupAck(m *Message) {
	if m.Aux < e.view.epoch {
		return // of a commit that was abandoned
	}
	if m.Flags&FlagBackup != 0 {
		e.onCopied(m)
		return
	}
	o := e.objects.find(m.Object)
	p := e.peek(o)
	if p == nil || p.op != EffectBackup || m.Aux != e.view.epoch || !slices.Contains(p.unsaved, m.From) {
		e.reject(m, "no backup was sent there, or it was acknowledged already")
		return
	}
	p.unsaved = slices.DeleteFunc(p.unsaved, func(n NodeID) bool { return n == m.From })
	if len(p.unsaved) > 0 {
		return
	}
	e.committed(o, p)
	e.retryDeferred(o, p)
	e.lookAgain(o, p)
	e.settle(o)
	e.continueBatch()
}

// unseal has a page made writable again, and says whether it did. It does not if the page is about to leave: then the thread's wish joins the queue at the home, or others
// would wait for as long as this node's programs store. A page that is held, or kept for a turn, is not about to leave.
func (e *Engine) unseal(o *object, p *pending) bool {
	if p.hasDeferred && !o.is(heldFlag) && !p.kept && e.view.changes() {
		return false
	}
	e.list(o)
	p.op = EffectMakeWritable
	e.emit(Effect{Kind: EffectMakeWritable, Object: o.id})
	return true
}

// unsealed notes that programs can store to a page again. If somebody waits for it already, that does not lengthen the hold: a program that stores and commits
// all the time would keep the page for ever.
func (e *Engine) unsealed(o *object, p *pending) {
	o.replica &^= sealedFlag | committedFlag
	if p.hasDeferred {
		return
	}
	o.since = e.now
	o.set(heldFlag, e.cfg.Hold > 0)
}

// giveSealed gives a reader elsewhere a copy of a page that the page table lets programs read only anyhow.
func (e *Engine) giveSealed(o *object, p *pending) {
	m := p.serving
	p.serving = Message{}
	o.replica &^= sealedFlag | committedFlag
	e.serve(o, m)
	e.lookAgain(o, p)
}

// abandonCommit ends a commit that waits for acknowledgements, when nodes were lost: it is begun again when the recovery is over.
func (e *Engine) abandonCommit(o *object, p *pending) {
	if p.op == EffectBackup {
		p.op, p.unsaved = 0, nil
		e.lookAgain(o, p)
	}
}

// resumeCommits goes on after a recovery. Pages that only this node has are to be committed anew, because some of their backups may be lost.
func (e *Engine) resumeCommits() {
	r := &e.replicas
	if len(r.runs) > 0 {
		for _, id := range e.sortedIDs() {
			if o := e.objects.find(id); o.sealed() {
				o.replica &^= committedFlag
				e.list(o)
			}
		}
	}
	r.batch = slices.DeleteFunc(r.batch, func(id ObjectID) bool {
		o := e.objects.find(id)
		return o == nil || o.replica&batchedFlag == 0
	})
	r.next = 0
	e.continueBatch()
}

// noteKeepers notes, when the members change, whether backups may be kept by others from now on than by those that come: when members are lost, or
// begin to leave. One that has left was leaving before, and all that it kept was copied.
func (e *Engine) noteKeepers(before []NodeID) {
	r := &e.replicas
	if len(e.homeList()) < len(e.memberList()) || slices.ContainsFunc(before, func(n NodeID) bool { return !e.isMember(n) }) {
		r.newcomers = 0
	}
}

// listSpread lists which backups this node has to copy, because others keep them than before: those of which it is the first that keeps them.
func (e *Engine) listSpread() {
	r := &e.replicas
	for _, id := range slices.Sorted(slices.Values(r.kept)) {
		keepers := e.backupsOf(id, r.store[id].copies)
		if keepers[0] == e.cfg.Self && slices.ContainsFunc(keepers[1:], e.lacksBackups) {
			e.rescue.spread = append(e.rescue.spread, id)
		}
	}
}

// lacksBackups says whether a node may lack backups that it has to keep.
func (e *Engine) lacksBackups(n NodeID) bool {
	came := uint32(0)
	if e.view.came != nil {
		came = e.view.came[n]
	}
	return came >= e.replicas.newcomers && isIn(e.view.homes, n)
}

// goOnSpreading copies further backups, which nodes take that have none yet of this epoch: so all count the same commits of it. One that was committed in this
// epoch need not be copied, but has to have come wherever it was sent.
func (e *Engine) goOnSpreading() {
	r := &e.rescue
	for len(r.spread) > 0 && len(r.unsaved) < maxRescues {
		id := r.spread[0]
		r.spread = r.spread[1:]
		b, has := e.replicas.store[id]
		if !has || e.isDead(id) {
			continue
		}
		for _, n := range e.backupsOf(id, b.copies)[1:] {
			if e.lacksBackups(n) {
				r.unsaved = append(r.unsaved, copying{id, n})
				e.sendCopy(n, id, b)
			}
		}
	}
}

func (e *Engine) sendCopy(to NodeID, id ObjectID, b backup) {
	m := Message{Kind: Backup, From: e.cfg.Self, To: to, Requester: e.cfg.Self, Object: id, Flags: FlagBackup, Aux: e.view.epoch,
		Ticket: Ticket(b.epoch)<<32 | Ticket(b.commits), Rank: uint32(b.copies)}
	committed := b.epoch == e.view.epoch
	if !committed {
		m.Flags |= FlagData
	}
	e.emit(Effect{Kind: EffectSend, Object: id, Backup: !committed, Message: m})
}

// onCopied notes that a copy of a backup is kept.
func (e *Engine) onCopied(m *Message) {
	r := &e.rescue
	i := slices.Index(r.unsaved, copying{m.Object, m.From})
	if i < 0 || m.Aux != e.view.epoch {
		e.reject(m, "no copy of a backup was sent there, or it was acknowledged already")
		return
	}
	r.unsaved = slices.Delete(r.unsaved, i, i+1)
	e.dropDead()
}

// dropReplicas forgets a run of pages that is freed.
func (e *Engine) dropReplicas(first ObjectID, count uint64) {
	r := &e.replicas
	in := func(id ObjectID) bool { return id >= first && uint64(id-first) < count }
	for _, id := range r.batch {
		if o := e.objects.find(id); o != nil && in(id) {
			e.leaveBatch(o)
		}
	}
	r.runs = slices.DeleteFunc(r.runs, func(x replicated) bool { return in(PageObject(x.first)) })
	r.kept = slices.DeleteFunc(r.kept, func(id ObjectID) bool {
		if in(id) {
			delete(r.store, id)
		}
		return in(id)
	})
}

// reportBackups tells each member of which pages whose home that is this node has backups.
func (e *Engine) reportBackups(parcelFor func(NodeID) *parcel) {
	store := e.replicas.store
	for _, id := range slices.Sorted(slices.Values(e.replicas.kept)) {
		b := parcelFor(e.home(id)).room(backupBytes)
		*b = AppendBackup(*b, id, store[id].epoch, store[id].commits)
	}
}

// applyBackup enters in the directory who has a backup, if nobody has the page.
func (e *Engine) applyBackup(from NodeID, x *entry, best map[ObjectID]version) {
	o := e.objects.get(x.id)
	if o.owner != NoNode && !o.lost() && !o.backed() || o.backed() && x.version.compare(best[x.id]) <= 0 {
		return
	}
	best[x.id] = x.version
	o.owner = from
	o.set(exclusiveFlag, false)
	o.replica |= backedFlag
}

// startRestore gives a page of which there is only a backup to whoever asks for it first.
func (e *Engine) startRestore(o *object, p *pending, r request) {
	p.beginSole(r, Write, o.owner)
	grant := Message{Kind: Grant, To: r.from, Requester: r.from, Object: o.id, Access: Write, Flags: FlagBackup}
	switch {
	case r.from == o.owner:
		e.send(grant)
		e.end(o, p)
	case o.owner == e.cfg.Self:
		e.sendBackup(r.from, o.id)
		e.end(o, p)
	default:
		e.send(Message{Kind: Forward, To: o.owner, Requester: r.from, Object: o.id, Access: Write, Flags: FlagBackup})
	}
}

// sendBackup grants a page from the backup that this node has. The requester has to know that: not all backups need be as new as this one, so it must not show the page
// to anybody before it has committed it.
func (e *Engine) sendBackup(to NodeID, id ObjectID) {
	m := Message{Kind: Grant, From: e.cfg.Self, To: to, Requester: to, Object: id, Access: Write, Flags: FlagData | FlagBackup}
	e.emit(Effect{Kind: EffectSend, Object: id, Backup: true, Message: m})
}

// onRestore supplies a page of which there is nothing but the backup here.
func (e *Engine) onRestore(m *Message) {
	o := e.objects.find(m.Object)
	_, has := e.replicas.store[m.Object]
	if !has || m.Access != Write || m.Acks != 0 || o != nil && (o.has() != None || e.granted(o)) {
		e.reject(m, "this node has no backup of the page, or has the page itself")
		return
	}
	e.sendBackup(m.Requester, m.Object)
}

// hasBackup says whether a Grant tells this node to install its own backup, and it can.
func (e *Engine) hasBackup(m *Message) bool {
	_, has := e.replicas.store[m.Object]
	return m.Flags == FlagBackup && has && m.From == e.home(m.Object)
}
