package nemesis

import (
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// stormSpan is how long faults come one upon another before all are mended.
	stormSpan = 15 * time.Second
	// pauseAtMost lies between two faults.
	pauseAtMost = time.Second
	// lastsAtMost is how long a fault lasts: so long that everybody notices, and much shorter than
	// what makes a daemon give another up.
	lastsAtMost = 3 * time.Second
	// atOnce is how many faults there are at a time, at most.
	atOnce = 3
)

// harm is a fault that was done and not mended.
type harm struct {
	what  string
	until time.Time
	mend  func()
}

// storm makes faults at random moments for a while. When it returns all are mended.
func (c *campaign) storm(span time.Duration) {
	c.t.Helper()
	var deck []Fault
	next := time.Now()
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	c.stormy = true
	for end := time.Now().Add(span); len(c.wrong) == 0 && time.Now().Before(end); <-ticks.C {
		c.watch()
		if len(c.harms) >= atOnce || time.Now().Before(next) || len(c.wrong) > 0 {
			continue
		}
		next = time.Now().Add(time.Duration(c.r.Int64N(int64(pauseAtMost))))
		// As with cards: no kind comes twice before every other has come.
		if len(deck) == 0 {
			deck = slices.Clone(c.Faults)
			c.r.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		c.strike(deck[0])
		deck = deck[1:]
	}
	c.stormy = false
	c.mendAll()
}

// mendOld mends what has lasted long enough.
func (c *campaign) mendOld() {
	c.harms = slices.DeleteFunc(c.harms, func(h harm) bool {
		over := time.Now().After(h.until)
		if over {
			c.mend(h)
		}
		return over
	})
}

// strike makes a fault of a kind, if there is anybody whom it can harm.
func (c *campaign) strike(kind Fault) {
	c.t.Helper()
	lasts := time.Duration(c.r.Int64N(int64(lastsAtMost)))
	what, mend := kind.strike(c)
	if what == "" {
		return
	}
	c.report.fault(kind.Name(), what)
	if mend != nil {
		c.harms = append(c.harms, harm{what, time.Now().Add(lasts), mend})
	}
	if len(c.wrong) == 0 && c.tooFew {
		// that others end can only be waited for when everything else is whole
		c.tooFew = false
		c.mendAll()
		c.bury()
	}
}

func (c *campaign) mend(h harm) {
	c.report.say("over: " + h.what)
	h.mend()
}

func (c *campaign) mendAll() {
	for _, h := range c.harms {
		c.mend(h)
	}
	c.harms = nil
}

// pick chooses one of some, if there are any.
func pick[T any](r *rand.Rand, list []T) (one T, ok bool) {
	if len(list) == 0 {
		return one, false
	}
	return list[r.IntN(len(list))], true
}
