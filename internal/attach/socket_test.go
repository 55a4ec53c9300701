package attach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	patient "dsmd/internal/patience"
)

var patience = patient.Or(10 * time.Second)

// pair is a program's end and a daemon's end of one connection.
func pair(t *testing.T) (program *Conn, daemon int) {
	t.Helper()
	socket := fmt.Sprintf("@dsmd-attach-test-%d-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-"))
	listener, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	l := listener.FD
	defer unix.Close(l)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	program, err = Dial(ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	daemon, err = Accept(l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(daemon) })
	if _, err := Accept(l); err != unix.EAGAIN {
		t.Fatalf("Accept with nobody waiting: %v", err)
	}
	if pid, uid, err := Peer(daemon); pid != os.Getpid() || uid != uint32(os.Getuid()) || err != nil {
		t.Fatalf("Peer is process %d of user %d, %v", pid, uid, err)
	}
	return program, daemon
}

// receive waits until a frame has come.
func receive(fd int, s *Stream) (Frame, error) {
	for {
		if f, ok, err := s.Next(); ok || err != nil {
			return f, err
		}
		switch err := Receive(fd, s); err {
		case nil:
		case unix.EAGAIN:
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
			if n == 0 {
				return Frame{}, fmt.Errorf("nothing came (%v)", err)
			}
		default:
			return Frame{}, err
		}
	}
}

// sameFile tells whether two descriptors are of the same open file's inode.
func sameFile(t *testing.T, a, b int) bool {
	t.Helper()
	var sa, sb unix.Stat_t
	if err := unix.Fstat(a, &sa); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fstat(b, &sb); err != nil {
		t.Fatal(err)
	}
	return sa.Ino == sb.Ino && sa.Dev == sb.Dev
}

func TestDescriptorsTravelWithTheirFrames(t *testing.T) {
	program, daemon := pair(t)
	defer program.Discard()
	memfd, err := unix.MemfdCreate("pages", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(memfd)

	// Program to daemon: frames before and after the one with the descriptor.
	if err := program.Write(AppendHello(nil, &Hello{Version: Version, Rank: 2})); err != nil {
		t.Fatal(err)
	}
	if err := program.Write(AppendBye(AppendTrap(nil, &Trap{})), memfd); err != nil {
		t.Fatal(err)
	}
	var s Stream
	defer s.Close()
	for _, want := range []Kind{KindHello, KindTrap, KindBye} {
		f, err := receive(daemon, &s)
		if err != nil || f.Kind != want {
			t.Fatalf("got %v, %v; want %v", f.Kind, err, want)
		}
		if want != KindTrap {
			continue
		}
		fd, err := s.TakeFD()
		if err != nil || !sameFile(t, fd, memfd) {
			t.Fatalf("descriptor %d, %v, is not the one that was sent", fd, err)
		}
		if flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); flags&unix.FD_CLOEXEC == 0 {
			t.Error("the descriptor would be inherited by children")
		}
		unix.Close(fd)
	}
	if _, err := s.TakeFD(); !errors.Is(err, ErrMalformed) {
		t.Errorf("TakeFD when none has come: %v", err)
	}

	// Daemon to program.
	w := Welcome{Nodes: 1, Size: 1, RegionBase: 4096, RegionBytes: 4096, PageBytes: 4096, HomeStripe: 1, Reactors: 1, StripePages: 1, Trap: "uffd"}
	frame := AppendWelcome(nil, &w)
	if n, err := Send(daemon, frame, memfd); n != len(frame) || err != nil {
		t.Fatalf("Send: %d of %d bytes, %v", n, len(frame), err)
	}
	f, err := program.ReadFrame()
	if err != nil || f.Kind != KindWelcome {
		t.Fatalf("got %v, %v", f.Kind, err)
	}
	fd, err := program.TakeFD()
	if err != nil || !sameFile(t, fd, memfd) {
		t.Fatalf("descriptor %d, %v, is not the one that was sent", fd, err)
	}
	unix.Close(fd)
}

func TestTooManyDescriptors(t *testing.T) {
	program, daemon := pair(t)
	fds := make([]int, maxWaitingFDs+8)
	for i := range fds {
		fds[i] = int(os.Stdin.Fd())
	}
	if err := program.Write(AppendBye(nil), fds[:maxWaitingFDs+1]...); err != nil {
		t.Fatal(err)
	}
	var s Stream
	defer s.Close()
	if _, err := receive(daemon, &s); !errors.Is(err, ErrMalformed) {
		t.Errorf("%d descriptors: error %v", maxWaitingFDs+1, err)
	}
	var s2 Stream
	defer s2.Close()
	if err := program.Write(AppendBye(nil), fds...); err != nil {
		t.Fatal(err)
	}
	if _, err := receive(daemon, &s2); !errors.Is(err, ErrMalformed) {
		t.Errorf("%d descriptors, more than the control buffer holds: error %v", len(fds), err)
	}
}

