package tcp

import (
	"fmt"
	"sync"

	"dsmd/transport"
)

// maxSparePages bounds how many unused page buffers are held back for reuse; more go to the garbage
// collector. A node has about one page on its way for each thread that waits, so 1,024 (4 MiB of
// 4 KiB pages) covers every steady state, and a burst does not hold its memory for ever.
const maxSparePages = 1024

// pageState says who owns a page. Every use checks it, so that a payload used by one who has given it
// up stops the daemon instead of handing out another page's contents.
type pageState uint8

const (
	pageSpare    pageState = iota // the pool
	pageLeased                    // the caller of Lease
	pageQueued                    // the send queue
	pageBorrowed                  // the handler, until Frame returns: data lies in the receive buffer
	pageKept                      // the handler, until Release: data is the page's own buffer
)

var pageStateNames = [...]string{"released", "leased", "already sent", "borrowed", "kept"}

// page is the transport.Payload of this package.
type page struct {
	pool  *pagePool
	own   []byte // the page's buffer; nil until it is first needed
	data  []byte // what Bytes returns; nil in states that have no reader
	state pageState
	to    transport.NodeID // leased and queued: the peer it may be sent to
}

// Bytes implements transport.Payload.
func (p *page) Bytes() []byte {
	if p.state == pageSpare || p.state == pageQueued {
		panic(fmt.Sprintf("tcp: Bytes of a payload that is %s", pageStateNames[p.state]))
	}
	return p.data
}

// Keep implements transport.Payload. It copies the page, because the receive buffer will be filled
// anew. Only pages that have to wait before they are installed are kept, which is rare.
func (p *page) Keep() {
	if p.state != pageBorrowed {
		panic(fmt.Sprintf("tcp: Keep of a payload that is %s; only a borrowed one, and once", pageStateNames[p.state]))
	}
	p.reserve()
	copy(p.own, p.data)
	p.data = p.own
	p.state = pageKept
}

// Release implements transport.Payload.
func (p *page) Release() {
	if p.state != pageKept && p.state != pageLeased {
		panic(fmt.Sprintf("tcp: Release of a payload that is %s; only a kept or a leased one, and once",
			pageStateNames[p.state]))
	}
	p.pool.put(p)
}

func (p *page) reserve() {
	if p.own == nil {
		p.own = make([]byte, p.pool.pageBytes)
	}
}

// pagePool holds spare pages. Any goroutine may use it: a layer above that closes sends its last frames from there, while the reactor
// still gives pages back.
type pagePool struct {
	pageBytes int

	mu    sync.Mutex
	spare []*page // guarded by mu. Invariant: at most maxSparePages, all in state pageSpare
}

// get returns a page, for the caller to bring into another state.
func (pool *pagePool) get() *page {
	pool.mu.Lock()
	defer pool.mu.Unlock()
	last := len(pool.spare) - 1
	if last < 0 {
		return &page{pool: pool}
	}
	p := pool.spare[last]
	pool.spare = pool.spare[:last]
	return p
}

// put takes a page back, whatever its state was.
func (pool *pagePool) put(p *page) {
	p.state = pageSpare
	p.data = nil
	pool.mu.Lock()
	defer pool.mu.Unlock()
	if len(pool.spare) < maxSparePages {
		pool.spare = append(pool.spare, p)
	}
}
