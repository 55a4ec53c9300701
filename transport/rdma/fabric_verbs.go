//go:build rdma

package rdma

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/verbs"
)

const (
	// wantInline is the longest message that the device is asked to take along with its request:
	// nearly all of the protocol's. Devices that can't are asked for half, and so on.
	wantInline = 256
	// reads is how many reads and atomics each side may have outstanding. None is used, but some
	// devices want one.
	reads = 1
	// resolveTimeout bounds each of the connection manager's two steps to find a way.
	resolveTimeout = 2 * time.Second
	// listenBacklog is how many requests may wait for the reactor: every peer may ask at once.
	listenBacklog = 1024
	// tokenBytes is the length of the number by which a request is known to come from a peer. It
	// travels on the base transport.
	tokenBytes = 16
)

// The ways to tell a peer of a queue pair, in the first byte of endpoint.describe.
const (
	setupDirect byte = 1 + iota // the peer gets all it needs: number, first packet, address
	// setupManager: the peer gets an address and a token, and the connection manager does the rest.
	setupManager
)

// device is the fabric of verbs.
type device struct {
	Device
	dev     *verbs.Device
	pd      *verbs.PD
	regions []registered
	channel *verbs.Channel
	cq      *verbs.CQ
	srq     *verbs.SRQ
	inline  int
	send    int
	ends    map[uint32]*queuePair

	// way is how this node proposes to set queue pairs up. It begins with the connection manager,
	// if that may be used, and changes when an attempt fails: Linux's Soft-RoCE, for one, answers
	// no requests any more once it had to send one over a link that was down.
	way      byte
	manager  *verbs.ConnChannel // nil: queue pairs are set up directly
	listener *verbs.ConnID
	address  netip.AddrPort // of the listener
	tokens   map[[tokenBytes]byte]*queuePair
	ids      map[*verbs.ConnID]*queuePair
}

type registered struct {
	memory *verbs.Memory
	mr     *verbs.MR
}

// openFabric opens a device. trusted says that what the base transport carries is all that is known
// of a peer.
func openFabric(d Device, trusted bool) (fabric, error) {
	if trusted && d.Info.IWARP {
		return nil, fmt.Errorf("rdma: device %s: iWARP connections are made by librdmacm, which TLS cannot authenticate; use --transport tcp", d.Info.Name)
	}
	dev, err := verbs.Open(d.Info.Name)
	if err != nil {
		return nil, fmt.Errorf("rdma: %w", err)
	}
	f := &device{Device: d, dev: dev, inline: wantInline, ends: make(map[uint32]*queuePair), way: setupDirect}
	if f.pd, err = dev.NewPD(); err == nil {
		f.channel, err = dev.NewChannel()
	}
	// librdmacm finds peers by IP addresses, and an InfiniBand port does not know its own.
	if err == nil && !trusted && d.Port.Link != verbs.LinkInfiniBand {
		err = f.listen()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("rdma: %w", err), f.close())
	}
	return f, nil
}

func (f *device) listen() error {
	f.tokens, f.ids = make(map[[tokenBytes]byte]*queuePair), make(map[*verbs.ConnID]*queuePair)
	var err error
	if f.manager, err = verbs.NewConnChannel(); err != nil {
		return err
	}
	if f.listener, err = f.manager.NewID(); err != nil {
		return err
	}
	at := f.GID.Addr.Unmap()
	port, err := f.listener.Listen(netip.AddrPortFrom(at, 0), listenBacklog)
	f.address = netip.AddrPortFrom(at, port)
	f.way = setupManager
	return err
}

// failed notes that an attempt to set a queue pair up in some way has come to nothing.
func (f *device) failed(way byte) {
	switch {
	// There is one way, or another is tried already.
	case f.manager == nil || f.Info.IWARP || way != f.way:
	case way == setupManager:
		f.way = setupDirect
	default:
		f.way = setupManager
	}
}

func (f *device) name() string { return f.String() }

// immediate is false on iWARP, whose protocol has no such write.
func (f *device) immediate() bool { return !f.Info.IWARP }

