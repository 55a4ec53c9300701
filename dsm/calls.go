package dsm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"

	"dsmd/internal/attach"
	"dsmd/internal/controlpage"
)

// calls is the conversation with the daemon after the handshake: open calls, and the goroutine that takes the
// replies. Its errors have no prefix; callers add what they were doing.
type calls struct {
	conn *attach.Conn
	page *controlpage.Page

	mu     sync.Mutex // guards the fields below; nothing is sent, received or called under it
	open   map[uint64]chan attach.Reply
	ticket uint64 // the last one used
	ended  error  // why no call can be made: ErrClosed or an error that wraps ErrLost

	done   chan struct{} // closed when ended is set
	reader chan struct{} // closed when the reading goroutine has ended
}

// newCalls starts reading replies. onLost is called once, by the reading goroutine, when the cluster is lost before end.
func newCalls(conn *attach.Conn, page *controlpage.Page, onLost func(error)) *calls {
	c := &calls{conn: conn, page: page, open: make(map[uint64]chan attach.Reply), done: make(chan struct{}), reader: make(chan struct{})}
	go func() {
		defer close(c.reader)
		defer conn.Discard()
		if err := c.end(c.read()); errors.Is(err, ErrLost) {
			onLost(err)
		}
	}()
	return c
}

// read takes replies until the connection ends, and says why it did.
func (c *calls) read() error {
	for {
		f, err := c.conn.ReadFrame()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
			return fmt.Errorf("%w: the daemon has closed the connection, so it has ended or has been killed; see its log", ErrLost)
		case err != nil:
			return fmt.Errorf("%w: reading from the daemon: %w", ErrLost, err)
		case f.Kind == attach.KindLost:
			reason, err := attach.DecodeLost(f.Body)
			return fmt.Errorf("%w: %s", ErrLost, errors.Join(err, errors.New(reason)))
		case f.Kind != attach.KindReply:
			return fmt.Errorf("%w: the daemon sent an unexpected %v", ErrLost, f.Kind)
		}
		reply, err := attach.DecodeReply(f.Body)
		if err == nil {
			err = c.deliver(reply)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrLost, err)
		}
	}
}

func (c *calls) deliver(r attach.Reply) error {
	c.mu.Lock()
	waiting, ok := c.open[r.Ticket]
	delete(c.open, r.Ticket)
	c.mu.Unlock()
	if !ok {
		return fmt.Errorf("the daemon answered call %d, which nobody made", r.Ticket)
	}
	r.Payload = bytes.Clone(r.Payload)
	waiting <- r // has room for the only reply
	return nil
}

// end makes all calls fail with err from now on, unless they already fail with another error, which it returns.
func (c *calls) end(err error) error {
	// From here on locks are taken by calls, which fail. If that is not possible, Close reports why.
	_ = c.page.Retire()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return c.ended
	}
	c.ended = err
	close(c.done)
	return err
}

// err is why no call can be made, or nil.
func (c *calls) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// begin makes a ticket.
func (c *calls) begin() (uint64, chan attach.Reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return 0, nil, c.ended
	}
	c.ticket++
	waiting := make(chan attach.Reply, 1)
	c.open[c.ticket] = waiting
	return c.ticket, waiting, nil
}

// do makes a call and waits for its reply. When ctx ends first, it asks the daemon to cancel the
// call and waits for what the daemon says: either the call had taken effect already, then it
// succeeds after all, or it has none, and the error is ctx's. So nothing is left behind, such as a lock that nobody
// knows of. The reply's status is never StatusCanceled.
func (c *calls) do(ctx context.Context, call attach.Call) (attach.Reply, error) {
	if err := ctx.Err(); err != nil {
		return attach.Reply{}, err
	}
	ticket, waiting, err := c.begin()
	if err != nil {
		return attach.Reply{}, err
	}
	call.Ticket = ticket
	if err := c.send(call); err != nil {
		return attach.Reply{}, err
	}
	select {
	case r := <-waiting:
		return c.settled(r, nil)
	case <-c.done:
		return c.settledOrEnded(waiting)
	case <-ctx.Done():
	}
	if err := c.send(attach.Call{Op: attach.OpCancel, Ticket: ticket}); err != nil {
		return attach.Reply{}, err
	}
	select {
	case r := <-waiting:
		return c.settled(r, ctx.Err())
	case <-c.done:
		return c.settledOrEnded(waiting)
	}
}

// settledOrEnded prefers a reply that came before the end.
func (c *calls) settledOrEnded(waiting chan attach.Reply) (attach.Reply, error) {
	select {
	case r := <-waiting:
		return c.settled(r, nil)
	default:
		return attach.Reply{}, c.err()
	}
}

func (c *calls) settled(r attach.Reply, canceled error) (attach.Reply, error) {
	if r.Status != attach.StatusCanceled {
		return r, nil
	}
	if canceled == nil {
		canceled = errors.New("the daemon has canceled the call unasked: it is ending")
	}
	return attach.Reply{}, canceled
}

// send sends one call, which may be one without a reply.
func (c *calls) send(call attach.Call) error {
	if err := c.err(); err != nil {
		return err
	}
	if err := c.conn.Write(attach.AppendCall(nil, &call)); err != nil {
		// The reading goroutine learns of it too, and knows more: the daemon's last words may still be in the socket.
		c.conn.Shutdown()
		<-c.done
		return c.err()
	}
	return nil
}
