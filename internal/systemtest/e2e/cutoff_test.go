package e2e

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
)

// revenant stores to a word without end. Told to "go", it loses its connection to the daemon, and
// goes on all the same.
var revenant = testcluster.Define("revenant", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx, dsm.WithLossGrace(time.Hour))
	if err != nil {
		return err
	}
	words, err := dsm.Alloc[uint64](s.Ctx, c, "data", 3*c.PageBytes()/8)
	if err != nil {
		return err
	}
	var stores atomic.Uint64
	go func() {
		for {
			atomic.AddUint64(&words[0], 2)
			stores.Add(1)
		}
	}()
	for stores.Load() < 1000 {
		time.Sleep(time.Millisecond)
	}
	s.Say("stores")
	for {
		if _, err := s.Next(); errors.Is(err, io.EOF) {
			os.Exit(0) // its thread waits for ever
		}
		if err := hangUp(os.Getenv("DSM_SOCKET")); err != nil {
			return err
		}
		s.Say("gone")
	}
})

// hangUp shuts down this process's connection to the daemon at socket.
func hangUp(socket string) error {
	for fd := 3; fd < 1024; fd++ {
		peer, err := unix.Getpeername(fd)
		if at, is := peer.(*unix.SockaddrUnix); err == nil && is && at.Name == socket {
			return unix.Shutdown(fd, unix.SHUT_RDWR)
		}
	}
	return fmt.Errorf("no connection to %s", socket)
}

// TestProgramCutOffAlive: a program loses its connection to the daemon while it stores, and lives
// on. Its stores end there: two programs that have done nothing wrong, one beside it and one on
// another node, read the same from one word.
func TestProgramCutOffAlive(t *testing.T) {
	t.Parallel()
	withEachTrap(t, func(t *testing.T, trap string) {
		c := serve(t, 2, 3, "--trap", trap)
		beside, far := join(t, c, 0, 1, 3), join(t, c, 1, 2, 3)
		lost := c.Program(t, revenant, 0, 0)
		lost.Expect(t, "stores")
		for _, p := range []*testcluster.Process{beside, far} {
			p.Do(t, "ok", "alloc data 3")
		}
		beside.Ask(t, "get data 0") // mapped there, too
		lost.Do(t, "gone", "go")
		c.Daemons[0].AwaitLog(t, "program died")
		// with sigsegv, the program gives its access up by itself; that is over when anybody
		// else has got the page
		far.Ask(t, "get data 0")
		for round := range 20 {
			value := strconv.Itoa(5 + round)
			beside.Do(t, "ok", "put data 0 %s", value)
			for range 3 {
				far.Do(t, value, "get data 0")
				beside.Do(t, value, "get data 0")
			}
		}
		if !lost.Running() {
			t.Error("the program that was cut off has ended, and was to live for an hour")
		}
		lost.Kill(t)
		again := join(t, c, 0, 0, 3)
		again.Do(t, "ok", "alloc data 3")
		again.Do(t, "24", "get data 0")
		for _, p := range []*testcluster.Process{beside, far, again} {
			p.Succeed(t)
		}
	})
}
