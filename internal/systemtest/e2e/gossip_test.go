package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// joined starts a cluster of daemons that find each other.
func joined(t *testing.T, nodes int, flags ...string) (testcluster.LAN, *testcluster.Cluster) {
	t.Helper()
	uffdtest.Require(t)
	l := testcluster.NewLAN(nodes)
	return l, l.Serve(t, flags...)
}

// TestJoinedCluster: three daemons find each other and programs on them compute. Everybody who does
// not belong to them is refused, and is told why what they log. Then one is killed: the programs
// and daemons of the others end, and say which it was.
func TestJoinedCluster(t *testing.T) {
	t.Parallel()
	key := gossipKey(t)
	l, c := joined(t, 3, "--gossip-key-file", key)
	var programs []*testcluster.Process
	for i, d := range c.Daemons {
		if want := fmt.Sprintf(`"id": %d`, i); !strings.Contains(d.Errors(), want) {
			// ids are in the order of addresses
			t.Errorf("the daemon at place %d has not %s", i, want)
		}
		programs = append(programs, join(t, c, i, i, 3))
	}
	for _, p := range programs {
		p.Do(t, "ok", "alloc sum 1")
	}
	for i, p := range programs {
		p.Do(t, fmt.Sprint(i+1), "add sum 5 1")
	}
	for _, test := range []struct {
		name, here, there string
		flags             []string
	}{
		{"one too many", "is complete with 3 nodes, and this node at", "is complete with 3 nodes, of which it is none", nil},
		{"cluster", `it belongs to cluster "lan", this node to "other"`, `it belongs to cluster "other", this node to "lan"`, []string{"--cluster", "other"}},
		{"region", "its region is 64GiB, this node's is 1GiB", "its region is 1GiB, this node's is 64GiB", []string{"--region", "1GiB"}},
		{"nodes", "its number of nodes is 3, this node's is 4", "its number of nodes is 4, this node's is 3", []string{"--nodes", "4"}},
		{"key", "the gossip key differs or is missing", "the gossip key differs or is missing", []string{"--gossip-key-file", gossipKey(t)}},
		{"no key", "the gossip key differs or is missing", "the gossip key differs or is missing", []string{"--gossip-key-file", ""}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := l.Daemon(t, 9, append([]string{"--gossip-key-file", key}, test.flags...)...)
			if status := s.Wait(t); status != 1 || !strings.Contains(s.Errors(), "refused by "+l.IP(0)+":7401") || !strings.Contains(s.Errors(), test.here) {
				t.Errorf("the stranger ended with status %d and does not say %q", status, test.here)
			}
			c.Daemons[0].AwaitLog(t, test.there)
		})
	}
	programs[2].Do(t, "4", "add sum 5 1")

	c.Daemons[1].Kill(t)
	sayProgram, sayDaemon := map[int]string{}, map[int]string{}
	for _, i := range []int{0, 2} {
		if status := programs[i].Wait(t); status != dsm.ExitLost {
			t.Errorf("the program on node %d ended with status %d", i, status)
		}
		if status := c.Daemons[i].Wait(t); status != 1 {
			t.Errorf("the daemon of node %d ended with status %d", i, status)
		}
		sayProgram[i], sayDaemon[i] = programs[i].Errors(), lastLine(c.Daemons[i])
	}
	nameCause(t, sayProgram, "node 1 ")
	nameCause(t, sayDaemon, "node 1 ")
}

