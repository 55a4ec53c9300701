package main

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmd/internal/settings"
)

// bareFlag is the hidden flag of a daemon that `run` has started: it takes nothing from the
// environment, and no file.
const bareFlag = "flags-only"

// configuration is how the settings of a daemon by itself are found.
type configuration struct {
	values *settings.Values
	file   string
	bare   bool
}

func (c *configuration) register(flags *pflag.FlagSet) {
	c.values = settings.New()
	flags.StringVar(&c.file, "config", "", "configuration `FILE` (default: "+settings.DefaultFile+", if it exists)")
	c.values.Register(flags, settings.Serve)
	flags.BoolVar(&c.bare, bareFlag, false, "take nothing from the environment and no file")
	_ = flags.MarkHidden(bareFlag) // the flag exists
}

// load completes the settings from the environment and the file, and checks them.
func (c *configuration) load(flags *pflag.FlagSet) error {
	if c.bare {
		return c.values.Check()
	}
	file := c.file
	if !flags.Changed("config") {
		file = os.Getenv(settings.EnvConfig)
	}
	if err := c.values.Load(flags, settings.Sources{File: file, Lookup: os.LookupEnv}); err != nil {
		return err
	}
	return c.values.Check()
}

func newConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check the configuration of this machine's daemon",
	}
	return family(cmd, newConfigCheck())
}

func newConfigCheck() *cobra.Command {
	var c configuration
	cmd := &cobra.Command{
		Use:     "check",
		Aliases: []string{"show"},
		Short:   "Check the settings that `dsmd serve` would run with, and print them",
		Long: `Reads flags, environment and configuration file as "dsmd serve" does, with the same flags,
and prints the value of every setting and where it comes from. Nothing is started.

The exit status is 64 if something is wrong; all mistakes are named at once.`,
		Example: `  dsmd config check
  dsmd config check --config ./dsmd.yaml --id 2`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.load(cmd.Flags()); err != nil {
				return usageError(cmd, err)
			}
			for _, name := range settings.Unknown(os.Environ()) {
				fmt.Fprintf(cmd.ErrOrStderr(), "dsmd: the environment has %s, which is no setting\n", name)
			}
			return printSettings(cmd.OutOrStdout(), c.values)
		},
	}
	cmd.Flags().SortFlags = false
	c.register(cmd.Flags())
	return cmd
}

// printSettings prints a table of all settings.
func printSettings(to io.Writer, v *settings.Values) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SETTING\tVALUE\tFROM")
	for i := range settings.All {
		s := &settings.All[i]
		value, origin := v.Text(s.Name), v.Origin(s.Name)
		if value == "" {
			value = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", s.Name, value, origin)
	}
	return w.Flush()
}
