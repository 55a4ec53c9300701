package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"dsmd/internal/diskio"
	"dsmd/internal/netio"
	"dsmd/pagetable"
	"dsmd/pagetable/backing"
	"dsmd/protocol"
	"dsmd/transport"

	"go.uber.org/zap"
)

// Node is one node's daemon. Make it with New, then Run it.
type Node struct {
	cfg    Config
	log    *zap.Logger
	choice pagetable.Choice // of the page table
	net    *network

	clock *clock
	meter *meter
	end   *ending
	drive *driver

	intake   *intake
	fetcher  *fetcher
	pins     *pins
	room     *room
	losses   *losses
	usage    *usage
	saver    *checkpointer
	origins  *origins
	programs *programs
	calls    *calls
	members  *members
	news     *news
	loop     *loop
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
	closer := &closer{}
	table, choice, err := pagetable.Open(cfg.Trap, pagetable.Config{Pages: cfg.RegionBytes / uint64(os.Getpagesize()), Discard: closer.close})
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	if table, err = withSpill(&cfg, table); err != nil {
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
	n.choice, n.programs.replies.closer = choice, closer
	return n, nil
}

// rules are the engine's configuration.
func rules(cfg *Config, pages uint64) protocol.Config {
	return protocol.Config{
		Self: protocol.NodeID(cfg.Self), Nodes: cfg.Nodes, Pages: pages, HomeStripe: HomeStripe,
		Hold: protocol.Time(cfg.Hold.Microseconds()), MaxHold: protocol.Time(MaxHold.Microseconds()), Outside: cfg.Rejoin,
	}
}

// assemble puts a node together from its parts.
func assemble(cfg Config, table pagetable.Table, peers *network) (*Node, error) {
	n := &Node{cfg: cfg, log: cfg.Log, choice: pagetable.Choice{Trap: pagetable.TrapUffd}, net: peers, clock: &clock{start: time.Now()}}
	n.meter = newMeter(n.clock, peers, cfg.Stages)
	n.end = &ending{log: cfg.Log, clock: n.clock, farewell: farewell}
	out := &outbox{net: peers, meter: n.meter, end: n.end, log: cfg.Log, survives: cfg.Survive}
	store, is := table.(*backing.Table)
	if !is {
		var err error
		if store, _, err = backing.New(table, ""); err != nil {
			return nil, fmt.Errorf("node: %w", err)
		}
	}
	n.drive = &driver{engine: protocol.New(rules(&cfg, table.Pages())), clock: n.clock, exec: newExecutor(store, out)}
	n.build(out)
	if err := n.meter.stages.begin(n.clock.start); err != nil {
		return nil, err
	}
	n.meter.count.members.Store(int64(cfg.Nodes))
	if err := n.openDescriptors(); err != nil {
		return nil, err
	}
	if err := n.meter.register(cfg.Metrics); err != nil {
		n.closeDescriptors()
		return nil, fmt.Errorf("node: register metrics: %w", err)
	}
	return n, nil
}

// build makes the parts that know each other.
func (n *Node) build(out *outbox) {
	d, log, names := n.drive, n.log, nodeNames(n.cfg.Peers)
	q := &quorum{}
	n.pins = &pins{drive: d, meter: n.meter, log: log, pages: map[pagetable.Page]*pinned{}, patience: pinPatience}
	n.room = newRoom(d, &n.cfg, d.exec.table.PageBytes())
	n.room.pins, n.room.quorum = n.pins, q
	n.intake = newIntake(d, n.pins, q, n.cfg.Predict)
	n.meter.tolls.extents = &n.intake.extents
	n.meter.log.pageBytes, n.meter.log.pidOf = d.exec.table.PageBytes(), func(id pagetable.ProcID) uint32 { return n.programs.pidOf(id) }
	n.meter.log.lockOf = func(id pagetable.ProcID) uint64 { return n.programs.lockOf(id) }
	n.intake.room, d.room = n.room, n.room
	n.fetcher = newFetcher(n.intake)
	n.losses = &losses{log: log, meter: n.meter, names: names, pages: map[pagetable.Page]protocol.NodeID{}}
	n.origins = &origins{intake: n.intake, bytes: uint64(d.exec.table.PageBytes()), self: protocol.NodeID(n.cfg.Self)}
	d.exec.store.Origin, d.exec.store.Fetch = n.origins.location, n.origins.fetch
	d.storage = &storage{drive: d, origins: n.origins, out: out, log: log, names: names, asks: map[uint32]*askRun{},
		writes: map[uint32]farWrite{}, lives: map[transport.NodeID]int{}, down: map[transport.NodeID]error{}, reading: diskio.NewShares(mostReading), writing: map[transport.NodeID]int{}}
	n.saver = &checkpointer{drive: d, origins: n.origins, storage: d.storage, pins: n.pins, table: d.exec.snaps, log: log, disk: newDiskQueue}
	d.origins = n.origins
	n.usage = &usage{drive: d, extents: &n.intake.extents, room: n.room}
	n.members, n.news = newMembers(&n.cfg), &news{}
	n.calls = &calls{drive: d, meter: n.meter, log: log, quorum: q, intake: n.intake, names: names, survives: n.cfg.Survive,
		open: map[protocol.Ticket]openCall{}}
	n.programs = &programs{since: time.Now(), replies: replies{closer: &closer{}}, cfg: &n.cfg, log: log, drive: d, meter: n.meter, end: n.end, net: n.net, choice: &n.choice,
		calls: n.calls, fetcher: n.fetcher, pins: n.pins, intake: n.intake, losses: n.losses, usage: n.usage, saver: n.saver, origins: n.origins, members: n.members,
		byID: map[protocol.ClientID]*program{}}
	n.pins.programs, n.calls.programs = n.programs, n.programs
	m := n.members
	n.programs.inquiries = &inquiries{self: protocol.NodeID(n.cfg.Self), drive: d, out: out, log: log, programs: n.programs, peers: m.stayers,
		open: map[uint32]*inquiry{}, overdue: overdue{logged: map[pagetable.Page]bool{}}}
	n.calls.budgets = &budgets{pageBytes: uint64(d.exec.table.PageBytes()), own: n.cfg.Memory, self: protocol.NodeID(n.cfg.Self), nodes: m.stayers, of: n.net.memory}
	n.room.nodes = m.stayers
	m.drive, m.out, m.end, m.meter, m.calls, m.news, m.quorum, m.programs = d, out, n.end, n.meter, n.calls, n.news, q, n.programs
	d.intake, d.fetcher, d.pins, d.losses, d.calls, d.members = n.intake, n.fetcher, n.pins, n.losses, n.calls, m
	n.loop = &loop{log: log, clock: n.clock, meter: n.meter, end: n.end, table: d.exec.table,
		in:  &inbox{self: protocol.NodeID(n.cfg.Self), drive: d, out: out, meter: n.meter, calls: n.calls, members: m},
		out: out, drive: d, intake: n.intake, fetcher: n.fetcher, pins: n.pins, room: n.room, usage: n.usage, saver: n.saver, programs: n.programs, members: m, news: n.news,
		spin: newSpinner(n.cfg.Core.Spin, n.cfg.Self), events: make([]pagetable.Event, faultsPerTurn), moveCore: netio.ChangeCore,
		priority: priority{rests: &n.meter.count.rests},
	}
	n.programs.priority = &n.loop.priority
}

// openDescriptors opens what the reactor sleeps on.
func (n *Node) openDescriptors() (err error) {
	poller, err := netio.NewPoller()
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	wake, err := netio.NewEvent()
	if err != nil {
		poller.Close()
		return fmt.Errorf("node: %w", err)
	}
	door, err := newDoor(poller, n.cfg.Socket)
	if err != nil {
		wake.Close()
		poller.Close()
		return err
	}
	n.loop.poller, n.news.wake, n.programs.replies.poller, n.saver.poller, n.drive.storage.poller = poller, wake, poller, poller, poller
	n.programs.door, n.members.door = door, door
	for fd, token := range map[int]int32{n.loop.table.WaitFD(): tokenTable, n.net.WaitFD(): tokenNet, wake.FD(): tokenWake} {
		if err = poller.Add(fd, token); err != nil {
			err = fmt.Errorf("node: %w", err)
			break
		}
	}
	if err == nil && !n.members.outside() { // else it is opened when the others let this node in
		err = door.open()
	}
	if err != nil {
		n.closeDescriptors()
	}
	return err
}

func (n *Node) closeDescriptors() {
	n.programs.door.close()
	n.closeWaking()
}

// closeWaking closes what the reactor sleeps on.
func (n *Node) closeWaking() {
	n.news.wake.Close()
	n.loop.poller.Close()
}

// Run serves until ctx ends (then it returns nil) or the cluster is broken (then why). It closes
// the node. Programs that connect before all peers are there wait.
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
		n.news.stop()
		close(signalled)
	})
	defer func() {
		if !stop() {
			<-signalled // the descriptor must not be closed under it
		}
	}()
	n.loop.priority.begin(n.cfg.Core.Priority, n.log)
	n.log.Info("serving", zap.Int("id", n.cfg.Self), zap.Int("nodes", n.cfg.Nodes), zap.Uint64("region_bytes", n.cfg.RegionBytes),
		zap.String("trap", n.choice.Trap), zap.String("trap_reason", n.choice.Reason), zap.String("transport", n.net.name()), zap.String("transport_reason", n.net.reason),
		zap.Stringer("priority", n.loop.priority.level))
	n.loop.run()
	n.loop.priority.end()
	return n.end.broken
}

// connect connects to all peers. One that is reported lost meanwhile is not waited for.
func (n *Node) connect(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	n.news.during(func(f failure) { cancel(f.err) })
	err := n.net.connect(ctx)
	n.news.during(nil)
	if err == nil {
		return nil
	}
	if errors.Is(err, transport.ErrGoneOn) {
		return fmt.Errorf("%w: %w", ErrExcluded, err)
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", cause, err)
	}
	return fmt.Errorf("node: connect to the other nodes: %w", err)
}

// close ends everything, in an order in which nobody is left to wonder: programs, other nodes,
// connections. What is being read or written comes last, as a disk may never answer.
func (n *Node) close(why error) {
	n.programs.close(n.end.broken)
	if n.net.explain != nil { // first, as who hears the farewell parts with this node at once
		n.net.explain(n.end.lastWords(why))
	}
	if n.cfg.Farewell != nil {
		n.cfg.Farewell(why)
	}
	n.meter.unregister(n.cfg.Metrics)
	n.net.Close()
	n.cfg.Socket.Close()
	n.programs.door.close()
	n.drive.storage.close()
	n.saver.end()
	n.loop.table.Close()
	n.news.end()
	n.closeWaking()
}
