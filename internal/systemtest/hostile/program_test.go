package hostile

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd"
	"dsmd/internal/uffd/uffdtest"
)

// resident is how many bytes of memory a process has.
func resident(t *testing.T, p *testcluster.Process) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// greet connects to a daemon and is welcomed.
func greet(t *testing.T, socket string, rank int32) *attach.Conn {
	t.Helper()
	bare, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if err := bare.SetDeadline(time.Now().Add(testcluster.Patience)); err != nil {
		t.Fatal(err)
	}
	c := attach.NewConn(bare)
	t.Cleanup(func() { c.Close() })
	if err := c.Write(attach.AppendHello(nil, &attach.Hello{Version: attach.Version, PID: uint32(os.Getpid()), Rank: rank, Program: "hostile"})); err != nil {
		t.Fatal(err)
	}
	f, err := c.ReadFrame()
	if err != nil || f.Kind != attach.KindWelcome {
		t.Fatalf("%v, %v", f.Kind, err)
	}
	fd, err := c.TakeFD()
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	return c
}

// attachAs attaches to a daemon as a program that then does as the test likes: with a trap that
// works and is registered nowhere.
func attachAs(t *testing.T, socket string, rank int32) *attach.Conn {
	t.Helper()
	c := greet(t, socket, rank)
	trap, err := uffd.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { trap.Close() })
	if err := c.Write(attach.AppendTrap(nil, &attach.Trap{Features: uint64(trap.Features())}), trap.Sysfd()); err != nil {
		t.Fatal(err)
	}
	if f, err := c.ReadFrame(); err != nil || f.Kind != attach.KindReady {
		t.Fatalf("%v, %v", f.Kind, err)
	}
	// From here on it clears the flag that keeps reads of the descriptor from blocking, which it
	// shares with the daemon.
	if err := unix.SetNonblock(trap.Sysfd(), false); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestHostileProgram: a program that attaches in order, and then asks for all that it can think of
// without reading an answer, does not keep another from computing, nor make the daemon grow without
// bound.
func TestHostileProgram(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	c := testcluster.Serve(t, 2, 40, "--trap", "uffd", oneReactor)
	lock := lockAt(1, 2)
	a, b := c.Program(t, honest, 0, 0, lock), c.Program(t, honest, 1, 1, lock)
	a.Expect(t, "ready")
	b.Expect(t, "ready")
	before := resident(t, c.Daemons[0])
	flood := uint64(10000)
	if testing.Short() {
		flood = 2000
	}
	sum := 0
	for round, ask := range []func(i uint64) attach.Call{
		func(i uint64) attach.Call { // locks that nobody else will ever use
			return attach.Call{Op: attach.OpAcquire, Ticket: i, Object: i << 20, Access: attach.Write}
		},
		func(i uint64) attach.Call { // one lock, as a reader, without end
			return attach.Call{Op: attach.OpAcquire, Ticket: i, Object: 77, Access: attach.Read}
		},
		func(i uint64) attach.Call { // barriers to which nobody else comes
			return attach.Call{Op: attach.OpArrive, Ticket: i, Object: i, Parties: 2, Payload: make([]byte, attach.MaxContribution)}
		},
		func(i uint64) attach.Call { // memory under names without end
			name := strings.Repeat("n", 200) + strconv.FormatUint(i, 10)
			return attach.Call{Op: attach.OpBind, Ticket: i, Name: name, Object: attach.NameHash(attach.NameMemory, name), Count: 1, ElemBytes: 8, Signature: strings.Repeat("s", 500)}
		},
		func(i uint64) attach.Call { // all of the region, again and again
			return attach.Call{Op: attach.OpPrefetch, Ticket: i, Object: 1 << 20, Count: 1 << 10, Access: attach.Read}
		},
	} {
		p := attachAs(t, c.Socket(0), int32(10+round))
		var calls []byte
		for i := range flood {
			call := ask(i + 1)
			if calls = attach.AppendCall(calls, &call); len(calls) > 1<<16 {
				if p.Write(calls) != nil {
					break // cut off, and rightly
				}
				calls = calls[:0]
			}
		}
		sum += 20
		a.Do(t, fmt.Sprintf("%d %d", sum, 2*sum), "add 20")
		sum += 20
		b.Do(t, fmt.Sprintf("%d %d", sum, 2*sum), "add 20")
		p.Close()
	}
	const most = 256 << 20
	if grown := resident(t, c.Daemons[0]) - before; grown > most {
		t.Errorf("the daemon has grown by %d MiB", grown>>20)
	}
	a.End()
	b.End()
	a.Succeed(t)
	b.Succeed(t)
	for _, p := range c.Daemons {
		if !p.Running() {
			t.Errorf("a daemon has ended:\n%s", p.Errors())
		}
		sound(t, p)
	}
}

// TestAnotherUser: somebody else on this machine cannot attach. At an abstract socket, which
// everybody can reach, the daemon turns him away by what the kernel says of him; at a socket file,
// the kernel does.
func TestAnotherUser(t *testing.T) {
	dir, err := os.MkdirTemp("", "hostile") // t.TempDir's parent nobody else may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c, file := testcluster.Serve(t, 1, 1), filepath.Join(dir, "socket")
	testcluster.Start(t, testcluster.Command{Name: "the daemon at a file", Path: testcluster.Dsmd(t), Args: []string{"serve", "--socket", file}}).AwaitLog(t, " serving ")
	for _, socket := range []string{c.Socket(0), file} {
		p := c.ProgramAt(t, honest, socket, 0, lockAt(0, 1)) // the own user
		p.Expect(t, "ready")
		if os.Getuid() != 0 {
			continue // only root can be somebody else
		}
		said := make(chan string)
		go func() { said <- asNobody(socket) }()
		want := "this daemon belongs to user 0 and you are user 65534"
		if socket == file {
			want = "permission denied"
		}
		if got := <-said; !strings.Contains(got, want) {
			t.Errorf("another user is told %q, want %q", got, want)
		}
		p.Do(t, "3 6", "add 3")
	}
}

// asNobody connects as a user without rights, and returns what comes of it. The thread that it
// takes is that user's from here on.
func asNobody(socket string) string {
	const nobody = 65534
	runtime.LockOSThread() // and never unlock: the thread ends with its goroutine
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
		return errno.Error()
	}
	ctx, cancel := context.WithTimeout(context.Background(), testcluster.Patience)
	defer cancel()
	c, err := attach.Dial(ctx, socket)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	f, err := c.ReadFrame()
	if err != nil || f.Kind != attach.KindRefuse {
		return fmt.Sprintf("%v, %v", f.Kind, err)
	}
	r, err := attach.DecodeRefuse(f.Body)
	return fmt.Sprintf("%s (%v)", r.Reason, err)
}
