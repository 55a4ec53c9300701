package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// TestKilledProgram kills a program that owns pages and holds a lock: its daemon goes on, the pages
// are read from another node, the lock passes on with the news, and the rank can attach again.
func TestKilledProgram(t *testing.T) {
	c := serve(t, 2, 2)
	victim, witness := join(t, c, 0, 0, 2), join(t, c, 1, 1, 2)
	for _, p := range []*testcluster.Process{victim, witness} {
		p.Do(t, "ok", "alloc data 40")
	}
	victim.Do(t, "ok", "fill data 1000")
	victim.Do(t, "ok", "lock door")
	// Locks that the victim takes again by their words: one that it holds when it dies, and one
	// that it does not.
	for _, lock := range []string{"gate", "hatch"} {
		victim.Do(t, "ok", "lock %s", lock)
		victim.Do(t, "ok", "unlock %s", lock)
		victim.Do(t, "ok", "lock %s", lock)
	}
	victim.Do(t, "ok", "unlock hatch")
	witness.Do(t, "too late", "lock door 20")
	witness.Say(t, "lock door") // waits when the holder dies
	victim.Kill(t)

	witness.Expect(t, "owner died: rank 0")
	witness.Do(t, "owner died: rank 0", "lock gate")
	witness.Do(t, "ok", "lock hatch")
	witness.Do(t, "ok", "check data 1000")
	for _, attempt := range []string{"lock", "rlock", "trylock", "tryrlock"} {
		// until somebody repairs
		witness.Do(t, "owner died: rank 0", "%s door", attempt)
	}
	witness.Do(t, "repaired after rank 0", "repair door")
	witness.Do(t, "ok", "unlock door")
	witness.Do(t, "ok", "lock door")
	witness.Do(t, "ok", "unlock door")
	witness.Do(t, "ok", "repair door")
	witness.Do(t, "ok", "unlock door")
	if !c.Daemons[0].Running() {
		t.Fatal("the daemon of the killed program has ended")
	}

	again := join(t, c, 0, 0, 2)
	again.Do(t, "ok", "alloc data 40")
	again.Do(t, "ok", "check data 1000")
	again.Do(t, "ok", "fill data 5")
	witness.Do(t, "ok", "check data 5")
	witness.Say(t, "barrier")
	again.Do(t, "ok", "barrier")
	witness.Expect(t, "ok")
	again.Succeed(t)
	witness.Succeed(t)
}

// hammer writes all over its memory from several goroutines, and says so when it has begun, until
// its input ends. Word 0 of each page counts the additions of all ranks; a word of its own for each
// rank counts this rank's.
var hammer = testcluster.Define("hammer", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	words, err := dsm.Alloc[uint64](s.Ctx, c, "anvil", anvilPages*c.PageBytes()/8)
	if err != nil {
		return err
	}
	var over atomic.Bool
	var begun, all sync.WaitGroup
	begun.Add(hammers)
	for range hammers {
		all.Go(func() {
			for i := 0; !over.Load(); i++ {
				page := words[rand.IntN(anvilPages)*c.PageBytes()/8:]
				atomic.AddUint64(&page[1+c.Rank()], 1)
				atomic.AddUint64(&page[0], 1)
				if i == anvilPages {
					begun.Done()
				}
			}
		})
	}
	begun.Wait()
	s.Say("hammering")
	if err := s.Await("stop"); err != nil {
		return err
	}
	over.Store(true)
	all.Wait()
	s.Say("done")
	if err := s.Await("count"); err != nil {
		return err
	}
	for p := range anvilPages {
		page := words[p*c.PageBytes()/8:]
		var sum uint64
		for rank := range c.Size() {
			sum += page[1+rank]
		}
		// A goroutine that was killed between its two additions has made only one of them.
		if lost, most := sum-page[0], uint64(hammers*deaths); lost > most {
			return fmt.Errorf("page %d: the ranks have added %d, the sum is %d: %d are lost, at most %d can be", p, sum, page[0], lost, most)
		}
	}
	return c.Close()
})

const (
	anvilPages = 8
	hammers    = 3 // goroutines of a program
	deaths     = 3
)

