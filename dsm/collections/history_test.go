package collections_test

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sys/unix"

	"dsmd/dsm"
	"dsmd/dsm/collective"
	"dsmd/internal/kittest"
)

// operation is what a goroutine of some rank did, when, and what came of it.
type operation struct {
	Client, Do, Place int64
	In, Old           int64 // what it was given
	Out               int64 // what it has found
	Is                bool  // whether it has
	Call, Return      int64 // on the clock of now; unknown if nobody has seen the end
}

// unknown is the Return of an operation that may have happened or not.
const unknown = math.MaxInt64

// now reads the kernel's monotonic clock.
func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// rest lets others go on between two operations: a node keeps a page for a while that it has got,
// and would be ready before anybody else had it.
func rest(r *rand.Rand) { time.Sleep(time.Duration(r.IntN(300)) * time.Microsecond) }

// judge returns, on rank 0, whether some order explains what all ranks did. Elsewhere it returns
// porcupine.Unknown.
func judge(t *testing.T, ctx context.Context, among dsm.Group, own []operation, model porcupine.Model) porcupine.CheckResult {
	t.Helper()
	ranks := kittest.Must[[][]operation](t)(collective.Gather(ctx, among, "history", 0, own))
	if ranks == nil {
		return porcupine.Unknown
	}
	var all []porcupine.Operation
	for rank, done := range ranks {
		for _, o := range done {
			all = append(all, porcupine.Operation{ClientId: rank<<8 | int(o.Client), Input: o, Call: o.Call, Return: o.Return})
		}
	}
	return porcupine.CheckOperationsTimeout(model, all, 2*time.Minute)
}

// findPlanted plays until the judge has found a planted bug, which may not show at once.
func findPlanted(t *testing.T, ctx context.Context, c *dsm.Cluster, what string, model porcupine.Model, play func() []operation) {
	t.Helper()
	const rounds = 20
	for range rounds {
		found := judge(t, ctx, c, play(), model) == porcupine.Illegal
		if kittest.Must[bool](t)(dsm.Reduce(ctx, c, what, found, func(a, b bool) bool { return a || b })) {
			return
		}
	}
	t.Errorf("a bug was planted (%s), and all histories can be explained", what)
}
