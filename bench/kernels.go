package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"dsmd/bench/barnes"
	"dsmd/bench/cholesky"
	"dsmd/bench/ep"
	"dsmd/bench/fft"
	"dsmd/bench/is"
	"dsmd/bench/kernel"
	"dsmd/bench/lu"
	"dsmd/bench/matmul"
	"dsmd/bench/ocean"
	"dsmd/bench/radix"
	"dsmd/bench/raytrace"
	"dsmd/bench/sor"
	"dsmd/bench/tsp"
	"dsmd/bench/water"
)

// kernels are the programs that `bench run` knows.
var kernels = kernel.Registry{
	fft.Kernel{},
	fft.Kernel{Prefetch: true},
	lu.Kernel{},
	lu.Kernel{Plain: true},
	radix.Kernel{},
	ocean.Kernel{},
	water.Kernel{},
	barnes.Kernel{},
	raytrace.Kernel{},
	cholesky.Kernel{},
	sor.Kernel{},
	matmul.Kernel{},
	tsp.Kernel{},
	ep.Kernel{},
	is.Kernel{},
}

func listCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the kernels and their sizes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "KERNEL\tTEST\tDEFAULT\tLARGE\tSIZE IS\tWHAT IT COMPUTES")
			for _, k := range kernels {
				s := k.Sizes()
				fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s, %d to %d\t%s\n", k.Name(), s.Test, s.Default, s.Large, s.Parameter, s.Min, s.Max, k.Summary())
			}
			return w.Flush()
		},
	}
}
