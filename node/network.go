package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"dsmd/transport"
	"dsmd/transport/emulated"
	"dsmd/transport/rdma"
	"dsmd/transport/tcp"

	"go.uber.org/zap"
)

// The transports that Network.Transport names.
const (
	// transportAuto is RDMA to the peers where both sides have a usable device, TCP to the others.
	transportAuto = "auto"
	transportTCP  = "tcp"
	// transportRDMA is the same, but a peer that can't be reached by RDMA ends the cluster.
	transportRDMA = "rdma"
)

// TransportNames are what Network.Transport can be.
var TransportNames = []string{transportAuto, transportTCP, transportRDMA}

// Bounds of Network.RDMAPoolBytes.
const (
	DefaultRDMAPoolBytes = rdma.DefaultPoolBytes
	MaxRDMAPoolBytes     = 64 << 30
)

// network is how a node reaches its peers.
type network struct {
	transport.Transport
	connect func(context.Context) error // connects to all peers
	// belong is called when this node, which joins, was let in; nil: nobody wants to know.
	belong func()
	// explain says that this node is about to close its transport, and why, for the peers; "": it
	// was told to. nil: nobody is told.
	explain func(why string)
	// memory is for how many bytes of pages a peer has room, as it has said when it connected; nil:
	// peers don't say.
	memory func(transport.NodeID) uint64
	links  func() rdma.LinkStats // nil: TCP alone
	reason string                // why it is what it is, for the log
	slowed bool                  // it is slower than it could be, because that was asked for
}

// openNetwork makes the network that the configuration asks for, and takes over cfg.Listener when
// it succeeds.
func openNetwork(cfg *Config, channel, pageBytes int) (*network, error) {
	device, reason, err := chooseDevice(cfg)
	if err != nil {
		return nil, err
	}
	limit := queueLimit(cfg.RegionBytes/uint64(pageBytes), cfg.Nodes, pageBytes, cfg.Survive)
	base := tcpConfig(cfg, channel, pageBytes, limit)
	n, err := openTransport(cfg, &base, device, reason)
	link := cfg.Network.Emulated
	if err != nil || !link.IsOn() {
		return n, err
	}
	slow, err := emulated.New(emulated.Config{Base: n.Transport, Link: link, MaxQueuedBytes: limit})
	if err != nil {
		return nil, err
	}
	n.Transport, n.slowed = slow, true
	cfg.Log.Info("the network is emulated: what this node sends takes longer than it would", zap.Stringer("link", link))
	return n, nil
}

// tcpConfig is the configuration of TCP, for a channel of the nodes' listeners.
func tcpConfig(cfg *Config, channel, pageBytes, limit int) tcp.Config {
	security := &cfg.Security
	return tcp.Config{
		Self: transport.NodeID(cfg.Self), Listener: cfg.Listener, Peers: cfg.Peers, Cluster: cfg.Cluster,
		Channel: channel, Channels: cfg.Core.Reactors, PageBytes: pageBytes, MaxQueuedBytes: limit, Hello: appendMemory(nil, &cfg.Memory),
		TLS: security.TLS, LatestTLS: security.LatestTLS, VerifyPeer: security.VerifyPeer, Secret: security.Secret,
		GiveUp: cfg.GiveUp, Joining: cfg.Rejoin,
		Log: func(line string) { cfg.Log.Info(line) }, LongWait: func(line string) { cfg.Log.Warn(line) },
	}
}

// openTransport is openNetwork without what emulates another one. It has a device of RDMA, or nil,
// and why that was chosen.
func openTransport(cfg *Config, base *tcp.Config, device *rdma.Device, reason string) (*network, error) {
	peers, err := tcp.New(*base)
	if err != nil {
		return nil, err
	}
	with := greeted{peers}
	n := &network{Transport: peers, connect: peers.Connect, belong: peers.Belong, explain: peers.Explain, memory: with.memory, reason: reason}
	if device == nil {
		return n, nil
	}
	fast, err := rdma.New(rdma.Config{
		Base: with, Device: *device, PoolBytes: int(cfg.Network.RDMAPoolBytes), MaxQueuedBytes: base.MaxQueuedBytes,
		Required: cfg.Network.Transport == transportRDMA, Trusted: base.TLS != nil, Log: base.Log,
	})
	switch {
	case err == nil:
		peers.SetHello(append(base.Hello, rdma.Hello...))
		n.Transport, n.links = fast, fast.LinkStats
	case mustHaveDevice(cfg):
		return nil, errors.Join(err, peers.Close())
	default:
		n.reason = err.Error()
		cfg.Log.Warn("this node has an RDMA device and goes on without it; see dsmd doctor", zap.Error(err))
	}
	return n, nil
}

