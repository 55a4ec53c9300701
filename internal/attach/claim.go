package attach

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// lockSuffix and the socket's name make the name of its lock file. A daemon holds the lock as long
// as it serves there. Without it, two daemons may start at once where a third was killed. Both find
// its socket file stale, and the second one to remove it removes that of the first.
const lockSuffix = ".lock"

// Listener is a socket at which a daemon listens.
type Listener struct {
	FD     int         // the caller closes it
	path   string      // of the socket file; "": the socket is abstract
	lock   *os.File    // held until Leave
	socket unix.Stat_t // the file that bind has made
}

// Leave removes the socket file, if it is still this daemon's, and lets others serve there. Call it
// once, when nobody may connect any more.
func (l *Listener) Leave() error {
	if l.path == "" {
		return nil
	}
	defer l.lock.Close()
	// The lock goes last: as long as it is held no other daemon makes a socket there.
	return errors.Join(removeOwn(l.path, &l.socket), l.removeLock())
}

func (l *Listener) removeLock() error {
	var own unix.Stat_t
	if err := unix.Fstat(int(l.lock.Fd()), &own); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	return removeOwn(l.path+lockSuffix, &own)
}

// removeOwn removes a file unless another one has taken its place.
func removeOwn(path string, own *unix.Stat_t) error {
	if same, err := isFile(path, own); err != nil || !same {
		return err
	}
	return os.Remove(path)
}

// isFile reports whether a path leads to a certain file.
func isFile(path string, file *unix.Stat_t) (bool, error) {
	var st unix.Stat_t
	switch err := unix.Lstat(path, &st); {
	case err == unix.ENOENT:
		return false, nil
	case err != nil:
		return false, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	return st.Dev == file.Dev && st.Ino == file.Ino, nil
}

// claim takes the lock of a socket file. The error wraps unix.EADDRINUSE if another daemon has it.
func claim(socket string) (*os.File, error) {
	path := socket + lockSuffix
	for {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, fmt.Errorf("attach: listen at %s: the lock file %s: %w; remove it if it is another user's, or choose another path", socket, path, err)
		}
		f := os.NewFile(uintptr(fd), path)
		held, err := takeLock(f, socket)
		if held {
			return f, nil
		}
		f.Close()
		if err != nil {
			return nil, err
		}
		// Its daemon has left at this moment, and removed it. Each repetition takes a daemon that
		// ends, so there are few.
	}
}

// takeLock locks a lock file, and reports whether it is still the one that others find.
func takeLock(f *os.File, socket string) (held bool, err error) {
	var own unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &own); err != nil {
		return false, os.NewSyscallError("fstat", err)
	}
	switch {
	case own.Mode&unix.S_IFMT != unix.S_IFREG:
		return false, fmt.Errorf("attach: listen at %s: %s is no regular file; remove it, or choose another path", socket, f.Name())
	case int(own.Uid) != os.Geteuid():
		return false, fmt.Errorf("attach: listen at %s: the lock file %s belongs to user %d; remove it, or choose another path", socket, f.Name(), own.Uid)
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err {
	case nil:
	case unix.EWOULDBLOCK:
		return false, fmt.Errorf("attach: listen at %s: %w: another daemon serves there", socket, unix.EADDRINUSE)
	default:
		return false, fmt.Errorf("attach: listen at %s: %w", socket, &os.PathError{Op: "flock", Path: f.Name(), Err: err})
	}
	return isFile(f.Name(), &own)
}
