package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/systemtest/testcluster"
)

// hello is a correct first frame.
func hello(rank int32) []byte {
	return attach.AppendHello(nil, &attach.Hello{Version: attach.Version, PID: uint32(os.Getpid()), Rank: rank, Program: "hostile"})
}

// oddity is a conversation that no correct program has: what is sent, with which descriptors.
type oddity struct {
	name   string
	frames []byte
	files  int // copies of /dev/null that go with the first byte
	hangUp bool
}

func oddities() []oddity {
	otherVersion := hello(attach.NoRank)
	binary.LittleEndian.PutUint32(otherVersion[attach.HeaderBytes:], attach.Version+1)
	trap := attach.AppendTrap(nil, &attach.Trap{})
	call := attach.AppendCall(nil, &attach.Call{Op: attach.OpAcquire, Object: 7, Ticket: 1, Access: attach.Write})
	greeted := func(frames ...byte) []byte { return append(hello(1), frames...) }
	return []oddity{
		{name: "garbage", frames: []byte(strings.Repeat("\x01\x02 garbage \xfe\xff", 500))},
		{name: "an endless frame", frames: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
		{name: "half a frame", frames: hello(1)[:attach.HeaderBytes+3], hangUp: true},
		{name: "half a header", frames: hello(1)[:2], hangUp: true},
		{name: "nothing", hangUp: true},
		{name: "another version", frames: otherVersion},
		{name: "no such rank", frames: hello(99)},
		{name: "two greetings", frames: greeted(hello(1)...)},
		{name: "a call before the greeting", frames: call},
		{name: "a call before the trap", frames: greeted(call...)},
		{name: "a trap without a descriptor", frames: greeted(trap...)},
		{name: "a trap that is no userfaultfd", frames: greeted(trap...), files: 1},
		{name: "too many descriptors", frames: greeted(trap...), files: 12},
		{name: "a frame for programs", frames: greeted(attach.AppendReady(nil)...)},
	}
}

// connect opens a bare connection to a daemon.
func connect(t *testing.T, socket string) *net.UnixConn {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(testcluster.Patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

// send does what an oddity is, and waits until the daemon has ended the connection.
func (o *oddity) send(t *testing.T, socket string) {
	t.Helper()
	c := connect(t, socket)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var fds []int
	for range o.files {
		fds = append(fds, int(null.Fd()))
	}
	if len(o.frames) > 0 {
		// The daemon may end the connection in the middle.
		if _, _, err := c.WriteMsgUnix(o.frames, syscall.UnixRights(fds...), nil); err != nil && !errors.Is(err, syscall.EPIPE) {
			t.Fatalf("%s: %v", o.name, err)
		}
	}
	if o.hangUp {
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%s: the daemon does not end the connection: %v", o.name, err)
	}
}

// TestHostilePrograms has programs that break the rules attach to a daemon, again and again, while
// others work on it.
func TestHostilePrograms(t *testing.T) {
	t.Parallel()
	c := serve(t, 2, 3)
	console := join(t, c, 0, 0, 3)
	worker := c.Program(t, hammer, 0, 2)
	worker.Expect(t, "hammering")
	console.Do(t, "ok", "alloc data 4")
	for round := range uint64(3) {
		for _, o := range oddities() {
			o.send(t, c.Socket(0))
		}
		console.Do(t, "ok", "fill data %d", round)
	}
	testcluster.Eventually(t, "the daemon has forgotten the hostile programs", func() bool { return counter(t, console, "programs") == 2 })
	open := descriptors(t, c.Daemons[0])
	for _, o := range oddities() {
		o.send(t, c.Socket(0))
	}
	testcluster.Eventually(t, "the daemon has closed the descriptors of hostile programs", func() bool { return descriptors(t, c.Daemons[0]) <= open })
	deaf(t, c.Socket(0))
	// The rank that the hostile programs asked for is free.
	join(t, c, 1, 1, 3).Succeed(t)
	console.Succeed(t)
	worker.Do(t, "done", "stop")
	worker.Say(t, "count")
	worker.Succeed(t)
}

// descriptors counts the descriptors that a process has open.
func descriptors(t *testing.T, p *testcluster.Process) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/" + itoa(p.PID()) + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// deaf asks for counters without end and reads none: the daemon must cut it off, rather than keep
// the answers.
func deaf(t *testing.T, socket string) {
	t.Helper()
	c := connect(t, socket)
	if _, err := c.Write(hello(attach.NoRank)); err != nil {
		t.Fatal(err)
	}
	var calls []byte
	for ticket := range uint64(1000) {
		calls = attach.AppendCall(calls, &attach.Call{Op: attach.OpStats, Ticket: ticket + 1})
	}
	ctx, cancel := context.WithTimeout(t.Context(), testcluster.Patience)
	defer cancel()
	for ctx.Err() == nil {
		if _, err := c.Write(calls); err != nil {
			if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("a program that reads no answers: %v", err)
			}
			return
		}
	}
	t.Error("a program that reads no answers is not cut off")
}

// TestRefusals checks that a program which may not attach is told why, in a form that programs
// understand.
func TestRefusals(t *testing.T) {
	c := serve(t, 1, 2)
	join(t, c, 0, 0, 2)
	trap := attach.AppendTrap(nil, &attach.Trap{})
	for _, o := range oddities() {
		want, ok := map[string]attach.RefuseCode{
			"another version": attach.RefuseVersion, "no such rank": attach.RefuseRank, "a trap that is no userfaultfd": attach.RefuseTrap,
		}[o.name]
		if !ok {
			continue
		}
		bare := connect(t, c.Socket(0))
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		conn := attach.NewConn(bare)
		defer conn.Discard()
		frames, rest := o.frames, []byte(nil)
		if o.files > 0 { // the descriptors go with the frame that needs them
			frames, rest = frames[:len(frames)-len(trap)], trap
		}
		if err := conn.Write(frames); err != nil {
			t.Fatal(err)
		}
		f, err := conn.ReadFrame()
		for err == nil && f.Kind == attach.KindWelcome {
			if rest != nil {
				welcome, err := attach.DecodeWelcome(f.Body)
				if err != nil {
					t.Fatal(err)
				}
				each := slices.Repeat([]int{int(null.Fd())}, int(welcome.Reactors))
				if err := conn.Write(rest, each...); err != nil {
					t.Fatal(err)
				}
			}
			f, err = conn.ReadFrame()
		}
		if err != nil || f.Kind != attach.KindRefuse {
			t.Errorf("%s: the daemon answers with %v, %v", o.name, f.Kind, err)
			continue
		}
		if refuse, err := attach.DecodeRefuse(f.Body); err != nil || refuse.Code != want || refuse.Reason == "" {
			t.Errorf("%s: refused with %+v, %v, want code %v and a reason", o.name, refuse, err, want)
		}
	}
}
