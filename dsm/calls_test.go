package dsm

import (
	"context"
	"errors"
	"testing"

	"dsmd/internal/attach"
)

// TestTurnToRead: of the goroutines that wait, the one that reads hands the others their replies,
// whatever it waits for itself; and when it waits no longer, another one reads.
func TestTurnToRead(t *testing.T) {
	f := newFake(t, 2)
	c := f.joinAll()
	ctx := within(t)
	m, n := NewMutex(c[0], "m"), NewMutex(c[0], "n")
	theirs := []*Mutex{NewMutex(c[1], "m"), NewMutex(c[1], "n")}
	for _, held := range theirs {
		if err := held.Lock(ctx); err != nil {
			t.Fatal(err)
		}
	}
	before := f.count(attach.OpAcquire)
	reading, cancel := context.WithCancel(ctx)
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- m.Lock(reading) }()
	f.awaitCalls(attach.OpAcquire, before+1)
	for range 10 {
		if _, err := c[0].Stats(ctx); err != nil { // the first goroutine reads
			t.Fatal(err)
		}
	}
	go func() { second <- n.Lock(ctx) }()
	f.awaitCalls(attach.OpAcquire, before+2)
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the first: %v", err)
	}
	if err := theirs[1].Unlock(); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Errorf("the second: %v", err)
	}
	// When nobody waits, the end is noticed all the same.
	f.die()
	<-c[0].done
	if err := n.Unlock(); !errors.Is(err, ErrLost) {
		t.Errorf("after the daemon's end: %v", err)
	}
}
