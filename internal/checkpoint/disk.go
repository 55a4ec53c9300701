package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// disk is all by which this package changes a directory. Tests replace it by one that fails, and by
// one that writes down what a crash could leave.
type disk interface {
	// create makes a file, which nobody else may read. It must not exist.
	create(path string) (file, error)
	rename(from, to string) error
	// remove removes a file, and not a directory.
	remove(path string) error
	// syncDir makes what was created, renamed and removed in a directory durable.
	syncDir(path string) error
}

// file is a file that is being written.
type file interface {
	io.WriterAt
	Truncate(size int64) error
	size() (uint64, error)
	// buffered ends direct writes, which an index is not aligned for.
	buffered() error
	// sync makes the contents and the size durable.
	sync() error
	Close() error
}

// realDisk is the file system.
type realDisk struct{}

// realFile is a file of it.
type realFile struct{ *os.File }

func (realDisk) create(path string) (file, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return realFile{f}, nil
}

func (realDisk) rename(from, to string) error { return os.Rename(from, to) }

// os.Remove would remove an empty directory, too.
func (realDisk) remove(path string) error { return os.NewSyscallError("unlink", unix.Unlink(path)) }

func (realDisk) syncDir(path string) error {
	d, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer d.Close() // nothing was written through it
	return d.Sync()
}

func (f realFile) size() (uint64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return uint64(info.Size()), nil
}

func (f realFile) buffered() error {
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err == nil && flags&unix.O_DIRECT != 0 {
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETFL, flags&^unix.O_DIRECT)
	}
	return os.NewSyscallError("fcntl", err)
}

func (f realFile) sync() error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}

// writeAll writes b at an offset, all of it or with an error.
func writeAll(f file, b []byte, offset int64) error {
	n, err := f.WriteAt(b, offset)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return err
}

// openRegular opens a file for reading and returns its size. It refuses what is no file of its own,
// such as a symbolic link, and does not wait for the other end of a pipe.
func openRegular(path string) (f *os.File, bytes uint64, err error) {
	f, err = os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, 0, fmt.Errorf("%s is a symbolic link, want a regular file: copy here what it refers to", path)
	}
	if err != nil {
		return nil, 0, readError("open", path, err)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		err = readError("look at", path, err)
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is no regular file (%v): remove it, or copy the file here", path, info.Mode().Type())
	default:
		return f, uint64(info.Size()), nil
	}
	f.Close()
	return nil, 0, err
}

// writeError is the error of something that has failed while a directory was changed, with what to
// do about it.
func writeError(doing, path string, err error) error {
	advice := ""
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		advice = ": make room there, or have checkpoints written to another directory; those that are complete are whole"
	case errors.Is(err, unix.EROFS), errors.Is(err, fs.ErrPermission):
		advice = ": give this user the permission to write there, or name another directory"
	case errors.Is(err, fs.ErrExist):
		advice = ": is another job writing here? If not, remove it"
	case errors.Is(err, unix.EIO):
		advice = ": the disk is failing; have checkpoints written to another"
	}
	return fmt.Errorf("checkpoint: %s %s: %w%s", doing, path, err, advice)
}

// readError is the error of something that cannot be read, with what to do about it.
func readError(doing, path string, err error) error {
	advice := ""
	switch {
	case errors.Is(err, fs.ErrPermission):
		advice = ": give this user the permission to read it, or run as who wrote it"
	case errors.Is(err, fs.ErrNotExist):
		advice = ": copy it back if it was moved"
	}
	// Errors of package os name the path.
	var named *fs.PathError
	if errors.As(err, &named) {
		err = named.Err
	}
	return fmt.Errorf("%s %s: %w%s", doing, path, err, advice)
}
