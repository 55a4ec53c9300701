package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

// Store is a directory of checkpoints. Its methods may be called from any goroutine.
type Store struct {
	dir  string
	disk disk

	mu     sync.Mutex // held by those that change the directory, and by Lock
	locked *os.File   // the lock file while this Store holds the lock
	// highest is the highest sequence of a file that Next has seen here. Such a file may have been
	// removed, while a rank of its job still lives somewhere, and ends.
	highest uint64
}

// Open opens a directory that exists, for reading or writing.
func Open(dir string) (*Store, error) {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("checkpoint: the directory %s does not exist: is the name right, and the disk mounted on this machine? (%w)", dir, fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", readError("look at", dir, err))
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("checkpoint: %s is no directory: name the one that has the checkpoints", dir)
	}
	return &Store{dir: dir, disk: realDisk{}}, nil
}

// Create opens a directory for writing, and makes it if need be, for this user only. What is above
// it must exist.
func Create(dir string) (*Store, error) {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return Open(dir)
	}
	if err != nil {
		return nil, writeError("make the directory", dir, err)
	}
	if err := (realDisk{}).syncDir(filepath.Dir(dir)); err != nil {
		return nil, writeError("make durable that there is", dir, err)
	}
	return Open(dir)
}

// Dir is the directory.
func (s *Store) Dir() string { return s.dir }

// Lock makes this Store the only one, of all jobs, that changes the directory. One rank of a job
// locks it, for as long as the job writes here, and calls Next, Commit and Sweep. The error wraps
// ErrLocked if another job, or another Store, holds the lock. A lock ends with its process, too.
// unlock may be called more than once.
func (s *Store) Lock() (unlock func() error, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := filepath.Join(s.dir, lockName)
	if s.locked != nil {
		return nil, fmt.Errorf("%w: this job has locked %s before", ErrLocked, path)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, writeError("open", path, err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		note(f)
		s.locked = f
		return s.unlock(f), nil
	}
	defer f.Close() // nothing was written through it
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("%w: %s is locked%s: name another directory, or wait until that job ends", ErrLocked, path, holder(f))
	}
	return nil, fmt.Errorf("checkpoint: lock %s: %w: does the file system have locks (flock)? If not, name a directory of another", path, os.NewSyscallError("flock", err))
}

func (s *Store) unlock(f *os.File) func() error {
	return func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.locked != f {
			return nil
		}
		s.locked = nil
		return f.Close()
	}
}

// note writes down who holds the lock. That helps people, and nobody depends on it.
func note(f *os.File) {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	text := fmt.Sprintf("process %d on %s, since %s\n", os.Getpid(), host, time.Now().UTC().Format(time.RFC3339))
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(text), 0)
	}
}

// holder is who holds the lock, as far as the file says so.
func holder(f *os.File) string {
	b := make([]byte, 200)
	n, err := f.ReadAt(b, 0)
	if n == 0 || err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	text := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, string(b[:n]))
	return " by " + text
}

// Next is the sequence number of the next checkpoint: higher than that of any file that is here, or
// was when Next was called before, so that no attempt that failed can be mixed up with it. It needs
// the lock.
func (s *Store) Next() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locked == nil {
		return 0, fmt.Errorf("%w: %s", ErrNotLocked, s.dir)
	}
	c, err := scan(s.dir)
	if err != nil {
		return 0, err
	}
	if c.highest >= MaxSequence {
		return 0, fmt.Errorf("checkpoint: %s has a file of sequence %d, and there is none above: move it away", s.dir, c.highest)
	}
	s.highest = max(s.highest, c.highest)
	return s.highest + 1, nil
}

// Summary is what List says of a checkpoint.
type Summary struct {
	Path        string    `json:"path"`
	Sequence    uint64    `json:"sequence"`
	ID          string    `json:"id"`
	Time        time.Time `json:"time"`
	Base        uint64    `json:"base"` // 0: whole
	Ranks       int       `json:"ranks"`
	Memories    int       `json:"memories"`
	MemoryBytes uint64    `json:"memory_bytes"`
	Parts       int       `json:"parts"`     // that it needs
	Bytes       uint64    `json:"bytes"`     // of those parts
	OwnBytes    uint64    `json:"own_bytes"` // of those of its own sequence
	// Problem is what is wrong with its manifest, or with the sizes of its parts. "": nothing. If
	// the manifest cannot be read, then only Path and Sequence are valid.
	Problem string `json:"problem,omitempty"`
}

