package transporttest

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"dsmd/transport"
)

// Proxies stand between the nodes of a cluster that talk by TCP: each node reaches each other
// through one of its own. They are a Cutter. What passes through them is forwarded byte by byte,
// whatever it is.
type Proxies struct {
	t      testing.TB
	within func(a, b transport.NodeID)

	mu      sync.Mutex
	fragile bool              // guarded by mu
	random  *rand.Rand        // guarded by mu
	open    map[*proxied]bool // guarded by mu
	closed  bool              // guarded by mu
	cuts    int               // guarded by mu
}

// NewProxies makes the proxies of a test, of which there are none yet. They end with the test.
// within, if there is one, has node a end its connection to node b itself; it is one of the ways to
// cut.
func NewProxies(t testing.TB, within func(a, b transport.NodeID)) *Proxies {
	x := &Proxies{t: t, within: within, open: map[*proxied]bool{}, random: rand.New(rand.NewPCG(9, 9))}
	t.Cleanup(x.end)
	return x
}

// proxied is a connection through a proxy.
type proxied struct {
	owner  *Proxies
	a, b   transport.NodeID
	calls  *net.TCPConn // to the node that has called
	called *net.TCPConn
	// What may still pass in each direction, from and to the caller; -1: everything. Guarded by
	// Proxies.mu.
	budget [2]int
	// slow holds back what passes by up to two milliseconds. Guarded by Proxies.mu.
	slow bool
}

// Between makes a proxy for the calls of one node to another, at the given address, and returns its
// own address.
func (x *Proxies) Between(caller, called transport.NodeID, address string) string {
	x.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go x.serve(conn.(*net.TCPConn), caller, called, address)
		}
	}()
	return l.Addr().String()
}

func (x *Proxies) serve(calls *net.TCPConn, a, b transport.NodeID, address string) {
	called, err := net.Dial("tcp", address)
	if err != nil {
		calls.SetLinger(0)
		calls.Close()
		return
	}
	c := &proxied{owner: x, a: a, b: b, calls: calls, called: called.(*net.TCPConn), budget: [2]int{-1, -1}}
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		c.reset()
		return
	}
	x.open[c] = true
	if x.fragile {
		// A handshake has about a hundred bytes in each direction.
		c.budget = [2]int{x.random.IntN(400), x.random.IntN(400)}
	}
	x.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { c.forward(c.called, c.calls, 0) })
	both.Go(func() { c.forward(c.calls, c.called, 1) })
	both.Wait()
	calls.Close()
	called.Close()
	x.mu.Lock()
	delete(x.open, c)
	x.mu.Unlock()
}

// forward passes on bytes in one direction until its budget is used up, the input ends, or the
// connection is reset.
func (c *proxied) forward(to, from *net.TCPConn, direction int) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		allowed, spent, pause := c.spend(direction, n)
		time.Sleep(pause)
		if allowed > 0 {
			if _, err := to.Write(buf[:allowed]); err != nil {
				c.reset()
				return
			}
		}
		switch {
		case spent:
			to.CloseWrite() // The other direction goes on until somebody ends it.
			return
		case err == io.EOF:
			to.CloseWrite()
			return
		case err != nil:
			c.reset()
			return
		}
	}
}

// spend says how many of n bytes may pass, whether those are the last, and how long they are held
// back.
func (c *proxied) spend(direction, n int) (allowed int, last bool, pause time.Duration) {
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	if c.slow {
		pause = time.Duration(c.owner.random.Int64N(int64(2 * time.Millisecond)))
	}
	left := &c.budget[direction]
	if *left < 0 {
		return n, false, pause
	}
	allowed = min(n, *left)
	*left -= allowed
	return allowed, *left == 0, pause
}

// reset ends the connection on both sides and throws away what is under way.
func (c *proxied) reset() {
	c.calls.SetLinger(0)
	c.called.SetLinger(0)
	c.calls.Close()
	c.called.Close()
}

// Cuts is how many connections were cut through the proxies.
func (x *Proxies) Cuts() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.cuts
}

// Cut implements Cutter.
func (x *Proxies) Cut(a, b transport.NodeID, random *rand.Rand) {
	way, direction, bytes := random.IntN(7), random.IntN(2), random.IntN(20_000)
	if way == 0 && x.within != nil {
		x.within(a, b)
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for c := range x.open {
		if (c.a != a || c.b != b) && (c.a != b || c.b != a) {
			continue
		}
		x.cuts++
		switch way {
		case 0, 1: // a reset
			c.reset()
		case 2: // the end, in both directions
			c.calls.Close()
			c.called.Close()
		case 3: // the end in one direction, now
			[]*net.TCPConn{c.calls, c.called}[direction].CloseWrite()
		case 4: // the end in one direction, some bytes later
			c.budget[direction] = bytes
		case 5: // the same, at most in the next frame
			c.budget[direction] = bytes % 40
		case 6: // the end for the caller, while what it has sent is still on its way
			c.slow = true
			c.calls.CloseWrite()
		}
	}
}

// Fragile implements Cutter.
func (x *Proxies) Fragile(on bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.fragile = on
}

// end closes all connections.
func (x *Proxies) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	for c := range x.open {
		c.reset()
	}
}
