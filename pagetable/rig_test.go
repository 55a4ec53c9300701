package pagetable_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/patience"
	"dsmd/pagetable"
)

// limit is how long the suite waits for what must happen.
var limit = patience.Or(10 * time.Second)

// Rig is the table's caller in tests: it polls, remembers what each page is, and settles faults on
// pages that are present as the node does. Whatever does not happen within the limit fails the
// test. Everything runs on the test's goroutine.
type Rig struct {
	testing.TB
	fx     Fixture
	table  pagetable.Table
	pages  map[pagetable.Page]bool // present pages, and whether they are writable
	faults []pagetable.Event       // faults on pages that can't be settled by Map
	done   []pagetable.Event       // completions not asked for yet
	gone   []pagetable.Event       // the ends of programs
	next   pagetable.ProcID
}

// NewRig makes the caller of a fixture's table. It closes the table when the test ends.
func NewRig(t testing.TB, fx Fixture) *Rig {
	r := &Rig{TB: t, fx: fx, table: fx.Table, pages: make(map[pagetable.Page]bool)}
	t.Cleanup(func() { r.table.Close() })
	return r
}

// Table is the table under test.
func (r *Rig) Table() pagetable.Table { return r.table }

// Start starts a program under the next number, from 1.
func (r *Rig) Start() (Program, pagetable.ProcID) {
	r.Helper()
	r.next++
	p := r.fx.Start(r.TB, r.next)
	return p, r.next
}

// pump polls once, sorts what came, and returns how much that was. settle: whether faults on
// present pages are mapped.
func (r *Rig) pump(settle bool) int {
	r.Helper()
	var events [16]pagetable.Event
	n, err := r.table.Poll(events[:])
	if err != nil {
		r.Fatalf("Poll: %v", err)
	}
	came := events[:n]
	if settle { // what could not be settled before perhaps can
		came = append(r.faults, came...)
		r.faults = nil
	}
	for _, ev := range came {
		switch ev.Kind {
		case pagetable.Completed:
			r.done = append(r.done, ev)
		case pagetable.ProcGone:
			r.gone = append(r.gone, ev)
		case pagetable.Fault:
			writable, present := r.pages[ev.Page]
			if settle && present && (writable || !ev.Write) {
				r.Map(ev.Page, ev.Proc)
				continue
			}
			r.faults = append(r.faults, ev)
		}
	}
	return n
}

// Gone is how often the end of a program was reported.
func (r *Rig) Gone(proc pagetable.ProcID) (n int) {
	for _, ev := range r.gone {
		if ev.Proc == proc {
			n++
		}
	}
	return n
}

// UntilGone pumps until the end of a program is reported, and returns that. It settles no fault.
func (r *Rig) UntilGone(what string) (end pagetable.Event) {
	r.Helper()
	r.until("the end of "+what, false, func() bool { return len(r.gone) > 0 })
	end, r.gone = r.gone[0], r.gone[1:]
	return end
}

// until pumps until ok, waiting for the table's descriptor in between.
func (r *Rig) until(what string, settle bool, ok func() bool) {
	r.Helper()
	brief := time.Millisecond / 16 // an access ends without an event, most of them soon
	for deadline := time.Now().Add(limit); !ok(); brief = min(2*brief, time.Millisecond) {
		if time.Now().After(deadline) {
			last := r.faults[max(0, len(r.faults)-4):]
			r.Fatalf("waited %v for %s; %d faults at hand, the last of them %+v", limit, what, len(r.faults), last)
		}
		waitReadable(r.TB, r.table.WaitFD(), brief)
		r.pump(settle)
	}
}

// waitReadable waits up to d for fd and tells whether it became readable. Signals do not end the
// wait: the children of other tests, which run beside this one, send them.
func waitReadable(t testing.TB, fd int, d time.Duration) bool {
	t.Helper()
	set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for deadline := time.Now().Add(d); ; d = max(time.Until(deadline), 0) {
		ts := unix.NsecToTimespec(int64(d))
		n, err := unix.Ppoll(set, &ts, nil)
		if err != nil && err != unix.EINTR {
			t.Fatalf("poll: %v", err)
		}
		if err == nil {
			return n == 1
		}
	}
}

// awaitReadable waits until fd is readable, without reading it.
func awaitReadable(t testing.TB, fd int, why string) {
	t.Helper()
	if !waitReadable(t, fd, limit) {
		t.Fatalf("waited %v in vain: %s", limit, why)
	}
}

// Fault waits for a fault of proc on page p that is a store or is not, and returns it.
func (r *Rig) Fault(proc pagetable.ProcID, p pagetable.Page, write bool) pagetable.Event {
	r.Helper()
	var found pagetable.Event
	r.until("a fault", false, func() bool {
		for i, ev := range r.faults {
			if ev.Proc == proc && ev.Page == p && ev.Write == write {
				found = ev
				r.faults = append(r.faults[:i], r.faults[i+1:]...)
				return true
			}
		}
		return false
	})
	return found
}

// Value waits until an access has ended, settling on the way what can be settled, and returns what
// it loaded.
func (r *Rig) Value(a *Access) uint64 {
	r.Helper()
	v, err := r.Result(a)
	if err != nil {
		r.Fatalf("access: %v", err)
	}
	return v
}

