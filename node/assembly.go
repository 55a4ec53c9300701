package node

import (
	"fmt"
	"time"

	"dsmd/internal/diskio"
	"dsmd/internal/netio"
	"dsmd/pagetable"
	"dsmd/pagetable/backing"
	"dsmd/protocol"
	"dsmd/transport"

	"go.uber.org/zap"
)

// rules are the engine's configuration.
func rules(cfg *Config, s *partition, pages uint64) protocol.Config {
	return protocol.Config{
		Partition: s.number, Partitions: s.division.Partitions(),
		Self: protocol.NodeID(cfg.Self), Nodes: cfg.Nodes, Pages: pages, HomeStripe: HomeStripe,
		Hold: protocol.Time(cfg.Hold.Microseconds()), MaxHold: protocol.Time(MaxHold.Microseconds()), Outside: cfg.Rejoin,
	}
}

// assemble puts a node together from its parts.
func assemble(cfg Config, s *partition, table pagetable.Table, peers *network) (*Node, error) {
	store, is := table.(*backing.Table)
	if !is {
		var err error
		if store, _, err = backing.New(table, ""); err != nil {
			return nil, fmt.Errorf("node: %w", err)
		}
	}
	n := &Node{
		cfg: cfg, log: cfg.Log, choice: pagetable.Choice{Trap: pagetable.TrapUffd}, net: peers, partition: s,
		clock: &clock{start: time.Now()}, news: &news{},
	}
	n.members = newMembers(&n.cfg, s)
	n.build(store)
	if err := n.meter.stages.begin(n.clock.start); err != nil {
		return nil, err
	}
	if s.number == 0 { // what the others count is added to it
		n.meter.count.members.Store(int64(cfg.Nodes))
	}
	if err := n.openDescriptors(); err != nil {
		return nil, err
	}
	if err := n.meter.register(cfg.Metrics); err != nil {
		n.closeDescriptors()
		return nil, fmt.Errorf("node: register metrics: %w", err)
	}
	return n, nil
}

// build makes the parts of a node. Most of them know the driver, which knows most of them: so each
// of the functions below fills in what those before it had to leave open.
func (n *Node) build(store *backing.Table) {
	n.meter = newMeter(n.clock, n.net, n.cfg.Stages, n.partition)
	n.end = &ending{log: n.log, clock: n.clock, farewell: farewell}
	if n.partition.number > 0 {
		n.end.log = zap.NewNop() // the one that leads ends for the same reason, and says it
	}
	out := &outbox{net: n.net, meter: n.meter, end: n.end, log: n.log, survives: n.cfg.Survive}
	n.drive = &driver{engine: protocol.New(rules(&n.cfg, n.partition, store.Pages())), clock: n.clock, exec: newExecutor(store, out), partition: n.partition}
	n.drive.loads = newLoads(n.drive)
	q := &quorum{}
	n.buildMemory(q)
	n.buildFiles(out)
	n.buildPrograms(q, out)
	n.buildMembers(q, out)
	n.buildLoop(out)
}

// buildMemory makes what deals with faults and pages.
func (n *Node) buildMemory(q *quorum) {
	d, table := n.drive, n.drive.exec.table
	n.pins = &pins{drive: d, meter: n.meter, log: n.log, pages: map[pagetable.Page]*pinned{}, patience: pinPatience}
	n.room = newRoom(d, &n.cfg, table.PageBytes())
	n.room.pins, n.room.quorum, n.room.nodes = n.pins, q, n.members.stayers
	n.intake = newIntake(d, n.pins, q, n.cfg.Predict)
	n.intake.room = n.room
	n.fetcher = newFetcher(n.intake)
	n.losses = &losses{
		log: n.log, meter: n.meter, names: nodeNames(n.cfg.Peers), pages: map[pagetable.Page]protocol.NodeID{},
	}
	n.usage = &usage{drive: d, extents: &n.intake.extents, room: n.room}
	n.meter.tolls.extents = &n.intake.extents
	n.meter.log.pageBytes = table.PageBytes()
	d.pins, d.room, d.intake, d.fetcher, d.losses = n.pins, n.room, n.intake, n.fetcher, n.losses
}

