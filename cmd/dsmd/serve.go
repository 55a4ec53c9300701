package main

import (
	"context"
	"crypto/tls"
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
	"dsmd/internal/membership"
	"dsmd/internal/settings"
	"dsmd/node"
	"dsmd/protocol"
	"dsmd/transport"
)

// headerTimeout bounds how long a client of the metrics server may take to say what it wants.
const headerTimeout = 10 * time.Second

// inherited are the listening sockets that a daemon was started with, and the pipe by which its launcher tells it who is lost; -1: none.
type inherited struct{ listen, socket, metrics, news int }

func newServe() *cobra.Command {
	var (
		config configuration
		fds    inherited
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Be one node of a cluster",
		Long: `Runs the daemon of one node. Programs on this machine attach at --socket, at any time.

The nodes of a cluster find each other when each is told how many they are (--nodes) and the
address of at least one other (--join), or they are listed: all are given the same --peers,
and each its own place in it (--id, from 0).

Settings are flags, variables of the environment (DSMD_…), or lines of a configuration file;
"dsmd config check" shows what results, and docs/configuration.md has the whole table.

SIGTERM or Ctrl-C ends the daemon, and with it the cluster: the pages that it owns are gone. The
daemons of other nodes then end too, with an error that names the node: start all of them anew.
With --survive they go on without it; "dsmd drain" ends it without loss, and --rejoin brings it back.
A daemon that the others go on without, because it was cut off, ends too; with --return it comes
back by itself, as with --rejoin: its programs have ended, and it knows nothing of before.`,
		Example: `  dsmd serve                                        # a cluster of one node
  dsmd serve --nodes 3 --join a,b --tls-ca …        # on each of three machines
  dsmd serve --id 0 --peers 10.0.0.1:7400,10.0.0.2:7400 --tls-ca …   # on 10.0.0.1`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := config.load(cmd.Flags()); err != nil {
				return usageError(cmd, err)
			}
			return serve(config.values, fds)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	config.register(flags)
	for name, fd := range map[string]*int{"listen-fd": &fds.listen, "socket-fd": &fds.socket, "metrics-fd": &fds.metrics, "news-fd": &fds.news} {
		flags.IntVar(fd, name, -1, "inherited descriptor")
		_ = flags.MarkHidden(name) // the flag exists
	}
	return cmd
}

// serve runs the daemon until a signal ends it.
func serve(v *settings.Values, fds inherited) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// A second signal kills, should the first not suffice.
	context.AfterFunc(ctx, stop)

	log, err := newLogger(v)
	if err != nil {
		return fmt.Errorf("the log: %w", err)
	}
	defer func() { _ = log.Sync() }() // a terminal or pipe cannot be synced, and need not be
	for returning := false; ; {
		own := fds
		if v.Return {
			if own, err = fds.copies(); err != nil {
				return err
			}
		}
		err := serveOnce(ctx, v, own, log)
		switch {
		case returning && errors.Is(err, membership.ErrTimeout):
			continue // the others cannot be reached yet
		case !isLeftBehind(err):
			return err
		case !v.Return:
			return fmt.Errorf("%w; when the others can be reached again, this brings it back: %s --rejoin", err, strings.Join(os.Args, " "))
		case ctx.Err() != nil:
			return nil
		}
		log.Warn("this daemon comes back as one that knows nothing, as soon as the others let it in", zap.Error(err))
		v.Rejoin, returning = true, true
	}
}

// isLeftBehind says whether a node has ended because it is not among those that go on, as far as it knows: nothing is wrong with it.
func isLeftBehind(err error) bool {
	return errors.Is(err, node.ErrNoQuorum) || errors.Is(err, node.ErrExcluded)
}

// copies are the same once more, so that they can be inherited again.
func (f inherited) copies() (inherited, error) {
	for _, fd := range []*int{&f.listen, &f.socket, &f.metrics} {
		if *fd < 0 {
			continue
		}
		again, err := syscall.Dup(*fd)
		if err != nil {
			return inherited{}, fmt.Errorf("descriptor %d: %w", *fd, err)
		}
		syscall.CloseOnExec(again)
		*fd = again
	}
	return f, nil
}

