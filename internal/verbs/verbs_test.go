//go:build rdma

package verbs_test

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/verbs"
	"dsmd/internal/verbs/verbstest"

	patient "dsmd/internal/patience"
)

var patience = patient.Or(20 * time.Second)

// side is one end of a connection with everything it needs.
type side struct {
	t       *testing.T
	dev     *verbs.Device
	port    verbs.PortInfo
	gid     verbs.GID
	limits  verbs.Limits
	pd      *verbs.PD
	memory  *verbs.Memory
	mr      *verbs.MR
	channel *verbs.Channel
	cq      *verbs.CQ
	srq     *verbs.SRQ
	qp      *verbs.QP
}

const memoryBytes = 1 << 20

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// newSide makes a queue pair whose receives are those of a shared queue, or its own.
func newSide(t *testing.T, info verbs.DeviceInfo, shared bool) *side {
	t.Helper()
	s := &side{t: t, limits: info.Limits}
	s.port, s.gid, _ = info.UsablePort()
	s.dev = must[*verbs.Device](t)(verbs.Open(info.Name))
	s.pd = must[*verbs.PD](t)(s.dev.NewPD())
	s.memory = must[*verbs.Memory](t)(verbs.Map(memoryBytes, true))
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	s.mr = must[*verbs.MR](t)(s.pd.Register(s.memory.Bytes(), access))
	s.channel = must[*verbs.Channel](t)(s.dev.NewChannel())
	s.cq = must[*verbs.CQ](t)(s.dev.NewCQ(64, s.channel))
	c := verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, MaxSend: 32, MaxSGE: 2, MaxInline: 64}
	if shared {
		s.srq = must[*verbs.SRQ](t)(s.pd.NewSRQ(32))
		c.SRQ = s.srq
	} else {
		c.MaxRecv = 32
	}
	s.qp = must[*verbs.QP](t)(s.pd.NewQP(c))
	t.Cleanup(func() {
		closers := []interface{ Close() error }{s.qp, s.cq, s.channel, s.mr, s.memory, s.pd, s.dev}
		if s.srq != nil {
			closers = append(closers[:1], append([]interface{ Close() error }{s.srq}, closers[1:]...)...)
		}
		for _, c := range closers {
			if err := c.Close(); err != nil {
				t.Errorf("%T: %v", c, err)
			}
		}
	})
	return s
}

