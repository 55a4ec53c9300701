package node

import (
	"bytes"
	"fmt"

	"dsmd/pagetable"
	"dsmd/pagetable/backing"
	"dsmd/pagetable/snapshot"
	"dsmd/protocol"
	"dsmd/transport"
)

// executor does to the page table and sends to the other nodes what the engine has decided. It
// never calls the engine: what is done it notes in finished, and the driver tells the engine.
//
// # Batches
//
// The engine decides page by page, and is told of each page when something is done to it. But
// programs go over arrays, so what comes in one turn of the reactor is often the same for many
// neighbours, and a system call for all of them costs little more than for one. So an operation on
// a page waits for those that follow. To the engine it is one that takes a while, as any operation
// may. It is performed, with its neighbours, when an operation comes that does not continue the
// batch, when the batch is full, or when the turn ends.
//
// In the same way page contents that are to be sent wait for each other, to be read by one system
// call. No operation is performed before they are sent: it could change what is to be read. And no
// other message overtakes them.
type executor struct {
	table pagetable.Table // snaps, whose pages are in store
	snaps *snapshot.Table
	store *backing.Table
	out   *outbox
	meter *meter
	end   *ending

	contents contents
	batch    batch
	pages    []pageMessage // that wait, in the order in which they are to be sent
	buffers  [maxBatchPages][]byte
	finished []finished // since the driver has looked last
}

// finished is an operation on a page that has taken effect.
type finished struct {
	op   pagetable.Op
	page pagetable.Page
	// anew, of OpLose: nobody was told that the page is lost, and it is to begin anew, for this
	// access
	anew protocol.Access
}

// pageMessage is a message that goes with a page.
type pageMessage struct {
	message protocol.Message
	payload transport.Payload
	filled  bool // the payload has the contents already
}

// maxBatchPages bounds a batch, where pages have the least size.
const maxBatchPages = pagetable.MaxRunBytes / (4 << 10)

// longBatch is how many pages take about as long as a system call that sends. Before so many are
// operated on what waits to be sent leaves, and the peer need not wait. Before fewer it waits for
// what will follow from them: mostly for the same peer, which gets both together.
const longBatch = 4

// batch are operations that wait.
type batch struct {
	most      int // how many pages it can have
	pageBytes int

	op pagetable.Run // what waits: none if its Count is 0
	// now is what is being performed; here, because a variable would be allocated for each.
	now      pagetable.Run
	data     []byte // what op.Data is a part of
	into     [maxBatchPages][]byte
	outcomes [maxBatchPages]pagetable.Outcome
}

func newExecutor(store *backing.Table, out *outbox) *executor {
	pageBytes, snaps := store.PageBytes(), snapshot.New(store)
	most := max(pagetable.MaxRunBytes/pageBytes, 1)
	return &executor{
		table: snaps, snaps: snaps, store: store, out: out, meter: out.meter, end: out.end, contents: newContents(),
		batch: batch{most: most, pageBytes: pageBytes, data: make([]byte, most*pageBytes)},
		pages: make([]pageMessage, 0, most), finished: make([]finished, 0, most),
	}
}

// waiting is whether anything waits for the end of the turn.
func (x *executor) waiting() bool { return x.batch.op.Count > 0 || len(x.pages) > 0 }

// start starts an operation on a page, at the end of the batch that it becomes part of.
func (x *executor) start(o pagetable.Operation) {
	b := &x.batch
	if !b.continues(&o) {
		x.perform()
		b.op = pagetable.Run{Op: o.Op, First: o.Page, Writable: o.Writable, Proc: o.Proc}
	}
	b.add(o.Data, o.Into)
	if b.op.Count == b.most {
		x.perform()
	}
}

// startNow starts an operation on a page at once, after the batch that waits.
func (x *executor) startNow(o pagetable.Operation) {
	x.perform()
	x.operate(o)
}

// install makes a page present. alone: nothing else is on its way to this node. Then nothing
// follows, and to wait for it would cost a copy of the page.
func (x *executor) install(o pagetable.Operation, alone bool) {
	if alone && o.Data != nil && x.batch.op.Count == 0 {
		x.sendPages()
		x.operate(o)
		return
	}
	x.start(o)
}

func (x *executor) operate(o pagetable.Operation) {
	out, err := pagetable.Perform(x.table, &o)
	x.started(o.Op, o.Page, out, err)
}

// withhold makes a page writable so that the next store of a program is reported. It returns
// whether it could.
func (x *executor) withhold(page pagetable.Page) bool {
	x.perform()
	is := x.snaps.Withhold(page)
	if is {
		x.finish(pagetable.OpMakeWritable, page)
	}
	return is
}

// bring makes a page present that begins in a file.
func (x *executor) bring(page pagetable.Page, at backing.Location, writable bool, proc pagetable.ProcID) {
	x.perform()
	x.meter.count.broughtPages.Add(1)
	out, err := x.store.Bring(page, at, writable, proc)
	x.started(pagetable.OpInstall, page, out, err)
}

