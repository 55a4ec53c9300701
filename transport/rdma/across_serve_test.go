package rdma_test

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/transport"
)

// glance is how long a watcher sleeps at most before it looks whether its node has gone.
const glance = 100 * time.Millisecond

// serveNodes makes nodes for the stand-ins that connect to the listener, until it is closed, and
// then waits until they have gone.
func serveNodes(listener net.Listener, make nodeMaker) error {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accepting a stand-in: %w", err)
		}
		all.Go(func() {
			s := &server{conn: newConnection(conn), make: make}
			s.serve()
		})
	}
}

// server is the real node behind a stand-in. Its goroutine calls the transport; a watcher looks at
// WaitFD alone.
type server struct {
	make  nodeMaker
	node  testNode
	tr    transport.Transport
	found []event // by the Poll that runs

	sending sync.Mutex // guards the Encoder of conn
	conn    *connection

	watcher  sync.WaitGroup
	mu       sync.Mutex
	watching bool // a watcher runs, and will say that WaitFD is readable
	gone     bool
}

func (s *server) serve() {
	defer s.end()
	for {
		var c call
		if s.conn.Decode(&c) != nil {
			return
		}
		r := s.answer(c)
		if s.send(r) != nil {
			return
		}
		if c.Method == callArm && !r.Armed && r.Panic == "" {
			s.watch()
		}
	}
}

func (s *server) send(r reply) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.conn.Encode(r)
}

func (s *server) end() {
	s.mu.Lock()
	s.gone = true
	s.mu.Unlock()
	s.watcher.Wait()
	if s.tr != nil {
		s.tr.Close()
	}
	s.conn.Close()
}

// answer makes a call. A panic of the transport is one of the stand-in.
func (s *server) answer(c call) (r reply) {
	defer func() {
		if p := recover(); p != nil {
			r = reply{Panic: fmt.Sprint(p)}
		}
	}()
	switch c.Method {
	case callPrepare:
		var err error
		if s.node, err = s.make(c.Spec); err != nil {
			return reply{Error: failureOf(err)}
		}
		r.Address = s.node.Address()
	case callStart:
		tr, err := s.node.Start(c.Peers)
		if r.Error = failureOf(err); err == nil {
			s.tr = tr
		}
	case callSend:
		r.Error = failureOf(s.sendFrame(c))
	case callFlush:
		s.tr.Flush()
	case callPoll:
		s.found = nil
		n, err := s.tr.Poll(s, c.Max)
		r.N, r.Error, r.Events = n, failureOf(err), s.found
	case callArm:
		r.Armed = s.tr.Arm()
	case callDisconnect:
		s.tr.Disconnect(c.Peer, errors.New("the stand-in parts with it"))
	case callReadmit:
		s.tr.Readmit(c.Peer)
	case callStats:
		r.Stats = s.tr.Stats()
	case callClose:
		r.Error = failureOf(s.tr.Close())
	default:
		r.Panic = fmt.Sprintf("there is no method %d", c.Method)
	}
	return r
}

func (s *server) sendFrame(c call) error {
	var payload transport.Payload
	if c.Page != nil {
		payload = s.tr.Lease(c.Peer)
		copy(payload.Bytes(), c.Page)
	}
	return s.tr.Send(c.Peer, c.Control, payload)
}

// Frame implements transport.Handler.
func (s *server) Frame(from transport.NodeID, control []byte, payload transport.Payload) {
	e := event{Kind: eventFrame, Peer: from, Control: append([]byte(nil), control...), HasPage: payload != nil}
	if payload != nil {
		e.Page = append([]byte(nil), payload.Bytes()...)
	}
	s.found = append(s.found, e)
}

// PeerUp implements transport.Handler.
func (s *server) PeerUp(peer transport.NodeID) {
	s.found = append(s.found, event{Kind: eventUp, Peer: peer})
}

// PeerDown implements transport.Handler.
func (s *server) PeerDown(peer transport.NodeID, err error) {
	s.found = append(s.found, event{Kind: eventDown, Peer: peer, Reason: err.Error()})
}

// watch lets a watcher tell the stand-in when WaitFD is readable, unless there is one already.
func (s *server) watch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watching {
		return
	}
	s.watching = true
	s.watcher.Go(func() {
		for s.watched() {
			fds := []unix.PollFd{{Fd: int32(s.tr.WaitFD()), Events: unix.POLLIN}}
			n, err := unix.Poll(fds, int(glance.Milliseconds()))
			if err != nil && !errors.Is(err, unix.EINTR) {
				panic(fmt.Sprintf("across: poll descriptor %d: %v", s.tr.WaitFD(), err))
			}
			if n > 0 {
				s.mu.Lock()
				s.watching = false
				s.mu.Unlock()
				// A stand-in that has gone needs to be told nothing.
				_ = s.send(reply{Ready: true})
				return
			}
		}
	})
}

func (s *server) watched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.gone
}
