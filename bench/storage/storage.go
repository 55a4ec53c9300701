package storage

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/bench/table"
	"dsmd/dsm"
)

const (
	// inFlight transfers of piece bytes each are on their way to a file of the floor at a time.
	inFlight = 8
	piece    = 256 << 10
	// words lie on a page of the least size. Every changedPage-th page is changed before the second
	// checkpoint.
	words, changedPage = 512, 10
)

// Saved is what one rank has measured of saving.
type Saved struct {
	Whole       float64 `json:"whole_seconds"`       // until all is on the disk
	Moment      float64 `json:"moment_seconds"`      // until programs may store again
	Incremental float64 `json:"incremental_seconds"` // with a tenth of the pages changed
	// Store is the longest time that a store took while pages were being saved, and Stores the
	// median; one on each tenth page.
	Store  float64 `json:"longest_store_seconds"`
	Stores float64 `json:"median_store_seconds"`
	// Own is the longest time that a store took beyond what its thread and the daemon's reactor
	// waited for a processor meanwhile. Where both waited at a time, that counts twice.
	Own float64 `json:"longest_store_own_seconds"`
}

// Save fills bytes of shared memory, and saves them in a directory: at once, and again after some
// have changed, and a third time while they are stored to. All ranks call it.
func Save(ctx context.Context, c *dsm.Cluster, dir string, bytes int) (s Saved, err error) {
	data, mine, err := memory(ctx, c, bytes)
	if err != nil {
		return s, err
	}
	for i := range mine {
		mine[i] = uint64(i + 1)
	}
	if err := c.Barrier(ctx); err != nil {
		return s, err
	}
	start := time.Now()
	saving, err := c.BeginCheckpoint(ctx, dir)
	if err != nil {
		return s, err
	}
	s.Moment = time.Since(start).Seconds()
	if err := saving.Wait(ctx); err != nil {
		return s, err
	}
	s.Whole = time.Since(start).Seconds()
	for i := 0; i < len(mine); i += changedPage * words {
		mine[i]++
	}
	if err := c.Barrier(ctx); err != nil {
		return s, err
	}
	start = time.Now()
	if err := c.Checkpoint(ctx, dir); err != nil {
		return s, err
	}
	s.Incremental = time.Since(start).Seconds()
	if saving, err = c.BeginCheckpoint(ctx, dir, dsm.Whole()); err != nil {
		return s, err
	}
	if err := s.storeTo(c.Rank(), mine); err != nil {
		return s, err
	}
	if err := saving.Wait(ctx); err != nil {
		return s, err
	}
	return s, dsm.Free(ctx, c, data)
}

// memory is the shared memory, and this rank's part of it.
func memory(ctx context.Context, c *dsm.Cluster, bytes int) (data, mine []uint64, err error) {
	data, err = dsm.Alloc[uint64](ctx, c, "storage/data", bytes/8)
	if err != nil {
		return nil, nil, err
	}
	pages := len(data) / words
	return data, data[pages*c.Rank()/c.Size()*words : pages*(c.Rank()+1)/c.Size()*words], nil
}

// Restored is what one rank has measured of restoring.
type Restored struct {
	Ready float64 `json:"ready_seconds"` // until the program has its memory
	Read  float64 `json:"read_seconds"`  // until it has then read all of its part
}

// Restore begins with what Save has saved last, and reads it. All ranks call it.
func Restore(ctx context.Context, c *dsm.Cluster, dir string, bytes int) (r Restored, err error) {
	start := time.Now()
	if _, err := c.Restore(ctx, dir); err != nil {
		return r, err
	}
	_, mine, err := memory(ctx, c, bytes)
	if err != nil {
		return r, err
	}
	r.Ready = time.Since(start).Seconds()
	if err := c.Barrier(ctx); err != nil {
		return r, err
	}
	start = time.Now()
	for i := words - 1; i < len(mine); i += words {
		if mine[i] != uint64(i+1) {
			return r, fmt.Errorf("word %d of rank %d is %d, want %d", i, c.Rank(), mine[i], i+1)
		}
		// What was stored before the last checkpoint began is in it, and what was stored while it
		// was written is not.
		first := i - (words - 1)
		want := uint64(first + 1)
		if first%(changedPage*words) == 0 {
			want++
		}
		if mine[first] != want {
			return r, fmt.Errorf("word %d of rank %d is %d, want %d", first, c.Rank(), mine[first], want)
		}
	}
	r.Read = time.Since(start).Seconds()
	return r, c.Barrier(ctx)
}