// serveOnce runs the daemon until ctx ends, or it cannot go on.
func serveOnce(ctx context.Context, v *settings.Values, fds inherited, log *zap.Logger) error {
	s, err := openSockets(v, fds)
	if err != nil {
		return err
	}
	secrets, err := loadSecrets(v, s.data, log)
	if err != nil {
		s.close()
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	stages, err := newStages(v)
	if err != nil {
		s.close()
		return err
	}
	if v.Metrics != "" || fds.metrics >= 0 {
		server, err := serveMetrics(v, fds.metrics, secrets, registry, stages, log)
		if err != nil {
			s.close()
			return err
		}
		defer server.Close()
	}
	place, err := findPlace(ctx, v, s.data, secrets, registry, log)
	if err != nil {
		s.close()
		if ctx.Err() != nil {
			return nil // it was told to end before there was a cluster
		}
		return err
	}
	if v.LogFormat == "json" {
		// On a console the prefix that `run` gives to every line says which node it is.
		log = log.With(zap.Int("node", place.id))
	}
	n, err := node.New(node.Config{
		Self: place.id, Nodes: v.Nodes, Ranks: v.Ranks, Cluster: place.cluster,
		Listener: s.data, Peers: place.peers, Socket: s.programs,
		RegionBytes: uint64(v.Region), Trap: v.Trap, Transport: v.Transport, RDMADevice: v.RDMADevice, RDMAPoolBytes: uint64(v.RDMAPool),
		TLS: secrets.tls, VerifyPeer: secrets.verify, GiveUp: v.DeadAfter,
		Survive: v.Survive, NoQuorum: v.NoQuorum, Rejoin: v.Rejoin,
		Hold: v.Hold, Spin: v.Spin, Farewell: place.leave, Stages: stages, Log: log, Metrics: registry,
	})
	if err != nil {
		place.leave(err)
		return err
	}
	place.watch(n)
	if fds.news >= 0 {
		go readNews(fds.news, n)
	}
	return n.Run(ctx)
}

// readNews tells the node what the launcher of its job says.
func readNews(fd int, n *node.Node) {
	launch.News{
		Node: func(id int) {
			if id < protocol.MaxNodes {
				n.PeerFailed(transport.NodeID(id), fmt.Errorf("the launcher of the job has lost node %d", id))
			}
		},
		Rank: n.RankLost,
	}.Read(os.NewFile(uintptr(fd), "news"))
}

// newStages makes the log of stages that the settings ask for, nil if they do not.
func newStages(v *settings.Values) (*node.StageLog, error) {
	if v.Stages == 0 {
		return nil, nil
	}
	return node.NewStageLog(v.Stages)
}

// sockets are what a daemon listens at for nodes and programs.
type sockets struct {
	data     net.Listener
	programs *net.UnixListener
}

func openSockets(v *settings.Values, fds inherited) (sockets, error) {
	data, err := listen(fds.listen, v.Listen)
	if err != nil {
		return sockets{}, fmt.Errorf("listening for peers: %w", err)
	}
	programs, err := listenSocket(fds.socket, v.Socket)
	if err != nil {
		data.Close()
		return sockets{}, fmt.Errorf("listening for programs: %w", err)
	}
	return sockets{data, programs}, nil
}

func (s *sockets) close() {
	s.data.Close()
	s.programs.Close()
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

// serveMetrics starts the HTTP server for metrics and profiles. Beyond this machine it serves nobody without a certificate of the
// cluster: a profile tells more of a program than strangers should know.
func serveMetrics(v *settings.Values, fd int, secrets *secrets, registry *prometheus.Registry, stages *node.StageLog, log *zap.Logger) (*http.Server, error) {
	addr := v.Metrics
	if fd < 0 {
		var err error
		if addr, err = launch.LoopbackUnlessSaid(addr); err != nil {
			return nil, fmt.Errorf("--metrics: %w", err)
		}
	}
	l, err := listen(fd, addr)
	if err != nil {
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	if !onlyHere(l.Addr()) {
		switch {
		case secrets.tls != nil:
			l = tls.NewListener(l, secrets.tls)
		case !v.Insecure:
			l.Close()
			return nil, exposed("metrics", l.Addr(), "give certificates (--tls-ca, --tls-cert, --tls-key)")
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	if stages != nil {
		mux.Handle("/debug/stages", stages)
	}
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