// buildFiles makes what deals with pages that begin in files, and with checkpoints.
func (n *Node) buildFiles(out *outbox) {
	d := n.drive
	n.origins = &origins{intake: n.intake, bytes: uint64(d.exec.table.PageBytes()), self: protocol.NodeID(n.cfg.Self), fallbacks: fallbacks{of: n.partition}}
	d.exec.store.Origin, d.exec.store.Fetch = n.origins.location, n.origins.fetch
	d.origins = n.origins
	d.storage = &storage{
		drive: d, origins: n.origins, out: out, log: n.log, names: nodeNames(n.cfg.Peers),
		asks: map[uint32]*askRun{}, writes: map[uint32]farWrite{},
		lives: map[transport.NodeID]int{}, down: map[transport.NodeID]error{},
		reading: diskio.NewShares(mostReading), writing: map[transport.NodeID]int{},
	}
	n.saver = &checkpointer{
		drive: d, origins: n.origins, storage: d.storage, pins: n.pins, table: d.exec.snaps, log: n.log,
		disk: newDiskQueue,
	}
}

// buildPrograms makes what deals with programs and their calls.
func (n *Node) buildPrograms(q *quorum, out *outbox) {
	d, self := n.drive, protocol.NodeID(n.cfg.Self)
	n.calls = &calls{
		drive: d, meter: n.meter, log: n.log, quorum: q, intake: n.intake, names: nodeNames(n.cfg.Peers),
		survives: n.cfg.Survive, open: map[protocol.Ticket]openCall{}, unrepaired: map[protocol.ObjectID]uint32{},
		budgets: &budgets{
			pageBytes: uint64(d.exec.table.PageBytes()), own: n.cfg.Memory, self: self, partitions: uint64(n.partition.division.Partitions()),
			nodes: n.members.stayers, of: n.net.memory,
		},
	}
	n.programs = &programs{
		since: time.Now(), replies: replies{closer: &closer{}}, cfg: &n.cfg, log: n.log, drive: d, meter: n.meter,
		end: n.end, net: n.net, choice: &n.choice, calls: n.calls, fetcher: n.fetcher, pins: n.pins, intake: n.intake,
		losses: n.losses, usage: n.usage, saver: n.saver, origins: n.origins, members: n.members,
		byID: map[protocol.ClientID]*program{},
	}
	n.programs.replies.unpin = spread{n.programs}.unpinAll
	n.programs.inquiries = &inquiries{
		self: self, drive: d, out: out, log: n.log, programs: n.programs, peers: n.members.stayers,
		open: map[uint32]*inquiry{}, overdue: overdue{logged: map[pagetable.Page]bool{}},
	}
	n.meter.log.pidOf, n.meter.log.lockOf = n.programs.pidOf, spread{n.programs}.lockAt
	n.pins.programs, n.calls.programs = n.programs, n.programs
	d.calls = n.calls
}

// buildMembers completes what deals with the other nodes.
func (n *Node) buildMembers(q *quorum, out *outbox) {
	m := n.members
	m.drive, m.out, m.end, m.meter, m.quorum = n.drive, out, n.end, n.meter, q
	m.calls, m.programs, m.news = n.calls, n.programs, n.news
	n.drive.members = m
}

// buildLoop makes what asks all of them in turn whether there is something to do.
func (n *Node) buildLoop(out *outbox) {
	d := n.drive
	n.loop = &loop{
		log: n.log, clock: n.clock, meter: n.meter, end: n.end, table: d.exec.table, out: out, drive: d,
		in: &inbox{
			self: protocol.NodeID(n.cfg.Self), drive: d, out: out, meter: n.meter, calls: n.calls, members: n.members,
		},
		intake: n.intake, fetcher: n.fetcher, pins: n.pins, room: n.room, usage: n.usage, saver: n.saver,
		programs: n.programs, members: n.members, news: n.news,
		spin: newSpinner(n.cfg.Core.Spin, n.cfg.Self+n.partition.number), events: make([]pagetable.Event, faultsPerTurn),
		moveCore: netio.ChangeCore, priority: priority{rests: &n.meter.count.rests},
	}
	n.programs.priority = &n.loop.priority
	n.members.followers.poll = n.loop.pollNet
}
