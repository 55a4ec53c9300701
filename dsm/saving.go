package dsm

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/checkpoint"
)

// moment decides what is saved: when it returns no rank's node has a page that is not.
func (s *Saving) moment(ctx context.Context) error {
	err := s.open()
	if err == nil {
		err = s.ask(ctx, false, true)
	}
	missing := uint64(0)
	for round := 0; ; round++ {
		if err == nil {
			err = s.publish()
		}
		if err = agree(ctx, s.c, vote{s.kind, "taking the pages", uint64(round), err}); err != nil {
			return err
		}
		missing, err = s.collect()
		if err == nil && missing > 0 && round == mostRounds {
			err = s.lost()
		}
		if err = agree(ctx, s.c, vote{s.kind, "what is missing", missing, err}); err != nil || missing == 0 {
			return err
		}
		time.Sleep(time.Duration(round) * 5 * time.Millisecond)
		if err = s.fetchMissing(ctx); err == nil {
			err = s.ask(ctx, true, false)
		}
	}
}

// mostRounds is how often pages are looked for that were on their way between nodes.
const mostRounds = 20

// open makes this rank's files.
func (s *Saving) open() error {
	var err error
	if !s.inPlace() {
		var store *checkpoint.Store
		if store, err = checkpoint.Open(s.dir); err == nil {
			s.part, err = store.CreatePart(s.plan.Sequence, s.c.Rank())
		}
	}
	if err == nil {
		s.file, err = newMemoryOrder(s.list, uintptr(s.c.PageBytes()))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", s.kind, err)
	}
	return nil
}

// inPlace is whether what has changed goes back to where it began.
func (s *Saving) inPlace() bool { return s.kind == ErrFile }

// ask has the daemon of this node save pages that nobody saves yet. copies: also those of which it
// is not the owner.
func (s *Saving) ask(ctx context.Context, copies, first bool) error {
	call := attach.Call{Op: attach.OpCheckpoint, Payload: attach.AppendCheckpoint(nil, &attach.Checkpoint{ID: s.plan.ID, Base: s.plan.BaseID, Copies: copies, InPlace: s.inPlace()})}
	if first && !s.inPlace() {
		direct, err := openDirect(s.part.File().Name(), unix.O_WRONLY)
		if err != nil {
			return fmt.Errorf("%w: open %s for the daemon: %w", ErrCheckpoint, s.part.File().Name(), err)
		}
		data, err := s.c.give(ctx, direct)
		unix.Close(direct)
		if err != nil {
			return err
		}
		call.Object = uint64(data)
	}
	if first {
		order, err := s.c.give(ctx, s.file.fd)
		if err != nil {
			return err
		}
		call.Count = uint64(order)
	}
	r, err := s.c.do(ctx, call)
	if err == nil && r.Status != attach.StatusOK {
		err = fmt.Errorf("%w: the daemon of this node says: %s", s.kind, r.Payload)
	}
	return err
}

// give gives a file to the daemon, and returns its number there.
func (c *calls) give(ctx context.Context, fd int) (uint32, error) {
	if err := c.giving.take(ctx, c); err != nil {
		return 0, err
	}
	defer c.giving.give()
	return c.giveNext(ctx, fd)
}

// giveNext is give of who has the turn.
func (c *calls) giveNext(ctx context.Context, fd int) (uint32, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	_, waiting, err := c.start(attach.Call{Op: attach.OpFile}, fd)
	if err != nil {
		return 0, err
	}
	r, err := c.await(context.WithoutCancel(ctx), waiting)
	return r.Rank, err
}

// publish tells the other ranks which pages are saved here.
func (s *Saving) publish() error {
	if s.c.Size() == 1 {
		return nil
	}
	b, err := s.file.readBits()
	if err == nil {
		err = s.said.post(b)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", s.kind, err)
	}
	return nil
}

// collect returns how many pages no node saves, and leaves in the order those that one does. It
// notes those that this node and another save: who stored to one of them while it went from the one
// to the other may have stored to it for the last time, and which of the two is in the checkpoint
// is a matter of chance. To both nodes such a page has changed since.
func (s *Saving) collect() (missing uint64, err error) {
	own, err := s.file.readBits()
	all := slices.Clone(own)
	if s.before == nil {
		s.before, s.twice = make([]byte, len(own)), make([]byte, len(own))
	}
	for rank := 0; err == nil && rank < s.c.Size(); rank++ {
		if rank == s.c.Rank() {
			continue
		}
		var b []byte
		b, err = s.said.read(rank, len(all))
		for i := range b {
			s.twice[i] |= own[i] & b[i] &^ s.before[i]
			all[i] |= b[i]
		}
	}
	s.before = all
	if err == nil {
		err = s.file.writeBits(all)
	}
	if err != nil {
		return 0, fmt.Errorf("%w: which pages are saved where: %w", s.kind, err)
	}
	missing = s.file.order.Pages()
	for _, b := range all {
		missing -= uint64(bits.OnesCount8(b))
	}
	return missing, nil
}

