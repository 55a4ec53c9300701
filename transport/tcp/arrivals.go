package tcp

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"dsmd/transport/chassis"
)

// arrivals are what goroutines have found out and the reactor has to act on.
type arrivals struct {
	wait *chassis.Waiting // what the reactor sleeps on

	waiting atomic.Bool // the list may not be empty

	mu   sync.Mutex
	list []arrival // guarded by mu; at most one of each kind for each peer
}

// arrivalKind says what has arrived.
type arrivalKind uint8

const (
	arrivedConnection arrivalKind = iota // a connection that has passed the handshake
	arrivedEnd                           // the certainty that the peer does not come back
	arrivedBreak                         // the news that the peer has lost its end of a connection
	arrivedDoubt                         // a reason to find out whether a connection still works
	// arrivedTick: it is time to see whether any connection has fallen silent. It is of no peer in
	// particular.
	arrivedTick
)

// arrival is a piece of news about a peer.
type arrival struct {
	kind arrivalKind
	// peer is whom it is about. One that was readmitted since is lost, and news of it is void. nil:
	// arrivedTick.
	peer *peer
	call uint64 // arrivedConnection, arrivedBreak: the connection's number

	// arrivedConnection: the connection, and from where each side's stream goes on.
	fd               int     // epoll watches it
	secure           *secure // nil: plain
	sendFrom, recvAt uint64

	err error // arrivedEnd: why
}

// add hands over news and signals the event, which stays signalled until take. Both are done under
// the lock, so that the event is never left signalled over an empty list: the reactor could not
// sleep any more. Later news replaces earlier of the same kind: a reactor that is stopped does not
// gather descriptors.
func (a *arrivals) add(news arrival) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting.Store(true)
	a.wait.Event.Signal()
	for i, old := range a.list {
		if old.kind != news.kind || old.peer != news.peer {
			continue
		}
		if news.kind == arrivedConnection {
			if news.call < old.call {
				old, news = news, old
			}
			unix.Close(old.fd)
		}
		a.list[i] = news
		return
	}
	a.list = append(a.list, news)
}

// take empties the list, and clears the event if it is to be.
func (a *arrivals) take(clear bool) []arrival {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.list
	a.list = nil
	a.waiting.Store(false)
	if clear {
		a.wait.Event.Clear()
	}
	return list
}
