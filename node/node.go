package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/netio"
	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Defaults and bounds of Config.
const (
	DefaultRegionBytes = 64 << 30
	MaxRegionBytes     = pagetable.MaxRegionBytes
	// DefaultRegionBase lies where neither Go's heap, nor its race detector, nor libraries, nor the stack put anything on
	// amd64 and arm64 with 47 bits of addresses; 16 TiB fit before anything else.
	DefaultRegionBase = 0x4000_0000_0000
	// addressesEnd is the first address that some machine that we run on does not give to programs.
	addressesEnd = 1 << 47
	// HomeStripe is how many neighbouring pages share a home: few enough that a small array has
	// several homes, many enough that a run of pages is asked for at one place.
	HomeStripe = 16
	// DefaultHold is enough for a thread that was just woken on an idle core to repeat its access.
	DefaultHold = 20 * time.Microsecond
	// MinHold is the resolution of the engine's clock.
	MinHold = time.Microsecond
	// MaxHold is enough for a thread that has to wait for a core first.
	MaxHold = 20 * time.Millisecond
	// MaxRanks bounds the programs of a job.
	MaxRanks = 1 << 16
)

// Config is what a node has to know. Nodes, Ranks, Cluster, Peers, RegionBytes and RegionBase are the same on all nodes.
type Config struct {
	Self, Nodes int               // this node's id, and how many there are (1 to protocol.MaxNodes)
	Ranks       int               // programs that make up the job
	Cluster     string            // peers that give another name are refused
	Listener    net.Listener      // TCP, listening already; the node closes it
	Peers       []string          // data address of each node by id
	Socket      *net.UnixListener // where programs attach; the node closes it
	RegionBytes uint64            // address space of the shared memory; 0: DefaultRegionBytes
	RegionBase  uint64            // its address in all programs; 0: DefaultRegionBase
	Trap        string            // one of pagetable.TrapNames; "": "auto"
	GiveUp      time.Duration     // how long a peer may be out of reach before it is lost; 0: tcp.DefaultGiveUp
	// TLS and VerifyPeer are the transport's, see tcp.Config. nil: connections are plain.
	TLS        *tls.Config
	VerifyPeer func(transport.NodeID, tls.ConnectionState) error
	Transport  string // one of TransportNames; "": "auto"
	RDMADevice string // which one, by its name; "": the one with this node's address, else the first that works
	// RDMAPoolBytes bounds the memory registered for RDMA; 0: DefaultRDMAPoolBytes.
	RDMAPoolBytes uint64
	// Survive has the node go on without peers that are lost, as long as the nodes that are left are a quorum (see internal/agreement). Otherwise the
	// loss of any ends all nodes, with their programs. It must be the same on all nodes.
	Survive bool
	// Rejoin: the cluster runs, and this node comes in the place of one with its number that has left, or was lost. It needs Survive. Programs that connect before it
	// is let in wait.
	Rejoin bool
	// NoQuorum, one of NoQuorumPolicies, says what happens to programs when Survive does not help, because too few nodes are left. "": "block".
	NoQuorum string
	Hold     time.Duration // base of the hold window, at least 1µs; 0: DefaultHold
	Spin     time.Duration // longest polling before sleep; 0: DefaultSpin, negative: none
	// Farewell is called when the node ends, before its connections do, so that the other nodes can be told why they end: with Run's error,
	// or nil if the node was told to. It is not called when New fails. nil: they find out.
	Farewell func(why error)
	// Stages is filled with the stages that faults pass. It is the node's until that has ended. nil: nobody wants to know.
	Stages  *StageLog
	Log     *zap.Logger // nil: no logs
	Metrics prometheus.Registerer
}

