package dsm

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"dsmd/internal/attach"
)

// No test here touches shared memory: nobody in this process could serve the fault. Those that do
// are in program_test.go.

func TestAlloc(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	a, err := Alloc[float64](within(t), c, "a", 1000)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Alloc[[3]byte](within(t), c, "b", 2)
	if err != nil {
		t.Fatal(err)
	}
	if len(a) != 1000 || cap(a) != 1000 || addressOf(&a[0]) != testBase {
		t.Errorf("a has %d of %d elements at %p", len(a), cap(a), &a[0])
	}
	if addressOf(&b[0]) != testBase+2*testPage {
		t.Errorf("b is at %p; a has two pages", &b[0])
	}
	p, err := Isolate[int64](within(t), c, "p")
	if err != nil || addressOf(p) != testBase+3*testPage {
		t.Errorf("the isolated value is at %p, %v", p, err)
	}

	again, err := Alloc[float64](within(t), c, "a", 1000)
	if err != nil || &again[0] != &a[0] {
		t.Errorf("a second Alloc returned %p, %v; the first %p", &again[0], err, &a[0])
	}
	if err := errors.Join(Free(within(t), c, a), Free(within(t), c, again), Free(within(t), c, b), FreeIsolated(within(t), c, p)); err != nil {
		t.Error(err)
	}
	wantError(t, Free(within(t), c, a), ErrNotShared)
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.countLocked(attach.OpUnbind); n != 3 || len(f.names) != 0 {
		t.Errorf("%d names were given back, 3 had been taken; %d are left", n, len(f.names))
	}
}

func TestEmptyAllocations(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	none, err := Alloc[int](within(t), c, "none", 0)
	if none == nil || len(none) != 0 || err != nil {
		t.Errorf("%v, %v", none, err)
	}
	units, err := Alloc[struct{}](within(t), c, "units", 5)
	if len(units) != 5 || err != nil {
		t.Errorf("%d, %v", len(units), err)
	}
	unit, err := Isolate[struct{}](within(t), c, "unit")
	if unit == nil || err != nil {
		t.Errorf("%v, %v", unit, err)
	}
	again, err := Alloc[int](within(t), c, "none", 0)
	if err != nil {
		t.Error(err)
	}
	_, err = Alloc[int](within(t), c, "none", 1)
	wantError(t, err, ErrMismatch)
	some, err := Alloc[int](within(t), c, "some", 3)
	if err != nil {
		t.Error(err)
	}
	// Nothing of what is not a whole allocation is freed, however often.
	for _, s := range [][]int{nil, {}, some[:0], some[1:1], some[3:]} {
		if err := Free(within(t), c, s); err != nil {
			t.Error(err)
		}
	}
	if n := f.count(attach.OpUnbind); n != 0 {
		t.Errorf("%d names were given back", n)
	}
	if err := errors.Join(Free(within(t), c, none), Free(within(t), c, again), Free(within(t), c, units), FreeIsolated(within(t), c, unit)); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"none", "units", "unit"} {
		if _, err := Alloc[int](within(t), c, name, 1); err != nil {
			t.Error(err)
		}
	}
	if err := Free(within(t), c, none); err != nil { // which is not there any more
		t.Error(err)
	}
}