func (f *device) allocate(bytes int, remote bool) (region, error) {
	memory, err := verbs.Map(bytes, true)
	if err != nil {
		return region{}, fmt.Errorf("rdma: %w", err)
	}
	access := verbs.AccessLocalWrite
	if remote {
		access |= verbs.AccessRemoteWrite
	}
	mr, err := f.pd.Register(memory.Bytes(), access)
	if err != nil {
		return region{}, errors.Join(fmt.Errorf("rdma: register a pool of %d bytes: %w; or make it smaller with --rdma-pool", bytes, err), memory.Close())
	}
	f.regions = append(f.regions, registered{memory, mr})
	return region{bytes: mr.Bytes(), addr: mr.Addr(), lkey: mr.LKey(), rkey: mr.RKey()}, nil
}

func (f *device) open(s Sizes) error {
	l := f.Info.Limits
	// A queue that is too short for every completion of all queue pairs at once may do, if most of
	// them don't fail together.
	entries := min(s.Completions, l.MaxCQEntries)
	switch {
	case s.QueuePairs > l.MaxQPs:
		return fmt.Errorf("rdma: device %s has %d queue pairs, and there are %d peers", f.Info.Name, l.MaxQPs, s.QueuePairs)
	case s.RecvBlocks > l.MaxSRQRequests:
		return fmt.Errorf("rdma: a shared receive queue of device %s has at most %d receives, %d are needed", f.Info.Name, l.MaxSRQRequests, s.RecvBlocks)
	case s.SendRequests > l.MaxWorkRequests:
		return fmt.Errorf("rdma: a queue pair of device %s has at most %d requests, %d are needed", f.Info.Name, l.MaxWorkRequests, s.SendRequests)
	case entries < s.RecvBlocks+s.QueuePairs*(s.SendRequests/signalEvery+1):
		return fmt.Errorf("rdma: a completion queue of device %s has at most %d entries, too few for %d peers", f.Info.Name, entries, s.QueuePairs)
	}
	f.send = s.SendRequests
	var err error
	if f.cq, err = f.dev.NewCQ(entries, f.channel); err != nil {
		return fmt.Errorf("rdma: %w", err)
	}
	if f.srq, err = f.pd.NewSRQ(s.RecvBlocks); err != nil {
		return fmt.Errorf("rdma: %w", err)
	}
	return nil
}

func (f *device) postRecv(requests []verbs.RecvRequest) error {
	if _, err := f.srq.PostRecv(requests); err != nil {
		return fmt.Errorf("rdma: %w", err)
	}
	return nil
}

func (f *device) poll(out []verbs.Completion) (int, error) { return f.cq.Poll(out) }

func (f *device) arm() error { return f.cq.Notify() }

func (f *device) fd() int { return f.channel.FD() }

func (f *device) event() error {
	_, err := f.channel.Event()
	return err
}

func (f *device) setupFDs() []int {
	fds := []int{f.dev.AsyncFD()}
	if f.manager != nil {
		fds = append(fds, f.manager.FD())
	}
	return fds
}

func (f *device) setup(report func(endpoint, occurrence, error)) error {
	for {
		e, ok, err := f.dev.AsyncEvent()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if e.Fatal {
			return fmt.Errorf("the device says: %s", e.Text)
		}
		if q := f.ends[e.QPN]; q != nil && e.LastWQE {
			report(q, occurDrained, nil)
		}
	}
	for f.manager != nil {
		e, ok, err := f.manager.Next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		f.managed(e, report)
	}
	return nil
}

// managed deals with an event of the connection manager.
func (f *device) managed(e verbs.ConnEvent, report func(endpoint, occurrence, error)) {
	if e.Type == verbs.ConnectRequest {
		f.requested(e, report)
		return
	}
	q := f.ids[e.ID]
	if q == nil {
		return
	}
	var err error
	switch e.Type {
	case verbs.AddrResolved:
		if name := e.ID.DeviceName(); name != f.Info.Name {
			err = fmt.Errorf("the way to the peer leads through device %s, not %s", name, f.Info.Name)
			break
		}
		err = e.ID.ResolveRoute(resolveTimeout)
	case verbs.RouteResolved:
		if err = e.ID.Prepare(q.qp, verbs.StateInit); err == nil {
			err = e.ID.Connect(q.qp, q.peerToken[:], reads)
		}
	case verbs.ConnectResponse:
		err = errors.Join(e.ID.Prepare(q.qp, verbs.StateReadyToReceive), e.ID.Prepare(q.qp, verbs.StateReadyToSend))
		if err == nil {
			err = e.ID.Establish()
		}
		if err == nil {
			q.ready = true
			report(q, occurReady, nil)
		}
	case verbs.Established, verbs.TimewaitExit:
	default:
		err = fmt.Errorf("the connection manager says: %v (status %d)", e.Type, e.Status)
	}
	if err != nil {
		report(q, occurFailed, fmt.Errorf("rdma: %w", err))
	}
}

