package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"dsmd/internal/launch"
)

// newRunAgent is the hidden command that `run` starts on each of its hosts, and, under a batch
// system, beside itself.
func newRunAgent() *cobra.Command {
	var (
		meeting launch.Meeting
		name    string
	)
	cmd := &cobra.Command{
		Use:    "run-agent",
		Hidden: true,
		Args:   noArgs,
		RunE: func(*cobra.Command, []string) error {
			if meeting.Dir != "" {
				err := meeting.Attend(0, name, agentConfig())
				if errors.Is(err, launch.ErrNoJob) {
					return nil // the launcher says it
				}
				return err
			}
			return launch.Agent(os.Stdin, os.Stdout, agentConfig())
		},
	}
	cmd.Flags().StringVar(&meeting.Dir, "meet", "", "directory of a meeting")
	cmd.Flags().StringVar(&meeting.Name, "meeting", "", "its name")
	cmd.Flags().StringVar(&name, "name", "", "of this machine")
	return cmd
}

// agentConfig is what this process is as an agent.
func agentConfig() launch.AgentConfig {
	return launch.AgentConfig{Commands: commands, Version: readVersions().line(), Address: launch.SSHAddress()}
}
