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
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"dsmd/internal/attach"
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
how long: a lock, a barrier, a reduction, a prefetch, an allocation or its end, or a commit. Frames
inside package dsm are left away. The programs go on; the Go runtime stops each for some
milliseconds.

` + jobHelp + `
Without JOB it is the only one that runs; if there are several, they are listed.

A program in which threads wait for pages for longer than a tenth of a second cannot be stopped
without stopping all of it. It says what its goroutines wait for in calls, and its daemon says which
pages the threads wait for. Programs of other users answer only root. Those on other machines are
not asked: run the command there.`,
		Example: `  dsmd stacks
  dsmd stacks ./solve | less`,
		Args: atMostOneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := findDaemons(socket)
			if err != nil {
				return err
			}
			j, err := stacksOf(list, strings.Join(args, ""), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return printStacks(cmd.OutOrStdout(), askStacks(j), whole)
		},
	}
	cmd.Flags().StringVar(&socket, "socket", "", "the daemon's socket, a path or an abstract name (@NAME); else all daemons of this machine are asked")
	cmd.Flags().BoolVar(&whole, "all", false, "print the frames and goroutines of package dsm, too")
	return cmd
}

// bySignal is how to get the stacks of a program that does not tell them.
const bySignal = "SIGQUIT (kill -QUIT PID) has any Go program print its stacks, and ends it"

// stacksOf is the job of these daemons that a text means, which has programs.
func stacksOf(list []daemonStatus, text string, warnings io.Writer) (*job, error) {
	list, err := answersOf(list, warnings)
	if err != nil {
		return nil, err
	}
	j, err := chooseJob(jobsOf(list), text)
	if err == nil && len(j.programs) == 0 {
		return nil, fmt.Errorf("no program is attached to the daemons of job %s here: it has not called dsm.Join yet, has left by Close, or does not use package dsm; %s", j, bySignal)
	}
	return j, err
}

// rankStacks is what was found out about a rank.
type rankStacks struct {
	jobProgram
	dump  runstats.Dump
	pages []attach.PageWait // for which its threads wait
	err   error             // why there is no dump, as the end of a sentence about the rank
}

// askStacks asks all programs of a job, at once.
func askStacks(j *job) []rankStacks {
	list := make([]rankStacks, len(j.programs))
	var asking sync.WaitGroup
	for i, p := range j.programs {
		asking.Go(func() {
			list[i].jobProgram = p
			list[i].err = list[i].askWithin(stacksWithin)
		})
	}
	asking.Wait()
	slices.SortFunc(list, func(a, b rankStacks) int { return int(a.Rank) - int(b.Rank) })
	return list
}

// askWithin is ask, with an error that says what does not answer.
func (r *rankStacks) askWithin(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := r.ask(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("it does not answer within %v: it is stopped, or has no processor; %s", limit, bySignal)
	case ctx.Err() != nil:
		return fmt.Errorf("its daemon at %s does not answer within %v: it waits for its peers, or is stuck; %s", r.socket, limit, bySignal)
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("its daemon at %s has ended just now", r.socket)
	}
	return err
}

// ask asks a rank, by way of its daemon: the program itself writes to a pipe.
func (r *rankStacks) ask(ctx context.Context) error {
	c, _, err := meet(ctx, r.socket, os.Geteuid(), "dsmd stacks")
	if err != nil {
		return err
	}
	defer c.Close()
	defer c.Discard()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	from, file, err := givePipe(c, 1)
	if err != nil {
		return err
	}
	defer from.Close()
	told, err := call(c, attach.Call{Op: attach.OpStacks, Ticket: 2, Object: uint64(file), Count: uint64(r.PID)}, attach.DecodeTell)
	if err != nil {
		return errors.New("it has ended just now")
	}
	_ = c.Write(attach.AppendBye(nil)) // a courtesy
	if r.pages = told.Pages; told.Presence == attach.Silent {
		return errors.New("it cannot be asked: it does not read what it is asked, or was built with another version; " + bySignal)
	}
	if end, limited := ctx.Deadline(); limited {
		_ = from.SetReadDeadline(end)
	}
	text, err := io.ReadAll(io.LimitReader(from, maxDumpBytes))
	switch {
	case err != nil:
		return err
	case len(text) == 0:
		return errors.New("it has ended just now")
	}
	return json.Unmarshal(text, &r.dump)
}
