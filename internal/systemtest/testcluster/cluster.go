package testcluster

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/internal/systemtest/loopback"
)

// Cluster is some daemons, each a `dsmd serve` of its own.
type Cluster struct {
	Daemons []*Process
	sockets []string // where programs attach
	addrs   []string // where peers connect
	ranks   int
}

// serial makes the names of sockets different.
var serial atomic.Int64

func newSocket() string { return fmt.Sprintf("@dsmd-test-%d-%d", os.Getpid(), serial.Add(1)) }

// Serve starts a cluster for a job of so many ranks, with flags for `dsmd serve`.
func Serve(t testing.TB, nodes, ranks int, flags ...string) *Cluster {
	t.Helper()
	c, _ := ServeFirst(t, nodes, nodes, ranks, flags...)
	return c
}

// ServeFirst is Serve for a cluster of which only the first nodes are started. The others are the
// test's, and it gets what they listen with.
func ServeFirst(t testing.TB, first, nodes, ranks int, flags ...string) (c *Cluster, others []net.Listener) {
	t.Helper()
	c, listeners := open(t, nodes, ranks)
	for i, l := range listeners {
		if i < first {
			c.start(t, i, l, c.addrs, flags)
			continue
		}
		t.Cleanup(func() { l.Close() })
		others = append(others, l)
	}
	return c, others
}

// ServeVia is Serve with something between the daemons: via returns the address at which one node
// is told to reach another, whose own address is given.
func ServeVia(t testing.TB, nodes, ranks int, via func(node, other int, address string) string, flags ...string) *Cluster {
	t.Helper()
	c, listeners := open(t, nodes, ranks)
	for i, l := range listeners {
		seen := slices.Clone(c.addrs)
		for j := range seen {
			if j != i {
				seen[j] = via(i, j, c.addrs[j])
			}
		}
		c.start(t, i, l, seen, flags)
	}
	return c
}

// open listens for a cluster of which nothing is started yet. It does so in a network of its own,
// so that nobody else gets the port of a node that has ended.
func open(t testing.TB, nodes, ranks int) (c *Cluster, listeners []*net.TCPListener) {
	t.Helper()
	c = &Cluster{ranks: ranks}
	network := loopback.Network()
	for range nodes {
		l := listenTCP(t, network+"1:0")
		listeners, c.addrs = append(listeners, l), append(c.addrs, l.Addr().String())
		c.sockets = append(c.sockets, newSocket())
	}
	return c, listeners
}

// start starts the daemon of a node that has none, which inherits the listener, and is told to
// reach the others at the given addresses.
func (c *Cluster) start(t testing.TB, node int, l *net.TCPListener, peers, flags []string) {
	t.Helper()
	data, programs := inherited(t, l), inherited(t, listenUnix(t, c.sockets[node]))
	defer data.Close()
	defer programs.Close()
	args := append([]string{"serve", "--id", strconv.Itoa(node), "--peers", strings.Join(peers, ","), "--ranks", strconv.Itoa(c.ranks),
		"--listen-fd", "3", "--socket-fd", "4", "--log-level", "debug"}, slices.Concat(moreFlags(), flags)...)
	if node == len(c.Daemons) {
		c.Daemons = append(c.Daemons, nil)
	}
	c.Daemons[node] = Start(t, Command{Name: fmt.Sprintf("daemon %d", node), Path: Dsmd(t), Args: args, Files: []*os.File{data, programs}})
}

// Again starts the daemon of a node that has ended once more, at the same addresses, or that of the
// next node of which the test has closed the listener.
func (c *Cluster) Again(t testing.TB, node int, flags ...string) {
	t.Helper()
	c.start(t, node, listenTCP(t, c.addrs[node]), c.addrs, flags)
}

// Drain runs "dsmd drain" for a node, and returns all that it says.
func (c *Cluster) Drain(t testing.TB, node int) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, Dsmd(t), "drain", "--socket", c.sockets[node]).CombinedOutput()
	return string(out), err
}