// drop makes pages absent that are freed.
func (x *executor) drop(first pagetable.Page, count uint64) {
	x.contents.backups.forget(first, count)
	x.meter.count.backups.Store(int64(len(x.contents.backups.pages)))
	x.perform()
	out, err := x.table.Drop(first, count)
	x.started(pagetable.OpDrop, first, out, err)
}

// started deals with an operation that the page table was asked for.
func (x *executor) started(op pagetable.Op, page pagetable.Page, out pagetable.Outcome, err error) {
	switch {
	case err != nil:
		x.end.breakDown(fmt.Errorf("node: page %d: %w", page, err))
	case out == pagetable.Done:
		x.finish(op, page)
	}
}

// finish notes that an operation has taken effect.
func (x *executor) finish(op pagetable.Op, page pagetable.Page) {
	if op == pagetable.OpInstall || op == pagetable.OpMakeWritable {
		// The lease starts when the page is here, not when the loop last looked at the clock.
		x.meter.clock.tick()
		x.meter.observe(page)
		delete(x.contents.loaded, page) // it can be stored to, or is another
	}
	if x.meter.log.isKept() && (op == pagetable.OpRevoke || op == pagetable.OpDowngrade) {
		x.left(op, page)
	}
	x.meter.passed(page, StageDone, op)
	x.finished = append(x.finished, finished{op: op, page: page})
}

// left tells the log that a page has left, or is for reading only: no program can store to it now.
// The reactor does not wait for a disk for the log's sake.
func (x *executor) left(op pagetable.Op, page pagetable.Page) {
	var contents []byte
	if saved := x.contents.saved[page]; saved != nil {
		contents = saved.Bytes()
	} else if op == pagetable.OpDowngrade && x.meter.log.before[page] != nil && !x.store.Unloaded(page) {
		if contents = x.contents.loaded[page]; contents == nil && !backing.InFile(x.store, page) {
			contents = make([]byte, x.batch.pageBytes)
			x.copyOf(page, contents)
		}
	}
	x.meter.log.left(page, contents, x.meter.clock.now)
}

// gains keeps for the log what a page has that is about to be for writing, if that is compared
// later.
func (x *executor) gains(page pagetable.Page) {
	if x.meter.log.compares(page) && !x.store.Spilled(page) && !x.store.Unloaded(page) {
		x.copyOf(page, x.meter.log.keep(page))
	}
}

// copyOf copies a page that is here, and that no program can store to now.
func (x *executor) copyOf(page pagetable.Page, into []byte) {
	if err := x.table.Read(page, into); err != nil {
		x.end.breakDown(fmt.Errorf("node: read page %d for the log: %w", page, err))
	}
}

// continues is whether an operation can be part of the batch that waits.
func (b *batch) continues(o *pagetable.Operation) bool {
	w := &b.op
	return w.Count > 0 && w.Op == o.Op && o.Page == w.First+pagetable.Page(w.Count) && w.Writable == o.Writable && w.Proc == o.Proc &&
		(w.Data == nil) == (o.Data == nil) && (w.Into == nil) == (o.Into == nil)
}

func (b *batch) add(data, into []byte) {
	w := &b.op
	if data != nil {
		copy(b.data[w.Count*b.pageBytes:], data)
		w.Data = b.data[:(w.Count+1)*b.pageBytes]
	}
	if into != nil {
		b.into[w.Count] = into
		w.Into = b.into[:w.Count+1]
	}
	w.Count++
}

// endBatch performs the batch that waits, because its turn has ended.
func (x *executor) endBatch() {
	if x.batch.op.Count >= longBatch {
		x.out.flush()
	}
	x.perform()
}

// perform performs the batch that waits, if there is one.
func (x *executor) perform() {
	b := &x.batch
	if b.op.Count == 0 {
		return
	}
	x.sendPages()
	b.now, b.op = b.op, pagetable.Run{}
	run, outcomes := &b.now, b.outcomes[:b.now.Count]
	if run.Count == 1 {
		x.operate(run.At(0, b.pageBytes))
		return
	}
	x.meter.count.batches.Add(1)
	x.meter.count.batchPages.Add(uint64(run.Count))
	err := x.table.Operate(run, outcomes)
	for i, out := range outcomes {
		x.started(run.Op, run.First+pagetable.Page(i), out, err)
	}
}

// revoke takes a page away from the programs of this node.
func (x *executor) revoke(page pagetable.Page, f *protocol.Effect) {
	x.meter.count.revokes.Add(1)
	var into []byte
	if f.Save {
		payload := x.out.net.Lease(transport.NodeID(f.Heir))
		x.contents.saved[page] = payload
		into = payload.Bytes()
	} else {
		x.meter.count.invalidations.Add(1)
	}
	x.start(pagetable.Operation{Op: pagetable.OpRevoke, Page: page, Into: into})
}

// send sends a message, with the contents of the page that it needs.
func (x *executor) send(f *protocol.Effect) {
	m := &f.Message
	if f.Source != protocol.SourceNone && (m.Kind == protocol.KindBackup || m.Kind == protocol.KindBackupCopy) {
		x.meter.count.backupsSent.Add(1)
	}
	switch f.Source {
	case protocol.SourceBackup:
		x.sendBackup(m)
	case protocol.SourceNone:
		x.sendPages()
		x.out.post(m, nil)
	default:
		x.sendPage(m, f.Source)
	}
}

