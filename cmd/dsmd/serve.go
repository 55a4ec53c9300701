package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"dsmd/internal/attach"
	"dsmd/internal/launch"
	"dsmd/internal/membership"
	"dsmd/internal/settings"
	"dsmd/node"
	"dsmd/protocol"
	"dsmd/transport"
	"dsmd/transport/emulated"
)

// inherited are the listening sockets that a daemon was started with, and the pipe by which its
// launcher tells it who is lost; -1: none.
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
	log, err := newLogger(v)
	if err != nil {
		return fmt.Errorf("the log: %w", err)
	}
	defer func() { _ = log.Sync() }() // a terminal or pipe cannot be synced, and need not be
	said := make(chan struct{})
	unsaid := context.AfterFunc(ctx, func() {
		stop() // A second signal kills, should the first not suffice.
		log.Info("this daemon was told to end", zap.String("why", context.Cause(ctx).Error()))
		close(said)
	})
	defer func() {
		if !unsaid() {
			<-said
		}
	}()
	for returning := false; ; {
		own := fds
		if v.Return {
			if own, err = fds.copies(); err != nil {
				return err
			}
		}
		err := serveOnce(ctx, v, own, log)
		join, again := comesBack(err, returning)
		switch {
		case !v.Return && isLeftBehind(err):
			return fmt.Errorf("%w; when the others can be reached again, this brings it back: %s --rejoin", err, strings.Join(os.Args, " "))
		case !v.Return || !again:
			return err
		case ctx.Err() != nil:
			return nil
		}
		log.Warn("this daemon comes back as one that knows nothing, as soon as the others let it in", zap.Error(err))
		v.Rejoin, returning = join, true
	}
}

// isLeftBehind reports whether a node has ended because it is not among those that go on, as far as
// it knows: nothing is wrong with it.
func isLeftBehind(err error) bool {
	return errors.Is(err, node.ErrNoQuorum) || errors.Is(err, node.ErrExcluded)
}