// requested answers a request for a connection, if it carries the token of a queue pair that waits
// for one.
func (f *device) requested(e verbs.ConnEvent, report func(endpoint, occurrence, error)) {
	var token [tokenBytes]byte
	copy(token[:], e.Private)
	q := f.tokens[token]
	if q == nil || len(e.Private) < tokenBytes {
		// Whoever it is has not got the token from us, or the attempt was given up.
		_ = e.ID.Reject()
		_ = e.ID.Close()
		return
	}
	delete(f.tokens, token)
	q.id = e.ID
	f.ids[e.ID] = q
	var err error
	for _, state := range []verbs.ConnState{verbs.StateInit, verbs.StateReadyToReceive, verbs.StateReadyToSend} {
		if err == nil {
			err = e.ID.Prepare(q.qp, state)
		}
	}
	if err == nil {
		err = e.ID.Accept(q.qp, nil, reads)
	}
	if err != nil {
		report(q, occurFailed, fmt.Errorf("rdma: %w", err))
	}
}

// refresh looks the address up again: a link that was down may have it at another place of the
// table, or the device may have lost it.
func (f *device) refresh() error {
	info, err := f.dev.Info()
	if err != nil {
		return fmt.Errorf("rdma: %w", err)
	}
	for _, p := range info.Ports {
		if p.Number != f.Port.Number {
			continue
		}
		for _, g := range p.GIDs {
			if g.Addr == f.GID.Addr && g.Type == f.GID.Type && p.State == verbs.PortActive {
				f.Port, f.GID = p, g
				return nil
			}
		}
		return fmt.Errorf("rdma: port %d of device %s is %s, or has no longer the address %v", p.Number, f.Info.Name, p.State, f.GID.Addr.Unmap())
	}
	return fmt.Errorf("rdma: device %s has no longer a port %d", f.Info.Name, f.Port.Number)
}

func (f *device) endpoint() (endpoint, error) {
	if err := f.refresh(); err != nil {
		return nil, err
	}
	q := &queuePair{f: f, way: f.way}
	for {
		qp, err := f.pd.NewQP(verbs.QPConfig{SendCQ: f.cq, RecvCQ: f.cq, SRQ: f.srq, MaxSend: f.send, MaxSGE: verbs.MaxSGE, MaxInline: f.inline})
		if errors.Is(err, unix.EINVAL) && f.inline > 0 {
			f.inline /= 2
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("rdma: %w", err)
		}
		q.qp = qp
		break
	}
	if f.manager != nil {
		rand.Read(q.token[:])
	}
	f.ends[q.number()] = q
	return q, nil
}

func (f *device) close() error {
	var err error
	for _, q := range f.ends {
		err = errors.Join(err, q.close())
	}
	if f.listener != nil {
		err = errors.Join(err, f.listener.Close())
	}
	if f.manager != nil {
		err = errors.Join(err, f.manager.Close())
	}
	if f.srq != nil {
		err = errors.Join(err, f.srq.Close())
	}
	if f.cq != nil {
		err = errors.Join(err, f.cq.Close())
	}
	if f.channel != nil {
		// The descriptor is watched by one who may sleep. Its end does not wake him; the transport
		// does.
		err = errors.Join(err, f.channel.Close())
	}
	for _, r := range f.regions {
		err = errors.Join(err, r.mr.Close())
	}
	if f.pd != nil {
		err = errors.Join(err, f.pd.Close())
	}
	return errors.Join(err, f.dev.Close())
}

func (f *device) release() {
	for _, r := range f.regions {
		// There is nobody left to tell.
		_ = r.memory.Close()
	}
}
