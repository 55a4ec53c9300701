package protocol

import (
	"cmp"
	"fmt"
	"slices"
)

// Replicated memory. Who allocates memory may ask (NameCall.Replicas) that what was written to it
// before a release survives the loss of any k nodes. Then its pages have backups: copies that no
// program can touch, beside and apart from the pages that are present there, at k+1 nodes. These
// are always the first that are left of the page's order (see backupsOf), so whoever is alive and
// was one of them once is one of them still: nobody keeps an old backup that could be believed.
//
// The owner of a page commits it: it has the page made read-only, so that its contents are those of
// one instant, sends them to the backups, and goes on when all have acknowledged. It does so
//
//   - when a program asks for it (EventCommit), which it does before it gives back a lock or
//     arrives at a barrier, with all pages that were written here since they were committed last;
//   - before the page leaves, be it for a reader or a writer elsewhere. So what any other node has
//     ever seen of a page is at its backups.
//
// A page that was committed is sealed: it stays the owner's, alone, and nobody else hears of it
// when the owner's programs store to it again; but the page table must report that.
//
// A backup has a version: the epoch of the last commit, and how many there were in that epoch. All
// backups that are left have had all commits of an epoch, but for the last, which may have been cut
// short. When nodes were lost each home learns (ReportHeld) which backups there are of pages that
// nobody has. It notes the node with the latest version as the owner, and has it supply the page,
// from the backup, to whoever asks for the page first (startRestore).
//
// The order is one of seniority: who came later comes after all who were there before, and pushes
// nobody out. Members that are leaving keep their backups, and get all commits, until they go, but
// are not counted among the k+1. Whenever other nodes are the k+1, the first of each page's order
// copies its backup to them (listReReplicate), with its version: when nodes were lost, so that
// others may be lost after them; when some are leaving, before they go, so that one that left well
// is none of the k that may be lost; and when some come where there were not enough. The first has
// the backup if anybody has it who got it by a commit, because those who are left of them come
// first.

// MaxReplicas bounds NameCall.Replicas: the lost nodes that memory can be asked to survive.
const MaxReplicas = 7

// object.replica: flags of replicated memory, and one more
const (
	protectedFlag = 1 << iota // this node has Write, and the page table lets programs read only
	committedFlag             // sealed, and the backups have it
	listedFlag                // it is in replicas.written
	batchedFlag               // it is in replicas.batch, and was not committed since that began
	backedFlag                // home: nobody has a copy, and the owner has a backup
	saidLostFlag              // home: it has answered in this epoch that the page is lost
)

func (o *object) protected() bool { return o.replica&protectedFlag != 0 }
func (o *object) backed() bool    { return o.replica&backedFlag != 0 }

// shown is the access that the page table gives.
func (o *object) shown() Access {
	if o.protected() {
		return Read
	}
	return o.has()
}

// backups are the backups of pages that this node keeps for others, and what it knows of which
// memory is replicated.
type backups struct {
	*pages
	// replicated memory that programs of this node have bound, or of which it was offered pages,
	// until it is freed
	runs  []replicated
	store map[ObjectID]backup // backups that this node has
	// of which pages, in no order: what is decided must not depend on that of a map
	kept []ObjectID
	// who is told when the first backup of a page comes in this epoch; at most maxFetches for each
	// node
	asked []copying
	// joinedSince says who may lack backups of which this node is the first: members that came in
	// this epoch or later. 0: any.
	joinedSince uint32
	// lost is how many members were lost while this node was there; unknownLosses: it has come.
	lost int
}

// unknownLosses is more than any memory survives.
const unknownLosses = MaxReplicas + 1