// comesBack reports whether a daemon that has ended with an error can come back, and whether into a
// cluster that runs. As long as it knows of none it starts as all nodes do at first. If a cluster
// runs, the daemon is told so. If none does, because all were left behind, they found the next one
// together.
func comesBack(err error, returning bool) (join, again bool) {
	switch {
	case errors.Is(err, transport.ErrGoneOn), errors.Is(err, membership.ErrComplete):
		return true, true
	case errors.Is(err, transport.ErrNoCluster), isLeftBehind(err):
		return false, true
	}
	// the others cannot be reached yet
	return false, returning && errors.Is(err, membership.ErrTimeout)
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

// daemon is what a daemon is made of beside its node.
type daemon struct {
	v        *settings.Values
	fds      inherited
	sockets  sockets
	secrets  *secrets
	registry *prometheus.Registry
	stages   *node.StageLog
	memory   uint64 // bytes of pages that the node may have; 0: no bound
	log      *zap.Logger
}

// serveOnce runs the daemon until ctx ends, or it cannot go on.
func serveOnce(ctx context.Context, v *settings.Values, fds inherited, log *zap.Logger) error {
	s, err := openSockets(v, fds)
	if err != nil {
		return err
	}
	// Do this last: when nobody can attach here any more another daemon may serve at the socket.
	defer s.leave(log)
	d := &daemon{v: v, fds: fds, sockets: s, registry: prometheus.NewRegistry(), log: log}
	stopMetrics, err := d.prepare()
	if err != nil {
		s.close()
		return err
	}
	defer stopMetrics()
	place, err := d.findPlace(ctx)
	if err != nil {
		s.close()
		if ctx.Err() != nil {
			return nil // it was told to end before there was a cluster
		}
		return err
	}
	n, err := d.newNode(place)
	if err != nil {
		place.leave(err)
		return err
	}
	place.watch(n)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	d.secrets.watch(watching, v.Cluster, place.id)
	go followMemory(watching, n, d.memory, log)
	if fds.news >= 0 {
		go readNews(fds.news, n)
	}
	return n.Run(ctx)
}

// prepare makes what does not depend on the other nodes. stopMetrics is to be called in the end.
func (d *daemon) prepare() (stopMetrics func(), err error) {
	if d.secrets, err = loadSecrets(d.v, d.sockets.data, d.log); err != nil {
		return nil, err
	}
	if d.memory, err = d.v.MemoryBytes(1); err != nil {
		return nil, err
	}
	d.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if d.v.Stages > 0 {
		if d.stages, err = node.NewStageLog(d.v.Stages); err != nil {
			return nil, err
		}
	}
	if d.v.Metrics == "" && d.fds.metrics < 0 {
		return func() {}, nil
	}
	server, err := d.serveMetrics()
	if err != nil {
		return nil, err
	}
	return func() { server.Close() }, nil
}

func (d *daemon) newNode(p *place) (*node.Node, error) {
	v, s, log := d.v, d.secrets, d.log
	if v.LogFormat == "json" {
		// On a console the prefix that `run` gives to every line says which node it is.
		log = log.With(zap.Int("node", p.id))
	}
	return node.New(node.Config{
		Self: p.id, Nodes: v.Nodes, Ranks: v.Ranks, Cluster: p.cluster,
		Listener: d.sockets.data, Peers: p.peers, Socket: d.sockets.programs,
		RegionBytes: uint64(v.Region), Memory: node.Memory{Bytes: d.memory, Spill: v.Spill}, Trap: v.Trap,
		Network: node.Network{
			Transport: v.Transport, RDMADevice: v.RDMADevice, RDMAPoolBytes: uint64(v.RDMAPool),
			Emulated: emulated.Link{Latency: v.EmulateLatency, Bandwidth: uint64(v.EmulateBandwidth)},
		},
		Security: node.Security{TLS: s.tls, LatestTLS: s.latestTLS(), VerifyPeer: s.verify, Secret: s.shared},
		GiveUp:   v.DeadAfter, Survive: v.Survive, NoQuorum: v.NoQuorum, Rejoin: v.Rejoin,
		Hold: v.Hold, Core: node.Core{Reactors: p.reactors, StripePages: uint32(v.Stripe), Spin: v.Spin, Priority: v.Priority}, Predict: v.Predict == "on", Farewell: p.leave, Stages: d.stages, Log: log, Metrics: d.registry,
		Launched: d.fds.socket >= 0,
	})
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

// sockets are what a daemon listens at for nodes and programs.
type sockets struct {
	data     net.Listener
	programs *net.UnixListener
	own      *attach.Listener // where programs is; nil: it was inherited
}

func openSockets(v *settings.Values, fds inherited) (sockets, error) {
	data, err := listen(fds.listen, v.Listen)
	if err != nil {
		return sockets{}, fmt.Errorf("listening for peers: %w", err)
	}
	programs, own, err := listenSocket(fds.socket, v.Socket)
	if err != nil {
		data.Close()
		return sockets{}, fmt.Errorf("listening for programs: %w", err)
	}
	return sockets{data, programs, own}, nil
}

func (s *sockets) close() {
	s.data.Close()
	s.programs.Close()
}

// leave gives the place of the socket for programs back. Preconditions: it is closed.
func (s *sockets) leave(log *zap.Logger) {
	if s.own == nil {
		return
	}
	if err := s.own.Leave(); err != nil {
		log.Warn("the socket for programs is left behind", zap.Error(err))
	}
}

// listen opens a TCP listener, or takes over the inherited one.
func listen(fd int, addr string) (net.Listener, error) {
	if fd < 0 {
		return launch.ListenTCP(addr)
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

// listenSocket opens the socket for programs, or takes over the inherited one. Whoever opens it
// gives its place back: own, by Leave.
func listenSocket(fd int, socket string) (programs *net.UnixListener, own *attach.Listener, err error) {
	if fd < 0 {
		if own, err = attach.Listen(socket); err != nil {
			return nil, nil, err
		}
		fd = own.FD
	}
	l, err := inherit(fd)
	programs, ok := l.(*net.UnixListener)
	switch {
	case err == nil && !ok:
		l.Close()
		err = fmt.Errorf("descriptor %d is no Unix socket", fd)
	case err == nil:
		programs.SetUnlinkOnClose(false)
		return programs, own, nil
	}
	if own != nil {
		err = errors.Join(err, own.Leave())
	}
	return nil, nil, err
}
