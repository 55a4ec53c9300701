package main

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"dsmd/internal/launch"
)

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
