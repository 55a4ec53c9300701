package node

import (
	"slices"
	"time"

	"dsmd/internal/netio"
	"dsmd/protocol"
)

// timers are leases that are running, or pins that somebody waits for. There are few: one for each
// page that was just gained, or is pinned, and is wanted elsewhere.
type timers struct {
	list []timer
	next time.Duration // when the first is due; meaningless if there are none
}

type timer struct {
	at time.Duration
	id protocol.ObjectID
}

// spinForTimer is how close a timer must be to be polled for; sleeping is not exact to less.
const spinForTimer = 60 * time.Microsecond

func (t *timers) add(at time.Duration, id protocol.ObjectID) {
	if len(t.list) == 0 || at < t.next {
		t.next = at
	}
	t.list = append(t.list, timer{at, id})
}

// due takes out a timer whose time has come.
func (t *timers) due(now time.Duration) (protocol.ObjectID, bool) {
	if len(t.list) == 0 || now < t.next {
		return 0, false
	}
	first := 0
	for i := range t.list {
		if t.list[i].at < t.list[first].at {
			first = i
		}
	}
	if t.next = t.list[first].at; now < t.next {
		return 0, false
	}
	id := t.list[first].id
	t.list[first] = t.list[len(t.list)-1]
	t.list = t.list[:len(t.list)-1]
	return id, true
}

// remove takes out the timers of an object, which are not due any more.
func (t *timers) remove(id protocol.ObjectID) {
	t.list = slices.DeleteFunc(t.list, func(x timer) bool { return x.id == id })
}

func (t *timers) soon(now time.Duration) bool { return len(t.list) > 0 && t.next-now < spinForTimer }

// timeout is how long the reactor may sleep.
func (t *timers) timeout(now time.Duration) time.Duration {
	if len(t.list) == 0 {
		return netio.Forever
	}
	return max(t.next-now-spinForTimer/2, 0)
}

// sooner is the shorter of two timeouts, either of which may be netio.Forever.
func sooner(a, b time.Duration) time.Duration {
	if a < 0 || b >= 0 && b < a {
		return b
	}
	return a
}
