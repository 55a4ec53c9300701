package attach

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const nobody = 65534

// asNobody calls f as another user without rights. On Linux a thread has a user of its own: this
// one ends with it.
func asNobody(t *testing.T, f func() error) error {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: no other goroutine may have this thread
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, nobody, nobody, nobody); errno != 0 {
			done <- errno
			return
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
			done <- errno
			return
		}
		done <- f()
	}()
	return <-done
}

// open makes a directory that everybody may enter.
func open(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "attach") // t.TempDir's parent is for its owner alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// connect connects a blocking socket.
func connect(name string) (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// TestSocketIsItsOwners: a socket file lets its owner in and nobody else; at an abstract socket the
// kernel says who has come.
func TestSocketIsItsOwners(t *testing.T) {
	path, abstract := filepath.Join(open(t), "socket"), fmt.Sprintf("@dsmd-user-test-%d", os.Getpid())
	for _, name := range []string{path, abstract} {
		l, err := Listen(name)
		if err != nil {
			t.Fatal(err)
		}
		defer l.leave(t)
		own, err := Dial(context.Background(), name)
		if err != nil {
			t.Fatal(err)
		}
		defer own.Close()
		if err := own.CheckDaemon(); err != nil {
			t.Errorf("%s: the own daemon: %v", name, err)
		}
		at, err := Accept(l.FD)
		if err != nil {
			t.Fatal(err)
		}
		if _, uid, err := Peer(at); err != nil || int(uid) != os.Getuid() {
			t.Errorf("%s: the peer is user %d, %v", name, uid, err)
		}
		unix.Close(at)
		if os.Getuid() != 0 {
			continue // only root can be somebody else
		}
		err = asNobody(t, func() error {
			fd, err := connect(name)
			if err == nil {
				unix.Close(fd)
			}
			return err
		})
		if name == path {
			if err != unix.EACCES {
				t.Errorf("another user at the socket file: %v, want EACCES", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if at, err = Accept(l.FD); err != nil {
			t.Fatal(err)
		}
		if _, uid, err := Peer(at); err != nil || uid != nobody {
			t.Errorf("the peer is user %d, %v, want %d", uid, err, nobody)
		}
		unix.Close(at)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket file: %v, %v", info, err)
	}
}

// TestForeignDaemon: a program does not trust a daemon of another user, who may have been at the
// place of its own.
func TestForeignDaemon(t *testing.T) {
	if os.Getuid() != 0 {
		return // only root can be somebody else
	}
	name := fmt.Sprintf("@dsmd-foreign-test-%d", os.Getpid())
	var l *Listener
	err := asNobody(t, func() (err error) {
		l, err = Listen(name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.leave(t)
	c, err := Dial(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.CheckDaemon(); !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "to user 65534") {
		t.Errorf("the daemon of another user: %v", err)
	}
}

// TestDirectoryOfTheSocket: where others could put a socket in place of this one, there is none.
func TestDirectoryOfTheSocket(t *testing.T) {
	dir := open(t)
	group := os.Getegid()
	for mode, want := range map[os.FileMode]bool{
		0o700: true, 0o755: true, 0o775: true, 0o777: false, 0o757: false, 0o777 | os.ModeSticky: true, 0o773 | os.ModeSticky: true,
	} {
		tryDirectory(t, dir, mode, want)
	}
	if os.Getuid() != 0 {
		return // only root can give directories away
	}
	if err := os.Chown(dir, 0, group+1); err != nil {
		t.Fatal(err)
	}
	tryDirectory(t, dir, 0o775, false)
	tryDirectory(t, dir, 0o755, true)
	if err := os.Chown(dir, nobody, group); err != nil {
		t.Fatal(err)
	}
	tryDirectory(t, dir, 0o755, false)
	if _, err := Listen(filepath.Join(dir, "nowhere", "socket")); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a directory that is not there: %v", err)
	}
}

func tryDirectory(t *testing.T, dir string, mode os.FileMode, want bool) {
	t.Helper()
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "socket")
	l, err := Listen(path)
	if err == nil {
		l.leave(t)
	}
	if (err == nil) != want {
		t.Errorf("mode %v: %v", mode, err)
	}
}
