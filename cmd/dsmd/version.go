package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"dsmd/internal/attach"
	"dsmd/transport/tcp"
)

// versions are what has to agree, or helps to find out why something does not.
type versions struct {
	Module   string `json:"module"`             // the module's version, "(devel)" in a working tree
	Revision string `json:"revision,omitempty"` // the commit
	Modified bool   `json:"modified,omitempty"` // the working tree differed from it
	Attach   int    `json:"attach_version"`     // what programs and daemons speak
	Node     int    `json:"node_version"`       // what daemons speak with each other
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, and those of the protocols it speaks",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := readVersions()
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), v)
			}
			_, err := fmt.Fprint(cmd.OutOrStdout(), v.text())
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

func readVersions() versions {
	v := versions{Module: "unknown", Attach: attach.Version, Node: tcp.WireVersion, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Module = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func (v versions) text() string {
	return fmt.Sprintf("dsmd %s\nprograms attach with protocol version %d, and nodes speak version %d with each other\nbuilt with %s for %s\n",
		v.line(), v.Attach, v.Node, v.Go, v.Platform)
}

// line tells this build of dsmd from others.
func (v versions) line() string {
	revision := v.Revision
	if revision == "" {
		revision = "unknown"
	}
	if v.Modified {
		revision += ", modified"
	}
	return fmt.Sprintf("%s (revision %s)", v.Module, revision)
}

// writeJSON writes one value, indented for people who look at it.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