func TestEndOfConnection(t *testing.T) {
	t.Run("daemon sees it", func(t *testing.T) {
		program, daemon := pair(t)
		var s Stream
		if err := Receive(daemon, &s); err != unix.EAGAIN {
			t.Errorf("nothing was sent, Receive returned %v", err)
		}
		program.Write(AppendBye(nil)[:3])
		program.Close()
		if _, err := receive(daemon, &s); err != io.ErrUnexpectedEOF {
			t.Errorf("closed within a frame: %v", err)
		}
		if _, err := Send(daemon, AppendReady(nil)); err != unix.EPIPE {
			t.Errorf("Send to a closed connection: %v", err)
		}
	})
	t.Run("program sees it", func(t *testing.T) {
		program, daemon := pair(t)
		Send(daemon, AppendLost(nil, "x"))
		unix.Shutdown(daemon, unix.SHUT_RDWR)
		if f, err := program.ReadFrame(); f.Kind != KindLost || err != nil {
			t.Errorf("got %v, %v", f.Kind, err)
		}
		if _, err := program.ReadFrame(); err != io.EOF {
			t.Errorf("closed between frames: %v", err)
		}
	})
	t.Run("program sees half a frame", func(t *testing.T) {
		program, daemon := pair(t)
		Send(daemon, AppendLost(nil, "x")[:9])
		unix.Shutdown(daemon, unix.SHUT_RDWR)
		if _, err := program.ReadFrame(); err != io.ErrUnexpectedEOF {
			t.Errorf("closed within a frame: %v", err)
		}
	})
}

// TestSendWhenFull: a daemon must get EAGAIN from a program that does not read, and must be
// able to go on where the kernel stopped.
func TestSendWhenFull(t *testing.T) {
	program, daemon := pair(t)
	frame := AppendReply(nil, &Reply{Ticket: 1, Payload: make([]byte, MaxPayload)})
	var rest []byte
	sent := 0
	for rest == nil {
		n, err := Send(daemon, frame)
		switch {
		case err == unix.EAGAIN:
			rest = frame
		case err != nil:
			t.Fatal(err)
		case n < len(frame):
			rest = frame[n:]
			sent++
		default:
			sent++
		}
	}
	if len(rest) == len(frame) {
		rest = nil // it stopped between two frames
	}
	for i := range sent {
		if i == sent-1 && rest != nil {
			for len(rest) > 0 {
				n, err := Send(daemon, rest)
				if err != nil && err != unix.EAGAIN {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
		}
		f, err := program.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if r, err := DecodeReply(f.Body); err != nil || len(r.Payload) != MaxPayload {
			t.Fatalf("frame %d of %d: %v", i, sent, err)
		}
	}
}

func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v, %v; others could attach", info.Mode(), err)
	}
	if _, err := Listen(path); !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), path) {
		t.Errorf("second daemon at the same path: %v", err)
	}
	unix.Close(l.FD) // as if killed: the files stay, and the kernel takes the lock back
	l.lock.Close()
	if l, err = Listen(path); err != nil {
		t.Fatalf("a stale socket file was not replaced: %v", err)
	}
	l.leave(t)
	leaveStale(t, path)

	other := filepath.Join(t.TempDir(), "notes")
	if err := os.WriteFile(other, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(other); err == nil || !strings.Contains(err.Error(), "another kind") {
		t.Errorf("Listen at a plain file: %v", err)
	}
	if b, _ := os.ReadFile(other); string(b) != "mine" {
		t.Error("Listen has destroyed a plain file")
	}
	for _, bad := range []string{"", "@", "/" + strings.Repeat("x", 107), "a\x00b"} {
		if _, err := Listen(bad); err == nil {
			t.Errorf("Listen(%q) was accepted", bad)
		}
		if _, err := Dial(context.Background(), bad); err == nil {
			t.Errorf("Dial(%q) was accepted", bad)
		}
	}
	var op *net.OpError
	if _, err := Dial(context.Background(), path); !errors.As(err, &op) || !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("Dial with nobody listening: %v", err)
	}
}

// connOf makes a Conn of an inherited socket.
func connOf(f *os.File) (*Conn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return NewConn(c.(*net.UnixConn)), nil
}

// TestDialFull: who comes to a daemon that accepts nobody for a while, and has as many waiting as
// its socket holds, waits with them until its own time is over.
func TestDialFull(t *testing.T) {
	socket := fmt.Sprintf("@dsmd-attach-test-%d-full", os.Getpid())
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(l)
	if err := errors.Join(unix.Bind(l, &unix.SockaddrUnix{Name: socket}), unix.Listen(l, 0)); err != nil {
		t.Fatal(err)
	}
	first, err := Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, socket); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("for 10 ms: %v", err)
	}
	came := make(chan error)
	go func() {
		late, err := Dial(t.Context(), socket)
		if err == nil {
			late.Close()
		}
		came <- err
	}()
	for deadline := time.After(patience); ; {
		if fd, err := Accept(l); err == nil {
			unix.Close(fd)
		}
		select {
		case err := <-came:
			if err != nil {
				t.Errorf("when there is room: %v", err)
			}
			return
		case <-deadline:
			t.Fatal("there is room, and nobody comes")
		case <-time.After(time.Millisecond):
		}
	}
}
