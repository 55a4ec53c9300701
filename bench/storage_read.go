package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"dsmd/bench/crew"
	"dsmd/bench/storage"
	"dsmd/dsm"
)

const (
	// defaultRandomMiB is how much of the file is read at random, at most: what one thread reads in
	// some seconds.
	defaultRandomMiB = 128
	// pagesPerMiB is how many pages are read at random for that.
	pagesPerMiB = 256
)

// disturbing is how long a memory-bound program runs at least beside each design. Only tests change
// it.
var disturbing = time.Second

// readOptions are the flags of `bench storage read`.
type readOptions struct {
	storageOptions
	randomMiB int
}

func readCommand() *cobra.Command {
	var o readOptions
	cmd := &cobra.Command{
		Use:   "read --dir DIRECTORY",
		Short: "Measure reading a file that another node has, beside bare programs that send it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.nodes = storage.Ranks
			if err := o.check(); err != nil {
				return err
			}
			return o.measured(cmd, func(ctx context.Context, w workplace) (string, any, error) {
				result, err := measureReads(ctx, &o, w)
				if err != nil {
					return "", nil, err
				}
				return result.Text(), result, nil
			})
		},
	}
	o.registerShared(cmd.Flags())
	o.registerDisk(cmd.Flags(), "size of the file, in MiB")
	cmd.Flags().IntVar(&o.randomMiB, "random-mib", defaultRandomMiB, "how much of it is read at random, in MiB, at most")
	return cmd
}

func (o *readOptions) check() error {
	if o.randomMiB < 1 {
		return fmt.Errorf("--random-mib %d: use 1 or more", o.randomMiB)
	}
	if o.bind == "core" {
		return errors.New("--bind core: this measurement parts the cores itself, for a part of it")
	}
	o.bind = "none"
	return o.storageOptions.check()
}

// readWorker is one rank that maps the file.
func readWorker(ctx context.Context, line *crew.Line) error {
	giveThreadsProcessors(storage.MaxThreads)
	return joined(ctx, line, func(c *dsm.Cluster) error {
		member, err := storage.Introduce(c)
		if err == nil {
			err = line.Reply(member)
		}
		if err != nil {
			return err
		}
		var mapping storage.Mapping
		return answerAll(line, func(t storage.Task) (any, error) {
			if err := line.Phase("at the task " + t.Do); err != nil {
				return nil, err
			}
			return mapping.Do(ctx, c, t)
		})
	})
}

// measureReads makes the file and the processes, and measures all designs in turns.
func measureReads(ctx context.Context, o *readOptions, w workplace) (result *storage.ReadResult, err error) {
	dir, err := os.MkdirTemp(o.dir, "dsm-bench-")
	if err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	defer os.RemoveAll(dir)
	if dir, err = filepath.Abs(dir); err != nil { // for the other processes, wherever they are
		return nil, fmt.Errorf("--dir: %w", err)
	}
	w.view.show("writing the file", 0, 0)
	d := &readers{ctx: ctx, options: o}
	if d.contents, err = storage.Fill(ctx, filepath.Join(dir, "contents"), o.mib); err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.start(w); err != nil {
		return nil, err
	}
	r := &storage.ReadResult{Bytes: o.mib << 20, RandomBytes: min(o.mib, o.randomMiB) << 20, Trap: d.members[0].Trap, Transport: d.members[0].Transport}
	r.Cores, r.Bound, r.StorageCores = d.all.Count(), d.parted, d.storageCores.Count()
	for i := range o.runs {
		w.view.show("reading", i, o.runs)
		var x storage.ReadRun
		if x.Reads, err = d.reads(i); err == nil {
			err = d.disturb(&x)
		}
		if err != nil {
			return nil, err
		}
		r.Runs = append(r.Runs, x)
	}
	return r, d.crew.Finish(ctx)
}

// readers are the processes that read, of all designs.
type readers struct {
	ctx      context.Context
	options  *readOptions
	contents *storage.Contents

	crew                  *crew.Crew
	members               []storage.Member
	server, reader, triad *storage.Child
	address               string

	storageCores, readerCores, all unix.CPUSet
	parted                         bool // there are at least two cores
}

func (d *readers) start(w workplace) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this executable: %w", err)
	}
	if d.storageCores, d.readerCores, d.all, d.parted, err = storage.Cores(); err != nil {
		return err
	}
	for role, child := range map[storage.Role]**storage.Child{storage.RoleServer: &d.server, storage.RoleReader: &d.reader, storage.RoleTriad: &d.triad} {
		if *child, err = storage.StartChild(d.ctx, role, self, workerName, workerBare, string(role), d.contents.Path); err != nil {
			return err
		}
	}
	if err := d.server.Hear(&d.address); err != nil {
		return err
	}
	options, err := d.options.crew(w, workerRead)
	if err != nil {
		return err
	}
	// Else the Go runtime would notice, some time later, that a daemon was bound to fewer cores.
	options.Env = append(options.Env, "GODEBUG="+strings.TrimPrefix(os.Getenv("GODEBUG")+",updatemaxprocs=0", ","))
	if d.crew, err = crew.Start(options); err != nil {
		return err
	}
	d.members, err = collect[storage.Member](d.ctx, d.crew)
	return err
}