// List lists the checkpoints, oldest first, also those that are damaged. It reads no pages.
func (s *Store) List() ([]Summary, error) {
	c, err := scan(s.dir)
	if err != nil {
		return nil, err
	}
	list := make([]Summary, 0, len(c.manifests))
	for _, sequence := range c.manifests {
		m, err := s.load(sequence)
		switch {
		case errors.Is(err, fs.ErrNotExist): // swept meanwhile
			continue
		case err != nil:
			list = append(list, Summary{Path: filepath.Join(s.dir, ManifestName(sequence)), Sequence: sequence, Problem: err.Error()})
			continue
		}
		x := Summary{
			Path: m.Path(), Sequence: m.Sequence, ID: m.ID, Time: m.Time, Base: m.Base, Ranks: m.Ranks,
			Memories: len(m.Memories), MemoryBytes: m.MemoryBytes(), Parts: len(m.Parts),
		}
		x.Bytes, x.OwnBytes = m.PartBytes()
		if damage := m.missing(s.dir); damage.Total > 0 {
			x.Problem = damage.List[0].String()
		}
		list = append(list, x)
	}
	return list, nil
}

// Latest loads the newest manifest. The error wraps ErrNone if there is none. If the newest cannot
// be used the error says which older one could be tried: Latest does not choose that by itself,
// because work would be lost.
func (s *Store) Latest() (*Manifest, error) {
	const attempts = 5 // whoever writes here may sweep between list and load
	for i := 0; ; i++ {
		c, err := scan(s.dir)
		if err != nil {
			return nil, err
		}
		if len(c.manifests) == 0 {
			return nil, fmt.Errorf("%w in %s: is it the directory that was written to?", ErrNone, s.dir)
		}
		m, err := s.loadOrExplain(c.manifests[len(c.manifests)-1])
		if !errors.Is(err, fs.ErrNotExist) || i == attempts {
			return m, err
		}
	}
}

// Load reads a manifest. path is a directory, and the newest checkpoint there is meant, or the file
// of one manifest. Errors wrap ErrNone, ErrDamaged, ErrVersion, or fs.ErrNotExist. The parts are
// not looked at.
func Load(path string) (*Manifest, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", readError("look at", path, err))
	}
	if info.IsDir() {
		s, err := Open(path)
		if err != nil {
			return nil, err
		}
		return s.Latest()
	}
	sequence, ok := parseManifestName(filepath.Base(path))
	if !ok {
		return nil, fmt.Errorf("checkpoint: %s is neither a directory nor a manifest: those are called as %s", path, ManifestName(12))
	}
	s, err := Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	return s.loadOrExplain(sequence)
}

// loadOrExplain is load, with an error that says what else could be tried.
func (s *Store) loadOrExplain(sequence uint64) (*Manifest, error) {
	m, err := s.load(sequence)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w%s", err, instead(s.older(sequence, nil)))
	}
	return m, nil
}

// load reads the manifest of a sequence.
func (s *Store) load(sequence uint64) (*Manifest, error) {
	path := filepath.Join(s.dir, ManifestName(sequence))
	f, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // it was only read
	if size > maxManifestBytes {
		return nil, fmt.Errorf("manifest %s: %w: it has %d bytes, want at most %d", path, ErrDamaged, size, maxManifestBytes)
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil {
		return nil, readError("read", path, err)
	}
	m, err := decodeManifest(b)
	if err == nil && m.Sequence != sequence {
		err = fmt.Errorf("%w: it is that of sequence %d: give it its name back, %s", ErrDamaged, m.Sequence, ManifestName(m.Sequence))
	}
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", path, err)
	}
	m.dir = s.dir
	return m, nil
}

// older is the path of the newest manifest before a sequence that can be used, as far as that shows
// without reading pages, and that needs none of the files. It is "" if there is none.
func (s *Store) older(sequence uint64, without map[string]bool) string {
	c, err := scan(s.dir)
	if err != nil {
		return ""
	}
	for _, n := range slices.Backward(c.manifests) {
		if n >= sequence {
			continue
		}
		m, err := s.load(n)
		if err != nil || slices.ContainsFunc(m.Parts, func(p Part) bool { return without[p.File] }) {
			continue
		}
		if m.missing(s.dir).Total == 0 {
			return m.Path()
		}
	}
	return ""
}

// missing lists the parts that are not in a directory, with the right size.
func (m *Manifest) missing(dir string) *DamageError {
	damage := &DamageError{Manifest: filepath.Join(dir, ManifestName(m.Sequence))}
	for _, p := range m.Parts {
		f, err := p.open(dir)
		if err != nil {
			damage.add(Damage{File: p.File, What: err.Error(), cause: err})
			continue
		}
		f.Close()
	}
	return damage
}
