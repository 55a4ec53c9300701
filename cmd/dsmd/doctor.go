package main

import (
	"github.com/spf13/cobra"

	"dsmd/internal/doctor"
)

func newDoctor() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out whether this machine can run dsmd, and how well",
		Long: `Tries what this kernel, these permissions and these devices allow, and says for each thing that is
missing what follows from that and what to do about it. The exit status is 0 if dsmd can run
here and 1 if it cannot. Nothing is changed.`,
		Example: `  dsmd doctor
  dsmd doctor --json | jq '.findings[] | select(.verdict != "ok")'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			report := doctor.Examine()
			print := func() error { return report.Print(cmd.OutOrStdout()) }
			if asJSON {
				print = func() error { return writeJSON(cmd.OutOrStdout(), report) }
			}
			if err := print(); err != nil {
				return err
			}
			if !report.Usable {
				return &exitError{status: 1}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}
