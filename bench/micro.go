package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"dsmd/bench/crew"
	"dsmd/bench/floor"
	"dsmd/bench/micro"
	"dsmd/bench/table"
)

const (
	// defaultRuns is how often each measurement alternates with its floor.
	defaultRuns = 7
	// maxRuns bounds --runs; what more runs would tell drowns in what changes on the machine
	// meanwhile.
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
			return o.measured(cmd, func(ctx context.Context, w workplace) (string, any, error) {
				lines, err := measureAll(ctx, &o, w)
				if err != nil {
					return "", nil, err
				}
				return microTable(lines), lines, nil
			})
		},
	}
	o.register(cmd.Flags())
	cmd.Flags().IntVar(&o.runs, "runs", defaultRuns, "how often each measurement alternates with its floor")
	return cmd
}

func microHelp() string {
	var lines [][2]string
	for _, m := range micro.All() {
		lines = append(lines, [2]string{m.Name, m.Summary})
	}
	for _, g := range micro.Groups() {
		lines = append(lines, [2]string{g.Name, "only if named: all of the following, of which each can be named too"})
		for _, m := range g.Micros {
			lines = append(lines, [2]string{m.Name, m.Summary})
		}
	}
	return listing("Measure single operations (those up to the first group, if none is named), each in turns with its floor, the least that such an\n"+
		"operation can cost on this machine. The ratio is that of the medians.\n", lines, "")
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
	o.predict = off // what is repeated would be predicted
	return o.check(micro.MinNodes)
}

// measureAll measures on one cluster, one microbenchmark after the other.
func measureAll(ctx context.Context, o *microOptions, w workplace) ([]micro.Line, error) {
	options, err := o.crew(w, workerMicro)
	if err != nil {
		return nil, err
	}
	return withCrew(ctx, options, func(ctx context.Context, c *crew.Crew) ([]micro.Line, error) {
		if _, err := c.Collect(ctx); err != nil { // All have joined.
			return nil, err
		}
		lines := make([]micro.Line, 0, len(o.micros))
		for i, m := range o.micros {
			step := func(run int) { w.view.show(m.Name, i*o.runs+run, len(o.micros)*o.runs) }
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
		return lines, nil
	})
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
		var samples []float64
		for _, reply := range ours {
			samples = append(samples, reply.Samples...)
		}
		s.Ours = append(s.Ours, samples)
	}
	return s, nil
}

// measureOnce lets all ranks do one run and returns the replies of all of them.
func measureOnce(ctx context.Context, c *crew.Crew, request micro.Request) ([]micro.Reply, error) {
	if err := c.Tell(request); err != nil {
		return nil, err
	}
	return collect[micro.Reply](ctx, c)
}

// microTable is the result for people.
func microTable(lines []micro.Line) string {
	t := table.Table{Heads: strings.Split("operation,unit,p50,(of runs),p99,mean,floor p50,(of runs),floor waits,ratio", ",")}
	figure := func(x float64) string { return fmt.Sprintf("%.2f", x) }
	spread := func(least, greatest float64) string { return fmt.Sprintf("(%.2f–%.2f)", least, greatest) }
	rates := ""
	for _, l := range lines {
		t.Add(l.Name, l.Unit, figure(l.P50), spread(l.P50Min, l.P50Max), figure(l.P99), figure(l.Mean), figure(l.FloorP50), spread(l.FloorP50Min, l.FloorP50Max), l.FloorWaits, figure(l.Ratio))
		if l.Unit == "µs/page" {
			rates += fmt.Sprintf("%s: %.0f MB/s, floor %.0f MB/s\n", l.Name, floor.PageBytes/l.P50, floor.PageBytes/l.FloorP50)
		}
	}
	return t.Text() + rates
}
