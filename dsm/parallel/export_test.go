package parallel

import (
	"context"
	"fmt"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/collections"
)

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

// Refuse has this rank make the memory of a team with another option than New, which fails then.
func Refuse(ctx context.Context, c *dsm.Cluster, name string, size int) error {
	_, err := collections.NewPadded[slot](ctx, c, fmt.Sprintf("parallel/%s/%d", name, size), size, dsm.StaysLost())
	return err
}

// Spoil makes the memory of a team, and rank 2 the last to have stored to the slot of index 0.
func Spoil(ctx context.Context, c *dsm.Cluster, name string, size int) error {
	slots, err := collections.NewPadded[slot](ctx, c, fmt.Sprintf("parallel/%s/%d", name, size), size, dsm.Unsaved())
	if err == nil && c.Rank() == 2 {
		slots.At(0).claim()
	}
	return err
}
