package dsm

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"dsmd/internal/attach"
)

// No test here touches shared memory: nobody in this process could serve the fault. Those that do are
// in program_test.go.

func TestAlloc(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	a, err := Alloc[float64](c, "a", 1000)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Alloc[[3]byte](c, "b", 2, WithContext(within(t)))
	if err != nil {
		t.Fatal(err)
	}
	if len(a) != 1000 || cap(a) != 1000 || addressOf(&a[0]) != testBase {
		t.Errorf("a has %d of %d elements at %p", len(a), cap(a), &a[0])
	}
	if addressOf(&b[0]) != testBase+2*testPage {
		t.Errorf("b is at %p; a has two pages", &b[0])
	}
	p, err := Isolate[int64](c, "p")
	if err != nil || addressOf(p) != testBase+3*testPage {
		t.Errorf("the isolated value is at %p, %v", p, err)
	}

	again, err := Alloc[float64](c, "a", 1000)
	if err != nil || &again[0] != &a[0] {
		t.Errorf("a second Alloc returned %p, %v; the first %p", &again[0], err, &a[0])
	}
	if err := errors.Join(Free(c, a), Free(c, again), Free(c, b), FreeIsolated(c, p)); err != nil {
		t.Error(err)
	}
	wantError(t, Free(c, a), ErrNotShared)
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.countLocked(attach.OpUnbind); n != 3 || len(f.names) != 0 {
		t.Errorf("%d names were given back, 3 had been taken; %d are left", n, len(f.names))
	}
}

func TestEmptyAllocations(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	none, err := Alloc[int](c, "none", 0)
	if none == nil || len(none) != 0 || err != nil {
		t.Errorf("%v, %v", none, err)
	}
	units, err := Alloc[struct{}](c, "units", 5)
	if len(units) != 5 || err != nil {
		t.Errorf("%d, %v", len(units), err)
	}
	unit, err := Isolate[struct{}](c, "unit")
	if unit == nil || err != nil {
		t.Errorf("%v, %v", unit, err)
	}
	if err := errors.Join(Free(c, none), Free(c, units), FreeIsolated(c, unit), Free[int](c, nil)); err != nil {
		t.Error(err)
	}
	_, err = Alloc[int](c, "none", 1)
	wantError(t, err, ErrMismatch)
}

func TestAllocRefusesBeforeItAsks(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	_, err := Alloc[body](c, "bodies", 4)
	wantError(t, err, ErrType, `Alloc "bodies"`, "field body.Meta.Name is a string")
	_, err = Isolate[*int](c, "p")
	wantError(t, err, ErrType, "pointer")
	_, err = Alloc[int](c, "minus", -1)
	wantError(t, err, ErrNoSpace, "-1", "negative")
	_, err = Alloc[[16]int](c, "many", math.MaxInt)
	wantError(t, err, ErrNoSpace, "9223372036854775807", "64 bits")
	_, err = Alloc[int64](c, "large", testRegion/8+1)
	wantError(t, err, ErrNoSpace, "134217729 elements of 8 bytes are 1073741832 bytes", "1073741824", "larger region")
	for _, name := range []string{"", strings.Repeat("n", 256)} {
		if _, err := Alloc[int](c, name, 1); err == nil || !strings.Contains(err.Error(), "1 to 255") {
			t.Errorf("a name of %d bytes: %v", len(name), err)
		}
	}
	if n := f.count(attach.OpBind); n != 0 {
		t.Errorf("the daemon was asked %d times", n)
	}
}

