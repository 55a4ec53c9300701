package membership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

const (
	// tickInterval is how often a node repeats what may have been lost, while something may.
	tickInterval = beatsPerTick * newsInterval
	beatsPerTick = 2
	// probes is about how many times within Config.DeadAfter a node asks one of the others whether
	// it is alive, and the bounds of the interval are those behind it. probeTimeout is how long it
	// waits for an answer before it asks others to ask.
	probes             = 6
	leastProbeInterval = time.Second
	mostProbeInterval  = 5 * time.Second
	probeTimeout       = 500 * time.Millisecond
	// streamTimeout bounds a conversation over TCP: what is said is short.
	streamTimeout = 5 * time.Second
	// leaveTimeout bounds saying goodbye. Who does not hear it takes this node for dead, which is
	// right too.
	leaveTimeout = time.Second
	// A node that waits until the cluster is complete says so after firstWaitSaid, and then after
	// pauses that double up to longestWaitSaid.
	firstWaitSaid   = 2 * time.Second
	longestWaitSaid = time.Minute
	// maxSends bounds the messages that are being sent at once; others are said again at a later
	// tick.
	maxSends = 16
	// maxInbox bounds the messages that wait to be handled; more are dropped, and come again.
	maxInbox = 4 * maxTable
	// maxEnds bounds the nodes whose ends are remembered: each place of the largest cluster left
	// dozens of times. Beyond that, an unknown node that says that it leaves is forgotten at once,
	// and found dead if it ever was there. For a known one another is forgotten.
	maxEnds = 64 * maxTable
)

// MinDeadAfter is the shortest Config.DeadAfter: a probe that is not answered, and time to object.
const MinDeadAfter = 2 * leastProbeInterval

// Config says who this node is and how to find the others.
type Config struct {
	Cluster string // 1 to MaxCluster bytes; nodes of other names are refused
	Nodes   int    // how many make up the cluster, 1 to 1024
	ID      int    // the number that this node must have, below Nodes, or Auto
	// Returns: the cluster is complete, and this node comes back to the place that one with its
	// Data had.
	Returns bool
	// Data: where others reach this node's data port, HOST:PORT, at most MaxAddress bytes.
	Data       string
	Transports []string // that it has, for people
	// Reactors is how many reactors this node can have. All have as many as each of them can.
	Reactors int
	// Agree are the settings on which all nodes must agree, in the same order; at most 16, of at
	// most 64 bytes each.
	Agree []Agreement

	// HOST:PORT to listen at for gossip, TCP and UDP; HOST is an IP address, or empty for all
	Bind      string
	Advertise string // IP address at which others reach Bind; "": memberlist finds one
	// HOST:PORT of some nodes' gossip; HOST may be a name of several addresses; this node may be
	// among them
	Join []string
	// Keys are those of gossip; the first one encrypts; 16, 24 or 32 bytes each; none: not
	// encrypted.
	Keys [][]byte

	Timeout time.Duration // how long Form waits; more than 0
	// DeadAfter: how long a node is silent before it is taken for dead, at least MinDeadAfter.
	DeadAfter time.Duration

	// Resolve looks up the addresses of a name. nil: net.DefaultResolver.LookupHost.
	Resolve func(ctx context.Context, host string) ([]string, error)
	Log     *zap.Logger           // nil: no logs
	Metrics prometheus.Registerer // nil: no metrics

	// transport makes what carries gossip. nil: memberlist does. Tests lose packets with it.
	transport func(*memberlist.Config) (memberlist.Transport, error)
}

// Group is this node's membership. Make it with Form. Its methods may be called from any goroutine.
type Group struct {
	cfg     Config
	log     *zap.Logger
	list    *memberlist.Memberlist
	count   *counters
	formed  chan struct{}  // closed when the formation has ended
	closing chan struct{}  // closed by close
	work    sync.WaitGroup // goroutines that end after closing
	sends   chan struct{}  // a token for each message that is being sent
	wake    chan struct{}  // holds a token when there is something for the loop

	// exchanged: with whom states were exchanged last, or this node; belongs to the loop. So nodes
	// of one start do not all ask the same one.
	exchanged  string
	unanswered atomic.Int32 // pings of tellNews that wait for an answer

	mu        sync.Mutex
	self      member
	formation *formation
	addresses map[string]memberlist.Address // of gossip, by name; guarded by mu
	inbox     []message                     // guarded by mu
	// refusals: texts that NotifyMerge has returned lately, at most maxRefusals; guarded by mu.
	refusals []string
	// complete: a node was met whose cluster is complete without this one; guarded by mu.
	complete bool
	ends     ends                 // guarded by mu
	doubtful map[string]*doubtful // by name: said to be dead; guarded by mu
	lost     []Loss               // not yet told to watch; guarded by mu
	watch    func(Loss)           // guarded by mu
	closed   bool                 // guarded by mu
}

