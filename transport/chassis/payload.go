package chassis

import (
	"fmt"
	"sync"

	"dsmd/transport"
)

// State is who owns a payload. Every use checks it, so that a payload used by one who has given it
// up stops the daemon instead of handing out another page's contents.
type State uint8

const (
	Spare    State = iota // the pool, or nobody
	Leased                // the caller of Lease
	Queued                // the transport, until the frame is sent
	Borrowed              // the handler, until Frame returns: the page is in the transport's memory
	Kept                  // the handler, until Release: the page is in the payload's own buffer
)

var stateNames = [...]string{"released", "leased", "already sent", "borrowed", "kept"}

// NoSlot is the slot of a payload that has none.
const NoSlot = -1

// Payload is a transport.Payload of a pool.
type Payload struct {
	pool  *Pool
	own   []byte // the payload's own buffer; nil until it is first needed
	data  []byte // what Bytes returns; nil in states that have no reader
	state State
	to    transport.NodeID // leased and queued: the peer it may be sent to
	// Slot is the transport's place for the page. The transport sets it.
	Slot int
}

// Bytes implements transport.Payload.
func (p *Payload) Bytes() []byte {
	if p.state == Spare || p.state == Queued {
		p.misused("Bytes", "")
	}
	return p.data
}

// Keep implements transport.Payload. It copies the page, because the transport uses its memory
// again. Only pages that have to wait before they are installed are kept, which is rare.
func (p *Payload) Keep() {
	if p.state != Borrowed {
		p.misused("Keep", "; only a borrowed one, and once")
	}
	copy(p.Own(), p.data)
	p.data, p.state = p.own, Kept
}

// Release implements transport.Payload.
func (p *Payload) Release() {
	if p.state != Kept && p.state != Leased {
		p.misused("Release", "; only a kept or a leased one, and once")
	}
	p.pool.Put(p)
}

// Free gives the payload back, whatever its state is.
func (p *Payload) Free() { p.pool.Put(p) }

func (p *Payload) misused(method, allowed string) {
	panic(fmt.Sprintf("%s: %s of a payload that is %s%s", p.pool.Name, method, stateNames[p.state], allowed))
}

// Own is the payload's own buffer.
func (p *Payload) Own() []byte {
	if p.own == nil {
		p.own = make([]byte, p.pool.PageBytes)
	}
	return p.own
}

// Lease gives the payload to one who will send it to a peer, and who fills data.
func (p *Payload) Lease(to transport.NodeID, data []byte) { p.state, p.to, p.data = Leased, to, data }

// Queue takes the payload back for a frame.
func (p *Payload) Queue() { p.state = Queued }

// To is the peer the payload was leased for.
func (p *Payload) To() transport.NodeID { return p.to }

// Page is the page, for the transport, in any state but Spare.
func (p *Payload) Page() []byte { return p.data }

// Move tells where the page lies from now on.
func (p *Payload) Move(data []byte) { p.data = data }

// Pool holds spare payloads. Any goroutine may use it: a layer above that closes sends its last
// frames from there, while the reactor still gives payloads back.
type Pool struct {
	Name      string // of the transport, for complaints
	PageBytes int
	MaxSpare  int // how many are held back for reuse; more go to the garbage collector
	// Freed learns of each payload that is put, while it still has its page and its slot. nil:
	// nobody wants to know.
	Freed func(p *Payload)

	mu    sync.Mutex
	spare []*Payload // guarded by mu. Invariant: at most MaxSpare, all in state Spare
}

// Get returns a payload without data, for the caller to bring into another state.
func (pool *Pool) Get() *Payload {
	pool.mu.Lock()
	last := len(pool.spare) - 1
	if last < 0 {
		pool.mu.Unlock()
		return &Payload{pool: pool, Slot: NoSlot}
	}
	p := pool.spare[last]
	pool.spare = pool.spare[:last]
	pool.mu.Unlock()
	return p
}

// Lease returns a payload for a peer, in its own buffer.
func (pool *Pool) Lease(to transport.NodeID) *Payload {
	p := pool.Get()
	p.Lease(to, p.Own())
	return p
}

// Put takes a payload back, whatever its state was.
func (pool *Pool) Put(p *Payload) {
	if pool.Freed != nil {
		pool.Freed(p)
	}
	p.state, p.data, p.Slot = Spare, nil, NoSlot
	pool.mu.Lock()
	if len(pool.spare) < pool.MaxSpare {
		pool.spare = append(pool.spare, p)
	}
	pool.mu.Unlock()
}

// Spares is how many payloads are held back.
func (pool *Pool) Spares() int {
	pool.mu.Lock()
	defer pool.mu.Unlock()
	return len(pool.spare)
}

// Has reports whether a payload is one of the pool's.
func (pool *Pool) Has(payload transport.Payload) bool {
	p, ok := payload.(*Payload)
	return ok && p.pool == pool
}

// Check returns the payload of a frame for a peer, nil if it has none. It must be leased, from this
// pool and for this peer.
func (pool *Pool) Check(to transport.NodeID, payload transport.Payload) *Payload {
	if payload == nil {
		return nil
	}
	if !pool.Has(payload) {
		panic(fmt.Sprintf("%s: Send to node %d of a payload (%T) that this transport has not leased", pool.Name, to, payload))
	}
	p := payload.(*Payload)
	if p.state != Leased || p.to != to {
		panic(fmt.Sprintf("%s: Send to node %d of a payload that is %s (for node %d); lease one for this peer",
			pool.Name, to, stateNames[p.state], p.to))
	}
	return p
}

// Send is transport.Transport's Send but for the queue: enqueue is called behind the gate, with the
// page of the frame, nil if it has none, which is the pool's again if enqueue fails.
func (pool *Pool) Send(gate *Gate, to transport.NodeID, control []byte, payload transport.Payload, enqueue func(page *Payload) error) error {
	CheckControl(pool.Name, control)
	page := pool.Check(to, payload)
	err := transport.ErrClosed
	if gate.Enter() {
		err = enqueue(page)
		gate.Leave()
	}
	if err != nil && page != nil {
		pool.Put(page)
	}
	return err
}

// Lender lends the handler payloads for the time of a call of Frame. It belongs to the reactor.
type Lender struct {
	Pool *Pool
	next *Payload // to be lent; nil: take another one
}

// Lend returns a payload with a page in the transport's memory.
func (l *Lender) Lend(data []byte) *Payload {
	p := l.next
	if p == nil {
		p = l.Pool.Get()
	}
	l.next = nil
	p.state, p.data = Borrowed, data
	return p
}

// Return ends a loan, unless the handler has kept the payload.
func (l *Lender) Return(p *Payload) {
	if p.state == Borrowed {
		p.state, p.data = Spare, nil
		l.next = p
	}
}
