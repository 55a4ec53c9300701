package rdma

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"

	"dsmd/internal/netio"
	"dsmd/internal/verbs"
)

// fakeFabrics are devices whose memory is in one process: a request is carried out when it is
// posted. They hold the package to what a device demands: a message that finds no receive, or
// memory outside of what is registered, fails the test.
type fakeFabrics struct {
	t testing.TB
	// slow makes connect report at the next setup, as the connection manager does, and has no
	// writes with immediate, as on iWARP.
	slow bool

	mu      sync.Mutex // guards everything below, of all fakes of the network
	regions map[uint32]fakeRegion
	nextKey uint32
	ends    map[uint32]*fakeEnd
	nextEnd uint32
}

type fakeRegion struct {
	owner  *fakeFabric
	bytes  []byte
	remote bool
}

func newFakeFabrics(t testing.TB, slow bool) *fakeFabrics {
	return &fakeFabrics{t: t, slow: slow, regions: make(map[uint32]fakeRegion), ends: make(map[uint32]*fakeEnd), nextKey: 1, nextEnd: 100}
}

// fakeFabric is the device of one node.
type fakeFabric struct {
	all         *fakeFabrics
	completions []verbs.Completion
	receives    []verbs.RecvRequest
	capacity    int // of the completion queue
	armed       bool
	wake, setUp *netio.Event
	news        []fakeNews
	closed      bool
	registered  int
}

type fakeNews struct {
	end  *fakeEnd
	what occurrence
}

func (all *fakeFabrics) device() *fakeFabric {
	f := &fakeFabric{all: all}
	var err, err2 error
	f.wake, err = netio.NewEvent()
	f.setUp, err2 = netio.NewEvent()
	if err := errors.Join(err, err2); err != nil {
		all.t.Fatal(err)
	}
	return f
}

func (f *fakeFabric) name() string { return "fake0" }

// immediate differs between the networks, so that both kinds are tested.
func (f *fakeFabric) immediate() bool { return !f.all.slow }

// allocate gives each region its own range of addresses, whose upper half is the key.
func (f *fakeFabric) allocate(size int, remote bool) (region, error) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	key := f.all.nextKey
	f.all.nextKey++
	f.registered++
	b := make([]byte, size)
	f.all.regions[key] = fakeRegion{f, b, remote}
	return region{bytes: b, addr: uint64(key) << 32, lkey: key, rkey: key}, nil
}

func (f *fakeFabric) open(s Sizes) error {
	f.capacity = s.Completions
	return nil
}

// memory is what a request names. Preconditions: mu is held.
func (all *fakeFabrics) memory(addr uint64, length int, key uint32, allowed func(fakeRegion) bool) ([]byte, error) {
	r, ok := all.regions[key]
	offset := int(uint32(addr))
	if !ok || addr>>32 != uint64(key) || offset+length > len(r.bytes) || !allowed(r) {
		return nil, fmt.Errorf("address %#x, %d bytes, key %d: not there, or not allowed", addr, length, key)
	}
	return r.bytes[offset : offset+length], nil
}

func (f *fakeFabric) local(s verbs.SGE) []byte {
	b, err := f.all.memory(s.Addr, int(s.Length), s.LKey, func(r fakeRegion) bool { return r.owner == f })
	if err != nil {
		f.all.t.Errorf("a request of this node: %v", err)
	}
	return b
}

func (f *fakeFabric) postRecv(requests []verbs.RecvRequest) error {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	for _, r := range requests {
		for _, posted := range f.receives {
			if posted.ID == r.ID {
				f.all.t.Errorf("receive %#x is posted twice", r.ID)
			}
		}
		f.local(r.SGE)
		f.receives = append(f.receives, r)
	}
	return nil
}

func (f *fakeFabric) poll(out []verbs.Completion) (int, error) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	n := copy(out, f.completions)
	f.completions = f.completions[n:]
	return n, nil
}

// complete adds a completion. Preconditions: mu is held.
func (f *fakeFabric) complete(c verbs.Completion) {
	f.completions = append(f.completions, c)
	if len(f.completions) > f.capacity {
		f.all.t.Errorf("%d completions in a queue for %d", len(f.completions), f.capacity)
	}
	if f.armed {
		f.armed = false
		f.wake.Signal()
	}
}

func (f *fakeFabric) arm() error {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.armed = true
	return nil
}

func (f *fakeFabric) fd() int { return f.wake.FD() }

func (f *fakeFabric) event() error {
	f.wake.Clear()
	return nil
}

func (f *fakeFabric) setupFDs() []int { return []int{f.setUp.FD()} }

func (f *fakeFabric) setup(report func(endpoint, occurrence, error)) error {
	f.all.mu.Lock()
	f.setUp.Clear()
	news := f.news
	f.news = nil
	f.all.mu.Unlock()
	for _, n := range news {
		report(n.end, n.what, errors.New("the fake says so"))
	}
	return nil
}

