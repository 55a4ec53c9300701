package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"dsmd/internal/netio"
	"dsmd/pagetable"
	"dsmd/transport"

	"go.uber.org/zap"
)

// Node is one node's daemon. Make it with New, then Run it.
type Node struct {
	cfg       Config
	log       *zap.Logger
	choice    pagetable.Choice // of the page table
	net       *network
	partition *partition

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
	n, err := newReactors(cfg)
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

// newNode makes one reactor of a daemon.
func newNode(cfg Config, s *partition) (*Node, error) {
	closer := &closer{}
	table, choice, err := pagetable.Open(cfg.Trap, pagetable.Config{Pages: cfg.RegionBytes / uint64(os.Getpagesize()), Discard: closer.close})
	if err == nil && choice.Trap == pagetable.TrapSigsegv && s.division.Partitions() > 1 {
		table.Close()
		err = fmt.Errorf("%d reactors need userfaultfd, which this process may not have: %s; `dsmd doctor` says what helps, or give --reactors 1 on all nodes",
			s.division.Partitions(), choice.Reason)
	}
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	if table, err = withSpill(&cfg, table); err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	peers, err := openNetwork(&cfg, s.number, table.PageBytes())
	if err != nil {
		table.Close()
		return nil, fmt.Errorf("node: %w", err)
	}
	n, err := assemble(cfg, s, table, peers)
	if err != nil {
		peers.Close()
		table.Close()
		return nil, err
	}
	n.choice, n.programs.replies.closer = choice, closer
	return n, nil
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
	// A node that is outside opens it when the others let it in.
	if err == nil && n.cfg.Socket != nil && !n.members.outside() {
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
func (n *Node) Run(ctx context.Context) error {
	if !n.partition.several() {
		return n.run(ctx)
	}
	return n.runAll(ctx)
}

// run is Run of one reactor.
func (n *Node) run(ctx context.Context) (err error) {
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
		zap.Stringer("priority", n.loop.priority.level), zap.Int("reactors", n.partition.division.Partitions()))
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
	if n.cfg.Socket != nil {
		n.cfg.Socket.Close()
	}
	n.programs.door.close()
	n.drive.storage.close()
	n.saver.end()
	n.loop.table.Close()
	n.news.end()
	n.closeWaking()
}
