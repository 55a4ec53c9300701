package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"dsmd/internal/certs"
	"dsmd/internal/dashboard"
	"dsmd/internal/launch"
)

func newDashboard() *cobra.Command {
	var socket, addr string
	cmd := &cobra.Command{
		Use:   "dashboard [FILE | JOB]",
		Short: "Show in a browser where threads wait for memory, now or in a run that has ended",
		Long: `Serves a page that shows what "dsmd run --dashboard" shows of its job. It prints where, and serves
until Ctrl-C. With FILE it is the end of a job, which "dsmd run --dashboard-file FILE" has kept.

Without FILE it is what daemons on this machine see from now on: that at --socket, those of a job
that "dsmd run" has started here, or one that stays ("dsmd serve"), with all its programs. If
several jobs run, JOB says which:

` + jobHelp + `

Daemons know of faults, and in which allocations they are. What only programs know is missing: waits
for locks, at barriers and in reductions, and the types of elements. A daemon keeps a log of faults
while somebody looks.

The page is for this machine, unless --listen names another address. Who can reach it can look.`,
		Example: `  dsmd run -n 4 --dashboard-file solve.json -- ./solve && dsmd dashboard solve.json
  dsmd dashboard                       # of the daemons that run here
  dsmd dashboard ./solve --listen :8080`,
		Args: atMostOneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			state, err := lookAt(ctx, strings.Join(args, ""), socket, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return showDashboard(ctx, cmd.OutOrStdout(), addr, state)
		},
	}
	cmd.Flags().StringVar(&socket, "socket", "", "the daemon's socket, a path or an abstract name (@NAME)")
	cmd.Flags().StringVar(&addr, "listen", ":0", "TCP `ADDR`ess of the page: HOST:PORT, or :PORT on this machine; 0 is any free port")
	return cmd
}

// lookAt finds what a dashboard is to show: a file, or daemons, which it then watches until ctx
// ends. At a socket there is no file.
func lookAt(ctx context.Context, what, socket string, warnings io.Writer) (state func() dashboard.State, err error) {
	var noState error // what is wrong with a file of that name, which may be a program
	if what != "" && socket == "" {
		s, err := dashboard.Read(what)
		if err == nil {
			return func() dashboard.State { return s }, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			noState = err
		}
	}
	list, err := findDaemons(socket)
	if err != nil {
		return nil, err
	}
	var j *job
	if list, err = answersOf(list, warnings); err == nil {
		j, err = chooseJob(clustersOf(list), what)
	}
	switch {
	case err == nil:
		m := watch(ctx, j)
		return func() dashboard.State { return m.State(time.Now()) }, nil
	case noState != nil:
		return nil, fmt.Errorf("%w; and %w", noState, err)
	case what != "" && socket == "":
		return nil, fmt.Errorf("there is no file %q, and %w", certs.Printable(what), err)
	}
	return nil, err
}

// showDashboard serves states until ctx ends.
func showDashboard(ctx context.Context, w io.Writer, addr string, state func() dashboard.State) error {
	server, err := serveDashboard("--listen", addr, state)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "the dashboard is at %s until Ctrl-C\n", server.URL()); err != nil {
		server.Stop()
		return err
	}
	<-ctx.Done()
	server.Stop()
	return nil
}

// serveDashboard serves states at the address that a flag has.
func serveDashboard(flag, addr string, state func() dashboard.State) (*dashboard.Server, error) {
	full, err := launch.LoopbackUnlessSaid(addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	l, err := launch.ListenTCP(full)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", flag, addr, err)
	}
	host, _, _ := net.SplitHostPort(full)
	return dashboard.Serve(l, host, state), nil
}