// mustHaveDevice is whether a node does not start without an RDMA device.
func mustHaveDevice(cfg *Config) bool {
	return cfg.Network.Transport == transportRDMA || cfg.Network.RDMADevice != ""
}

// chooseDevice finds the RDMA device to use. nil: none, which is an error only where RDMA is
// required, or a device named.
func chooseDevice(cfg *Config) (*rdma.Device, string, error) {
	switch {
	case cfg.Network.Transport == transportTCP:
		return nil, "it was asked for", nil
	case cfg.Nodes == 1 && cfg.Network.Transport != transportRDMA:
		return nil, "there are no other nodes", nil
	}
	var local netip.Addr
	if at, err := netip.ParseAddrPort(cfg.Peers[cfg.Self]); err == nil {
		local = at.Addr()
	}
	device, err := rdma.Probe(cfg.Network.RDMADevice, local)
	switch {
	case err == nil:
		return &device, "device " + device.String(), nil
	case cfg.Network.Transport == transportRDMA:
		return nil, "", fmt.Errorf("--transport rdma: %w", err)
	case cfg.Network.RDMADevice != "":
		return nil, "", fmt.Errorf("--rdma-device %s: %w", cfg.Network.RDMADevice, err)
	}
	return nil, err.Error(), nil
}

// CheckTransport returns an error that says why, if this machine can't have the transport that is
// asked for, with the device of that name if it is not "".
func CheckTransport(name, device string) error {
	_, _, err := chooseDevice(&Config{Network: Network{Transport: name, RDMADevice: device}, Nodes: 2, Peers: make([]string, 2)})
	return err
}

// name is how peers are reached, for people.
func (n *network) name() string {
	if n.slowed {
		return n.kind() + " (emulated network)"
	}
	return n.kind()
}

func (n *network) kind() string {
	if n.links == nil {
		return transportTCP
	}
	switch plain := n.links().Plain; plain {
	case 0:
		return transportRDMA
	case n.Nodes() - 1:
		return transportTCP
	default:
		return transportRDMA + " and " + transportTCP
	}
}

// linkMetrics are what is counted of RDMA, if it is used.
func (n *network) linkMetrics() []metric {
	if n.links == nil {
		return nil
	}
	read := func(f func(rdma.LinkStats) uint64) func() uint64 { return func() uint64 { return f(n.links()) } }
	return []metric{
		{"rdma_links", "Peers that are reached by RDMA now.", true, read(func(s rdma.LinkStats) uint64 { return uint64(s.Links) })},
		{"rdma_links_failed", "Queue pairs that have failed after they had worked.", false, read(func(s rdma.LinkStats) uint64 { return s.LinksFailed })},
		{"rdma_messages_sent", "Messages sent by RDMA; a frame is one or several.", false, read(func(s rdma.LinkStats) uint64 { return s.MessagesSent })},
		{"rdma_short_sent", "Messages that a page's write has carried in its immediate value, of those in rdma_messages_sent.", false, read(func(s rdma.LinkStats) uint64 { return s.ShortSent })},
		{"rdma_messages_received", "Messages received by RDMA.", false, read(func(s rdma.LinkStats) uint64 { return s.MessagesReceived })},
		{"rdma_pages_sent", "Pages written into a peer's memory by RDMA.", false, read(func(s rdma.LinkStats) uint64 { return s.PayloadsSent })},
		{"rdma_pages_received", "Pages that peers have written here by RDMA.", false, read(func(s rdma.LinkStats) uint64 { return s.PayloadsReceived })},
		{"rdma_bytes_sent", "Bytes sent by RDMA, of those in bytes_sent.", false, read(func(s rdma.LinkStats) uint64 { return s.BytesSent })},
		{"rdma_bytes_received", "Bytes received by RDMA, of those in bytes_received.", false, read(func(s rdma.LinkStats) uint64 { return s.BytesReceived })},
		{"rdma_registered_bytes", "Memory that is registered with the RDMA device, all of it at the start.", true, read(func(s rdma.LinkStats) uint64 { return uint64(s.RegisteredBytes) })},
	}
}

// Transports are the transports that this machine has.
func Transports() []string {
	if _, err := rdma.Probe("", netip.Addr{}); err != nil {
		return []string{transportTCP}
	}
	return []string{transportTCP, transportRDMA}
}

// knownTransport is whether a name is one of TransportNames, or "" for the default.
func knownTransport(name string) bool { return name == "" || slices.Contains(TransportNames, name) }
