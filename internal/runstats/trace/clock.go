package trace

import (
	"math"

	"dsmd/internal/faultlog"
	"dsmd/internal/runstats"
)

// clock is what is known of a node's clock.
type clock struct {
	// shift is what is added to the node's times. It keeps them between the job's start and the
	// moment when they came here, by this machine's clock.
	shift int64
}

// align makes the shift fit the times of a piece. came is when it came, and began when the job did,
// in nanoseconds since 1970.
func (c *clock) align(p *runstats.Piece, log *faultlog.Batch, began, came int64) {
	oldest, newest := int64(math.MaxInt64), int64(math.MinInt64)
	add := func(from, to int64) { oldest, newest = min(oldest, from), max(newest, to) }
	for i := range p.Calls {
		add(p.Calls[i].Began, p.Calls[i].Began+int64(p.Calls[i].Waited))
	}
	for i := range log.Faults {
		add(log.Faults[i].Began, log.Faults[i].Began+int64(log.Faults[i].Waited))
	}
	for i := range log.Departures {
		add(log.Departures[i].At, log.Departures[i].At)
	}
	switch {
	case oldest > newest: // there are none
	case newest+c.shift > came:
		c.shift = came - newest
	case oldest+c.shift < began:
		c.shift = min(began-oldest, came-newest)
	}
}