// Alone starts one daemon with the given flags for `dsmd serve`, of a job of two ranks.
func Alone(t testing.TB, flags ...string) *Cluster {
	t.Helper()
	socket := newSocket()
	programs := inherited(t, listenUnix(t, socket))
	defer programs.Close()
	args := append([]string{"serve", "--socket-fd", "3", "--log-level", "debug"}, flags...)
	daemon := Start(t, Command{Name: "the daemon", Path: Dsmd(t), Args: args, Files: []*os.File{programs}})
	return &Cluster{Daemons: []*Process{daemon}, sockets: []string{socket}, ranks: 2}
}

// FlagsEnv is the environment variable with flags, separated by spaces, that all daemons get in
// addition: for running all tests with another trap, for example.
const FlagsEnv = "DSMD_TEST_FLAGS"

func moreFlags() []string { return strings.Fields(os.Getenv(FlagsEnv)) }

func listenTCP(t testing.TB, address string) *net.TCPListener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l.(*net.TCPListener)
}

func listenUnix(t testing.TB, socket string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// inherited closes a listener of this process and returns the socket for one that is started.
func inherited(t testing.TB, l interface {
	File() (*os.File, error)
	Close() error
}) *os.File {
	t.Helper()
	defer l.Close()
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Socket is where programs of a node attach.
func (c *Cluster) Socket(node int) string { return c.sockets[node] }

// Addresses are those at which the daemons take connections from their peers.
func (c *Cluster) Addresses() []string { return c.addrs }

// AnyRank leaves the choice of a rank to the daemon.
const AnyRank = -1

// Program starts a program as the given rank, or AnyRank, on the given node.
func (c *Cluster) Program(t testing.TB, p *Program, node, rank int, args ...string) *Process {
	t.Helper()
	return c.ProgramAt(t, p, c.sockets[node], rank, args...)
}

// ProgramAt starts a program that is told of the given socket.
func (c *Cluster) ProgramAt(t testing.TB, p *Program, socket string, rank int, args ...string) *Process {
	t.Helper()
	asked := ""
	if rank != AnyRank {
		asked = strconv.Itoa(rank)
	}
	path, env := p.Elsewhere(t)
	return Start(t, Command{
		Name: fmt.Sprintf("%s of rank %d at %s", p.name, rank, socket), Path: path, Args: args,
		Env: append(env, "DSM_SOCKET="+socket, "DSM_RANK="+asked, "DSM_SIZE="+strconv.Itoa(c.ranks)),
	})
}

// Elsewhere is what it takes to run the program where the test binary's environment is not known:
// its path, and the environment variables that it needs, NAME=VALUE.
func (p *Program) Elsewhere(t testing.TB) (path string, env []string) {
	t.Helper()
	return program(t), p.env(Patience)
}

// env is what the program needs in its environment when the test waits for it for so long.
func (p *Program) env(wait time.Duration) []string {
	return []string{envProgram + "=" + p.name, envLimit + "=" + (wait + programGrace).String()}
}

// Job says how to run copies of a program under `dsmd run`.
type Job struct {
	Nodes   int
	Flags   []string // for `dsmd run`
	Env     []string // NAME=VALUE, added to the test's own
	Program *Program
	Args    []string
	Limit   time.Duration // how long Succeed waits; 0: Patience
}

// Run starts a job.
func (j Job) Run(t testing.TB) *Process {
	t.Helper()
	args := slices.Concat([]string{"run", "-n", strconv.Itoa(j.Nodes)}, moreFlags(), j.Flags)
	args = append(append(args, "--", program(t)), j.Args...)
	return Start(t, Command{
		Name: fmt.Sprintf("job %s of %d nodes", j.Program.name, j.Nodes), Path: Dsmd(t), Args: args,
		Env: append(j.Program.env(j.limit()), j.Env...),
	})
}

func (j Job) limit() time.Duration { return cmp.Or(j.Limit, Patience) }

// Succeed runs a job to its end, and fails the test if it failed.
func (j Job) Succeed(t testing.TB) *Process {
	t.Helper()
	p := j.Run(t)
	p.succeedWithin(t, j.limit())
	return p
}
