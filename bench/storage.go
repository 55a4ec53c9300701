package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmd/bench/crew"
	"dsmd/bench/storage"
	"dsmd/dsm"
)

// storageOptions are the flags of `bench storage` and of its commands.
type storageOptions struct {
	clusterOptions
	dir  string
	mib  int
	runs int
}

// storageCommand measures checkpoints, if it is not told what to measure.
func storageCommand() *cobra.Command {
	cmd := checkpointCommand("storage --dir DIRECTORY", "Measure checkpoints, and with `read` reading files of other nodes, beside what the disk can do")
	cmd.AddCommand(
		checkpointCommand("checkpoint --dir DIRECTORY", "Measure checkpoints and restoring them, beside direct input and output to the same disk"),
		readCommand())
	return cmd
}

func checkpointCommand(use, short string) *cobra.Command {
	var o storageOptions
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return o.measured(cmd, func(ctx context.Context, w workplace) (string, any, error) {
				result, err := measureStorage(ctx, &o, w)
				if err != nil {
					return "", nil, err
				}
				return result.Text(), result, nil
			})
		},
	}
	o.clusterOptions.register(cmd.Flags())
	o.registerDisk(cmd.Flags(), "shared memory in all, in MiB")
	return cmd
}

// registerDisk registers the flags of the disk. mib says of what it is the size.
func (o *storageOptions) registerDisk(flags *pflag.FlagSet, mib string) {
	flags.StringVar(&o.dir, "dir", "", "`directory` on the disk that is measured; what is made there is removed")
	flags.IntVar(&o.mib, "mib", 512, mib)
	flags.IntVar(&o.runs, "runs", 5, "how often each is measured, in turns")
}

func (o *storageOptions) check() error {
	switch {
	case o.dir == "":
		return errors.New("--dir: name a directory on the disk that is to be measured")
	case o.mib < 1 || o.mib > 1<<20:
		return fmt.Errorf("--mib %d: use 1 to %d", o.mib, 1<<20)
	case o.runs < 1 || o.runs > 1000:
		return fmt.Errorf("--runs %d: use 1 to 1000", o.runs)
	}
	o.predict = off // as in micro
	return errors.Join(o.clusterOptions.check(1), o.ofOneCluster())
}

// measureStorage measures the floor and the checkpoints in turns.
func measureStorage(ctx context.Context, o *storageOptions, w workplace) (*storage.Result, error) {
	dir, err := os.MkdirTemp(o.dir, "dsm-bench-")
	if err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	defer os.RemoveAll(dir)
	r := &storage.Result{Nodes: o.nodes, Bytes: o.mib << 20}
	for i := range o.runs {
		w.view.show("storage", i, o.runs)
		var x storage.Run
		if x.FloorWrite, x.FloorRead, err = storage.Floor(ctx, dir, r.Bytes, o.nodes); err != nil {
			return nil, err
		}
		saves := filepath.Join(dir, strconv.Itoa(i))
		saved, err := storageReplies[storage.Saved](ctx, o, w, "save", saves)
		if err != nil {
			return nil, err
		}
		restored, err := storageReplies[storage.Restored](ctx, o, w, "restore", saves)
		if err != nil {
			return nil, err
		}
		for _, s := range saved {
			x.Saved = storage.Saved{Whole: max(x.Whole, s.Whole), Moment: max(x.Moment, s.Moment), Incremental: max(x.Incremental, s.Incremental),
				Store: max(x.Store, s.Store), Stores: max(x.Stores, s.Stores), Own: max(x.Own, s.Own)}
		}
		for _, s := range restored {
			x.Restored = storage.Restored{Ready: max(x.Ready, s.Ready), Read: max(x.Read, s.Read)}
		}
		r.Runs = append(r.Runs, x)
		if err := os.RemoveAll(saves); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// storageReplies runs a cluster once, and returns what each rank has measured.
func storageReplies[T any](ctx context.Context, o *storageOptions, w workplace, what, dir string) ([]T, error) {
	options, err := o.crew(w, workerStorage, what, dir, strconv.Itoa(o.mib<<20))
	if err != nil {
		return nil, err
	}
	return withCrew(ctx, options, collect[T])
}

// storageWorker is one rank of it.
func storageWorker(ctx context.Context, line *crew.Line, what, dir string, bytes int) error {
	return joined(ctx, line, func(c *dsm.Cluster) error {
		if err := line.Phase(what); err != nil {
			return err
		}
		var reply any
		var err error
		if what == "save" {
			reply, err = storage.Save(ctx, c, dir, bytes)
		} else {
			reply, err = storage.Restore(ctx, c, dir, bytes)
		}
		if err != nil {
			return err
		}
		return lastReply(line, reply)
	})
}
