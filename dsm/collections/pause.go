package collections

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"dsmd/dsm"
)

// Who waits for another to change a page looks at it again after a while. A look makes the page
// travel only if it has changed.
const (
	promptLooks   = 20 // without a pause: others on this node are ready in a microsecond
	firstPause    = 20 * time.Microsecond
	longestPause  = time.Millisecond
	pauseDoubling = 4 // looks

	// longLooks is after how many looks, some milliseconds, a wait is announced, and longWait how
	// long one is that only waits for another goroutine to look no more.
	longLooks = 48
	longWait  = 10 * time.Millisecond
)

// pause waits before a look, the first of which is number 0.
func pause(ctx context.Context, look int) error {
	if look < promptLooks {
		runtime.Gosched()
		return ctx.Err()
	}
	timer := time.NewTimer(min(firstPause<<min((look-promptLooks)/pauseDoubling, 16), longestPause))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// looks are those of a goroutine for what others have to do, which what and name say: "for room in
// queue", "jobs".
type looks struct {
	c          *dsm.Cluster
	what, name string
	n          int    // so far
	done       func() // ends the announcement; nil: there is none
}

// pause waits before the next look.
func (l *looks) pause(ctx context.Context) error {
	if l.n == longLooks {
		l.announce()
	}
	l.n++
	return pause(ctx, l.n-1)
}

// turn waits until no other goroutine has the turn to look.
func (l *looks) turn(ctx context.Context, turn chan struct{}) error {
	select {
	case turn <- struct{}{}:
		return nil
	default:
	}
	long := time.NewTimer(longWait)
	defer long.Stop()
	ended := ctx.Done()
	for {
		select {
		case turn <- struct{}{}:
			return nil
		case <-ended:
			return ctx.Err()
		case <-long.C:
			l.announce()
		}
	}
}

// announce says that the goroutine waits, until end.
func (l *looks) announce() {
	if l.done == nil {
		l.done = dsm.Waiting(l.c, fmt.Sprintf("%s %q", l.what, l.name))
	}
}

// end is called when there are no more.
func (l *looks) end() {
	if l.done != nil {
		l.done()
	}
}