// outlive starts a program at three ranks, from first upwards. They work on, and are returned.
// Meanwhile the same program is started again and again at another rank, and killed as soon as it
// has said that it works. Even ranks are on node 0, and odd ones on node 1.
func outlive(t *testing.T, c *testcluster.Cluster, program *testcluster.Program, works string, first, victims int) (stay []*testcluster.Process) {
	t.Helper()
	for rank := first; rank < first+3; rank++ {
		stay = append(stay, c.Program(t, program, rank%2, rank))
	}
	for _, p := range stay {
		p.Expect(t, works)
	}
	for range deaths {
		victim := c.Program(t, program, victims%2, victims)
		victim.Expect(t, works)
		victim.Kill(t)
	}
	return stay
}

// TestKilledWhileFaulting kills a program again and again while its threads and others fight for
// pages: whatever was under way, the others go on, and nothing that was written is lost.
func TestKilledWhileFaulting(t *testing.T) {
	c := serve(t, 2, 4)
	stay := outlive(t, c, hammer, "hammering", 1, 0)
	for _, p := range stay {
		p.Do(t, "done", "stop")
	}
	for _, p := range stay {
		p.Say(t, "count")
		p.Succeed(t)
	}
}

// TestKilledDaemon kills a daemon: its own programs end with the status and the message that are
// documented, also one whose threads wait for pages, and so do the programs of other nodes, whose
// daemons say which node is lost.
func TestKilledDaemon(t *testing.T) {
	t.Parallel()
	c := serve(t, 2, 3)
	idle, elsewhere := join(t, c, 0, 0, 3), join(t, c, 1, 1, 3)
	busy := c.Program(t, hammer, 0, 2)
	busy.Expect(t, "hammering")
	for _, p := range []*testcluster.Process{idle, elsewhere} {
		p.Do(t, "ok", "alloc data 3")
	}
	elsewhere.Say(t, "barrier") // so that a call waits
	c.Daemons[0].Kill(t)
	for _, p := range []*testcluster.Process{idle, busy, elsewhere} {
		if status := p.Wait(t); status != dsm.ExitLost {
			t.Errorf("a program ended with status %d, want %d", status, dsm.ExitLost)
		}
		if log := p.Errors(); !strings.Contains(log, "dsm: rank ") || !strings.Contains(log, "ends with status 70") {
			t.Errorf("a program that lost its cluster printed %q", log)
		}
	}
	if log := elsewhere.Errors(); !strings.Contains(log, "node 0 is lost") {
		t.Errorf("the program of another node printed %q, which does not say that node 0 is lost", log)
	}
	if status := c.Daemons[1].Wait(t); status != 1 {
		t.Errorf("the other daemon ended with status %d, want 1", status)
	}
}

// TestKilledDaemonIsNamed kills one of several daemons with programs. All others say which it was,
// and so do their programs: also those that hear of another's end before they notice the cause.
func TestKilledDaemonIsNamed(t *testing.T) {
	t.Parallel()
	const nodes = 4
	c := serve(t, nodes, nodes)
	var programs []*testcluster.Process
	for i := range nodes {
		programs = append(programs, join(t, c, i, i, nodes))
	}
	for _, p := range programs {
		p.Do(t, "ok", "alloc data 3")
	}
	c.Daemons[1].Kill(t)
	sayProgram, sayDaemon := map[int]string{}, map[int]string{}
	for _, i := range []int{0, 2, 3} {
		if status := c.Daemons[i].Wait(t); status != 1 {
			t.Errorf("the daemon of node %d ended with status %d", i, status)
		}
		programs[i].Wait(t)
		sayProgram[i], sayDaemon[i] = programs[i].Errors(), lastLine(c.Daemons[i])
	}
	nameCause(t, sayProgram, "node 1 is lost")
	nameCause(t, sayDaemon, "node 1 is lost")
}

// mourner has shared memory and a grace: after the loss its calls return errors.
var mourner = testcluster.Define("mourner", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx, dsm.WithLossGrace(time.Hour))
	if err != nil {
		return err
	}
	if _, err := dsm.Alloc[int](s.Ctx, c, "memory", 1); err != nil {
		return err
	}
	s.Say("joined")
	err = c.Barrier(s.Ctx)
	s.Say("barrier: %v", err)
	_, err = dsm.Alloc[int](s.Ctx, c, "more", 1)
	s.Say("alloc: %v", err)
	s.Say("close: %v", c.Close())
	return nil
})

