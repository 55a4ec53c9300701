// Command dsmd is the daemon of a distributed shared memory, and everything around it.
//
//	dsmd run         run a program on a cluster of daemons on this machine
//	dsmd serve       be one node of a cluster
//	dsmd config      check the configuration of this machine's daemon
//	dsmd status      show what the daemons on this machine are doing
//	dsmd top         show live what programs wait for, and what their nodes do
//	dsmd stacks      show where the goroutines of a running job are, and what they wait for
//	dsmd dashboard   show in a browser what they wait for, or what a job has waited for
//	dsmd drain       have a node leave its cluster, with nothing that others need
//	dsmd doctor      find out whether this machine can run dsmd, and how well
//	dsmd cert        make the certificates and keys of a cluster
//	dsmd checkpoint  list and verify the checkpoints of jobs
//	dsmd version     print the version
//	dsmd man         write manual pages
//
// This package is only the command lines: the daemon is package node, what `run` does is package
// internal/launch, what `doctor` finds out is package internal/doctor, the certificates are those
// of package internal/certs, and the checkpoints those of package internal/checkpoint.
//
// Exit statuses: for `run` that of the first program that failed, or one of package launch
// (docs/operations.md has a table); 64 for a command line that makes no sense, 1 for anything else
// that failed.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"dsmd/internal/launch"
	"dsmd/internal/settings"
)

func main() { os.Exit(execute(os.Args[1:])) }

// execute runs a command line and returns the exit status. Errors go to standard error, once.
func execute(args []string) int {
	// To ps and top it is dsmd, also when it was started as /proc/self/exe.
	_ = os.WriteFile("/proc/self/comm", []byte("dsmd"), 0)
	root := newRoot()
	root.SetArgs(args)
	err := root.Execute()
	if err == nil {
		return 0
	}
	if message := err.Error(); message != "" {
		fmt.Fprintln(os.Stderr, "dsmd: "+message)
	}
	var e *exitError
	if errors.As(err, &e) {
		return e.status
	}
	return 1
}

// exitError is an error with an exit status of its own. With err nil nothing is printed, because
// its maker has said all.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError is for a command line that makes no sense.
func usageError(cmd *cobra.Command, err error) error {
	return &exitError{status: launch.StatusUsage, err: fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "dsmd",
		Short: "Shared memory across machines, moved page by page on demand",
		Long: `dsmd gives the copies of one program, on one machine or many, one shared memory. Each
node runs a daemon; programs link package dsm and attach to the daemon of their node.

To begin, check the machine with "dsmd doctor", then run a program on a cluster of
four nodes that live on this machine: "dsmd run -n 4 -- ./program".`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.Version = readVersions().text()
	root.SetVersionTemplate("{{.Version}}")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError(cmd, flagError(cmd, err))
	})
	family(root, newRun(), newServe(), newConfig(), newStatus(), newTop(), newStacks(), newDashboard(), newDrain(), newDoctor(), newCert(), newCheckpoint(), newVersion(), newMan(), newGuard(), newRunAgent())
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			family(c)
		}
	}
	completeWords(root)
	return root
}

// family makes a command one that does nothing but have others: alone it shows its help, and any
// other word is a mistake.
func family(cmd *cobra.Command, members ...*cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usageError(cmd, fmt.Errorf("unknown command %q%s", args[0], didYouMean(cmd.SuggestionsFor(args[0]))))
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(members...)
	return cmd
}

// newMan is `dsmd man`.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR",
		Short: "Write manual pages, one for each command, into a directory",
		Long: `Write manual pages, one for each command, into a directory. Where man looks for them by
itself, a package puts them: "dsmd man /usr/local/share/man/man1", then "man dsmd-run".`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			return doc.GenManTree(cmd.Root(), &doc.GenManHeader{Section: "1", Source: "dsmd"}, args[0])
		},
	}
}

// completeWords has shells complete the values of all flags that are one of a few words.
func completeWords(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if v, some := f.Value.(interface{ Words() []string }); some {
			// It fails only for a flag that is not there, or has one already.
			_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(v.Words(), cobra.ShellCompDirectiveNoFileComp))
		}
	})
	for _, c := range cmd.Commands() {
		completeWords(c)
	}
}

// newGuard is the hidden command behind `dsmd run`'s guard process.
func newGuard() *cobra.Command {
	return &cobra.Command{
		Use:    "guard SOCKETS",
		Hidden: true,
		Args:   exactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			launch.Guard(os.Stdin, args[0])
			return nil
		},
	}
}

// noArgs and exactArgs are cobra's, with an error that names the argument.
func noArgs(cmd *cobra.Command, args []string) error { return exactArgs(0)(cmd, args) }

func exactArgs(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return usageError(cmd, fmt.Errorf("unexpected argument %q", args[n]))
		}
		if len(args) < n {
			return usageError(cmd, errors.New("an argument is missing"))
		}
		return nil
	}
}

// atMostOneArg is for commands whose argument may be missing.
func atMostOneArg(cmd *cobra.Command, args []string) error {
	return exactArgs(min(len(args), 1))(cmd, args)
}

// flagError adds to the error about an unknown flag what the user may have meant.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	name := unknown.GetSpecifiedName()
	var near []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && (settings.Distance(name, f.Name) <= 2 || len(name) > 1 && strings.HasPrefix(f.Name, name)) {
			near = append(near, "--"+f.Name)
		}
	})
	return fmt.Errorf("%w%s", err, didYouMean(near))
}

func didYouMean(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return ": did you mean " + strings.Join(names, " or ") + "?"
}