// Form makes this node part of a cluster, and waits until the cluster is complete: until all nodes
// know that all are there. With Config.Returns it waits until a node of the complete cluster has
// told it the nodes.
//
// Errors: ErrRefused (this node and the cluster do not fit together: another cluster, other
// settings, another gossip key, or the cluster is complete without it), ErrTimeout, ctx's, and
// those of listening.
func Form(ctx context.Context, cfg Config) (*Group, error) {
	g, err := open(cfg)
	if err != nil {
		return nil, err
	}
	if err := g.form(ctx); err != nil {
		g.Leave(err)
		return nil, err
	}
	return g, nil
}

// ErrComplete is wrapped by the errors of Form when the cluster that this node has found is
// complete without it, and this node was not started to come back to it (Config.Returns).
var ErrComplete = errors.New("membership: the cluster is complete without this node")

// ErrTimeout is wrapped by the error of Form when not all nodes were there in time.
var ErrTimeout = errors.New("membership: the cluster is not complete")

func (g *Group) form(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, g.cfg.Timeout, ErrTimeout)
	defer cancel()
	seeking := make(chan error, 1)
	seekCtx, stop := context.WithCancel(ctx)
	defer stop()
	g.work.Go(func() { seeking <- g.seek(seekCtx) })
	for pause := firstWaitSaid; ; {
		select {
		case <-g.formed:
			return g.outcome()
		case <-time.After(pause):
			pause = min(2*pause, longestWaitSaid)
			status, _ := g.status()
			g.log.Info("this node waits until the cluster is complete", zap.String("why", status))
		case err := <-seeking:
			if err != nil {
				return err
			}
			seeking = nil // it ends only with the context or an error
		case <-ctx.Done():
			status, complete := g.status()
			err := fmt.Errorf("%w after %v: %s", context.Cause(ctx), g.cfg.Timeout, status)
			if complete {
				err = fmt.Errorf("%w; %w", err, ErrComplete)
			}
			return err
		}
	}
}

func (g *Group) outcome() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.formation.err != nil {
		return g.formation.err
	}
	g.log.Info("the cluster is complete", zap.Int("nodes", g.cfg.Nodes), zap.Int("id", g.formation.table.at(g.self.data).ID),
		zap.String("digest", g.formation.table.Digest()))
	return nil
}

// status is what the formation waits for, and whether a node was met whose cluster is complete
// without this one.
func (g *Group) status() (text string, complete bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.formation.status(), g.complete
}

// Table is all nodes of the cluster.
func (g *Group) Table() *Table {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.formation.table
}

// Self is this node's number.
func (g *Group) Self() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.formation.table.at(g.self.data).ID
}

// Leave tells the others that this node ends, because of why, or, if why is nil, because it was
// told to. It ends the membership. It takes some seconds at most, and more calls do nothing.
func (g *Group) Leave(why error) {
	g.mu.Lock()
	again := g.closed
	g.closed = true
	g.mu.Unlock()
	if again {
		return
	}
	close(g.closing)
	g.sayGoodbye(append(g.others(), g.doubted()...), why)
	g.gossipGoodbye()
	_ = g.list.Shutdown() // it never fails
	g.work.Wait()
	g.count.unregister(g.cfg.Metrics)
}

// sayGoodbye tells all at once, and waits for a bounded time.
func (g *Group) sayGoodbye(others []memberlist.Address, why error) {
	m := message{kind: leaving, from: g.self.name()}
	if why != nil {
		m.reason = why.Error()
	}
	text := appendMessage(nil, &m)
	said := make(chan struct{})
	go func() {
		defer close(said)
		var all sync.WaitGroup
		limit := make(chan struct{}, maxSends)
		for _, a := range others {
			limit <- struct{}{}
			all.Go(func() {
				_ = g.list.SendReliable(nodeAt(a), text)
				<-limit
			})
		}
		all.Wait()
	}()
	select {
	case <-said:
	case <-time.After(leaveTimeout):
	}
}

// gossipGoodbye has memberlist tell it as well, for a bounded time. Who does not hear it finds out.
func (g *Group) gossipGoodbye() {
	said := make(chan struct{})
	go func() {
		defer close(said)
		_ = g.list.Leave(leaveTimeout)
	}()
	for {
		select {
		case <-said:
			return
		case <-time.After(newsInterval):
			g.tellNews()
		}
	}
}

