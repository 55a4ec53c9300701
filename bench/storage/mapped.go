package storage

import (
	"context"
	"fmt"
	"os"

	"dsmd/dsm"
)

// reading is the rank that reads; storing is the one whose node has the file.
const (
	storing = 0
	reading = 1
	// Ranks are how many there are.
	Ranks = 2
)

// What a Task has a rank do.
const (
	TaskMap  = "map"  // all ranks map the file
	TaskRead = "read" // one reads it
	TaskFree = "free" // all end the mapping
)

// A Task is a step of reading a file as shared memory.
type Task struct {
	Do    string `json:"do"`
	Path  string `json:"path"`
	Order Order  `json:"order"`
	Sides Sides  `json:"sides"`
}

// A Member is one rank, and its daemon: the ids of the processes, and how pages move.
type Member struct {
	Program   int    `json:"program"`
	Daemon    int    `json:"daemon"`
	Trap      string `json:"trap"`
	Transport string `json:"transport"`
}

// Introduce says who this rank is.
func Introduce(c *dsm.Cluster) (Member, error) {
	daemon, err := Daemon(c.Rank())
	return Member{Program: os.Getpid(), Daemon: daemon, Trap: c.Trap(), Transport: c.Transport()}, err
}

// A Mapping is a file as shared memory, at one rank. The zero Mapping has none yet.
type Mapping struct{ words []uint64 }

// Do does a step. All ranks do the same. Who reads returns what was measured.
func (m *Mapping) Do(ctx context.Context, c *dsm.Cluster, t Task) (r Reading, err error) {
	switch {
	case t.Do == TaskMap:
		m.words, err = dsm.Map[uint64](ctx, c, t.Path, dsm.OnRank(storing))
		if want := t.Order.Pages * pageWords; err == nil && len(m.words) != want {
			err = fmt.Errorf("mapped are %d words, the file has %d", len(m.words), want)
		}
	case t.Do == TaskFree:
		err = dsm.Free(ctx, c, m.words)
		m.words = nil
	case t.Do == TaskRead && c.Rank() == reading:
		r, err = t.Sides.measure(m.reader(t.Order))
	}
	if err != nil {
		return r, fmt.Errorf("%s %s: %w", t.Do, t.Path, err)
	}
	return r, nil
}

// reader is how the pages are read.
func (m *Mapping) reader(o Order) func() (uint64, error) {
	if !o.random() {
		return func() (uint64, error) { return sumFrom(0, m.words), nil }
	}
	pages := o.pages()
	var readers []func(int) (uint64, error)
	for range o.Threads {
		readers = append(readers, func(page int) (uint64, error) {
			return sumFrom(page, m.words[page*pageWords:(page+1)*pageWords]), nil
		})
	}
	return func() (uint64, error) { return together(len(pages), pages, readers) }
}
