package dsm

import (
	"runtime"
	"time"

	"dsmd/internal/controlpage"
	"dsmd/internal/netio"
	"dsmd/internal/spin"
)

// lookout looks for replies on the control page, before the wait at the socket: a reply that comes
// soon then needs no system call on either side, nor the waking of a thread. It belongs to who has
// the turn to read.
type lookout struct {
	page   *controlpage.Page
	budget spin.Budget
	start  time.Time
	read   uint64 // how many frames were read from the socket, as the page counts them
	frame  []byte // the one taken from the page last
}

// newLookout begins when nothing that the daemon has sent by the socket is unread.
func newLookout(page *controlpage.Page) lookout {
	return lookout{page: page, budget: spin.ForReply(), start: time.Now(), read: page.Sent()}
}

func (l *lookout) clock() time.Duration { return time.Since(l.start) }

// forReply looks for a reply, for as long as that is worth it and nothing waits at the socket. The
// frame is valid until the next call.
//
// The goroutine keeps its P meanwhile, because the runtime's own yield costs more than the wait.
// Where there is only one P, the others, of which one may have to give a lock back first, would
// wait for nothing.
func (l *lookout) forReply() (frame []byte, found bool, err error) {
	now := l.clock()
	until := now + l.budget.Until(now)
	if now == until || l.page.Sent() != l.read || runtime.GOMAXPROCS(0) == 1 {
		return nil, false, nil
	}
	// The daemon's reactor has short slices, and the two may share a core.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if slice, err := netio.ShortSlice(); err == nil {
		defer netio.SetSlice(slice)
	}
	replies := l.page.Replies()
	replies.Watch()
	for now < until && !replies.Full() && l.page.Sent() == l.read {
		netio.Yield()
		before := now
		now = l.clock()
		l.budget.Looked(now, now-before)
	}
	if replies.Leave() {
		return nil, false, nil
	}
	l.frame, found, err = replies.Take(l.frame[:0])
	return l.frame, found, err
}

// slept says that a frame was read from the socket, or nothing more will be, and how long that was
// waited for.
func (l *lookout) slept(d time.Duration) {
	l.read++
	l.budget.Slept(d)
}
