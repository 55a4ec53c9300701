package checkpoint

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Commit makes a checkpoint of parts that are finished: after it the manifest is there, for good.
// It sets Format and Version of m, and ID and Time if they are empty. It needs the lock.
//
// Preconditions: the sequence is higher than that of every manifest here, and the parts are in the
// directory with the sizes that m says. An incremental checkpoint has its base there, and its
// memories and parts begin with those of the base. Commit checks all of this, and writes nothing if
// something is missing.
//
// After an error the checkpoint is not there. If only the last step has failed, which makes the
// name durable, then it is there, and gone after a crash perhaps; it is whole in either case. The
// sequence is not to be used again: see Next.
func (s *Store) Commit(m *Manifest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := filepath.Join(s.dir, ManifestName(m.Sequence))
	if err := s.complete(m); err != nil {
		return fmt.Errorf("checkpoint: %s is not written: %w", path, err)
	}
	b, err := m.encode()
	if err != nil {
		return fmt.Errorf("checkpoint: %s is not written: %w", path, err)
	}
	temporary := path + tempSuffix
	if err := s.write(temporary, b); err != nil {
		_ = s.disk.remove(temporary) // Sweep removes it otherwise
		return err
	}
	// The names of the parts are durable before that of the manifest can be.
	if err := s.disk.syncDir(s.dir); err != nil {
		_ = s.disk.remove(temporary) // as above
		return writeError("make the parts durable in", s.dir, err)
	}
	if err := s.disk.rename(temporary, path); err != nil {
		_ = s.disk.remove(temporary) // as above
		return writeError("give its name to", path, err)
	}
	if err := s.disk.syncDir(s.dir); err != nil {
		return writeError("make durable that there is", path, err)
	}
	m.dir = s.dir
	return nil
}

// complete fills in what the caller left out, and checks the preconditions of Commit.
func (s *Store) complete(m *Manifest) error {
	if s.locked == nil {
		return ErrNotLocked
	}
	m.Format, m.Version = Format, Version
	if m.ID == "" {
		id := make([]byte, 16)
		_, _ = rand.Read(id) // never fails
		m.ID = hex.EncodeToString(id)
	}
	if m.Time.IsZero() {
		m.Time = time.Now()
	}
	m.Time = m.Time.UTC()
	if m.Memories == nil {
		m.Memories = []Memory{} // null means nothing to people
	}
	if m.Parts == nil {
		m.Parts = []Part{}
	}
	if err := m.check(); err != nil {
		return err
	}
	if damage := m.missing(s.dir); damage.Total > 0 {
		return damage.List[0].cause
	}
	c, err := scan(s.dir)
	if err != nil {
		return err
	}
	if n := len(c.manifests); n > 0 && c.manifests[n-1] >= m.Sequence {
		return fmt.Errorf("there is checkpoint %d already: take the sequence from Next", c.manifests[n-1])
	}
	if m.Base == 0 {
		return nil
	}
	return s.checkBase(m)
}

// checkBase checks that an incremental checkpoint continues its base.
func (s *Store) checkBase(m *Manifest) error {
	base, err := s.load(m.Base)
	if err != nil {
		return fmt.Errorf("the checkpoint that it is incremental to cannot be used, write a whole one: %w", err)
	}
	switch {
	case base.PageBytes != m.PageBytes:
		return fmt.Errorf("its pages have %d bytes and those of its base %d: write a whole one", m.PageBytes, base.PageBytes)
	case len(m.Memories) < len(base.Memories) || !slices.Equal(base.Memories, m.Memories[:len(base.Memories)]):
		return fmt.Errorf("its memories do not begin with those of its base, %s: write a whole one", base.Path())
	case len(m.Parts) < len(base.Parts) || !slices.Equal(base.Parts, m.Parts[:len(base.Parts)]):
		return fmt.Errorf("its parts do not begin with those of its base, %s", base.Path())
	}
	if more := m.Parts[len(base.Parts):]; len(more) > 0 && more[0].Sequence != m.Sequence {
		return fmt.Errorf("part %s is neither its own nor its base's, %s", more[0].File, base.Path())
	}
	return nil
}

