package dsm

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/runstats"
)

// silence has a daemon answer no call, from the one that it returns on, as one that is stopped.
func (f *fake) silence() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = func(attach.Call) (attach.Reply, bool) { return attach.Reply{}, true }
}

// closes calls Close, which must end.
func closes(t *testing.T, c *Cluster) {
	t.Helper()
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Errorf("Close: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("Close does not end")
	}
}

// TestCloseBesideStoppedDaemon: a rank whose daemon is stopped ends, also if it has to ask the
// daemon for its account.
func TestCloseBesideStoppedDaemon(t *testing.T) {
	defer func(before time.Duration) { closePatience = before }(closePatience)
	closePatience = 100 * time.Millisecond
	for name, reasons := range map[string][]string{
		"no account": nil,
		"stats":      {runstats.EnvStats},
		"trace":      {runstats.EnvTrace},
		"profile":    {runstats.EnvStats, runstats.EnvProfile},
		"all":        {runstats.EnvStats, runstats.EnvTrace, runstats.EnvProfile},
	} {
		t.Run(name, func(t *testing.T) {
			if len(reasons) > 0 {
				accountPipe(t, reasons...)
			}
			f := newFake(t, 1)
			c := f.join()
			f.silence()
			closes(t, c)
		})
	}
}

// TestCloseWhileSomebodySends: a rank ends whose daemon is stopped and takes nothing any more, also
// while another goroutine tells the daemon of memory that it has freed.
func TestCloseWhileSomebodySends(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	s := must(Alloc[byte](t.Context(), c, "s", 1))
	goOn := make(chan struct{})
	defer close(goOn)
	f.mu.Lock()
	f.answer = func(attach.Call) (attach.Reply, bool) { <-goOn; return attach.Reply{}, true }
	f.mu.Unlock()
	call := attach.AppendCall(nil, &attach.Call{Op: attach.OpStats, Ticket: 1 << 40})
	var full error
	err := c.conn.Socket(func(fd int) {
		for full == nil {
			_, full = unix.SendmsgN(fd, call, nil, nil, unix.MSG_DONTWAIT)
		}
	})
	if err != nil || full != unix.EAGAIN {
		t.Fatal(err, full)
	}
	go Free(context.Background(), c, s)
	for len(c.allocating) == 0 {
		runtime.Gosched()
	}
	closes(t, c)
}

// TestStatsOfStoppedDaemon: who asks for no longer than a context lasts does not wait longer,
// whatever the daemon does.
func TestStatsOfStoppedDaemon(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	f.silence()
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() {
		_, err := c.Stats(ctx)
		asked <- err
	}()
	f.awaitCalls(attach.OpStats, 1)
	cancel()
	select {
	case err := <-asked:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Stats: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("Stats does not end")
	}
	closes(t, c)
}

// watchedTrap is a trap that says when it is closed.
type watchedTrap struct {
	trap
	closed chan struct{}
}

func (w watchedTrap) close() error {
	close(w.closed)
	return w.trap.close()
}

// TestCloseOfTrapWaitsForNobody: Close gives up the trap before anything for which it may have to
// wait, such as a launcher that is stopped and does not read what hangs. In between nobody would
// give pages back.
func TestCloseOfTrapWaitsForNobody(t *testing.T) {
	c := newFake(t, 1).join()
	w := watchedTrap{c.trap, make(chan struct{})}
	c.trap = w
	goOn := make(chan struct{})
	c.attendant.running.Go(func() { <-goOn })
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	select {
	case <-w.closed:
	case <-time.After(patience):
		t.Error("the trap waits for the launcher")
	}
	close(goOn)
	if err := <-closed; err != nil {
		t.Errorf("Close: %v", err)
	}
}
