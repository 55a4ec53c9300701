package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"dsmd/internal/attach"
	"dsmd/internal/certs"
	"dsmd/internal/settings"
	"dsmd/internal/top"
)

// topFlags are those of `dsmd top`.
type topFlags struct {
	socket   string
	interval time.Duration
	once     bool
	order    top.Order
}

// minInterval bounds how often daemons are asked.
const minInterval = 100 * time.Millisecond

func newTop() *cobra.Command {
	f := topFlags{order: top.ByWaits}
	cmd := &cobra.Command{
		Use:   "top [JOB]",
		Short: "Show live what programs wait for, and what their nodes do",
		Long: `Shows, again and again, what the programs of this machine wait for, and what their nodes do: each
program, each allocation, lock, barrier, reduction and commit that somebody has waited for, and each
node, those that cost most first. It asks the same daemons as "dsmd status", or that at --socket.
With JOB it shows one job alone:

` + jobHelp + `

TIME, PAGES, LOCKS, BARRIERS, REDUCTIONS and COMMITS are how long threads have waited, and COMPUTING
how long they had a processor, as parts of the time since the last refresh. Two threads that wait
all the time are 200%. A commit sends what was written to replicated memory to other nodes. EACH is how long one wait takes. TAKEN/s are pages that other nodes took while a
program here wrote to them, without synchronising in between: false sharing. A lock that is taken
again where it was costs nothing and is not counted.

In a terminal, keys sort, choose a job or node, pause and quit; h has them all. Elsewhere, and with
--once, it prints what has happened in one interval, and ends. A daemon that does not answer is
named, and the others are shown.`,
		Example: `  dsmd top
  dsmd top ./solve
  dsmd top --once --interval 10s --sort locks`,
		Args: atMostOneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.interval < minInterval {
				return usageError(cmd, fmt.Errorf("--interval %v: it is at least %v", f.interval, minInterval))
			}
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return f.run(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr(), strings.Join(args, ""))
		},
	}
	cmd.Flags().StringVar(&f.socket, "socket", "", "the daemon's socket, a path or an abstract name (@NAME)")
	cmd.Flags().DurationVar(&f.interval, "interval", 2*time.Second, "how often to ask")
	cmd.Flags().BoolVar(&f.once, "once", false, "print what one interval brings, as text, and end")
	cmd.Flags().Var(settings.Choice((*string)(&f.order), strings.Join(top.Orders, "|"), top.Orders), "sort", "by what programs and waits are sorted")
	return cmd
}

// run shows the daemons in a terminal, or once.
func (f *topFlags) run(ctx context.Context, w, warnings io.Writer, job string) error {
	asker := asker{socket: f.socket, answers: map[string]*top.Sample{}, asking: map[string]time.Time{}}
	first := asker.ask(askTimeout)
	choice := top.Choice{Order: f.order, Node: -1}
	if job != "" {
		var err error
		if choice.Job, err = findJob(first, job); err != nil {
			return err
		}
	}
	inTerminal := term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("TERM") != "dumb"
	if !f.once && inTerminal {
		return top.Screen(ctx, choice, f.interval, func() []top.Sample { return asker.ask(max(f.interval, minInterval)) })
	}
	if len(first) == 0 {
		return errNoDaemon()
	}
	select {
	case <-time.After(f.interval):
	case <-ctx.Done():
		return &exitError{status: 128 + int(syscall.SIGINT)}
	}
	rates := top.Between(first, asker.ask(askTimeout))
	if rates.Over == 0 {
		return errors.New(strings.Join(append([]string{"no daemon answers"}, rates.Silent...), ": "))
	}
	for _, s := range rates.Silent {
		fmt.Fprintf(warnings, "dsmd: no answer: %s\n", s)
	}
	_, err := io.WriteString(w, rates.Text(choice))
	return err
}

