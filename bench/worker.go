package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"dsmd/bench/crew"
	"dsmd/bench/kernel"
	"dsmd/bench/micro"
	"dsmd/bench/storage"
	"dsmd/dsm"
)

// Names by which the driver starts workers.
const (
	workerName    = "worker"
	workerRun     = "run"
	workerMicro   = "micro"
	workerStorage = "storage"
	workerRead    = "read"
	workerBare    = "bare"
	workerInput   = "input" // a flag of workerRun
)

// workerCommand is what the driver starts under `dsmd run`; people have no use for it.
func workerCommand() *cobra.Command {
	cmd := &cobra.Command{Use: workerName, Short: "One rank of a measurement (started by the driver)", Hidden: true}
	var input string
	run := &cobra.Command{
		Use: workerRun + " KERNEL SIZE THREADS OUTPUT CONTROL", Args: cobra.ExactArgs(5),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onLine(cmd.Context(), args[4], func(ctx context.Context, line *crew.Line) error {
				k, err := kernels.Find(args[0])
				if err != nil {
					return err
				}
				return runWorker(ctx, line, task{kernel: k, size: args[1], input: input}, args[2], args[3])
			})
		},
	}
	run.Flags().StringVar(&input, workerInput, "", "solve the problem in this file, instead of one of SIZE")
	cmd.AddCommand(
		run,
		&cobra.Command{
			Use: workerMicro + " CONTROL", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error { return onLine(cmd.Context(), args[0], microWorker) },
		},
		&cobra.Command{
			Use: workerStorage + " WHAT DIRECTORY BYTES CONTROL", Args: cobra.ExactArgs(4),
			RunE: func(cmd *cobra.Command, args []string) error {
				bytes, err := strconv.Atoi(args[2])
				if err != nil {
					return err
				}
				return onLine(cmd.Context(), args[3], func(ctx context.Context, line *crew.Line) error {
					return storageWorker(ctx, line, args[0], args[1], bytes)
				})
			},
		},
		&cobra.Command{
			Use: workerRead + " CONTROL", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error { return onLine(cmd.Context(), args[0], readWorker) },
		},
		&cobra.Command{
			Use: workerBare + " ROLE FILE", Args: cobra.ExactArgs(2),
			RunE: func(cmd *cobra.Command, args []string) error {
				return storage.Play(cmd.Context(), storage.Role(args[0]), args[1], os.Stdin, os.Stdout)
			},
		})
	return cmd
}

// onLine connects to the driver, does work, and tells the driver if it fails.
func onLine(ctx context.Context, control string, work func(context.Context, *crew.Line) error) error {
	rank, err := strconv.Atoi(os.Getenv("DSM_RANK"))
	if err != nil {
		return fmt.Errorf("DSM_RANK: %w (workers are started by the driver, under dsmd run)", err)
	}
	line, err := crew.Connect(ctx, control, rank)
	if err != nil {
		return err
	}
	defer line.Close()
	if err := work(ctx, line); err != nil {
		return errors.Join(err, line.Fail(err))
	}
	return nil
}

// joined does work in the cluster and leaves it.
func joined(ctx context.Context, line *crew.Line, work func(*dsm.Cluster) error) error {
	if err := line.Phase("joining the cluster"); err != nil {
		return err
	}
	// that is giveThreadsProcessors' choice, or a microbenchmark's
	c, err := dsm.Join(ctx, dsm.WithProcs(0))
	if err != nil {
		return fmt.Errorf("joining the cluster: %w", err)
	}
	return errors.Join(work(c), c.Close())
}

// An outcome is what one rank reports of a run.
type outcome struct {
	// Seconds is from the barrier after the preparation to the barrier after the computing.
	Seconds float64 `json:"seconds"`
	// Counters is by how much the counters of this node's daemon grew in that time.
	Counters map[string]uint64 `json:"counters"`
	// Trap is how faults are caught, and Transport how pages move.
	Trap      string `json:"trap"`
	Transport string `json:"transport"`
	// Figures is the program's own figures; rank 0 only.
	Figures map[string]any `json:"figures,omitempty"`
}

func runWorker(ctx context.Context, line *crew.Line, t task, threadsText, outputPath string) error {
	problem, _, err := t.problem()
	if err != nil {
		return err
	}
	threads, err := strconv.Atoi(threadsText)
	if err != nil {
		return fmt.Errorf("the number of threads: %w", err)
	}
	giveThreadsProcessors(threads)
	return joined(ctx, line, func(c *dsm.Cluster) error {
		r := rank{ctx: ctx, line: line, cluster: c}
		o, err := r.solve(problem, threads, outputPath)
		if err != nil {
			return err
		}
		return lastReply(line, o)
	})
}

// lastReply replies, and waits for the driver, which has everything when it ends the line. Leaving
// earlier would look like a failure.
func lastReply(line *crew.Line, reply any) error {
	if err := line.Reply(reply); err != nil {
		return err
	}
	if err := line.Next(&struct{}{}); !errors.Is(err, io.EOF) {
		return fmt.Errorf("waiting for the driver: %w", err)
	}
	return nil
}

