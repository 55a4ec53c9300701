package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"dsmd/internal/attach"
	"dsmd/internal/certs"
	"dsmd/internal/runstats"
)

// stacksWithin bounds how long a rank is waited for. Taking stacks takes milliseconds.
var stacksWithin = 5 * time.Second

// maxDumpBytes bounds what is read of a rank: more than it can have to say.
const maxDumpBytes = 64 << 20

func newStacks() *cobra.Command {
	var (
		whole  bool
		socket string
	)
	cmd := &cobra.Command{
		Use:   "stacks [JOB]",
		Short: "Show where the goroutines of a running job are, and what they wait for",
		Long: `Asks the programs of a job that run on this machine for the stacks of their goroutines, and prints
those that are the same once, with the ranks that they are of, and what is waited for there and for
how long: a lock, a barrier, a reduction or a prefetch. Frames inside package dsm are left away. The
programs go on; the Go runtime stops each for some milliseconds.

JOB is what the job is called by this command, which lists the jobs if there are several: the name
that "dsmd run" has given it, the socket of a daemon that stays, or the name of a job there (DSM_JOB).
Without JOB it is the only one that runs.

A program in which threads wait for pages for longer than a tenth of a second cannot be stopped
without stopping all of it. It says what its goroutines wait for in calls, and its daemon says which
pages the threads wait for. Programs of other users answer only root. Those on other machines are
not asked: run the command there.`,
		Example: `  dsmd stacks
  dsmd stacks | less`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			sockets := []string{socket}
			if socket == "" {
				var err error
				if sockets, err = findSockets(); err != nil {
					return err
				}
			}
			job, err := chooseJob(jobsOf(askAll(sockets)), args)
			if err != nil {
				return err
			}
			return printStacks(cmd.OutOrStdout(), askStacks(job), whole)
		},
	}
	cmd.Flags().StringVar(&socket, "socket", "", "the daemon's socket, a path or an abstract name (@NAME); else all daemons of this machine are asked")
	cmd.Flags().BoolVar(&whole, "all", false, "print the frames and goroutines of package dsm, too")
	return cmd
}

// runningJob is a job of which programs run here.
type runningJob struct {
	cluster, name string // name: "" if the program names none
	programs      []jobProgram
}

// jobProgram is a program of a job.
type jobProgram struct {
	programStatus
	socket string
	node   uint32
}

func (j *runningJob) String() string {
	if j.name != "" {
		return j.name
	}
	return j.cluster
}

// jobsOf are the jobs of which programs run here.
func jobsOf(list []daemonStatus) (jobs []*runningJob) {
	for _, cluster := range byCluster(list) {
		name := clusterOf(cluster[0].Socket)
		for _, d := range cluster {
			for _, p := range d.Programs {
				i := slices.IndexFunc(jobs, func(j *runningJob) bool { return j.cluster == name && j.name == p.Job })
				if i < 0 {
					i, jobs = len(jobs), append(jobs, &runningJob{cluster: name, name: p.Job})
				}
				jobs[i].programs = append(jobs[i].programs, jobProgram{p, d.Socket, d.Node})
			}
		}
	}
	return jobs
}

// chooseJob is the job that is meant.
func chooseJob(jobs []*runningJob, args []string) (*runningJob, error) {
	if len(jobs) == 0 {
		return nil, errors.New("no program of yours is attached to a daemon of this machine: start a job with \"dsmd run\"; \"dsmd status\" shows what runs")
	}
	var list strings.Builder
	for _, j := range jobs {
		ranks, size := len(j.programs), j.programs[0].Size
		fmt.Fprintf(&list, "\n  %s: %d of %d ranks here, %s, for %s", j, ranks, size, j.programs[0].Program, age(j.programs[0].Age))
	}
	switch {
	case len(args) == 0 && len(jobs) == 1:
		return jobs[0], nil
	case len(args) == 0:
		return nil, fmt.Errorf("several jobs run here: name one of these (dsmd stacks JOB)%s", &list)
	}
	var meant []*runningJob
	for _, j := range jobs {
		if args[0] == j.name || args[0] == j.cluster {
			meant = append(meant, j)
		}
	}
	switch len(meant) {
	case 1:
		return meant[0], nil
	case 0:
		return nil, fmt.Errorf("no job %q runs here; these do%s", certs.Printable(args[0]), &list)
	}
	return nil, fmt.Errorf("%q may be several of these jobs; name one%s", certs.Printable(args[0]), &list)
}

// rankStacks is what was found out about a rank.
type rankStacks struct {
	jobProgram
	dump  runstats.Dump
	pages []attach.PageWait // for which its threads wait
	err   error             // why there is no dump
}

// askStacks asks all programs of a job, at once.
func askStacks(j *runningJob) []rankStacks {
	list := make([]rankStacks, len(j.programs))
	var asking sync.WaitGroup
	for i, p := range j.programs {
		asking.Go(func() {
			list[i].jobProgram = p
			list[i].err = list[i].ask()
		})
	}
	asking.Wait()
	slices.SortFunc(list, func(a, b rankStacks) int { return int(a.Rank) - int(b.Rank) })
	return list
}

// ask asks a rank, by way of its daemon: the program itself writes to a pipe.
func (r *rankStacks) ask() error {
	ctx, cancel := context.WithTimeout(context.Background(), stacksWithin)
	defer cancel()
	c, _, err := meet(ctx, r.socket, os.Geteuid(), "dsmd stacks")
	if err != nil {
		return err
	}
	defer c.Close()
	defer c.Discard()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	from, to, err := os.Pipe()
	if err != nil {
		return err
	}
	defer from.Close()
	err = c.Write(attach.AppendCall(nil, &attach.Call{Op: attach.OpFile, Ticket: 1}), int(to.Fd()))
	to.Close()
	if err != nil {
		return err
	}
	file, err := expect(c, attach.KindReply, attach.DecodeReply)
	if err != nil {
		return err
	}
	told, err := call(c, attach.Call{Op: attach.OpStacks, Ticket: 2, Object: uint64(file.Rank), Count: uint64(r.PID)}, attach.DecodeTell)
	if err != nil {
		return errors.New("it has ended just now")
	}
	_ = c.Write(attach.AppendBye(nil)) // a courtesy
	if r.pages = told.Pages; told.Presence == attach.Silent {
		return errors.New("it cannot be asked: it does not read what it is asked, or was built with another version")
	}
	_ = from.SetReadDeadline(time.Now().Add(stacksWithin))
	text, err := io.ReadAll(io.LimitReader(from, maxDumpBytes))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("it does not answer within %v: it is stopped, or has no processor", stacksWithin)
	case err != nil:
		return err
	case len(text) == 0:
		return errors.New("it has ended just now")
	}
	return json.Unmarshal(text, &r.dump)
}