// awaitSaved waits until the daemon of this node has written all, and tells it what another node
// has saved, too.
func (s *Saving) awaitSaved(ctx context.Context) (r attach.Reply, err error) {
	call := attach.Call{Op: attach.OpSaved}
	if slices.ContainsFunc(s.twice, func(b byte) bool { return b != 0 }) {
		call.Count = attach.SavedTwice
		err = s.file.writeBits(s.twice)
	}
	if err != nil {
		call.Count = attach.GiveUpSaving
	}
	// Also if ctx has ended: until the daemon was asked once it takes no other checkpoint.
	r, asked := s.c.ask(ctx, call)
	if err == nil {
		err = asked
	}
	return r, err
}

// awaitHere waits, beside the program, until the daemon of this node has written all: then the
// memory may be freed.
func (s *Saving) awaitHere(ctx context.Context, release func()) {
	ctx, s.giveUp = context.WithCancel(context.WithoutCancel(ctx))
	s.here = make(chan outcome, 1)
	go func() {
		r, err := s.awaitSaved(ctx)
		release()
		s.here <- outcome{r, err}
	}()
}

// fetchMissing fetches this rank's share of the pages that no node saves: they were on their way
// from one to another, or nobody has touched them and they begin in another checkpoint.
func (s *Saving) fetchMissing(ctx context.Context) error {
	all, err := s.file.readBits()
	if err != nil {
		return err
	}
	i := 0
	for page := range s.file.missing(all) {
		if i++; i%s.c.Size() != s.c.Rank() {
			continue
		}
		run := pageRun{first: uintptr(page), count: 1}
		if _, err := s.c.fetch(ctx, attach.OpPrefetch, run, Read); err != nil {
			return err
		}
	}
	return nil
}

// lost is why a page is not saved.
func (s *Saving) lost() error {
	all, err := s.file.readBits()
	if err != nil {
		return err
	}
	page := uintptr(s.c.PageBytes())
	for missing := range s.file.missing(all) {
		m := s.c.memoryAt(uintptr(missing) * page)
		if m == nil {
			break
		}
		return fmt.Errorf("%w: page %d of %q is at no node", ErrPageLost, uintptr(missing)-m.offset/page, m.name)
	}
	return fmt.Errorf("%w: a page is at no node", ErrPageLost)
}

// lastWrites is how long a checkpoint that has failed waits for the disk to take what it was given:
// until then it has room on the disk that the next one may need.
const lastWrites = 2 * time.Second

// abandon gives up what this rank has begun.
func (s *Saving) abandon(ctx context.Context, why error) {
	if s.file != nil {
		over, end := context.WithoutCancel(ctx), func() {}
		if !s.inPlace() { // the disk may never answer; what goes to files of mappings has to end
			over, end = context.WithTimeout(over, lastWrites)
		}
		// It has ended then, or the daemon has.
		_, _ = s.c.ask(over, attach.Call{Op: attach.OpSaved, Count: attach.GiveUpSaving})
		end()
		s.file.close()
	}
	if s.part != nil {
		_ = s.part.Abort() // what is left of it, the next checkpoint removes
	}
	if !errors.Is(why, ErrNodeLost) { // else others may be about to read that
		s.said.clear()
	}
}

// Wait waits until a checkpoint is on the disk, for good; see Checkpoint for its errors. Every rank
// calls it, once. If ctx ends first, nobody knows whether there is a new checkpoint.
func (s *Saving) Wait(ctx context.Context) error {
	defer s.c.saves.busy.Store(false)
	if err := s.wait(ctx); err != nil {
		return failure("Checkpoint", err)
	}
	return nil
}

// written is what the other ranks must know of a part.
type written struct {
	Slots, Entries, Bytes uint64
	IndexCRC              uint32
	Failed                uint32
}

func (s *Saving) wait(ctx context.Context) error {
	part, err := s.finish(ctx)
	mine := written{Slots: part.Slots, Entries: part.Entries, Bytes: part.Bytes, IndexCRC: part.IndexCRC}
	if err != nil {
		mine.Failed = 1
	}
	parts, gathered := gather(ctx, s.c, saveName+"parts", mine)
	s.said.clear()
	switch {
	case err != nil:
		return err
	case gathered != nil:
		return gathered
	}
	for rank, p := range parts {
		if p.Failed != 0 {
			// If this fails, the next checkpoint removes it.
			_ = os.Remove(filepath.Join(s.dir, checkpoint.PartName(s.plan.Sequence, s.c.Rank())))
			return fmt.Errorf("%w: rank %d could not write its part; its own error says why", ErrCheckpoint, rank)
		}
	}
	if s.c.Rank() == 0 {
		err = s.commit(parts)
	}
	if err = agree(ctx, s.c, vote{s.kind, "the manifest", 0, err}); err != nil || s.inPlace() || !s.c.saves.fallback {
		return err
	}
	return s.fallBack(ctx)
}