func TestAllocRefusesBeforeItAsks(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	_, err := Alloc[body](within(t), c, "bodies", 4)
	wantError(t, err, ErrType, `Alloc "bodies"`, "field body.Meta.Name is a string")
	_, err = Isolate[*int](within(t), c, "p")
	wantError(t, err, ErrType, "pointer")
	_, err = Alloc[int](within(t), c, "minus", -1)
	wantError(t, err, ErrNoSpace, "-1", "negative")
	_, err = Alloc[[16]int](within(t), c, "many", math.MaxInt)
	wantError(t, err, ErrNoSpace, "9223372036854775807", "64 bits")
	_, err = Alloc[int64](within(t), c, "large", testRegion/8+1)
	wantError(t, err, ErrNoSpace, "134217729 elements of 8 bytes are 1025MiB", "region has 1024MiB", "--region 1153MiB")
	for _, n := range []int{15 << 37, 1 << 60} { // 15 TiB, and an eighth more; 8 EiB
		_, err = Alloc[int64](within(t), c, "huge", n)
		wantError(t, err, ErrNoSpace, "the whole region has 1024MiB; none can have more than 16TiB")
	}
	for _, name := range []string{"", strings.Repeat("n", 256)} {
		if _, err := Alloc[int](within(t), c, name, 1); err == nil || !strings.Contains(err.Error(), "1 to 255") {
			t.Errorf("a name of %d bytes: %v", len(name), err)
		}
	}
	if n := f.count(attach.OpBind); n != 0 {
		t.Errorf("the daemon was asked %d times", n)
	}
}

func TestRanksDisagree(t *testing.T) {
	c := newFake(t, 2).joinAll()
	if _, err := Alloc[float64](within(t), c[0], "a", 10); err != nil {
		t.Fatal(err)
	}
	_, err := Alloc[float64](within(t), c[1], "a", 11)
	wantError(t, err, ErrMismatch, "asks for 11 elements of float64", "allocated 10 elements of float64")
	_, err = Alloc[int64](within(t), c[1], "a", 10)
	wantError(t, err, ErrMismatch, "10 elements of int64", "10 elements of float64")
	_, err = Alloc[int64](within(t), c[0], "a", 10) // in the same process
	wantError(t, err, ErrMismatch, "10 elements of int64", "10 elements of float64")
	_, err = Alloc[float64](within(t), c[0], "a", 10, StaysLost())
	wantError(t, err, ErrMismatch, "StaysLost")
	if _, err := Alloc[float64](within(t), c[1], "a", 10); err != nil {
		t.Errorf("after the disagreement: %v", err)
	}
}

func TestRegionIsFull(t *testing.T) {
	c := newFake(t, 1).join()
	if _, err := Alloc[byte](within(t), c, "half", testRegion/2); err != nil {
		t.Fatal(err)
	}
	_, err := Alloc[byte](within(t), c, "more", testRegion/2+1)
	wantError(t, err, ErrNoSpace, "536870913", "1024MiB", "is freed", "--region 1537MiB")
}

func TestFaultyDaemonCannotMapElsewhere(t *testing.T) {
	var payload []byte
	f := newFake(t, 1, func(f *fake) {
		f.answer = func(call attach.Call) (attach.Reply, bool) {
			return attach.Reply{Ticket: call.Ticket, Payload: payload}, call.Op == attach.OpBind
		}
	})
	c := f.join()
	for _, p := range [][]byte{nil, attach.AppendPages(nil, 0, 2), attach.AppendPages(nil, testRegion/testPage, 1), attach.AppendPages(nil, 1<<63, 1)} {
		f.mu.Lock()
		payload = p
		f.mu.Unlock()
		if _, err := Alloc[int](within(t), c, "a", 1); err == nil {
			t.Errorf("pages %v were mapped", p)
		}
	}
}

func TestFreeWhatIsNotAllocated(t *testing.T) {
	c := newFake(t, 1).join()
	s, err := Alloc[int](within(t), c, "s", 1024)
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, Free(within(t), c, make([]int, 4)), ErrNotShared, "exactly as Alloc returned it")
	wantError(t, Free(within(t), c, s[1:]), ErrNotShared)
	wantError(t, Free(within(t), c, s[:10]), ErrNotShared)
	wantError(t, FreeIsolated[int](within(t), c, nil), ErrNotShared)
	wantError(t, FreeIsolated(within(t), c, new(int)), ErrNotShared)
	if err := Free(within(t), c, s); err != nil {
		t.Error(err)
	}
}

