package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"dsmd/internal/attach"
	"dsmd/internal/launch"
	"dsmd/node"
)

// headerTimeout bounds how long a client of the metrics server may take to say what it wants.
const headerTimeout = 10 * time.Second

// serveFlags are the flags of `serve` alone.
type serveFlags struct {
	id, ranks                     int
	peers                         []string
	listen, socket, cluster       string
	metrics                       string
	listenFD, socketFD, metricsFD int // inherited from `run`; -1: none
}

func newServe() *cobra.Command {
	var (
		shared nodeFlags
		own    serveFlags
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Be one node of a cluster",
		Long: `Runs the daemon of one node. The nodes of a cluster are given the same list of peers, and each its
own place in it (--id, from 0). Programs on this machine attach at --socket.

SIGTERM or Ctrl-C ends the daemon, and with it the cluster: the pages that it owns are gone. The
daemons of other nodes end too if they have programs; those without stay but take no programs any
more: end them, and start all nodes anew.`,
		Example: `  dsmd serve                                       # a cluster of one node
  dsmd serve --id 0 --peers 10.0.0.1:7400,10.0.0.2:7400   # on 10.0.0.1
  dsmd serve --id 1 --peers 10.0.0.1:7400,10.0.0.2:7400   # on 10.0.0.2`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(shared.check(), own.check()); err != nil {
				return usageError(cmd, err)
			}
			return serve(&shared, &own)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&own.id, "id", 0, "this node's place in the list of peers, from 0")
	flags.StringSliceVar(&own.peers, "peers", nil, "TCP address of each node, this one included, separated by commas")
	flags.StringVar(&own.listen, "listen", "", "TCP `ADDR`ess to listen at for peers (default: the own one of --peers)")
	flags.StringVar(&own.socket, "socket", defaultSocket(), "Unix socket for programs, a path or an abstract name (@NAME)")
	flags.IntVar(&own.ranks, "ranks", 0, "number of programs in the job (default: one for each node)")
	flags.StringVar(&own.cluster, "cluster", "default", "name of the cluster; nodes of another name are refused")
	flags.StringVar(&own.metrics, "metrics", "", "TCP `ADDR`ess of an HTTP server with /metrics and /debug/pprof; :PORT is for this machine only")
	shared.register(flags, "info")
	for name, fd := range map[string]*int{"listen-fd": &own.listenFD, "socket-fd": &own.socketFD, "metrics-fd": &own.metricsFD} {
		flags.IntVar(fd, name, -1, "inherited listening socket")
		_ = flags.MarkHidden(name) // the flag exists
	}
	return cmd
}

// defaultSocket is where a daemon that is told nothing else listens for its user's programs.
func defaultSocket() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return dir + "/dsmd.sock"
	}
	return fmt.Sprintf("%s/dsmd-%d.sock", os.TempDir(), os.Getuid())
}

func (f *serveFlags) check() error {
	if len(f.peers) == 0 {
		// A cluster of one node has nobody to listen for.
		f.peers = []string{"127.0.0.1:0"}
	}
	if err := checkNodes(len(f.peers)); err != nil {
		return fmt.Errorf("--peers: %w", err)
	}
	for i, peer := range f.peers {
		f.peers[i] = strings.TrimSpace(peer)
		if _, _, err := net.SplitHostPort(f.peers[i]); err != nil {
			return fmt.Errorf("--peers: address %d, %q: %w: write HOST:PORT", i, peer, err)
		}
	}
	if f.id < 0 || f.id >= len(f.peers) {
		return fmt.Errorf("--id %d: the list of peers has places 0 to %d", f.id, len(f.peers)-1)
	}
	if f.listen == "" {
		f.listen = f.peers[f.id]
	}
	if f.ranks == 0 {
		f.ranks = len(f.peers)
	}
	if f.ranks < 1 || f.ranks > node.MaxRanks {
		return fmt.Errorf("--ranks %d: 1 to %d are possible", f.ranks, node.MaxRanks)
	}
	return nil
}

// serve runs the daemon until a signal ends it.
func serve(shared *nodeFlags, own *serveFlags) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// A second signal kills, should the first not suffice.
	context.AfterFunc(ctx, stop)

	log, err := shared.logger()
	if err != nil {
		return fmt.Errorf("the log: %w", err)
	}
	defer func() { _ = log.Sync() }() // a terminal or pipe cannot be synced, and need not be
	if shared.logFormat == "json" {
		// On a console the prefix that `run` gives to every line says which node it is.
		log = log.With(zap.Int("node", own.id))
	}

	data, err := listen(own.listenFD, own.listen)
	if err != nil {
		return fmt.Errorf("listening for peers: %w", err)
	}
	socket, err := listenSocket(own.socketFD, own.socket)
	if err != nil {
		data.Close()
		return fmt.Errorf("listening for programs: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	n, err := node.New(node.Config{
		Self: own.id, Nodes: len(own.peers), Ranks: own.ranks, Cluster: own.cluster,
		Listener: data, Peers: own.peers, Socket: socket,
		RegionBytes: uint64(shared.region), Trap: shared.trap, Transport: shared.transport,
		Hold: shared.hold, Spin: shared.spin, Log: log, Metrics: registry,
	})
	if err != nil {
		return err
	}
	if own.metrics != "" || own.metricsFD >= 0 {
		server, err := serveMetrics(own, registry, log)
		if err != nil {
			return err
		}
		defer server.Close()
	}
	return n.Run(ctx)
}

// listen opens a TCP listener, or takes over the inherited one.
func listen(fd int, addr string) (net.Listener, error) {
	if fd < 0 {
		return net.Listen("tcp", addr)
	}
	return inherit(fd)
}

// inherit takes over a listening socket that this process was started with.
func inherit(fd int) (net.Listener, error) {
	f := os.NewFile(uintptr(fd), "inherited socket")
	if f == nil {
		return nil, fmt.Errorf("descriptor %d was not inherited", fd)
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("descriptor %d: %w", fd, err)
	}
	return l, nil
}

// listenSocket opens the socket for programs, or takes over the inherited one. A socket file is removed when the listener is closed.
func listenSocket(fd int, socket string) (*net.UnixListener, error) {
	named := fd < 0
	if named {
		var err error
		if fd, err = attach.Listen(socket); err != nil {
			return nil, err
		}
	}
	l, err := inherit(fd)
	if err != nil {
		return nil, err
	}
	programs, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, fmt.Errorf("descriptor %d is no Unix socket", fd)
	}
	programs.SetUnlinkOnClose(named && socket[0] != '@')
	return programs, nil
}

// serveMetrics starts the HTTP server for metrics and profiles.
func serveMetrics(own *serveFlags, registry *prometheus.Registry, log *zap.Logger) (*http.Server, error) {
	addr := own.metrics
	if own.metricsFD < 0 {
		var err error
		if addr, err = launch.LoopbackUnlessSaid(addr); err != nil {
			return nil, fmt.Errorf("--metrics: %w", err)
		}
	}
	l, err := listen(own.metricsFD, addr)
	if err != nil {
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	log.Info("metrics are served", zap.Stringer("address", l.Addr()))
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the metrics server has ended", zap.Error(err))
		}
	}()
	return server, nil
}
