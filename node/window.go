package node

import "dsmd/protocol"

const (
	// aheadBytes is how many pages, in bytes, the Prefetch and Pin calls of all programs of a node
	// have on their way together: four full windows of a call, so that a thread's own fault does
	// not wait long behind them. Beyond that each call has one page, so that none waits for another
	// for ever.
	aheadBytes = 4 << 20
	// mostBytes is how many pages, in bytes, a node has asked for in all. A thread that faults
	// beyond that waits until a page has come.
	mostBytes = 32 << 20
	// leastWindow is how many pages both are at least, where pages are huge.
	leastWindow = 16
	// mostReads times window.most is how many pages of files a node may ask another for at a time:
	// as many for the first time, for a checkpoint, and, with one for each thread, of those that
	// had left memory.
	mostReads = 3
)

// window is how many pages this node asks for at a time: ahead for calls that prefetch, most in
// all.
//
// A node answers each request of another with a page at most, and keeps that page until the other
// has confirmed it. So the window bounds what others keep for this node; queueLimit is how much
// that is. What does not fit waits, and pages that nobody needs yet wait long before faults of
// threads.
// Nothing is refused, however many calls are open and however many threads fault.
type window struct {
	ahead, most int
}

func newWindow(pageBytes int) window { return window{aheadWindow(pageBytes), mostWindow(pageBytes)} }

func aheadWindow(pageBytes int) int { return max(aheadBytes/pageBytes, leastWindow) }
func mostWindow(pageBytes int) int  { return max(mostBytes/pageBytes, leastWindow) }

// otherBytes is for what is queued for a peer and is none of the following: answers to calls, what
// is not confirmed yet, and room to spare.
const otherBytes = 32 << 20

// messageBytes is more than a message without payload takes, with all that transports put around
// it.
const messageBytes = 128

// queueLimit is how many bytes may be queued for one peer: all that legal work can leave there
// while the peer, or the way to it, is slow. A peer that brings about more lies. No memory is set
// aside for it.
func queueLimit(pages uint64, nodes, pageBytes int, survive bool) int {
	most := mostWindow(pageBytes)
	answers := most * (pageBytes + messageBytes) // one page for each that the peer has asked for
	// For each page that any node has asked for: a Forward or an Invalidate, and its answer.
	about := 2 * nodes * most * messageBytes
	// What is on its way to all who wait for it: see protocol.MaxMulticasts.
	multicasts := nodes * protocol.MaxMulticasts * (pageBytes + messageBytes)
	limit := otherBytes + answers + about + multicasts
	if survive {
		// Pages that others have asked for are committed first, to backups there.
		limit += (nodes - 1) * answers
		// In a recovery this node reports what it has of each page.
		limit += int(pages) * protocol.PageReportBytes
	}
	return limit
}
