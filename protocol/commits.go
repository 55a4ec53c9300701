package protocol

import (
	"fmt"
	"slices"
)

// maxCommitting bounds the pages whose commits a call has begun and that are not acknowledged:
// enough to keep the network busy, few enough that others who wait for a page do not wait long.
const maxCommitting = 64

// commits has pages of replicated memory sent to their backups: those that are about to leave, and
// all that were written here when a program asks for that. Calls are put together: while one batch
// of pages is committed, further calls wait for the next.
type commits struct {
	*pages
	// pages that have become writable here since the last batch began, each once; some are not here
	// any more
	written []ObjectID
	batch   []ObjectID   // pages that the commit under way is about
	next    int          // of batch: the first that was not begun
	missing int          // of batch: how many are batched still
	calls   []commitCall // wait for batch
	later   []commitCall // wait for the next one
}

type commitCall struct {
	client ClientID
	ticket Ticket
}

// list notes that a page becomes writable here. That is before the page table says so: a program
// may have stored to it, and ask for that to be committed, before this node hears that it could.
func (c *commits) list(o *object) {
	if o.replica&listedFlag == 0 && c.backups.copies(o.id) > 0 {
		o.replica |= listedFlag
		c.written = append(c.written, o.id)
	}
}

// dirty reports whether a page is this node's alone and its backups may not have all that was
// written.
func (c *commits) dirty(o *object) bool {
	return o.has() == Write && o.replica&committedFlag == 0 && c.backups.copies(o.id) > 0
}

// becomesWritable reports whether a page may be writable already in the page table, although this
// node has not heard of it.
func (c *commits) becomesWritable(o *object) bool {
	p := c.peek(o)
	return p != nil && (p.op == EffectMakeWritable || p.op == EffectInstall && p.grant == Write)
}

// commit has all pages committed that were written here.
func (c *commits) commit(ev Event) {
	c.later = append(c.later, commitCall{ev.Client, ev.Ticket})
	c.beginBatch()
}

// beginBatch begins to commit what was written, for all calls that wait, unless that is under way:
// what was stored before a call that comes meanwhile may have come too late for it.
func (c *commits) beginBatch() {
	for len(c.later) > 0 && c.missing == 0 && c.view.phase == running {
		c.calls, c.later = c.later, nil
		c.batch, c.written, c.next = c.written, nil, 0
		c.batch = slices.DeleteFunc(c.batch, func(id ObjectID) bool {
			o := c.objects.find(id)
			if o == nil || o.replica&listedFlag == 0 {
				return true
			}
			o.replica &^= listedFlag
			if c.dirty(o) || c.becomesWritable(o) {
				o.replica |= batchedFlag
			}
			return o.replica&batchedFlag == 0
		})
		c.missing = len(c.batch)
		c.continueBatch()
	}
}

// continueBatch begins further commits of the batch, and answers who waits for it when there are
// none.
func (c *commits) continueBatch() {
	for c.view.phase == running && c.next < len(c.batch) && c.next-(len(c.batch)-c.missing) < maxCommitting {
		o := c.objects.find(c.batch[c.next])
		c.next++
		switch {
		case o == nil || o.replica&batchedFlag == 0:
		case c.reclaim.isDead(o.id):
			c.leaveBatch(o)
		default:
			c.beginCommit(o, c.pendingOf(o))
			c.settle(o)
		}
	}
	if c.missing > 0 {
		return
	}
	calls := c.calls
	c.calls, c.batch, c.next = nil, nil, 0
	for _, x := range calls {
		c.emit(Effect{Kind: EffectComplete, Client: x.client, Ticket: x.ticket, Status: StatusOK})
	}
	c.beginBatch()
}

// leaveBatch notes that the batch under way need not wait for a page.
func (c *commits) leaveBatch(o *object) {
	if o.replica&batchedFlag != 0 {
		o.replica &^= batchedFlag
		c.missing--
	}
}

// endCommits forgets calls that nobody waits for any more, and says how many there were.
func (c *commits) endCommits(ended func(commitCall) bool) int {
	before := len(c.calls) + len(c.later)
	c.calls, c.later = slices.DeleteFunc(c.calls, ended), slices.DeleteFunc(c.later, ended)
	return before - len(c.calls) - len(c.later)
}

// mayCommit reports whether commits are possible: when all members are in this epoch. They are when
// this node has recovered, and also if another node has, which this one knows if the page is wanted
// there.
func (c *commits) mayCommit(p *pending) bool {
	return c.view.phase == running || c.view.phase == ready && p.hasParked
}

// beginCommit commits a page, unless something else is under way; then it is done after that.
func (c *commits) beginCommit(o *object, p *pending) {
	switch {
	case p.op != 0 || p.granted || !c.dirty(o) || !c.mayCommit(p):
	case o.protected():
		c.sendBackups(o, p)
	default:
		p.op, p.protecting = EffectDowngrade, true
		c.emit(Effect{Kind: EffectDowngrade, Object: o.id, Heir: NoNode})
	}
}

// seal notes that nobody can store to a page any more until this node has it made writable.
func (c *commits) seal(o *object, p *pending) {
	p.protecting = false
	o.replica |= protectedFlag
	if c.mayCommit(p) {
		c.sendBackups(o, p)
	}
}

