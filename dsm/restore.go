package dsm

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/checkpoint"
	"dsmd/internal/memfile"

	"golang.org/x/sys/unix"
)

// restored is a checkpoint that memory begins with.
type restored struct {
	path   string
	id     [16]byte
	state  []byte
	images map[string]*checkpoint.Image // of what has not begun yet
	began  map[string]bool              // what has
}

// Restore has memory begin with what a checkpoint has of the same name, instead of zeros, when it
// is allocated for the first time from here on. path is the directory of checkpoints, and the
// newest is meant, or the manifest of one. Every rank calls it before it allocates, with the same
// path, which all nodes share; their number need not be that of the job which was saved. It returns
// what State has kept.
//
// Nothing is read but the index. A page comes from the checkpoint when somebody touches it first,
// and its checksum is compared then; if it is another, or the file can't be read, the daemon of
// that node ends and says so. So the checkpoint must stay while the job runs: Checkpoint in the
// same directory sees to that. What the checkpoint has and nobody allocates is left out of the
// next.
//
// Errors: ErrCheckpoint, which says what is wrong with which file and wraps an error of package
// os where there is none; ErrClosed, ErrLost. Alloc and Map return ErrCheckpoint too, and
// ErrMismatch for memory that the checkpoint has with another type or length, or, of a file, with
// what was changed from another byte on. A file that is longer or shorter than it was has another
// length.
func (c *Cluster) Restore(ctx context.Context, path string) (state []byte, err error) {
	from, err := loadCheckpoint(ctx, c, path)
	if err != nil {
		return nil, failure(fmt.Sprintf("Restore from %q", path), err)
	}
	c.saves.mu.Lock()
	defer c.saves.mu.Unlock()
	c.saves.from, c.saves.basis = from, basis{id: from.id}
	return from.state, nil
}

func loadCheckpoint(ctx context.Context, c *Cluster, path string) (*restored, error) {
	if err := c.err(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m, err := checkpoint.Load(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCheckpoint, err)
	}
	if m.PageBytes != c.PageBytes() {
		return nil, fmt.Errorf("%w: %s has pages of %d bytes, and this cluster pages of %d: restore it on machines with those",
			ErrCheckpoint, m.Path(), m.PageBytes, c.PageBytes())
	}
	from := &restored{path: m.Path(), state: m.Program}
	id, err := hex.DecodeString(m.ID)
	copy(from.id[:], id)
	if err == nil {
		from.images, err = m.Images()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCheckpoint, err)
	}
	return from, nil
}

// Restored reports whether this job was started with `dsmd run --restore`, which has Join call
// Restore, and returns what State has kept.
func (c *Cluster) Restored() (state []byte, is bool) {
	c.saves.mu.Lock()
	defer c.saves.mu.Unlock()
	if c.saves.from == nil {
		return nil, false
	}
	return c.saves.from.state, true
}

// image is what an allocation begins with, or nil.
func (s *saves) image(a *allocating, name string, l layout, n int) (*restored, *checkpoint.Image, error) {
	s.mu.Lock()
	from, begins := s.from, a.file.begins()
	s.mu.Unlock()
	if from == nil || a.unsaved {
		return nil, nil, nil
	}
	g := from.images[name]
	if g == nil {
		return nil, nil, nil
	}
	switch m := g.Memory; {
	case m.TypeHash != l.hash || m.Count != uint64(n):
		return nil, nil, fmt.Errorf("%w: the checkpoint %s has it as %d elements of %s, and this program asks for %d elements of %v",
			ErrMismatch, from.path, m.Count, m.Type, n, l)
	case m.Begins != begins && m.Begins != "": // else all of it is there
		return nil, nil, fmt.Errorf("%w: the checkpoint %s has %s, and this program asks for %s",
			ErrMismatch, from.path, share(m.Begins), share(begins))
	}
	return from, g, nil
}

// began is the checkpoint that memory of this name began with in this process, or nil.
func (s *saves) began(name string) *restored {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from == nil || !s.from.began[name] {
		return nil
	}
	return s.from
}

// share is what a checkpoint has of memory that begins so.
func share(begins string) string {
	if begins == "" {
		return "all of it"
	}
	return "what was changed of " + begins
}

// begun notes that an allocation has begun with what the checkpoint has, if there is one: not
// before it is certain, so that who fails and tries again begins with it again. If it is allocated
// again later it begins with zeros, or as its file is, as all memory does.
func (s *saves) begun(from *restored, m *allocation) {
	if from == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.from.images, m.name)
	if s.from.began == nil {
		s.from.began = map[string]bool{}
	}
	s.from.began[m.name] = true
	s.basis.list = append(s.basis.list, m)
}

// beginWith has an allocation begin with what a checkpoint has; or, as a fallback, begin anew with
// it where it is lost.
func (m *allocation) beginWith(ctx context.Context, c *Cluster, from *restored, g *checkpoint.Image, fallback bool) error {
	table, err := memfile.Create("dsm-places", g.Pages()*attach.PlaceBytes)
	if err != nil {
		return err
	}
	defer unix.Close(table)
	for first, places := range g.Tables() {
		if _, err := unix.Pwrite(table, places, int64(first*attach.PlaceBytes)); err != nil {
			return err
		}
	}
	if len(g.Files) == 0 && g.Memory.Begins == "" && !fallback {
		return nil // it is zeros
	}
	what := attach.Contents{Files: uint32(len(g.Files)), ID: from.id, Fallback: fallback}
	if what.First, err = c.giveForReading(ctx, g.Files); err != nil {
		return err
	}
	if what.Table, err = c.give(ctx, table); err != nil {
		return err
	}
	return m.begins(ctx, c, &what, ErrCheckpoint)
}