// TestListedNodesThatDiffer: nodes that are listed and have different settings do not start
// together, and both say what differs. The one that has called ends.
func TestListedNodesThatDiffer(t *testing.T) {
	t.Parallel()
	l := testcluster.NewLAN(2)
	peers := fmt.Sprintf("%s:7400,%s:7400", l.IP(0), l.IP(1))
	var daemons []*testcluster.Process
	for i, region := range []string{"64GiB", "1GiB"} {
		daemons = append(daemons, testcluster.Start(t, testcluster.Command{Name: "dsmd serve", Path: testcluster.Dsmd(t), Args: []string{
			"serve", "--peers", peers, "--id", fmt.Sprint(i), "--listen", l.IP(i) + ":7400", "--socket", l.Socket(i), "--region", region,
		}}))
	}
	differ := `it belongs to cluster "default (region %s, 2 ranks, transport auto, survive false)", this node to "default (region %s, `
	daemons[0].AwaitLog(t, fmt.Sprintf(differ, "1GiB", "64GiB"))
	if status := daemons[1].Wait(t); status != 1 || !strings.Contains(daemons[1].Errors(), fmt.Sprintf(differ, "64GiB", "1GiB")) {
		t.Errorf("the node that calls ends with status %d", status)
	}
	daemons[0].Signal(syscall.SIGTERM)
}

// nameCause checks that what nodes have ended with names the cause, also of one that has seen
// another's end first.
func nameCause(t *testing.T, says map[int]string, cause string) {
	t.Helper()
	for node, text := range says {
		if !strings.Contains(text, cause) {
			t.Errorf("node %d has ended, and does not name the cause, %q: %q", node, cause, text)
		}
	}
}

// lastLine is what a daemon ended with.
func lastLine(p *testcluster.Process) string {
	lines := strings.Split(strings.TrimSpace(p.Errors()), "\n")
	return lines[len(lines)-1]
}

// gossipKey makes a file with a new key.
func gossipKey(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gossip.key")
	p := testcluster.Start(t, testcluster.Command{Name: "dsmd cert", Path: testcluster.Dsmd(t), Args: []string{"cert", "gossip-key", "--out", file}})
	p.Succeed(t)
	return file
}

// TestSilentNode: a daemon that is stopped does not close its connections. Gossip finds it dead all
// the same, and the others end.
func TestSilentNode(t *testing.T) {
	long(t)
	t.Parallel()
	l, c := joined(t, 3, "--dead-after", testcluster.DeadAfter.String())
	p := join(t, c, 0, 0, 3)
	p.Do(t, "ok", "alloc a 1")
	c.Daemons[2].Stop(t)
	defer c.Daemons[2].Signal(syscall.SIGKILL)
	want := fmt.Sprintf("node 2 at %s:7400 is dead: it has answered nobody for %v", l.IP(2), testcluster.DeadAfter)
	says := map[int]string{}
	for _, i := range []int{0, 1} { // with a program, and without
		if status := c.Daemons[i].Wait(t); status != 1 {
			t.Errorf("the daemon of node %d ended with status %d", i, status)
		}
		says[i] = lastLine(c.Daemons[i])
	}
	nameCause(t, says, want)
	if status := p.Wait(t); status != dsm.ExitLost {
		t.Errorf("the program ended with status %d", status)
	}
}

// orderlyLeave tells the daemon of node 1 to end, which has the others end, and reports whether one
// of them has logged the word that it was told. It may not have been: a node that ends tells those
// that it has met by gossip, and does not wait for them for long. Then the others see that it has
// ended because it was told to.
func orderlyLeave(t *testing.T, c *testcluster.Cluster, word string) (told bool) {
	t.Helper()
	c.Daemons[1].Signal(syscall.SIGTERM)
	if status := c.Daemons[1].Wait(t); status != 0 {
		t.Errorf("the one that was told to end ended with status %d", status)
	}
	for _, i := range []int{0, 2} {
		status, says := c.Daemons[i].Wait(t), c.Daemons[i].Errors()
		heard := strings.Contains(says, word)
		if status != 1 || !heard && !strings.Contains(says, "node 1: it has ended: it was told to") {
			t.Errorf("the daemon of node %d ended with status %d, or does not say that node 1 has left", i, status)
		}
		told = told || heard
	}
	return told
}

