package fabric

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"dsmd/internal/verbs"
)

// Patience is how long one end waits for the other, beyond the time of a measurement, before it
// gives up. Only tests change it.
var Patience = 30 * time.Second

const (
	// greeting is the first thing that the ends say, so that a stranger is noticed.
	greeting = "dsmd bench fabric 1"
	// maxGreeting bounds the first question of a session, in bytes.
	maxGreeting = 1 << 10
)

// greetingTime is how long a new session may take to say the greeting. Who waits behind it waits
// for Patience.
func greetingTime() time.Duration { return Patience / 4 }

// ErrNoRDMA says that measurements of RDMA cannot be made here; the error that wraps it says why
// and what to do.
var ErrNoRDMA = errors.New("no RDMA here")

// An end is one side of a measurement. Both sides make one, connect it, and then drive or serve it.
// It belongs to one goroutine, which is locked to its thread.
type end interface {
	// hello is what the other end must know.
	hello() hello
	// connect makes the connections to the other end. Its connect may run before or after.
	connect(hello) error
	// drive measures.
	drive() (Point, error)
	// serve does the other end's part until stop is set.
	serve(stop *atomic.Bool) (served, error)
	// close gives everything back. It may be called at any time.
	close() error
}

// A hello is how an end is reached.
type hello struct {
	Port   int              `json:"port,omitempty"`   // TCP: where it listens
	Ends   []verbs.Endpoint `json:"ends,omitempty"`   // RDMA: its queue pairs
	Region region           `json:"region,omitempty"` // RDMA: its memory
}

// A region is memory that the other end may use.
type region struct {
	Source uint64 `json:"source"` // where messages come from
	Target uint64 `json:"target"` // where they go to
	Key    uint32 `json:"key"`
}

// served is what the serving end has counted.
type served struct {
	Messages      uint64 `json:"messages"`
	Registrations uint64 `json:"registrations"`
}

// What the ends say on their control connection: first the greeting, then for each measurement a
// question with a Spec, its answer, a question with Stop, and its answer.
type (
	question struct {
		Greeting string `json:"greeting,omitempty"`
		Spec     *Spec  `json:"spec,omitempty"`
		Hello    hello  `json:"hello"`
		Stop     bool   `json:"stop,omitempty"`
	}
	answer struct {
		Greeting string `json:"greeting,omitempty"`
		Error    string `json:"error,omitempty"`
		Hello    hello  `json:"hello"`
		Served   served `json:"served"`
	}
)

// A control is the control connection, seen from either end.
type control struct {
	conn net.Conn
	*json.Encoder
	*json.Decoder
}

func newControl(conn net.Conn) *control {
	return &control{conn, json.NewEncoder(conn), json.NewDecoder(conn)}
}

// A Session is the driving end. It belongs to one goroutine.
type Session struct {
	control    *control
	maker      maker
	peerDevice string          // of the other end, if it is in this process
	local      *sync.WaitGroup // the serving end, if it is in this process
}

// Local makes a session whose other end is in this process: RDMA goes from device to peerDevice,
// which may be the same; empty names stand for the first usable device, and for the next one or the
// same.
func Local(ctx context.Context, device, peerDevice string) (*Session, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for the other end: %w", err)
	}
	var other sync.WaitGroup
	other.Go(func() {
		defer listener.Close()
		if conn, err := listener.Accept(); err == nil {
			serveSession(ctx, conn, &maker{device: peerDevice, prefer: 1})
		}
	})
	s, err := Dial(ctx, listener.Addr().String(), device)
	if err != nil {
		listener.Close()
		return nil, err
	}
	s.local, s.peerDevice = &other, peerDevice
	return s, nil
}

// Dial makes a session with the end that Serve runs at an address.
func Dial(ctx context.Context, address, device string) (*Session, error) {
	// A dialer that knew when ctx ends would give up by its own clock, and ctx, whose cause tells a
	// limit from a peer that does not answer, might end a moment later.
	dialing, cancel := context.WithTimeout(context.WithoutCancel(ctx), Patience)
	defer context.AfterFunc(ctx, cancel)()
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(dialing, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("reaching the other end at %s: %w; does `bench fabric --listen` run there?", address, err)
	}
	s := &Session{control: newControl(conn), maker: maker{device: device}}
	if err := s.maker.at(conn, false); err != nil {
		conn.Close()
		return nil, err
	}
	stop := context.AfterFunc(ctx, s.Interrupt)
	defer stop()
	if a, err := s.ask(question{Greeting: greeting}); err != nil || a.Greeting != greeting {
		conn.Close()
		return nil, errors.Join(fmt.Errorf("%s is no `bench fabric --listen` of this version", address), context.Cause(ctx), err)
	}
	return s, nil
}

// Interrupt makes the measurement that runs fail. Any goroutine may call it; the session can only
// be closed then.
func (s *Session) Interrupt() { s.control.conn.Close() }