// sendPage sends a message with the page that it is about, together with those that follow.
func (x *executor) sendPage(m *protocol.Message, from protocol.Source) {
	page := pagetable.Page(m.Object.Page())
	if from == protocol.SourcePage && x.store.Unloaded(page) {
		x.sendPages()
		m.FirstPage() // so that nobody here waits for the disk
		x.out.post(m, nil)
		return
	}
	if m.Kind == protocol.KindGrant && x.meter.log.gives(page, m.To) {
		x.left(pagetable.OpDowngrade, page)
	}
	g := pageMessage{message: *m, filled: from != protocol.SourcePage}
	if from == protocol.SourceSaved {
		g.payload = x.contents.saved[page]
		delete(x.contents.saved, page)
	} else {
		g.payload = x.out.net.Lease(transport.NodeID(m.To))
	}
	if from == protocol.SourceMessage {
		copy(g.payload.Bytes(), x.contents.arrived.Bytes())
	} else if loaded := x.contents.loaded[page]; loaded != nil && from == protocol.SourcePage {
		copy(g.payload.Bytes(), loaded)
		g.filled = true
	}
	x.pages = append(x.pages, g)
	if len(x.pages) == x.batch.most {
		x.sendPages()
		// The peer deals with them while this node deals with those that follow.
		x.out.net.Flush()
	}
}

// sendPages sends the pages that wait to be sent.
func (x *executor) sendPages() {
	if len(x.pages) == 0 {
		return
	}
	if err := x.readPages(); err != nil {
		for i := range x.pages {
			x.pages[i].payload.Release()
		}
		x.end.breakDown(err)
	} else {
		for i := range x.pages {
			g := &x.pages[i]
			x.postPage(&g.message, g.payload)
		}
	}
	clear(x.pages)
	x.pages = x.pages[:0]
}

// readPages fills the payloads that have no contents yet, neighbours together.
func (x *executor) readPages() error {
	for i := 0; i < len(x.pages); {
		if x.pages[i].filled {
			i++
			continue
		}
		first, count := pagetable.Page(x.pages[i].message.Object.Page()), 0
		for i < len(x.pages) && !x.pages[i].filled && pagetable.Page(x.pages[i].message.Object.Page()) == first+pagetable.Page(count) {
			x.buffers[count] = x.pages[i].payload.Bytes()
			i, count = i+1, count+1
		}
		err := x.table.Read(first, x.buffers[:count]...)
		clear(x.buffers[:count])
		if err != nil {
			return fmt.Errorf("node: read page %d: %w", first, err)
		}
	}
	return nil
}

// postPage posts a message with its page. A page of zeros is not sent; the message says so instead.
func (x *executor) postPage(m *protocol.Message, payload transport.Payload) {
	if isZero(payload.Bytes()) {
		x.meter.count.zeroPages.Add(1)
		payload.Release()
		m.ZeroPage()
		payload = nil
	} else {
		x.meter.count.pagesSent.Add(1)
		if m.Kind == protocol.KindMulticast {
			x.meter.count.multicasts.Add(1)
		}
	}
	x.out.post(m, payload)
}

// keepBackup keeps what has come with a message, or what is in a page of this node that no program
// can store to now.
func (x *executor) keepBackup(page pagetable.Page, f *protocol.Effect) {
	c, from := &x.contents, f.Source
	if from == protocol.SourcePage && x.store.Unloaded(page) {
		from = protocol.SourceFirst
	}
	buf := c.backups.keep(page, x.batch.pageBytes, from)
	x.meter.count.backups.Store(int64(len(c.backups.pages)))
	switch from {
	case protocol.SourceMessage:
		copy(buf, c.arrived.Bytes())
	case protocol.SourcePage:
		if loaded := c.loaded[page]; loaded != nil {
			copy(buf, loaded)
		} else if err := x.table.Read(page, buf); err != nil {
			x.end.breakDown(fmt.Errorf("node: read page %d for its backup: %w", page, err))
		}
	}
}

// sendBackup grants a page from its backup, or copies the backup to another node.
func (x *executor) sendBackup(m *protocol.Message) {
	if m.Kind == protocol.KindGrant {
		x.meter.count.restored.Add(1)
	}
	x.sendPages()
	page := pagetable.Page(m.Object.Page())
	if x.contents.backups.first.Has(page) {
		m.FirstPage()
		x.out.post(m, nil)
		return
	}
	payload := x.out.net.Lease(transport.NodeID(m.To))
	if buf := x.contents.backups.pages[page]; buf != nil {
		copy(payload.Bytes(), buf)
	} else {
		clear(payload.Bytes())
	}
	x.postPage(m, payload)
}

func isZero(page []byte) bool { return bytes.Equal(page, zeros[:len(page)]) }

// zeros is as long as the largest page that a transport carries.
var zeros [2 << 20]byte
