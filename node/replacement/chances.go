package replacement

import "math/rand/v2"

// fate is how the node parts with a page. A page that is here has the fate of those that are turned
// away from the main queue, as one that is new or as one that has come back.
type fate uint8

const (
	newcomer fate = iota
	returned
	leftMain
	fates
)

const (
	// firstNew and firstReturned are the chances of new pages and of those that have come back
	// until more is known: of a sweep a part is to stay, and what comes back is used more often.
	firstNew, firstReturned = 1. / 16, 1. / 2
	// leastChance bounds chances from below, and from above what is missing to certainty: what is
	// never tried teaches nothing.
	leastChance = 1. / 64
	// chanceStep is by how much a chance changes in a period.
	chanceStep = 1.5
)

// chances are how likely pages are to get into the main queue, and what that is learned from.
type chances struct {
	of [leftMain]float64
	// gone are pages that have left, and early those of them that came back; see back. What was in
	// a period counts half as much in the next.
	gone, early [fates]float64
	random      *rand.Rand
}

func newChances() chances {
	return chances{
		of:     [leftMain]float64{newcomer: firstNew, returned: firstReturned},
		random: rand.New(rand.NewPCG(1, 1)), // the same choices in each run
	}
}

// draw is whether a page gets into the main queue.
func (c *chances) draw(f fate) bool { return c.random.Float64() < c.of[f] }

// back notes that a page has come back: the sooner, the more it counts, at most 1.
func (c *chances) back(f fate, weight float64) { c.early[f] += weight }

// regret is how many of the pages that left so came back, as they count.
func (c *chances) regret(f fate) float64 { return c.early[f] / (c.gone[f] + 1) }

// learn ends a period.
func (c *chances) learn() {
	for f := range leftMain {
		switch away, main := c.regret(f), c.regret(leftMain); {
		case away > main:
			c.of[f] = min(c.of[f]*chanceStep, 1-leastChance)
		case away < main:
			c.of[f] = max(c.of[f]/chanceStep, leastChance)
		}
	}
	for f := range fates {
		c.gone[f] /= 2
		c.early[f] /= 2
	}
}