func (c *Config) setDefaults() error {
	if c.RegionBytes == 0 {
		c.RegionBytes = DefaultRegionBytes
	}
	if c.RegionBase == 0 {
		c.RegionBase = DefaultRegionBase
	}
	if c.Hold == 0 {
		c.Hold = DefaultHold
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	page := uint64(os.Getpagesize())
	switch {
	case c.Nodes < 1 || c.Nodes > protocol.MaxNodes:
		return fmt.Errorf("node: a cluster of %d nodes; it has 1 to %d", c.Nodes, protocol.MaxNodes)
	case c.Self < 0 || c.Self >= c.Nodes:
		return fmt.Errorf("node: id %d in a cluster of %d nodes; ids are 0 to %d", c.Self, c.Nodes, c.Nodes-1)
	case len(c.Peers) != c.Nodes:
		return fmt.Errorf("node: %d peer addresses for %d nodes; give one for each node, this one included", len(c.Peers), c.Nodes)
	case c.Ranks < 1 || c.Ranks > MaxRanks:
		return fmt.Errorf("node: a job of %d programs; it has 1 to %d", c.Ranks, MaxRanks)
	case c.RegionBytes%page != 0 || c.RegionBytes > MaxRegionBytes:
		return fmt.Errorf("node: a region of %d bytes; it is a multiple of %d, at most %d (16 TiB)", c.RegionBytes, page, uint64(MaxRegionBytes))
	case c.RegionBase%page != 0 || c.RegionBase >= addressesEnd-c.RegionBytes:
		return fmt.Errorf("node: a region of %d bytes at %#x; it starts at a page and ends below %#x", c.RegionBytes, c.RegionBase, uint64(addressesEnd))
	case c.Trap != "" && !slices.Contains(pagetable.TrapNames, c.Trap):
		return fmt.Errorf("node: trap back end %q; there are %q", c.Trap, pagetable.TrapNames)
	case !knownTransport(c.Transport):
		return fmt.Errorf("node: transport %q; there are %q", c.Transport, TransportNames)
	case c.RDMAPoolBytes > MaxRDMAPoolBytes:
		return fmt.Errorf("node: a pool of %d bytes for RDMA; at most %d are possible", c.RDMAPoolBytes, uint64(MaxRDMAPoolBytes))
	case c.NoQuorum != "" && !slices.Contains(NoQuorumPolicies, c.NoQuorum):
		return fmt.Errorf("node: %q for when too few nodes are left; there are %q", c.NoQuorum, NoQuorumPolicies)
	case c.Rejoin && !c.Survive:
		return errors.New("node: to come into a cluster that runs (--rejoin) it takes one that survives the loss of nodes; give --survive, as on all its nodes")
	case c.Hold < MinHold || c.Hold > MaxHold:
		return fmt.Errorf("node: a hold window of %v; it is from %v to %v", c.Hold, MinHold, MaxHold)
	case c.Socket == nil:
		return errors.New("node: no socket for programs to attach at")
	}
	return nil
}

// Node is one node's daemon. Make it with New, then Run it.
type Node struct {
	cfg   Config
	log   *zap.Logger
	start time.Time
	now   time.Duration // since start; read once for each turn of the reactor

	engine *protocol.Engine
	rules  protocol.Config // the engine's
	table  pagetable.Table
	choice pagetable.Choice // of the table
	net    *network

	poller *netio.Poller
	wake   *netio.Event
	accept int // the listening socket of programs, non-blocking
	spare  int // a descriptor set aside, see acceptSpare
	// peer tells who has connected, as the kernel knows it. attach.Peer, but in tests of other users.
	peer     func(fd int) (pid int, uid uint32, err error)
	spin     spinner
	boxed    []*program    // those with a control page
	replied  bool          // a reply was put on a control page since the last yield
	timers   timers        // holds that end
	breaks   timers        // pins that others have waited for long enough
	patience time.Duration // how long that is

	moveCore func() (bool, error) // netio.ChangeCore: a seam for tests

	failures failures // peers that somebody else has found lost
	survival survival

	stopped  bool          // the reactor was asked to end
	broken   error         // why the cluster cannot go on
	gone     error         // why a peer is lost; no program can attach any more
	goneAt   time.Duration // when it was lost
	farewell time.Duration // how long a node without programs stays after that

	effects  []protocol.Effect // to be carried out, in order
	done     int               // of effects: how many were
	carrying bool              // step is at work on effects
	control  []byte            // scratch for encoding messages
	unsent   bool              // something was queued since the last flush
	urgent   bool              // and somebody waits for it
	arrived  arrived           // the page that came with the frame being dealt with
	message  protocol.Message  // the one being dealt with: here, because a variable would be allocated for each
	saved    map[pagetable.Page]transport.Payload
	stash    map[pagetable.Page]transport.Payload
	events   []pagetable.Event
	waits    map[pagetable.Page]wait
	programs map[protocol.ClientID]*program
	nextID   protocol.ClientID
	// calls has the open calls of all programs that the engine answers, by the engine's tickets.
	calls      map[protocol.Ticket]openCall
	lastTicket protocol.Ticket
	own        ownCall
	published  map[protocol.ObjectID]*published
	trapped    int // programs whose faults are served
	fetching   fetching
	pins       pins
	waiters    waiters
	trackers   trackers
	around     around
	extents    extents
	lostPages  lostPages
	backups    backups
	lossLogged uint32 // the last epoch in which a lost page was logged
	runs       runs

	count      counters
	latency    histograms
	stages     *StageLog              // nil: nobody wants to know
	registered []prometheus.Collector // in cfg.Metrics
}

// arrived is a page that came with a frame.
type arrived struct {
	page    pagetable.Page
	payload transport.Payload
}

// New makes a node. It takes over Listener and Socket, also when it fails.
func New(cfg Config) (*Node, error) {
	n, err := newNode(cfg)
	if err != nil {
		if cfg.Listener != nil {
			cfg.Listener.Close()
		}
		if cfg.Socket != nil {
			cfg.Socket.Close()
		}
	}
	return n, err
}

func newNode(cfg Config) (*Node, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	table, choice, err := pagetable.Open(cfg.Trap, cfg.RegionBytes/uint64(os.Getpagesize()), 0)
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	peers, err := openNetwork(&cfg, table.PageBytes())
	if err != nil {
		table.Close()
		return nil, fmt.Errorf("node: %w", err)
	}
	n, err := assemble(cfg, table, peers)
	if err != nil {
		peers.Close()
		table.Close()
		return nil, err
	}
	n.choice = choice
	return n, nil
}

// assemble puts a node together from its parts.
func assemble(cfg Config, table pagetable.Table, peers *network) (*Node, error) {
	poller, err := netio.NewPoller()
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	rules := protocol.Config{
		Self: protocol.NodeID(cfg.Self), Nodes: cfg.Nodes, Pages: table.Pages(), HomeStripe: HomeStripe,
		Hold: protocol.Time(cfg.Hold.Microseconds()), MaxHold: protocol.Time(MaxHold.Microseconds()), Outside: cfg.Rejoin,
	}
	n := &Node{
		cfg: cfg, log: cfg.Log, start: time.Now(), table: table, net: peers, poller: poller,
		engine: protocol.New(rules), rules: rules, choice: pagetable.Choice{Trap: pagetable.TrapUffd},
		peer: attach.Peer, spin: newSpinner(cfg.Spin, cfg.Self), events: make([]pagetable.Event, 64),
		saved: map[pagetable.Page]transport.Payload{}, stash: map[pagetable.Page]transport.Payload{},
		waits: map[pagetable.Page]wait{}, programs: map[protocol.ClientID]*program{}, calls: map[protocol.Ticket]openCall{},
		published: map[protocol.ObjectID]*published{},
		patience:  pinPatience, farewell: farewell, moveCore: netio.ChangeCore, latency: newHistograms(), fetching: newFetching(), pins: pins{}, waiters: newWaiters(), lostPages: lostPages{},
		survival: newSurvival(&cfg), runs: newRuns(table.PageBytes()), stages: cfg.Stages,
	}
	if err := n.stages.begin(n.start); err != nil {
		poller.Close()
		return nil, err
	}
	n.count.members.Store(int64(cfg.Nodes))
	if err := n.openDescriptors(); err != nil {
		poller.Close()
		return nil, err
	}
	if err := n.register(cfg.Metrics); err != nil {
		n.closeDescriptors()
		return nil, fmt.Errorf("node: register metrics: %w", err)
	}
	return n, nil
}

// Tokens of the reactor's descriptors in epoll. Programs have theirs, from 1.
const (
	tokenTable = -1 - iota
	tokenNet
	tokenAccept
	tokenWake
)

func (n *Node) openDescriptors() (err error) {
	if n.wake, err = netio.NewEvent(); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	if n.accept, err = detachListener(n.cfg.Socket); err != nil {
		n.wake.Close()
		return err
	}
	n.openSpare()
	waited := map[int]int32{n.table.WaitFD(): tokenTable, n.net.WaitFD(): tokenNet, n.accept: tokenAccept, n.wake.FD(): tokenWake}
	if n.outside() {
		delete(waited, n.accept) // until openDoor
	}
	for fd, token := range waited {
		if err := n.poller.Add(fd, token); err != nil {
			n.closeSpare()
			unix.Close(n.accept)
			n.wake.Close()
			return fmt.Errorf("node: %w", err)
		}
	}
	return nil
}

// openDoor lets programs in.
func (n *Node) openDoor() {
	if err := n.poller.Add(n.accept, tokenAccept); err != nil {
		n.breakDown(fmt.Errorf("node: %w", err))
	}
}

func (n *Node) closeDescriptors() {
	n.closeSpare()
	unix.Close(n.accept)
	n.wake.Close()
	n.poller.Close()
}

// detachListener returns a descriptor of its own for the listening socket. The listener itself stays
// open, so that closing it at the end removes a socket file.
func detachListener(l *net.UnixListener) (int, error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("node: the socket for programs: %w", err)
	}
	fd, dupErr := -1, error(nil)
	if err := raw.Control(func(own uintptr) { fd, dupErr = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return -1, fmt.Errorf("node: the socket for programs: %w", err)
	}
	if dupErr != nil {
		return -1, fmt.Errorf("node: the socket for programs: %w", dupErr)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("node: the socket for programs: %w", err)
	}
	return fd, nil
}

// Run serves until ctx ends (then it returns nil) or the cluster is broken (then why). It closes the node.
// Programs that connect before all peers are there wait.
func (n *Node) Run(ctx context.Context) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer func() { n.close(err) }()
	if n.net.connect != nil {
		if err := n.connect(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
	signalled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		n.failures.stop()
		n.wake.Signal()
		close(signalled)
	})
	defer func() {
		if !stop() {
			<-signalled // the descriptor must not be closed under it
		}
	}()
	n.log.Info("serving", zap.Int("id", n.cfg.Self), zap.Int("nodes", n.cfg.Nodes), zap.Uint64("region_bytes", n.cfg.RegionBytes),
		zap.String("trap", n.choice.Trap), zap.String("trap_reason", n.choice.Reason), zap.String("transport", n.net.name()), zap.String("transport_reason", n.net.reason))
	if _, err := netio.ShortSlice(); err != nil {
		n.log.Debug("the reactor waits for a whole slice of a program that computes", zap.Error(err))
	}
	n.react()
	return n.broken
}

// connect connects to all peers. One that is reported lost meanwhile is not waited for.
func (n *Node) connect(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	n.failures.during(func(f failure) { cancel(f.err) })
	err := n.net.connect(ctx)
	n.failures.during(nil)
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", cause, err)
	}
	return fmt.Errorf("node: connect to the other nodes: %w", err)
}

// close ends everything, in an order in which nobody is left to wonder: programs, other nodes, connections.
func (n *Node) close(why error) {
	for _, p := range n.programs {
		if n.broken != nil {
			n.lost(p)
		}
		p.close()
	}
	if n.cfg.Farewell != nil {
		n.cfg.Farewell(why)
	}
	n.unregister(n.cfg.Metrics)
	n.net.Close()
	n.table.Close()
	n.cfg.Socket.Close()
	n.failures.end()
	n.closeDescriptors()
}

// breakDown ends the node because the cluster cannot go on. The first reason is the one that counts.
func (n *Node) breakDown(err error) {
	if n.broken == nil {
		n.broken = err
		n.log.Error("the cluster is broken", zap.Error(err))
	}
}
