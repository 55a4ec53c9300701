package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"

	"dsmd/internal/certs"
	"dsmd/internal/membership"
	"dsmd/internal/settings"
	"dsmd/node"
	"dsmd/transport"
	"dsmd/transport/tcp"
)

// place is this node's place among the nodes of its cluster.
type place struct {
	id       int
	peers    []string // data address of each node, by id
	cluster  string   // what nodes call it among themselves
	group    *membership.Group
	reactors int // of each node
}

// findPlace reads the place from the settings, or waits until the cluster is complete.
func (d *daemon) findPlace(ctx context.Context) (*place, error) {
	v := d.v
	if err := checkIdentity(v, d.secrets); err != nil {
		return nil, err
	}
	// Two nodes refuse each other's connections if their clusters are called differently. So behind
	// the name is what they must agree on, or if they have done so, the digest of the nodes.
	most := v.MostReactors(1)
	p := &place{id: v.ID, peers: v.Peers, reactors: most, cluster: fmt.Sprintf("%s (region %v, %d ranks, transport %s, survive %t)", v.Cluster, v.Region, v.Ranks, v.Transport, v.Survive)}
	if v.Stripe != 0 {
		p.cluster += fmt.Sprintf(" (stripe %d)", v.Stripe)
	}
	if !v.Static() {
		group, err := d.joinGroup(ctx, most)
		if err != nil {
			return nil, err
		}
		table := group.Table()
		p.group, p.id, p.peers = group, group.Self(), make([]string, len(table.Nodes))
		for i, n := range table.Nodes {
			p.peers[i] = n.Data
		}
		p.cluster, p.reactors = v.Cluster+"/"+table.Digest(), table.Reactors()
	}
	return p, nil
}

// checkIdentity checks that the certificate is this node's, so that this node notices, and not its
// peers. A node that was not told its id takes the one that its certificate names, if it names one.
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

func (d *daemon) joinGroup(ctx context.Context, reactors int) (*membership.Group, error) {
	v := d.v
	reach, err := membership.Reach(ctx, v.Advertise, d.sockets.data.Addr(), v.Join)
	if err != nil {
		return nil, fmt.Errorf("--advertise: %w", err)
	}
	bind, err := gossipAddress(v)
	if err != nil {
		return nil, err
	}
	host := ""
	if len(bind.IP) > 0 {
		host = bind.IP.String()
	}
	return membership.Form(ctx, membership.Config{
		Cluster: v.Cluster, Nodes: v.Nodes, ID: v.ID, Returns: v.Rejoin, Data: reach.Data, Transports: node.Transports(), Reactors: reactors,
		Agree: agreements(v, d.secrets),
		Bind:  net.JoinHostPort(host, strconv.Itoa(bind.Port)), Advertise: reach.IP, Join: v.Join, Keys: d.secrets.gossip,
		Timeout: v.JoinTimeout, DeadAfter: v.DeadAfter, Log: d.log, Metrics: d.registry,
	})
}

// agreements are the settings on which all nodes must agree, with all that the protocol takes for
// granted.
func agreements(v *settings.Values, s *secrets) []membership.Agreement {
	encryption, secret := "off", "none"
	if s.tls != nil {
		encryption = "on"
	}
	if s.shared != nil {
		secret = "shared"
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
		{Name: "secret (--secret-file)", Value: secret},
		{Name: "number of reactors (--reactors)", Value: v.Text("reactors")},
		{Name: "stripe", Value: v.Text("stripe")},
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
