package dsm

import (
	"context"
	"errors"
	"strings"
	"testing"

	"dsmd/internal/attach"
)

// objectsOf are the objects of all calls of a kind, in order.
func (f *fake) objectsOf(op attach.Op) (objects []uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if c.Op == op {
			objects = append(objects, c.Object)
		}
	}
	return objects
}

// TestJobsHaveNamesOfTheirOwn: what two jobs call the same is two things, unless it is called so
// everywhere.
func TestJobsHaveNamesOfTheirOwn(t *testing.T) {
	f := newFake(t, 1)
	var clusters []*Cluster
	for _, opts := range [][]Option{nil, {WithJob("a", 1)}, {WithJob("b", 3)}} {
		c := f.join(append(opts, WithRank(0))...)
		clusters = append(clusters, c)
		// The fake has one region of addresses, so one cluster after the other.
		for _, name := range []string{"own", "/common"} {
			if _, err := Alloc[int](within(t), c, name, 5); err != nil {
				t.Fatal(err)
			}
			m := NewMutex(c, name)
			if err := errors.Join(m.Lock(t.Context()), m.Unlock()); err != nil {
				t.Fatal(err)
			}
			arriveAndGiveUp(t, f, func(ctx context.Context) error { return NewBarrier(c, name, Parties(9)).Wait(ctx) })
		}
		arriveAndGiveUp(t, f, func(ctx context.Context) error { _, err := gatherFor(ctx, c, 9); return err })
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []struct {
		job  string
		size int
	}{{"", 1}, {"a", 1}, {"b", 3}} {
		if c := clusters[i]; c.Job() != want.job || c.Size() != want.size {
			t.Errorf("job %q of %d, want %+v", c.Job(), c.Size(), want)
		}
	}
	for _, op := range []attach.Op{attach.OpBind, attach.OpAcquire} {
		o := f.objectsOf(op)
		if len(o) != 6 || o[0] == o[2] || o[2] == o[4] || o[0] == o[4] || o[1] != o[3] || o[3] != o[5] || o[0] == o[1] {
			t.Errorf("%v: %x", op, o)
		}
	}
	o := f.objectsOf(attach.OpArrive) // own, common, gather, of each job
	if len(o) != 9 || o[0] == o[3] || o[3] == o[6] || o[1] != o[4] || o[4] != o[7] || o[2] == o[5] || o[5] == o[8] {
		t.Errorf("barriers: %x", o)
	}
}

// gatherFor is a Reduce whose job has more ranks than come.
func gatherFor(ctx context.Context, c *Cluster, ranks uint32) ([]byte, error) {
	return c.group().arrive(ctx, &wait{object: attach.NameHash(attach.NameReduce, c.within("sum")), parties: int(ranks)}, attach.NoFold, nil)
}

// arriveAndGiveUp lets an arrival be sent, and then withdraws it.
func arriveAndGiveUp(t *testing.T, f *fake, wait func(context.Context) error) {
	t.Helper()
	before := f.count(attach.OpArrive)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- wait(ctx) }()
	f.awaitCalls(attach.OpArrive, before+1)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that was given up: %v", err)
	}
}

func TestBadJobs(t *testing.T) {
	f := newFake(t, 1)
	for want, opt := range map[string]Option{
		`WithJob("", 2): the name is empty`: WithJob("", 2),
		`WithJob("a", -1)`:                  WithJob("a", -1),
		`the job is called "a b"`:           WithJob("a b", 0),
		`the job is called "a/b"`:           WithJob("a/b", 0),
		"has 64 bytes; at most 63":          WithJob(strings.Repeat("j", 64), 0),
	} {
		if _, err := Join(within(t), WithSocket(f.socket), opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	t.Setenv(envJob, "no job")
	if _, err := Join(within(t), WithSocket(f.socket)); err == nil || !strings.Contains(err.Error(), `"no job"`) {
		t.Error(err)
	}
	t.Setenv(envJob, "weather")
	t.Setenv(envSize, "7")
	if c := f.join(); c.Job() != "weather" || c.Size() != 7 {
		t.Errorf("job %q of %d from the environment", c.Job(), c.Size())
	}
}

// TestKeepAndDiscard: memory that is to be kept is asked for as such, also by a program that has it
// already, and its name stays until it is discarded.
func TestKeepAndDiscard(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	a, err := Alloc[int](within(t), c, "a", 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Alloc[int](within(t), c, "a", 10, Keep()); err != nil {
		t.Fatal(err)
	}
	b, err := Alloc[int](within(t), c, "b", 10, Keep())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Free(within(t), c, a), Free(within(t), c, a), Free(within(t), c, b)); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	kept := len(f.names)
	f.mu.Unlock()
	if kept != 2 {
		t.Errorf("%d names are kept, want 2", kept)
	}
	_, err = Alloc[int](within(t), c, "b", 11)
	wantError(t, err, ErrMismatch, "this program asks for 11", "10 elements")
	if err := errors.Join(Discard(within(t), c, "a"), Discard(within(t), c, "b")); err != nil {
		t.Error(err)
	}
	wantError(t, Discard(within(t), c, "b"), ErrUnknown, `Discard "b"`, "nothing is called")
	if err := Discard(within(t), c, ""); err == nil || !strings.Contains(err.Error(), "0 bytes") {
		t.Error(err)
	}
	if err := Discard(within(t), c, "\x00x"); err == nil || !strings.Contains(err.Error(), "zero byte") {
		t.Error(err)
	}
	if _, err := Alloc[int](within(t), c, "\x00x", 1); err == nil || !strings.Contains(err.Error(), "zero byte") {
		t.Error(err)
	}
	// A daemon that does not keep it leaves nothing behind.
	f.mu.Lock()
	f.answer = func(call attach.Call) (attach.Reply, bool) {
		return attach.Reply{Ticket: call.Ticket, Status: attach.StatusUnknown}, call.Op == attach.OpKeep
	}
	f.mu.Unlock()
	_, err = Alloc[int](within(t), c, "c", 1, Keep())
	wantError(t, err, ErrUnknown, `Alloc "c"`)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.names) != 0 {
		t.Errorf("%d names are left", len(f.names))
	}
}
