package node

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/pagetable"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"
)

func wantRefused(t *testing.T, r *attach.Refuse, code attach.RefuseCode, reason string) {
	t.Helper()
	if r == nil {
		t.Fatalf("not refused, although %s", reason)
	}
	if r.Code != code || !strings.Contains(r.Reason, reason) {
		t.Errorf("refused with code %d, %q; want code %d and %q", r.Code, r.Reason, code, reason)
	}
}

func TestRefusals(t *testing.T) {
	c := start(t, setup{nodes: 2, ranks: 3})
	m := c.members[0]
	a := m.joinAs(0)

	t.Run("version", func(t *testing.T) {
		frame := hello(1)
		frame[attach.HeaderBytes]++
		conn := m.dial()
		_, r := greet(t, conn, frame)
		wantRefused(t, r, attach.RefuseVersion, fmt.Sprintf("speaks version %d", attach.Version+1))
		closedBy(t, conn)
	})
	t.Run("rank out of range", func(t *testing.T) {
		conn := m.dial()
		_, r := greet(t, conn, hello(3))
		wantRefused(t, r, attach.RefuseRank, "rank 3 in a job of 3")
		closedBy(t, conn)
	})
	t.Run("rank taken", func(t *testing.T) {
		conn := m.dial()
		if _, r := greet(t, conn, hello(0)); r != nil {
			t.Fatal(r.Reason)
		}
		wantRefused(t, handOver(t, conn), attach.RefuseRank, "rank 0 is attached already")
		closedBy(t, conn)
	})
	t.Run("ranks are dealt", func(t *testing.T) {
		second := m.join()
		if second.welcome.Rank != 2 {
			t.Errorf("the second program of node 0 of 2 has rank %d, want 2", second.welcome.Rank)
		}
		conn := m.dial()
		if _, r := greet(t, conn, hello(attach.NoRank)); r != nil {
			t.Fatal(r.Reason)
		}
		wantRefused(t, handOver(t, conn), attach.RefuseRank, "is attached already")
		second.leave()
		eventually(t, "the rank is free", func() bool { return m.counter("programs") == 1 })
		m.joinAs(2).leave()
	})
	a.wantLoad(0, 0, 0)
	c.quiet()
}

// TestRanksOfUndecidedPrograms: two programs that are welcomed before either attaches are told
// different ranks.
func TestRanksOfUndecidedPrograms(t *testing.T) {
	c := start(t, setup{nodes: 1, ranks: 2})
	m := c.members[0]
	one, two, three := m.dial(), m.dial(), m.dial()
	w1, _ := greet(t, one, hello(attach.NoRank))
	w2, _ := greet(t, two, hello(attach.NoRank))
	w3, _ := greet(t, three, hello(attach.NoRank)) // one that only asks for counters, say
	if w1.Rank == w2.Rank {
		t.Errorf("two programs were told that they are rank %d", w1.Rank)
	}
	if w3.Rank > 1 {
		t.Errorf("the third was told that it is rank %d of 2", w3.Rank)
	}
	for _, conn := range []*attach.Conn{two, one} {
		if r := handOver(t, conn); r != nil {
			t.Errorf("refused: %s", r.Reason)
		}
	}
}

// TestSecondSocketIsNone: the node does not touch what comes in the place of a second socket and is
// none. It parts with the program, and leaves what has come to who may wait until it is closed.
func TestSecondSocketIsNone(t *testing.T) {
	closes := make(chan struct{}, 10)
	c := start(t, setup{nodes: 1, before: func(n *Node) { n.programs.replies.closer.hold = func() { closes <- struct{}{} } }})
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	datagram, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	network, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		for _, fd := range append(append(pipe[:], datagram[:]...), network) {
			unix.Close(fd)
		}
	}()
	for name, fd := range map[string]int{"a pipe": pipe[0], "a datagram socket": datagram[0], "a socket of the network": network} {
		conn := c.members[0].dial()
		if _, r := greet(t, conn, hello(0)); r != nil {
			t.Fatal(r.Reason)
		}
		if err := conn.Write(attach.AppendTrap(nil, &attach.Trap{}), pipe[1], fd); err != nil {
			t.Fatal(err)
		}
		closedBy(t, conn)
		for range 2 { // the trap, too
			select {
			case <-closes:
			case <-time.After(patience):
				t.Fatalf("%s is not left to be closed", name)
			}
		}
	}
	c.members[0].join()
	c.quiet()
}

