package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmd/bench/crew"
	"dsmd/bench/table"
)

// A workplace is what commands need that run daemons.
type workplace struct {
	dir  string // for temporary files
	dsmd string // the path of the executable
	view *display
}

// inWorkplace does work in a workplace, and removes that. asked is the path of dsmd that was asked
// for, if any.
func inWorkplace(ctx context.Context, asked string, work func(workplace) error) error {
	dir, err := os.MkdirTemp("", "dsm-bench-")
	if err != nil {
		return fmt.Errorf("making a directory for the run: %w", err)
	}
	defer os.RemoveAll(dir)
	view := newDisplay(os.Stderr)
	defer view.clear()
	view.show("looking for dsmd", 0, 0)
	dsmd, err := findDsmd(ctx, asked, dir)
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	return work(workplace{dir, dsmd, view})
}

// measured has work done in a workplace, within --timeout, and publishes what it has measured, if
// anything, also when it fails.
func (o *clusterOptions) measured(cmd *cobra.Command, work func(context.Context, workplace) (text string, value any, err error)) error {
	ctx, cancel := bounded(cmd.Context(), o.timeout)
	defer cancel()
	return inWorkplace(ctx, o.dsmd, func(w workplace) error {
		text, value, err := work(ctx, w)
		w.view.clear()
		if value == nil {
			return err
		}
		return errors.Join(publish(cmd.OutOrStdout(), o.json, text, value), err)
	})
}

// withCrew starts ranks, has work done with them, and waits until they have ended.
func withCrew[R any](ctx context.Context, options crew.Options, work func(context.Context, *crew.Crew) (R, error)) (result R, err error) {
	c, err := crew.Start(options)
	if err != nil {
		return result, err
	}
	defer c.Close()
	if result, err = work(ctx, c); err == nil {
		err = c.Finish(ctx)
	}
	return result, err
}

// collect waits for a reply of each rank.
func collect[T any](ctx context.Context, c *crew.Crew) ([]T, error) {
	texts, err := c.Collect(ctx)
	if err != nil {
		return nil, err
	}
	replies := make([]T, len(texts))
	for rank, text := range texts {
		if err := json.Unmarshal(text, &replies[rank]); err != nil {
			return nil, fmt.Errorf("the reply of rank %d: %w", rank, err)
		}
	}
	return replies, nil
}

// Flags that several commands have.

func dsmdFlag(flags *pflag.FlagSet, dsmd *string) {
	flags.StringVar(dsmd, "dsmd", "", "path of the dsmd executable (default: beside this one, else built from source, else on PATH)")
}

func jsonFlag(flags *pflag.FlagSet, file *string) {
	flags.StringVar(file, "json", "", "write the result as JSON to this file; - for standard output, which then carries nothing else")
}

func timeoutFlag(flags *pflag.FlagSet, timeout *time.Duration) {
	flags.DurationVar(timeout, "timeout", defaultTimeout, "end everything after this time, as a failure")
}

// bounded is ctx, ended by --timeout.
func bounded(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, timeout, fmt.Errorf("%w after %v (--timeout)", errTimeout, timeout))
}

func checkTimeout(timeout time.Duration) error {
	if timeout <= 0 {
		return fmt.Errorf("--timeout %v: use a positive duration, for instance %v", timeout, defaultTimeout)
	}
	return nil
}

// A reported result is written for people, and into a folder.
type reported interface {
	Text() string
	WriteTo(dir string) error
}

// publishReport writes a result to the folder of --out, if there is one, and as publish does.
func publishReport(stdout io.Writer, out, file string, r reported) error {
	if out != "" {
		if err := r.WriteTo(out); err != nil {
			return err
		}
	}
	return publish(stdout, file, r.Text(), r)
}

// listing is a command's help with a list of names and what they mean.
func listing(before string, lines [][2]string, after string) string {
	t := table.Table{Heads: []string{"", ""}, Leading: 2}
	for _, line := range lines {
		t.Add("  "+line[0], line[1])
	}
	return before + t.Text() + after
}
