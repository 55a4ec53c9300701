package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/patience"
	"dsmd/internal/verbs"
	"dsmd/transport"
	"dsmd/transport/tcp"
	"dsmd/transport/transporttest"
)

// stubborn is a device that makes no queue pair.
type stubborn struct{ fabric }

func (stubborn) endpoint() (endpoint, error) { return nil, errInjected }

// TestWithoutQueuePairs: where no queue pair can be made, the base transport carries everything,
// with the same promises.
func TestWithoutQueuePairs(t *testing.T) {
	t.Parallel()
	transporttest.Run(t, func(t *testing.T, o transporttest.Options) []transport.Transport {
		all := newFakeFabrics(t, false)
		return asInterface(newCluster(t, o, DefaultPoolBytes, func(int) fabric { return stubborn{all.device()} }))
	}, transporttest.Beside)
}

// TestMixed: nodes without RDMA and nodes with it are one cluster.
func TestMixed(t *testing.T) {
	t.Parallel()
	transporttest.Run(t, func(t *testing.T, o transporttest.Options) []transport.Transport {
		return newMixed(t, o, false)
	}, transporttest.Beside)
}

// newMixed makes a cluster whose node 1 has no RDMA.
func newMixed(t testing.TB, o transporttest.Options, required bool) (nodes []transport.Transport) {
	t.Helper()
	all := newFakeFabrics(t, false)
	for i, base := range newBases(t, o.Nodes, o.PageBytes, func(i int) []byte {
		if i == 1 {
			return nil
		}
		return Hello
	}) {
		if i == 1 {
			nodes = append(nodes, base)
			continue
		}
		tr, err := newTransport(Config{Base: base, MaxQueuedBytes: o.MaxQueuedBytes, Required: required}, all.device())
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, tr)
	}
	return nodes
}

// observer is a Handler that writes down what it is told.
type observer struct {
	up, frames map[transport.NodeID]int
	down       map[transport.NodeID]error
}

func newObserver() *observer {
	return &observer{map[transport.NodeID]int{}, map[transport.NodeID]int{}, map[transport.NodeID]error{}}
}

func (o *observer) PeerUp(peer transport.NodeID)                               { o.up[peer]++ }
func (o *observer) PeerDown(peer transport.NodeID, err error)                  { o.down[peer] = err }
func (o *observer) Frame(from transport.NodeID, _ []byte, _ transport.Payload) { o.frames[from]++ }

