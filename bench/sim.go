package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmd/bench/sim"
	"dsmd/bench/table"
)

func simCommand() *cobra.Command {
	var o simOptions
	cmd := &cobra.Command{
		Use:   "sim [SECTION...]",
		Short: "Simulate clusters of up to 1,024 nodes: messages, bytes and time",
		Long:  simHelp(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.resolve(args); err != nil {
				return err
			}
			ctx, cancel := bounded(cmd.Context(), o.timeout)
			defer cancel()
			return simulate(ctx, &o, cmd.OutOrStdout())
		},
	}
	o.register(cmd.Flags())
	cmd.AddCommand(simMemoryCommand(), simStartupCommand())
	return cmd
}

func simHelp() string {
	var lines [][2]string
	for _, s := range sim.Sections {
		lines = append(lines, [2]string{string(s.Section), s.Summary})
	}
	return listing("Run the real protocol of every node in virtual time, over a network with the costs that are given. All sections are simulated, if none is named:\n", lines,
		"\nThe same flags give the same result. docs/scale.md says what each figure means, and where the costs come from.")
}

// simOptions are the arguments and flags of `bench sim`.
type simOptions struct {
	options   sim.Options
	json, out string
	timeout   time.Duration
}

func (o *simOptions) register(flags *pflag.FlagSet) {
	flags.SortFlags = false
	o.options = sim.DefaultOptions()
	flags.IntVarP(&o.options.MaxNodes, "nodes", "n", o.options.MaxNodes, "the largest `number` of nodes, a power of two; the smaller ones are simulated too")
	flags.Uint64Var(&o.options.Seed, "seed", o.options.Seed, "decides which pages are accessed, and how long threads compute")
	flags.Uint64Var(&o.options.HomeStripe, "stripe", o.options.HomeStripe, "how many neighbouring `pages` share a home")
	flags.DurationVar(&o.options.Hold, "hold", o.options.Hold, "how long a node keeps a page that it has just got")
	flags.IntVar(&o.options.TreeFrom, "tree-from", o.options.TreeFrom, "barriers and invalidations are trees from so many `nodes` on; 0: as in daemons")
	flags.IntVar(&o.options.TreeArity, "tree-arity", o.options.TreeArity, "how many `nodes` are directly below each in these trees; 0: as in daemons")
	flags.IntVar(&o.options.ManyReaders, "many-readers", o.options.ManyReaders, "a page is sent to all who wait when so many `nodes` begin to read it within a moment; 0: as in daemons")
	flags.DurationVar(&o.options.MaxHold, "max-hold", o.options.MaxHold, "the same at most, when accesses do not get through")
	flags.DurationVar(&o.options.Compute, "compute", o.options.Compute, "how long threads compute between two accesses, on the average")
	c := &o.options.Costs
	flags.Float64Var(&c.Bandwidth, "bandwidth", c.Bandwidth, "of each node's link, each way, in `bytes` per second")
	for _, cost := range []struct {
		name  string
		value *time.Duration
		what  string
	}{
		{"latency", &c.Latency, "how long a message travels, beside what its bytes take"},
		{"send", &c.Send, "a daemon's time to send a message"},
		{"receive", &c.Receive, "a daemon's time to receive a message"},
		{"further", &c.Further, "its time for one more to or from the same node in the same system call; at most the two before"},
		{"trap", &c.Trap, "from an access to its fault at the daemon, and back"},
		{"call", &c.Call, "from a program's call to the daemon, and back"},
		{"install", &c.Install, "time to fill a page and map it"},
		{"make-writable", &c.MakeWritable, "time to make a page writable"},
		{"downgrade", &c.Downgrade, "time to write-protect a page"},
		{"revoke", &c.Revoke, "time to take a page away"},
		{"read-page", &c.ReadPage, "time to read a page that is to be sent"},
	} {
		flags.DurationVar(cost.value, cost.name, *cost.value, cost.what)
	}
	jsonFlag(flags, &o.json)
	flags.StringVar(&o.out, "out", "", "write tables, plots and JSON to this `folder`")
	timeoutFlag(flags, &o.timeout)
}

func (o *simOptions) resolve(args []string) error {
	if len(args) > 0 {
		o.options.Sections = nil
	}
	for _, name := range args {
		o.options.Sections = append(o.options.Sections, sim.Section(name))
	}
	if err := checkTimeout(o.timeout); err != nil {
		return err
	}
	return o.options.Validate()
}

func simulate(ctx context.Context, o *simOptions, stdout io.Writer) error {
	view := newDisplay(os.Stderr)
	defer view.clear()
	result, err := sim.Run(ctx, o.options, view.show)
	if err != nil {
		return err
	}
	view.clear()
	return publishReport(stdout, o.out, o.json, result)
}

const (
	// knownBytes and knownRegion are the sizes for which the daemon promises to stay under a
	// gigabyte of metadata.
	knownBytes, knownRegion = 16 << 30, 1 << 40
	smallPage               = 4096
	// mostKnown bounds --pages: what knows more needs more memory than the promise allows.
	mostKnown = 1 << 24
)

func simMemoryCommand() *cobra.Command {
	pages, file := knownBytes/smallPage, ""
	cmd := &cobra.Command{
		Use:   "memory",
		Short: "Measure what an engine takes in memory that knows many pages of a region of 1 TiB",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if pages < 1 || pages > mostKnown {
				return fmt.Errorf("--pages %d: use 1 to %d", pages, mostKnown)
			}
			var all []sim.Memory
			for _, role := range sim.Roles() {
				debug.FreeOSMemory() // what the one before has left
				m, err := sim.MeasureMemory(role, pages, knownRegion/smallPage)
				if err != nil {
					return err
				}
				all = append(all, m)
			}
			return publish(cmd.OutOrStdout(), file, memoryTable(all), all)
		},
	}
	cmd.Flags().IntVar(&pages, "pages", pages, "how many `pages` have been touched, spread over the region")
	jsonFlag(cmd.Flags(), &file)
	return cmd
}

func memoryTable(all []sim.Memory) string {
	t := table.Table{Heads: []string{"role", "pages known", "of region", "MiB", "bytes/page", "heap at most, MiB"}}
	for _, m := range all {
		t.Add(m.Role, m.Pages, m.RegionPages, oneDecimal(float64(m.HeapBytes)/(1<<20)), oneDecimal(m.BytesPerPage), oneDecimal(float64(m.PeakBytes)/(1<<20)))
	}
	return t.Text()
}

func oneDecimal(x float64) string { return fmt.Sprintf("%.1f", x) }
