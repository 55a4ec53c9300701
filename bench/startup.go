package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"github.com/spf13/cobra"

	"dsmd/bench/table"
)

const (
	// defaultStarts is how often each size is tried, in turns.
	defaultStarts = 11
	maxStarts     = 1000
	// stopGrace is far more than a daemon takes to end.
	stopGrace = 10 * time.Second
	// servingLine is what a daemon logs when programs can attach.
	servingLine = "serving"
)

// startupRegions are the sizes that are compared, as a flag of dsmd: the first is what the others
// are divided by.
var startupRegions = []string{"1GiB", "1TiB"}

// Startup is how long a daemon takes to start with a region of some size.
type Startup struct {
	Trap   string `json:"trap"`
	Region string `json:"region"`
	// Seconds are from starting the process to the moment at which programs can attach: of each
	// run, in order.
	Seconds []float64 `json:"seconds"`
	Median  float64   `json:"median_seconds"`
	// Ratio is Median over that of the first region.
	Ratio float64 `json:"ratio"`
	// ResidentKiB is the daemon's memory then, of the last run.
	ResidentKiB int `json:"resident_kib"`
}

func simStartupCommand() *cobra.Command {
	runs, dsmd, file, timeout := defaultStarts, "", "", time.Duration(0)
	cmd := &cobra.Command{
		Use:   "startup",
		Short: "Measure how long a daemon takes to start, with a region of " + strings.Join(startupRegions, " and of "),
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if runs < 1 || runs > maxStarts {
				return fmt.Errorf("--runs %d: use 1 to %d", runs, maxStarts)
			}
			if err := checkTimeout(timeout); err != nil {
				return err
			}
			ctx, cancel := bounded(cmd.Context(), timeout)
			defer cancel()
			return inWorkplace(ctx, dsmd, func(w workplace) error {
				all, err := measureStartup(ctx, w.dsmd, w.dir, runs)
				if err != nil {
					return err
				}
				w.view.clear()
				return publish(cmd.OutOrStdout(), file, startupTable(all), all)
			})
		},
	}
	cmd.Flags().IntVar(&runs, "runs", runs, "how often each size is tried, in turns")
	dsmdFlag(cmd.Flags(), &dsmd)
	jsonFlag(cmd.Flags(), &file)
	timeoutFlag(cmd.Flags(), &timeout)
	return cmd
}

// measureStartup starts daemons one after the other. The sizes alternate, because machines change
// their speed.
func measureStartup(ctx context.Context, dsmd, dir string, runs int) ([]Startup, error) {
	var all []Startup
	for _, trap := range []string{"uffd", "sigsegv"} {
		first := len(all)
		for _, region := range startupRegions {
			all = append(all, Startup{Trap: trap, Region: region})
		}
		for range runs {
			for i := first; i < len(all); i++ {
				if err := all[i].startOnce(ctx, dsmd, dir); err != nil {
					return nil, err
				}
			}
		}
		for i := first; i < len(all); i++ {
			all[i].Median = table.Median(all[i].Seconds)
			all[i].Ratio = all[i].Median / all[first].Median
		}
	}
	return all, nil
}

// startOnce starts a daemon, waits until it serves, and ends it.
func (s *Startup) startOnce(ctx context.Context, dsmd, dir string) error {
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(running, dsmd, "serve", "--region", s.Region, "--trap", s.Trap, "--listen", "127.0.0.1:0",
		"--socket", filepath.Join(dir, "startup.sock"), "--log-format", "json")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("starting dsmd: %w", err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting dsmd: %w", err)
	}
	var said []string
	lines := bufio.NewScanner(stderr)
	serving := false
	for !serving && lines.Scan() {
		said = append(said, lines.Text())
		serving = strings.Contains(lines.Text(), `"`+servingLine+`"`)
	}
	took := time.Since(began)
	if serving {
		s.ResidentKiB = residentKiB(cmd.Process.Pid)
	}
	cancel()
	for lines.Scan() { // the pipe must be empty before Wait
	}
	err = cmd.Wait()
	if !serving {
		return fmt.Errorf("dsmd serve --region %s --trap %s did not start: %w; it said:\n%s", s.Region, s.Trap, cmp.Or(context.Cause(ctx), err), strings.Join(said, "\n"))
	}
	s.Seconds = append(s.Seconds, took.Seconds())
	return nil
}

// residentKiB is a process's memory; 0 if the kernel does not say.
func residentKiB(pid int) int {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0
	}
	status, _ := p.NewStatus()
	return int(status.VmRSS / 1024)
}

func startupTable(all []Startup) string {
	t := table.Table{Heads: []string{"trap", "region", "median ms", "(of runs)", "ratio", "resident MiB"}, Leading: 2}
	for _, s := range all {
		t.Add(s.Trap, s.Region, oneDecimal(1000*s.Median), fmt.Sprintf("(%.1f–%.1f)", 1000*slices.Min(s.Seconds), 1000*slices.Max(s.Seconds)),
			fmt.Sprintf("%.2f", s.Ratio), oneDecimal(float64(s.ResidentKiB)/1024))
	}
	return t.Text()
}
