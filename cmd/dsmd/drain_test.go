package main

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/launch"
)

// TestDrainWaitsForTheEnd: a daemon whose node has left ends a while later, or not at all.
func TestDrainWaitsForTheEnd(t *testing.T) {
	const slow = launch.SocketPrefix + "drainslow-0"
	ends := make(chan *os.File, 1) // what keeps a daemon alive
	listenAs(t, slow, func(c net.Conn) {
		conn := attach.NewConn(c.(*net.UnixConn))
		defer conn.Discard()
		for {
			f, err := conn.ReadFrame()
			if err != nil {
				return
			}
			if fd, err := conn.TakeFD(); err == nil {
				ends <- os.NewFile(uintptr(fd), "given")
			}
			if conn.Write(fakeAnswer(f, time.Minute)) != nil {
				return
			}
		}
	})
	drained := make(chan error, 1)
	go func() { drained <- tellToLeave(t.Context(), io.Discard, slow) }()
	end := <-ends
	select {
	case err := <-drained:
		t.Fatalf("it does not wait: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	end.Close()
	if err := <-drained; err != nil {
		t.Error(err)
	}

	before := endWithin
	endWithin = 10 * time.Millisecond
	defer func() { endWithin = before }()
	err := tellToLeave(t.Context(), io.Discard, slow)
	if err == nil || !strings.Contains(err.Error(), "node 0 has left, and the others have all that it had, but its daemon has not ended within 10ms") {
		t.Errorf("it ends with %v", err)
	}
	(<-ends).Close()
}

// TestDrainSaysWhy: a daemon that still waits for its cluster takes the connection and says
// nothing. Nobody waits for that for ever.
func TestDrainSaysWhy(t *testing.T) {
	askWithin(t, 300*time.Millisecond)
	const silent = launch.SocketPrefix + "drainsilent-0"
	fakeDaemon(t, silent, hangs)
	err := tellToLeave(t.Context(), io.Discard, silent)
	if err == nil || !strings.Contains(err.Error(), "no answer within 300ms: it waits for its peers, or is stuck") {
		t.Errorf("it ends with %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tellToLeave(ctx, io.Discard, silent); err == nil || strings.Contains(err.Error(), "no answer within") {
		t.Errorf("interrupted, it ends with %v", err)
	}
}
