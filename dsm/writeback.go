package dsm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"dsmd/internal/attach"

	"golang.org/x/sys/unix"
)

// boardName is the shared memory by which ranks tell each other which pages have changed.
const boardName = "dsm.Sync"

// Sync writes what has changed in all mappings with WriteBack to their files. Every rank calls it.
// It is a barrier: what any rank stored before, is in the files when it returns, for good. What
// goroutines store meanwhile, which do not take part, may be.
//
// Only pages that have changed are written, by the nodes that own them, in parallel: to the file
// that all share, or through the nodes that have the files. A crash in the middle leaves some pages
// as they were, and perhaps zeros behind the end of a file, up to the end of its last page; who
// needs all or nothing takes checkpoints (Checkpoint).
//
// Errors: ErrFile (a file can't be written, another rank has failed, or another job takes a
// checkpoint, see Checkpoint), ErrMismatch (ranks have mapped different files), ErrPageLost (a page
// is at no node), ErrInUse, ErrNodeLost, ErrClosed, ErrLost, ctx's. After an error some of what has
// changed is written, and the next Sync writes it again.
func Sync(ctx context.Context, c *Cluster) error {
	err := fmt.Errorf("%w: a rank takes one checkpoint, or Sync, at a time", ErrInUse)
	if c.saves.busy.CompareAndSwap(false, true) {
		err = writeBackAll(ctx, c)
		c.saves.busy.Store(false)
	}
	if err != nil {
		return failure("Sync", err)
	}
	return nil
}

// restores notes whether a checkpoint has contents for the mapping; nil: none has. They are in no
// file that Sync could write them to.
func (f *mapping) restores(from *restored) error {
	switch {
	case f == nil:
		return nil
	case from != nil && f.mode == writeBack:
		return fmt.Errorf("%w: the checkpoint %s has its contents, which Sync does not write to the file: map it Private, or leave it out of checkpoints",
			ErrMismatch, from.path)
	}
	f.own = f.mode == private || from != nil
	return nil
}

// isWrittenBack is whether what has changed goes to a file.
func (m *allocation) isWrittenBack() bool { return m.file != nil && m.file.mode == writeBack }

func writeBackAll(ctx context.Context, c *Cluster) error {
	if err := c.err(); err != nil {
		return err
	}
	list, release := hold(c, (*allocation).isWrittenBack)
	defer release()
	s := &Saving{c: c, list: list, kind: ErrFile}
	if err := agree(ctx, c, vote{ErrFile, "what it has mapped with WriteBack", listHash(list), nil}); err != nil || len(list) == 0 {
		return err
	}
	s.plan.BaseID = c.saves.synced
	rand.Read(s.plan.ID[:])
	plans, err := gather(ctx, c, fileName+"sync", s.plan)
	if err != nil {
		return err
	}
	s.plan.ID = plans[0].ID
	pages := uint64(0)
	for _, m := range list {
		pages += uint64(m.bytes) / uint64(c.PageBytes())
	}
	bits := int(pages/64+1) * 8
	all, err := Alloc[byte](ctx, c, boardName, bits*c.Size())
	if err == nil {
		// If this fails, the memory ends with the programs.
		defer func() { _ = Free(context.WithoutCancel(ctx), c, all) }()
	}
	if err := agree(ctx, c, vote{ErrFile, "the memory that Sync takes", 0, err}); err != nil {
		return err
	}
	s.said = memoryBoard{c, all}
	if err = s.moment(ctx); err == nil {
		err = s.sync(ctx)
	} else {
		s.abandon(ctx, err)
	}
	for _, m := range list {
		if err != nil { // a last page may have been written before
			err = errors.Join(err, m.file.shorten())
		}
	}
	return err
}

// sync waits until all is written, for good.
func (s *Saving) sync(ctx context.Context) error {
	defer s.file.close()
	r, err := s.awaitSaved(ctx)
	if err == nil && r.Status != attach.StatusOK {
		err = fmt.Errorf("%w: the daemon of this node says: %s", ErrFile, r.Payload)
	}
	if err := agree(ctx, s.c, vote{ErrFile, "the pages that are written", 0, err}); err != nil {
		return err
	}
	for _, m := range s.list {
		err = errors.Join(err, m.file.settle())
	}
	if err := agree(ctx, s.c, vote{ErrFile, "what is on the disk", 0, err}); err != nil {
		return err
	}
	s.c.saves.synced = s.plan.ID
	return nil
}

// settle has a file as it is to be on the disk, for good.
func (f *mapping) settle() error {
	if f.fd < 0 {
		return nil
	}
	if err := f.shorten(); err != nil {
		return err
	}
	if err := unix.Fsync(f.fd); err != nil {
		return fmt.Errorf("%w: fsync of %s: %w", ErrFile, f.path, err)
	}
	return nil
}

// shorten gives a file its length back, whose last page was written whole.
func (f *mapping) shorten() error {
	end := f.offset + f.bytes
	if f.fd < 0 || f.bytes%int64(f.cluster.PageBytes()) == 0 || f.end != end {
		return nil
	}
	if err := unix.Ftruncate(f.fd, end); err != nil {
		return fmt.Errorf("%w: %s gets its length back: %w", ErrFile, f.path, err)
	}
	return nil
}
