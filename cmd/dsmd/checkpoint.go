package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"dsmd/internal/certs"
	"dsmd/internal/checkpoint"
)

func newCheckpoint() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "List and verify the checkpoints of jobs",
		Long: `Looks at the checkpoints that a job has written into a directory. Nothing is changed there, and no
daemon is asked.`,
		Example: `  dsmd checkpoint ls /scratch/job
  dsmd checkpoint verify /scratch/job`,
	}
	return family(cmd, newCheckpointList(), newCheckpointVerify())
}

func newCheckpointList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls DIR",
		Short: "List the checkpoints in a directory, oldest first",
		Long: `Lists the checkpoints in a directory, oldest first. MEMORY is the size of all allocations, FILES of
all files that the checkpoint needs, and OWN of those that only it and later ones need. INCREMENTAL
names the checkpoint whose files it needs, too. Pages are not read: that is "dsmd checkpoint
verify". The exit status is 1 if there is none, or something is wrong with one.`,
		Example: `  dsmd checkpoint ls /scratch/job
  dsmd checkpoint ls /scratch/job --json | jq '.[-1].path'`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := checkpoint.Open(args[0])
			if err != nil {
				return err
			}
			list, err := store.List()
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), list)
			} else if len(list) > 0 {
				err = printCheckpoints(cmd.OutOrStdout(), list)
			}
			if err != nil {
				return err
			}
			return listed(args[0], list)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

// listed is the error if there is no checkpoint, or something is wrong with one.
func listed(dir string, list []checkpoint.Summary) error {
	if len(list) == 0 {
		return fmt.Errorf("%w in %s", checkpoint.ErrNone, dir)
	}
	for _, x := range list {
		if x.Problem != "" {
			return errors.New(certs.Printable(x.Problem))
		}
	}
	return nil
}

// printCheckpoints prints a table.
func printCheckpoints(to io.Writer, list []checkpoint.Summary) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CHECKPOINT\tTIME\tINCREMENTAL\tRANKS\tMEMORY\tFILES\tOWN\tSTATE")
	for _, x := range list {
		name, state, base := filepath.Base(x.Path), "complete", "-"
		if x.Problem != "" {
			state = "damaged"
		}
		if x.ID == "" {
			fmt.Fprintf(w, "%s\t?\t?\t?\t?\t?\t?\t%s\n", name, state)
			continue
		}
		if x.Base != 0 {
			base = fmt.Sprintf("to %d", x.Base)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", name, x.Time.Format(time.RFC3339), base, x.Ranks, rounded(x.MemoryBytes), rounded(x.Bytes), rounded(x.OwnBytes), state)
	}
	return w.Flush()
}

// verified is what `verify --json` prints.
type verified struct {
	Manifest string `json:"manifest"`
	Sequence uint64 `json:"sequence"`
	OK       bool   `json:"ok"`
	// Bytes of pages that were to be read; 0 if an index is damaged, or a file is missing.
	Bytes   uint64 `json:"bytes"`
	Damaged uint64 `json:"damaged"` // pages and files
	// Damage is the first of these.
	Damage []checkpoint.Damage `json:"damage"`
	// Older is the manifest that could be tried instead, or "".
	Older string `json:"older_manifest,omitempty"`
}

func newCheckpointVerify() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify DIR|MANIFEST",
		Short: "Read a whole checkpoint, and check that no byte has changed",
		Long: `Reads every page that a checkpoint needs and compares its checksum. In a directory the newest
checkpoint is meant; a manifest (checkpoint-000012.json) names another. Where pages are damaged, it
says which elements of which allocation lie there. The exit status is 0 if nothing is, and 1
otherwise.`,
		Example: `  dsmd checkpoint verify /scratch/job
  dsmd checkpoint verify /scratch/job/checkpoint-000012.json --json`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := checkpoint.Load(args[0])
			if err != nil {
				return err
			}
			show, clear := verifyProgress(os.Stderr)
			v := verified{Manifest: m.Path(), Sequence: m.Sequence, Damage: []checkpoint.Damage{}}
			err = m.Verify(func(done, total uint64) {
				v.Bytes = total
				show(done, total)
			})
			clear()
			return v.report(cmd.OutOrStdout(), err, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

// report prints what was found, and returns the error.
func (v *verified) report(w io.Writer, err error, asJSON bool) error {
	var damage *checkpoint.DamageError
	v.OK = err == nil
	if errors.As(err, &damage) {
		v.Damaged, v.Damage, v.Older = damage.Total, damage.List, damage.Older
	} else if err != nil {
		return err
	}
	if asJSON {
		return errors.Join(writeJSON(w, v), err)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s is whole: %s of pages, each as it was written\n", v.Manifest, rounded(v.Bytes))
	return err
}

// verifyProgress shows people how far a verification is, and nothing if nobody looks. clear removes
// it.
func verifyProgress(stderr *os.File) (show func(done, total uint64), clear func()) {
	if !term.IsTerminal(int(stderr.Fd())) {
		return func(uint64, uint64) {}, func() {}
	}
	const clearLine = "\r\x1b[K"
	last := time.Time{}
	show = func(done, total uint64) {
		if now := time.Now(); now.Sub(last) > 200*time.Millisecond {
			last = now
			fmt.Fprintf(stderr, "%s%s of %s are read", clearLine, rounded(done), rounded(total))
		}
	}
	return show, func() { fmt.Fprint(stderr, clearLine) }
}