// TestOtherUsersAreTurnedAway: and told why. No warning says so here: who looks at what runs on a
// machine (dsmd top) asks all its daemons, again and again.
func TestOtherUsersAreTurnedAway(t *testing.T) {
	answer := func(uid uint32, err error) func(*Node) {
		return func(n *Node) { n.programs.door.peer = func(int) (int, uint32, error) { return 1, uid, err } }
	}
	other := uint32(os.Geteuid() + 1)
	for name, is := range map[string]struct {
		before   func(*Node)
		reason   string
		warnings int
	}{
		"another user":   {answer(other, nil), fmt.Sprintf("you are user %d; run the program as the same user", other), 0},
		"who can't tell": {answer(0, errors.New("no idea")), "no idea", 1},
	} {
		t.Run(name, func(t *testing.T) {
			core, logs := observer.New(zap.WarnLevel)
			c := start(t, setup{nodes: 1, before: is.before, change: func(cfg *Config) { cfg.Log = zap.New(core) }})
			conn := c.members[0].dial()
			f := read(t, conn)
			r, err := attach.DecodeRefuse(f.Body)
			if f.Kind != attach.KindRefuse || err != nil {
				t.Fatalf("%v, %v", f.Kind, err)
			}
			wantRefused(t, &r, attach.RefuseOther, is.reason)
			closedBy(t, conn)
			c.members[0].want(map[string]uint64{"programs": 0, "programs_seen": 0})
			if logs.Len() != is.warnings {
				t.Errorf("it warns %d times, want %d: %v", logs.Len(), is.warnings, logs.All())
			}
		})
	}
	t.Run("root", func(t *testing.T) {
		c := start(t, setup{nodes: 1, before: answer(0, nil)})
		c.members[0].join()
		c.quiet()
	})
}

