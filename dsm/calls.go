package dsm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/controlpage"
)

// calls is the conversation with the daemon after the handshake: open calls, and who takes the
// replies. Its errors have no prefix; callers add what they were doing.
//
// The callers themselves take the replies. One of those who wait is the reader: it hands the others
// their replies, and makes another one the reader when it has its own. It looks for replies on the
// control page for a while (lookout), then waits at the socket. So a reply finds or wakes the very
// thread that waits for it. When nobody waits, nothing is read: what the daemon says unasked it
// says before it ends the connection, and a goroutine watches for the end.
type calls struct {
	conn   *attach.Conn
	page   *controlpage.Page
	onLost func(error)
	// explain says who is in the way of a wait that is about to be given up; "": nobody knows
	explain func(*wait) string
	look    lookout // belongs to who has the turn to read

	// keeps calls apart that are put on the control page; nothing is taken under it
	boxing sync.Mutex
	giving turn // to give the daemon files, whose numbers follow one another

	mu     sync.Mutex // guards the fields below; nothing is sent, received or called under it
	open   map[uint64]chan attach.Reply
	ticket uint64 // the last one used
	ended  error  // why no call can be made: ErrClosed or an error that wraps ErrLost

	turn   chan struct{} // has a token when nobody reads
	done   chan struct{} // closed when ended is set
	reader chan struct{} // closed when nobody reads any more, nor will
}

// newCalls takes over a connection that was unpolled. onLost is called once, by a goroutine of its
// own, when the cluster is lost before end.
func newCalls(conn *attach.Conn, page *controlpage.Page, onLost func(error)) *calls {
	c := &calls{
		conn: conn, page: page, onLost: onLost, look: newLookout(page), open: make(map[uint64]chan attach.Reply),
		giving: newTurn(), turn: make(chan struct{}, 1), done: make(chan struct{}), reader: make(chan struct{}),
	}
	c.turn <- struct{}{}
	go c.watchEnd()
	return c
}

// watchEnd reads the daemon's last words when the connection has ended and nobody else has read
// them.
func (c *calls) watchEnd() {
	defer close(c.reader)
	_ = c.conn.AwaitEnd() // why it returns, reading tells
	<-c.turn              // who has it finds the end too; it is not passed on any more
	for c.err() == nil {
		c.read()
	}
	c.conn.Discard()
}

// read takes one reply, or the end of the connection. Preconditions: it is the caller's turn.
func (c *calls) read() {
	r, err := c.readReply()
	if err == nil {
		err = c.deliver(r)
	}
	if err != nil {
		c.lose(err)
	}
}

// readReply waits for a reply, or says why no more will come.
func (c *calls) readReply() (attach.Reply, error) {
	if frame, ok, err := c.look.forReply(); ok || err != nil {
		return replyIn(frame, err)
	}
	since := c.look.clock()
	f, err := c.conn.ReadFrame()
	c.look.slept(c.look.clock() - since)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return attach.Reply{}, errors.New("the daemon has closed the connection, so it has ended or has been killed; see its log")
	case err != nil:
		return attach.Reply{}, fmt.Errorf("reading from the daemon: %w", err)
	case f.Kind == attach.KindLost:
		reason, err := attach.DecodeLost(f.Body)
		return attach.Reply{}, errors.Join(err, errors.New(reason))
	case f.Kind != attach.KindReply:
		return attach.Reply{}, fmt.Errorf("the daemon sent an unexpected %v", f.Kind)
	}
	return attach.DecodeReply(f.Body)
}

// replyIn decodes a frame that lay on the control page.
func replyIn(frame []byte, err error) (attach.Reply, error) {
	if err != nil {
		return attach.Reply{}, err
	}
	f, err := attach.Only(frame, attach.KindReply)
	if err != nil {
		return attach.Reply{}, err
	}
	return attach.DecodeReply(f.Body)
}

