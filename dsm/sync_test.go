package dsm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/checkpoint"
	"dsmd/internal/runstats"
)

func TestMutex(t *testing.T) {
	f := newFake(t, 2)
	c := f.joinAll()
	ctx := within(t)
	var mu sync.Mutex // the race detector can't see that the daemon orders these
	inside, most := 0, 0
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			m := NewMutex(c[i%2], "counter")
			for range 50 {
				if err := m.Lock(ctx); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				inside++
				most = max(most, inside)
				mu.Unlock()
				runtime.Gosched()
				mu.Lock()
				inside--
				mu.Unlock()
				if err := m.Unlock(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if most != 1 {
		t.Errorf("%d goroutines held the lock at once", most)
	}
}

func TestRWMutex(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	ctx := within(t)
	m := NewRWMutex(c, "rw")
	if err := errors.Join(m.RLock(ctx), m.RLock(ctx)); err != nil {
		t.Fatal(err) // two readers at once
	}
	writing := make(chan error)
	go func() { writing <- m.Lock(ctx) }()
	f.awaitCalls(attach.OpAcquire, 3)
	wantError(t, m.Unlock(), ErrNotHeld, `Unlock "rw"`)
	if err := errors.Join(m.RUnlock(), m.RUnlock(), <-writing); err != nil {
		t.Fatal(err)
	}
	wantError(t, m.RUnlock(), ErrNotHeld)
	if err := m.Unlock(); err != nil {
		t.Error(err)
	}
	wantError(t, m.Unlock(), ErrNotHeld)
	wantError(t, NewMutex(c, "never locked").Unlock(), ErrNotHeld, "never locked")
}

func TestLockCanceled(t *testing.T) {
	f := newFake(t, 2)
	c := f.joinAll()
	mine, theirs := NewMutex(c[0], "m"), NewMutex(c[1], "m")
	if err := theirs.Lock(within(t)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(within(t))
	got := make(chan error)
	go func() { got <- mine.Lock(ctx) }()
	f.awaitCalls(attach.OpAcquire, 2)
	cancel()
	wantError(t, <-got, context.Canceled, `Lock "m"`)
	wantError(t, mine.Unlock(), ErrNotHeld)
	if err := theirs.Unlock(); err != nil {
		t.Fatal(err)
	}
	if err := mine.Lock(within(t)); err != nil {
		t.Errorf("the lock after a canceled Lock: %v", err)
	}
	before := f.count(attach.OpAcquire)
	wantError(t, theirs.Lock(ctx), context.Canceled)
	if n := f.count(attach.OpAcquire); n != before {
		t.Error("a Lock whose context had ended asked the daemon")
	}
}

// waitsForCancel has a daemon say nothing to a call until that is cancelled, and then answer it.
func waitsForCancel(op attach.Op, status attach.Status) func(*fake) {
	return func(f *fake) {
		var waiting uint64
		f.answer = func(call attach.Call) (attach.Reply, bool) {
			switch call.Op {
			case op:
				waiting = call.Ticket
				return attach.Reply{}, true
			case attach.OpCancel:
				return attach.Reply{Ticket: waiting, Status: status}, true
			}
			return attach.Reply{}, false
		}
	}
}

// TestCancelTooLate: the daemon grants the lock while the cancellation is on its way. The caller
// must then know that it holds the lock.
func TestCancelTooLate(t *testing.T) {
	f := newFake(t, 1, waitsForCancel(attach.OpAcquire, attach.StatusOK))
	c := f.join()
	m := NewMutex(c, "m")
	ctx, cancel := context.WithCancel(within(t))
	got := make(chan error)
	go func() { got <- m.Lock(ctx) }()
	f.awaitCalls(attach.OpAcquire, 1)
	cancel()
	if err := <-got; err != nil {
		t.Errorf("Lock: %v", err)
	}
	if err := m.Unlock(); err != nil {
		t.Errorf("Unlock: %v", err)
	}
}

func TestBarrierOfAllRanks(t *testing.T) {
	f := newFake(t, 3)
	c := f.joinAll()
	ctx := within(t)
	var all sync.WaitGroup
	var mu sync.Mutex
	passed := make([]int, 3)
	for rank := range c {
		all.Go(func() {
			for round := range 20 {
				if err := c[rank].Barrier(ctx); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				passed[rank] = round + 1
				for _, other := range passed {
					if other < round || other > round+2 {
						t.Errorf("rank %d is in round %d, another has passed %d", rank, round, other)
					}
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()

	go c[0].Barrier(ctx)
	f.awaitCalls(attach.OpArrive, 61)
	wantError(t, c[0].Barrier(ctx), ErrInUse, "dsm.NewBarrier with dsm.Team")
	canceled, cancel := context.WithCancel(ctx)
	got := make(chan error)
	go func() { got <- c[1].Barrier(canceled) }()
	f.awaitCalls(attach.OpArrive, 62)
	cancel()
	wantError(t, <-got, context.Canceled, "Barrier")
	if err := c[1].Close(); err != nil {
		t.Error(err)
	}
}

func TestBarrierMismatch(t *testing.T) {
	f := newFake(t, 2)
	c := f.joinAll()
	ctx, cancel := context.WithCancel(within(t))
	got := make(chan error)
	go func() { got <- NewBarrier(c[0], "b", Parties(2)).Wait(ctx) }()
	f.awaitCalls(attach.OpArrive, 1)
	wantError(t, NewBarrier(c[1], "b", Parties(3)).Wait(ctx), ErrMismatch, "3 parties", `barrier "b"`)
	cancel()
	wantError(t, <-got, context.Canceled)
	for _, bad := range [][2]int{{0, 1}, {-1, 1}, {MaxParties + 1, 1}, {1, 0}} {
		func() {
			defer func() {
				if s := fmt.Sprint(recover()); !strings.Contains(s, `barrier "bad"`) {
					t.Errorf("NewBarrier with %v: %s", bad, s)
				}
			}()
			NewBarrier(c[0], "bad", Parties(bad[0]), Team(bad[1]))
		}()
	}
}

// TestBarrierOfWhom: one goroutine of each rank, if no option says otherwise; and options go
// together.
func TestBarrierOfWhom(t *testing.T) {
	f := newFake(t, 3)
	c := f.joinAll()
	for i, b := range []*Barrier{
		NewBarrier(c[0], "a"), NewBarrier(c[0], "b", Parties(2)), NewBarrier(c[0], "c", Team(2)), NewBarrier(c[0], "d", Team(2), Parties(5)),
	} {
		ctx, cancel := context.WithCancel(within(t))
		waiting := make(chan error, b.local)
		for range b.local {
			go func() { waiting <- b.Wait(ctx) }()
		}
		f.awaitCalls(attach.OpArrive, i+1)
		cancel()
		for range b.local {
			wantError(t, <-waiting, context.Canceled)
		}
		f.mu.Lock()
		last := f.calls[slices.IndexFunc(f.calls, func(c attach.Call) bool { return c.Op == attach.OpArrive && c.Object == b.hash })]
		f.mu.Unlock()
		if want := []uint32{3, 2, 3, 5}[i]; last.Parties != want {
			t.Errorf("barrier %q: %d parties, want %d", b.name, last.Parties, want)
		}
	}
	var among Group = c[1]
	done, give := context.WithCancel(within(t))
	give()
	wantError(t, among.Barrier(done), context.Canceled)
}

func TestTeamBarrier(t *testing.T) {
	const rounds, local = 20, 4
	f := newFake(t, 2)
	c := f.joinAll()
	ctx := within(t)
	var all sync.WaitGroup
	for rank := range c {
		b := NewBarrier(c[rank], "team", Parties(2), Team(local))
		for range local {
			all.Go(func() {
				for range rounds {
					if err := b.Wait(ctx); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	if n := f.count(attach.OpArrive); n != 2*rounds {
		t.Errorf("%d messages for %d rounds of 2 processes", n, rounds)
	}
}

func TestTeamMemberGivesUp(t *testing.T) {
	f := newFake(t, 2)
	c := f.joinAll()
	var explained atomic.Int32 // by the call; who gives up does so by himself, once
	c[0].explain = func(*wait) string { explained.Add(1); return "" }
	b := NewBarrier(c[0], "team", Parties(2), Team(2))

	// Alone: it withdraws itself only, and the team can still be completed by others.
	alone, cancel := context.WithCancel(within(t))
	got := make(chan error)
	go func() { got <- b.Wait(alone) }()
	cancel()
	wantError(t, <-got, context.Canceled)

	// Complete: the whole team withdraws.
	impatient, cancel := context.WithCancel(within(t))
	patient := make(chan error)
	go func() { got <- b.Wait(impatient) }()
	go func() { patient <- b.Wait(within(t)) }()
	f.awaitCalls(attach.OpArrive, 1)
	cancel()
	wantError(t, <-got, context.Canceled)
	wantError(t, <-patient, context.Canceled, "another goroutine of the team")
	if n := explained.Load(); n > 0 {
		t.Errorf("what the team waited for was found out %d more times", n)
	}
	f.mu.Lock()
	for _, in := range f.barriers {
		if len(in) != 0 {
			t.Errorf("%d arrivals are left at the daemon", len(in))
		}
	}
	f.mu.Unlock()

	// And the barrier works afterwards.
	errs := make(chan error, 3)
	for range 2 {
		go func() { errs <- b.Wait(within(t)) }()
	}
	go func() { errs <- NewBarrier(c[1], "team", Parties(2), Team(1)).Wait(within(t)) }()
	for range 3 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// reduceAll runs the same reduction on all ranks with values of v.
func reduceAll[T any](t *testing.T, c []*Cluster, v []T, op func(a, b T) T) []T {
	t.Helper()
	results := make([]T, len(c))
	var all sync.WaitGroup
	for rank := range c {
		all.Go(func() {
			var err error
			if results[rank], err = Reduce(within(t), c[rank], "r", v[rank], op); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	return results
}

func TestReduce(t *testing.T) {
	c := newFake(t, 3).joinAll()
	for _, got := range reduceAll(t, c, []int{3, 5, 9}, Sum[int]) {
		if got != 17 {
			t.Errorf("sum %d", got)
		}
	}
	for _, got := range reduceAll(t, c, []float64{3, math.Inf(-1), 9}, Min[float64]) {
		if got != math.Inf(-1) {
			t.Errorf("min %v", got)
		}
	}
	for _, got := range reduceAll(t, c, []uint8{3, 250, 9}, Max[uint8]) {
		if got != 250 {
			t.Errorf("max %v", got)
		}
	}
	// Neither commutative nor associative: the order is that of ranks.
	type figures struct {
		Last int32
		Hash float64
	}
	op := func(a, b figures) figures { return figures{b.Last, a.Hash*0.1 + b.Hash} }
	v := []figures{{1, 0.1}, {2, 0.7}, {3, 1e-9}}
	want := op(op(v[0], v[1]), v[2])
	for _, got := range reduceAll(t, c, v, op) {
		if got != want {
			t.Errorf("folded to %v, want %v", got, want)
		}
	}
	for _, got := range reduceAll(t, c, make([]struct{}, 3), func(a, b struct{}) struct{} { return a }) {
		_ = got // a value without size is a barrier
	}
}

func TestAllGather(t *testing.T) {
	c := newFake(t, 3).joinAll()
	errs := together(c, func(c *Cluster) error {
		all, err := AllGather(within(t), c, "g", [2]int{c.Rank(), 7 * c.Rank()})
		if want := [][2]int{{0, 0}, {1, 7}, {2, 14}}; err == nil && !slices.Equal(all, want) {
			return fmt.Errorf("gathered %v, want %v", all, want)
		}
		return err
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	_, err := AllGather(within(t), c[0], "big", [128]float64{})
	wantError(t, err, ErrNoSpace, `AllGather "big"`, "1024 bytes", "1016")
}

// TestAllGatherBytes: every rank gets all bytes, none or the most that there can be; not others of
// other ranks' length.
func TestAllGatherBytes(t *testing.T) {
	c := newFake(t, 3).joinAll()
	for _, n := range []int{0, 1, MaxReduceBytes} {
		errs := together(c, func(c *Cluster) error {
			all, err := AllGatherBytes(within(t), c, "g", bytes.Repeat([]byte{byte(c.Rank() + 1)}, n))
			for from := range all {
				if !bytes.Equal(all[from], bytes.Repeat([]byte{byte(from + 1)}, n)) {
					return fmt.Errorf("of rank %d came % x", from, all[from])
				}
			}
			if err == nil && len(all) != 3 {
				return fmt.Errorf("%d slices came", len(all))
			}
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	}
	_, err := AllGatherBytes(within(t), c[0], "big", make([]byte, MaxReduceBytes+1))
	wantError(t, err, ErrNoSpace, `AllGatherBytes "big"`, "1017 bytes", "1016")
}

func TestReduceMisuse(t *testing.T) {
	f := newFake(t, 2)
	c := f.joinAll()
	_, err := Reduce(within(t), c[0], "big", [128]float64{}, func(a, b [128]float64) [128]float64 { return a })
	wantError(t, err, ErrNoSpace, `Reduce "big"`, "1024 bytes", "1016")
	_, err = Reduce(within(t), c[0], "text", "x", func(a, b string) string { return a })
	wantError(t, err, ErrType, "string")

	other := make(chan error)
	go func() {
		_, err := Reduce(within(t), c[1], "r", int64(1), Sum)
		other <- err
	}()
	f.awaitCalls(attach.OpArrive, 1)
	_, err = Reduce(within(t), c[1], "r", int64(1), Sum)
	wantError(t, err, ErrInUse)
	_, err = Reduce(within(t), c[0], "r", float64(1), Sum)
	wantError(t, err, ErrMismatch, "another type", "float64")
	wantError(t, <-other, ErrMismatch, "another type", "int64")
}

func TestAllReduceMisuse(t *testing.T) {
	f := newFake(t, 2)
	c := f.joinAll()
	_, err := AllReduce(within(t), c[0], "op", OpMax+1, []int{1})
	wantError(t, err, ErrMismatch, `AllReduce "op"`, "Op(4)", "use OpSum, OpMin or OpMax")
	_, err = AllReduce(within(t), c[0], "least", OpMin, []complex64{1})
	wantError(t, err, ErrType, "none is the least")
	_, err = AllReduce(within(t), c[0], "long", OpSum, make([]int16, MaxAllReduceBytes/2+1))
	wantError(t, err, ErrNoSpace, "32769 values", "65538 bytes", "65536")
	other := make(chan error)
	go func() {
		_, err := AllReduce(within(t), c[1], "r", OpSum, []int(nil)) // a barrier
		other <- err
	}()
	f.awaitCalls(attach.OpArrive, 1)
	_, err = Reduce(within(t), c[1], "r", 1, Sum)
	wantError(t, err, ErrInUse)
	none, err := AllReduce(within(t), c[0], "r", OpSum, []int{})
	if len(none) > 0 || err != nil {
		t.Errorf("nothing is combined to %v, %v", none, err)
	}
	if err := <-other; err != nil {
		t.Error(err)
	}
}

// TestAllReduceInParts: who has come for a long slice does not leave as soon as its context ends,
// and does not wait for ever for a rank that has come once and does not come again.
func TestAllReduceInParts(t *testing.T) {
	defer func(before time.Duration) { comingTime = before }(comingTime)
	comingTime = 100 * time.Millisecond
	f := newFake(t, 2, func(f *fake) {
		f.answer = func(call attach.Call) (attach.Reply, bool) {
			if call.Op == attach.OpCancel {
				return attach.Reply{Ticket: call.Ticket, Status: attach.StatusCanceled}, true
			}
			return attach.Reply{}, call.Op == attach.OpArrive && call.Fold != attach.NoFold
		}
	})
	ctx, end := context.WithCancel(within(t))
	errs := make(chan error, 2)
	for _, c := range f.joinAll() {
		go func() {
			_, err := AllReduce(ctx, c, "long", OpSum, make([]int64, 1000))
			errs <- err
		}()
	}
	f.awaitCalls(attach.OpArrive, 4) // both have come to the first part
	began := time.Now()
	end()
	for range 2 {
		select {
		case err := <-errs:
			wantError(t, err, context.Canceled, `AllReduce "long"`, "100ms")
		case <-within(t).Done():
			t.Fatal("a rank waits for ever")
		}
	}
	if took := time.Since(began); took < comingTime {
		t.Errorf("a rank has left after %v", took)
	}
}

// TestLostWithoutMemory: no shared memory was allocated, though that was tried, so nothing can
// hang, and the process goes on with errors.
func TestLostWithoutMemory(t *testing.T) {
	for name, c := range map[string]struct {
		breaks func(*fake)
		part   string
	}{
		"daemon dies":  {func(f *fake) { f.die() }, "closed the connection"},
		"cluster lost": {func(f *fake) { f.program(0).conn.Write(attach.AppendLost(nil, "node 3 has died")) }, "node 3 has died"},
		"daemon raves": {func(f *fake) { f.program(0).conn.Write([]byte("gibberish")) }, "malformed"},
		"wrong frame":  {func(f *fake) { f.program(0).conn.Write(attach.AppendReady(nil)) }, "unexpected Ready"},
		"wrong ticket": {func(f *fake) { f.program(0).conn.Write(attach.AppendReply(nil, &attach.Reply{Ticket: 99})) }, "call 99"},
		"bad reply":    {func(f *fake) { f.program(0).conn.Write([]byte{0, 0, 0, 0, byte(attach.KindReply), 0, 0, 0}) }, "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, 2)
			p := f.join()
			file := p.region.files[0]
			p.region.files[0] = -1 // can't be mapped
			_, err := Alloc[int](within(t), p, "not mapped", 1)
			wantError(t, err, unix.EBADF)
			p.region.files[0] = file
			errs := make(chan error, 3)
			go func() { errs <- p.Barrier(context.Background()) }()
			go func() { errs <- NewBarrier(p, "b", Parties(2), Team(2)).Wait(context.Background()) }()
			go func() {
				_, err := Reduce(context.Background(), p, "r", 1, Sum)
				errs <- err
			}()
			f.awaitCalls(attach.OpArrive, 2)
			c.breaks(f)
			for range cap(errs) {
				wantError(t, <-errs, ErrLost, c.part)
			}
			wantError(t, NewMutex(p, "m").Lock(context.Background()), ErrLost, c.part)
			_, err = Alloc[int](within(t), p, "late", 1)
			wantError(t, err, ErrLost, c.part)
			wantError(t, p.Close(), ErrLost)
			wantError(t, p.Close(), ErrClosed)
		})
	}
}

// TestCloseEndsWaits: calls that wait when Close is called return.
func TestCloseEndsWaits(t *testing.T) {
	f := newFake(t, 2)
	c := f.join()
	errs := make(chan error, 2)
	go func() { errs <- c.Barrier(context.Background()) }()
	go func() { errs <- NewBarrier(c, "b", Parties(2)).Wait(context.Background()) }()
	f.awaitCalls(attach.OpArrive, 2)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	for range cap(errs) {
		wantError(t, <-errs, ErrClosed)
	}
}

// TestSaveAtBarriersLocks: a job takes the directory from the start. If another has it, it learns
// of that at its first barrier, not when it is time for a checkpoint.
func TestSaveAtBarriersLocks(t *testing.T) {
	c := newFake(t, 2).joinAll()
	for _, locked := range []bool{true, false} {
		store, err := checkpoint.Create(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if locked {
			unlock, err := store.Lock()
			if err != nil {
				t.Fatal(err)
			}
			defer unlock()
		}
		for i, x := range c {
			x.saves.every = every{dir: store.Dir(), after: time.Hour, last: time.Now()}
			x.SaveAtBarriers(func() []byte { return nil })
			if asks, due := x.saves.savesAt(time.Now()); !asks || due != (locked && i == 0) {
				t.Errorf("another job has the directory: %v; rank %d asks: %v, finds it time: %v", locked, i, asks, due)
			}
		}
		if _, err := store.Lock(); !errors.Is(err, checkpoint.ErrLocked) {
			t.Errorf("%v, want %v", err, checkpoint.ErrLocked)
		}
	}
}

// TestWaitsAreToldAsCalled: a rank says what it waits for in the words of the program, also where
// the library meets by other means.
func TestWaitsAreToldAsCalled(t *testing.T) {
	f := newFake(t, 2)
	c := f.joinAll()
	for _, x := range c {
		x.saves.every.dir = t.TempDir()
		x.SaveAtBarriers(func() []byte { return nil })
	}
	for name, test := range map[string]struct {
		call func(c *Cluster) error
		want string
	}{
		"Barrier": {func(c *Cluster) error { return c.Barrier(within(t)) }, `at barrier "all ranks"`},
		"Reduce": {func(c *Cluster) error {
			_, err := Reduce(within(t), c, "error", 1, Max)
			return err
		}, `in reduction "error"`},
		"agree": {func(c *Cluster) error { return agree(within(t), c, vote{kind: ErrCheckpoint, what: "pages: all"}) }, `in reduction "checkpoint/pages"`},
	} {
		ended := make(chan error, 1)
		go func() { ended <- test.call(c[0]) }()
		var list []runstats.Wait
		f.await(name, func() bool {
			list = c[0].attendant.waits.list(time.Now())
			return len(list) == 1
		})
		if got := list[0].String(); !strings.HasPrefix(got, test.want+" since ") {
			t.Errorf("%s is told as %s, want %s", name, got, test.want)
		}
		if err := errors.Join(test.call(c[1]), <-ended); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