// begins tells the daemon with what the pages of an allocation begin. kind is what its error wraps.
func (m *allocation) begins(ctx context.Context, c *Cluster, what *attach.Contents, kind error) error {
	page := uint64(c.PageBytes())
	r, err := c.do(ctx, attach.Call{Op: attach.OpContents, Object: uint64(m.offset) / page, Count: uint64(m.bytes) / page, Payload: attach.AppendContents(nil, what)})
	if err == nil && r.Status != attach.StatusOK {
		err = fmt.Errorf("%w: the daemon of this node says: %s", kind, r.Payload)
	}
	return err
}

// openDirect opens a file for reads or writes past the page cache, where its file system can.
func openDirect(path string, flags int) (fd int, err error) {
	if fd, err = unix.Open(path, flags|unix.O_CLOEXEC|unix.O_DIRECT, 0); err != nil {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC, 0)
	}
	return fd, err
}

// giveForReading gives the daemon files that it reads pages from, past the page cache where the
// file system can. It returns the number of the first, which those of the others follow.
func (c *calls) giveForReading(ctx context.Context, paths []string) (first uint32, err error) {
	if err := c.giving.take(ctx, c); err != nil {
		return 0, err
	}
	defer c.giving.give()
	for i, path := range paths {
		fd, err := openDirect(path, unix.O_RDONLY)
		if err != nil {
			return 0, fmt.Errorf("%w: %w", ErrCheckpoint, &os.PathError{Op: "open", Path: path, Err: err})
		}
		number, err := c.giveNext(ctx, fd)
		unix.Close(fd)
		switch {
		case err != nil:
			return 0, err
		case i == 0:
			first = number
		case number != first+uint32(i):
			return 0, fmt.Errorf("%w: the daemon calls file %d of %d number %d, and the first %d: it is faulty", ErrCheckpoint, i+1, len(paths), number, first)
		}
	}
	return first, nil
}

// The variables that `dsmd run --checkpoint`, `--restore` and `--lost` set.
const (
	envCheckpoint = "DSM_CHECKPOINT"
	envEvery      = "DSM_CHECKPOINT_EVERY"
	envRestore    = "DSM_RESTORE"
	envLost       = "DSM_LOST"
)

// every is what `dsmd run --checkpoint` has asked for.
type every struct {
	dir   string // "": nothing
	after time.Duration
	state func() []byte // nil: SaveAtBarriers was not called
	last  time.Time     // rank 0: when the last one was taken, or the job began
}

// fromEnvironment notes what `dsmd run` asks for, and restores.
func (s *saves) fromEnvironment(ctx context.Context, c *Cluster) error {
	s.every = every{dir: os.Getenv(envCheckpoint), after: 10 * time.Minute, last: time.Now()}
	if text := os.Getenv(envEvery); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return fmt.Errorf("the environment has %s=%q, which is no time between checkpoints, such as 10m", envEvery, text)
		}
		s.every.after = d
	}
	if s.every.dir != "" && !filepath.IsAbs(s.every.dir) {
		return fmt.Errorf("the environment has %s=%q, which is not an absolute path", envCheckpoint, s.every.dir)
	}
	switch text := os.Getenv(envLost); text {
	case "", "error":
	case "checkpoint":
		s.fallback = true
	default:
		return fmt.Errorf("the environment has %s=%q, which is neither error nor checkpoint", envLost, text)
	}
	if path := os.Getenv(envRestore); path != "" {
		_, err := c.Restore(ctx, path)
		return err
	}
	return nil
}

// SaveAtBarriers lets Barrier take the checkpoints that `dsmd run --checkpoint DIR --every TIME`
// asks for: the first one that rank 0 comes to when the time has passed. state is called by each
// rank then, and what it returns at rank 0 is kept as by State; Restored returns it in the job that
// goes on. Every rank calls it before its first Barrier. From then on the directory is this job's,
// until the Cluster is closed. Without --checkpoint it does nothing.
//
// So a program can be stopped at any time and go on, if all that it needs is in shared memory and
// in state, at each Barrier of the Cluster. Other barriers and reductions take no checkpoints.
func (c *Cluster) SaveAtBarriers(state func() []byte) {
	c.saves.mu.Lock()
	defer c.saves.mu.Unlock()
	e := &c.saves.every
	if e.dir == "" {
		return
	}
	e.state = state
	// Rank 0 locks the directory for as long as the job may write there. If it cannot, the first
	// Barrier tries, and says why.
	if c.Rank() == 0 && c.saves.open(e.dir) != nil {
		e.last = time.Time{}
	}
}

// savesAt reports whether the ranks must agree at a barrier on whether to take a checkpoint, and
// whether this one finds that it is time.
func (s *saves) savesAt(now time.Time) (asks, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.every.state != nil, now.Sub(s.every.last) >= s.every.after
}

// meet is a barrier at which a checkpoint is taken if it is time.
func (s *saves) meet(ctx context.Context, c *Cluster, due bool) error {
	v := uint64(0)
	if due {
		v = 1
	}
	all, err := gatherAs(ctx, c, everybody, saveName+"due", v)
	if err != nil || all[0] == 0 {
		return err
	}
	s.mu.Lock()
	e := &s.every
	e.last = time.Now()
	dir, state := e.dir, e.state
	s.mu.Unlock()
	return c.Checkpoint(ctx, dir, State(state()))
}

// end gives up the lock of a directory.
func (s *saves) end() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.close()
}
