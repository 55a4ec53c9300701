package dsm

import (
	"context"
	"testing"
	"time"

	"dsmd/internal/attach"
)

// TestCheckpointThatFailsEarly: who gives up a checkpoint whose moment has failed has the daemon
// give it up, too, and does not wait until a disk has taken it.
func TestCheckpointThatFailsEarly(t *testing.T) {
	saved := uint64(0)
	f := newFake(t, 1, func(f *fake) {
		f.answer = func(c attach.Call) (attach.Reply, bool) {
			switch {
			case c.Op == attach.OpSaved: // the disk does not answer
				saved = c.Ticket
				return attach.Reply{}, true
			case c.Op == attach.OpCancel && c.Ticket == saved:
				return attach.Reply{Ticket: saved, Status: attach.StatusCanceled}, true
			}
			return attach.Reply{}, false
		}
	})
	s := &Saving{c: f.join(), kind: ErrCheckpoint}
	var err error
	if s.file, err = newMemoryOrder(nil, testPage); err != nil {
		t.Fatal(err)
	}
	given := make(chan struct{})
	go func() {
		defer close(given)
		s.abandon(context.Background(), ErrNodeLost)
	}()
	select {
	case <-given:
	case <-time.After(patience):
		t.Fatal("it waits for the disk")
	}
}