// join connects two sides by telling each the other's endpoint.
func join(t *testing.T, a, b *side) {
	t.Helper()
	for _, s := range []*side{a, b} {
		if err := s.qp.Init(s.port.Number); err != nil {
			t.Fatal(err)
		}
	}
	for _, pair := range [][2]*side{{a, b}, {b, a}} {
		s, peer := pair[0], pair[1]
		reads := min(s.limits.MaxReadsPerQP, 4)
		if err := s.qp.ReadyToReceive(s.port.Number, s.gid.Index, peer.endpoint(), s.port.ActiveMTU, reads); err != nil {
			t.Fatal(err)
		}
		if err := s.qp.ReadyToSend(reads); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *side) endpoint() verbs.Endpoint { return s.qp.Endpoint(s.port, s.gid) }

func (s *side) recv(id uint64, offset, length int) {
	s.t.Helper()
	r := []verbs.RecvRequest{{ID: id, SGE: s.sge(offset, length), SGEs: 1}}
	var err error
	if s.srq != nil {
		_, err = s.srq.PostRecv(r)
	} else {
		_, err = s.qp.PostRecv(r)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *side) sge(offset, length int) verbs.SGE {
	return verbs.SGE{Addr: s.mr.Addr() + uint64(offset), Length: uint32(length), LKey: s.mr.LKey()}
}

func (s *side) post(r ...verbs.SendRequest) {
	s.t.Helper()
	if n, err := s.qp.PostSend(r); err != nil || n != len(r) {
		s.t.Fatalf("%d of %d requests posted: %v", n, len(r), err)
	}
}

// complete polls until one completion is there.
func (s *side) complete() verbs.Completion {
	s.t.Helper()
	var c [1]verbs.Completion
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		n, err := s.cq.Poll(c[:])
		if err != nil {
			s.t.Fatal(err)
		}
		if n == 1 {
			return c[0]
		}
	}
	s.t.Fatalf("no completion after %v", patience)
	return verbs.Completion{}
}

func (s *side) expect(id uint64, op verbs.WCOp) verbs.Completion {
	s.t.Helper()
	c := s.complete()
	if c.Status != verbs.Success || c.ID != id || c.Op != op {
		s.t.Fatalf("completion %+v (%v), want number %d, operation %d", c, c.Status, id, op)
	}
	return c
}

func TestReliableConnection(t *testing.T) {
	devices := verbstest.Require(t)
	a, b := newSide(t, devices[0], true), newSide(t, devices[len(devices)-1], true)
	join(t, a, b)
	exercise(t, a, b)
}

// exercise does everything that a reliable connection can do, from a to b.
func exercise(t *testing.T, a, b *side) {
	t.Helper()
	am, bm := a.memory.Bytes(), b.memory.Bytes()
	copy(am, "a page of data")
	copy(am[4096:], "about it")
	// A write and the message about it are one chain, and the message finds the data there.
	b.recv(7, 8192, 100)
	a.post(
		verbs.SendRequest{ID: 1, Op: verbs.OpWrite, SGE: [2]verbs.SGE{a.sge(0, 4096)}, SGEs: 1, RemoteAddr: b.mr.Addr() + 16384, RKey: b.mr.RKey()},
		verbs.SendRequest{ID: 2, Op: verbs.OpSend, Flags: verbs.Inline | verbs.Signaled, SGE: [2]verbs.SGE{a.sge(4096, 5), a.sge(4101, 3)}, SGEs: 2},
	)
	if c := b.expect(7, verbs.WCRecv); c.Bytes != 8 || c.QPN != b.qp.QPN() {
		t.Errorf("received %+v, want 8 bytes", c)
	}
	if string(bm[8192:8200]) != "about it" || !bytes.HasPrefix(bm[16384:], []byte("a page of data")) {
		t.Errorf("received %q and %q", bm[8192:8200], bm[16384:16400])
	}
	a.expect(2, verbs.WCSend)

	b.recv(8, 0, 0)
	a.post(verbs.SendRequest{ID: 3, Op: verbs.OpWriteImm, Imm: 0xCAFE, Flags: verbs.Signaled, SGE: [2]verbs.SGE{a.sge(0, 100)}, SGEs: 1, RemoteAddr: b.mr.Addr() + 20480, RKey: b.mr.RKey()})
	if c := b.expect(8, verbs.WCRecvImm); c.Imm != 0xCAFE || c.Flags&verbs.HasImm == 0 {
		t.Errorf("received %+v, want 0xCAFE", c)
	}
	a.expect(3, verbs.WCWrite)

	a.post(verbs.SendRequest{ID: 4, Op: verbs.OpRead, Flags: verbs.Signaled, SGE: [2]verbs.SGE{a.sge(32768, 14)}, SGEs: 1, RemoteAddr: b.mr.Addr() + 16384, RKey: b.mr.RKey()})
	a.expect(4, verbs.WCRead)
	if string(am[32768:32782]) != "a page of data" {
		t.Errorf("read %q", am[32768:32782])
	}
}

// TestProtection: memory that is not the peer's to touch is not touched, and the connection ends.
func TestProtection(t *testing.T) {
	devices := verbstest.Require(t)
	a, b := newSide(t, devices[0], true), newSide(t, devices[0], true)
	join(t, a, b)
	private := must[*verbs.Memory](t)(verbs.Map(4096, false))
	mr := must[*verbs.MR](t)(b.pd.Register(private.Bytes(), verbs.AccessLocalWrite))
	defer func() {
		if err := errors.Join(mr.Close(), private.Close()); err != nil {
			t.Error(err)
		}
	}()
	copy(a.memory.Bytes(), "evil")
	a.post(verbs.SendRequest{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, SGE: [2]verbs.SGE{a.sge(0, 4)}, SGEs: 1, RemoteAddr: mr.Addr(), RKey: mr.RKey()})
	if c := a.complete(); c.Status == verbs.Success {
		t.Errorf("a write to memory that allows none: %v", c.Status)
	}
	if string(private.Bytes()[:4]) == "evil" {
		t.Error("memory was written that allows no remote writes")
	}
	a.post(verbs.SendRequest{ID: 2, Op: verbs.OpWrite, Flags: verbs.Signaled, SGE: [2]verbs.SGE{a.sge(0, 4)}, SGEs: 1, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
	if c := a.complete(); c.Status != verbs.FlushError {
		t.Errorf("a request after the failure: %v, want %v", c.Status, verbs.FlushError)
	}
}

func TestReceivesOfItsOwn(t *testing.T) {
	devices := verbstest.Require(t)
	a, b := newSide(t, devices[0], false), newSide(t, devices[len(devices)-1], false)
	join(t, a, b)
	copy(a.memory.Bytes(), "hello")
	b.recv(9, 512, 64)
	a.post(verbs.SendRequest{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled, SGE: [2]verbs.SGE{a.sge(0, 5)}, SGEs: 1})
	a.expect(1, verbs.WCSend)
	b.expect(9, verbs.WCRecv)
	if got := b.memory.Bytes()[512:517]; string(got) != "hello" {
		t.Errorf("received %q", got)
	}
}

// TestNotify: one who sleeps on the channel is woken by a completion.
func TestNotify(t *testing.T) {
	devices := verbstest.Require(t)
	a, b := newSide(t, devices[0], true), newSide(t, devices[0], true)
	join(t, a, b)
	b.recv(1, 0, 64)
	if err := b.cq.Notify(); err != nil {
		t.Fatal(err)
	}
	if ok, err := b.channel.Event(); ok || err != nil {
		t.Fatalf("an event before anything has happened: %v, %v", ok, err)
	}
	a.post(verbs.SendRequest{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled, SGE: [2]verbs.SGE{a.sge(0, 5)}, SGEs: 1})
	wait(t, b.channel.FD())
	if ok, err := b.channel.Event(); !ok || err != nil {
		t.Fatalf("no event, although the channel is readable: %v", err)
	}
	b.expect(1, verbs.WCRecv)
	a.expect(1, verbs.WCSend)
}

func wait(t *testing.T, fd int) {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(patience/time.Millisecond))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n != 1 || err != nil {
			t.Fatalf("descriptor %d did not become readable: %v", fd, err)
		}
		return
	}
}

// TestConnectionManager connects by librdmacm.
func TestConnectionManager(t *testing.T) {
	devices := verbstest.Require(t)
	a, b := newSide(t, devices[0], true), newSide(t, devices[len(devices)-1], true)
	channel := must[*verbs.ConnChannel](t)(verbs.NewConnChannel())
	listener := must[*verbs.ConnID](t)(channel.NewID())
	address := netip.AddrPortFrom(b.gid.Addr.Unmap(), 0)
	port := must[uint16](t)(listener.Listen(address, 1))
	next := func(want verbs.ConnEventType) verbs.ConnEvent {
		t.Helper()
		for {
			e, ok, err := channel.Next()
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				wait(t, channel.FD())
				continue
			}
			if e.Type != want {
				t.Fatalf("event %v (%d), want %v", e.Type, e.Status, want)
			}
			return e
		}
	}
	try := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	id := must[*verbs.ConnID](t)(channel.NewID())
	try(id.ResolveAddr(netip.AddrPortFrom(a.gid.Addr.Unmap(), 0), netip.AddrPortFrom(address.Addr(), port), time.Second))
	next(verbs.AddrResolved)
	if id.DeviceName() != a.dev.Name() {
		t.Errorf("the way leads through device %s, want %s", id.DeviceName(), a.dev.Name())
	}
	try(id.ResolveRoute(time.Second))
	next(verbs.RouteResolved)
	try(id.Prepare(a.qp, verbs.StateInit))
	try(id.Connect(a.qp, []byte("who I am"), 1))
	request := next(verbs.ConnectRequest)
	if request.Listener != listener || !bytes.HasPrefix(request.Private, []byte("who I am")) {
		t.Errorf("a request for %p with %q", request.Listener, request.Private)
	}
	for _, state := range []verbs.ConnState{verbs.StateInit, verbs.StateReadyToReceive, verbs.StateReadyToSend} {
		try(request.ID.Prepare(b.qp, state))
	}
	try(request.ID.Accept(b.qp, []byte("welcome"), 1))
	if e := next(verbs.ConnectResponse); !bytes.HasPrefix(e.Private, []byte("welcome")) {
		t.Errorf("the answer says %q", e.Private)
	}
	try(id.Prepare(a.qp, verbs.StateReadyToReceive))
	try(id.Prepare(a.qp, verbs.StateReadyToSend))
	try(id.Establish())
	next(verbs.Established)
	exercise(t, a, b)
	try(id.Disconnect())
	next(verbs.Disconnected)
	try(request.ID.Disconnect())
	next(verbs.Disconnected)
	try(errors.Join(id.Close(), request.ID.Close(), listener.Close(), channel.Close()))
}

func TestErrors(t *testing.T) {
	if _, err := verbs.Open("no such device"); !errors.Is(err, verbs.ErrNoDevice) {
		t.Errorf("Open of a device that does not exist: %v, want ErrNoDevice", err)
	}
	if _, err := verbs.Map(0, false); err == nil {
		t.Error("Map of nothing succeeds")
	}
}

// TestFastPathDoesNotAllocate: posting and polling leave the collector nothing to do.
func TestFastPathDoesNotAllocate(t *testing.T) {
	devices := verbstest.Require(t)
	a, b := newSide(t, devices[0], true), newSide(t, devices[0], true)
	join(t, a, b)
	send := []verbs.SendRequest{{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, SGE: [2]verbs.SGE{a.sge(0, 8)}, SGEs: 1, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}}
	var done [4]verbs.Completion
	if allocs := testing.AllocsPerRun(100, func() {
		if _, err := a.qp.PostSend(send); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(patience); ; {
			n, err := a.cq.Poll(done[:])
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("no completion: %v", err)
			}
			if n > 0 {
				return
			}
		}
	}); allocs != 0 {
		t.Errorf("a write and its completion allocate %v times", allocs)
	}
}
