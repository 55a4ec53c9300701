package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/internal/systemtest/netns"
	"dsmd/internal/systemtest/testcluster"
)

// street is three machines with a daemon each, of a cluster that survives losses.
type street struct {
	net     *netns.Network
	daemons []*testcluster.Process
}

const streetSocket = "/run/dsmd.sock"

// openStreet starts the machines and the daemons, which get the flags, and take each other for dead
// after that time.
func openStreet(t *testing.T, deadAfter time.Duration, flags ...string) *street {
	t.Helper()
	once(t)
	testcluster.Dsmd(t) // before the machines, which then have it
	s := &street{net: netns.Start(t, "ann", "bob", "eve")}
	for place := range s.net.Machines {
		s.daemons = append(s.daemons, s.daemon(t, place, append(flags, "--dead-after", deadAfter.String())...))
	}
	for _, d := range s.daemons {
		d.AwaitLog(t, "serving")
	}
	return s
}

// daemon starts the daemon of a machine.
func (s *street) daemon(t *testing.T, place int, flags ...string) *testcluster.Process {
	t.Helper()
	m := s.net.Machines[place]
	line := m.Line(testcluster.Dsmd(t), append([]string{"serve", "--cluster", "street", "--socket", streetSocket, "--insecure", "--survive",
		"--id", fmt.Sprint(place), "--log-level", "debug"}, flags...)...)
	return testcluster.Start(t, testcluster.Command{Name: "the daemon of " + m.Name, Path: line[0], Args: line[1:]})
}

// program starts a console on a machine, waits until it has joined, and lets it have memory.
func (s *street) program(t *testing.T, place int) *testcluster.Process {
	t.Helper()
	p := testcluster.Start(t, s.command(t, console, place))
	p.Expect(t, fmt.Sprintf("rank %d of 3", place))
	p.Do(t, "ok", "alloc data 100")
	return p
}

// command runs a program on a machine.
func (s *street) command(t *testing.T, program *testcluster.Program, place int, args ...string) testcluster.Command {
	t.Helper()
	path, env := program.Elsewhere(t)
	m := s.net.Machines[place]
	line := m.Line("env", slices.Concat(env, []string{"DSM_SOCKET=" + streetSocket, fmt.Sprintf("DSM_RANK=%d", place), "DSM_SIZE=3", path}, args)...)
	return testcluster.Command{Name: "the program on " + m.Name, Path: line[0], Args: line[1:]}
}

// TestHealedInTime: a machine is cut off for less than it takes to be lost. Whoever needs it waits,
// and everything goes on, its own program too.
func TestHealedInTime(t *testing.T) {
	long(t)
	t.Parallel()
	// much longer than it takes to pull a cable and plug it in again, on a machine that is busy
	// with other things
	deadAfter := max(6*time.Second, testcluster.DeadAfter)
	s := openStreet(t, deadAfter, "--peers", "ann:7400,bob:7400,eve:7400", "--no-quorum", "end", "--return")
	ann, eve := s.program(t, 0), s.program(t, 2)
	ann.Do(t, "ok", "fill data 1000")
	eve.Do(t, "ok", "check data 1000")
	s.net.Disconnect(t, s.net.Machines[2])
	ann.Say(t, "fill data 2000") // it takes eve's copies
	time.Sleep(deadAfter / 6)
	s.net.Connect(t, s.net.Machines[2])
	ann.Expect(t, "ok")
	eve.Do(t, "ok", "check data 2000")
	for i, d := range s.daemons {
		if said := d.Errors(); !d.Running() || strings.Contains(said, "recovery begins") || strings.Contains(said, "is lost") {
			t.Errorf("the daemon of %s has lost somebody", s.net.Machines[i].Name)
		}
	}
	eve.Succeed(t)
	ann.Succeed(t)
}

