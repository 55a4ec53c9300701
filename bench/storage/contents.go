package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// fillBytes are written to the file at a time.
const fillBytes = 1 << 20

// ErrNoDisk is returned for a directory that is no place to measure a disk.
var ErrNoDisk = errors.New("no disk that can be measured")

// Contents are a file of random words, and what its pages add up to.
type Contents struct {
	Path string
	sums []uint64 // by page
}

// Fill writes so many MiB to a new file, past the page cache, until they are durable, unless ctx
// ends. Errors: ErrNoDisk, for a directory in memory or on a file system without direct input and
// output.
func Fill(ctx context.Context, path string, mib int) (*Contents, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &fs); err != nil {
		return nil, fmt.Errorf("asking for the file system of %s: %w", path, err)
	}
	if fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC {
		return nil, fmt.Errorf("%w: %s is in a file system that lies in memory (tmpfs); name a directory on a disk", ErrNoDisk, path)
	}
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_DIRECT|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("%w: the file system of %s has no direct input and output (O_DIRECT); name a directory on another, for instance ext4 or XFS", ErrNoDisk, path)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	buf, words, err := buffer(fillBytes)
	if err != nil {
		return nil, err
	}
	defer unix.Munmap(buf)
	c := &Contents{Path: path}
	random := rand.NewPCG(1, 2)
	for at := range mib {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		for i := range words {
			words[i] = random.Uint64()
		}
		for i := 0; i < len(words); i += pageWords {
			c.sums = append(c.sums, sum(words[i:i+pageWords]))
		}
		if n, err := unix.Pwrite(fd, buf, int64(at)*fillBytes); err != nil || n < len(buf) {
			return nil, &os.PathError{Op: "write", Path: path, Err: cmp.Or(err, io.ErrShortWrite)}
		}
	}
	if err := unix.Fsync(fd); err != nil {
		return nil, &os.PathError{Op: "fsync", Path: path, Err: err}
	}
	return c, nil
}

// Pages are those of the file.
func (c *Contents) Pages() int { return len(c.sums) }

// Check is whether a reading got what is in the file.
func (c *Contents) Check(o Order, r Reading) error {
	want := uint64(0)
	if o.random() {
		for _, page := range o.pages() {
			want += weighed(page, c.sums[page])
		}
	} else {
		for page, s := range c.sums {
			want += weighed(page, s)
		}
	}
	if r.Sum != want {
		return fmt.Errorf("%w: the words add up to %#x, want %#x", ErrWrongSum, r.Sum, want)
	}
	return nil
}

// Cache has the page cache hold all of the file, or none of it.
func (c *Contents) Cache(warm bool) error {
	f, err := os.Open(c.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	if warm {
		if _, err := io.Copy(io.Discard, f); err != nil {
			return fmt.Errorf("reading a file into the page cache: %w", err)
		}
		return nil
	}
	// Pages that are not on the disk yet would stay.
	if err := f.Sync(); err != nil {
		return err
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return &os.PathError{Op: "fadvise", Path: c.Path, Err: err}
	}
	return nil
}