// write makes a durable file. What an earlier attempt has left under the name is removed.
func (s *Store) write(path string, b []byte) (err error) {
	if err := s.disk.remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return writeError("remove", path, err)
	}
	f, err := s.disk.create(path)
	if err != nil {
		return writeError("create", path, err)
	}
	err = writeAll(f, b, 0)
	if err == nil {
		err = f.sync()
	}
	// A file system may tell only now that it could not write.
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return writeError("write", path, err)
	}
	return nil
}

// Sweep removes all checkpoints but the newest ones, of which it keeps so many, at least 1, and
// those that are used, which are paths of manifests, here or elsewhere. Then it removes the parts
// that none of those needs, and what attempts have left that failed. It needs the
// lock, and no rank may be writing a part. The caller calls it between checkpoints.
//
// It removes nothing if a checkpoint that is to stay cannot be used, because then an older one may
// be what the user needs. A crash, or an error, leaves checkpoints that are whole, and the next
// Sweep does the rest.
func (s *Store) Sweep(keep int, used ...string) error {
	if keep < 1 {
		return fmt.Errorf("checkpoint: %d checkpoints are to be kept in %s, want at least 1", keep, s.dir)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locked == nil {
		return fmt.Errorf("%w: %s", ErrNotLocked, s.dir)
	}
	c, err := scan(s.dir)
	if err != nil {
		return err
	}
	stay, old := s.divide(c.manifests, keep, used)
	needed := map[string]bool{}
	for _, sequence := range stay {
		m, err := s.load(sequence)
		if err != nil {
			return fmt.Errorf("checkpoint: nothing is removed in %s: move this away, or repair it: %w", s.dir, err)
		}
		if damage := m.missing(s.dir); damage.Total > 0 {
			return fmt.Errorf("checkpoint: nothing is removed in %s: move %s away, or repair it: %w", s.dir, m.Path(), damage)
		}
		for _, p := range m.Parts {
			needed[p.File] = true
		}
	}
	if err := s.removeManifests(old); err != nil {
		return err
	}
	unneeded := slices.DeleteFunc(c.parts, func(name string) bool { return needed[name] })
	return s.removeAll(slices.Concat(unneeded, c.temporary))
}

// divide tells checkpoints that stay from old ones.
func (s *Store) divide(all []uint64, keep int, used []string) (stay, old []uint64) {
	var use []os.FileInfo
	for _, path := range used {
		if info, err := os.Stat(path); err == nil { // else nobody can use it
			use = append(use, info)
		}
	}
	for i, sequence := range all {
		info, err := os.Stat(filepath.Join(s.dir, ManifestName(sequence)))
		same := func(other os.FileInfo) bool { return err == nil && os.SameFile(info, other) }
		if i >= len(all)-keep || slices.ContainsFunc(use, same) {
			stay = append(stay, sequence)
		} else {
			old = append(old, sequence)
		}
	}
	return stay, old
}

// removeManifests removes manifests, durably, while those that stay are durable.
func (s *Store) removeManifests(sequences []uint64) error {
	if err := s.disk.syncDir(s.dir); err != nil {
		return writeError("make checkpoints durable in", s.dir, err)
	}
	if len(sequences) == 0 {
		return nil
	}
	for _, sequence := range sequences {
		path := filepath.Join(s.dir, ManifestName(sequence))
		if err := s.disk.remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return writeError("remove", path, err)
		}
	}
	if err := s.disk.syncDir(s.dir); err != nil {
		return writeError("make durable that checkpoints were removed in", s.dir, err)
	}
	return nil
}

// removeAll removes files that nobody needs. It goes on after an error, and returns the first.
func (s *Store) removeAll(names []string) (first error) {
	for _, name := range names {
		path := filepath.Join(s.dir, name)
		err := s.disk.remove(path)
		if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EISDIR) {
			continue // a directory is not ours
		}
		if first == nil {
			first = writeError("remove", path, err)
		}
	}
	return first
}