// TestLossGrace checks that a program which asks for time gets errors instead of its end, and can
// close.
func TestLossGrace(t *testing.T) {
	c := serve(t, 1, 2)
	p := c.Program(t, mourner, 0, 0)
	p.Expect(t, "joined")
	c.Daemons[0].Signal(syscall.SIGKILL)
	for _, call := range []string{"barrier: ", "alloc: ", "close: "} {
		if line := p.Hear(t); !strings.HasPrefix(line, call) || !strings.Contains(line, dsm.ErrLost.Error()) {
			t.Errorf("the program said %q, want %s and why the cluster is lost", line, call)
		}
	}
	p.Succeed(t)
}

// TestDaemonEndsInOrder checks that a daemon which is asked to end says so and ends with status 0,
// and that its programs notice.
func TestDaemonEndsInOrder(t *testing.T) {
	c := serve(t, 1, 1)
	p := join(t, c, 0, 0, 1)
	p.Do(t, "ok", "alloc data 1")
	c.Daemons[0].Signal(syscall.SIGTERM)
	if status := c.Daemons[0].Wait(t); status != 0 {
		t.Errorf("the daemon ended with status %d", status)
	}
	if log := c.Daemons[0].Errors(); strings.Count(log, "this daemon was told to end") != 1 {
		t.Error("it does not say, or not once, that it was told to")
	}
	if status := p.Wait(t); status != dsm.ExitLost {
		t.Errorf("the program ended with status %d, want %s", status, strconv.Itoa(dsm.ExitLost))
	}
}

// TestMissingPeer starts one daemon of two, which says what it waits for. A program can't join yet,
// and the daemon can be ended.
func TestMissingPeer(t *testing.T) {
	uffdtest.Require(t)
	// Nobody listens at port 1 of this machine, for which only root could.
	c := testcluster.Alone(t, "--id", "0", "--peers", "127.0.0.1:0,127.0.0.1:1", "--ranks", "2", "--metrics", "127.0.0.1:0")
	c.Daemons[0].AwaitLog(t, "waits for node 1 at 127.0.0.1:1: it has not connected yet")
	early := c.Program(t, console, 0, 0)
	c.Daemons[0].Signal(syscall.SIGTERM)
	if line := early.Hear(t); !strings.HasPrefix(line, "error: dsm: Join: ") {
		t.Errorf("a program joined half a cluster, and said %q", line)
	}
	if status := c.Daemons[0].Wait(t); status != 0 {
		t.Errorf("the daemon ended with status %d", status)
	}
}

// TestSocketFile checks what happens to a daemon's socket file: only its user can connect, a daemon
// that ends in order removes it, and what a killed one has left does not keep the next one from
// starting.
func TestSocketFile(t *testing.T) {
	uffdtest.Require(t)
	socket := filepath.Join(t.TempDir(), "dsmd.sock")
	start := func() *testcluster.Process {
		return testcluster.Start(t, testcluster.Command{Name: "dsmd serve", Path: testcluster.Dsmd(t), Args: []string{"serve", "--socket", socket}})
	}
	killed := start()
	killed.AwaitLog(t, "serving")
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the socket: %v, %v", info, err)
	}
	second := start()
	if status := second.Wait(t); status != 1 || !strings.Contains(second.Errors(), "another daemon serves there") {
		t.Errorf("a second daemon at the socket ended with %d, %q", status, second.Errors())
	}
	killed.Kill(t)
	if _, err := os.Stat(socket); err != nil {
		t.Fatalf("a killed daemon is said to have left its socket: %v", err)
	}
	next := start()
	next.AwaitLog(t, "serving")
	next.Signal(syscall.SIGTERM)
	if status := next.Wait(t); status != 0 {
		t.Errorf("the daemon ended with status %d", status)
	}
	if _, err := os.Stat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a daemon that ended in order has left its socket: %v", err)
	}
}
