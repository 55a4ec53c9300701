package checkpoint

import (
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// sector is what a disk writes whole or not at all, in bytes.
const sector = 512

// recorder is a disk that does everything at once, waits for no real disk, and writes down what is
// done. From that it can make what a crash may have left at any point.
type recorder struct {
	log    []op
	inodes map[string]int // of the names that there are
	next   int
	fail   func(o *op) error // nil, or why an operation fails, which is not done then
	short  bool              // writes write half, and say no error
	remote bool              // names are synced by another machine, which syncs only its own
}

type kind int

const (
	opCreate kind = iota
	opWrite
	opTruncate
	opSync
	opClose
	opRename
	opRemove
	opSyncDir
)

// op is what was done to a file, or to a name.
type op struct {
	kind   kind
	inode  int
	name   string // of the directory
	to     string
	offset int64 // opTruncate: the size
	data   []byte
}

// do writes an operation down, unless it is to fail.
func (r *recorder) do(o op) error {
	if r.fail != nil {
		if err := r.fail(&o); err != nil {
			return err
		}
	}
	r.log = append(r.log, o)
	return nil
}

func (r *recorder) create(path string) (file, error) {
	f, err := realDisk{}.create(path)
	if err != nil {
		return nil, err
	}
	if r.inodes == nil {
		r.inodes = map[string]int{}
	}
	if err := r.do(op{kind: opCreate, inode: r.next, name: filepath.Base(path)}); err != nil {
		f.Close()
		os.Remove(path)
		return nil, err
	}
	r.inodes[filepath.Base(path)] = r.next
	r.next++
	return &recorded{f.(realFile), r, r.next - 1}, nil
}

func (r *recorder) rename(from, to string) error {
	a, b := filepath.Base(from), filepath.Base(to)
	if err := r.do(op{kind: opRename, inode: r.inodes[a], name: a, to: b}); err != nil {
		return err
	}
	r.inodes[b] = r.inodes[a]
	delete(r.inodes, a)
	return realDisk{}.rename(from, to)
}

func (r *recorder) remove(path string) error {
	name := filepath.Base(path)
	inode, ok := r.inodes[name]
	if !ok {
		inode = -1 // made by somebody else, or not there
	}
	if err := r.do(op{kind: opRemove, inode: inode, name: name}); err != nil {
		return err
	}
	delete(r.inodes, name)
	return realDisk{}.remove(path)
}

func (r *recorder) syncDir(string) error {
	if r.remote {
		return nil
	}
	return r.do(op{kind: opSyncDir})
}

// recorded is a file of a recorder.
type recorded struct {
	realFile
	r     *recorder
	inode int
}

func (f *recorded) WriteAt(b []byte, offset int64) (int, error) {
	half := b[:len(b)/2]
	if err := f.r.do(op{kind: opWrite, inode: f.inode, offset: offset, data: slices.Clone(b)}); err != nil {
		n, _ := f.realFile.WriteAt(half, offset)
		f.r.log = append(f.r.log, op{kind: opWrite, inode: f.inode, offset: offset, data: slices.Clone(half)})
		return n, err
	}
	if f.r.short {
		return f.realFile.WriteAt(half, offset)
	}
	return f.realFile.WriteAt(b, offset)
}

func (f *recorded) Truncate(size int64) error {
	if err := f.r.do(op{kind: opTruncate, inode: f.inode, offset: size}); err != nil {
		return err
	}
	return f.realFile.Truncate(size)
}

func (f *recorded) sync() error { return f.r.do(op{kind: opSync, inode: f.inode}) }

func (f *recorded) Close() error {
	err := f.r.do(op{kind: opClose, inode: f.inode})
	f.realFile.Close()
	return err
}

// luck decides what of what was not synced is on the disk after a crash.
type luck struct {
	chance float64 // that an operation is
	*rand.Rand
}

func (l luck) applies() bool { return l.Float64() < l.chance }

// memoryDir is an empty directory, in memory if this machine has that.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "dsmd-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// crash makes the directory that a crash after so many operations may leave.
func (r *recorder) crash(t *testing.T, after int, l luck) string {
	t.Helper()
	dir := memoryDir(t)
	for name, inode := range r.namesAfter(after, l) {
		if err := os.WriteFile(filepath.Join(dir, name), r.bytesAfter(inode, after, l), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// namesAfter are the names that are left. Each change that was not synced may be lost.
func (r *recorder) namesAfter(after int, l luck) map[string]int {
	log := r.log[:after]
	synced := 0
	for i, o := range log {
		if o.kind == opSyncDir {
			synced = i
		}
	}
	names := map[string]int{}
	drop := func(name string, inode int) {
		if at, ok := names[name]; ok && at == inode {
			delete(names, name)
		}
	}
	for i, o := range log {
		if i > synced && !l.applies() {
			continue
		}
		switch o.kind {
		case opCreate:
			names[o.name] = o.inode
		case opRename:
			drop(o.name, o.inode)
			names[o.to] = o.inode
		case opRemove:
			drop(o.name, o.inode)
		}
	}
	return names
}

// bytesAfter is what is left of a file. Sectors that were not synced may be there or not, and come
// in any order.
func (r *recorder) bytesAfter(inode, after int, l luck) (b []byte) {
	var pieces []op
	for _, o := range r.log[:after] {
		switch {
		case o.inode != inode:
		case o.kind == opSync:
			for _, p := range pieces {
				b = p.apply(b)
			}
			pieces = nil
		case o.kind == opTruncate:
			pieces = append(pieces, o)
		case o.kind == opWrite:
			for len(o.data) > 0 {
				n := min(int64(len(o.data)), sector-o.offset%sector)
				pieces = append(pieces, op{kind: opWrite, offset: o.offset, data: o.data[:n]})
				o.offset, o.data = o.offset+n, o.data[n:]
			}
		}
	}
	if l.chance < 1 {
		l.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
	}
	for _, p := range pieces {
		if l.applies() {
			b = p.apply(b)
		}
	}
	return b
}

// apply does a write or a truncation.
func (o op) apply(b []byte) []byte {
	end := o.offset + int64(len(o.data))
	if grow := end - int64(len(b)); grow > 0 {
		b = append(b, make([]byte, grow)...)
	}
	if o.kind == opTruncate {
		return b[:o.offset]
	}
	copy(b[o.offset:], o.data)
	return b
}

var _ io.WriterAt = (*recorded)(nil)