// TestOutOfTurn: frames in every stage in which they don't belong, and frames that are none, end
// the connection and nothing else. The program is told why.
func TestOutOfTurn(t *testing.T) {
	c := start(t, setup{nodes: 1, ranks: 2})
	m := c.members[0]
	witness := m.joinAs(1)
	call := func(c attach.Call) []byte { return attach.AppendCall(nil, &c) }
	acquire := call(attach.Call{Op: attach.OpAcquire, Ticket: 5, Object: 1, Access: attach.Write})
	arrive := call(attach.Call{Op: attach.OpArrive, Ticket: 5, Object: 1, Parties: 2})
	trap := attach.AppendTrap(nil, &attach.Trap{})
	for name, is := range map[string]struct {
		greeted, trapped bool
		frames           []byte
	}{
		"call before Hello":                  {frames: acquire},
		"stats before Hello":                 {frames: call(attach.Call{Op: attach.OpStats, Ticket: 1})},
		"Trap before Hello":                  {frames: trap},
		"call before Trap":                   {greeted: true, frames: acquire},
		"Release before Trap":                {greeted: true, frames: call(attach.Call{Op: attach.OpRelease, Object: 1, Access: attach.Read})},
		"Hello twice":                        {greeted: true, frames: hello(0)},
		"Trap without descriptor":            {greeted: true, frames: trap},
		"Trap twice":                         {trapped: true, frames: trap},
		"Hello after Trap":                   {trapped: true, frames: hello(0)},
		"Welcome":                            {trapped: true, frames: attach.AppendWelcome(nil, &witness.welcome)},
		"Lost":                               {trapped: true, frames: attach.AppendLost(nil, "you")},
		"Ready":                              {trapped: true, frames: attach.AppendReady(nil)},
		"a ticket that is open":              {trapped: true, frames: append(bytes.Clone(arrive), arrive...)},
		"a ticket that is open, other call":  {trapped: true, frames: append(bytes.Clone(arrive), acquire...)},
		"a call after Bye":                   {trapped: true, frames: append(attach.AppendBye(nil), acquire...)},
		"Bye with a body":                    {trapped: true, frames: []byte{1, 0, 0, 0, byte(attach.KindBye), 0, 0, 0, 7}},
		"a frame of no kind":                 {trapped: true, frames: []byte{0, 0, 0, 0, 0, 0, 0, 0}},
		"a frame that is too long":           {trapped: true, frames: []byte{0xff, 0xff, 0xff, 0xff, byte(attach.KindCall), 0, 0, 0}},
		"a call that is cut short":           {trapped: true, frames: []byte{1, 0, 0, 0, byte(attach.KindCall), 0, 0, 0, byte(attach.OpStats)}},
		"a count of pages while one is open": {trapped: true, frames: append(call(attach.Call{Op: attach.OpUsage, Ticket: 5}), call(attach.Call{Op: attach.OpUsage, Ticket: 6})...)},
		"Hello that is cut short":            {frames: []byte{2, 0, 0, 0, byte(attach.KindHello), 0, 0, 0, 1, 0}},
		"Hello of this version, cut short":   {frames: []byte{4, 0, 0, 0, byte(attach.KindHello), 0, 0, 0, attach.Version, 0, 0, 0}},
		"Hello that is cut off in the midst": {frames: hello(0)[:10]},
	} {
		t.Run(name, func(t *testing.T) {
			conn := m.dial()
			if is.greeted || is.trapped {
				if _, r := greet(t, conn, hello(0)); r != nil {
					t.Fatal(r.Reason)
				}
			}
			if is.trapped {
				if r := handOver(t, conn); r != nil {
					t.Fatal(r.Reason)
				}
			}
			write(t, conn, is.frames)
			if name == "Hello that is cut off in the midst" {
				conn.Close()
			} else if lost := closedBy(t, conn); !strings.HasPrefix(lost, "the daemon has cut this program off: attach: malformed") {
				t.Errorf("the program is told %q", lost)
			}
			eventually(t, "the program is gone", func() bool { return m.counter("programs") == 1 })
		})
	}
	witness.store(0, 0, 1)
	witness.ok(attach.Call{Op: attach.OpAcquire, Object: 1, Access: attach.Write})
	c.quiet()
}

// TestDescriptorFlood: descriptors that belong to no frame are closed, and so is the connection.
func TestDescriptorFlood(t *testing.T) {
	c := start(t, setup{nodes: 1})
	m := c.members[0]
	before := openSockets(t)
	conn := m.dial()
	greet(t, conn, hello(0))
	call := attach.AppendCall(nil, &attach.Call{Op: attach.OpStats, Ticket: 1})
	flood, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if conn.Write(call, flood, flood, flood) != nil {
			break
		}
	}
	unix.Close(flood)
	closedBy(t, conn)
	conn.Close()
	eventually(t, "all descriptors are closed", func() bool { return openSockets(t) == before })
	c.quiet()
}

// TestSlowReader: a program that makes calls and never reads the answers is cut off before it costs
// much memory; one that reads slowly gets them all.
func TestSlowReader(t *testing.T) {
	c := start(t, setup{nodes: 1, ranks: 2})
	m := c.members[0]
	conn := m.dial()
	greet(t, conn, hello(0))
	handOver(t, conn)
	var err error
	for ticket := uint64(1); err == nil; ticket++ {
		err = conn.Write(attach.AppendCall(nil, &attach.Call{Op: attach.OpStats, Ticket: ticket}))
	}
	if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("writing to the node failed with %v", err)
	}
	eventually(t, "the program is cut off", func() bool { return m.counter("programs") == 0 })

	p := m.dial()
	greet(t, p, hello(0))
	handOver(t, p)
	const calls = 300 // more than a socket holds, less than maxOut
	for ticket := range uint64(calls) {
		write(t, p, attach.AppendCall(nil, &attach.Call{Op: attach.OpStats, Ticket: ticket + 1}))
	}
	time.Sleep(time.Millisecond)
	for i := range uint64(calls) {
		if r, err := attach.DecodeReply(read(t, p).Body); err != nil || r.Ticket != i+1 {
			t.Fatalf("answer %d is to call %d: %v", i+1, r.Ticket, err)
		}
	}
	p.Close()
	c.quiet()
}