func TestRanksDisagree(t *testing.T) {
	c := newFake(t, 2).joinAll()
	if _, err := Alloc[float64](c[0], "a", 10); err != nil {
		t.Fatal(err)
	}
	_, err := Alloc[float64](c[1], "a", 11)
	wantError(t, err, ErrMismatch, "asks for 11 elements of float64", "allocated 10 elements of float64")
	_, err = Alloc[int64](c[1], "a", 10)
	wantError(t, err, ErrMismatch, "10 elements of int64", "10 elements of float64")
	_, err = Alloc[int64](c[0], "a", 10) // in the same process
	wantError(t, err, ErrMismatch, "10 elements of int64", "10 elements of float64")
	if _, err := Alloc[float64](c[1], "a", 10); err != nil {
		t.Errorf("after the disagreement: %v", err)
	}
}

func TestRegionIsFull(t *testing.T) {
	c := newFake(t, 1).join()
	if _, err := Alloc[byte](c, "half", testRegion/2); err != nil {
		t.Fatal(err)
	}
	_, err := Alloc[byte](c, "more", testRegion/2+1)
	wantError(t, err, ErrNoSpace, "536870913", "1073741824", "free something")
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
		if _, err := Alloc[int](c, "a", 1); err == nil {
			t.Errorf("pages %v were mapped", p)
		}
	}
}

func TestFreeWhatIsNotAllocated(t *testing.T) {
	c := newFake(t, 1).join()
	s, err := Alloc[int](c, "s", 1024)
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, Free(c, make([]int, 4)), ErrNotShared, "exactly as Alloc returned it")
	wantError(t, Free(c, s[1:]), ErrNotShared)
	wantError(t, Free(c, s[:10]), ErrNotShared)
	wantError(t, FreeIsolated[int](c, nil), ErrNotShared)
	wantError(t, FreeIsolated(c, new(int)), ErrNotShared)
	if err := Free(c, s); err != nil {
		t.Error(err)
	}
}

// TestFreeOfPinned: memory that is pinned, once or twice, stays as it is, and what was freed can't be pinned.
func TestFreeOfPinned(t *testing.T) {
	c := newFake(t, 1).join()
	s, err := Alloc[int](c, "s", 1024)
	if err != nil {
		t.Fatal(err)
	}
	m := c.memoryCalled("s")
	for range 2 {
		if !c.keep(m) {
			t.Fatal("memory that is there can't be pinned")
		}
	}
	wantError(t, Free(c, s), ErrInUse, "Free \"s\"", "pinned")
	c.letGo(m)
	wantError(t, Free(c, s), ErrInUse)
	if again, err := Alloc[int](c, "s", 1024); err != nil || &again[0] != &s[0] {
		t.Errorf("the memory is not there any more: %v", err)
	}
	if err := Free(c, s); err != nil { // the second Alloc's
		t.Error(err)
	}
	c.letGo(m)
	if err := Free(c, s); err != nil {
		t.Error(err)
	}
	if c.keep(m) {
		t.Error("memory that was freed can be pinned")
	}
	wantError(t, Free(c, s), ErrNotShared)
}

func TestPrefetch(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	if _, err := Alloc[byte](c, "before", 1); err != nil {
		t.Fatal(err)
	}
	s, err := Alloc[byte](c, "s", 3*testPage)
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
	s, err := Alloc[int](c, "s", 1)
	if err != nil {
		t.Fatal(err)
	}
	m, rw, b := NewMutex(c, "m"), NewRWMutex(c, "rw"), NewTeamBarrier(c, "b", 1, 2)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	_, errAlloc := Alloc[int](c, "t", 1)
	_, errIsolate := Isolate[int](c, "u")
	_, errReduce := Reduce(ctx, c, "r", 1, Sum)
	_, errStats := c.Stats(ctx)
	for what, err := range map[string]error{
		"Alloc": errAlloc, "Isolate": errIsolate, "Free": Free(c, s), "Reduce": errReduce, "Stats": errStats,
		"Lock": m.Lock(ctx), "Unlock": m.Unlock(), "RLock": rw.RLock(ctx), "RUnlock": rw.RUnlock(),
		"Barrier": c.Barrier(ctx), "Wait": b.Wait(ctx), "Prefetch": Prefetch(ctx, c, s, Read), "Close": c.Close(),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
}
