package attach

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// rounds of two starts at once: of 300, 32 went wrong when nothing kept them apart.
const rounds = 300

// leaveStale leaves what a daemon that was killed leaves: a socket file at which nobody listens.
func leaveStale(t *testing.T, path string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
}

// TestTwoStartsAtOnce: of two daemons that start at the same moment where a third was killed, one
// serves there, and the other says so.
func TestTwoStartsAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.sock")
	for round := range rounds {
		leaveStale(t, path)
		var listeners [2]*Listener
		var failures [2]error
		var both sync.WaitGroup
		begin := make(chan struct{})
		for i := range listeners {
			both.Go(func() {
				<-begin
				listeners[i], failures[i] = Listen(path)
			})
		}
		close(begin)
		both.Wait()
		winner, loser := listeners[0], failures[1]
		if winner == nil {
			winner, loser = listeners[1], failures[0]
		}
		if winner == nil || !errors.Is(loser, unix.EADDRINUSE) || !strings.Contains(loser.Error(), path) {
			t.Fatalf("round %d: %v and %v; want one that listens", round, failures[0], failures[1])
		}
		c, err := connect(path)
		if err != nil {
			t.Fatalf("round %d: nobody can connect to who has won: %v", round, err)
		}
		unix.Close(c)
		winner.leave(t)
		if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
			t.Fatalf("round %d: %v is left behind (%v)", round, left, err)
		}
	}
}

// leave is how a daemon ends.
func (l *Listener) leave(t *testing.T) {
	t.Helper()
	unix.Close(l.FD)
	if err := l.Leave(); err != nil {
		t.Error(err)
	}
}

// TestLeavingRemovesOnlyItsOwn: a daemon that ends leaves alone what somebody else has put in the
// place of its socket.
func TestLeavingRemovesOnlyItsOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.sock")
	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	// Somebody clears the directory, and another daemon starts.
	kept := path + ".first" // so that its inode is not given to the second
	if err := errors.Join(os.Rename(path, kept), os.Remove(path+lockSuffix)); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	first.leave(t)
	c, err := connect(path)
	if err != nil {
		t.Fatalf("the second daemon's socket is gone: %v", err)
	}
	unix.Close(c)
	if third, err := Listen(path); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a third daemon is let in beside the second: %v, %v", third, err)
	}
	second.leave(t)
}

// TestSomebodyElsesLock: in a directory like /tmp others can make the lock file first.
func TestSomebodyElsesLock(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	path := filepath.Join(t.TempDir(), "node.sock")
	if err := errors.Join(os.WriteFile(path+lockSuffix, nil, 0o666), os.Chown(path+lockSuffix, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	if l, err := Listen(path); err == nil || !strings.Contains(err.Error(), "belongs to user 65534") || !strings.Contains(err.Error(), "another path") {
		t.Errorf("%v, %v", l, err)
	}
	if err := errors.Join(os.Remove(path+lockSuffix), os.Symlink("/nowhere", path+lockSuffix)); err != nil {
		t.Fatal(err)
	}
	if l, err := Listen(path); err == nil || !strings.Contains(err.Error(), path+lockSuffix) {
		t.Errorf("%v, %v", l, err)
	}
}
