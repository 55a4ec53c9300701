package rdma

import (
	"sync/atomic"
	"time"

	"dsmd/internal/netio"
)

// clock wakes the reactor for what is due at a time.
type clock struct {
	event *netio.Event // wakes the reactor
	timer *time.Timer
	at    time.Time   // when the timer rings; zero: it does not
	rang  atomic.Bool // and the event is signalled
}

func (c *clock) init(event *netio.Event) {
	c.event = event
	c.timer = time.AfterFunc(time.Hour, c.ring)
	c.timer.Stop()
}

// ringAt makes the reactor's descriptor readable at a time, or before.
func (c *clock) ringAt(at time.Time) {
	if c.at.IsZero() || at.Before(c.at) {
		c.at = at
		c.timer.Reset(max(time.Until(at), 0))
	}
}

// ring is called by the timer, on a goroutine of its own.
func (c *clock) ring() {
	c.rang.Store(true)
	c.event.Signal()
}

// taken notes that the reactor looks what is due.
func (c *clock) taken() {
	c.at = time.Time{}
	c.rang.Store(false)
	c.event.Clear()
}