// close ends all processes.
func (d *readers) close() (err error) {
	if d.crew != nil {
		d.crew.Close()
	}
	for _, child := range []*storage.Child{d.reader, d.server, d.triad} {
		if child != nil {
			err = errors.Join(err, child.Close())
		}
	}
	return err
}

// sides are the processes of a design.
func (d *readers) sides(of storage.Design) storage.Sides {
	switch of {
	case storage.Shared:
		at := func(rank int) []int { return []int{d.members[rank].Daemon, d.members[rank].Program} }
		return storage.Sides{Storage: at(0), Reader: at(1)}
	case storage.Local:
		return storage.Sides{Reader: []int{d.reader.PID()}}
	default:
		return storage.Sides{Storage: []int{d.server.PID()}, Reader: []int{d.reader.PID()}}
	}
}

// reads measures each pattern by all designs, in turns.
func (d *readers) reads(run int) (all []storage.Read, err error) {
	for i, p := range storage.Patterns {
		order := storage.Order{Pages: d.contents.Pages(), Threads: p.Threads, Seed: uint64(run*len(storage.Patterns) + i)}
		bytes := d.options.mib << 20
		if p.Random {
			order.Random = min(order.Pages, d.options.randomMiB*pagesPerMiB)
			bytes = order.Random * (bytes / order.Pages)
		}
		for _, cache := range []string{storage.Cold, storage.Warm} {
			designs := storage.Designs
			if cache == storage.Warm {
				designs = storage.WarmDesigns
			}
			for _, design := range designs {
				r, err := d.read(design, order, cache == storage.Warm)
				if err != nil {
					return nil, fmt.Errorf("reading %s, by the design %s, with a %s cache: %w", p.Name, design, cache, err)
				}
				all = append(all, storage.Read{Design: design, Pattern: p.Name, Threads: p.Threads, Cache: cache, Bytes: bytes, Reading: r})
			}
		}
	}
	return all, nil
}

// read reads once, and looks whether that was what the file has.
func (d *readers) read(design storage.Design, order storage.Order, warm bool) (r storage.Reading, err error) {
	if err := d.contents.Cache(warm); err != nil {
		return r, err
	}
	if design == storage.Shared {
		r, err = d.readShared(order)
	} else {
		err = d.reader.Ask(storage.Ask{Design: design, Address: d.address, Order: order, Sides: d.sides(design)}, &r)
	}
	if err != nil {
		return r, err
	}
	return r, d.contents.Check(order, r)
}

// readShared maps the file, reads it, and ends the mapping: no node has a page of it before.
func (d *readers) readShared(order storage.Order) (r storage.Reading, err error) {
	for _, do := range []string{storage.TaskMap, storage.TaskRead, storage.TaskFree} {
		t := storage.Task{Do: do, Path: d.contents.Path, Order: order, Sides: d.sides(storage.Shared)}
		if err := d.crew.Tell(t); err != nil {
			return r, err
		}
		replies, err := collect[storage.Reading](d.ctx, d.crew)
		if err != nil {
			return r, err
		}
		if do == storage.TaskRead {
			r = replies[1]
		}
	}
	return r, nil
}

// disturb measures a memory-bound program at the storage side: alone, and beside each design.
func (d *readers) disturb(x *storage.ReadRun) error {
	alone, err := d.beside(nil, func() error {
		select {
		case <-time.After(disturbing):
		case <-d.ctx.Done():
		}
		return context.Cause(d.ctx)
	})
	if err != nil {
		return err
	}
	if x.Alone, x.AloneShare, err = alone.Rate(alone.Whole()); err != nil {
		return err
	}
	for _, design := range storage.Disturbing {
		var readings []storage.Reading
		passes, err := d.beside(&design, func() error {
			for took := time.Duration(0); took < disturbing; {
				r, err := d.read(design, storage.Order{Pages: d.contents.Pages(), Threads: 1}, false)
				if err != nil {
					return err
				}
				readings, took = append(readings, r), took+time.Duration(r.End-r.Begin)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("beside a memory-bound program, by the design %s: %w", design, err)
		}
		disturbance, err := storage.NewDisturbance(design, readings, d.options.mib<<20, passes, x.Alone)
		if err != nil {
			return err
		}
		x.Disturbed = append(x.Disturbed, disturbance)
	}
	return nil
}

// beside does something while the memory-bound program runs. It shares the cores of the storage
// side with that of the design, if there is one.
func (d *readers) beside(design *storage.Design, do func() error) (*storage.Passes, error) {
	sides := storage.Sides{}
	if design != nil {
		sides = d.sides(*design)
	}
	sides.Storage = append(sides.Storage, d.triad.PID())
	if d.parted {
		defer func() {
			// Those that have ended need no cores, and the measurement fails then anyway.
			_ = errors.Join(storage.Bind(sides.Storage, &d.all), storage.Bind(sides.Reader, &d.all))
		}()
		if err := errors.Join(storage.Bind(sides.Storage, &d.storageCores), storage.Bind(sides.Reader, &d.readerCores)); err != nil {
			return nil, err
		}
	}
	var begun bool
	if err := d.triad.Ask(true, &begun); err != nil {
		return nil, err
	}
	if err := do(); err != nil {
		return nil, err
	}
	var passes storage.Passes
	return &passes, d.triad.Ask(false, &passes)
}
