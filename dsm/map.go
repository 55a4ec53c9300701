package dsm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"dsmd/internal/attach"

	"golang.org/x/sys/unix"
)

// MapOption is an option of Map.
type MapOption func(*mapOptions)

// mapOptions are what the options of Map say.
type mapOptions struct {
	mode   mapMode
	at     fileAt
	rank   int   // onRank: which
	unit   int64 // striped: bytes of each file in turn
	offset int64
	length int // elements; -1: to the end
}

// mapMode is what becomes of stores.
type mapMode uint8

const (
	forReading mapMode = iota
	private
	writeBack
)

// fileAt is where the file is, or the files are.
type fileAt uint8

const (
	everywhere fileAt = iota
	onRank
	striped
)

// Private lets programs store to a mapping. The file stays as it is, and other jobs that map it do
// not see what was stored. A Checkpoint has that: after Restore, a Map of the same path and Part
// gives the file's contents with what was stored over them, on any number of nodes, with Private or
// for reading.
func Private() MapOption { return func(o *mapOptions) { o.mode = private } }

// WriteBack lets programs store to a mapping. Sync writes what has changed to the file, and Free
// does. Memory that gets its contents from Restore is not mapped so: ErrMismatch.
func WriteBack() MapOption { return func(o *mapOptions) { o.mode = writeBack } }

// OnRank says that only the node of this rank has the file. The others get its pages from there.
func OnRank(rank int) MapOption {
	return func(o *mapOptions) { o.at, o.rank = onRank, rank }
}

// Striped says that each node has a file of that path on a disk of its own. They have the same
// length. The mapping has the first unit bytes of the first node's file, then as many of the
// second's, and so on, and then what follows of the first's. Nodes are in the order of their lowest
// ranks. unit is a multiple of the page size (Cluster.PageBytes), and the files' length one of
// unit. With the files' length as unit, they follow one another whole. There are at most 484 files.
func Striped(unit int64) MapOption {
	return func(o *mapOptions) { o.at, o.unit = striped, unit }
}

// Part maps n elements of the file from the byte offset on, a multiple of the page size
// (Cluster.PageBytes). With Striped it is a part of each file, and n must be -1. n of -1 is as many
// as there are.
func Part(offset int64, n int) MapOption {
	return func(o *mapOptions) { o.offset, o.length = offset, n }
}

// mapping is the file, or files, that an allocation begins with.
type mapping struct {
	mapOptions
	path    string // absolute
	fd      int    // here, with O_DIRECT if the file system can; -1: another node has it
	bytes   int64  // of each file, from offset on, that are mapped
	end     int64  // of each file
	own     bool   // the memory is the job's alone, and holds something else than the files
	nodes   []int  // that have a file each; nil: all have the only one
	cluster *Cluster
}

// Map returns the contents of a file as shared memory, at the same address in every program. Every
// rank calls it, with the same path and options, and it waits for all. Goroutines of a rank map one
// after the other, in the same order as on the other ranks. path is what Alloc calls name: made
// absolute it names the memory, and a second Map in the same process returns the same slice and
// needs a second Free. As it begins with Everywhere, all jobs of the cluster that map a file share
// it. Jobs do not that map it with Private, or that get its contents from Restore.
//
// Nothing is read before it is touched. All nodes have the file at path, on a file system that they
// share, unless OnRank or Striped says else. A page comes from the file, past the page cache, when
// somebody touches it first, and then from node to node as all shared memory does. Pages that
// nobody has changed need not be kept: where there is little memory (--memory) they are read again.
// So a file may be larger than all nodes together have memory for.
//
// Without Private or WriteBack the memory is for reading: a store ends the program with Go's report
// of an unexpected fault address. Programs store values as they are in memory, so a file is for
// machines of one byte order and for types of one layout, which nothing checks. The file must not
// be changed otherwise while it is mapped: who reads a page then may see the old or the new. If a
// file gets shorter than it was, or can't be read, the daemon that reads it ends, and says so; if
// the node that alone has a file is lost, so do those that want pages of it.
//
// Errors: ErrFile (there is no such file, its length is no multiple of T's, or 0, an option does
// not fit; it wraps an error of package os where there is one), ErrType, ErrMismatch (ranks differ,
// or see Restore), ErrCheckpoint (see Restore), ErrNoSpace, ctx's, ErrNodeLost, ErrClosed, ErrLost.
func Map[T any](ctx context.Context, c *Cluster, path string, opts ...MapOption) ([]T, error) {
	f := &mapping{mapOptions: mapOptions{length: -1}, fd: -1, cluster: c}
	for _, opt := range opts {
		opt(&f.mapOptions)
	}
	l, err := layoutOf[T]()
	var m *allocation
	if err == nil {
		m, err = f.mapped(ctx, path, l)
	}
	if err != nil {
		return nil, failure(fmt.Sprintf("Map %q", path), err)
	}
	return sliceAt[T](c.region.at(m.offset), m.count), nil
}