// open starts to gossip, alone.
func open(cfg Config) (*Group, error) {
	g := &Group{
		cfg: cfg, log: cfg.Log, formed: make(chan struct{}), closing: make(chan struct{}), wake: make(chan struct{}, 1),
		sends: make(chan struct{}, maxSends), addresses: map[string]memberlist.Address{}, ends: ends{}, doubtful: map[string]*doubtful{},
	}
	if g.log == nil {
		g.log = zap.NewNop()
	}
	if g.cfg.Resolve == nil {
		g.cfg.Resolve = net.DefaultResolver.LookupHost
	}
	g.self = member{
		incarnation: uint64(time.Now().UnixNano()), id: cfg.ID, returns: cfg.Returns, cluster: cfg.Cluster, data: cfg.Data,
		transports: strings.Join(cfg.Transports, ","), reactors: uint32(cfg.Reactors), agree: cfg.Agree,
	}
	if err := g.self.fits(); err != nil {
		return nil, err
	}
	g.exchanged = g.self.name()
	// An earlier node may have this node's place. Wait for the place until that node, if it was
	// killed, must have been found dead.
	patience := int((2*cfg.DeadAfter + streamTimeout) / tickInterval)
	g.formation = newFormation(g.self, cfg.Nodes, patience)
	var err error
	if g.count, err = newCounters(cfg.Metrics, g.alive); err != nil {
		return nil, err
	}
	list, err := g.listConfig()
	if err != nil {
		g.count.unregister(cfg.Metrics)
		return nil, err
	}
	if g.list, err = memberlist.Create(list); err != nil {
		g.count.unregister(cfg.Metrics)
		return nil, fmt.Errorf("membership: listening for gossip at %s: %w", cfg.Bind, err)
	}
	self := g.list.LocalNode()
	g.log.Info("gossiping", zap.String("address", self.Address()), zap.String("data", cfg.Data), zap.Bool("encrypted", len(cfg.Keys) > 0))
	g.work.Go(g.loop)
	g.signal()
	return g, nil
}

// listConfig is what memberlist is told.
func (g *Group) listConfig() (*memberlist.Config, error) {
	host, portText, err := net.SplitHostPort(g.cfg.Bind)
	if err != nil {
		return nil, fmt.Errorf("membership: the address for gossip, %q: %w: write HOST:PORT or :PORT", g.cfg.Bind, err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("membership: the address for gossip, %q: the port is no number: %w", g.cfg.Bind, err)
	}
	c := memberlist.DefaultLANConfig()
	c.Name = g.self.name()
	c.BindAddr, c.BindPort, c.AdvertisePort = cmp.Or(host, "0.0.0.0"), int(port), int(port)
	c.AdvertiseAddr = g.cfg.Advertise
	c.TCPTimeout = streamTimeout
	c.GossipInterval = calmInterval
	c.ProbeInterval, c.SuspicionMult = probing(g.cfg.DeadAfter, g.cfg.Nodes)
	c.ProbeTimeout = probeTimeout
	// The time of suspicion is what is left of DeadAfter after the probe that was not answered. It
	// neither grows nor shrinks with what others say, so that it means what its name says.
	c.SuspicionMaxTimeoutMult = 1
	g.setDelegates(c)
	if g.cfg.transport != nil {
		if c.Transport, err = g.cfg.transport(c); err != nil {
			return nil, err
		}
	}
	if len(g.cfg.Keys) > 0 {
		if c.Keyring, err = memberlist.NewKeyring(g.cfg.Keys[1:], g.cfg.Keys[0]); err != nil {
			return nil, fmt.Errorf("membership: gossip keys: %w", err)
		}
	}
	return c, nil
}

// handle acts on what has come, and on what is due if tick. decided becomes true when the formation
// has ended.
func (g *Group) handle(tick bool, decided *bool) {
	out, ended := g.turn(tick)
	for _, o := range out {
		g.send(o)
	}
	if ended && !*decided {
		*decided = true
		g.doubtUnmet()
		// Who asks to join after this is told that the cluster is complete. What others are to hear
		// is gossiped, or comes with the next exchange of states; nobody waits for it.
		_ = g.list.UpdateNode(1)
		close(g.formed)
	}
	g.tellLosses()
}

// turn lets the formation handle what has come. It returns what to send, and whether the formation
// has ended.
func (g *Group) turn(tick bool) (out []outgoing, ended bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.inbox {
		g.formation.receive(&g.inbox[i])
	}
	g.inbox = g.inbox[:0]
	if tick {
		g.formation.tick()
	}
	out, g.formation.out = g.formation.out, nil
	if t := g.formation.table; t != nil {
		g.self.sealed = t.digest
	}
	return out, g.formation.ended()
}

// send sends a message, unless too many are being sent: the next tick says it again.
func (g *Group) send(o outgoing) {
	g.mu.Lock()
	to, known := g.addresses[o.to]
	if d := g.doubtful[o.to]; d != nil && !known {
		to, known = d.address, !d.unmet()
	}
	g.mu.Unlock()
	if !known {
		return
	}
	g.beside(func() {
		if err := g.list.SendReliable(nodeAt(to), appendMessage(nil, &o.message)); err != nil {
			g.log.Debug("a message was not delivered", zap.Stringer("kind", o.message.kind), zap.String("to", to.Addr), zap.Error(err))
		}
	})
}

// nodeAt is what memberlist wants to be told of a receiver.
func nodeAt(a memberlist.Address) *memberlist.Node {
	host, port, _ := net.SplitHostPort(a.Addr) // memberlist has made it
	n, _ := strconv.ParseUint(port, 10, 16)
	return &memberlist.Node{Name: a.Name, Addr: net.ParseIP(host), Port: uint16(n)}
}

func (g *Group) signal() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// alive is how many nodes are known, this one included.
func (g *Group) alive() float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return float64(len(g.formation.known))
}