// tell adds news. Preconditions: mu is held.
func (f *fakeFabric) tell(e *fakeEnd, what occurrence) {
	f.news = append(f.news, fakeNews{e, what})
	f.setUp.Signal()
}

func (f *fakeFabric) endpoint() (endpoint, error) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	e := &fakeEnd{f: f, n: f.all.nextEnd}
	f.all.nextEnd++
	f.all.ends[e.n] = e
	return e, nil
}

func (f *fakeFabric) close() error {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.closed = true
	for n, e := range f.all.ends {
		if e.f == f {
			f.all.t.Errorf("a device is closed that has queue pair %d", n)
		}
	}
	return nil
}

func (f *fakeFabric) release() {
	f.wake.Close()
	f.setUp.Close()
}

// fakeEnd is one side of a connection.
type fakeEnd struct {
	f      *fakeFabric
	n      uint32
	peer   uint32 // number of the other side
	failed bool
}

func (e *fakeEnd) number() uint32 { return e.n }

func (e *fakeEnd) maxInline() int { return 200 }

func (e *fakeEnd) describe() []byte { return binary.LittleEndian.AppendUint32(nil, e.n) }

func (e *fakeEnd) accept(peer []byte) error {
	e.f.all.mu.Lock()
	defer e.f.all.mu.Unlock()
	if len(peer) != 4 {
		return fmt.Errorf("%w: %d bytes are no fake", ErrMalformed, len(peer))
	}
	e.peer = binary.LittleEndian.Uint32(peer)
	return nil
}

func (e *fakeEnd) connect(peer []byte) (bool, error) {
	if err := e.accept(peer); err != nil || !e.f.all.slow {
		return err == nil, err
	}
	e.f.all.mu.Lock()
	defer e.f.all.mu.Unlock()
	e.f.tell(e, occurReady)
	return false, nil
}

func (e *fakeEnd) post(requests []verbs.SendRequest) error {
	e.f.all.mu.Lock()
	defer e.f.all.mu.Unlock()
	for _, r := range requests {
		status := e.carryOut(r)
		if status != verbs.Success {
			e.failLocked()
		}
		if status != verbs.Success || r.Flags&verbs.Signaled != 0 {
			e.f.complete(verbs.Completion{ID: r.ID, Status: status, QPN: e.n})
		}
	}
	return nil
}

// carryOut does what a request says, at the peer.
func (e *fakeEnd) carryOut(r verbs.SendRequest) verbs.Status {
	if e.failed {
		return verbs.FlushError
	}
	peer := e.f.all.ends[e.peer]
	if peer == nil || peer.failed || peer.peer != e.n {
		return verbs.RetryExceeded
	}
	data := e.f.local(r.SGE[0])
	if r.SGEs == 2 {
		data = append(bytes.Clone(data), e.f.local(r.SGE[1])...)
	}
	if r.Op == verbs.OpWrite || r.Op == verbs.OpWriteImm {
		to, err := e.f.all.memory(r.RemoteAddr, len(data), r.RKey, func(r fakeRegion) bool { return r.remote && r.owner == peer.f })
		if err != nil {
			e.f.all.t.Errorf("a write: %v", err)
			return verbs.RetryExceeded
		}
		copy(to, data)
		if r.Op == verbs.OpWriteImm {
			return peer.take(nil, verbs.Completion{Op: verbs.WCRecvImm, Imm: r.Imm, Flags: verbs.HasImm})
		}
		return verbs.Success
	}
	if r.Flags&verbs.Inline != 0 && len(data) > e.maxInline() {
		e.f.all.t.Errorf("%d bytes are inline, %d are possible", len(data), e.maxInline())
	}
	return peer.take(data, verbs.Completion{Op: verbs.WCRecv, Bytes: uint32(len(data))})
}

// take uses a receive up for a message, or for the news of a write.
func (e *fakeEnd) take(data []byte, c verbs.Completion) verbs.Status {
	f := e.f
	if len(f.receives) == 0 {
		f.all.t.Error("a message finds no receive")
		return verbs.RNRExceeded
	}
	r := f.receives[0]
	f.receives = f.receives[1:]
	copy(f.local(r.SGE), data)
	c.ID, c.QPN = r.ID, e.n
	f.complete(c)
	return verbs.Success
}

func (e *fakeEnd) fail() {
	e.f.all.mu.Lock()
	defer e.f.all.mu.Unlock()
	e.failLocked()
}

func (e *fakeEnd) failLocked() {
	if !e.failed {
		e.failed = true
		e.f.tell(e, occurDrained)
	}
}

func (e *fakeEnd) close() error {
	e.f.all.mu.Lock()
	defer e.f.all.mu.Unlock()
	delete(e.f.all.ends, e.n)
	return nil
}
