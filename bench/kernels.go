package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"dsmd/bench/kernel"
	"dsmd/bench/kernels/barnes"
	"dsmd/bench/kernels/cholesky"
	"dsmd/bench/kernels/ep"
	"dsmd/bench/kernels/fft"
	"dsmd/bench/kernels/frame"
	"dsmd/bench/kernels/is"
	"dsmd/bench/kernels/kv"
	"dsmd/bench/kernels/lu"
	"dsmd/bench/kernels/matmul"
	"dsmd/bench/kernels/ocean"
	"dsmd/bench/kernels/radix"
	"dsmd/bench/kernels/raytrace"
	"dsmd/bench/kernels/sor"
	"dsmd/bench/kernels/tsp"
	"dsmd/bench/kernels/water"
	"dsmd/bench/table"
)

// kernels are the programs that `bench run` knows.
var kernels = kernel.Registry{
	fft.Kernel,
	fft.Prefetching,
	lu.Kernel,
	lu.Plain,
	radix.Kernel,
	ocean.Kernel,
	water.Kernel,
	barnes.Kernel,
	raytrace.Kernel,
	cholesky.Kernel,
	sor.Kernel,
	matmul.Kernel,
	tsp.Kernel,
	ep.Kernel,
	is.Kernel,
	kv.A,
	kv.B,
	kv.C,
	frame.Filter,
	frame.Group,
	frame.Join,
}

func listCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the kernels and their sizes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t := table.Table{Heads: []string{"KERNEL", "TEST", "DEFAULT", "LARGE", "SIZE IS", "WHAT IT COMPUTES"}, Leading: 6}
			for _, k := range kernels {
				s := k.Sizes
				t.Add(k.Name, s.Test, s.Default, s.Large, fmt.Sprintf("%s, %d to %d", s.Parameter, s.Min, s.Max), k.Summary)
			}
			_, err := fmt.Fprint(cmd.OutOrStdout(), t.Text())
			return err
		},
	}
}