// TestOrderlyLeave: a daemon that is told to end ends with status 0. The others say that it has
// left, and end too, but not in order: they cannot go on. When all are told to end, all do so with
// status 0.
func TestOrderlyLeave(t *testing.T) {
	t.Parallel()
	l, c := joined(t, 3)
	told := false
	for range 5 {
		if told = orderlyLeave(t, c, fmt.Sprintf(`"data": "%s:7400", "left": true, "why": ""`, l.IP(1))); told {
			break
		}
		c = l.Serve(t)
	}
	if !told {
		t.Error("nobody was told that the one that ended was told to")
	}
	// Whoever is started again finds the others anew, and the ids are the same.
	c = l.Serve(t)
	for i, d := range c.Daemons {
		if want := fmt.Sprintf(`"id": %d`, i); !strings.Contains(d.Errors(), want) {
			t.Errorf("the daemon at place %d has not %s the second time", i, want)
		}
	}
	for _, d := range c.Daemons {
		d.Signal(syscall.SIGTERM)
	}
	for i, d := range c.Daemons {
		if status := d.Wait(t); status != 0 {
			t.Errorf("all were told to end, and the daemon of node %d ended with status %d", i, status)
		}
	}
}

// TestUnrelatedPrograms: programs that know nothing of each other attach to a running cluster one
// after another, as jobs of their own. They share what is called the same everywhere, with its
// contents if it is to be kept, and nothing else.
func TestUnrelatedPrograms(t *testing.T) {
	t.Parallel()
	_, c := joined(t, 2)
	enter := func(node int, job string, size int) *testcluster.Process {
		p := c.OfJob(t, console, node, job, size)
		rank := 0
		if size > 1 {
			rank = node
		}
		p.Expect(t, fmt.Sprintf("rank %d of %d", rank, size))
		return p
	}
	writer := enter(1, "writer", 1)
	writer.Do(t, "ok", "keep /prices 20")
	writer.Do(t, "ok", "alloc own 20")
	writer.Do(t, "ok", "fill /prices 500")
	writer.Do(t, "ok", "fill own 900")
	writer.Do(t, "ok", "barrier all")
	writer.Succeed(t) // nobody is attached now

	reader, team := enter(0, "reader", 1), []*testcluster.Process{enter(0, "team", 2), enter(1, "team", 2)}
	reader.Do(t, "ok", "alloc /prices 20")
	reader.Do(t, "ok", "check /prices 500")
	reader.Do(t, "ok", "alloc own 20")
	reader.Do(t, "ok", "zero own")
	if answer := team[0].Ask(t, "alloc /prices 21"); !strings.Contains(answer, "ranks disagree") || !strings.Contains(answer, "elements of uint64") {
		t.Errorf("another size under the same name: %q", answer)
	}
	reader.Do(t, "ok", "lock /door")
	team[0].Do(t, "too late", "lock /door 20")
	reader.Do(t, "ok", "lock door")
	team[0].Do(t, "ok", "lock door")
	team[0].Say(t, "barrier all")
	reader.Do(t, "ok", "barrier all") // it is alone in its job
	team[1].Do(t, "ok", "barrier all")
	team[0].Expect(t, "ok")

	team[1].Do(t, "ok", "discard /prices") // it ends with its last user
	reader.Do(t, "ok", "check /prices 500")
	reader.Do(t, "ok", "free /prices")
	if answer := team[1].Ask(t, "discard /prices"); !strings.Contains(answer, "unknown name") {
		t.Errorf("discarding what is gone: %q", answer)
	}
	team[1].Do(t, "ok", "alloc /prices 3")
	team[1].Do(t, "ok", "zero /prices")
	for _, p := range append(team, reader) {
		p.Succeed(t)
	}
}

