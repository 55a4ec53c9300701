package node

import (
	"slices"
	"sync"
	"sync/atomic"

	"dsmd/internal/netio"
	"dsmd/transport"
)

// news is what other goroutines have to tell the reactor: which peers are lost, which ranks, how
// much memory there is, what the daemon's other reactors want, and that it is to end.
type news struct {
	wake *netio.Event // ends the reactor's sleep

	mu    sync.Mutex
	peers []failure                 // that are lost; at most one for each; guarded by mu
	known map[transport.NodeID]bool // guarded by mu
	ranks []uint32                  // that are lost without their node; guarded by mu
	// memory is for how many bytes of pages there is room from now on; 0: as before; guarded by mu.
	memory  uint64
	stopped bool // the reactor is to end; guarded by mu
	ended   bool // there is no reactor any more; guarded by mu
	// now is told at once, while there is no reactor yet; guarded by mu.
	now func(failure)

	calls []func()    // that the reactor is to make; guarded by mu
	hints []func()    // the same, the last maxHints; guarded by mu
	some  atomic.Bool // there are calls, or hints
}

// maxHints bounds the hints that wait for a reactor which sleeps.
const maxHints = 16

// tell has the reactor call f, after what it was told before.
func (w *news) tell(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	if w.calls = append(w.calls, f); len(w.calls) == 1 {
		w.wake.Signal() // under the lock: the descriptor is closed after end
	}
	w.some.Store(true)
}

// hint has the reactor call f when it is awake, unless many other hints come before that.
func (w *news) hint(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.hints) == maxHints {
		w.hints = append(w.hints[:0], w.hints[1:]...)
	}
	w.hints = append(w.hints, f)
	w.some.Store(true)
}

// told returns what the reactor is to call.
func (w *news) told() (calls []func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	calls = append(w.hints, w.calls...)
	w.calls, w.hints = nil, nil
	w.some.Store(false)
	return calls
}

// failure is a peer that somebody else than the transport has found lost.
type failure struct {
	peer transport.NodeID
	err  error
}

// during has tell called for each failure, also for those that are known already, until it is
// replaced; nil replaces it by nothing.
func (w *news) during(tell func(failure)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = tell
	for _, x := range w.peers {
		if tell != nil {
			tell(x)
		}
	}
}

func (w *news) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.wake.Signal()
}

func (w *news) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
}

// take returns what has come since the last take.
func (w *news) take() (peers []failure, ranks []uint32, memory uint64, stopped bool) {
	w.wake.Clear()
	w.mu.Lock()
	defer w.mu.Unlock()
	peers, w.peers = w.peers, nil
	ranks, w.ranks = w.ranks, nil
	memory, w.memory = w.memory, 0
	return peers, ranks, memory, w.stopped
}

// forget has the loss of a peer's successor count again.
func (w *news) forget(peer transport.NodeID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.known, peer)
}

func (w *news) peerFailed(peer transport.NodeID, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || w.known[peer] {
		return
	}
	if w.known == nil {
		w.known = map[transport.NodeID]bool{}
	}
	w.known[peer] = true
	w.peers = append(w.peers, failure{peer, err})
	if w.now != nil {
		w.now(failure{peer, err})
	}
	w.wake.Signal() // under the lock: the descriptor is closed after end
}

func (w *news) rankLost(rank uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || slices.Contains(w.ranks, rank) {
		return
	}
	w.ranks = append(w.ranks, rank)
	w.wake.Signal() // under the lock: the descriptor is closed after end
}

func (w *news) setMemory(bytes uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.memory = bytes; !w.ended {
		w.wake.Signal() // under the lock: the descriptor is closed after end
	}
}

// SetMemory changes for how many bytes of pages a node has room: what it has too much it parts with
// soon. It means something only where there is a bound (Config.Memory). bytes is at least
// MinMemoryBytes. It may be called from any goroutine, before and during Run and after it.
func (n *Node) SetMemory(bytes uint64) {
	for _, o := range n.reactors() {
		o.news.setMemory(max(bytes/uint64(n.partition.division.Partitions()), MinMemoryBytes))
	}
}

// MemoryUsed is how many bytes of pages a node has in memory; 0 if there is no bound. It may be
// called from any goroutine.
func (n *Node) MemoryUsed() (bytes uint64) {
	for _, o := range n.reactors() {
		bytes += uint64(o.meter.count.pages.Load()) * uint64(o.drive.exec.table.PageBytes())
	}
	return bytes
}

// PeerFailed tells a node that another one is lost for good, in the opinion of somebody who knows
// more than its transport, which may still hope that the connection comes back. err says who it is,
// and why. It may be called from any goroutine, before and during Run and after it, and as often as
// one likes: the first call for each peer counts.
func (n *Node) PeerFailed(peer transport.NodeID, err error) {
	if int(peer) < n.cfg.Nodes && int(peer) != n.cfg.Self {
		for _, o := range n.reactors() {
			o.news.peerFailed(peer, err)
		}
	}
}

// RankLost tells a node that the program of a rank has died and will not come again, in the opinion
// of whoever has started it. With that, all other programs of this node have lost the rank, those
// that are attached and those that attach later: they wait for it at no barrier. It means something
// only where nodes survive the loss of others, and where all programs are of one job. rank is from
// 0 to MaxRanks-1; others are ignored, and so is a rank that is lost already. It may be called from
// any goroutine, before and during Run and after it.
func (n *Node) RankLost(rank int) {
	if rank >= 0 && rank < MaxRanks {
		n.news.rankLost(uint32(rank))
	}
}
