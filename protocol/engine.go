package protocol

import (
	"cmp"
	"fmt"
)

// Config is what an Engine has to know. It is the same on all nodes but for Self.
type Config struct {
	Self  NodeID
	Nodes int    // 1 to MaxNodes
	Pages uint64 // pages in the region
	// HomeStripe is how many neighbouring pages share a home: home(page) = page / HomeStripe mod
	// Nodes.
	HomeStripe uint64
	// Hold is the base of the time, in microseconds, for which a page that was just gained can not
	// be taken, so that the access that asked for it gets through; 0: pages are not held, and two
	// nodes may steal one from each other for ever.
	Hold Time
	// MaxHold bounds the time when it grows because an access did not get through. It is also how
	// long a group lease keeps contended pages, see pacing.go.
	MaxHold Time
	// Partitions is among how many engines of a node its pages are divided, and Partition is the
	// number of this one; with 0 or 1 Partitions it has all pages. The engines of one number on all
	// nodes are a cluster of their own for their pages, see doc.go.
	Partition, Partitions int
	// Outside: the cluster runs already and this node is not in it. Its first event is the
	// EventEpoch that lets it in.
	Outside bool
	// ContentionThreshold is how many pages must be contended before a node takes group leases; 0:
	// DefaultContentionThreshold.
	ContentionThreshold int
	// TreeFrom is how many members and parties there must be for a barrier to be a tree, and how
	// many copies of a page for their invalidation to be one. TreeArity is how many nodes are
	// directly below each node of them, at most 64; 0: DefaultTreeFrom, DefaultTreeArity.
	TreeFrom, TreeArity int
	// ManyReaders is how many nodes have to begin reading a page within a moment for its home to
	// send it to all who wait, through such a tree; 0: DefaultManyReaders. 1, after each, is for
	// tests.
	ManyReaders int
	// ExactNodes is up to how many nodes a directory knows exactly who has a copy, at most
	// DefaultExactNodes. In a larger cluster it does up to Pointers copies, at most
	// DefaultPointers; of more it knows the groups of GroupNodes nodes in which they are. 0:
	// DefaultExactNodes, DefaultPointers, and the smallest groups that 16 bytes have room for.
	// Other values are for tests: they bring what large clusters have to small ones.
	ExactNodes, Pointers, GroupNodes int
}

// Validate says what is wrong with a configuration.
func (c *Config) Validate() error {
	switch {
	case c.Nodes < 1 || c.Nodes > MaxNodes:
		return fmt.Errorf("protocol: %d nodes; a cluster has 1 to %d", c.Nodes, MaxNodes)
	case int(c.Self) >= c.Nodes:
		return fmt.Errorf("protocol: node id %d in a cluster of %d nodes; ids are 0 to %d", c.Self, c.Nodes, c.Nodes-1)
	case c.Pages == 0 || c.Pages >= uint64(lockBit):
		return fmt.Errorf("protocol: a region of %d pages", c.Pages)
	case c.Partition < 0 || c.Partition >= max(c.Partitions, 1):
		return fmt.Errorf("protocol: partition %d of %d", c.Partition, c.Partitions)
	case c.HomeStripe == 0:
		return fmt.Errorf("protocol: HomeStripe is 0; it is at least one page")
	case c.ContentionThreshold < 0:
		return fmt.Errorf("protocol: a contention threshold of %d pages", c.ContentionThreshold)
	case c.TreeFrom < 0 || c.TreeArity < 0 || c.TreeArity > MaxTreeArity:
		return fmt.Errorf("protocol: trees from %d nodes on, with %d below each; both are at least 0, the second at most %d", c.TreeFrom, c.TreeArity, MaxTreeArity)
	case c.ManyReaders < 0:
		return fmt.Errorf("protocol: pages are sent to all who wait from %d readers on; it is at least 0", c.ManyReaders)
	case c.ExactNodes < 0 || c.ExactNodes > DefaultExactNodes || c.Pointers < 0 || c.Pointers > DefaultPointers || c.GroupNodes != 0 && c.GroupNodes < c.smallestGroup():
		return fmt.Errorf("protocol: copysets exact up to %d nodes, else with %d pointers, then groups of %d nodes; at most %d and %d, and at least %d",
			c.ExactNodes, c.Pointers, c.GroupNodes, DefaultExactNodes, DefaultPointers, c.smallestGroup())
	case c.MaxHold < c.Hold:
		return fmt.Errorf("protocol: MaxHold %d µs is less than Hold %d µs", c.MaxHold, c.Hold)
	}
	return nil
}

// withDefaults is the configuration with what is not given, so that nobody asks for each copyset
// whether it is.
func (c Config) withDefaults() Config {
	c.ExactNodes = cmp.Or(c.ExactNodes, DefaultExactNodes)
	c.Pointers = cmp.Or(c.Pointers, DefaultPointers)
	c.GroupNodes = cmp.Or(c.GroupNodes, c.smallestGroup())
	c.ContentionThreshold = cmp.Or(c.ContentionThreshold, DefaultContentionThreshold)
	c.TreeFrom = cmp.Or(c.TreeFrom, DefaultTreeFrom)
	c.TreeArity = cmp.Or(c.TreeArity, DefaultTreeArity)
	c.ManyReaders = cmp.Or(c.ManyReaders, DefaultManyReaders)
	return c
}

// Engine is one node's part of the protocol. It is not safe for concurrent use.
type Engine struct {
	*pages
	barriers barriers
	names    names
	registry registry
	recovery recovery
}

// New returns an engine that knows no objects. It panics on a configuration that does not Validate.
func New(cfg Config) *Engine {
	if err := cfg.Validate(); err != nil {
		panic(err)
	}
	in := newEnv(cfg)
	e := &Engine{pages: newPages(in), barriers: barriers{env: in}, names: names{env: in}, recovery: recovery{env: in}}
	e.registry = newRegistry(in, cfg.Self == 0 && cfg.Partition == 0 && !cfg.Outside)
	return e
}

