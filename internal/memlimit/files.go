package memlimit

import (
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// machine is the root folder of this machine.
var machine fs.FS = plainFiles{os.DirFS("/"), "/"}

// plainFiles is a folder of short files that are read with as few system calls as can be: a daemon
// that has nothing else to do reads half a dozen of them every second. os.ReadFile has Go's network
// poller watch a control group's files, because the kernel can tell of their changes. That makes
// three times the calls, and wakes a thread.
type plainFiles struct {
	fs.FS
	root string
}

// ReadFile reads a whole file. (fs.ReadFileFS)
func (p plainFiles) ReadFile(name string) ([]byte, error) {
	at := filepath.Join(p.root, name)
	failed := func(op string, err error) error { return &fs.PathError{Op: op, Path: at, Err: err} }
	fd, err := unix.Open(at, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, failed("open", err)
	}
	defer unix.Close(fd)
	text := make([]byte, 0, 4096)
	for {
		n, err := unix.Read(fd, text[len(text):cap(text)])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, failed("read", err)
		case n == 0:
			return text, nil
		default:
			text = append(text[:len(text)+n], 0)[:len(text)+n] // there is room for more
		}
	}
}
