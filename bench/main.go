// Command bench measures the shared memory: whole programs, each checked against its sequential
// version and timed beside the same program on ordinary memory (`bench run`), and single
// operations, each beside the least that such an operation can cost on this machine (`bench
// micro`). `bench kv` and `bench frame` compare how much a key-value store and a data frame do in a
// second. `bench report` runs many programs in many ways and makes tables and plots of it. `bench
// stages` says where the time of a fault goes. `bench fabric` measures the network below, `bench
// storage` checkpoints and files, and `bench sim` simulates clusters that are larger than this
// machine. docs/benchmarks.md says what each figure means.
//
//	go run ./bench list
//	go run ./bench run sor -n 4
//	go run ./bench kv
//	go run ./bench frame
//	go run ./bench report --out DIR
//	go run ./bench micro -n 2
//	go run ./bench stages
//	go run ./bench fabric
//	go run ./bench storage --dir DIR
//	go run ./bench storage read --dir DIR
//	go run ./bench sim
//
// The command is the driver: it computes the sequential and the goroutine version itself, and
// starts `dsmd run` with one copy of its own executable per node, the workers, for the rest. Every
// figure is also available as JSON. The exit status is 0 only if everything was measured and every
// result verified.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmd/bench/floor"
)

func main() {
	if floor.IsProcess(os.Args) {
		floor.Main(os.Args)
	}
	if len(os.Args) > 1 && os.Args[1] == workerName {
		// A worker dies of a signal at once, as programs do: waiting for a page it could not do
		// anything else.
		os.Exit(finish(command().ExecuteContext(context.Background())))
	}
	os.Exit(execute(os.Args[1:]))
}

// finish tells people why the command failed, if it did, and returns the exit status.
func finish(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	return 1
}

// errInterrupted is the cause of a context that a signal has ended.
var errInterrupted = errors.New("interrupted")

// execute runs the driver's command and returns the exit status: 1 for failures, 128 plus its
// number after a signal.
func execute(args []string) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	status := make(chan int, 1)
	go func() {
		if s, ok := <-signals; ok {
			status <- 128 + int(s.(syscall.Signal))
			cancel(errInterrupted)
		}
	}()

	root := command()
	root.SetArgs(args)
	failed := finish(root.ExecuteContext(ctx))
	if failed != 0 && errors.Is(context.Cause(ctx), errInterrupted) {
		return <-status
	}
	return failed
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "bench",
		Short: "Measure the shared memory",
		Long: "Measure the shared memory: programs against their sequential and goroutine versions, single operations\n" +
			"against their floors. docs/benchmarks.md says what each figure means.",
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("there is no command %q; there are: %s", args[0], strings.Join(commandNames(cmd), ", "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; the flags of `%s` are: %s", err, cmd.CommandPath(), strings.Join(flagNames(cmd), ", "))
	})
	root.AddCommand(listCommand(), runCommand(), throughputCommand(kvThroughput), throughputCommand(frameThroughput), reportCommand(), microCommand(), stagesCommand(), fabricCommand(), storageCommand(), simCommand(), workerCommand())
	return root
}

func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return names
}

func flagNames(cmd *cobra.Command) []string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + "/" + name
		}
		names = append(names, name)
	})
	return names
}
