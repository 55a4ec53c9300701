package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"dsmd/internal/systemtest/netns"
	"dsmd/internal/systemtest/testcluster"
)

// onMachines stands for dsmd in bench: instead of starting daemons it starts the workers on
// machines whose daemons run already.
const onMachines = `#!/bin/bash
while [ "$1" != -- ]; do shift; done
shift
rank=0 workers=()
for pid in %s; do
	nsenter --target $pid --all --root --wd -- env DSM_SOCKET=/run/dsmd.sock DSM_RANK=$rank DSM_SIZE=%d "$@" &
	workers+=($!)
	rank=$((rank + 1))
done
for worker in "${workers[@]}"; do wait "$worker" || exit; done
`

// cluster is daemons on machines, joined by gossip, with TLS and encrypted gossip.
type cluster struct {
	net     *netns.Network
	dsmd    string
	daemons []*testcluster.Process
}

// makeKeys makes the keys of a cluster in the directory that all machines share.
func (c *cluster) makeKeys(t *testing.T) {
	t.Helper()
	script := "cd " + c.net.Shared + " && " + c.dsmd + " cert ca --out authority --cluster suite && " + c.dsmd + " cert gossip-key --out gossip.key"
	for id := range c.net.Machines {
		script += fmt.Sprintf(" && %s cert node --ca authority --out keys --id %d", c.dsmd, id)
	}
	c.net.Machines[0].Run(t, script)
}

// start starts the daemons and waits until the cluster is complete.
func (c *cluster) start(t *testing.T) {
	t.Helper()
	c.daemons = nil
	for id, m := range c.net.Machines {
		keys := filepath.Join(c.net.Shared, "keys")
		line := m.Line(c.dsmd, "serve", "--cluster", "suite", "--nodes", strconv.Itoa(len(c.net.Machines)), "--join", c.net.Machines[0].Name,
			"--socket", "/run/dsmd.sock", "--gossip-key-file", filepath.Join(c.net.Shared, "gossip.key"), "--tls-ca", filepath.Join(keys, "ca.pem"),
			"--tls-cert", fmt.Sprintf("%s/node-%d.pem", keys, id), "--tls-key", fmt.Sprintf("%s/node-%d-key.pem", keys, id))
		c.daemons = append(c.daemons, testcluster.Start(t, testcluster.Command{Name: "the daemon of " + m.Name, Path: "/usr/bin/env", Args: line}))
	}
	for _, d := range c.daemons {
		d.AwaitLog(t, "serving")
	}
}

// stop ends the daemons.
func (c *cluster) stop(t *testing.T) {
	t.Helper()
	for _, m := range c.net.Machines {
		m.Run(t, "pkill -KILL -f ' serve --cluster suite'")
	}
	for _, d := range c.daemons {
		d.Signal(syscall.SIGKILL)
		d.Wait(t)
	}
}

// TestSuiteOnMachines runs all benchmarks at test size on three machines whose daemons have found
// each other by gossip and encrypt everything. The results are verified by bench against the same
// computation in one process.
func TestSuiteOnMachines(t *testing.T) {
	t.Parallel()
	long(t)
	once(t)
	// Built before the machines start, which then have it.
	bench := filepath.Join(testcluster.Dir(t), "bench")
	if out, err := exec.Command("go", "build", "-o", bench, "dsmd/bench").CombinedOutput(); err != nil {
		t.Fatalf("building bench: %v\n%s", err, out)
	}
	c := &cluster{net: netns.Start(t, "ann", "bob", "eve"), dsmd: testcluster.Dsmd(t)}
	c.makeKeys(t)
	var pids []string
	for _, m := range c.net.Machines {
		pids = append(pids, m.Line("")[2])
	}
	dsmd := filepath.Join(c.net.Shared, "dsmd")
	if err := os.WriteFile(dsmd, fmt.Appendf(nil, onMachines, strings.Join(pids, " "), len(pids)), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, kernel := range allKernels(t, bench) {
		t.Run(kernel, func(t *testing.T) {
			// A cluster of its own: what a kernel allocates stays.
			c.start(t)
			defer c.stop(t)
			cmd := exec.Command(bench, "run", kernel, "-n", strconv.Itoa(len(pids)), "--size", "test", "--json", "-", "--dsmd", dsmd, "--timeout", testcluster.Patience.String())
			// where the workers find the driver
			cmd.Env = append(os.Environ(), "TMPDIR="+c.net.Shared)
			out, err := cmd.Output()
			var result struct{ Verified bool }
			if err == nil {
				err = json.Unmarshal(out, &result)
			}
			if err != nil || !result.Verified {
				t.Errorf("%v, verified %t: %s", err, result.Verified, out)
			}
		})
	}
}

// allKernels are the names that bench lists.
func allKernels(t *testing.T, bench string) (names []string) {
	t.Helper()
	out, err := exec.Command(bench, "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(out), "\n") // behind the titles
	for line := range strings.Lines(table) {
		names = append(names, strings.Fields(line)[0])
	}
	if len(names) < 10 {
		t.Fatalf("bench lists only %q", names)
	}
	return names
}