// sendBackups has the contents of a sealed page kept by all nodes that keep its backups.
func (c *commits) sendBackups(o *object, p *pending) {
	p.op, p.unsaved = EffectBackup, nil
	copies := c.backups.copies(o.id)
	for _, n := range c.backupsOf(o.id, copies) {
		if n == c.cfg.Self {
			c.backups.keepBackup(o.id, copies)
			c.emit(Effect{Kind: EffectBackup, Object: o.id, Source: SourcePage})
			continue
		}
		p.unsaved = append(p.unsaved, n)
		c.sendPage(Backup{PageContents, c.view.epoch, uint32(copies)}.To(n, o.id), SourcePage)
	}
	if len(p.unsaved) == 0 {
		c.committed(o, p)
	}
}

// committed ends a commit.
func (c *commits) committed(o *object, p *pending) {
	p.op, p.unsaved = 0, nil
	o.replica |= committedFlag
	c.leaveBatch(o)
}

// unseal has a page made writable again, and reports whether it did. It does not if the page is
// about to leave: then the thread's wish joins the queue at the home, or others would wait for as
// long as this node's programs store. A page that is held, or kept in a group lease, is not about
// to leave.
func (c *commits) unseal(o *object, p *pending) bool {
	if p.hasParked && !o.is(heldFlag) && !p.kept && c.view.changes() {
		return false
	}
	c.list(o)
	p.op = EffectMakeWritable
	c.emit(Effect{Kind: EffectMakeWritable, Object: o.id})
	return true
}

// unprotected notes that programs can store to a page again. If somebody waits for it already, that
// does not lengthen the hold: a program that stores and commits all the time would keep the page
// for ever.
func (c *commits) unprotected(o *object, p *pending) {
	o.replica &^= protectedFlag | committedFlag
	if p.hasParked {
		return
	}
	o.since = c.now
	o.set(heldFlag, c.cfg.Hold > 0)
}

// giveProtected gives a reader elsewhere a copy of a page that the page table lets programs read
// only anyhow.
func (c *commits) giveProtected(o *object, p *pending) {
	m := p.serving
	p.serving = recall{}
	o.replica &^= protectedFlag | committedFlag
	c.holder.serve(o, m)
	c.requester.lookAgain(o, p)
}

// abandonCommit ends a commit that waits for acknowledgements, when nodes were lost: it is begun
// again when the recovery is over.
func (c *commits) abandonCommit(o *object, p *pending) {
	if p.op == EffectBackup {
		p.op, p.unsaved = 0, nil
		c.requester.lookAgain(o, p)
	}
}

// resumeCommits goes on after a recovery. Pages that only this node has are to be committed anew,
// because some of their backups may be lost.
func (c *commits) resumeCommits() {
	if len(c.backups.runs) > 0 {
		for _, id := range c.sortedIDs() {
			if o := c.objects.find(id); o.protected() {
				o.replica &^= committedFlag
				c.list(o)
			}
		}
	}
	c.batch = slices.DeleteFunc(c.batch, func(id ObjectID) bool {
		o := c.objects.find(id)
		return o == nil || o.replica&batchedFlag == 0
	})
	c.next = 0
	c.continueBatch()
}

// onBackupAck goes on when all backups of a page are kept.
func (c *commits) onBackupAck(m *Message) {
	epoch := m.AsBackupAck().Epoch
	if epoch < c.view.epoch {
		return // of a commit that was abandoned
	}
	o := c.objects.find(m.Object)
	p := c.peek(o)
	if p == nil || p.op != EffectBackup || epoch != c.view.epoch || !slices.Contains(p.unsaved, m.From) {
		c.reject(m, "no backup was sent there, or it was acknowledged already")
		return
	}
	p.unsaved = slices.DeleteFunc(p.unsaved, func(n NodeID) bool { return n == m.From })
	if len(p.unsaved) > 0 {
		return
	}
	c.committed(o, p)
	c.holder.retryRecall(o, p)
	c.requester.lookAgain(o, p)
	c.settle(o)
	c.continueBatch()
}

// clone returns an independent copy, of other pages.
func (c *commits) clone(of *pages) commits {
	return commits{of, slices.Clone(c.written), slices.Clone(c.batch), c.next, c.missing, slices.Clone(c.calls), slices.Clone(c.later)}
}

// appendState appends an encoding: see Engine.AppendState.
func (c *commits) appendState(b []byte) []byte {
	b = appendNumbers(appendInts(appendInts(b, c.written), c.batch), uint64(c.next))
	for _, calls := range [...][]commitCall{c.calls, c.later} {
		b = appendEach(b, calls, func(b []byte, x commitCall) []byte { return appendNumbers(b, uint64(x.client), uint64(x.ticket)) })
	}
	return b
}

// check tells what contradicts itself.
func (c *commits) check() error {
	missing := 0
	for _, id := range c.batch {
		if o := c.objects.find(id); o != nil && o.replica&batchedFlag != 0 {
			missing++
		}
	}
	if missing != c.missing || c.next > len(c.batch) || len(c.calls) > 0 && len(c.batch) == 0 && c.view.phase == running {
		return fmt.Errorf("%d pages of a batch of %d are to be committed, %d are counted, %d begun, for %d calls", missing, len(c.batch), c.missing, c.next, len(c.calls))
	}
	return nil
}
