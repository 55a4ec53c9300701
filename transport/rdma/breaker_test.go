package rdma

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"

	"dsmd/internal/verbs"
	"dsmd/transport"
)

// breaker breaks queue pairs from outside, of whatever device. It is a transporttest.Cutter.
type breaker struct {
	mu      sync.Mutex
	ends    map[*breakableEnd]bool // those that are open
	fragile bool
	random  *rand.Rand
}

func newBreaker() *breaker {
	return &breaker{ends: make(map[*breakableEnd]bool), random: rand.New(rand.NewPCG(11, 11))}
}

// Cut implements transporttest.Cutter: the queue pair fails at one side or at both.
func (b *breaker) Cut(x, y transport.NodeID, random *rand.Rand) {
	b.mu.Lock()
	defer b.mu.Unlock()
	which := 1 + random.IntN(3)
	for e := range b.ends {
		if e.node == x && e.peer == y && which&1 != 0 || e.node == y && e.peer == x && which&2 != 0 {
			e.breakNow()
		}
	}
}

// Fragile implements transporttest.Cutter.
func (b *breaker) Fragile(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fragile = on
}

// fails reports whether a fragile connection fails now.
func (b *breaker) fails(oneIn int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fragile && b.random.IntN(oneIn) == 0
}

var errInjected = errors.New("injected by a test")

// breakableFabric is a device whose queue pairs a breaker can break.
type breakableFabric struct {
	fabric
	by   *breaker
	node transport.NodeID
}

// nodeBytes is what describe adds: the number of the node, so that the breaker knows who is
// connected to whom.
const nodeBytes = 2

func (f *breakableFabric) endpoint() (endpoint, error) {
	if f.by.fails(3) {
		return nil, errInjected
	}
	inner, err := f.fabric.endpoint()
	if err != nil {
		return nil, err
	}
	e := &breakableEnd{endpoint: inner, by: f.by, node: f.node, peer: f.node}
	f.by.mu.Lock()
	defer f.by.mu.Unlock()
	f.by.ends[e] = true
	return e, nil
}

func (f *breakableFabric) setup(report func(endpoint, occurrence, error)) error {
	return f.fabric.setup(func(inner endpoint, what occurrence, err error) {
		f.by.mu.Lock()
		var found *breakableEnd
		for e := range f.by.ends {
			if e.endpoint == inner {
				found = e
			}
		}
		f.by.mu.Unlock()
		if found != nil {
			report(found, what, err)
		}
	})
}

// breakableEnd is an endpoint that a breaker can break. Its endpoint is used under the breaker's
// lock where the breaker uses it too.
type breakableEnd struct {
	endpoint
	by         *breaker
	node, peer transport.NodeID // the same: not connected yet
	broken     bool
}

// breakNow makes the endpoint fail as if the device had done it. Preconditions: by.mu is held.
func (e *breakableEnd) breakNow() {
	if !e.broken {
		e.broken = true
		e.endpoint.(interface{ breakDown() }).breakDown()
	}
}

func (e *breakableEnd) describe() []byte {
	return binary.LittleEndian.AppendUint16(e.endpoint.describe(), uint16(e.node))
}

func (e *breakableEnd) meet(peer []byte) []byte {
	e.by.mu.Lock()
	defer e.by.mu.Unlock()
	e.peer = transport.NodeID(binary.LittleEndian.Uint16(peer[len(peer)-nodeBytes:]))
	return peer[:len(peer)-nodeBytes]
}

func (e *breakableEnd) accept(peer []byte) error {
	if e.by.fails(3) {
		return errInjected
	}
	return e.endpoint.accept(e.meet(peer))
}

func (e *breakableEnd) connect(peer []byte) (bool, error) {
	if e.by.fails(3) {
		return false, errInjected
	}
	return e.endpoint.connect(e.meet(peer))
}

func (e *breakableEnd) post(requests []verbs.SendRequest) error {
	if e.by.fails(5) {
		e.by.mu.Lock()
		e.breakNow()
		e.by.mu.Unlock()
	}
	return e.endpoint.post(requests)
}

func (e *breakableEnd) close() error {
	e.by.mu.Lock()
	defer e.by.mu.Unlock()
	delete(e.by.ends, e)
	return e.endpoint.close()
}

// breakDown is what a broken link does to the fake: what is posted from here on fails.
func (e *fakeEnd) breakDown() {
	e.f.all.mu.Lock()
	defer e.f.all.mu.Unlock()
	e.failed = true
	// A device notices without a request only that requests are outstanding, and the fake has none.
}