// TestFreeOfPinned: memory that is pinned, once or twice, stays as it is, and what was freed can't
// be pinned.
func TestFreeOfPinned(t *testing.T) {
	c := newFake(t, 1).join()
	s, err := Alloc[int](within(t), c, "s", 1024)
	if err != nil {
		t.Fatal(err)
	}
	m := c.memoryCalled("s")
	for range 2 {
		if !m.keep(c) {
			t.Fatal("memory that is there can't be pinned")
		}
	}
	wantError(t, Free(within(t), c, s), ErrInUse, "Free \"s\"", "pinned")
	m.letGo(c)
	wantError(t, Free(within(t), c, s), ErrInUse)
	if again, err := Alloc[int](within(t), c, "s", 1024); err != nil || &again[0] != &s[0] {
		t.Errorf("the memory is not there any more: %v", err)
	}
	if err := Free(within(t), c, s); err != nil { // the second Alloc's
		t.Error(err)
	}
	m.letGo(c)
	if err := Free(within(t), c, s); err != nil {
		t.Error(err)
	}
	if m.keep(c) {
		t.Error("memory that was freed can be pinned")
	}
	wantError(t, Free(within(t), c, s), ErrNotShared)
}

// TestFreeOfHeld: who frees memory that a checkpoint has waits for that, no longer than with the
// context, and does not keep others from allocating.
func TestFreeOfHeld(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	s, err := Alloc[int](within(t), c, "s", 1024)
	if err != nil {
		t.Fatal(err)
	}
	list, release := hold(c, func(m *allocation) bool { return m.name == "s" })
	if len(list) != 1 {
		t.Fatalf("%d allocations are held", len(list))
	}
	soon, cancel := context.WithTimeout(within(t), time.Second) // it waits by then
	defer cancel()
	wantError(t, Free(soon, c, s), context.DeadlineExceeded, `Free "s"`, "a checkpoint")
	freed := make(chan error)
	go func() { freed <- Free(within(t), c, s) }()
	if other, err := Alloc[int](within(t), c, "other", 1); err != nil || Free(within(t), c, other) != nil {
		t.Errorf("beside memory that is held: %v", err)
	}
	if n := f.count(attach.OpUnbind); n != 1 {
		t.Errorf("%d names were given back", n)
	}
	release()
	if err := <-freed; err != nil {
		t.Error(err)
	}
	if n := f.count(attach.OpUnbind); n != 2 {
		t.Errorf("%d names were given back in the end", n)
	}
}

func TestPrefetch(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	if _, err := Alloc[byte](within(t), c, "before", 1); err != nil {
		t.Fatal(err)
	}
	s, err := Alloc[byte](within(t), c, "s", 3*testPage)
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	for _, part := range []struct {
		s            []byte
		first, count uint64
	}{{s, 1, 3}, {s[testPage-1 : testPage+1], 1, 2}, {s[testPage : 2*testPage], 2, 1}} {
		if err := Prefetch(ctx, c, part.s, Write); err != nil {
			t.Error(err)
		}
		f.mu.Lock()
		call := f.calls[len(f.calls)-1]
		f.mu.Unlock()
		if call.Object != part.first || call.Count != part.count || call.Access != attach.Write {
			t.Errorf("asked for %d pages from %d; want %d from %d", call.Count, call.Object, part.count, part.first)
		}
	}
	if err := Prefetch(ctx, c, s[:0], Read); err != nil {
		t.Errorf("nothing: %v", err)
	}
	wantError(t, Prefetch(ctx, c, make([]byte, 3), Read), ErrNotShared)
	wantError(t, Prefetch(ctx, c, overlong(s), Read), ErrNotShared)
	if err := Prefetch(ctx, c, s, 0); err == nil {
		t.Error("access 0 was accepted")
	}
}