// mapped makes the memory, together with all ranks.
func (f *mapping) mapped(ctx context.Context, path string, l layout) (*allocation, error) {
	c := f.cluster
	if err := c.err(); err != nil {
		return nil, err
	}
	if err := c.mapping.take(ctx, c.calls); err != nil {
		return nil, err
	}
	defer c.mapping.give()
	n, err := f.open(ctx, path, l)
	if failed := agree(ctx, c, vote{ErrFile, "the file that it maps, its length, or the options", f.hash(l, n), err}); failed != nil {
		return nil, errors.Join(failed, f.close())
	}
	m, err := c.allocate(ctx, &allocating{file: f}, f.path, l, n)
	if err == nil && m.file != f { // it was mapped before
		err = f.close()
	}
	// No rank touches a page before the nodes know where it is.
	failed := agree(ctx, c, vote{ErrFile, "the end of Map", 0, err})
	if failed == nil {
		return m, nil
	}
	if err == nil {
		// If this fails the cluster has ended, and all memory with it.
		return nil, errors.Join(failed, m.extent(c).free(context.WithoutCancel(ctx), c))
	}
	return nil, errors.Join(failed, f.close())
}

// hash is the same for ranks that mean the same.
func (f *mapping) hash(l layout, n int) uint64 {
	return attach.NameHash(attach.NameType, fmt.Sprint(f.path, f.mapOptions, l, n, f.bytes))
}

// open finds the files, and returns how many elements they have.
func (f *mapping) open(ctx context.Context, path string, l layout) (n int, err error) {
	c := f.cluster
	type at struct{ Node uint64 }
	ranks, err := gather(ctx, c, fileName+"nodes", at{uint64(c.welcome.Node)})
	if err != nil {
		return 0, err
	}
	node := func(rank int) int { return int(ranks[rank].Node) }
	type size struct{ Bytes, Failed uint64 }
	var mine size
	if f.path, err = filepath.Abs(path); err == nil {
		err = f.check(len(ranks), l)
	}
	if err == nil {
		f.nodes = f.which(node)
		var bytes int64
		if f.nodes == nil || slices.Contains(f.nodes, c.Node()) {
			bytes, err = f.openHere()
		}
		mine.Bytes = uint64(bytes)
	}
	if err != nil {
		mine.Failed = 1 // and the others wait for this rank
	}
	sizes, gathered := gather(ctx, c, fileName+"sizes", mine)
	switch {
	case err != nil:
		return 0, err
	case gathered != nil:
		return 0, gathered
	}
	return f.measure(l, func(rank int) (bytes int64, failed, has bool) {
		return int64(sizes[rank].Bytes), sizes[rank].Failed != 0, f.nodes == nil || slices.Contains(f.nodes, node(rank))
	})
}

// which are the nodes that have a file each; nil: all have the only one.
func (f *mapping) which(node func(rank int) int) (nodes []int) {
	switch f.at {
	case onRank:
		return []int{node(f.rank)}
	case striped:
		for rank := range f.cluster.Size() {
			if n := node(rank); !slices.Contains(nodes, n) {
				nodes = append(nodes, n)
			}
		}
	}
	return nodes
}

// check tells what is wrong with the options.
func (f *mapping) check(ranks int, l layout) error {
	page := int64(f.cluster.PageBytes())
	switch {
	case l.size == 0:
		return fmt.Errorf("%w: %v has no bytes", ErrFile, l)
	case f.offset < 0 || f.offset%page != 0:
		return fmt.Errorf("%w: Part begins at byte %d, which is no multiple of the page size, %d bytes", ErrFile, f.offset, page)
	case f.length < -1 || f.length == 0 || f.at == striped && f.length != -1:
		return fmt.Errorf("%w: Part has %d elements; -1 is all, and the only number with Striped", ErrFile, f.length)
	case f.at == onRank && (f.rank < 0 || f.rank >= ranks):
		return fmt.Errorf("%w: OnRank(%d), and there are %d ranks, from 0 on", ErrFile, f.rank, ranks)
	case f.at == striped && (f.unit <= 0 || f.unit%page != 0):
		return fmt.Errorf("%w: Striped(%d), which is no multiple of the page size, %d bytes", ErrFile, f.unit, page)
	}
	return nil
}

