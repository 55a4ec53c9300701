package crew

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
)

// progressInterval is how often a worker's progress is passed on. People see no more, and a worker
// that did it at every step would measure its own reporting.
const progressInterval = 100 * time.Millisecond

// message is what a worker sends. The first one of a connection has Rank only.
type message struct {
	Rank int `json:"rank"`
	// Phase is what the worker does from now on, if not empty.
	Phase string `json:"phase,omitempty"`
	// Done and Total are the steps of the phase, if Total is not 0.
	Done  int `json:"done,omitempty"`
	Total int `json:"total,omitempty"`
	// Reply is what the worker found, if not empty.
	Reply json.RawMessage `json:"reply,omitempty"`
	// Error says why the worker ends, if not empty.
	Error string `json:"error,omitempty"`
}

// A Line is a worker's end of the line to the driver. Progress may be called from any goroutine at
// any time; the other methods belong to one goroutine.
type Line struct {
	rank int
	conn net.Conn
	in   *json.Decoder

	progress atomic.Uint64 // done in the upper half, total in the lower
	stop     chan struct{}
	stopped  sync.WaitGroup

	mu  sync.Mutex
	out *json.Encoder // guarded by mu
}

// Connect connects the worker of the given rank with the driver that listens at path.
func Connect(ctx context.Context, path string, rank int) (*Line, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("connecting to the benchmark driver: %w (workers are started by the driver, not by hand)", err)
	}
	l := &Line{rank: rank, conn: conn, in: json.NewDecoder(conn), out: json.NewEncoder(conn), stop: make(chan struct{})}
	if err := l.send(message{}); err != nil {
		conn.Close()
		return nil, err
	}
	l.stopped.Go(l.passProgressOn)
	return l, nil
}

// Phase says what this worker does from now on, for instance "computing".
func (l *Line) Phase(name string) error {
	l.progress.Store(0)
	return l.send(message{Phase: name})
}

// Progress says how many of total steps of the phase are done. It only stores the numbers, and is a
// kernel.Progress.
func (l *Line) Progress(done, total int) {
	l.progress.Store(uint64(uint32(done))<<32 | uint64(uint32(total)))
}

// Reply sends what the worker found.
func (l *Line) Reply(found any) error {
	body, err := json.Marshal(found)
	if err != nil {
		return fmt.Errorf("encoding the reply: %w", err)
	}
	return l.send(message{Reply: body})
}

// Fail says why the worker ends. The driver ends the measurement then.
func (l *Line) Fail(reason error) error { return l.send(message{Error: reason.Error()}) }

// Next receives the driver's next request into request. It returns io.EOF when there will be no
// more.
func (l *Line) Next(request any) error {
	err := l.in.Decode(request)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("receiving the driver's next request: %w", err)
	}
	return err
}

// Close ends the line.
func (l *Line) Close() error {
	close(l.stop)
	l.stopped.Wait()
	return l.conn.Close()
}

func (l *Line) send(m message) error {
	m.Rank = l.rank
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.out.Encode(m); err != nil {
		return fmt.Errorf("telling the driver: %w", err)
	}
	return nil
}

func (l *Line) passProgressOn() {
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	var last uint64
	for {
		select {
		case <-l.stop:
			return
		case <-ticker.C:
		}
		now := l.progress.Load()
		if now == last || now == 0 {
			continue
		}
		last = now
		if l.send(message{Done: int(now >> 32), Total: int(uint32(now))}) != nil {
			// The driver is gone, which the worker's own goroutine learns from Next or Reply.
			return
		}
	}
}
