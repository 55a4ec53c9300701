package protocol

import "fmt"

// Config is what an Engine has to know. It is the same on all nodes but for Self.
type Config struct {
	Self  NodeID
	Nodes int    // 1 to MaxNodes
	Pages uint64 // pages in the region
	// HomeStripe is how many neighbouring pages share a home: home(page) = page / HomeStripe mod Nodes.
	HomeStripe uint64
	// Hold is the base of the time, in microseconds, for which a page that was just gained can not be
	// taken, so that the access that asked for it gets through; 0: pages are not held,
	// and two nodes may steal one from each other for ever.
	Hold Time
	// MaxHold bounds the time when it grows because an access did not get through. It is also how long a node keeps pages that are fought
	// for, see turn.go.
	MaxHold Time
	// Outside: the cluster runs already and this node is not in it. Its first event is the EventEpoch that lets it in.
	Outside bool
	// Crowd is how many pages must be fought for before a node takes turns in having them; 0: DefaultCrowd.
	Crowd int
	// TreeFrom is how many members and parties there must be for a barrier to be a tree, and TreeArity how many nodes are directly below each node of
	// them, at most 64; 0: DefaultTreeFrom, DefaultTreeArity.
	TreeFrom, TreeArity int
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
	case c.HomeStripe == 0:
		return fmt.Errorf("protocol: HomeStripe is 0; it is at least one page")
	case c.Crowd < 0:
		return fmt.Errorf("protocol: a crowd of %d pages", c.Crowd)
	case c.TreeFrom < 0 || c.TreeArity < 0 || c.TreeArity > MaxTreeArity:
		return fmt.Errorf("protocol: barriers as trees from %d nodes on, with %d below each; both are at least 0, the second at most %d", c.TreeFrom, c.TreeArity, MaxTreeArity)
	case c.MaxHold < c.Hold:
		return fmt.Errorf("protocol: MaxHold %d µs is less than Hold %d µs", c.MaxHold, c.Hold)
	}
	return nil
}

// Engine is one node's part of the protocol. It is not safe for concurrent use.
type Engine struct {
	cfg     Config
	objects table

	pendings     []*pending
	freePendings []uint32

	locks    []*lock    // those that are held, waited for or marked here; in ascending order of id
	barriers []*barrier // those homed here with arrivals; in ascending order of id
	trees    trees      // where barriers are trees
	calls    []call     // tickets of this node's clients that wait for another node; oldest first
	names    names      // node 0 only
	dead     []deadRun  // runs of pages that are being freed
	uses     []use      // names that programs of this node use
	gone     []ClientID // programs with names that have ended in this recovery

	replicas replicas

	view     view
	suspects []suspect // pages that may be lost although this home knows nothing of them
	rescue   rescue

	turn turn

	footsteps []footstep // of the threads that fault here; at most maxFootsteps

	limits  limits
	holders []holder // clients that hold locks or wait for them
	arrived int      // arrivals of all barriers

	now   Time
	out   []Effect
	local []Message // to this node itself, in order
}

// New returns an engine that knows no objects. It panics on a configuration that does not Validate.
func New(cfg Config) *Engine {
	if err := cfg.Validate(); err != nil {
		panic(err)
	}
	e := &Engine{cfg: cfg, names: newNames(cfg.Pages, cfg.Self == 0 && !cfg.Outside), limits: allLimits}
	if cfg.Outside {
		e.view.members, e.view.homes, e.view.fresh = []NodeID{}, []NodeID{}, []NodeID{cfg.Self}
	}
	return e
}

// Step lets one event happen and appends to out what must be done, in order.
//
// Preconditions: events come one at a time; each effect that reports back (EffectInstall,
// EffectMap, EffectMakeWritable, EffectDowngrade, EffectRevoke, EffectLost, EffectHold, EffectForget) is reported exactly once.
// A violation by the host is a bug there and panics; one by a peer gives EffectReject.
func (e *Engine) Step(ev Event, out []Effect) []Effect {
	e.out, e.now = out, ev.Now
	if ev.synchronises() {
		e.synchronises()
	}
	switch ev.Kind {
	case EventFault:
		e.fault(ev)
	case EventMessage:
		e.receive(ev.Message)
	case EventCompleted:
		e.completed(ev)
	case EventHoldOver:
		e.holdOver(ev.Object)
	case EventAcquire:
		e.acquire(ev)
	case EventRelease:
		e.release(ev)
	case EventArrive:
		e.arrive(ev)
	case EventName:
		e.name(ev)
	case EventCancel:
		e.cancel(ev)
	case EventClientGone:
		e.clientGone(ev)
	case EventForgotten:
		e.forgotten(ev)
	case EventCommit:
		e.commit(ev)
	case EventEpoch:
		e.newEpoch(ev)
	default:
		panic(fmt.Sprintf("protocol: event of unknown kind %d", ev.Kind))
	}
	for i := 0; ; i++ {
		if i == len(e.local) && e.view.phase != running {
			e.advance()
		}
		if i == len(e.local) && e.rescue.on {
			e.goOnRescuing()
		}
		if i == len(e.local) {
			e.yield()
		}
		if i == len(e.local) {
			break
		}
		m := e.local[i]
		e.deliver(&m)
	}
	clear(e.local)
	e.local = e.local[:0]
	out, e.out = e.out, nil
	return out
}

