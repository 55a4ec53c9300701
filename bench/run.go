package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"dsmd/bench/kernel"
	"dsmd/bench/report"
)

// maxThreads is the most goroutines per node that -t takes; more find no processor on any machine.
const maxThreads = 1024

// errNotVerified is returned when the cluster's result is not the right one.
var errNotVerified = errors.New("the result is wrong")

// errSizeAndInput is returned when both are given.
var errSizeAndInput = errors.New("--size and --input: use one of them, the input says how large it is")

func runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run KERNEL",
		Short: "Run a kernel on a cluster, verify its result, and compare its time",
		Long: "Run a kernel three times: sequentially, by goroutines on ordinary memory, and on a cluster of nodes on this\n" +
			"machine; check the cluster's result against the sequential one, and compare the times.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("run takes one kernel, not %d; there are: %s", len(args), strings.Join(kernels.Names(), ", "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.input != "" && cmd.Flags().Changed("size") {
				return errSizeAndInput
			}
			if err := o.resolve(args[0]); err != nil {
				return err
			}
			return o.measured(cmd, func(ctx context.Context, w workplace) (string, any, error) {
				r, wrong, err := compare(ctx, &o, w)
				if err != nil {
					return "", nil, err
				}
				return resultTable(r), r, notVerified(r, wrong)
			})
		},
	}
	o.register(cmd.Flags())
	cmd.Flags().IntVarP(&o.threads, "threads", "t", 1, "goroutines per node")
	cmd.Flags().StringVar(&o.predict, "predict", "", "on or off: whether nodes ask for pages that they have missed in the same order before, as with dsmd run (default: as there)")
	cmd.Flags().StringVar(&o.size, "size", "default", "test, default, large, or a number (see bench list)")
	cmd.Flags().StringVar(&o.input, "input", "", "solve the problem in this file, in the original program's format, instead of one of a size ("+
		strings.Join(kernels.ThatRead(), ", ")+")")
	return cmd
}

// runOptions are the flags of `bench run`, and what they stand for.
type runOptions struct {
	clusterOptions
	task
	threads int

	solved kernel.Problem
	n      int // the number that stands for its size
}

// resolve checks the options and finds the kernel and the problem.
func (o *runOptions) resolve(name string) (err error) {
	if o.kernel, err = kernels.Find(name); err != nil {
		return err
	}
	if o.input != "" {
		// The workers need not have this working directory.
		if o.input, err = filepath.Abs(o.input); err != nil {
			return fmt.Errorf("--input: %w", err)
		}
		o.size = filepath.Base(o.input)
	}
	if o.solved, o.n, err = o.task.problem(); err != nil {
		return err
	}
	if o.threads < 1 || o.threads > maxThreads {
		return fmt.Errorf("-t %d: the number of goroutines per node must be 1 to %d", o.threads, maxThreads)
	}
	return o.check(1)
}

// notVerified is the error of a wrong result, if it is wrong.
func notVerified(r *report.Result, wrong error) error {
	if wrong == nil {
		return nil
	}
	return fmt.Errorf("%s on %d nodes: %w: %w", r.Kernel, r.Nodes, errNotVerified, wrong)
}

// compare runs the three versions. wrong says why the cluster's result is not the sequential one's.
func compare(ctx context.Context, o *runOptions, w workplace) (r *report.Result, wrong, err error) {
	problem := o.solved
	sequential, serial, err := alone(ctx, "sequential version", problem, 1, w.view)
	if err != nil {
		return nil, nil, err
	}
	total := o.nodes * o.threads
	goroutines, parallel, err := alone(ctx, "goroutine version", problem, total, w.view)
	if err != nil {
		return nil, nil, err
	}
	if err := problem.Verify(sequential, goroutines); err != nil {
		return nil, nil, fmt.Errorf("the goroutine version (%d goroutines, ordinary memory): %w: %w", total, errNotVerified, err)
	}
	shared, outcomes, err := onCluster(ctx, o, w)
	if err != nil {
		return nil, nil, err
	}
	r = newResult(o, outcomes, serial, parallel)
	wrong = problem.Verify(sequential, shared)
	r.Verified = wrong == nil
	return r, wrong, nil
}

// solved is what a version computed, and the seconds that computing took.
type solved struct {
	result  kernel.Result
	seconds float64
	err     error
}

// The versions without a cluster are run up to baselineRuns times, as long as that takes no longer
// than baselineBudget, and the shortest time counts: what else this machine does must not make us
// look good.
const (
	baselineRuns   = 3
	baselineBudget = 2 * time.Second
)

// alone solves a problem by goroutines of this process, and returns the result and the shortest
// time.
func alone(ctx context.Context, what string, p kernel.Problem, threads int, view *display) (kernel.Result, float64, error) {
	view.show(what, 0, 0)
	done := make(chan solved, 1)
	go func() { done <- fastest(ctx, p, threads) }()
	// A version without barriers does not notice that ctx is done. This process ends soon after, so
	// leaving the computing to itself is no leak.
	var s solved
	select {
	case s = <-done:
	case <-ctx.Done():
		s.err = context.Cause(ctx)
	}
	if s.err != nil {
		return kernel.Result{}, 0, fmt.Errorf("%s: %w", what, s.err)
	}
	return s.result, s.seconds, nil
}

func fastest(ctx context.Context, p kernel.Problem, threads int) solved {
	start := time.Now()
	best := solve(ctx, p, threads)
	for run := 1; run < baselineRuns && best.err == nil && time.Since(start) < baselineBudget; run++ {
		next := solve(ctx, p, threads)
		if next.err != nil || next.seconds < best.seconds {
			best = next
		}
	}
	return best
}

func solve(ctx context.Context, p kernel.Problem, threads int) solved {
	run, err := kernel.Goroutines(p, threads)
	if err != nil {
		return solved{err: err}
	}
	runtime.GC() // What earlier versions left behind is not this one's.
	start := time.Now()
	if err := run.Compute(ctx, nil); err != nil {
		return solved{err: err}
	}
	seconds := time.Since(start).Seconds()
	return solved{result: run.Result(), seconds: seconds}
}

// onCluster runs the version on shared memory and returns its result and the outcome of every rank.
func onCluster(ctx context.Context, o *runOptions, w workplace) (kernel.Result, []outcome, error) {
	outputPath := filepath.Join(w.dir, "output")
	options, err := o.crew(w, workerRun, "--"+workerInput+"="+o.input, o.kernel.Name, o.size, strconv.Itoa(o.threads), outputPath)
	if err != nil {
		return kernel.Result{}, nil, err
	}
	w.view.show("starting the cluster", 0, 0)
	options.OnProgress = w.view.show
	outcomes, err := withCrew(ctx, options, collect[outcome])
	if err != nil {
		return kernel.Result{}, nil, err
	}
	output, err := readWords(outputPath)
	if err != nil {
		return kernel.Result{}, nil, err
	}
	return kernel.Result{Figures: outcomes[0].Figures, Output: output}, outcomes, nil
}
