package dsm

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"dsmd/internal/attach"
)

// TestWaitsInCalls: who asks is told of goroutines that wait for memory to be allocated or freed,
// also behind another goroutine that does, and for backups.
func TestWaitsInCalls(t *testing.T) {
	f := newFake(t, 1, func(f *fake) {
		f.answer = func(c attach.Call) (attach.Reply, bool) {
			switch {
			case c.Op == attach.OpBind && c.Name != "first", c.Op == attach.OpCommit:
				return attach.Reply{}, true // not yet
			case c.Op == attach.OpCancel:
				return attach.Reply{Ticket: c.Ticket, Status: attach.StatusCanceled}, true
			}
			return attach.Reply{}, false
		}
	})
	c := f.join()
	first, err := Alloc[int](within(t), c, "first", 1)
	if err != nil {
		t.Fatal(err)
	}
	c.replicated.Add(1)
	defer c.replicated.Add(-1)
	ctx, cancel := context.WithCancel(within(t))
	ended := make(chan error)
	go func() {
		_, err := Alloc[int](ctx, c, "second", 1)
		ended <- err
	}()
	f.awaitCalls(attach.OpBind, 2)
	go func() { ended <- Free(ctx, c, first) }()
	go func() { ended <- c.Commit(ctx) }()
	f.awaitCalls(attach.OpCommit, 1)
	waits := func() (list []string) {
		for _, w := range c.attendant.state(time.Now()).Waits {
			list = append(list, fmt.Sprintf("%s %q", w.Kind, w.Name))
		}
		slices.Sort(list)
		return list
	}
	want := []string{`allocation "first"`, `allocation "second"`, `commit "replicated memory"`}
	for deadline := time.Now().Add(patience); !slices.Equal(waits(), want); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("goroutines wait for %q, want %q", waits(), want)
			break
		}
	}
	cancel()
	for range 3 {
		wantError(t, <-ended, context.Canceled)
	}
	if left := waits(); len(left) > 0 {
		t.Errorf("when all have ended goroutines wait for %q", left)
	}
}
