package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// Reachable is how others reach this node.
type Reachable struct {
	Data string // HOST:PORT for data connections, as it was advertised: HOST may be a name
	IP   string // for gossip
}

// Reach finds out how others reach a node that listens for data at listen. advertise is what an
// administrator has said, HOST or HOST:PORT, or "". Then Reach takes the address that the node
// listens at, or, if that is all of the machine's addresses, the one from which packets to the
// first of join leave. Errors: a name without address, or no way to any of join.
func Reach(ctx context.Context, advertise string, listen net.Addr, join []string) (Reachable, error) {
	listenHost, port, err := net.SplitHostPort(listen.String())
	if err != nil {
		return Reachable{}, fmt.Errorf("membership: the address %v: %w", listen, err)
	}
	host := advertise
	if h, p, err := net.SplitHostPort(advertise); err == nil {
		host, port = h, p
	}
	if host == "" {
		host = listenHost
		if ip, err := netip.ParseAddr(listenHost); err != nil || ip.IsUnspecified() {
			if host, err = wayTo(join); err != nil {
				return Reachable{}, err
			}
		}
	}
	ip := host
	if _, err := netip.ParseAddr(host); err != nil {
		addrs, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			return Reachable{}, fmt.Errorf("membership: the address %q, which others are to be told: %w", host, err)
		}
		ip = addrs[0]
	}
	return Reachable{Data: net.JoinHostPort(host, port), IP: ip}, nil
}

// wayTo is the address of this machine from which packets to one of the given places leave. Nothing
// is sent.
func wayTo(places []string) (string, error) {
	var problems []error
	for _, p := range places {
		conn, err := net.Dial("udp", p)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		defer conn.Close()
		host, _, err := net.SplitHostPort(conn.LocalAddr().String())
		return host, err
	}
	return "", fmt.Errorf("membership: no own address can be found by the way to the nodes to join; say it with --advertise: %w", errors.Join(problems...))
}
