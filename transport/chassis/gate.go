package chassis

import (
	"sync"
	"sync/atomic"
)

// Gate lets the reactor into the methods of a transport until Close begins. What it guards belongs
// to whoever is inside: the reactor during a method, and Close for ever. Nobody waits at it but
// Close.
type Gate struct {
	closing atomic.Bool // set before Close waits for mu
	mu      sync.Mutex
	// handling is true while Poll runs, so that methods called by the Handler don't take mu again.
	// It belongs to the reactor's goroutine, also after Close.
	handling bool
}

// Enter begins a method of the reactor and reports whether it may go on: not after Close.
func (g *Gate) Enter() bool {
	if g.handling {
		return true
	}
	if g.closing.Load() {
		return false
	}
	if g.mu.TryLock() {
		return true
	}
	// Close sets closing before it takes mu, and nobody but it competes with the reactor.
	if !g.closing.Load() {
		panic("transport: two goroutines use one Transport at once; its methods belong to one, the reactor's")
	}
	return false
}

// Leave ends a method that was entered.
func (g *Gate) Leave() {
	if !g.handling {
		g.mu.Unlock()
	}
}

// EnterPoll is Enter for Poll, during which the handler's calls are let in.
func (g *Gate) EnterPoll() bool {
	if g.handling {
		panic("transport: Poll called by a Handler")
	}
	g.handling = g.Enter()
	return g.handling
}

// LeavePoll is Leave for Poll.
func (g *Gate) LeavePoll() {
	g.handling = false
	g.mu.Unlock()
}

// Closing reports whether Close has begun. Any goroutine may ask.
func (g *Gate) Closing() bool { return g.closing.Load() }

// Close shuts the gate, for ever, and waits until the reactor has left. It returns false if it was
// called before. wake makes a reactor that sleeps find out; the reactor may undo the first call of
// it, and not the second.
func (g *Gate) Close(wake func()) bool {
	if g.closing.Swap(true) {
		return false
	}
	wake()
	g.mu.Lock()
	wake()
	return true
}
