package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"dsmd/internal/launch"
)

// self is this executable, also when it has been moved or deleted since it started (as `go run` does), and without
// being on PATH.
const self = "/proc/self/exe"

func newRun() *cobra.Command {
	var (
		shared  nodeFlags
		nodes   int
		metrics []string
		grace   time.Duration
	)
	cmd := &cobra.Command{
		Use:   "run -n N [flags] -- PROG [ARGS…]",
		Short: "Run N copies of a program on a cluster of N daemons on this machine",
		Long: `Runs N daemons and N copies of a program, each attached to a daemon of its own, on this machine.

Each line that a program prints is preceded by its rank; rank 0 reads standard input.
The job ends when all programs have ended. When one fails, the others are ended, and the
exit status is that of the failure (128 plus the signal for a killed program; 70 if it was a
daemon that failed). Signals are passed on to the programs; Ctrl-C ends them, a second one
kills them. When some have ended and others have not after ten seconds, a line says so, once: a
barrier that waits for a program that has ended never opens. Nothing stays behind, no process
and no file, however the job ends.

Programs find their place in the environment: DSM_SOCKET, DSM_RANK and DSM_SIZE.`,
		Example: `  dsmd run -n 4 -- ./solve --grid 4096
  dsmd run -n 2 --log-level info --metrics :9100 -- ./solve   # metrics at :9100 and :9101
  dsmd run -n 2 -- go run .`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError(cmd, errors.New("no program to run: dsmd run -n N -- PROG ARGS"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkNodes(nodes); err != nil {
				return usageError(cmd, fmt.Errorf("-n: %w", err))
			}
			return run(launch.Config{
				Nodes: nodes, Program: args, Metrics: metrics, Grace: grace,
				Daemon:        append([]string{self, "serve"}, shared.args()...),
				Guard:         []string{self, "guard"},
				BareDaemonLog: shared.values.LogFormat == "json",
				Stdin:         os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
			})
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows PROG is PROG's
	flags.IntVarP(&nodes, "nodes", "n", 1, "number of nodes: daemons, and copies of the program")
	flags.StringSliceVar(&metrics, "metrics", nil, "TCP `ADDR`ess for the daemons' metrics: one for each node, or one for node 0 whose port is counted up")
	flags.DurationVar(&grace, "grace", launch.DefaultGrace, "time between asking a program to end and killing it")
	shared.register(flags, "warn")
	return cmd
}

func run(cfg launch.Config) error {
	status, err := launch.Run(cfg)
	if status == 0 && err == nil {
		return nil
	}
	return &exitError{status: status, err: err}
}
