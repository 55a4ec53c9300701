package dsm

import (
	"fmt"
	"os"
	"path/filepath"

	"dsmd/internal/checkpoint"
)

// board is where ranks tell each other what is too long for a reduction. Between post and read, and
// between read and the next post, is a barrier.
type board interface {
	// post shows the other ranks some bytes, as many as they show.
	post(b []byte) error
	// read returns what a rank has posted last.
	read(rank, bytes int) ([]byte, error)
	// clear takes down what this rank has posted, when all have read it.
	clear()
}

// fileBoard is a board in the directory of a checkpoint, which all ranks share.
type fileBoard struct{ s *Saving }

func (f fileBoard) name(rank int) string {
	return filepath.Join(f.s.dir, checkpoint.PartName(f.s.plan.Sequence, rank)+".tmp")
}

func (f fileBoard) post(b []byte) error { return os.WriteFile(f.name(f.s.c.Rank()), b, 0o600) }

func (f fileBoard) read(rank, bytes int) ([]byte, error) {
	b, err := os.ReadFile(f.name(rank))
	if err == nil && len(b) != bytes {
		err = fmt.Errorf("%s has %d bytes, %d are wanted", f.name(rank), len(b), bytes)
	}
	return b, err
}

func (f fileBoard) clear() {
	_ = os.Remove(f.name(f.s.c.Rank())) // else the next checkpoint does
}

// memoryBoard is a board in shared memory. A page of it may be lost with a node.
type memoryBoard struct {
	c   *Cluster
	all []byte // of each rank as much
}

func (m memoryBoard) part(rank int) []byte {
	n := len(m.all) / m.c.Size()
	return m.all[rank*n:][:n]
}

func (m memoryBoard) post(b []byte) error {
	return Guard(func() { copy(m.part(m.c.Rank()), b) })
}

func (m memoryBoard) read(rank, bytes int) ([]byte, error) {
	b := make([]byte, bytes)
	return b, Guard(func() { copy(b, m.part(rank)) })
}

func (m memoryBoard) clear() {}