// TestManyConnections: programs come and go without a word.
func TestManyConnections(t *testing.T) {
	c := start(t, setup{nodes: 1})
	before := openSockets(t)
	for i := range 200 {
		conn := c.members[0].dial()
		if i%2 == 0 {
			write(t, conn, hello(attach.NoRank)[:i%20])
		}
		conn.Close()
	}
	eventually(t, "all have gone", func() bool { return c.members[0].counter("programs") == 0 && openSockets(t) == before })
	c.members[0].want(map[string]uint64{"programs_seen": 0})
	c.quiet()
}

// TestOutOfDescriptors: a program that comes when the node may not open any more descriptors is
// told so and is not left to wait. Descriptors that the garbage of other tests closes let the node
// accept a program all the same, which then says nothing; so does one that is closed here on
// purpose.
func TestOutOfDescriptors(t *testing.T) {
	c := start(t, setup{nodes: 1, ranks: 2})
	m := c.members[0]
	first := m.joinAs(0)
	scarce := newScarcity(t)
	scarce.begin()
	said := scarce.turnedAway(m.socket)
	scarce.end()
	f, _, ok, err := attach.Next(said)
	if !ok || err != nil || f.Kind != attach.KindRefuse {
		t.Fatalf("%v %v %v", f.Kind, ok, err)
	}
	r, err := attach.DecodeRefuse(f.Body)
	if err != nil {
		t.Fatal(err)
	}
	wantRefused(t, &r, attach.RefuseOther, "ulimit -n")
	first.sync()
	m.joinAs(1)
	c.quiet()
}

// scarcity is a process without descriptors.
type scarcity struct {
	*testing.T
	limit   unix.Rlimit
	lowest  int   // all numbers below are in use, unless somebody closes one
	hole    int   // one of them
	sockets []int // to connect with
	taken   []int // by take
}

// newScarcity opens what it takes. Nothing else may fail a test while there is scarcity: it would
// need descriptors to say so.
func newScarcity(t *testing.T) *scarcity {
	s := &scarcity{T: t, hole: -1}
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &s.limit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	for range 32 {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		s.sockets = append(s.sockets, fd)
		// How long an answer is waited for before another connection is tried: only the first finds
		// a descriptor that was just closed.
		wait := patience / 8
		if len(s.sockets) == 1 {
			wait = 300 * time.Millisecond
		}
		timeout := unix.NsecToTimeval(int64(wait))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if s.hole, err = unix.Dup(s.sockets[0]); err != nil {
		t.Fatal(err)
	}
	if s.lowest, err = unix.Dup(s.sockets[0]); err != nil {
		t.Fatal(err)
	}
	unix.Close(s.lowest)
	return s
}

func (s *scarcity) begin() {
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(s.lowest), Max: s.limit.Max}); err != nil {
		s.Fatal(err)
	}
}

// take takes all descriptors that are free.
func (s *scarcity) take() {
	for {
		fd, err := unix.Dup(s.sockets[0])
		if err != nil {
			return
		}
		s.taken = append(s.taken, fd)
	}
}

// turnedAway connects until it is told something, and returns what. The first connection finds a
// descriptor that was just closed.
func (s *scarcity) turnedAway(socket string) []byte {
	said := make([]byte, 256)
	var errs []error
	for i, fd := range s.sockets {
		s.take()
		if i == 0 {
			unix.Close(s.hole)
			s.hole = -1
		}
		err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
		n, readErr := unix.Read(fd, said)
		if err == nil && readErr == nil && n > 0 {
			return said[:n]
		}
		errs = append(errs, err, readErr)
	}
	s.end()
	s.Fatalf("of %d programs none was told that there are no descriptors: %v", len(errs)/2, errs)
	return nil
}

// end gives everything back. It may be called again.
func (s *scarcity) end() {
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &s.limit); err != nil {
		s.Fatal(err)
	}
	if s.hole >= 0 {
		s.taken = append(s.taken, s.hole)
	}
	for _, fd := range append(s.sockets, s.taken...) {
		unix.Close(fd)
	}
	s.sockets, s.taken, s.hole = nil, nil, -1
}

