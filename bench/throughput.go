package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"dsmd/bench/kernel"
	"dsmd/bench/kernels/frame"
	"dsmd/bench/kernels/kv"
	"dsmd/bench/report"
	"dsmd/bench/table"
)

// figureOperations is the figure of a kernel that says how many operations it has done.
const figureOperations = "operations"

// A throughput is kernels of which one asks how much they do in a second.
type throughput struct {
	use, short, operation string
	kernels               kernel.Registry
}

var (
	kvThroughput = throughput{"kv", "Compare how much a key-value store does in a second (YCSB A, B and C) with Go's map in one process",
		"operations", kernel.Registry{kv.A, kv.B, kv.C}}
	frameThroughput = throughput{"frame", "Compare how many rows a data frame's operators go over in a second with slices in one process",
		"rows", kernel.Registry{frame.Filter, frame.Group, frame.Join}}
)

// A throughputLine is one run: what `bench run` has, and what follows from it.
type throughputLine struct {
	*report.Result
	PerSecond      float64 `json:"per_second"`       // operations on the cluster
	PerSecondAlone float64 `json:"per_second_alone"` // by as many threads in one process
	Relative       float64 `json:"relative"`         // the first over the second
}

func newThroughputLine(r *report.Result) (throughputLine, error) {
	n, is := r.Figures[figureOperations].(float64)
	if !is {
		return throughputLine{}, fmt.Errorf("%s does not say how many operations it has done", r.Kernel)
	}
	return throughputLine{r, n / r.Seconds, n / r.SecondsGoroutines, r.SecondsGoroutines / r.Seconds}, nil
}

// throughputOptions are the flags of `bench kv` and `bench frame`.
type throughputOptions struct {
	clusterOptions
	nodes, threads []int
	size           string
}

func throughputCommand(what throughput) *cobra.Command {
	var o throughputOptions
	cmd := &cobra.Command{
		Use:   what.use,
		Short: what.short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			runs, err := o.runs(what.kernels)
			if err != nil {
				return err
			}
			return o.measured(cmd, func(ctx context.Context, w workplace) (string, any, error) {
				lines, failed := measureThroughput(ctx, runs, w)
				if len(lines) == 0 {
					return "", nil, failed
				}
				return throughputTable(what.operation, lines), lines, failed
			})
		},
	}
	flags := cmd.Flags()
	o.registerShared(flags)
	flags.IntSliceVarP(&o.nodes, "nodes", "n", []int{1, 2, 4}, "numbers of nodes")
	flags.IntSliceVarP(&o.threads, "threads", "t", []int{1, 4}, "numbers of goroutines per node")
	flags.StringVar(&o.size, "size", "default", "test, default, large, or a number (see bench list)")
	return cmd
}

// runs are the runs that are asked for.
func (o *throughputOptions) runs(of kernel.Registry) (runs []*runOptions, err error) {
	for _, k := range of {
		for _, nodes := range o.nodes {
			for _, threads := range o.threads {
				r := &runOptions{clusterOptions: o.clusterOptions, task: task{size: o.size}, threads: threads}
				r.clusterOptions.nodes = nodes
				if err := r.resolve(k.Name); err != nil {
					return nil, err
				}
				runs = append(runs, r)
			}
		}
	}
	if len(runs) > 1 {
		err = runs[0].ofOneCluster()
	}
	return runs, err
}

// measureThroughput runs them one after the other, up to the first that fails. A wrong result is
// measured, too, but an error in the end.
func measureThroughput(ctx context.Context, runs []*runOptions, w workplace) (lines []throughputLine, failed error) {
	for _, o := range runs {
		r, wrong, err := compare(ctx, o, w)
		if err != nil {
			return lines, errors.Join(failed, err)
		}
		failed = errors.Join(failed, notVerified(r, wrong))
		line, err := newThroughputLine(r)
		if err != nil {
			return lines, errors.Join(failed, err)
		}
		lines = append(lines, line)
	}
	return lines, failed
}

func throughputTable(operation string, lines []throughputLine) string {
	t := table.Table{Heads: []string{"kernel", "nodes", "threads", "verified", operation + "/s", "in one process", "relative", "misses", "messages", "MB sent"}}
	for _, l := range lines {
		t.Add(l.Kernel, l.Nodes, l.Threads, yesNo(l.Verified), fmt.Sprintf("%.0f", l.PerSecond), fmt.Sprintf("%.0f", l.PerSecondAlone),
			l.Relative, l.Misses(), l.Messages, fmt.Sprintf("%.3f", float64(l.BytesMoved)/1e6))
	}
	return t.Text()
}
