package dsm

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/controlpage"
	"dsmd/internal/spin"

	"golang.org/x/sys/unix"
)

// pages is a control page as the daemon and as the program have it.
func pages(t *testing.T) (daemon, program *controlpage.Page) {
	t.Helper()
	daemon, err := controlpage.Create()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { daemon.Close() })
	fd, err := unix.Dup(daemon.FD())
	if err != nil {
		t.Fatal(err)
	}
	if program, err = controlpage.Map(fd); err != nil {
		t.Fatal(err)
	}
	return daemon, program
}

// putWhenWatched puts a frame on the page as soon as the program looks there. It has ended before
// the page is unmapped: another test's page may come to lie in its place.
func putWhenWatched(t *testing.T, daemon *controlpage.Page, frame []byte) (put chan bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	var ended sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		ended.Wait()
	})
	put = make(chan bool, 1)
	ended.Go(func() {
		for ctx.Err() == nil {
			if daemon.Replies().Put(frame) {
				put <- true
				return
			}
		}
		put <- false
	})
	return put
}

// TestLookoutFindsAReply: a reply that comes while the program looks is found. One attempt may be
// over before the daemon is on a core.
func TestLookoutFindsAReply(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // with one, it does not look
	daemon, program := pages(t)
	l := newLookout(program)
	put := putWhenWatched(t, daemon, []byte("reply"))
	for len(put) == 0 {
		frame, found, err := l.forReply()
		if err != nil {
			t.Fatal(err)
		}
		if found && string(frame) != "reply" {
			t.Fatalf("found %q", frame)
		}
		if found {
			break
		}
		// it has learned that this is in vain, or that somebody computes here
		l.budget = spin.ForReply()
	}
	if !<-put {
		t.Error("the program never looked")
	}
	if daemon.Replies().Watched() {
		t.Error("the program looks still")
	}
}

// TestLookoutMindsTheSocket: nobody looks while a frame waits at the socket, or when that is known
// to be in vain.
func TestLookoutMindsTheSocket(t *testing.T) {
	daemon, program := pages(t)
	l := newLookout(program)
	daemon.AddSent()
	put := putWhenWatched(t, daemon, []byte("reply"))
	if _, found, err := l.forReply(); found || err != nil {
		t.Errorf("found a reply although the program should read the socket: %v", err)
	}
	l.slept(time.Second)
	for range 10 {
		l.budget.Slept(time.Second)
	}
	if _, found, err := l.forReply(); found || err != nil {
		t.Errorf("found a reply although none comes so soon: %v", err)
	}
	if len(put) > 0 {
		t.Error("the program has looked nevertheless")
	}
}

// TestRepliesOnThePage: calls are answered whichever way the replies take, and what is not one
// reply is an error.
func TestRepliesOnThePage(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	ctx := within(t)
	m := NewMutex(c, "m")
	for range 100 {
		if err := m.Lock(ctx); err != nil {
			t.Fatal(err)
		}
		if err := m.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
	for what, frame := range map[string][]byte{
		"a call":        attach.AppendCall(nil, &attach.Call{Op: attach.OpStats, Ticket: 1}),
		"half a reply":  attach.AppendReply(nil, &attach.Reply{Ticket: 1})[:20],
		"two replies":   attach.AppendReply(attach.AppendReply(nil, &attach.Reply{Ticket: 1}), &attach.Reply{Ticket: 2}),
		"a wrong reply": append(attach.AppendReply(nil, &attach.Reply{Ticket: 1})[:8], make([]byte, 16)...),
	} {
		if _, err := replyIn(frame, nil); !errors.Is(err, attach.ErrMalformed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestMayOvertake: what must come after what was sent before it is not put on the page.
func TestMayOvertake(t *testing.T) {
	for _, op := range []attach.Op{attach.OpCancel, attach.OpUnpin, attach.OpUnbind} {
		if mayOvertake(op) {
			t.Errorf("%v may come before earlier calls", op)
		}
	}
}