// fallBack has lost pages begin anew with this checkpoint. No node does that before all have the
// checkpoint for it, and none has the one before any more. If a node is lost between the two, what
// is lost with it stays lost where this is not over.
func (s *Saving) fallBack(ctx context.Context) error {
	from, err := loadCheckpoint(ctx, s.c, filepath.Join(s.dir, checkpoint.ManifestName(s.plan.Sequence)))
	if err = agree(ctx, s.c, vote{s.kind, "the checkpoint for lost pages", 0, err}); err != nil {
		return err
	}
	// The others were freed.
	list, release := hold(s.c, func(m *allocation) bool { return slices.Contains(s.list, m) })
	defer release()
	for _, m := range list {
		if g := from.images[m.name]; err == nil && g != nil && m.goesBack() {
			err = m.beginWith(ctx, s.c, from, g, true)
		}
	}
	if err = agree(ctx, s.c, vote{s.kind, "the checkpoint for lost pages", 0, err}); err != nil {
		return err
	}
	r, err := s.c.do(ctx, attach.Call{Op: attach.OpFallback, Payload: s.plan.ID[:]})
	if err == nil && r.Status != attach.StatusOK {
		err = fmt.Errorf("%w: the daemon of this node says: %s", ErrCheckpoint, r.Payload)
	}
	return err
}

// StaysLost says that lost pages of this memory never begin anew with a checkpoint: with `dsmd run
// --lost checkpoint`, too, to touch them is a memory fault (PageLostError). It is for memory whose
// pages make sense only together, such as the tables of an allocator. A job that is restored begins
// with all of a checkpoint, and so with this memory as well. All programs must agree on it; this is
// checked only between calls of the same process.
func StaysLost() AllocOption {
	return func(a *allocating) { a.stays = true }
}

// Unsaved leaves memory out of checkpoints, so that it begins with zeros in a job that is restored,
// and ranks need not agree on it to take one. It is for what means something only to the programs
// that are there, such as who waits for what. It implies StaysLost.
func Unsaved() AllocOption {
	return func(a *allocating) { a.stays, a.unsaved = true, true }
}

// goesBack is whether lost pages of an allocation begin anew with a checkpoint: not if they are to
// stay lost, or other jobs have them, which may have taken other checkpoints, or may be in a file
// that is lost with its node.
func (m *allocation) goesBack() bool {
	return !m.stays && m.isSaved() && (m.file == nil || m.file.nodes == nil)
}

// finish waits for what the daemon writes, and completes this rank's part.
func (s *Saving) finish(ctx context.Context) (part checkpoint.Part, err error) {
	defer s.file.close()
	defer context.AfterFunc(ctx, s.giveUp)()
	here := <-s.here
	r, err := here.reply, here.err
	switch {
	case err != nil && ctx.Err() != nil:
		err = ctx.Err()
	case err == nil && r.Status != attach.StatusOK:
		err = fmt.Errorf("%w: the daemon of this node says: %s", ErrCheckpoint, r.Payload)
	}
	var saved attach.Saved
	if err == nil {
		saved, err = attach.DecodeSaved(r.Payload)
	}
	if err != nil || saved.Entries == 0 {
		return part, errors.Join(err, s.part.Abort())
	}
	entries, err := s.file.entries(saved.Entries)
	if err != nil {
		return part, errors.Join(fmt.Errorf("%w: %w", ErrCheckpoint, err), s.part.Abort())
	}
	if part, err = s.part.Finish(s.c.PageBytes(), saved.Slots, entries); err != nil {
		return part, fmt.Errorf("%w: %w", ErrCheckpoint, err)
	}
	return part, nil
}

// commit makes the checkpoint exist, at rank 0.
func (s *Saving) commit(parts []written) error {
	c := s.c
	c.saves.mu.Lock()
	defer c.saves.mu.Unlock()
	m := &checkpoint.Manifest{
		Sequence: s.plan.Sequence, ID: hex.EncodeToString(s.plan.ID[:]), PageBytes: c.PageBytes(), Ranks: c.Size(),
		Base: s.plan.Base, Memories: memories(s.list), Program: s.own,
	}
	if m.Base != 0 {
		base, err := checkpoint.Load(filepath.Join(c.saves.store.Dir(), checkpoint.ManifestName(m.Base)))
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCheckpoint, err)
		}
		m.Parts = slices.Clone(base.Parts)
	}
	for rank, p := range parts {
		if p.Entries > 0 {
			m.Parts = append(m.Parts, checkpoint.Part{File: checkpoint.PartName(m.Sequence, rank), Sequence: m.Sequence, Rank: rank,
				Slots: p.Slots, Entries: p.Entries, Bytes: p.Bytes, IndexCRC: p.IndexCRC})
		}
	}
	err := c.saves.store.Commit(m)
	if err == nil {
		c.saves.basis = basis{s.plan.ID, s.list}
		var used []string
		if c.saves.from != nil { // of which there may be pages that nobody has touched yet
			used = append(used, c.saves.from.path)
		}
		_ = c.saves.store.Sweep(keptCheckpoints, used...) // else the next one does
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCheckpoint, err)
	}
	return nil
}
