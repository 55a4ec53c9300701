package attach

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// unpolled is a program's connection after Unpoll, and the daemon's end of it.
func unpolled(t *testing.T) (c *Conn, daemon int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = connOf(os.NewFile(uintptr(fds[1]), "program")); err != nil {
		t.Fatal(err)
	}
	if err := c.Unpoll(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		c.Discard()
	})
	return c, fds[0]
}

// after runs f when what the test does next is probably waiting; if it is not yet, the test shows
// less, and is right all the same.
func after(f func()) { time.AfterFunc(20*time.Millisecond, f) }

func TestUnpolledConversation(t *testing.T) {
	c, daemon := unpolled(t)
	defer unix.Close(daemon)
	ended := make(chan error, 1)
	go func() { ended <- c.AwaitEnd() }()
	for range 3 {
		after(func() {
			if _, err := Send(daemon, AppendReady(nil), daemon); err != nil {
				t.Error(err)
			}
		})
		if f, err := c.ReadFrame(); err != nil || f.Kind != KindReady {
			t.Fatalf("%v, %v", f.Kind, err)
		}
		fd, err := c.TakeFD()
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
	}
	if err := c.Write(AppendBye(nil)); err != nil {
		t.Fatal(err)
	}
	var s Stream
	if f, err := receive(daemon, &s); err != nil || f.Kind != KindBye {
		t.Fatalf("%v, %v", f.Kind, err)
	}
	if err := c.Socket(func(fd int) {
		if pid, _, err := Peer(fd); err != nil || pid != os.Getpid() {
			t.Errorf("the peer is process %d, %v", pid, err)
		}
	}); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		t.Errorf("the end was seen before it came: %v", err)
	default:
	}
	if err := unix.Shutdown(daemon, unix.SHUT_RDWR); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the end: %v", err)
	}
	if _, err := c.ReadFrame(); err != io.EOF {
		t.Errorf("reading at the end: %v", err)
	}
	if err := c.Write(AppendBye(nil)); !errors.Is(err, unix.EPIPE) {
		t.Errorf("writing after the end: %v", err)
	}
}

func TestInterrupt(t *testing.T) {
	c, daemon := unpolled(t)
	defer unix.Close(daemon)
	ended := make(chan error, 1)
	go func() { ended <- c.AwaitEnd() }()
	after(func() {
		if err := c.Interrupt(); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		if _, err := c.ReadFrame(); err != ErrInterrupted {
			t.Errorf("reading: %v", err)
		}
	}
	if err := <-ended; err != ErrInterrupted {
		t.Errorf("waiting for the end: %v", err)
	}
	// What has arrived is read nevertheless.
	if _, err := Send(daemon, AppendReady(nil)); err != nil {
		t.Fatal(err)
	}
	if f, err := c.ReadFrame(); err != nil || f.Kind != KindReady {
		t.Errorf("%v, %v", f.Kind, err)
	}
	c.Close()
	if err := c.Interrupt(); err != nil {
		t.Errorf("interrupting what is closed: %v", err)
	}
}

func TestUnpolledShutdown(t *testing.T) {
	c, daemon := unpolled(t)
	defer unix.Close(daemon)
	after(c.Shutdown)
	if _, err := c.ReadFrame(); err != io.EOF {
		t.Errorf("reading: %v", err)
	}
}
