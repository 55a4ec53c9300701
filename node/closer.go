package node

import (
	"sync"

	"golang.org/x/sys/unix"
)

// mostClosing bounds the goroutines that close descriptors, each of which may keep a thread.
const mostClosing = 16

// closer closes what programs have given. On some file systems that may take for ever, so neither
// the reactor nor the end of the node waits for it. What is behind mostClosing that hang stays
// open.
type closer struct {
	mu      sync.Mutex
	waiting []func() error
	closing int    // goroutines
	hold    func() // called before each is closed; nil: nothing is, but in tests
}

// close closes descriptors, soon.
func (c *closer) close(fds ...int) {
	for _, fd := range fds {
		c.later(func() error { return unix.Close(fd) })
	}
}

// later calls what closes something.
func (c *closer) later(shut func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, shut)
	if c.closing < mostClosing {
		c.closing++
		go c.work()
	}
}

// work closes until nothing waits.
func (c *closer) work() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.waiting) > 0 {
		shut, hold := c.waiting[0], c.hold
		c.waiting = c.waiting[1:]
		c.mu.Unlock()
		if hold != nil {
			hold()
		}
		_ = shut() // what is left of it is its program's
		c.mu.Lock()
	}
	c.closing--
}
