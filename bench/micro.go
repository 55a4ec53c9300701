package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"dsmd/bench/crew"
	"dsmd/bench/floor"
	"dsmd/bench/micro"
)

const (
	// defaultRuns is how often each measurement alternates with its floor.
	defaultRuns = 7
	// maxRuns bounds --runs; what more runs would tell drowns in what changes on the machine meanwhile.
	maxRuns = 1000
)

func microCommand() *cobra.Command {
	var o microOptions
	cmd := &cobra.Command{
		Use:   "micro [NAME...]",
		Short: "Measure single operations, each beside its floor",
		Long:  microHelp(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.resolve(args); err != nil {
				return err
			}
			ctx, cancel := o.bounded(cmd.Context())
			defer cancel()
			return runMicro(ctx, &o, cmd)
		},
	}
	o.register(cmd.Flags())
	cmd.Flags().IntVar(&o.runs, "runs", defaultRuns, "how often each measurement alternates with its floor")
	return cmd
}

func microHelp() string {
	var text strings.Builder
	text.WriteString("Measure single operations (those up to the first group, if none is named), each in turns with its floor, the least that such an\n" +
		"operation can cost on this machine. The ratio is that of the medians.\n\n")
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, m := range micro.All() {
		fmt.Fprintf(w, "  %s\t%s\n", m.Name, m.Summary)
	}
	for _, g := range micro.Groups() {
		fmt.Fprintf(w, "  %s\tonly if named: all of the following, of which each can be named too\n", g.Name)
		for _, m := range g.Micros {
			fmt.Fprintf(w, "  %s\t%s\n", m.Name, m.Summary)
		}
	}
	w.Flush()
	return strings.TrimRight(text.String(), "\n")
}

// microOptions are the arguments and flags of `bench micro`.
type microOptions struct {
	clusterOptions
	runs   int
	micros []micro.Micro
}

func (o *microOptions) resolve(names []string) (err error) {
	if o.micros, err = micro.Choose(names); err != nil {
		return err
	}
	if o.runs < 1 || o.runs > maxRuns {
		return fmt.Errorf("--runs %d: use 1 to %d", o.runs, maxRuns)
	}
	return o.check(micro.MinNodes)
}

func runMicro(ctx context.Context, o *microOptions, cmd *cobra.Command) error {
	dir, err := os.MkdirTemp("", "dsm-bench-")
	if err != nil {
		return fmt.Errorf("making a directory for the run: %w", err)
	}
	defer os.RemoveAll(dir)
	view := newDisplay(os.Stderr)
	defer view.clear()
	view.show("looking for dsmd", 0, 0)
	dsmd, err := findDsmd(ctx, o.dsmd, dir)
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	options, err := o.crew(dsmd, dir, []string{workerMicro})
	if err != nil {
		return err
	}
	lines, err := measureAll(ctx, o, options, view)
	if err != nil {
		return err
	}
	view.clear()
	return o.publish(cmd.OutOrStdout(), microTable(lines), lines)
}

// measureAll measures on one cluster, one microbenchmark after the other.
func measureAll(ctx context.Context, o *microOptions, options crew.Options, view *display) ([]micro.Line, error) {
	c, err := crew.Start(options)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if _, err := c.Collect(ctx); err != nil { // All have joined.
		return nil, err
	}
	lines := make([]micro.Line, 0, len(o.micros))
	for i, m := range o.micros {
		step := func(run int) { view.show(m.Name, i*o.runs+run, len(o.micros)*o.runs) }
		samples, err := measureInTurns(ctx, c, m, o.runs, step)
		if err != nil {
			return nil, err
		}
		line, err := micro.Summarise(m, o.nodes, samples)
		if err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	return lines, c.Finish(ctx)
}

// measureInTurns measures floor, ours, floor, ours, and so on.
func measureInTurns(ctx context.Context, c *crew.Crew, m micro.Micro, runs int, step func(run int)) (s micro.Samples, err error) {
	if m.Busy {
		stop, err := floor.Load(ctx)
		if err != nil {
			return s, err
		}
		defer stop()
	}
	for run := range runs {
		step(run)
		for _, way := range []struct {
			spin bool
			into *[][]float64
		}{{false, &s.Blocking}, {true, &s.Spinning}} {
			spec := m.Floor
			spec.Spin = way.spin
			samples, err := floor.Measure(ctx, spec)
			if err != nil {
				return s, err
			}
			*way.into = append(*way.into, samples)
		}
		ours, err := measureOnce(ctx, c, micro.Request{Name: m.Name, Run: run})
		if err != nil {
			return s, err
		}
		s.Ours = append(s.Ours, ours)
	}
	return s, nil
}

// measureOnce lets all ranks do one run and returns the samples of all of them.
func measureOnce(ctx context.Context, c *crew.Crew, request micro.Request) ([]float64, error) {
	if err := c.Tell(request); err != nil {
		return nil, err
	}
	replies, err := c.Collect(ctx)
	if err != nil {
		return nil, err
	}
	var samples []float64
	for rank, text := range replies {
		var reply micro.Reply
		if err := json.Unmarshal(text, &reply); err != nil {
			return nil, fmt.Errorf("what rank %d reported of %s: %w", rank, request.Name, err)
		}
		samples = append(samples, reply.Samples...)
	}
	return samples, nil
}

// microTable is the result for people.
func microTable(lines []micro.Line) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "operation\tunit\tp50\t(of runs)\tp99\tfloor p50\t(of runs)\tfloor waits\tratio\t")
	for _, l := range lines {
		fmt.Fprintf(w, "%s\t%s\t%.2f\t(%.2f–%.2f)\t%.2f\t%.2f\t(%.2f–%.2f)\t%s\t%.2f\t\n",
			l.Name, l.Unit, l.P50, l.P50Min, l.P50Max, l.P99, l.FloorP50, l.FloorP50Min, l.FloorP50Max, l.FloorWaits, l.Ratio)
	}
	w.Flush()
	for _, l := range lines {
		if l.Unit == "µs/page" {
			fmt.Fprintf(&text, "%s: %.0f MB/s, floor %.0f MB/s\n", l.Name, floor.PageBytes/l.P50, floor.PageBytes/l.FloorP50)
		}
	}
	return text.String()
}