func TestUseAfterClose(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	s, err := Alloc[int](within(t), c, "s", 1)
	if err != nil {
		t.Fatal(err)
	}
	m, rw, b := NewMutex(c, "m"), NewRWMutex(c, "rw"), NewBarrier(c, "b", Parties(1), Team(2))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	_, errAlloc := Alloc[int](within(t), c, "t", 1)
	_, errIsolate := Isolate[int](within(t), c, "u")
	_, errReduce := Reduce(ctx, c, "r", 1, Sum)
	_, errStats := c.Stats(ctx)
	for what, err := range map[string]error{
		"Alloc": errAlloc, "Isolate": errIsolate, "Free": Free(within(t), c, s), "Reduce": errReduce, "Stats": errStats,
		"Lock": m.Lock(ctx), "Unlock": m.Unlock(), "RLock": rw.RLock(ctx), "RUnlock": rw.RUnlock(),
		"Barrier": c.Barrier(ctx), "Wait": b.Wait(ctx), "Prefetch": Prefetch(ctx, c, s, Read), "Close": c.Close(),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
}

// TestAllocAndFreeWithContexts: who allocates gives up with its context, and has nothing then.
// Memory that is freed is free in any case: the next Alloc of the name is another one.
func TestAllocAndFreeWithContexts(t *testing.T) {
	var waiting uint64
	var silent bool // guarded by f.mu: the node that keeps the names does not answer
	f := newFake(t, 1, func(f *fake) {
		f.answer = func(call attach.Call) (attach.Reply, bool) {
			switch {
			case !silent:
				return attach.Reply{}, false
			case call.Op == attach.OpCancel:
				return attach.Reply{Ticket: waiting, Status: attach.StatusCanceled}, true
			}
			waiting = call.Ticket
			return attach.Reply{}, true
		}
	})
	c := f.join()
	s, err := Alloc[int](within(t), c, "s", 1)
	if err != nil {
		t.Fatal(err)
	}
	silence := func(now bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		silent = now
	}
	ended, end := context.WithCancel(within(t))
	errs := make(chan error)
	silence(true)
	go func() {
		_, err := Alloc[int](ended, c, "late", 1)
		errs <- err
	}()
	f.awaitCalls(attach.OpBind, 2)
	end()
	wantError(t, <-errs, context.Canceled, `Alloc "late"`)
	_, err = Isolate[int](ended, c, "late")
	wantError(t, err, context.Canceled)
	wantError(t, Free(ended, c, s), context.Canceled)
	if n := f.count(attach.OpUnbind); n != 0 {
		t.Errorf("a Free whose context had ended made %d calls", n)
	}

	ended, end = context.WithCancel(within(t))
	go func() { errs <- Free(ended, c, s) }()
	f.awaitCalls(attach.OpUnbind, 1)
	end()
	wantError(t, <-errs, context.Canceled, `Free "s"`)
	silence(false)
	wantError(t, Free(within(t), c, s), ErrNotShared)
	if err := f.answerLate(c, waiting); err != nil {
		t.Error(err)
	}
	if _, err := Alloc[int64](within(t), c, "other", 2); err != nil {
		t.Error(err)
	}
}

// answerLate answers a call for which nobody waits any more.
func (f *fake) answerLate(c *Cluster, ticket uint64) error {
	f.mu.Lock()
	f.reply(f.programs[0], attach.Reply{Ticket: ticket})
	f.mu.Unlock()
	_, err := c.Stats(within(f.t)) // reads what has come before
	return err
}

// TestUnits: a size in a message is never less than it is, and short.
func TestUnits(t *testing.T) {
	for bytes, want := range map[uint64]string{0: "0B", 2047: "2047B", 2048: "2KiB", 2049: "3KiB", 64 << 30: "64GiB", 11<<40 - 1: "11TiB", 1 << 60: "1048576TiB"} {
		if got := inUnits(bytes); got != want {
			t.Errorf("%d bytes are %s, want %s", bytes, got, want)
		}
	}
}
