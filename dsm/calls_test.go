package dsm

import (
	"context"
	"errors"
	"fmt"
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

// TestUnlockAtTheEnd: a program that gives back a lock, which it has taken by a word, while its
// daemon dies is told that the cluster is lost, and never that it does not hold the lock.
func TestUnlockAtTheEnd(t *testing.T) {
	for round := range 50 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			f := newFake(t, 1)
			c := f.join()
			m := NewMutex(c, "m")
			f.program(0).page.Publish(m.l.hash)
			busy, result := make(chan bool, 1), make(chan error, 1)
			go func() {
				for {
					err := m.Lock(t.Context())
					select {
					case busy <- true:
					default:
					}
					if err == nil {
						err = m.Unlock()
					}
					if err != nil {
						result <- err
						return
					}
				}
			}()
			<-busy
			f.die()
			if err := <-result; !errors.Is(err, ErrLost) {
				t.Errorf("at the daemon's end: %v", err)
			}
		})
	}
}
