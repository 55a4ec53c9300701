package kittest

import (
	"context"
	"testing"
	"time"

	"dsmd/dsm"
)

// Cost is what something has cost all ranks together: the faults that had to do with other nodes,
// what was sent, and how long it took from when all were there until all were done.
type Cost struct {
	Faults, Messages, Bytes uint64
	Time                    time.Duration
}

// CostOf calls f on all ranks, and returns to all what that has cost. f is to end without an error.
func CostOf(t *testing.T, ctx context.Context, c *dsm.Cluster, f func() error) Cost {
	t.Helper()
	before := Must[dsm.Stats](t)(c.Stats(ctx))
	Barrier(t, ctx, c)
	began := time.Now()
	if err := f(); err != nil {
		t.Fatal(err)
	}
	Barrier(t, ctx, c)
	took := time.Since(began)
	after := Must[dsm.Stats](t)(c.Stats(ctx))
	own := Cost{after.Faults.Remote() - before.Faults.Remote(), after.Traffic.MessagesSent - before.Traffic.MessagesSent, after.Traffic.BytesSent - before.Traffic.BytesSent, took}
	return Must[Cost](t)(dsm.Reduce(ctx, c, "cost", own, func(a, b Cost) Cost {
		return Cost{a.Faults + b.Faults, a.Messages + b.Messages, a.Bytes + b.Bytes, max(a.Time, b.Time)}
	}))
}

// Versions are two of a program.
type Versions struct {
	Kit  func() error // on the kit
	Hand func() error // as an expert writes it by hand
	// Faults is how many times as many faults as by hand there may be on the kit.
	Faults uint64
}

// Compare bounds what a program costs on the kit: at most one and a half times as much as by hand
// is sent, in messages and in bytes, faults are bounded by v.Faults, and it takes at most four
// times as long. The machine is shared with others, so that ranks may meet where they would not:
// one of five turns has to show it. With -whole there are five, and -v says what each has cost.
func (v Versions) Compare(t *testing.T, ctx context.Context, c *dsm.Cluster) {
	t.Helper()
	good := false
	for range 5 {
		k, h := CostOf(t, ctx, c, v.Kit), CostOf(t, ctx, c, v.Hand)
		if c.Rank() == 0 {
			t.Logf("with the kit %+v, by hand %+v, %.2f times as long", k, h, float64(k.Time)/float64(h.Time))
		}
		good = good || 2*k.Messages <= 3*h.Messages && 2*k.Bytes <= 3*h.Bytes && k.Faults <= v.Faults*h.Faults && k.Time <= 4*h.Time
		if good && !*whole {
			return
		}
	}
	if !good {
		t.Error("it costs more with the kit")
	}
}
