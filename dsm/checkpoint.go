package dsm

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"dsmd/internal/attach"
	"dsmd/internal/checkpoint"
)

// CheckpointOption is an option of Checkpoint and BeginCheckpoint.
type CheckpointOption func(*checkpointing)

// checkpointing is what the options of a checkpoint say.
type checkpointing struct {
	state []byte
	names []string // nil: all
	whole bool
}

// State has a checkpoint keep some bytes of the program's own, at most 16 MiB, for Restore: how far
// it has come, for one. Those of rank 0 are kept.
func State(b []byte) CheckpointOption { return func(o *checkpointing) { o.state = b } }

// Only has a checkpoint keep the allocations of these names, and no others. The name of a mapping
// is its path, made absolute.
func Only(names ...string) CheckpointOption { return func(o *checkpointing) { o.names = names } }

// Whole has a checkpoint keep everything, not only what has changed since the one before.
func Whole() CheckpointOption { return func(o *checkpointing) { o.whole = true } }

// keptCheckpoints is how many checkpoints stay in a directory.
const keptCheckpoints = 2

// Checkpoint saves what is in shared memory, so that another job can begin with it (Restore): all
// allocations of this job but those whose names begin with Everywhere, and mapped files. Every rank
// calls it, with the same directory, which all share, and has allocated the same. It is a barrier:
// what any rank stored before, is saved. Locks and barriers are not, nor is what the programs have
// beside shared memory, but for State.
//
// What was stored to a mapping with Private is saved: the pages that have changed, and no others,
// but for some that were fetched to be stored to. The others stay in the file. It must be there and
// must not change as long as the checkpoint is of use, which nobody checks.
//
// It returns when the checkpoint is on the disk, for good. A crash at any moment leaves the one
// before as it was. Of the checkpoints in the directory the newest two stay, and the one that this
// job was restored from. Only pages that have changed since the one before are written, by the
// daemons of the nodes that have them, in parallel. Goroutines that do not take part may go on
// storing, and what they store meanwhile is saved or not; with BeginCheckpoint it is known from
// when on it is not.
//
// A daemon takes one checkpoint at a time, and Sync counts as one. If two jobs take checkpoints on
// the same nodes, the second gets ErrCheckpoint, which says that another checkpoint is under way at
// this node. It can try again.
//
// Errors: ErrMismatch (ranks have allocated different things), ErrPageLost (a page is at no node),
// ErrCheckpoint (a file can't be written, another rank has failed, the directory is another job's,
// or another job takes a checkpoint), ErrInUse, ErrNodeLost, ErrClosed, ErrLost, ctx's. After an
// error there is no new checkpoint, and those that there were stay.
//
// With `dsmd run --lost checkpoint` each rank then reads the indexes of the new checkpoint, and
// lost pages go back to it from here on. After ErrNodeLost, or an error of that part, the new
// checkpoint may be on the disk, and pages that are lost may stay lost.
func (c *Cluster) Checkpoint(ctx context.Context, dir string, opts ...CheckpointOption) error {
	s, err := c.BeginCheckpoint(ctx, dir, opts...)
	if err != nil {
		return err
	}
	return s.Wait(ctx)
}

// Saving is a checkpoint that is being written.
type Saving struct {
	c    *Cluster
	dir  string
	plan plan
	part *checkpoint.PartFile // nil: what has changed is written to the files in which it began
	file *memoryOrder
	said board // what the ranks tell each other
	kind error // ErrCheckpoint, or ErrFile: what has changed goes back to the files of mappings
	own  []byte
	list []*allocation
	// before are the pages that some node has saved in the rounds before, and twice those that this
	// node and another have saved in one round, as bits of the order.
	before, twice []byte
	// here is how this node has ended, and giveUp has it end at once.
	here   chan outcome
	giveUp context.CancelFunc
}

// outcome is how the daemon of a node has saved what it saves.
type outcome struct {
	reply attach.Reply
	err   error
}

// plan is what rank 0 decides about a checkpoint.
type plan struct {
	Sequence, Base uint64
	ID, BaseID     [16]byte
	Failed         uint64
}