// findJob is the job that a user means.
func findJob(samples []top.Sample, text string) (*top.Job, error) {
	var list []daemonStatus
	for i := range samples {
		s := &samples[i]
		list = append(list, daemonStatus{Socket: certs.Printable(s.Socket), Error: s.Error, programsStatus: newProgramsStatus(&s.Programs)})
	}
	list, err := answersOf(list, io.Discard) // they are named when it shows what there is
	if err != nil {
		return nil, err
	}
	j, err := chooseJob(jobsOf(list), text)
	if err != nil {
		return nil, err
	}
	return &top.Job{Cluster: j.cluster, Name: j.name}, nil
}

// asker asks daemons again and again. One that takes long does not hold up the others.
type asker struct {
	socket string // "": all that can be found

	mu      sync.Mutex
	answers map[string]*top.Sample // the last of each; nil: it is another user's; guarded by mu
	asking  map[string]time.Time   // those that have not answered yet; guarded by mu
}

// ask returns what the daemons have answered, which may take as long as patience.
func (a *asker) ask(patience time.Duration) []top.Sample {
	sockets := []string{a.socket}
	if a.socket == "" {
		sockets, _ = findSockets() // without /proc/net/unix there are none
	}
	var all sync.WaitGroup
	for _, socket := range sockets {
		if a.begin(socket) {
			all.Go(func() { a.end(socket, sampleOf(socket, a.socket != "")) })
		}
	}
	answered := make(chan struct{})
	go func() {
		all.Wait()
		close(answered)
	}()
	select {
	case <-answered:
	case <-time.After(patience):
	}
	return a.samples(sockets)
}

// begin notes that a daemon is asked, unless it still is.
func (a *asker) begin(socket string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, busy := a.asking[socket]
	if !busy {
		a.asking[socket] = time.Now()
	}
	return !busy
}

func (a *asker) end(socket string, s *top.Sample) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.asking, socket)
	a.answers[socket] = s
}

// samples are the last answers. A daemon of another user is left out, unless it was asked for.
func (a *asker) samples(sockets []string) (list []top.Sample) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, socket := range sockets {
		if since, busy := a.asking[socket]; busy {
			list = append(list, top.Sample{Socket: socket, Error: fmt.Sprintf("it was asked %v ago", time.Since(since).Round(100*time.Millisecond))})
		} else if s := a.answers[socket]; s != nil {
			list = append(list, *s)
		}
	}
	maps.DeleteFunc(a.answers, func(socket string, _ *top.Sample) bool { return !slices.Contains(sockets, socket) })
	return list
}

// sampleOf asks a daemon for all that `dsmd top` shows; nil: it is another user's, and was not
// named.
func sampleOf(socket string, named bool) *top.Sample {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	s := &top.Sample{Socket: socket, Cluster: clusterOf(socket)}
	switch err := askRates(ctx, s); {
	case errors.Is(err, errForeign) && !named:
		return nil
	case ctx.Err() != nil:
		s.Error = fmt.Sprintf("no answer within %v", askTimeout)
	case err != nil:
		s.Error = err.Error()
	}
	return s
}

func askRates(ctx context.Context, s *top.Sample) error {
	c, welcome, err := meet(ctx, s.Socket, os.Geteuid(), "dsmd top")
	if err != nil {
		return err
	}
	defer c.Close()
	defer c.Discard()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	counters, err := call(c, attach.Call{Op: attach.OpStats, Ticket: 1}, attach.DecodeCounters)
	if err != nil {
		return err
	}
	if s.Programs, err = call(c, attach.Call{Op: attach.OpPrograms, Ticket: 2}, attach.DecodePrograms); err != nil {
		return err
	}
	if s.Waits, err = call(c, attach.Call{Op: attach.OpWaits, Ticket: 3}, attach.DecodeWaits); err != nil {
		return err
	}
	_ = c.Write(attach.AppendBye(nil)) // a courtesy
	s.At, s.Node, s.Nodes, s.PageBytes, s.Counters = time.Now(), welcome.Node, welcome.Nodes, welcome.PageBytes, map[string]uint64{}
	for _, x := range counters {
		s.Counters[x.Name] = x.Value
	}
	s.ReadUsed()
	return nil
}
