package nemesis

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"dsmd/bench/kernel"
	"dsmd/bench/kernels/sor"
	"dsmd/dsm"
)

// solverEdge is the edge of the grid that is solved: a run takes less than a second where nothing
// is in its way.
const solverEdge = 200

// sorWorkload solves the same equation again and again, together with all other ranks. Rank 0
// compares each result with that of the sequential version, bit by bit. Every iteration is an
// operation.
var sorWorkload = define(&Workload{Name: "sor", Threads: 1, Team: true, work: func(m *member) (job, error) {
	w := &solver{m: m, problem: sor.Kernel.Problem(solverEdge)}
	if m.c.Rank() != 0 {
		return job{w.step, w.finish}, nil
	}
	alone, err := kernel.Sequential(w.problem)
	if err != nil {
		return job{}, err
	}
	if err = alone.Compute(m.ctx, nil); err == nil {
		w.want = alone.Result()
	}
	return job{w.step, w.finish}, err
}})

type solver struct {
	m       *member
	problem kernel.Problem
	want    kernel.Result // what rank 0 has computed alone
}

// solverRest is how long a rank rests at most between two runs.
const solverRest = 300 * time.Millisecond

// step is all runs. At the end of each all ranks agree whether it was the last one.
func (w *solver) step(thread int, r *rand.Rand) error {
	for ; ; time.Sleep(time.Duration(r.Int64N(int64(solverRest)))) {
		if err := w.solve(thread); err != nil {
			return err
		}
		last, err := dsm.Reduce(w.m.ctx, w.m.c, "over", w.m.over.Load(), func(a, b bool) bool { return a || b })
		if err != nil || last {
			w.m.over.Store(true)
			return err
		}
	}
}

// finish has nothing to read: step has verified each run.
func (w *solver) finish() error { return nil }

// solve is this rank's part of a run.
func (w *solver) solve(thread int) error {
	ctx := w.m.ctx
	run, err := kernel.OnCluster(ctx, w.problem, w.m.c, 1)
	if err != nil {
		return fmt.Errorf("preparing: %w", err)
	}
	if err := w.m.c.Barrier(ctx); err != nil {
		return err
	}
	began := now()
	var recorded error
	if err := run.Compute(ctx, func(int, int) {
		var err error
		began, err = w.m.record.stepped(thread, "progress/sor", began)
		recorded = errors.Join(recorded, err)
	}); err != nil {
		return fmt.Errorf("computing: %w", err)
	}
	if err := w.m.c.Barrier(ctx); err != nil {
		return err
	}
	var wrong error
	if w.m.c.Rank() == 0 {
		wrong = w.verify(run)
	}
	return errors.Join(recorded, wrong, w.m.c.Barrier(ctx), run.Close())
}

// verify compares what a run has computed with what the sequential version computes.
func (w *solver) verify(run *kernel.Run) error {
	var wrong error
	lost := dsm.Guard(func() { wrong = w.problem.Verify(w.want, run.Result()) })
	return errors.Join(lost, wrong)
}