// pollUntil polls transports in turn until done.
func pollUntil[H transport.Handler](t testing.TB, what string, nodes []transport.Transport, handlers []H, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience.Or(20 * time.Second)); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s", what)
		}
		for i, tr := range nodes {
			tr.Flush()
			if _, err := tr.Poll(handlers[i], 64); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func observe(n int) (all []*observer) {
	for range n {
		all = append(all, newObserver())
	}
	return all
}

// eager is a Handler that sends each peer a frame when it is reported to be there, and writes down
// which frames come.
type eager struct {
	*observer
	self   transport.Transport
	greets string // "": it sends nothing
	got    []string
}

func (e *eager) PeerUp(peer transport.NodeID) {
	e.observer.PeerUp(peer)
	if e.greets != "" {
		_ = e.self.Send(peer, []byte(e.greets), nil) // what does not come is missed
	}
}

func (e *eager) Frame(_ transport.NodeID, frame []byte, _ transport.Payload) {
	e.got = append(e.got, string(frame))
}

// TestQueuedBeforePlain: what was sent to a peer before it is known to be reached by TCP alone is
// not overtaken by what is sent when it is reported, or later.
func TestQueuedBeforePlain(t *testing.T) {
	t.Parallel()
	nodes := newMixed(t, transporttest.Options{Nodes: 2, PageBytes: 4096, MaxQueuedBytes: 1 << 20}, false)
	want := []string{"first", "second", "when it is there", "afterwards"}
	sender, receiver := &eager{observer: newObserver(), self: nodes[0], greets: want[2]}, &eager{observer: newObserver()}
	send := func(text string) {
		if err := nodes[0].Send(1, []byte(text), nil); err != nil {
			t.Fatal(err)
		}
	}
	send(want[0])
	send(want[1])
	both := []*eager{sender, receiver}
	pollUntil(t, "PeerUp", nodes, both, func() bool { return sender.up[1] > 0 })
	send(want[3])
	pollUntil(t, "all frames", nodes, both, func() bool { return len(receiver.got) == len(want) })
	if !slices.Equal(receiver.got, want) {
		t.Errorf("%q have come, want %q", receiver.got, want)
	}
}

// TestBusyQueuePair: one peer sends by RDMA more than a node asks for at once. Frames of a peer
// that is reached by TCP come all the same, and its loss is reported.
func TestBusyQueuePair(t *testing.T) {
	t.Parallel()
	nodes := newMixed(t, transporttest.Options{Nodes: 3, PageBytes: 4096, MaxQueuedBytes: 1 << 20}, false)
	all := observe(3)
	pollUntil(t, "the others", nodes, all, func() bool { return all[0].up[1] > 0 && all[0].up[2] > 0 && all[1].up[0] > 0 && all[2].up[0] > 0 })
	pollUntil(t, "a queue pair", nodes, all, func() bool { return nodes[0].(*Transport).peers[2].path == pathLink })
	// more than enough for everything that may be before it
	busyUntil := func(what string, done func() bool) {
		t.Helper()
		for range 100_000 {
			if done() {
				return
			}
			for range 2 {
				_ = nodes[2].Send(0, []byte("busy"), nil) // or it has a backlog
			}
			nodes[2].Flush()
			if _, err := nodes[2].Poll(all[2], 64); err != nil {
				t.Fatal(err)
			}
			if _, err := nodes[0].Poll(all[0], 1); err != nil {
				t.Fatal(err)
			}
			nodes[0].Flush()
		}
		t.Errorf("%s, beside %d frames of another peer", what, all[0].frames[2])
	}
	if err := nodes[1].Send(0, []byte("quiet"), nil); err != nil {
		t.Fatal(err)
	}
	nodes[1].Flush()
	busyUntil("a frame has not come", func() bool { return all[0].frames[1] > 0 })
	if err := nodes[1].Close(); err != nil {
		t.Fatal(err)
	}
	busyUntil("a loss is not reported", func() bool { return all[0].down[1] != nil })
}

// TestReapBesideBusyQueuePair: a queue pair that has failed is given back to the device, though
// there is always more from another peer.
func TestReapBesideBusyQueuePair(t *testing.T) {
	t.Parallel()
	all := newFakeFabrics(t, false)
	nodes := newCluster(t, transporttest.Options{Nodes: 3, PageBytes: 4096, MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, func(int) fabric { return all.device() })
	seen, busy := observe(3), nodes[0]
	pollUntil(t, "all queue pairs", asInterface(nodes), seen, func() bool { return busy.LinkStats().Links == 2 && nodes[2].LinkStats().Links == 2 })
	busy.gate.Enter()
	busy.breakLink(busy.peers[1], errInjected, true)
	busy.gate.Leave()
	// more than enough for everything that may be before it
	for range 10 * busy.Sizes().Completions {
		for range 2 {
			_ = nodes[2].Send(0, []byte("busy"), nil) // or it has a backlog
		}
		nodes[2].Flush()
		if _, err := nodes[2].Poll(seen[2], 64); err != nil {
			t.Fatal(err)
		}
		if _, err := busy.Poll(seen[0], 1); err != nil {
			t.Fatal(err)
		}
		if busy.draining == 0 {
			return
		}
	}
	t.Errorf("%d failed queue pairs are kept, beside %d frames of another peer", busy.draining, seen[0].frames[2])
}

// parting is a Handler that parts with a peer at the first frame that comes when it is lost.
type parting struct {
	*observer
	self   *Transport
	parted bool
	late   int // frames from then on
}

func (h *parting) Frame(from transport.NodeID, frame []byte, payload transport.Payload) {
	h.observer.Frame(from, frame, payload)
	switch {
	case h.parted:
		h.late++
	case h.self.peers[from].lost != nil:
		h.parted = true
		h.self.Disconnect(from, errInjected)
	}
}

// TestDisconnectOfTheLost: a peer is lost, of which frames wait still. Who parts with it at one of
// them gets no other, and one report that it is gone.
func TestDisconnectOfTheLost(t *testing.T) {
	t.Parallel()
	all := newFakeFabrics(t, false)
	nodes := newCluster(t, transporttest.Options{Nodes: 2, PageBytes: 4096, MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, func(int) fabric { return all.device() })
	watch := observe(2)
	pollUntil(t, "a queue pair", asInterface(nodes), watch, func() bool { return nodes[0].peers[1].path == pathLink && nodes[1].peers[0].path == pathLink })
	for range 50 {
		if err := nodes[1].Send(0, []byte("frame"), nil); err != nil {
			t.Fatal(err)
		}
	}
	nodes[1].Flush()
	nodes[0].base.Disconnect(1, errInjected) // it reports that like any other loss
	h := &parting{observer: newObserver(), self: nodes[0]}
	for deadline := time.Now().Add(patience.Or(20 * time.Second)); h.down[1] == nil; {
		if time.Now().After(deadline) {
			t.Fatalf("waited for the end; %d frames have come", h.frames[1])
		}
		nodes[0].sinceBase = basePause
		if _, err := nodes[0].Poll(h, 1); err != nil {
			t.Fatal(err)
		}
	}
	if !h.parted || h.late > 0 {
		t.Errorf("parted: %v, and %d frames came afterwards", h.parted, h.late)
	}
}

// TestRequired: where RDMA is required, a peer without it is given up, and the reason says so.
func TestRequired(t *testing.T) {
	t.Parallel()
	nodes := newMixed(t, transporttest.Options{Nodes: 3, PageBytes: 64, MaxQueuedBytes: 1 << 20}, true)
	t.Cleanup(func() { transporttest.CloseAll(t, nodes) })
	seen := observe(3)
	pollUntil(t, "the verdict", nodes, seen, func() bool { return seen[0].down[1] != nil && seen[2].down[1] != nil && seen[0].up[2] > 0 })
	for _, i := range []int{0, 2} {
		if !errors.Is(seen[i].down[1], ErrRequired) {
			t.Errorf("node %d gave node 1 up because of %v, want ErrRequired", i, seen[i].down[1])
		}
	}
}

// TestLinkStats: the counters tell what went by RDMA, and that nothing was registered for it.
func TestLinkStats(t *testing.T) {
	all := newFakeFabrics(t, false)
	var devices []*fakeFabric
	nodes := newCluster(t, transporttest.Options{Nodes: 2, PageBytes: 4096, MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, func(int) fabric {
		devices = append(devices, all.device())
		return devices[len(devices)-1]
	})
	before := devices[0].registered
	seen := observe(2)
	pollUntil(t, "PeerUp", asInterface(nodes), seen, func() bool { return seen[0].up[1] > 0 && seen[1].up[0] > 0 })
	const frames = 500
	for sent := 0; sent < frames; {
		for range 20 {
			if err := nodes[0].Send(1, []byte("a page"), nodes[0].Lease(1)); err != nil {
				t.Fatal(err)
			}
			sent++
		}
		pollUntil(t, "pages", asInterface(nodes), seen, func() bool { return seen[1].frames[0] == sent })
	}
	out, in := nodes[0].LinkStats(), nodes[1].LinkStats()
	if out.Links != 1 || out.PayloadsSent != frames || in.PayloadsReceived != frames || out.MessagesSent != frames || out.BytesSent != in.BytesReceived {
		t.Errorf("node 0 has counted %+v\nnode 1 has counted %+v\nwant %d pages by RDMA", out, in, frames)
	}
	if out.RegisteredBytes == 0 || out.RegisteredBytes != nodes[0].Sizes().Registered {
		t.Errorf("%d bytes are registered, the sizes say %d", out.RegisteredBytes, nodes[0].Sizes().Registered)
	}
	if after := devices[0].registered; after != before {
		t.Errorf("%d regions were registered for %d pages", after-before, frames)
	}
}

// dying is a device whose queue fails when told so.
type dying struct {
	*fakeFabric
	dead bool
}

func (d *dying) poll(out []verbs.Completion) (int, error) {
	if d.dead {
		return 0, errInjected
	}
	return d.fakeFabric.poll(out)
}

// TestDeviceFails: when the device itself fails, everything goes on without it.
func TestDeviceFails(t *testing.T) {
	all := newFakeFabrics(t, false)
	failing := &dying{fakeFabric: all.device()}
	nodes := newCluster(t, transporttest.Options{Nodes: 2, PageBytes: 4096, MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, func(i int) fabric {
		if i == 0 {
			return failing
		}
		return all.device()
	})
	seen := observe(2)
	pollUntil(t, "PeerUp", asInterface(nodes), seen, func() bool { return seen[0].up[1] > 0 && seen[1].up[0] > 0 })
	for i := range 40 {
		failing.dead = i >= 20
		for from, tr := range nodes {
			to := transport.NodeID(1 - from)
			if err := tr.Send(to, []byte("x"), tr.Lease(to)); err != nil {
				t.Fatal(err)
			}
		}
		pollUntil(t, fmt.Sprintf("frame %d", i), asInterface(nodes), seen, func() bool { return seen[0].frames[1] == i+1 && seen[1].frames[0] == i+1 })
	}
	if len(seen[0].down)+len(seen[1].down) > 0 {
		t.Errorf("peers are down: %v, %v", seen[0].down, seen[1].down)
	}
	if links := nodes[0].LinkStats().Links; links != 0 {
		t.Errorf("%d peers are reached by a device that is dead", links)
	}
}

// gone is a device that is no longer there: all that it says is that, for ever.
type gone struct{ *fakeFabric }

func (gone) setup(func(endpoint, occurrence, error)) error { return errInjected }

// TestDeviceIsGone: a device that is gone is not used, and does not keep the reactor from sleeping.
func TestDeviceIsGone(t *testing.T) {
	device := newFakeFabrics(t, false).device()
	nodes := newCluster(t, transporttest.Options{Nodes: 1, PageBytes: 64, MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, func(int) fabric { return gone{device} })
	device.setUp.Signal()
	sleeps := func() bool {
		watched := []unix.PollFd{{Fd: int32(nodes[0].WaitFD()), Events: unix.POLLIN}}
		if nodes[0].Arm() {
			return false
		}
		ready, err := unix.Poll(watched, 0)
		return err == nil && ready == 0
	}
	pollUntil(t, "sleep", asInterface(nodes), observe(1), sleeps)
	if nodes[0].broken == nil {
		t.Error("a device that is gone is used")
	}
}

// TestHostilePeer: what a peer says that speaks the language wrongly ends the peer, not this node.
func TestHostilePeer(t *testing.T) {
	t.Parallel()
	offer := func(generation uint32) []byte {
		return appendTerms(nil, noteOffer, terms{generation: generation, window: 1, slots: 1})
	}
	message := func(h header, piece string) []byte {
		b := make([]byte, headerBytes)
		h.put(b)
		return append(append([]byte{byte(noteMessage)}, b...), piece...)
	}
	for name, frames := range map[string][][]byte{
		"unknown note":             {{99}},
		"short terms":              {{byte(noteOffer), 1}},
		"no window":                {appendTerms(nil, noteOffer, terms{generation: 1, slots: 1})},
		"short note":               {{byte(noteReady), 1}},
		"the same offer again":     {offer(1), offer(1)},
		"short message":            {{byte(noteMessage), 1, 2, 3}},
		"a gap":                    {message(header{number: 2, slot: noSlot}, "x")},
		"acknowledges the future":  {message(header{number: 1, ack: 5, slot: noSlot}, "x")},
		"a page that is not there": {message(header{number: 1, slot: noSlot, flags: flagPage}, "x")},
	} {
		t.Run(name, func(t *testing.T) {
			all := newFakeFabrics(t, false)
			bases := newBases(t, 2, 64, func(int) []byte { return Hello })
			tr, err := newTransport(Config{Base: bases[0], MaxQueuedBytes: 1 << 20}, all.device())
			if err != nil {
				t.Fatal(err)
			}
			nodes := []transport.Transport{tr, bases[1]}
			t.Cleanup(func() { transporttest.CloseAll(t, nodes) })
			seen := observe(2)
			for _, f := range frames {
				if err := bases[1].Send(0, f, nil); err != nil {
					t.Fatal(err)
				}
			}
			pollUntil(t, "PeerDown", nodes, seen, func() bool { return seen[0].down[1] != nil })
			if !errors.Is(seen[0].down[1], ErrMalformed) {
				t.Errorf("the peer is down because of %v, want ErrMalformed", seen[0].down[1])
			}
		})
	}
}

// TestHostileQueuePair: a peer that says on its queue pair what nobody says is parted with.
func TestHostileQueuePair(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]verbs.Completion{
		"a value that is no message":          {Op: verbs.WCRecvImm, Imm: 3<<16 | 64},
		"a short message like none before it": {Op: verbs.WCRecvImm, Imm: shortMark | 1},
		"an atomic operation":                 {Op: verbs.WCRecv + 100},
		"no header":                           {Op: verbs.WCRecv, Bytes: headerBytes - 1},
		"more than was sent":                  {Op: verbs.WCRecv, Bytes: 1 << 30},
	} {
		t.Run(name, func(t *testing.T) {
			all := newFakeFabrics(t, false)
			device := all.device()
			nodes := newCluster(t, transporttest.Options{Nodes: 2, PageBytes: 64, MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, func(i int) fabric {
				if i == 0 {
					return device
				}
				return all.device()
			})
			seen := observe(2)
			pollUntil(t, "PeerUp", asInterface(nodes), seen, func() bool { return seen[0].up[1] > 0 && seen[1].up[0] > 0 })
			all.mu.Lock()
			c.ID, c.QPN = device.receives[0].ID, nodes[0].peers[1].link.end.number()
			device.receives = device.receives[1:]
			device.complete(c)
			all.mu.Unlock()
			pollUntil(t, "PeerDown", asInterface(nodes), seen, func() bool { return seen[0].down[1] != nil })
			if !errors.Is(seen[0].down[1], ErrMalformed) {
				t.Errorf("the peer is down because of %v, want ErrMalformed", seen[0].down[1])
			}
		})
	}
}

func TestChooseDevice(t *testing.T) {
	limits := verbs.Limits{MaxSRQs: 1}
	port := func(state verbs.PortState, addresses ...string) []verbs.PortInfo {
		p := verbs.PortInfo{Number: 1, State: state, Link: verbs.LinkEthernet}
		for i, a := range addresses {
			p.GIDs = append(p.GIDs, verbs.GID{Index: i, Addr: netip.MustParseAddr(a), Type: verbs.GIDRoCEv2})
		}
		return []verbs.PortInfo{p}
	}
	all := []verbs.DeviceInfo{
		{Name: "down", Limits: limits, Ports: port(verbs.PortDown, "::ffff:10.0.0.1")},
		{Name: "first", Limits: limits, Ports: port(verbs.PortActive, "fe80::1", "::ffff:10.0.0.2")},
		{Name: "second", Limits: limits, Ports: port(verbs.PortActive, "::ffff:10.0.0.3", "::ffff:10.0.0.4")},
		{Name: "odd", Ports: port(verbs.PortActive, "::ffff:10.0.0.5")},
		{Name: "local", Limits: limits, Ports: port(verbs.PortActive, "fe80::2")},
		{Name: "fabric", Limits: limits, Ports: []verbs.PortInfo{{Number: 1, State: verbs.PortActive, Link: verbs.LinkInfiniBand, GIDs: []verbs.GID{
			{Addr: netip.MustParseAddr("fe80::3"), Type: verbs.GIDInfiniBand}}}}},
	}
	for _, test := range []struct{ name, local, device, address string }{
		{"", "", "first", "10.0.0.2"},
		{"", "10.0.0.4", "second", "10.0.0.4"},
		{"", "192.168.0.1", "first", "10.0.0.2"},
		{"second", "10.0.0.2", "second", "10.0.0.3"},
		{"fabric", "", "fabric", "fe80::3"},
	} {
		var local netip.Addr
		if test.local != "" {
			local = netip.MustParseAddr(test.local)
		}
		d, err := choose(all, test.name, local)
		if err != nil || d.Info.Name != test.device || d.GID.Addr.Unmap().String() != test.address {
			t.Errorf("choose %q near %q: %v, %v; want %s at %s", test.name, test.local, d, err, test.device, test.address)
		}
	}
	for name, want := range map[string]string{"none": `"none"`, "down": "no active port", "local": "no active port", "odd": "no shared receive queues"} {
		if _, err := choose(all, name, netip.Addr{}); !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), want) {
			t.Errorf("choose %q: %v, want ErrNoDevice and %s", name, err, want)
		}
	}
	if _, err := choose(nil, "", netip.Addr{}); !errors.Is(err, ErrNoDevice) {
		t.Errorf("choose where there is none: %v, want ErrNoDevice", err)
	}
}

// TestNewRefuses: configurations that cannot work are refused with what to do.
func TestNewRefuses(t *testing.T) {
	all := newFakeFabrics(t, false)
	for want, c := range map[string]Config{
		"raise --rdma-pool":           {PoolBytes: 1000, MaxQueuedBytes: tcp.DefaultMaxQueuedBytes},
		"must hold the longest frame": {MaxQueuedBytes: 1000},
	} {
		c.Base = newBases(t, 2, 64, func(int) []byte { return Hello })[0]
		if _, err := newTransport(c, all.device()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
}

// deaf is a device that loses acknowledgements that go alone, as a queue pair does that fails soon
// after.
type deaf struct {
	fabric
	on *bool
}

type deafEnd struct {
	*fakeEnd
	on *bool
}

func (d deaf) endpoint() (endpoint, error) {
	e, err := d.fabric.endpoint()
	if err != nil {
		return nil, err
	}
	return &deafEnd{e.(*fakeEnd), d.on}, nil
}

func (d deaf) setup(report func(endpoint, occurrence, error)) error {
	return d.fabric.setup(func(endpoint, occurrence, error) {}) // Nothing is closed before the end.
}

func (e *deafEnd) post(requests []verbs.SendRequest) error {
	if *e.on && len(requests) == 1 && requests[0].SGE[0].Length == headerBytes {
		return nil
	}
	return e.fakeEnd.post(requests)
}

// TestLostAcknowledgement: one that was lost with a queue pair, after exactly a window, does not
// keep the peer waiting for ever.
func TestLostAcknowledgement(t *testing.T) {
	all, lost := newFakeFabrics(t, false), false
	nodes := newCluster(t, transporttest.Options{Nodes: 2, PageBytes: 64, MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, func(int) fabric {
		return deaf{all.device(), &lost}
	})
	seen := observe(2)
	pollUntil(t, "PeerUp", asInterface(nodes), seen, func() bool { return seen[0].up[1] > 0 && seen[1].up[0] > 0 })
	sent := 0
	send := func(n int) {
		t.Helper()
		for range n {
			if err := nodes[0].Send(1, []byte("x"), nil); err != nil {
				t.Fatal(err)
			}
		}
		sent += n
		pollUntil(t, fmt.Sprintf("frame %d", sent), asInterface(nodes), seen, func() bool { return seen[1].frames[0] == sent })
	}
	lost = true
	send(nodes[0].Sizes().Window)
	lost = false
	nodes[0].gate.Enter()
	nodes[0].breakLink(nodes[0].peers[1], errInjected, true)
	nodes[0].gate.Leave()
	pollUntil(t, "another queue pair", asInterface(nodes), seen, func() bool {
		return nodes[0].LinkStats().LinksTried > 1 && nodes[0].LinkStats().Links == 1 && nodes[1].LinkStats().Links == 1
	})
	send(1)
}

// silencer makes devices that take requests, and from some time on neither carry them out nor say
// so.
type silencer struct {
	fabric
	silent *bool
}

func (s silencer) endpoint() (endpoint, error) {
	e, err := s.fabric.endpoint()
	return silencedEnd{e, s.silent}, err
}

type silencedEnd struct {
	endpoint
	silent *bool
}

func (e silencedEnd) post(requests []verbs.SendRequest) error {
	if *e.silent {
		return nil
	}
	return e.endpoint.post(requests)
}

// fastWatch is the pause of the watch in tests.
const fastWatch = 20 * time.Millisecond

// watchedPair makes two connected nodes that look at their queue pairs often. What node 0 posts is
// lost while silent is set.
func watchedPair(t *testing.T, silent *bool) ([]*Transport, []*observer) {
	t.Helper()
	all := newFakeFabrics(t, false)
	none := new(bool)
	nodes := newCluster(t, transporttest.Options{Nodes: 2, PageBytes: 4096, MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, func(i int) fabric {
		return silencer{all.device(), []*bool{silent, none}[i]}
	})
	for _, tr := range nodes {
		tr.watchPause = fastWatch
	}
	seen := observe(2)
	pollUntil(t, "a queue pair", asInterface(nodes), seen, func() bool { return seen[0].up[1] > 0 && seen[1].up[0] > 0 })
	return nodes, seen
}

// TestSilentQueuePair: what a device takes and does not send goes by TCP after a while, and so does
// what comes then, until there is another queue pair.
func TestSilentQueuePair(t *testing.T) {
	var silent bool
	nodes, seen := watchedPair(t, &silent)
	silent = true
	for sent := 1; sent <= 3; sent++ {
		page := nodes[0].Lease(1)
		if err := nodes[0].Send(1, []byte("is anybody there?"), page); err != nil {
			t.Fatal(err)
		}
		pollUntil(t, "a frame", asInterface(nodes), seen, func() bool { return seen[1].frames[0] == sent })
	}
	if nodes[0].LinkStats().LinksFailed == 0 || len(seen[0].down)+len(seen[1].down) > 0 {
		t.Errorf("%+v, %v", nodes[0].LinkStats(), seen)
	}
	silent = false
	written := nodes[0].LinkStats().PayloadsSent
	pollUntil(t, "another queue pair", asInterface(nodes), seen, func() bool { return nodes[0].LinkStats().Links == 1 && nodes[1].LinkStats().Links == 1 })
	if err := nodes[0].Send(1, []byte("once more"), nodes[0].Lease(1)); err != nil {
		t.Fatal(err)
	}
	pollUntil(t, "a frame by RDMA", asInterface(nodes), seen, func() bool { return seen[1].frames[0] == 4 })
	if nodes[0].LinkStats().PayloadsSent != written+1 {
		t.Error("the page did not go by the new queue pair")
	}
}

// TestQuietQueuePair: a message that nobody answers is acknowledged when that is asked for, so the
// queue pair stays and nobody looks any more.
func TestQuietQueuePair(t *testing.T) {
	nodes, seen := watchedPair(t, new(bool))
	if err := nodes[0].Send(1, []byte("no answer, please"), nil); err != nil {
		t.Fatal(err)
	}
	sender := nodes[0].peers[1]
	pollUntil(t, "an acknowledgement", asInterface(nodes), seen, func() bool { return sender.last > 0 && sender.acked == sender.last && nodes[0].watchAt.IsZero() })
	for i, tr := range nodes {
		if s := tr.LinkStats(); s.LinksFailed != 0 || s.Links != 1 {
			t.Errorf("node %d: %+v", i, s)
		}
	}
}
