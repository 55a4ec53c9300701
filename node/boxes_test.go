package node

import (
	"strings"
	"testing"

	"dsmd/internal/attach"
)

// puts puts a frame on the control page as soon as the node looks there, which it does after every
// call.
func (p *prog) puts(frame []byte) {
	p.Helper()
	for !p.page.Calls().Put(frame) {
		p.sync()
	}
}

// boxed makes a call by the control page.
func (p *prog) boxed(c attach.Call) (ticket uint64, answer chan attach.Reply) {
	p.Helper()
	answer = make(chan attach.Reply, 1)
	p.mu.Lock()
	p.ticket++
	c.Ticket = p.ticket
	p.open[c.Ticket] = answer
	p.mu.Unlock()
	p.puts(attach.AppendCall(nil, &c))
	return c.Ticket, answer
}

// TestCallsOnThePage: what a program puts on its control page happens, before what it says
// afterwards by its socket.
func TestCallsOnThePage(t *testing.T) {
	c := start(t, setup{nodes: 1, ranks: 2})
	a, b := c.members[0].join(), c.members[0].join()
	acquire := attach.Call{Op: attach.OpAcquire, Object: lockName, Access: attach.Write}
	_, held := a.boxed(acquire)
	if r := a.answer(held); r.Status != attach.StatusOK {
		t.Fatalf("a lock asked for on the page: %v", r.Status)
	}
	ticket, waiting := b.boxed(acquire)
	b.cancel(ticket)
	if r := b.answer(waiting); r.Status != attach.StatusCanceled {
		t.Fatalf("a call on the page that was canceled by the socket: %v", r.Status)
	}
	_, waiting = b.boxed(acquire)
	a.puts(attach.AppendCall(nil, &attach.Call{Op: attach.OpRelease, Object: lockName, Access: attach.Write}))
	if r := b.answer(waiting); r.Status != attach.StatusOK {
		t.Fatalf("a lock that was given back on the page: %v", r.Status)
	}
	b.release(lockName, attach.Write)
	c.quiet()
}

// TestRepliesOnThePage: a program that looks for its reply on the control page finds it there, and
// not at the socket.
func TestRepliesOnThePage(t *testing.T) {
	c := start(t, setup{nodes: 1})
	p := c.members[0].join()
	replies := p.page.Replies()
	replies.Watch()
	sent := p.page.Sent()
	write(p, p.conn, attach.AppendCall(nil, &attach.Call{Op: attach.OpAcquire, Ticket: 7, Object: lockName, Access: attach.Write}))
	eventually(t, "the reply lies on the page", replies.Full)
	frame, _, err := replies.Take(nil)
	if err != nil {
		t.Fatal(err)
	}
	f, _, _, err := attach.Next(frame)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := attach.DecodeReply(f.Body); err != nil || r.Ticket != 7 || r.Status != attach.StatusOK {
		t.Errorf("on the page lies %+v, %v", r, err)
	}
	if p.page.Sent() != sent {
		t.Error("the node counts a frame at the socket")
	}
	if p.sync(); p.page.Sent() != sent+1 {
		t.Errorf("the node counts %d frames at the socket after another reply, want %d", p.page.Sent(), sent+1)
	}
	p.release(lockName, attach.Write)
	c.quiet()
}

// TestHostileBox: a program that puts anything but one call on its page is cut off, and the one
// beside it goes on.
func TestHostileBox(t *testing.T) {
	acquire := attach.AppendCall(nil, &attach.Call{Op: attach.OpAcquire, Ticket: 1, Object: lockName, Access: attach.Write})
	c := start(t, setup{nodes: 1, ranks: 2})
	good := c.members[0].join()
	for what, frame := range map[string][]byte{
		"nothing":        nil,
		"half a call":    acquire[:20],
		"a call and one": append(acquire[:len(acquire):len(acquire)], 1),
		"Bye":            attach.AppendBye(nil),
		"no frame":       {1, 2, 3, 4, 5, 6, 7, 8, 9},
	} {
		t.Run(what, func(t *testing.T) {
			bad := c.members[0].join()
			bad.puts(frame)
			<-bad.ended
			if !strings.HasPrefix(bad.lost, "the daemon has cut this program off: ") {
				t.Errorf("the program is told %q", bad.lost)
			}
			good.sync()
		})
	}
	c.quiet()
}
