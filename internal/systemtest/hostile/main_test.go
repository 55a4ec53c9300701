package hostile

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"dsmd/dsm"
	"dsmd/internal/attach"
	"dsmd/internal/systemtest/testcluster"
)

func TestMain(m *testing.M) { testcluster.Main(m) }

// honest is a program that counts in shared memory under a lock: "add N" counts N times, "sum"
// tells the count.
var honest = testcluster.Define("honest", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	words, err := dsm.Alloc[uint64](s.Ctx, c, "words", 1024) // two pages, whose home is node 0
	if err != nil {
		return err
	}
	s.Say("ready")
	lock := dsm.NewMutex(c, s.Args[0])
	for {
		line, err := s.Next()
		switch {
		case errors.Is(err, io.EOF):
			return c.Close()
		case err != nil:
			return err
		}
		var n int
		if _, err := fmt.Sscanf(line, "add %d", &n); err != nil {
			return err
		}
		for range n {
			if err := lock.Lock(s.Ctx); err != nil {
				return err
			}
			words[0]++
			words[1023] += 2
			if err := lock.Unlock(); err != nil {
				return err
			}
		}
		if err := lock.Lock(s.Ctx); err != nil {
			return err
		}
		s.Say("%d %d", words[0], words[1023])
		if err := lock.Unlock(); err != nil {
			return err
		}
	}
})

// lockAt is the name of a lock whose home is the given node.
func lockAt(node, nodes uint64) string {
	for i := 0; ; i++ {
		// As protocol.Config.Home has it: the hash without its top bit.
		if name := fmt.Sprint("lock", i); attach.NameHash(attach.NameLock, name)<<1>>1%nodes == node {
			return name
		}
	}
}

// cluster is some daemons of a cluster, of which the test itself may be a node.
type cluster struct {
	ranks   int
	daemons []*testcluster.Process
	sockets []string
	peers   []string
	spare   []net.Listener // of the nodes that are no daemons
}

var serial atomic.Int64

// gather starts the first nodes of a cluster, for a job of so many ranks; the other nodes are the
// test's.
func gather(t *testing.T, daemons, nodes, ranks int, flags ...string) *cluster {
	t.Helper()
	c := &cluster{ranks: ranks}
	var data []net.Listener
	for range nodes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, l)
		c.peers = append(c.peers, l.Addr().String())
	}
	for i, l := range data {
		if i >= daemons {
			t.Cleanup(func() { l.Close() })
			c.spare = append(c.spare, l)
			continue
		}
		c.serve(t, i, l, flags...)
	}
	return c
}

// serve starts the daemon of the next node, which inherits its listener.
func (c *cluster) serve(t *testing.T, node int, l net.Listener, flags ...string) {
	t.Helper()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l.Close()
	socket := fmt.Sprintf("@dsmd-hostile-%d-%d", os.Getpid(), serial.Add(1))
	args := []string{"serve", "--id", fmt.Sprint(node), "--peers", strings.Join(c.peers, ","), "--ranks", fmt.Sprint(c.ranks), "--listen-fd", "3", "--socket", socket}
	c.sockets = append(c.sockets, socket)
	c.daemons = append(c.daemons, testcluster.Start(t, testcluster.Command{
		Name: fmt.Sprintf("daemon %d", node), Path: testcluster.Dsmd(t), Args: append(args, flags...), Files: []*os.File{f}}))
}

// socket is where programs of a node attach, once somebody listens there.
func (c *cluster) socket(t *testing.T, node int) string {
	t.Helper()
	name := c.sockets[node]
	testcluster.Eventually(t, "a daemon listens at "+name, func() bool {
		all, err := os.ReadFile("/proc/net/unix")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(all)) {
			const flags, listening, path = 3, "00010000", 7 // fields, as proc(5) has them
			if f := strings.Fields(line); len(f) > path && f[flags] == listening && f[path] == name {
				return true
			}
		}
		return false
	})
	return name
}

// program starts an honest program on a node.
func (c *cluster) program(t *testing.T, node int, lock string) *testcluster.Process {
	t.Helper()
	c.socket(t, node)
	return testcluster.Of(c.ranks, c.sockets...).Program(t, honest, node, node, lock)
}

// alarms are what the log of a daemon must never have.
var alarms = []string{"panic:", "fatal error:", "SIGSEGV", "SIGBUS", "goroutine "}

// sound checks that a daemon has not crashed, whatever else has become of it.
func sound(t *testing.T, p *testcluster.Process) {
	t.Helper()
	for _, a := range alarms {
		if strings.Contains(p.Errors(), a) {
			t.Errorf("the daemon has crashed:\n%s", p.Errors())
			return
		}
	}
}