// TestStrangersAtTheDoor: beyond this machine a daemon listens only with certificates and keys, or
// if it is told that it need not.
func TestStrangersAtTheDoor(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, want string
		flags      []string
	}{
		{"data", "shared memory would be served at", []string{"--listen", "0.0.0.0:0"}},
		{"data of a joined node", "shared memory would be served at", []string{"--listen", "0.0.0.0:0", "--nodes", "2", "--join", "127.0.0.1"}},
		{"gossip", "gossip would be served at", []string{"--listen", "127.0.0.1:0", "--gossip", "0.0.0.0:0", "--nodes", "2", "--join", "127.0.0.1"}},
		{"metrics", "metrics would be served at", []string{"--metrics", "0.0.0.0:0"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := testcluster.Start(t, testcluster.Command{Name: "the daemon", Path: testcluster.Dsmd(t),
				Args: append([]string{"serve", "--socket", fmt.Sprintf("@dsmd-door-%d", os.Getpid())}, test.flags...),
				Env:  []string{testcluster.SecretEnv + "="}})
			if status := d.Wait(t); status != 1 || !strings.Contains(d.Errors(), test.want) || !strings.Contains(d.Errors(), "--insecure") {
				t.Errorf("status %d, want an error with %q", status, test.want)
			}
		})
	}
	// Not at the usual port: others may have that at addresses of their own, and then it is not
	// free at all addresses.
	uffdtest.Require(t)
	serves := func() bool {
		free, err := net.Listen("tcp", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(free.Addr().String())
		free.Close()
		d := testcluster.NewLAN(1).Daemon(t, 0, "--listen", "0.0.0.0:0", "--gossip", "0.0.0.0:"+port, "--join", "127.0.0.1:"+port, "--insecure")
		testcluster.Eventually(t, "the daemon serves, or not", func() bool { return !d.Running() || strings.Contains(d.Errors(), " serving ") })
		d.Signal(syscall.SIGTERM)
		d.Wait(t)
		return strings.Contains(d.Errors(), " serving ")
	}
	if !serves() && !serves() { // somebody else may have taken the port
		t.Error("a daemon that is told that it need not be secure does not serve")
	}
}

// TestAuthenticatedCluster: nodes with certificates are the nodes that these name, and encrypt what
// they say. One whose certificate is another cluster's or another node's does not start, and one
// without is refused.
func TestAuthenticatedCluster(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	dir := t.TempDir()
	cert := func(args ...string) {
		testcluster.Start(t, testcluster.Command{Name: "dsmd cert", Path: testcluster.Dsmd(t), Args: append([]string{"cert"}, args...)}).Succeed(t)
	}
	files := func(authority string, id int, more ...string) []string {
		name := filepath.Join(dir, authority, fmt.Sprintf("node-%d", id))
		return append([]string{"--tls-ca", filepath.Join(dir, authority, "ca.pem"), "--tls-cert", name + ".pem", "--tls-key", name + "-key.pem"}, more...)
	}
	for authority, cluster := range map[string]string{"own": "lan", "foreign": "red"} {
		at := filepath.Join(dir, authority)
		cert("ca", "--out", at, "--cluster", cluster)
		for _, id := range []string{"0", "1", "3"} {
			cert("node", "--ca", at, "--out", at, "--id", id)
		}
	}

	l := testcluster.NewLAN(2)
	// the ids are not in the order of addresses
	c := l.Form(t, func(place int) []string { return files("own", 1-place) })
	for place, d := range c.Daemons {
		if want := fmt.Sprintf(`"id": %d`, 1-place); !strings.Contains(d.Errors(), want) {
			t.Errorf("the daemon at place %d has not %s of its certificate", place, want)
		}
	}
	a, b := join(t, c, 0, 0, 2), join(t, c, 1, 1, 2)
	a.Do(t, "ok", "alloc x 3")
	b.Do(t, "ok", "alloc x 3")
	a.Do(t, "ok", "fill x 7")
	b.Do(t, "ok", "check x 7")
	a.Succeed(t)
	b.Succeed(t)

	for want, flags := range map[string][]string{
		`that of node 0 of cluster "red", not of node 0 of cluster "lan"`: files("foreign", 0),
		`that of node 0 of cluster "lan", not of node 1 of`:               files("own", 0, "--id", "1"),
		"is that of node 3, and ids of 2 nodes are 0 to 1":                files("own", 3),
		"its TLS is on, this node's is off":                               nil,
	} {
		d := l.Daemon(t, 8, flags...)
		if status := d.Wait(t); status != 1 || !strings.Contains(d.Errors(), want) {
			t.Errorf("status %d, want an error with %q", status, want)
		}
	}
}
