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

// Serve starts a cluster for a job of so many ranks, with flags for `dsmd serve`.
func Serve(t testing.TB, nodes, ranks int, flags ...string) *Cluster {
	t.Helper()
	return ServeVia(t, nodes, ranks, func(_, _ int, address string) string { return address }, flags...)
}

// ServeVia is Serve with something between the daemons: via returns the address at which one node
// is told to reach another, whose own address is given.
func ServeVia(t testing.TB, nodes, ranks int, via func(node, other int, address string) string, flags ...string) *Cluster {
	t.Helper()
	c := &Cluster{ranks: ranks}
	data, addrs := make([]*os.File, nodes), make([]string, nodes)
	for i := range nodes {
		data[i], addrs[i] = listenTCP(t)
		defer data[i].Close()
	}
	c.addrs = addrs
	for i := range nodes {
		seen := slices.Clone(addrs)
		for j := range seen {
			if j != i {
				seen[j] = via(i, j, addrs[j])
			}
		}
		c.sockets = append(c.sockets, fmt.Sprintf("@dsmd-test-%d-%d", os.Getpid(), serial.Add(1)))
		c.Daemons = append(c.Daemons, c.daemon(t, i, data[i], seen, flags))
	}
	return c
}

// daemon starts the daemon of a node, which is told to reach the others at the given addresses.
func (c *Cluster) daemon(t testing.TB, i int, data *os.File, peers, flags []string) *Process {
	t.Helper()
	programs := listenUnix(t, c.sockets[i])
	defer programs.Close()
	args := append([]string{"serve", "--id", strconv.Itoa(i), "--peers", strings.Join(peers, ","), "--ranks", strconv.Itoa(c.ranks),
		"--listen-fd", "3", "--socket-fd", "4", "--log-level", "debug"}, slices.Concat(moreFlags(), flags)...)
	return Start(t, Command{Name: fmt.Sprintf("daemon %d", i), Path: Dsmd(t), Args: args, Files: []*os.File{data, programs}})
}

// Again starts the daemon of a node that has ended once more, at the same addresses.
func (c *Cluster) Again(t testing.TB, node int, flags ...string) {
	t.Helper()
	data := listenAt(t, c.addrs[node])
	defer data.Close()
	c.Daemons[node] = c.daemon(t, node, data, c.addrs, flags)
}

// Drain runs "dsmd drain" for a node, and returns all that it says.
func (c *Cluster) Drain(t testing.TB, node int) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, Dsmd(t), "drain", "--socket", c.sockets[node]).CombinedOutput()
	return string(out), err
}

// Of is a cluster whose daemons the test has started itself, with a job of so many ranks: for the
// programs that attach there.
func Of(ranks int, sockets ...string) *Cluster { return &Cluster{ranks: ranks, sockets: sockets} }

// Alone starts one daemon with the given flags for `dsmd serve`, of a job of two ranks.
func Alone(t testing.TB, flags ...string) *Cluster {
	t.Helper()
	socket := fmt.Sprintf("@dsmd-test-%d-%d", os.Getpid(), serial.Add(1))
	programs := listenUnix(t, socket)
	defer programs.Close()
	args := append([]string{"serve", "--socket-fd", "3", "--log-level", "debug"}, flags...)
	daemon := Start(t, Command{Name: "the daemon", Path: Dsmd(t), Args: args, Files: []*os.File{programs}})
	return &Cluster{Daemons: []*Process{daemon}, sockets: []string{socket}, ranks: 2}
}

// FlagsEnv is the environment variable with flags, separated by spaces, that all daemons get in
// addition: for running all tests with another trap, for example.
const FlagsEnv = "DSMD_TEST_FLAGS"

func moreFlags() []string { return strings.Fields(os.Getenv(FlagsEnv)) }

// listenTCP opens a listening socket on a free port; the daemon inherits it, so nobody else can
// take the port.
func listenTCP(t testing.TB) (*os.File, string) {
	t.Helper()
	f := listenAt(t, "127.0.0.1:0")
	l, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return f, l.Addr().String()
}

func listenAt(t testing.TB, address string) *os.File {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func listenUnix(t testing.TB, socket string) *os.File {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Socket is where programs of a node attach.
func (c *Cluster) Socket(node int) string { return c.sockets[node] }

// Address is the TCP address at which a node's daemon takes connections from its peers.
func (c *Cluster) Address(node int) string { return c.addrs[node] }

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
	return Start(t, Command{
		Name: fmt.Sprintf("%s of rank %d at %s", p.name, rank, socket), Path: program(t), Args: args,
		Env: []string{envProgram + "=" + p.name, envLimit + "=" + (Patience + programGrace).String(), "DSM_SOCKET=" + socket,
			"DSM_RANK=" + asked, "DSM_SIZE=" + strconv.Itoa(c.ranks)},
	})
}

// Elsewhere is what it takes to run the program where the test binary's environment is not known:
// its path, and the environment variables that it needs, NAME=VALUE.
func (p *Program) Elsewhere(t testing.TB) (path string, env []string) {
	t.Helper()
	return program(t), []string{envProgram + "=" + p.name, envLimit + "=" + (Patience + programGrace).String()}
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
		Env: append([]string{envProgram + "=" + j.Program.name, envLimit + "=" + (j.limit() + programGrace).String()}, j.Env...),
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
