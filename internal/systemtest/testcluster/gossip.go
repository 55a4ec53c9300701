package testcluster

import (
	"fmt"
	"strconv"
	"testing"

	"dsmd/internal/systemtest/loopback"
)

// LAN is a network on loopback for daemons that find each other by gossip: each has an address of
// its own, and all the same ports.
type LAN struct {
	Nodes  int
	prefix string
}

// NewLAN takes a network that no other cluster of this machine uses, for a cluster of so many
// nodes.
func NewLAN(nodes int) LAN {
	return LAN{nodes, loopback.Network()}
}

// IP is the address of a place in the network, from 0.
func (l LAN) IP(place int) string { return l.prefix + strconv.Itoa(place+1) }

// Daemon starts a daemon at a place, which joins the one at place 0. Further flags go before those
// that it is given: on a busy machine it may be silent for long, so --dead-after is for tests in
// which a daemon that is there is to be found dead.
func (l LAN) Daemon(t testing.TB, place int, flags ...string) *Process {
	t.Helper()
	args := append([]string{"serve", "--nodes", strconv.Itoa(l.Nodes), "--cluster", "lan", "--listen", l.IP(place) + ":7400",
		"--join", l.IP(0), "--socket", l.Socket(place), "--dead-after", "15s", "--log-level", "debug"}, moreFlags()...)
	return Start(t, Command{Name: fmt.Sprintf("the daemon at %s", l.IP(place)), Path: Dsmd(t), Args: append(args, flags...)})
}

// Socket is where programs attach to the daemon of a place.
func (l LAN) Socket(place int) string { return fmt.Sprintf("@dsmd-test-%s%d", l.prefix, place+1) }

// Serve starts the whole cluster, and waits until it serves. It is for programs whose node is the
// place of their daemon.
func (l LAN) Serve(t testing.TB, flags ...string) *Cluster {
	t.Helper()
	return l.Form(t, func(int) []string { return flags })
}

// Form is Serve with other flags for each place.
func (l LAN) Form(t testing.TB, flagsOf func(place int) []string) *Cluster {
	t.Helper()
	c := &Cluster{ranks: l.Nodes}
	for i := range l.Nodes {
		c.Daemons = append(c.Daemons, l.Daemon(t, i, flagsOf(i)...))
		c.sockets, c.addrs = append(c.sockets, l.Socket(i)), append(c.addrs, l.IP(i)+":7400")
	}
	for _, d := range c.Daemons {
		d.AwaitLog(t, " serving ")
	}
	return c
}

// OfJob starts a program of a job, of the given size, on the given node.
func (c *Cluster) OfJob(t testing.TB, p *Program, node int, job string, size int) *Process {
	t.Helper()
	path, env := p.Elsewhere(t)
	return Start(t, Command{
		Name: fmt.Sprintf("%s of job %q on node %d", p.name, job, node), Path: path,
		Env: append(env, "DSM_SOCKET="+c.sockets[node], "DSM_RANK=", "DSM_JOB="+job, "DSM_SIZE="+strconv.Itoa(size)),
	})
}