// saves is what a cluster knows of its checkpoints.
type saves struct {
	busy   atomic.Bool       // a checkpoint is under way
	mu     sync.Mutex        // guards what follows
	store  *checkpoint.Store // rank 0: the directory that it has locked
	unlock func() error
	every  every
	from   *restored
	// fallback: lost pages begin anew with the last checkpoint (`dsmd run --lost checkpoint`).
	fallback bool
	// basis is the checkpoint of which this job knows what has changed since: the one that it has
	// taken last, or has begun with.
	basis basis
	// synced is the Sync since which this job knows what has changed.
	synced [16]byte
}

// basis is a checkpoint, and the allocations that are in it as they were made. Memory that is freed
// and allocated again is another, whose pages that nobody has touched are not in it.
type basis struct {
	id   [16]byte
	list []*allocation
}

// has reports whether a manifest is that of the basis, and all these allocations are in it.
func (b *basis) has(m *checkpoint.Manifest, list []*allocation) bool {
	return m.ID == hex.EncodeToString(b.id[:]) && !slices.ContainsFunc(list, func(a *allocation) bool { return !slices.Contains(b.list, a) })
}

// BeginCheckpoint is Checkpoint, but returns as soon as it is decided what is saved: what is stored
// from here on is not. A thread that stores to a page that is not saved yet waits until that is
// copied. Wait waits for the end, without which the checkpoint does not exist. Every rank calls
// both. Memory that is saved may be freed between the two: Free waits until this node has written
// what it saves.
func (c *Cluster) BeginCheckpoint(ctx context.Context, dir string, opts ...CheckpointOption) (*Saving, error) {
	var o checkpointing
	for _, opt := range opts {
		opt(&o)
	}
	var s *Saving
	err := fmt.Errorf("%w: a rank takes one checkpoint at a time, and calls Wait", ErrInUse)
	if c.saves.busy.CompareAndSwap(false, true) {
		if s, err = o.begin(ctx, c, dir); err != nil {
			c.saves.busy.Store(false)
		}
	}
	if err != nil {
		return nil, failure(fmt.Sprintf("Checkpoint in %q", dir), err)
	}
	return s, nil
}

func (o *checkpointing) begin(ctx context.Context, c *Cluster, dir string) (*Saving, error) {
	if err := c.err(); err != nil {
		return nil, err
	}
	list, release, err := o.what(c)
	defer func() {
		if err != nil {
			release()
		}
	}()
	if failed := agree(ctx, c, vote{ErrCheckpoint, "what it has allocated: all ranks allocate what is to be saved, or say what that is by Only", listHash(list), err}); failed != nil {
		err = failed
		return nil, err
	}
	s := &Saving{c: c, dir: dir, own: o.state, list: list, kind: ErrCheckpoint}
	if c.Rank() == 0 {
		s.plan, err = c.saves.plan(c, dir, list, o.whole)
		if err != nil {
			s.plan.Failed = 1
		}
	}
	plans, gathered := gather(ctx, c, saveName+"plan", s.plan)
	switch {
	case err != nil:
		return nil, err
	case gathered != nil:
		err = gathered
		return nil, err
	case plans[0].Failed != 0:
		err = fmt.Errorf("%w: rank 0 could not begin it; its own error says why", ErrCheckpoint)
		return nil, err
	}
	s.plan = plans[0]
	s.said = fileBoard{s}
	if err = s.moment(ctx); err != nil {
		s.abandon(ctx, err)
		return nil, err
	}
	s.awaitHere(ctx, release)
	return s, nil
}

// saveName and fileName begin the names of reductions that checkpoints make, and Map and Sync;
// hidden begins those that no user can choose.
const (
	hidden   = "\x00"
	saveName = hidden + "checkpoint/"
	fileName = hidden + "file/"
)

// vote is what a rank brings to agree: a value of something, and its error.
type vote struct {
	kind  error // what the error wraps if another rank brings one
	what  string
	value uint64
	err   error
}

// name is that of the reduction. Goroutines of a rank that do different things at once do not meet
// in it.
func (v vote) name() string {
	about, _, _ := strings.Cut(v.what, ":")
	if v.kind == ErrFile {
		return fileName + about
	}
	return saveName + about
}