// Close ends the session and waits for the other end if it is in this process.
func (s *Session) Close() error {
	err := s.maker.close()
	if e := s.control.conn.Close(); !errors.Is(e, net.ErrClosed) {
		err = errors.Join(err, e)
	}
	if s.local != nil {
		s.local.Wait()
	}
	return err
}

func (s *Session) ask(q question) (answer, error) {
	var a answer
	err := s.control.conn.SetDeadline(time.Now().Add(Patience))
	if err == nil {
		err = s.control.Encode(q)
	}
	if err != nil {
		return a, fmt.Errorf("asking the other end: %w", err)
	}
	return s.hear()
}

// hear waits for what the other end says next.
func (s *Session) hear() (answer, error) {
	var a answer
	err := s.control.conn.SetDeadline(time.Now().Add(Patience))
	if err == nil {
		err = s.control.Decode(&a)
	}
	if err != nil {
		return a, fmt.Errorf("waiting for the other end: %w", err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("the other end: %s", a.Error)
	}
	return a, nil
}

// Measure makes one measurement.
func (s *Session) Measure(spec Spec) (Point, error) {
	var p Point
	err := onThread(coreOf(driving, spec.Exchanged), func() (err error) {
		p, err = s.measure(spec)
		return err
	})
	if err != nil {
		return p, fmt.Errorf("%v: %w", spec, err)
	}
	return p, nil
}

func (s *Session) measure(spec Spec) (p Point, err error) {
	if err := spec.check(); err != nil {
		return p, err
	}
	e, err := s.maker.make(spec)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	a, err := s.ask(question{Spec: &spec, Hello: e.hello()})
	if err != nil {
		return p, err
	}
	// What is sent before the other end is connected, too, would be lost, and its sender gives up
	// after some attempts.
	err = e.connect(a.Hello)
	_, errPeer := s.hear()
	if err = errors.Join(err, errPeer); err == nil {
		p, err = e.drive()
	}
	// The other end must be told in any case, or it would take the next question for this one.
	a, errStop := s.ask(question{Stop: true})
	if err := errors.Join(err, errStop); err != nil {
		return p, err
	}
	if spec.Operation.isDesign() && a.Served.Messages > 0 {
		p.Registrations += float64(a.Served.Registrations) / float64(a.Served.Messages)
	}
	return p, nil
}

// Serve serves sessions, one after the other, until ctx ends. RDMA uses the device of the given
// name; empty stands for the first usable one.
func Serve(ctx context.Context, listener net.Listener, device string) error {
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return fmt.Errorf("accepting a session: %w", err)
		}
		serveSession(ctx, conn, &maker{device: device})
	}
}

// serveSession serves one session to its end. What goes wrong is told to the other end, which alone
// has somebody to tell it to.
func serveSession(ctx context.Context, conn net.Conn, m *maker) {
	defer m.close()
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if m.at(conn, true) != nil || !greeted(conn) {
		return
	}
	c := newControl(conn)
	if c.Encode(answer{Greeting: greeting}) != nil {
		return
	}
	for {
		var q question
		if err := c.Decode(&q); err != nil {
			return
		}
		if q.Spec == nil {
			// The measurement that is to stop has failed here already.
			if c.Encode(answer{}) != nil {
				return
			}
			continue
		}
		if err := serveOne(c, q, m); err != nil && c.Encode(answer{Error: err.Error()}) != nil {
			return
		}
	}
}

// greeted reports whether a greeting has come, and nothing else.
func greeted(conn net.Conn) bool {
	var q question
	return conn.SetDeadline(time.Now().Add(greetingTime())) == nil &&
		json.NewDecoder(io.LimitReader(conn, maxGreeting)).Decode(&q) == nil && q.Greeting == greeting &&
		conn.SetDeadline(time.Time{}) == nil
}

// serveOne serves a measurement: it answers its question, says when it is connected, and answers
// its Stop. Its error is not told to the other end yet.
func serveOne(c *control, q question, m *maker) error {
	if err := q.Spec.check(); err != nil {
		return err
	}
	e, err := m.make(*q.Spec)
	if err != nil {
		return err
	}
	if err := c.Encode(answer{Hello: e.hello()}); err != nil {
		return errors.Join(err, e.close())
	}
	var stop atomic.Bool
	var result served
	connected, done := make(chan error, 1), make(chan error, 1)
	go func() {
		done <- onThread(coreOf(serving, q.Spec.Exchanged), func() error {
			err := e.connect(q.Hello)
			connected <- err
			if err == nil {
				result, err = e.serve(&stop)
			}
			return errors.Join(err, e.close())
		})
	}()
	select {
	case err := <-done: // It has not come as far as to connect, or has failed at once.
		return err
	case err := <-connected:
		if err != nil {
			return <-done
		}
	}
	if err := c.Encode(answer{}); err != nil {
		stop.Store(true)
		return errors.Join(<-done, err)
	}
	var end question
	err = c.Decode(&end)
	stop.Store(true)
	if err := errors.Join(<-done, err); err != nil {
		return err
	}
	return c.Encode(answer{Served: result})
}
