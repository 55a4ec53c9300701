package node

import (
	"errors"
	"fmt"
	"sync/atomic"

	"dsmd/internal/attach"
	"dsmd/internal/netio"
	"dsmd/pagetable"
	"dsmd/pagetable/snapshot"
	"dsmd/protocol"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const (
	// takenPerTurn is how many pages a checkpoint looks at before the reactor looks at other
	// things.
	takenPerTurn = 4096
	// onTheWay and mostOnTheWay are how many bytes of pages are on their way to the disk, when the
	// pages wait for their turn, and when programs wait that store to them. A program that stores
	// for longer faster than the disk writes waits for the disk.
	onTheWay     = 32 << 20
	mostOnTheWay = 256 << 20
	// fetchedOnTheWay is how many of them come from the spill file, but for those that programs
	// wait to store to. Each has a second buffer.
	fetchedOnTheWay = 4 << 20
	// inPlaceOnTheWay is how many are on their way to files that may be at other nodes.
	inPlaceOnTheWay = 8 << 20
	// atOnce is how many bytes are written by one system call, mostly.
	atOnce = 256 << 10
	// mostStuck bounds the checkpoints that were given up while they were being written: each keeps
	// its memory until the disk answers.
	mostStuck = 2
)

// checkpointer saves pages for programs (OpCheckpoint): those of which this node is the owner, as
// they are when it is asked. Programs have agreed on the moment, and give it the file.
//
// It looks at the pages of the order and makes those that it saves read-only, some thousand in each
// turn of the reactor. When that is done it answers. From then on programs may store again, and
// pages are copied and written, one after the other, and before somebody stores to them.
type checkpointer struct {
	drive   *driver
	origins *origins
	storage *storage
	pins    *pins
	table   *snapshot.Table
	poller  *netio.Poller
	log     *zap.Logger

	now  *saving  // the last one; nil: there was none, or its program has gone
	base [16]byte // the one since which the table knows what has changed; zero: none
	io   diskQueue
	disk func(bufBytes int) (diskQueue, error) // makes io
	// fetching counts pages that are being read from the spill file, also for checkpoints that were
	// given up.
	fetching int
	far      int // the same of pages that other nodes are asked to read
	// stuck counts the checkpoints that were given up, and of which the disk has not taken yet what
	// it was given.
	stuck atomic.Int32
}

// begin has the pages of an order saved. The error is the program's.
func (k *checkpointer) begin(p *program, c *attach.Call) error {
	what, err := attach.DecodeCheckpoint(c.Payload)
	if err != nil {
		return err
	}
	s := k.now
	if s != nil && s.id == what.ID && s.by != p {
		p.answer(&attach.Reply{Ticket: c.Ticket}) // another program of this node has asked for it
		return p.files.drop(uint32(c.Object), uint32(c.Count))
	}
	if s == nil || s.id != what.ID {
		if s != nil && !s.over {
			p.refuseCall(c, errBusy)
			return p.files.drop(uint32(c.Object), uint32(c.Count))
		}
		if err := k.waitsForDisks(what.InPlace); err != nil {
			p.refuseCall(c, err)
			return p.files.drop(uint32(c.Object), uint32(c.Count))
		}
		if s, err = k.open(p, c, &what); err != nil {
			p.refuseCall(c, err)
			return nil
		}
		k.now = s
	}
	if s.begun != 0 || s.awaited != 0 || s.over {
		return fmt.Errorf("%w: %v of a checkpoint out of turn", attach.ErrMalformed, c.Op)
	}
	s.copies, s.begun, s.run, s.page = what.Copies, c.Ticket, 0, 0
	if err := s.readBits(); err != nil {
		k.fail(err)
	} else {
		jointSaving{k}.shareBegin(s)
	}
	return nil
}

// open begins a checkpoint.
func (k *checkpointer) open(p *program, c *attach.Call, what *attach.Checkpoint) (*saving, error) {
	s := &saving{by: p, closer: p.files.closer, id: what.ID, base: what.Base, inPlace: what.InPlace, data: -1, orderFile: -1, sharing: sharing{next: new(atomic.Uint64)}}
	var err error
	if s.inPlace {
		s.orderFile, err = p.files.take(uint32(c.Count))
	} else {
		s.data, s.orderFile, err = p.files.takeTwo(uint32(c.Object), uint32(c.Count))
	}
	if err != nil {
		return nil, err
	}
	if err = s.readOrder(k.table.Pages()); err == nil {
		err = k.start(s)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// start opens the queue of a checkpoint, and begins the snapshot.
func (k *checkpointer) start(s *saving) (err error) {
	if k.io, err = k.disk(k.table.PageBytes()); err == nil {
		err = k.poller.Add(k.io.FD(), tokenDisk)
	}
	if err != nil {
		k.closeQueue()
		return err
	}
	k.table.Begin(k, s.base != k.base || k.base == [16]byte{})
	k.base = [16]byte{}
	return nil
}

// isDue is whether there is something to do that nothing else will call for.
func (k *checkpointer) isDue() bool {
	s := k.now
	switch {
	case s == nil || s.over:
		return false
	case s.begun != 0:
		return k.table.Sealed() && (s.parts == 0 || s.err == nil && s.run < len(s.order.Runs))
	}
	return len(s.batch) > 0 || !s.starved || s.flying == 0 && s.awaited != 0 && s.parts == 0
}

// more goes on with a checkpoint, and returns whether there was something to do.
func (k *checkpointer) more() bool {
	if !k.isDue() {
		return false
	}
	s := k.now
	var err error
	switch {
	case s.err != nil && s.begun != 0:
		k.answerBegin()
	case s.err != nil && s.flying > 0:
		s.starved = true // until what is being written is
	case s.begun != 0 && s.run < len(s.order.Runs):
		err = k.look(s)
	case s.begun != 0:
		err = k.taken(s)
	default:
		err = k.write(s)
	}
	if err != nil {
		k.fail(err)
	}
	k.drive.end()
	return true
}

// look takes some pages.
func (k *checkpointer) look(s *saving) error {
	k.drive.exec.perform()
	for left := takenPerTurn; left > 0 && s.run < len(s.order.Runs); left-- {
		run := s.order.Runs[s.run]
		// the pages between are another reactor's
		page := k.drive.partition.next(pagetable.Page(run.First + s.page))
		s.page = uint64(page) - run.First
		at, has := s.starts[s.run]+s.page, s.page < run.Count
		if s.page++; s.page >= run.Count {
			s.run, s.page = s.run+1, 0
		}
		if !has || s.bits[at/64]&(1<<(at%64)) != 0 {
			continue
		}
		is, err := k.take(s, page)
		if err != nil {
			return err
		}
		if is {
			s.bits[at/64] |= 1 << (at % 64)
		}
	}
	return k.table.Seal()
}

// take has a page saved if this node is responsible for it, and returns whether it will be in the
// checkpoint.
func (k *checkpointer) take(s *saving, page pagetable.Page) (bool, error) {
	id := protocol.PageObject(uint64(page))
	engine := k.drive.engine
	switch access := engine.Access(id); {
	case s.inPlace && !k.origins.isWritten(page):
		return false, fmt.Errorf("page %d is in no file that it could be written to", page)
	case access == protocol.None && !protocol.Untouched(engine, id):
		return false, nil
	case access == protocol.None && (s.inPlace || k.origins.isIn(page, s.base)):
		return true, nil // nobody has touched it
	case access != protocol.None && !s.copies && !protocol.Owns(engine, id):
		return false, nil
	case k.table.IsUnchanged(page) && (s.inPlace || k.origins.isIn(page, s.base)):
		return true, nil // nobody has changed it since it came from its file
	case access == protocol.None, k.table.IsUnchanged(page), k.drive.exec.store.Unloaded(page):
		// It is not in memory, or may leave before its turn comes.
		s.copied = append(s.copied, page)
		return true, nil
	case k.pins.pages[page] != nil: // a system call may store to it, which must not fail
		return k.table.Copy(page)
	default:
		return k.table.Take(page, access == protocol.Write)
	}
}

// taken answers who has asked for the pages to be taken.
func (k *checkpointer) taken(s *saving) error {
	if s.report != nil {
		k.answerBegin()
		return nil
	}
	if err := s.writeBits(); err != nil {
		return fmt.Errorf("write what is saved: %w", err)
	}
	k.answerBegin()
	return nil
}

func (k *checkpointer) answerBegin() {
	s := k.now
	switch {
	case s.by == nil:
	case s.report != nil:
		jointSaving{k}.reportTaken(s)
	default:
		if s.err != nil {
			s.by.answer(&attach.Reply{Ticket: s.begun, Status: attach.StatusUnknown, Payload: []byte(clip(s.err.Error()))})
		} else {
			s.by.answer(&attach.Reply{Ticket: s.begun})
		}
	}
	s.begun = 0
}

// write copies some pages and has them written, and ends the checkpoint after the last one.
func (k *checkpointer) write(s *saving) error {
	left, err := k.table.More()
	left = k.copyMore(s) || left
	if !left || s.starved {
		k.submit(s)
	}
	if err != nil || left || s.flying > 0 || s.awaited == 0 || s.parts > 0 {
		s.starved = s.starved || !left
		return err
	}
	if s.report == nil && s.err == nil {
		if err := writeAll(s.orderFile, s.entries, s.order.IndexAt()); err != nil {
			return fmt.Errorf("write the index of a checkpoint: %w", err)
		}
	}
	k.finish()
	return nil
}

// finish ends a checkpoint, and answers who waits for that.
func (k *checkpointer) finish() {
	s := k.now
	s.over = true
	err := k.table.End(s.err != nil)
	if err = errors.Join(s.err, err); err == nil {
		k.base = s.id
		k.origins.saved(s.base, s.id, s.order.Runs)
		// It went from one node to the other meanwhile, perhaps with something new, and the other's
		// may be what is in the checkpoint. So the next one has it again.
		for page := range s.savedTwice {
			k.table.Forget(page)
		}
	}
	switch {
	case s.by == nil || s.awaited == 0:
	case s.report != nil:
		jointSaving{k}.reportOver(s, err)
	default:
		r := attach.Reply{Ticket: s.awaited}
		if err != nil {
			r.Status, r.Payload = attach.StatusUnknown, []byte(clip(err.Error()))
		} else {
			r.Payload = attach.AppendSaved(nil, attach.Saved{Slots: s.slots, Entries: uint64(len(s.entries) / attach.EntryBytes)})
		}
		s.by.answer(&r)
	}
	s.awaited = 0
	k.close()
}

// fail gives a checkpoint up.
func (k *checkpointer) fail(err error) {
	s := k.now
	if s.err != nil {
		return
	}
	s.err = err
	if s.report == nil { // else the reactor that leads says so
		k.log.Error("a checkpoint has failed", zap.Error(err))
	}
	for _, t := range s.batch {
		k.Recycle(t.Buf)
	}
	s.batch, s.copied = nil, nil
	if err := k.table.End(true); err != nil {
		k.drive.exec.end.breakDown(fmt.Errorf("node: %w", err))
	}
}

// await answers when all is written. The error is the program's.
func (k *checkpointer) await(p *program, c *attach.Call) error {
	s := k.now
	switch {
	case s == nil || s.by != p || s.over: // it was refused, or another program here is it
		p.answer(&attach.Reply{Ticket: c.Ticket, Payload: attach.AppendSaved(nil, attach.Saved{})})
	case s.begun != 0 || s.awaited != 0:
		return fmt.Errorf("%w: %v of a checkpoint out of turn", attach.ErrMalformed, c.Op)
	default:
		s.awaited, s.starved = c.Ticket, false
		switch c.Count {
		case attach.SavedTwice:
			s.twice = true
			if err := s.readBits(); err != nil {
				k.fail(err)
			}
		case attach.GiveUpSaving:
			k.fail(errGivenUp)
		}
		jointSaving{k}.shareAwait(s, c.Count)
	}
	return nil
}

var errGivenUp = errors.New("its program gives it up")

// heard deals with what is written.
func (k *checkpointer) heard() {
	s := k.now
	if k.io == nil {
		return
	}
	for _, t := range k.io.Take() {
		p := t.Owner.(placed)
		if !t.Write {
			k.copied(s, p.page, t.Buf, p.at.Wrong(t))
			continue
		}
		k.Recycle(t.Buf)
		if t.Err != nil {
			k.fail(fmt.Errorf("write page %d of the checkpoint: %w", t.Offset/int64(k.table.PageBytes()), t.Err))
			continue
		}
		if s.inPlace {
			s.slots++
		} else {
			s.enter(p.page, t.CRC, uint64(t.Offset)/uint64(k.table.PageBytes()))
		}
	}
	k.goOn(s)
	k.drive.end()
}

// goOn goes on when there is room again, and ends what has failed when nothing is under way.
func (k *checkpointer) goOn(s *saving) {
	s.starved = false
	if s.err != nil && s.flying == 0 && s.parts == 0 && (s.awaited != 0 || s.by == nil) {
		k.finish()
		return
	}
	if err := k.table.Resume(); err != nil {
		k.drive.exec.end.breakDown(fmt.Errorf("node: %w", err))
	}
}

// isOpen reports whether a ticket of a program is that of an open call here.
func (k *checkpointer) isOpen(p *program, ticket uint64) bool {
	return k.now != nil && k.now.by == p && ticket != 0 && (k.now.begun == ticket || k.now.awaited == ticket)
}

// cancel ends a call of a program, if it is open, and the checkpoint with it.
func (k *checkpointer) cancel(p *program, ticket uint64) bool {
	if !k.isOpen(p, ticket) {
		return false
	}
	k.dropProgram(p)
	k.drive.partition.tellOthers(func(o *Node) {
		if as := o.programs.byID[p.id]; as != nil {
			o.saver.dropProgram(as)
		}
	})
	p.answer(&attach.Reply{Ticket: ticket, Status: attach.StatusCanceled})
	return true
}

// dropProgram gives up the checkpoint of a program that has gone.
func (k *checkpointer) dropProgram(p *program) {
	s := k.now
	if s == nil || s.by != p {
		return
	}
	s.by, s.begun, s.awaited, s.parts = nil, 0, 0, 0
	if !s.over {
		k.fail(errors.New("the program that had asked for it has gone, or its context has ended"))
		if s.inPlace && s.flying > 0 {
			// Nothing else is written until that is, here or at other nodes: what is written late
			// to the files of mappings would come over what is written next.
			return
		}
		k.abandon()
	}
	k.now = nil
}

// abandon is close for a checkpoint that was given up, of which transfers may be under way. It does
// not wait for the disk, but for files of mappings, when the node ends.
func (k *checkpointer) abandon() {
	s := k.now
	s.over = true
	if s.inPlace || s.flying == 0 {
		k.close()
		return
	}
	if err := k.poller.Remove(k.io.FD()); err != nil {
		k.log.Error("the queue of a checkpoint", zap.Error(err))
	}
	data := s.data
	s.data = -1
	k.stuck.Add(1)
	k.io.Abandon(func(err error) {
		unix.Close(data)
		k.stuck.Add(-1)
		if err != nil {
			k.log.Error("the queue of a checkpoint", zap.Error(err))
		}
	})
	k.io = nil
	s.close()
}

// end gives up what is under way when the node ends.
func (k *checkpointer) end() {
	if k.now == nil || k.now.over {
		k.close()
		return
	}
	k.abandon()
}

// close gives back what the last checkpoint has needed.
func (k *checkpointer) close() {
	k.closeQueue()
	if k.now != nil {
		k.now.close()
	}
}

func (k *checkpointer) closeQueue() {
	if k.io == nil {
		return
	}
	if err := k.io.Close(); err != nil { // waits for what is being written
		k.log.Error("the queue of a checkpoint", zap.Error(err))
	}
	k.io = nil
}