// Result is Value for accesses that may fail.
func (r *Rig) Result(a *Access) (uint64, error) {
	r.Helper()
	var got result
	r.until("an access to end", true, func() bool {
		select {
		case got = <-a.done:
			return true
		default:
			return false
		}
	})
	return got.value, got.err
}

// StillWaits fails the test if the access has ended.
func (r *Rig) StillWaits(a *Access, why string) {
	r.Helper()
	select {
	case res := <-a.done:
		r.Fatalf("an access went through (%+v) although %s", res, why)
	default:
	}
}

// NoEffect checks for a while that accesses do not go through. They may fail.
func (r *Rig) NoEffect(all []*Access, why string) {
	r.Helper()
	for range 5 {
		// what must not happen has no event to wait for
		waitReadable(r.TB, r.table.WaitFD(), 2*time.Millisecond)
		r.pump(true)
		for i, a := range all {
			select {
			case res := <-a.done:
				if res.err == nil {
					r.Fatalf("access %d went through (%+v) although %s", i, res, why)
				}
			default:
			}
		}
	}
}

// Finish waits for an operation that is pending and fails the test if it failed.
func (r *Rig) Finish(op pagetable.Op, p pagetable.Page, out pagetable.Outcome, err error) {
	r.Helper()
	if err != nil {
		r.Fatalf("%v of page %d: %v", op, p, err)
	}
	if out == pagetable.Done {
		return
	}
	r.until(op.String()+" to complete", false, func() bool {
		for i, ev := range r.done {
			if ev.Op == op && ev.Page == p {
				err = ev.Err
				r.done = append(r.done[:i], r.done[i+1:]...)
				return true
			}
		}
		return false
	})
	if err != nil {
		r.Fatalf("%v of page %d, when it completed: %v", op, p, err)
	}
}

// Install installs a page and waits until it is done, then spoils data, which the table must have
// read.
func (r *Rig) Install(p pagetable.Page, data []byte, writable bool, proc pagetable.ProcID) {
	r.Helper()
	out, err := r.table.Install(p, data, writable, proc)
	for i := range data {
		data[i] = 0xEE
	}
	r.Finish(pagetable.OpInstall, p, out, err)
	r.pages[p] = writable
}

// MakeWritable makes a page writable and waits until it is done.
func (r *Rig) MakeWritable(p pagetable.Page) {
	r.Helper()
	out, err := r.table.MakeWritable(p)
	r.Finish(pagetable.OpMakeWritable, p, out, err)
	r.pages[p] = true
}

// Downgrade makes a page read-only and waits until it is done.
func (r *Rig) Downgrade(p pagetable.Page) {
	r.Helper()
	out, err := r.table.Downgrade(p)
	r.Finish(pagetable.OpDowngrade, p, out, err)
	r.pages[p] = false
}

// Revoke revokes a page, waits until it is done, and returns its last contents.
func (r *Rig) Revoke(p pagetable.Page) []byte {
	r.Helper()
	into := bytes.Repeat([]byte{0xDD}, r.table.PageBytes())
	out, err := r.table.Revoke(p, into)
	r.Finish(pagetable.OpRevoke, p, out, err)
	delete(r.pages, p)
	return into
}

// Lose declares a page lost and waits until it is done.
func (r *Rig) Lose(p pagetable.Page) {
	r.Helper()
	out, err := r.table.Lose(p)
	r.Finish(pagetable.OpLose, p, out, err)
}

// Fails waits until an access has ended, and fails the test unless it ended because its page is
// lost.
func (r *Rig) Fails(a *Access, what string) {
	r.Helper()
	if v, err := r.Result(a); !errors.Is(err, ErrLost) {
		r.Fatalf("%s ended with %#x, %v; want ErrLost", what, v, err)
	}
}

// Map maps a page as it is and waits until it is done.
func (r *Rig) Map(p pagetable.Page, proc pagetable.ProcID) {
	r.Helper()
	out, err := r.table.Map(p, r.pages[p], proc)
	r.Finish(pagetable.OpMap, p, out, err)
}

// Read is what the table says the page holds.
func (r *Rig) Read(p pagetable.Page) []byte {
	r.Helper()
	into := bytes.Repeat([]byte{0xDD}, r.table.PageBytes())
	if err := r.table.Read(p, into); err != nil {
		r.Fatalf("Read of page %d: %v", p, err)
	}
	return into
}

// Filled is a page whose words are all v.
func (r *Rig) Filled(v uint64) []byte {
	b := make([]byte, r.table.PageBytes())
	for off := 0; off < len(b); off += 8 {
		binary.NativeEndian.PutUint64(b[off:], v)
	}
	return b
}

// Word is the word at byte offset off.
func Word(b []byte, off int) uint64 { return binary.NativeEndian.Uint64(b[off:]) }

// Want fails the test if a loaded value is not what it must be.
func (r *Rig) Want(got, want uint64, what string) {
	r.Helper()
	if got != want {
		r.Fatalf("%s is %#x, want %#x", what, got, want)
	}
}