// answerAll answers the driver's requests until there are no more.
func answerAll[Request any](line *crew.Line, answer func(Request) (reply any, err error)) error {
	for {
		var request Request
		if err := line.Next(&request); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		reply, err := answer(request)
		if err == nil {
			err = line.Reply(reply)
		}
		if err != nil {
			return err
		}
	}
}

// giveThreadsProcessors lets every thread of the kernel wait for a page (a goroutine that does
// keeps its processor, in the sense of GOMAXPROCS) and still leaves one for what else has to run.
// An explicit GOMAXPROCS is left alone.
func giveThreadsProcessors(threads int) {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(runtime.NumCPU(), threads+1))
	}
}

// rank is one rank of a run.
type rank struct {
	ctx     context.Context
	line    *crew.Line
	cluster *dsm.Cluster
}

// together starts a phase when all ranks have come to it.
func (r rank) together(phase string) error {
	if err := r.line.Phase("waiting for the other ranks, before " + phase); err != nil {
		return err
	}
	if err := r.cluster.Barrier(r.ctx); err != nil {
		return fmt.Errorf("barrier before %s: %w", phase, err)
	}
	return r.line.Phase(phase)
}

func (r rank) solve(problem kernel.Problem, threads int, outputPath string) (outcome, error) {
	if err := r.line.Phase("preparing"); err != nil {
		return outcome{}, err
	}
	run, err := kernel.OnCluster(r.ctx, problem, r.cluster, threads)
	if err != nil {
		return outcome{}, fmt.Errorf("preparing: %w", err)
	}
	o, err := r.compute(run)
	if err != nil {
		return outcome{}, err
	}
	if r.cluster.Rank() == 0 {
		if o.Figures, err = r.collect(run, outputPath); err != nil {
			return outcome{}, err
		}
	}
	if err := r.together("ending"); err != nil {
		return outcome{}, err
	}
	if err := run.Close(); err != nil {
		return outcome{}, fmt.Errorf("freeing the memory: %w", err)
	}
	return o, nil
}

// compute times run.Compute. The counters are read outside the timed part, between barriers, so
// that nothing but the computing counts on any node.
func (r rank) compute(run *kernel.Run) (outcome, error) {
	runtime.GC() // What the preparation left behind is not the computing's.
	if err := r.together("reading the counters"); err != nil {
		return outcome{}, err
	}
	before, err := r.counters()
	if err != nil {
		return outcome{}, err
	}
	arrival := time.Now()
	if err := r.together("computing"); err != nil {
		return outcome{}, err
	}
	start := time.Now()
	if err := run.Compute(r.ctx, r.line.Progress); err != nil {
		return outcome{}, fmt.Errorf("computing: %w", err)
	}
	if err := r.cluster.Barrier(r.ctx); err != nil {
		return outcome{}, fmt.Errorf("barrier after computing: %w", err)
	}
	seconds := time.Since(start).Seconds()
	after, err := r.counters()
	if err != nil {
		return outcome{}, err
	}
	if err := r.together("reading the result"); err != nil {
		return outcome{}, err
	}
	counters := withoutBarrier(growth(before, after), start.Sub(arrival))
	return outcome{Seconds: seconds, Counters: counters, Trap: r.cluster.Trap(), Transport: r.cluster.Transport()}, nil
}

// withoutBarrier takes from the counters the one barrier that lies between the first reading and
// the timed part. For how long the daemon counted it, is known from this side only, which is a
// message longer.
func withoutBarrier(counters map[string]uint64, waited time.Duration) map[string]uint64 {
	for name, less := range map[string]uint64{"barrier_calls": 1, "barrier_wait_ns": uint64(waited.Nanoseconds())} {
		counters[name] -= min(counters[name], less)
	}
	return counters
}

// collect reads the result, which faults in what other nodes have computed.
func (r rank) collect(run *kernel.Run, outputPath string) (map[string]any, error) {
	result := run.Result()
	if err := writeWords(outputPath, result.Output); err != nil {
		return nil, err
	}
	return result.Figures, nil
}

func microWorker(ctx context.Context, line *crew.Line) error {
	return joined(ctx, line, func(c *dsm.Cluster) error {
		// The first reply says that this rank has joined.
		if err := line.Reply(micro.Reply{}); err != nil {
			return err
		}
		return answerAll(line, func(r micro.Request) (any, error) {
			if err := line.Phase(fmt.Sprintf("measuring %s, run %d", r.Name, r.Run)); err != nil {
				return nil, err
			}
			return micro.Measure(ctx, c, r)
		})
	})
}

// counters reads the counters of this node's daemon.
func (r rank) counters() (map[string]uint64, error) {
	stats, err := r.cluster.Stats(r.ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the daemon's counters: %w", err)
	}
	return stats.Counters(), nil
}