// TestCutOffReturns: a machine is cut off for so long that the others go on without it. Its program
// ends, and is told why. When the machine can be reached again its daemon comes back by itself, and
// knows what the others did meanwhile.
func TestCutOffReturns(t *testing.T) {
	long(t)
	t.Parallel()
	s := openStreet(t, testcluster.DeadAfter, "--peers", "ann:7400,bob:7400,eve:7400", "--no-quorum", "end", "--return")
	ann, eve := s.program(t, 0), s.program(t, 2)
	ann.Do(t, "ok", "fill data 1000")
	eve.Do(t, "ok", "check data 1000")

	s.net.Disconnect(t, s.net.Machines[2])
	ann.Say(t, "fill data 1500") // it takes eve's copies, and so waits until eve is lost
	wantEnd(t, eve, "too few nodes are left to go on")
	for _, d := range s.daemons[:2] {
		d.AwaitLog(t, `"epoch": 1, "members": "0,1"`)
	}
	ann.Expect(t, "ok")
	ann.Do(t, "ok", "fill data 2000")
	s.daemons[2].AwaitLog(t, "this daemon comes back")
	s.net.Connect(t, s.net.Machines[2])
	visits(t, 2000, func() *testcluster.Process {
		return testcluster.Start(t, s.command(t, visitor, 2, "2000"))
	})
	ann.Do(t, "ok", "fill data 3000")
	ann.Succeed(t)
	for i, d := range s.daemons {
		if !d.Running() {
			t.Errorf("the daemon of %s has ended", s.net.Machines[i].Name)
		}
	}
}

// TestStoppedReturns: the daemon of a cluster whose nodes have found each other is stopped for so
// long that the others go on without it. When it goes on it finds that out, ends its program, and
// comes back by itself.
func TestStoppedReturns(t *testing.T) {
	long(t)
	t.Parallel()
	_, c := joined(t, 3, "--dead-after", testcluster.DeadAfter.String(), "--survive", "--no-quorum", "end", "--return")
	stays, left := join(t, c, 0, 0, 3), join(t, c, 2, 2, 3)
	for _, p := range []*testcluster.Process{stays, left} {
		p.Do(t, "ok", "alloc data 100")
	}
	stays.Do(t, "ok", "fill data 1000")
	c.Daemons[2].Stop(t)
	for _, d := range c.Daemons[:2] {
		d.AwaitLog(t, `"epoch": 1, "members": "0,1"`)
	}
	stays.Do(t, "ok", "fill data 2000")
	c.Daemons[2].Signal(syscall.SIGCONT)
	// whichever it finds out first
	wantEnd(t, left, "too few nodes are left to go on", "go on without this one")
	c.Daemons[2].AwaitLog(t, "this daemon comes back")
	visits(t, 2000, func() *testcluster.Process { return c.Program(t, visitor, 2, 2, "2000") })
	stays.Do(t, "ok", "fill data 3000")
	stays.Succeed(t)
	for i, d := range c.Daemons {
		if !d.Running() {
			t.Errorf("the daemon of node %d has ended", i)
		}
	}
}

// visitor joins, checks the values of the memory that consoles share, as console does, and leaves.
var visitor = testcluster.Define("visitor", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	desk := desk{ctx: s.Ctx, c: c, memory: map[string][]uint64{}}
	for _, line := range []string{"alloc data 100", "check data " + s.Args[0]} {
		if said := desk.obey(strings.Fields(line)); said != "ok" {
			return fmt.Errorf("%s: %s", line, said)
		}
	}
	return c.Close()
})

// visits starts visitors until one has found the values. One that comes too early, or whose daemon
// is on its way out still, fails.
func visits(t *testing.T, value int, start func() *testcluster.Process) {
	t.Helper()
	testcluster.Eventually(t, fmt.Sprintf("a visitor has found %d", value), func() bool { return start().Wait(t) == 0 })
}

// wantEnd waits until a program has lost its cluster, and checks that it says why, in one of these
// ways.
func wantEnd(t *testing.T, p *testcluster.Process, whys ...string) {
	t.Helper()
	status := p.Wait(t)
	if says := func(why string) bool { return strings.Contains(p.Errors(), why) }; status != dsm.ExitLost || !slices.ContainsFunc(whys, says) {
		t.Errorf("the program ended with status %d, want %d, and says none of %q:\n%s", status, dsm.ExitLost, whys, p.Errors())
	}
}

// TestLeftBehindSaysHow: a daemon that may not go on, and does not come back by itself, says what
// brings it back.
func TestLeftBehindSaysHow(t *testing.T) {
	t.Parallel()
	c := serve(t, 2, 2, "--survive", "--no-quorum", "end")
	p := join(t, c, 1, 1, 2)
	p.Do(t, "ok", "alloc data 1") // so that it ends
	c.Daemons[0].Kill(t)
	if status := c.Daemons[1].Wait(t); status != 1 || !strings.Contains(lastLine(c.Daemons[1]), "too few nodes are left") || !strings.HasSuffix(lastLine(c.Daemons[1]), "--no-quorum end --rejoin") {
		t.Errorf("the daemon ended with status %d and %q", status, lastLine(c.Daemons[1]))
	}
	p.Wait(t)
}
