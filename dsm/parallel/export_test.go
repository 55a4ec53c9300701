package parallel

import "time"

// SetProgressEvery sets how often a bar is drawn.
func SetProgressEvery(d time.Duration) { progressEvery = d }

// MaxPatience is how long a rank waits for others, before it looks for what they have left.
const MaxPatience = maxPatience

// Die leaves the rank's slot as a program does that dies in a loop: with items, and not its
// successor's.
func Die(t *Team) {
	s := t.own()
	s.program ^= 1
	s.busy.Store(true)
	s.rest[0].put(0, 1000)
	s.rest[1].put(0, 1000)
}