// Step lets one event happen and appends to out what must be done, in order.
//
// Preconditions: events come one at a time; each effect that reports back (EffectInstall,
// EffectMap, EffectMakeWritable, EffectDowngrade, EffectRevoke, EffectLost, EffectHold,
// EffectFree) is reported exactly once. A violation by the host is a bug there and panics; one by
// a peer gives EffectReject.
func (e *Engine) Step(ev Event, out []Effect) []Effect {
	begin := len(out)
	e.out, e.now = out, ev.Now
	if ev.synchronises() {
		e.pace.synchronises()
	}
	switch ev.Kind {
	case EventFault:
		e.requester.fault(ev)
	case EventMessage:
		e.receive(ev.Message)
	case EventCompleted:
		e.completed(ev)
	case EventHoldOver:
		e.holder.holdOver(ev.Object)
	case EventAcquire:
		e.locks.acquire(ev)
	case EventRelease:
		e.locks.release(ev)
	case EventArrive:
		e.barriers.arrive(ev)
	case EventName:
		e.names.ask(ev)
	case EventCancel:
		e.cancel(ev)
	case EventClientGone:
		e.clientGone(ev)
	case EventFreed:
		e.reclaim.forgotten(ev)
	case EventFreePhase:
		e.reclaim.phase(ev)
	case EventBound:
		e.noteBound(run{ev.Object.Page(), ev.Count}, ev.Replicas)
	case EventInUse:
		e.recovery.inUse(ev)
	case EventSynchronised: // that is all
	case EventCommit:
		e.commits.commit(ev)
	case EventEvict:
		e.holder.evict(ev)
	case EventAccept:
		ev.Access = Write
		e.requester.fault(ev)
	case EventDecline:
		e.send(Decline{}.To(ev.Node, ev.Object))
	case EventEpoch:
		e.newEpoch(ev)
	default:
		panic(fmt.Sprintf("protocol: event of unknown kind %d", ev.Kind))
	}
	e.deliverLocal()
	if Invariants {
		e.verify(ev, e.out[begin:])
	}
	out, e.out = e.out, nil
	return out
}

// deliverLocal delivers what this node has said to itself, until that and the recovery, if one is
// under way, bring nothing new.
func (e *Engine) deliverLocal() {
	for i := 0; ; i++ {
		if i == len(e.local) && e.view.phase != running {
			e.advance()
		}
		if i == len(e.local) && e.evac.on {
			e.evac.goOn()
		}
		if i == len(e.local) {
			e.pace.yield()
		}
		if i == len(e.local) {
			break
		}
		m := e.local[i]
		e.deliver(&m)
	}
	clear(e.local)
	e.local = e.local[:0]
}

// Access is what this node's copy of an object allows its programs.
func (e *Engine) Access(id ObjectID) Access { return e.access(id) }

// Waiting reports whether this node has asked for an object, or for more access to it, and not got
// it yet.
func (e *Engine) Waiting(id ObjectID) bool {
	p := e.peek(e.objects.find(id))
	return p != nil && (p.want != None || p.again != None)
}

// receive checks what can be checked of any message from a peer, then delivers it.
func (e *Engine) receive(m *Message) {
	switch {
	case int(m.From) >= e.cfg.Nodes || m.From == e.cfg.Self:
		e.emit(Effect{Kind: EffectReject, Object: m.Object, Message: *m, Reason: "the sender is not a peer"})
	case !e.isMember(m.From):
		// It was on its way when its sender was lost. Others have gone on without it.
	case int(m.node) >= e.cfg.Nodes:
		e.reject(m, "the node that it names is not in the cluster")
	case (m.Kind <= KindDecline || m.Kind >= KindLost && m.Kind <= KindBackupCopyAck) && !m.Object.IsLock() && m.Object.Page() >= e.cfg.Pages:
		e.reject(m, "the page is outside the region")
	default:
		e.deliver(m)
	}
}

func (e *Engine) deliver(m *Message) {
	if e.view.phase != running && e.recovering(m) {
		return
	}
	switch m.Kind {
	case KindRequest:
		e.dir.onRequest(m)
	case KindDone:
		e.dir.onDone(m)
	case KindForward, KindInvalidate:
		e.holder.onTake(m)
	case KindGrant:
		e.requester.onGrant(m)
	case KindInvalidateAck:
		e.requester.onInvalidateAck(m)
	case KindVerify:
		e.dir.onVerify(m)
	case KindMulticast:
		e.multicasts.onMulticast(m)
	case KindMulticastAck:
		e.multicasts.onAck(m)
	case KindMulticastEnd:
		e.multicasts.onEnd(m)
	case KindOffer, KindDecline:
		e.requester.onOffer(m)
	case KindBarrierRelease, KindNameReply:
		e.answer(m)
	case KindBarrierArrive, KindBarrierCancel, KindBarrierOpen, KindBarrierCombine, KindBarrierCombineAck, KindBarrierBroadcast, KindBarrierBroadcastAck:
		e.barriers.deliver(m)
	case KindNameRequest:
		e.registry.onRequest(m)
	case KindFree:
		e.reclaim.onFree(m)
	case KindFreeAck:
		e.registry.onFreeAck(m)
	case KindLost:
		e.requester.onLost(m)
	case KindBackup:
		e.backups.onBackup(m)
	case KindBackupAck:
		e.commits.onBackupAck(m)
	case KindBackupCopy:
		e.backups.onBackupCopy(m)
	case KindBackupCopyAck:
		e.evac.onCopied(m)
	default:
		e.recovery.deliver(m)
	}
}
