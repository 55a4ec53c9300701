package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"dsmd/internal/certs"
	"dsmd/internal/membership"
	"dsmd/internal/settings"
	"dsmd/node"
	"dsmd/transport"
	"dsmd/transport/tcp"
)

// place is this node's place among the nodes of its cluster.
type place struct {
	id      int
	peers   []string // data address of each node, by id
	cluster string   // what nodes call it among themselves
	group   *membership.Group
}

// findPlace reads the place from the settings, or waits until the cluster is complete.
func findPlace(ctx context.Context, v *settings.Values, data net.Listener, s *secrets, registry *prometheus.Registry, log *zap.Logger) (*place, error) {
	if err := checkIdentity(v, s); err != nil {
		return nil, err
	}
	p := &place{id: v.ID, peers: v.Peers, cluster: v.Cluster}
	if !v.Static() {
		group, err := joinGroup(ctx, v, data.Addr(), s, registry, log)
		if err != nil {
			return nil, err
		}
		table := group.Table()
		p.group, p.id, p.peers = group, group.Self(), make([]string, len(table.Nodes))
		for i, n := range table.Nodes {
			p.peers[i] = n.Data
		}
		// With the digest, two nodes that have not agreed on one and the same set of nodes refuse each other's connections.
		p.cluster += "/" + table.Digest()
	}
	return p, nil
}

// checkIdentity finds out here, and not by the peers, whether the certificate is that of this node. A node that was not told its id takes
// the one that its certificate names, if it names one.
func checkIdentity(v *settings.Values, s *secrets) error {
	if s.tls == nil {
		return nil
	}
	identity, err := certs.IdentityOf(s.tls.Certificates[0].Leaf)
	if err != nil {
		return err
	}
	if v.ID == settings.AutoID && identity.Node != certs.AnyNode {
		v.ID = identity.Node
	}
	if v.ID >= v.Nodes {
		return fmt.Errorf("the certificate %s is that of node %d, and ids of %d nodes are 0 to %d", v.TLSCert, v.ID, v.Nodes, v.Nodes-1)
	}
	// A certificate for any node is good for whichever this one becomes.
	return certs.CheckOwn(s.tls, v.Cluster, max(v.ID, 0))
}

func joinGroup(ctx context.Context, v *settings.Values, data net.Addr, s *secrets, registry *prometheus.Registry, log *zap.Logger) (*membership.Group, error) {
	reach, err := membership.Reach(ctx, v.Advertise, data, v.Join)
	if err != nil {
		return nil, fmt.Errorf("--advertise: %w", err)
	}
	bind, err := net.ResolveTCPAddr("tcp", v.Gossip)
	if err != nil {
		return nil, fmt.Errorf("--gossip %q: %w", v.Gossip, err)
	}
	if len(s.gossip) == 0 && !onlyHere(bind) && !v.Insecure {
		return nil, exposed("gossip", bind, "give a key (--gossip-key-file; dsmd cert gossip-key makes one)")
	}
	host := ""
	if len(bind.IP) > 0 {
		host = bind.IP.String()
	}
	return membership.Form(ctx, membership.Config{
		Cluster: v.Cluster, Nodes: v.Nodes, ID: v.ID, Returns: v.Rejoin, Data: reach.Data, Transports: node.Transports(),
		Agree: agreements(v, s),
		Bind:  net.JoinHostPort(host, strconv.Itoa(bind.Port)), Advertise: reach.IP, Join: v.Join, Keys: s.gossip,
		Timeout: v.JoinTimeout, DeadAfter: v.DeadAfter, Log: log, Metrics: registry,
	})
}

// agreements are the settings on which all nodes must agree. Whatever the protocol takes for granted must be among them.
func agreements(v *settings.Values, s *secrets) []membership.Agreement {
	encryption := "off"
	if s.tls != nil {
		encryption = "on"
	}
	return []membership.Agreement{
		{Name: "protocol version", Value: strconv.Itoa(tcp.WireVersion)},
		{Name: "number of nodes", Value: strconv.Itoa(v.Nodes)},
		{Name: "page size", Value: settings.Bytes(os.Getpagesize()).String()},
		{Name: "region", Value: v.Region.String()},
		{Name: "region base", Value: fmt.Sprintf("%#x", uint64(node.DefaultRegionBase))},
		{Name: "home stripe", Value: strconv.Itoa(node.HomeStripe)},
		{Name: "number of ranks", Value: strconv.Itoa(v.Ranks)},
		{Name: "transport", Value: v.Transport},
		{Name: "TLS", Value: encryption},
		{Name: "survive", Value: strconv.FormatBool(v.Survive)},
	}
}

// watch lets the node know of nodes that are lost.
func (p *place) watch(n *node.Node) {
	if p.group == nil {
		return
	}
	p.group.Watch(func(l membership.Loss) { n.PeerFailed(transport.NodeID(l.Node.ID), l) })
}

// leave tells the other nodes that this one ends, and why, or, with nil, that it was told to.
func (p *place) leave(why error) {
	if p.group != nil {
		p.group.Leave(why)
	}
}
