package attach

import (
	"fmt"
	"time"
)

// WatchDaemon starts the death watch of a program: when the peer of c closes, the process ends with
// the given exit status, and message goes to standard error, unless Stop was called within grace.
//
// A goroutine cannot do this. When the daemon dies nobody answers page faults any more, and a
// goroutine that faults keeps its P. As soon as every P is taken by such a goroutine (with
// GOMAXPROCS=1, one suffices; preemption frees the P of ordinary code, but not of a copy or of
// anything else in the runtime) no goroutine runs again, not the one either that would have
// noticed. So the watch is a thread that Go does not know. It sleeps in the kernel until the
// connection ends; it uses no memory of Go's, and has all signals blocked.
//
// On architectures other than amd64 there is no such thread and the Watch does nothing: a program
// whose processors all wait in faults then hangs until it is killed.
//
// grace lets the program's goroutines come first, who know more about the reason. message is cut to
// MaxText bytes. While the watch runs the connection stays open, also after c.Close: stop it first.
//
// One thing to know: a process that changes its user id after this has a thread with the old one.
func WatchDaemon(c *Conn, grace time.Duration, status int, message string) (*Watch, error) {
	var w *Watch
	var failed error
	err := c.Socket(func(fd int) { w, failed = startWatch(fd, grace, status, clip(message, MaxText)) })
	if err == nil {
		err = failed
	}
	if err != nil {
		return nil, fmt.Errorf("attach: start the thread that watches the daemon: %w", err)
	}
	return w, nil
}