// openHere opens the file of this node, and returns its length.
func (f *mapping) openHere() (int64, error) {
	flags := os.O_RDONLY
	if f.mode == writeBack {
		flags = os.O_RDWR
	}
	fd, err := openDirect(f.path, flags)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrFile, &os.PathError{Op: "open", Path: f.path, Err: err})
	}
	f.fd = fd
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrFile, &os.PathError{Op: "stat", Path: f.path, Err: err})
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0, fmt.Errorf("%w: %s is no regular file", ErrFile, f.path)
	}
	return st.Size, nil
}

// measure decides how many bytes of each file are mapped, and returns how many elements all have.
func (f *mapping) measure(l layout, of func(rank int) (bytes int64, failed, has bool)) (n int, err error) {
	length := int64(-1)
	for rank := range f.cluster.Size() {
		bytes, failed, has := of(rank)
		switch {
		case failed:
			return 0, fmt.Errorf("%w: rank %d could not open it; its own error says why", ErrFile, rank)
		case !has:
		case length >= 0 && bytes != length:
			return 0, fmt.Errorf("%w: the file has %d bytes at rank %d, and %d at another: they must share the file, or say OnRank; with Striped all are as long",
				ErrFile, bytes, rank, length)
		default:
			length = bytes
		}
	}
	f.end, f.bytes = length, length-f.offset
	size, files := int64(l.size), int64(max(len(f.nodes), 1))
	if len(f.nodes) > attach.MaxReaders {
		return 0, fmt.Errorf("%w: Striped over the files of %d nodes, and at most %d can have one: map it in a job of fewer nodes", ErrFile, len(f.nodes), attach.MaxReaders)
	}
	if f.length >= 0 {
		if f.bytes/size < int64(f.length) {
			return 0, fmt.Errorf("%w: it has %d bytes, and %d elements of %d bytes are wanted from byte %d on", ErrFile, length, f.length, size, f.offset)
		}
		f.bytes = int64(f.length) * size
	}
	switch {
	case f.bytes <= 0:
		return 0, fmt.Errorf("%w: it has %d bytes, none of them from byte %d on", ErrFile, length, f.offset)
	case f.bytes*files%size != 0:
		return 0, fmt.Errorf("%w: %d bytes are no whole number of elements of %d bytes (%v)", ErrFile, f.bytes*files, size, l)
	case f.at == striped && f.bytes%f.unit != 0:
		return 0, fmt.Errorf("%w: each file has %d bytes, which is no multiple of the %d of Striped", ErrFile, f.bytes, f.unit)
	}
	return int(f.bytes * files / size), nil
}

// close closes the file, if it is open here.
func (f *mapping) close() error {
	if f.fd < 0 {
		return nil
	}
	fd := f.fd
	f.fd = -1
	return unix.Close(fd)
}

// beginWithFile tells the daemon where the pages of a mapping are.
func (m *allocation) beginWithFile(ctx context.Context, c *Cluster) error {
	f, page := m.file, int64(c.PageBytes())
	what := attach.Contents{Offset: uint64(f.offset), Bytes: uint64(f.bytes), Stripe: uint64(f.unit / page), Written: f.mode == writeBack}
	for _, node := range f.nodes {
		what.Readers = append(what.Readers, uint16(node))
	}
	if f.fd >= 0 {
		number, err := c.give(ctx, f.fd)
		if err != nil {
			return err
		}
		what.First, what.Files = number, 1
	}
	if err := m.begins(ctx, c, &what, ErrFile); err != nil {
		return err
	}
	if f.mode == writeBack {
		return nil // its length and its end are this program's matter
	}
	return f.close()
}

// begins says, in the manifest of a checkpoint, with what the pages begin that it lacks; "": zeros.
func (f *mapping) begins() string {
	if f == nil || f.mode == writeBack { // what is in that file changes
		return ""
	}
	if f.at == striped {
		return fmt.Sprintf("its files from byte %d on, %d bytes of each in turn", f.offset, f.unit)
	}
	return fmt.Sprintf("its file from byte %d on", f.offset)
}