// lose makes all calls fail because the cluster is lost, unless they already do.
func (c *calls) lose(why error) {
	why = fmt.Errorf("%w: %w", ErrLost, why)
	if c.end(why) == why {
		go c.onLost(why)
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

// end makes all calls fail with err from now on, unless they already fail with another error, which
// it returns. Who reads goes on until it is interrupted.
func (c *calls) end(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	// From here on locks are taken by calls, which fail. Who gives back what it has taken by a word
	// finds nothing there, and learns why by err, which waits for all of this. If it is not
	// possible to retire the page, Close reports why.
	_ = c.page.Retire()
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
// succeeds after all, or it has none, and the error is ctx's. So nothing is left behind, such as a
// lock that nobody knows of. The reply's status is never StatusCanceled nor StatusNodeLost, which
// are errors.
func (c *calls) do(ctx context.Context, call attach.Call) (attach.Reply, error) {
	if err := ctx.Err(); err != nil {
		return attach.Reply{}, err
	}
	return c.ask(ctx, call)
}

// doWaiting is do for a wait whose error says who is in its way. To find out may take a second
// after ctx has ended.
func (c *calls) doWaiting(ctx context.Context, call attach.Call, w *wait) (attach.Reply, error) {
	if err := ctx.Err(); err != nil {
		return attach.Reply{}, err
	}
	return c.askWaiting(ctx, call, w)
}

// ask is do, but the daemon is asked even if ctx has ended.
func (c *calls) ask(ctx context.Context, call attach.Call) (attach.Reply, error) {
	return c.askWaiting(ctx, call, nil)
}

func (c *calls) askWaiting(ctx context.Context, call attach.Call, w *wait) (attach.Reply, error) {
	ticket, waiting, err := c.start(call)
	if err != nil {
		return attach.Reply{}, err
	}
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() {
			// As long as it is still one. Who has ended a team's wait has explained it already.
			if w != nil && context.Cause(ctx) != errTeammate {
				w.give(c.explain(w))
			}
			_ = c.send(attach.Call{Op: attach.OpCancel, Ticket: ticket})
		})
		defer stop()
	}
	began := time.Now()
	r, err := c.await(ctx, waiting)
	if ended := ctx.Err(); ended != nil && errors.Is(err, ended) {
		err = w.gaveUp(began, err)
	}
	return r, err
}

// start makes a call, with descriptors if it has any. It does not wait.
func (c *calls) start(call attach.Call, fds ...int) (ticket uint64, waiting chan attach.Reply, err error) {
	if ticket, waiting, err = c.begin(); err != nil {
		return 0, nil, err
	}
	call.Ticket = ticket
	return ticket, waiting, c.send(call, fds...)
}

// doAnyway makes a call that takes effect also when ctx ends first.
func (c *calls) doAnyway(ctx context.Context, call attach.Call) (attach.Reply, error) {
	_, waiting, err := c.start(call)
	if err != nil {
		return attach.Reply{}, err
	}
	return unlessEnded(ctx, func(ctx context.Context) (attach.Reply, error) { return c.await(ctx, waiting) })
}

// query makes a call that changes nothing. When ctx ends first, the call is left alone: a daemon
// that is stopped takes neither it nor a Cancel.
func (c *calls) query(ctx context.Context, call attach.Call) (attach.Reply, error) {
	if err := ctx.Err(); err != nil {
		return attach.Reply{}, err
	}
	return unlessEnded(ctx, func(ctx context.Context) (attach.Reply, error) { return c.ask(ctx, call) })
}

// unlessEnded is what f returns, or the error of ctx when that ends first. f goes on with a context
// that does not end, until the daemon answers or the cluster is left.
func unlessEnded(ctx context.Context, f func(context.Context) (attach.Reply, error)) (attach.Reply, error) {
	if ctx.Done() == nil {
		return f(ctx)
	}
	type answer struct {
		r   attach.Reply
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		r, err := f(context.WithoutCancel(ctx))
		answered <- answer{r, err}
	}()
	select {
	case a := <-answered:
		return a.r, a.err
	case <-ctx.Done():
		return attach.Reply{}, ctx.Err()
	}
}

// await waits for the reply of a call, and reads when it is the caller's turn.
func (c *calls) await(ctx context.Context, waiting chan attach.Reply) (attach.Reply, error) {
	select {
	case r := <-waiting:
		return settled(ctx, r)
	case <-c.done:
		return c.settledOrEnded(ctx, waiting)
	case <-c.turn:
	}
	for len(waiting) == 0 && c.err() == nil {
		c.read()
	}
	c.turn <- struct{}{}
	return c.settledOrEnded(ctx, waiting)
}

// settledOrEnded prefers a reply that came before the end.
func (c *calls) settledOrEnded(ctx context.Context, waiting chan attach.Reply) (attach.Reply, error) {
	select {
	case r := <-waiting:
		return settled(ctx, r)
	default:
		return attach.Reply{}, c.err()
	}
}

func settled(ctx context.Context, r attach.Reply) (attach.Reply, error) {
	if r.Status == attach.StatusNodeLost {
		return attach.Reply{}, fmt.Errorf("%w: %s", ErrNodeLost, r.Payload)
	}
	if r.Status != attach.StatusCanceled {
		return r, nil
	}
	if err := ctx.Err(); err != nil {
		return attach.Reply{}, err
	}
	return attach.Reply{}, errors.New("the daemon has canceled the call unasked: it is ending")
}

// send sends one call, which may be one without a reply.
func (c *calls) send(call attach.Call, fds ...int) error {
	if err := c.err(); err != nil {
		return err
	}
	frame := attach.AppendCall(nil, &call)
	if mayOvertake(call.Op) && c.box(frame) {
		return nil
	}
	if err := c.conn.Write(frame, fds...); err != nil {
		// Who reads learns of it too, and knows more: the daemon's last words may still be in the
		// socket.
		c.conn.Shutdown()
		<-c.done
		return c.err()
	}
	return nil
}

// mayOvertake reports whether a call can go by the control page, where it may come before others
// that were sent earlier. A Cancel must not come before the call that it ends. The calls that wait
// for other nodes can: who has sent them waits for the reply, and Release for nothing.
func mayOvertake(op attach.Op) bool {
	return op == attach.OpAcquire || op == attach.OpRelease || op == attach.OpArrive || op == attach.OpCommit
}

// box puts a call on the control page, if the daemon looks there.
func (c *calls) box(frame []byte) bool {
	c.boxing.Lock()
	defer c.boxing.Unlock()
	return c.page.Calls().Put(frame)
}
