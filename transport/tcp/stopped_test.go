package tcp

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stoppedEnv makes TestStoppedNode the process that is stopped.
const stoppedEnv = "TCP_TEST_STOPPED"

// TestStoppedNode: a node that could not run for longer than it has patience with a peer tries once
// more before it gives up the peer, which may have been there all the time.
func TestStoppedNode(t *testing.T) {
	if os.Getenv(stoppedEnv) != "" {
		waitForRenewal(t)
		return
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestStoppedNode$")
	cmd.Env = append(os.Environ(), stoppedEnv+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(stdout)
	line, err := said.ReadString('\n')
	if err == nil && line == "refused\n" {
		for range 2 {
			err = errors.Join(err, cmd.Process.Signal(unix.SIGSTOP))
			time.Sleep(3 * MinGiveUp / 2)
			err = errors.Join(err, cmd.Process.Signal(unix.SIGCONT))
			time.Sleep(MinGiveUp / 4)
		}
	}
	in.Close()
	rest, readErr := io.ReadAll(said)
	if err := errors.Join(err, readErr, cmd.Wait()); err != nil {
		t.Errorf("%v; the nodes said\n%s%s", err, line, rest)
	}
}

// waitForRenewal has two nodes wait until one has a new certificate, while their process is stopped
// now and then, until its standard input ends. They answer each other all the time.
func waitForRenewal(t *testing.T) {
	soon, late := time.Now().Add(30*time.Minute), time.Now().Add(59*time.Minute)
	nodes := renewablePair(t, NewAuthority(t, "authority"), [2]time.Time{late, soon}, MinGiveUp)
	for _, n := range nodes {
		n.ahead.Store(int64(45 * time.Minute))
	}
	nodes[1].t.Break(0)
	pollBoth(t, nodes, func() bool { return nodes[0].refuse.Load() > 0 })
	os.Stdout.WriteString("refused\n")
	var over atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		over.Store(true)
	}()
	down := func() error { return errors.Join(nodes[0].h.down[1], nodes[1].h.down[0]) }
	pollBoth(t, nodes, func() bool { return over.Load() || down() != nil })
	if err := down(); err != nil {
		t.Errorf("a node that was stopped gives up one that answers: %v", err)
	}
}
