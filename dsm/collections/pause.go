package collections

import (
	"context"
	"runtime"
	"time"
)

// Who waits for another to change a page looks at it again after a while. A look makes the page
// travel only if it has changed.
const (
	promptLooks   = 20 // without a pause: others on this node are ready in a microsecond
	firstPause    = 20 * time.Microsecond
	longestPause  = time.Millisecond
	pauseDoubling = 4 // looks
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
