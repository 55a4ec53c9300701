package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

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

Without FILE it is what daemons on this machine see from now on: that at --socket, or those of a job
that "dsmd run" has started here, or the one at the default socket ("dsmd serve"). If several jobs
run, JOB says which: the beginning of its name in what "dsmd status" shows, or its program. Daemons
know of faults, and in which allocations they are. What only programs know is missing: waits for
locks and at barriers, and the types of elements. A daemon keeps a log of faults while somebody looks.

The page is for this machine, unless --listen names another address. Who can reach it can look.`,
		Example: `  dsmd run -n 4 --dashboard-file solve.json -- ./solve && dsmd dashboard solve.json
  dsmd dashboard                       # of the daemons that run here
  dsmd dashboard ./solve --listen :8080`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			what := strings.Join(args, "")
			if what != "" && socket != "" {
				return usageError(cmd, errors.New("--socket names a daemon, and FILE or JOB something else: give one of them"))
			}
			state, err := lookAt(ctx, what, socket)
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
// ends.
func lookAt(ctx context.Context, what, socket string) (state func() dashboard.State, err error) {
	if what != "" {
		if _, err := os.Stat(what); err == nil {
			s, err := dashboard.Read(what)
			return func() dashboard.State { return s }, err
		}
	}
	list, err := daemonsOf(what, socket)
	if err != nil {
		return nil, err
	}
	m := watch(ctx, list)
	return func() dashboard.State { return m.State(time.Now()) }, nil
}

// daemonsOf are the daemons of a cluster: that of a socket, or a job, or else the only one here.
func daemonsOf(job, socket string) ([]daemonStatus, error) {
	if socket != "" {
		list := askAll([]string{socket})
		if list[0].Error != "" {
			return nil, fmt.Errorf("the daemon at %s: %s", list[0].Socket, list[0].Error)
		}
		return list, nil
	}
	sockets, err := findSockets()
	if err != nil {
		return nil, err
	}
	list := slices.DeleteFunc(askAll(sockets), func(d daemonStatus) bool { return d.Error != "" })
	return chooseCluster(byCluster(list), job)
}

// chooseCluster is the one that job means, or else the only one.
func chooseCluster(clusters [][]daemonStatus, job string) ([]daemonStatus, error) {
	var names []string
	var meant [][]daemonStatus
	for _, c := range clusters {
		name, program := clusterOf(c[0].Socket), programOf(c)
		names = append(names, strings.TrimSpace(name+" "+program))
		if job == "" || strings.HasPrefix(name, job) || job == program || strings.HasSuffix(job, "/"+program) && program != "" {
			meant = append(meant, c)
		}
	}
	there := "; there are: " + strings.Join(names, ", ")
	switch {
	case len(meant) == 1:
		return meant[0], nil
	case len(clusters) == 0 && job != "":
		return nil, fmt.Errorf("%q is no file, and no job of yours runs here", job)
	case len(clusters) == 0:
		return nil, errors.New("no daemon of yours runs here: name a FILE that dsmd run --dashboard-file has written, or start a job with \"dsmd run\"")
	case len(meant) == 0:
		return nil, fmt.Errorf("%q is neither a file nor a job that runs here%s", job, there)
	default:
		return nil, fmt.Errorf("several jobs run here: name one%s", there)
	}
}

// programOf is the name of a program of a cluster; "" if none is attached.
func programOf(cluster []daemonStatus) string {
	for _, d := range cluster {
		if len(d.Programs) > 0 {
			return d.Programs[0].Program
		}
	}
	return ""
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
	l, err := net.Listen("tcp", full)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s %s: %w: choose another port, or :0 for any that is free", flag, addr, err)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%s %s: %w: ports below 1024 are for root: choose another", flag, addr, err)
	case err != nil:
		return nil, fmt.Errorf("%s %s: %w: give HOST:PORT with an address of this machine, or :PORT", flag, addr, err)
	}
	host, _, _ := net.SplitHostPort(full)
	return dashboard.Serve(l, host, state), nil
}