// openSockets is how many sockets this process has open. Other descriptors come and go with the
// garbage of earlier tests.
func openSockets(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, fd := range list {
		if is, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(is, "socket:") {
			count++
		}
	}
	return count
}

// randomCall is one of a program that says whatever its decoder lets through.
func randomCall(rng *rand.Rand) []byte {
	names := []string{"a", "b", strings.Repeat("n", attach.MaxName)}
	c := attach.Call{Op: attach.Op(1 + rng.IntN(10)), Ticket: 1 + rng.Uint64N(6)}
	if rng.IntN(8) == 0 {
		c.Ticket = rng.Uint64() | 1
	}
	small := rng.Uint64N(4)
	switch c.Op {
	case attach.OpAcquire, attach.OpRelease:
		c.Object, c.Access = small, attach.Access(1+rng.IntN(2))
	case attach.OpArrive:
		c.Object, c.Parties, c.Payload = small, 1+uint32(rng.IntN(3)), make([]byte, rng.IntN(attach.MaxContribution+1))
		if rng.IntN(8) == 0 {
			c.Parties = rng.Uint32() | 1
		}
	case attach.OpBind:
		c.Name = names[rng.IntN(3)]
		c.Count, c.ElemBytes, c.TypeHash = rng.Uint64()>>rng.IntN(64), rng.Uint64()>>rng.IntN(64), small
		c.Signature = strings.Repeat("s", rng.IntN(2)*attach.MaxSignature)
	case attach.OpUnbind, attach.OpKeep, attach.OpDiscard:
		c.Name = names[rng.IntN(3)]
	case attach.OpPrefetch:
		c.Object, c.Count, c.Access = rng.Uint64N(2*testPages), 1+rng.Uint64N(2*testPages), attach.Access(1+rng.IntN(2))
	// not of the first pages: a program that behaves has those, and would wait as long as the pin
	// lasts
	case attach.OpPin:
		c.Object, c.Count, c.Access = 64+rng.Uint64N(2*testPages), 1+rng.Uint64N(testPages), attach.Access(1+rng.IntN(2))
	case attach.OpUnpin:
		c.Object = c.Ticket
	}
	if c.Name != "" {
		c.Object = attach.NameHash(attach.NameMemory, c.Name)
	}
	if c.Op == attach.OpRelease || c.Op == attach.OpUnpin {
		c.Ticket = 0
	}
	return attach.AppendCall(nil, &c)
}

// TestRandomCalls: programs that make random valid calls, reuse tickets, leave and die do no harm
// to one that behaves.
func TestRandomCalls(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	c := start(t, setup{nodes: 3, ranks: 30, async: true, net: simDelays(seed)})
	witness := c.members[2].joinAs(29)
	witness.bind("mine", 4)
	for round := range 60 {
		m := c.members[rng.IntN(3)]
		conn := m.dial()
		if _, r := greet(t, conn, hello(int32(round%20))); r != nil {
			t.Fatal(r.Reason)
		}
		if r := handOver(t, conn); r != nil && r.Code != attach.RefuseRank {
			t.Fatal(r.Reason)
		}
		go io.Copy(io.Discard, frames{conn})
		var said []byte
		for range rng.IntN(40) {
			said = append(said, randomCall(rng)...)
		}
		if rng.IntN(2) == 0 {
			said = attach.AppendBye(said)
		}
		_ = conn.Write(said) // the node may have cut it off
		if rng.IntN(4) > 0 {
			conn.Close()
		}
		witness.store(0, 0, uint64(round))
		witness.wantLoad(0, 0, uint64(round))
	}
	witness.sync()
	for i, m := range c.members {
		select {
		case <-m.done:
			t.Fatalf("node %d ended: %v", i, m.err)
		default:
		}
	}
}

// frames reads and discards what a node says.
type frames struct{ *attach.Conn }

func (f frames) Read([]byte) (int, error) {
	if _, err := f.ReadFrame(); err != nil {
		return 0, io.EOF
	}
	return 0, nil
}