type replicated struct {
	run
	copies int // k
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

// put notes that this node has this backup of a page.
func (b *backups) put(id ObjectID, has backup) {
	if b.store == nil {
		b.store = map[ObjectID]backup{}
	}
	if _, known := b.store[id]; !known {
		b.kept = append(b.kept, id)
	}
	b.store[id] = has
}

// replicate notes that a run of pages is replicated.
func (b *backups) replicate(pages run, copies int) {
	if copies > 0 && !slices.ContainsFunc(b.runs, func(x replicated) bool { return x.run == pages }) {
		b.runs = append(b.runs, replicated{pages, copies})
	}
}

// copies is how many lost nodes a page is to survive: 0 if it is not replicated, as far as this
// node knows.
func (b *backups) copies(id ObjectID) int {
	if x := b.find(id); x != nil {
		return x.copies
	}
	return 0
}

// find is the replicated memory that a page is of, as far as this node knows; nil: it is of none.
func (b *backups) find(id ObjectID) *replicated {
	if id.IsLock() {
		return nil
	}
	for i := range b.runs {
		if x := &b.runs[i]; id.Page() >= x.first && id.Page()-x.first < x.count {
			return x
		}
	}
	return nil
}

// keepBackup notes that this node has a new backup of a page.
func (b *backups) keepBackup(id ObjectID, copies int) {
	v := version{epoch: b.view.epoch, commits: 1}
	if old := b.store[id]; old.epoch == v.epoch {
		v.commits += old.commits
	}
	b.put(id, backup{v, copies})
	b.asked = slices.DeleteFunc(b.asked, func(c copying) bool {
		if c.id == id {
			b.send(BackupCopyAck{b.view.epoch}.To(c.to, id))
		}
		return c.id == id
	})
}

// onBackup keeps the backup of a page, as of a commit.
func (b *backups) onBackup(m *Message) {
	k := m.AsBackup()
	why := b.noBackup(m, k.Epoch, k.Copies)
	if why == "" && k.Contents == NoContents {
		why = "a backup without contents"
	}
	if why != "" {
		b.reject(m, why)
		return
	}
	b.keepBackup(m.Object, int(k.Copies))
	b.emit(Effect{Kind: EffectBackup, Object: m.Object, Source: arriving(k.Contents)})
	b.send(BackupAck{b.view.epoch}.To(m.From, m.Object))
}

// onBackupCopy keeps a copy of a backup, unless this node has as good a one.
func (b *backups) onBackupCopy(m *Message) {
	k := m.AsBackupCopy()
	why := b.noBackup(m, k.Epoch, k.Copies)
	switch {
	case why != "":
	case k.Contents != NoContents && k.Made >= b.view.epoch:
		why = "a copy of a backup that was made in this epoch, by a commit that comes here too"
	case k.Contents == NoContents && k.Made != b.view.epoch:
		why = "a copy of a backup without contents"
	}
	switch {
	case why != "":
		b.reject(m, why)
		return
	case k.Contents == NoContents:
		b.onCommitAsked(m)
		return
	}
	v := version{k.Made, k.Commits}
	if old, known := b.store[m.Object]; !known || old.compare(v) < 0 {
		b.put(m.Object, backup{v, int(k.Copies)})
		b.emit(Effect{Kind: EffectBackup, Object: m.Object, Source: arriving(k.Contents)})
	}
	b.send(BackupCopyAck{b.view.epoch}.To(m.From, m.Object))
}

// noBackup says why this node keeps no backup that a message brings: "" if it can.
func (b *backups) noBackup(m *Message, epoch, copies uint32) string {
	switch {
	case m.Object.IsLock():
		return "a backup of a lock"
	case epoch != b.view.epoch:
		return "a backup of another epoch"
	case copies == 0 || copies > MaxReplicas:
		return "a backup of memory that is not replicated, or too often"
	case slices.ContainsFunc(b.reclaim.freed, func(d freedExtent) bool { return d.phase == 2 && d.has(m.Object) }):
		return "a backup of a page that is being freed"
	}
	return ""
}

// onCommitAsked answers who asks for an acknowledgement of the commit that its sender has had in
// this epoch: now, or when the commit comes. If its owner is lost before, there is another epoch,
// in which the sender copies its backup.
func (b *backups) onCommitAsked(m *Message) {
	ask := copying{m.Object, m.From}
	switch {
	case b.store[m.Object].epoch == b.view.epoch:
		b.send(BackupCopyAck{b.view.epoch}.To(m.From, m.Object))
	case len(b.asked) >= maxFetches*b.cfg.Nodes || slices.Contains(b.asked, ask):
		b.reject(m, "it was asked already, or more is asked than any node may")
	default:
		b.asked = append(b.asked, ask)
	}
}

// noteKeepers notes, when the members change, whether backups may be kept by others from now on
// than by those that come: when members are lost, or begin to leave. What one kept that has left in
// order was copied. One that is lost while it leaves may have been the first that keeps a page.
func (b *backups) noteKeepers(before []NodeID, orderly bool) {
	gone := 0
	for _, n := range before {
		if !orderly && !b.isMember(n) {
			gone++
		}
	}
	b.lost = min(b.lost+gone, unknownLosses)
	if len(b.homeList()) < len(b.memberList()) || gone > 0 {
		b.joinedSince = 0
	}
}

// neverCommitted reports whether a page was never committed, of which nobody has a copy or a backup
// when so many nodes were lost. If its memory survives as many, a node that kept its backups is
// left. What lost nodes may have stored to such a page nobody else has seen, so it is as good as
// untouched.
func (b *backups) neverCommitted(id ObjectID, lost int) bool {
	copies := b.copies(id)
	return copies > 0 && lost <= copies
}

// lacksBackups reports whether a node may lack backups that it has to keep.
func (b *backups) lacksBackups(n NodeID) bool {
	came := uint32(0)
	if b.view.came != nil {
		came = b.view.came[n]
	}
	return came >= b.joinedSince && isIn(b.view.homes, n)
}

// sendBackup grants a page from the backup that this node has. The requester has to know that: not
// all backups need be as new as this one, so it must not show the page to anybody before it has
// committed it.
func (b *backups) sendBackup(to NodeID, id ObjectID) {
	b.sendPage(Grant{Access: Write, Contents: PageContents, Backup: true}.To(to, id), SourceBackup)
}

// dropReplicas forgets a run of pages that is freed.
func (b *backups) dropReplicas(first ObjectID, count uint64) {
	in := func(id ObjectID) bool { return id >= first && uint64(id-first) < count }
	for _, id := range b.commits.batch {
		if o := b.objects.find(id); o != nil && in(id) {
			b.commits.leaveBatch(o)
		}
	}
	b.commits.written = slices.DeleteFunc(b.commits.written, in)
	b.runs = slices.DeleteFunc(b.runs, func(x replicated) bool { return in(PageObject(x.first)) })
	b.kept = slices.DeleteFunc(b.kept, func(id ObjectID) bool {
		if in(id) {
			delete(b.store, id)
		}
		return in(id)
	})
}

// reportBackups tells each member of which pages whose home that is this node has backups.
func (b *backups) reportBackups(parcelFor func(NodeID) *parcel) {
	store := b.store
	for _, id := range slices.Sorted(slices.Values(b.kept)) {
		b := parcelFor(b.home(id)).room(backupBytes)
		*b = AppendBackup(*b, id, store[id].epoch, store[id].commits)
	}
}

// clone returns an independent copy, of other pages.
func (b *backups) clone(of *pages) backups {
	c := *b
	c.pages = of
	c.runs, c.kept, c.asked, c.store = slices.Clone(b.runs), slices.Clone(b.kept), slices.Clone(b.asked), nil
	for _, id := range b.kept {
		if c.store == nil {
			c.store = map[ObjectID]backup{}
		}
		c.store[id] = b.store[id]
	}
	return c
}

// appendState appends an encoding: see Engine.AppendState.
func (b *backups) appendState(to []byte) []byte {
	to = appendEach(to, b.runs, func(to []byte, r replicated) []byte { return appendNumbers(r.run.append(to), uint64(r.copies)) })
	to = appendNumbers(appendEach(to, b.asked, appendCopying), uint64(b.joinedSince), uint64(b.lost))
	return appendEach(to, slices.Sorted(slices.Values(b.kept)), func(to []byte, id ObjectID) []byte {
		has := b.store[id]
		return appendNumbers(to, uint64(id), uint64(has.epoch), uint64(has.commits), uint64(has.copies))
	})
}

// check tells what contradicts itself.
func (b *backups) check() error {
	if len(b.kept) != len(b.store) {
		return fmt.Errorf("%d pages have backups here, %d are listed", len(b.store), len(b.kept))
	}
	if len(b.asked) > 0 && b.view.phase <= flushing && b.view.phase != running {
		return fmt.Errorf("%v have asked for commits of an epoch that is over", b.asked)
	}
	return nil
}