// agree is a barrier at which all ranks must bring the same value, and none an error.
func agree(ctx context.Context, c *Cluster, own vote) error {
	type ballot struct{ Value, Failed uint64 }
	b := ballot{Value: own.value}
	if own.err != nil {
		b.Failed = 1
	}
	all, err := gather(ctx, c, own.name(), b)
	if own.err != nil {
		return own.err
	}
	if err != nil {
		return err
	}
	for rank, v := range all {
		if v.Failed != 0 {
			return fmt.Errorf("%w: rank %d could not go on; its own error says why", own.kind, rank)
		}
	}
	for rank, v := range all {
		if v.Value != all[0].Value {
			return fmt.Errorf("%w: rank %d differs from rank 0 in %s", ErrMismatch, rank, own.what)
		}
	}
	return nil
}

// what are the allocations to be saved, by name. They are not freed until release is called.
func (o *checkpointing) what(c *Cluster) (list []*allocation, release func(), err error) {
	list, release = hold(c, func(m *allocation) bool {
		return o.names == nil && m.isSaved() || slices.Contains(o.names, m.name) && !m.unsaved
	})
	for _, name := range o.names {
		if !slices.ContainsFunc(list, func(m *allocation) bool { return m.name == name }) {
			err = fmt.Errorf("%w: Only names %q, which this rank has not allocated, or with Unsaved", ErrUnknown, name)
		}
	}
	return list, release, err
}

// isSaved is whether a checkpoint has an allocation without being told so: it is the job's alone.
func (m *allocation) isSaved() bool {
	if m.unsaved {
		return false
	}
	if m.file != nil {
		return m.file.own
	}
	return !strings.HasPrefix(m.name, Everywhere)
}

// memories describes allocations as a manifest does.
func memories(list []*allocation) (all []checkpoint.Memory) {
	for _, m := range list {
		all = append(all, checkpoint.Memory{Name: m.name, Type: m.what.String(), TypeHash: m.what.hash, ElemBytes: uint64(m.what.size), Count: uint64(m.count), Begins: m.file.begins()})
	}
	return all
}

// listHash is the same for ranks that have allocated the same.
func listHash(list []*allocation) uint64 {
	return attach.NameHash(attach.NameType, fmt.Sprint(memories(list)))
}

// plan decides, at rank 0, which checkpoint comes next.
func (s *saves) plan(c *Cluster, dir string, list []*allocation, whole bool) (p plan, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.open(dir); err != nil {
		return p, fmt.Errorf("%w: %w", ErrCheckpoint, err)
	}
	if p.Sequence, err = s.store.Next(); err != nil {
		return p, fmt.Errorf("%w: %w", ErrCheckpoint, err)
	}
	rand.Read(p.ID[:])
	last, err := s.store.Latest()
	if p.Sequence > 1 && (err != nil || p.Sequence > last.Sequence+1) {
		// Attempts that failed have left something that has room on the disk which this one may
		// need. An error is Commit's to tell; beside damage nothing is removed.
		_ = s.store.Sweep(math.MaxInt)
	}
	switch {
	case errors.Is(err, checkpoint.ErrNone):
		return p, nil
	case err != nil:
		return p, fmt.Errorf("%w: %w", ErrCheckpoint, err)
	}
	if whole || !s.basis.has(last, list) || last.PageBytes != c.PageBytes() || !slices.Equal(last.Memories, memories(list)) || checkpoint.WholeNext(last) {
		return p, nil
	}
	p.Base, p.BaseID = last.Sequence, s.basis.id
	return p, nil
}

// open locks a directory, unless it is locked already.
func (s *saves) open(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil || s.store != nil && s.store.Dir() == dir {
		return err
	}
	if err := s.close(); err != nil {
		return err
	}
	store, err := checkpoint.Create(dir)
	if err == nil {
		s.unlock, err = store.Lock()
	}
	if err == nil {
		s.store = store
	}
	return err
}

// close lets others write to the directory.
func (s *saves) close() error {
	if s.store == nil {
		return nil
	}
	s.store = nil
	return s.unlock()
}