// Floor writes bytes to files in a directory, in as many files as there are nodes, and reads them
// again, past the page cache, unless ctx ends. It returns the seconds that each takes; what is
// written is durable.
func Floor(ctx context.Context, dir string, bytes, files int) (write, read float64, err error) {
	var names []string
	for f := range files {
		names = append(names, filepath.Join(dir, fmt.Sprintf("floor-%d", f)))
	}
	defer func() {
		for _, name := range names {
			os.Remove(name)
		}
	}()
	for _, seconds := range []*float64{&write, &read} {
		start, failures := time.Now(), make(chan error, files)
		for _, name := range names {
			go func() { failures <- move(ctx, name, bytes/files, seconds == &write) }()
		}
		for range names {
			if failed := <-failures; failed != nil {
				err = failed
			}
		}
		if *seconds = time.Since(start).Seconds(); err != nil {
			break
		}
	}
	return write, read, err
}

// move writes or reads a file, unless ctx ends.
func move(ctx context.Context, name string, bytes int, write bool) error {
	flags := unix.O_RDONLY
	if write {
		flags = unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC
	}
	fd, err := unix.Open(name, flags|unix.O_DIRECT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	transfer := unix.Pread
	if write {
		transfer = unix.Pwrite
	}
	var movers []func(int) (uint64, error)
	for range inFlight {
		buf, words, err := buffer(piece)
		if err != nil {
			return err
		}
		defer unix.Munmap(buf)
		for i := range words {
			words[i] = uint64(i + 1)
		}
		movers = append(movers, func(part int) (uint64, error) {
			if ctx.Err() != nil {
				return 0, ctx.Err()
			}
			_, err := transfer(fd, buf, int64(part)*piece)
			return 0, err
		})
	}
	_, err = together((bytes+piece-1)/piece, nil, movers)
	if err == nil && write {
		err = unix.Fdatasync(fd)
	}
	if err != nil {
		return cmp.Or(context.Cause(ctx), fmt.Errorf("the floor in %s: %w", name, err))
	}
	return nil
}

// A Run is what was measured in one run: the slowest rank counts.
type Run struct {
	FloorWrite float64 `json:"floor_write_seconds"`
	FloorRead  float64 `json:"floor_read_seconds"`
	Saved
	Restored
}

// A Result is what `bench storage` reports.
type Result struct {
	Nodes int   `json:"nodes"`
	Bytes int   `json:"bytes"`
	Runs  []Run `json:"runs"`
}

// Text is the result for people.
func (r *Result) Text() string {
	t := table.Table{Heads: []string{"", "median", "least", "most", "of the floor"}}
	rate := func(name string, of func(Run) float64, bytes int, floor func(Run) float64) {
		t.Add(r.line(name, "MB/s", of, floor, func(seconds float64) float64 { return float64(bytes) / 1e6 / seconds })...)
	}
	span := func(name string, of func(Run) float64) {
		t.Add(r.line(name, "ms", of, nil, func(seconds float64) float64 { return 1e3 * seconds })...)
	}
	write, read := func(x Run) float64 { return x.FloorWrite }, func(x Run) float64 { return x.FloorRead }
	rate("floor: direct writes", write, r.Bytes, nil)
	rate("checkpoint, whole", func(x Run) float64 { return x.Whole }, r.Bytes, write)
	span("  until programs may store", func(x Run) float64 { return x.Moment })
	span("checkpoint, a tenth changed", func(x Run) float64 { return x.Incremental })
	span("  a store meanwhile, median", func(x Run) float64 { return x.Stores })
	span("  a store meanwhile, longest", func(x Run) float64 { return x.Store })
	span("  the longest but for waits for a core", func(x Run) float64 { return x.Own })
	rate("floor: direct reads", read, r.Bytes, nil)
	rate("restore, read in order", func(x Run) float64 { return x.Read }, r.Bytes, read)
	span("  until programs have memory", func(x Run) float64 { return x.Ready })
	return t.Text()
}

// line is a row of the table.
func (r *Result) line(name, unit string, of, floor func(Run) float64, show func(float64) float64) []any {
	var values, ratios []float64
	for _, x := range r.Runs {
		values = append(values, show(of(x)))
		if floor != nil {
			ratios = append(ratios, floor(x)/of(x))
		}
	}
	ratio := table.None
	if floor != nil {
		ratio = fmt.Sprintf("%.2f (%.2f–%.2f)", table.Median(ratios), slices.Min(ratios), slices.Max(ratios))
	}
	cell := func(value float64) string { return table.Significant(value) + " " + unit }
	return []any{name, cell(table.Median(values)), cell(slices.Min(values)), cell(slices.Max(values)), ratio}
}