// FuzzConversation lets a program say anything to a node: the node must neither crash nor end, and
// serve the next program.
func FuzzConversation(f *testing.F) {
	trap := attach.AppendTrap(nil, &attach.Trap{})
	f.Add(hello(0), byte(0))
	f.Add(append(hello(0), trap...), byte(1))
	f.Add(attach.AppendCall(nil, &attach.Call{Op: attach.OpStats, Ticket: 1}), byte(1))
	f.Add(attach.AppendCall(nil, &attach.Call{Op: attach.OpUsage, Ticket: 1}), byte(1))
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		f.Add(append(randomCall(rng), randomCall(rng)...), byte(2))
	}
	m := start(f, setup{nodes: 1, ranks: 1 << 10}).members[0]
	f.Fuzz(func(t *testing.T, said []byte, stage byte) {
		m := &member{TB: t, node: m.node, socket: m.socket}
		conn := m.dial()
		// of the control page, which would otherwise stay open for as long as the fuzzing lasts
		defer conn.Discard()
		defer conn.Close()
		if stage%3 > 0 {
			greet(t, conn, hello(attach.NoRank))
		}
		if stage%3 > 1 {
			handOver(t, conn)
		}
		_ = conn.Write(said) // the node may have cut it off
		m.ask()              // it still serves others
	})
}

// TestSilentConnections: connections that say nothing, or not enough, as many as there can be, keep
// nobody out.
func TestSilentConnections(t *testing.T) {
	c := start(t, setup{nodes: 1, ranks: 2})
	m := c.members[0]
	first := m.joinAs(0)
	first.store(0, 0, 7)
	var silent []*attach.Conn
	for i := range maxPrograms + 50 {
		conn := m.dial()
		if i%2 == 0 {
			write(t, conn, hello(1)[:i%8])
		}
		silent = append(silent, conn)
	}
	second := m.joinAs(1)
	second.wantLoad(0, 0, 7)
	first.wantLoad(0, 0, 7)
	closedBy(t, silent[0]) // the oldest had to give way
	if n := len(silent); n < maxPrograms {
		t.Errorf("only %d connections", n)
	}
	for _, conn := range silent {
		conn.Close()
	}
	c.quiet()
}

// inventor is a table of which a program says that more and more of its threads have faulted.
type inventor struct {
	pagetable.Table
	proc    pagetable.ProcID // the program; 0: none
	invents *atomic.Bool
	threads uint32
}

func (v *inventor) Attach(proc pagetable.ProcID, fd int, base uintptr) error {
	if v.proc == 0 {
		v.proc = proc
	}
	return v.Table.Attach(proc, fd, base)
}

func (v *inventor) Detach(proc pagetable.ProcID, clean bool) {
	if v.proc == proc {
		v.invents.Store(false)
	}
	v.Table.Detach(proc, clean)
}

func (v *inventor) Poll(events []pagetable.Event) (int, error) {
	if !v.invents.Load() {
		return v.Table.Poll(events)
	}
	for i := range events {
		v.threads++
		events[i] = pagetable.Event{Kind: pagetable.Fault, Proc: v.proc, Thread: v.threads, Page: pagetable.Page(v.threads % 8)}
	}
	return len(events), nil
}

// TestInventedThreads: a program whose threads wait in any number is cut off and told why. The node
// keeps a bounded number of its faults, and forgets them. Others go on.
func TestInventedThreads(t *testing.T) {
	var invents atomic.Bool
	c := start(t, setup{nodes: 1, ranks: 2,
		before: func(n *Node) { n.intake.window.most = 0 },
		table:  func(_ int, fake pagetable.Table) pagetable.Table { return &inventor{Table: fake, invents: &invents} },
	})
	m := c.members[0]
	liar, witness := m.joinAs(0), m.joinAs(1)
	invents.Store(true)
	liar.access(0, false, func([]byte) {}) // wakes the reactor
	eventually(t, "the program is cut off", func() bool { return m.counter("programs") == 1 })
	liar.wantLost("more than 65536 of its threads wait")
	witness.sync()
	m.want(map[string]uint64{"faults_held_back": maxParked})
	c.quiet()
}