// Access is what this node's copy of an object allows its programs.
func (e *Engine) Access(id ObjectID) Access {
	if o := e.objects.find(id); o != nil {
		return o.shown()
	}
	return None
}

// Waiting says whether this node has asked for an object, or for more access to it, and not got it yet.
func (e *Engine) Waiting(id ObjectID) bool {
	p := e.peek(e.objects.find(id))
	return p != nil && (p.want != None || p.refault != None)
}

// Home is the node that keeps the directory entry of an object, as long as no node is lost.
func (c *Config) Home(id ObjectID) NodeID {
	if id.IsLock() {
		return NodeID(uint64(id&^lockBit) % uint64(c.Nodes))
	}
	return NodeID(id.Page() / c.HomeStripe % uint64(c.Nodes))
}

// send sends m; one to this node itself is delivered before Step returns.
func (e *Engine) send(m Message) {
	m.From = e.cfg.Self
	if m.To == e.cfg.Self {
		e.local = append(e.local, m)
		return
	}
	e.emit(Effect{Kind: EffectSend, Object: m.Object, Message: m})
}

func (e *Engine) emit(f Effect) { e.out = append(e.out, f) }

// reject refuses a message that no correct peer could have sent. One from this node itself is a bug of ours.
func (e *Engine) reject(m *Message, reason string) {
	if m.From == e.cfg.Self {
		panic(fmt.Sprintf("protocol: node %d sent itself %+v: %s", e.cfg.Self, *m, reason))
	}
	e.emit(Effect{Kind: EffectReject, Object: m.Object, Message: *m, Reason: reason})
}

// receive checks what can be checked of any message from a peer, then delivers it.
func (e *Engine) receive(m *Message) {
	switch {
	case int(m.From) >= e.cfg.Nodes || m.From == e.cfg.Self:
		e.emit(Effect{Kind: EffectReject, Object: m.Object, Message: *m, Reason: "the sender is not a peer"})
	case !e.isMember(m.From):
		// It was on its way when its sender was lost. Others have gone on without it.
	case int(m.Requester) >= e.cfg.Nodes:
		e.reject(m, "the requester is not in the cluster")
	case (m.Kind <= Done || m.Kind == Lost || m.Kind == Backup || m.Kind == BackupAck) && !m.Object.IsLock() && m.Object.Page() >= e.cfg.Pages:
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
	case Request:
		e.onRequest(m)
	case Done:
		e.onDone(m)
	case Forward, Invalidate:
		e.onTake(m)
	case Grant:
		e.onGrant(m)
	case InvalidateAck:
		e.onInvalidateAck(m)
	case BarrierArrive:
		e.onBarrierArrive(m)
	case BarrierCancel:
		e.onBarrierCancel(m)
	case BarrierRelease, NameReply:
		e.onReply(m)
	case BarrierGather:
		e.onBarrierGather(m)
	case BarrierGatherAck:
		e.onBarrierGatherAck(m)
	case BarrierSpread:
		e.onBarrierSpread(m)
	case BarrierSpreadAck:
		e.onBarrierSpreadAck(m)
	case NameRequest:
		e.onNameRequest(m)
	case Forget:
		e.onForget(m)
	case ForgetAck:
		e.onForgetAck(m)
	case Lost:
		e.onLost(m)
	case Backup:
		e.onBackup(m)
	case BackupAck:
		e.onBackupAck(m)
	case EpochMark:
		e.onEpochMark(m)
	case ReportHeld:
		e.onReport(m)
	case ReportBound:
		e.onBound(m)
	case EpochReady:
		e.onEpochReady(m)
	default:
		e.reject(m, "unknown kind")
	}
}

// pendingOf returns the object's pending, a new one if nothing was under way.
func (e *Engine) pendingOf(o *object) *pending {
	if o.pending != 0 {
		return e.pendings[o.pending-1]
	}
	var i uint32
	if n := len(e.freePendings); n > 0 {
		i, e.freePendings = e.freePendings[n-1], e.freePendings[:n-1]
	} else {
		i = uint32(len(e.pendings))
		e.pendings = append(e.pendings, new(pending))
	}
	p := e.pendings[i]
	*p = pending{inUse: true, queue: p.queue[:0], reading: p.reading[:0]}
	o.pending = i + 1
	return p
}

// peek returns the object's pending, or nil.
func (e *Engine) peek(o *object) *pending {
	if o == nil || o.pending == 0 {
		return nil
	}
	return e.pendings[o.pending-1]
}

// settle gives the object's pending back when nothing is under way any more.
func (e *Engine) settle(o *object) {
	p := e.peek(o)
	if p == nil || !p.idle() {
		return
	}
	p.inUse = false
	e.freePendings = append(e.freePendings, o.pending-1)
	o.pending = 0
	if len(e.dead) > 0 {
		e.dropDead()
	}
}
