package nemesis

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"dsmd/dsm"

	"golang.org/x/sys/unix"
)

// now reads the clock by which all programs write their histories: the kernel's monotonic one,
// which all machines that are namespaces share.
func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(fmt.Sprintf("nemesis: the monotonic clock, which every kernel has: %v", err))
	}
	return ts.Nano()
}

// event is a line of a history. An operation has one when it begins and one when it has ended, with
// the same number.
type event struct {
	Number uint64 `json:"op"`
	Thread int    `json:"thread"`
	At     int64  `json:"at"`
	// Of a beginning.
	Place string `json:"place,omitempty"`
	Do    string `json:"do,omitempty"`
	Old   uint64 `json:"old,omitempty"`
	New   uint64 `json:"new,omitempty"`
	// Of an end.
	Ended bool `json:"ended,omitempty"`
	Void  bool `json:"void,omitempty"` // it has surely not happened
	Result
}

// recorder writes the history of a program to a file, which has every line that was written even if
// the program is killed the next moment. Its methods may be called from any goroutine.
type recorder struct {
	file *os.File
	last atomic.Uint64
}

// newRecorder makes the file, which must not be there.
func newRecorder(path string) (*recorder, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, fmt.Errorf("nemesis: making a history: %w", err)
	}
	return &recorder{file: f}, nil
}

// errVoid is the error of an operation's body that has surely done nothing.
var errVoid = errors.New("the operation has not happened")

// do records an operation while its body carries it out. If that returns an error nobody knows
// whether it has happened, which is what the history then says, and do returns the error; but for
// one that wraps errVoid, and for a page that is lost: those are results.
func (r *recorder) do(thread int, o Operation, body func() (Result, error)) error {
	e := event{Number: r.last.Add(1), Thread: thread, At: now(), Place: o.Place, Do: o.Do, Old: o.Old, New: o.New}
	if err := r.write(e); err != nil {
		return err
	}
	result, err := body()
	var lost *dsm.PageLostError
	if errors.As(err, &lost) {
		result, err = Result{Lost: true, Dead: lost.Node}, nil
	}
	if err != nil && !errors.Is(err, errVoid) {
		return fmt.Errorf("%s at %s: %w", o.Do, o.Place, err)
	}
	return r.write(event{Number: e.Number, Thread: thread, At: now(), Ended: true, Void: err != nil, Result: result})
}

// stepped records that a step of a computation was done since a time on the clock of now, and
// returns what the clock says.
func (r *recorder) stepped(thread int, place string, since int64) (int64, error) {
	e := event{Number: r.last.Add(1), Thread: thread, At: since, Place: place, Do: step}
	end := event{Number: e.Number, Thread: thread, At: now(), Ended: true}
	return end.At, errors.Join(r.write(e), r.write(end))
}

// write appends a line. It is one system call, so lines of several goroutines are not mixed.
func (r *recorder) write(e event) error {
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("nemesis: an event: %w", err)
	}
	if _, err := r.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("nemesis: writing the history: %w", err)
	}
	return nil
}

// history reads what a recorder writes, also while it does.
type history struct {
	path  string
	who   client // without Thread
	read  int64
	open  map[uint64]Operation // begun, not ended
	ended []Operation
	last  map[int]int64 // when each thread has last ended something
}

func newHistory(path string, who client) *history {
	return &history{path: path, who: who, open: map[uint64]Operation{}, last: map[int]int64{}}
}

// follow reads what was added to the file. There may be no file yet.
func (h *history) follow() error {
	f, err := os.Open(h.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("nemesis: reading a history: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("nemesis: reading a history: %w", err)
	}
	more := make([]byte, info.Size()-h.read)
	if _, err := f.ReadAt(more, h.read); err != nil {
		return fmt.Errorf("nemesis: reading a history: %w", err)
	}
	for {
		// What has no end yet is read the next time. A program that was killed may have left half a
		// line.
		line, rest, whole := bytes.Cut(more, []byte{'\n'})
		if !whole {
			return nil
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("nemesis: %s, at byte %d: %w", h.path, h.read, err)
		}
		if err := h.take(e); err != nil {
			return fmt.Errorf("nemesis: %s, at byte %d: %w", h.path, h.read, err)
		}
		h.read += int64(len(line)) + 1
		more = rest
	}
}

// take adds an event.
func (h *history) take(e event) error {
	o, open := h.open[e.Number]
	switch {
	case !e.Ended && open:
		return fmt.Errorf("operation %d begins twice", e.Number)
	case !e.Ended:
		o = Operation{client: h.who, Place: e.Place, Do: e.Do, Old: e.Old, New: e.New, Call: e.At, Return: unknown}
		o.client.Thread = e.Thread
		h.open[e.Number] = o
		return nil
	case !open:
		return fmt.Errorf("operation %d ends and has not begun", e.Number)
	}
	delete(h.open, e.Number)
	h.last[o.client.Thread] = e.At
	o.Result, o.Return, o.Void = e.Result, e.At, e.Void
	h.ended = append(h.ended, o)
	return nil
}

// operations are all operations so far, those included whose end is not known, and those that have
// not happened.
func (h *history) operations() []Operation {
	all := h.ended[:len(h.ended):len(h.ended)]
	for _, o := range h.open {
		all = append(all, o)
	}
	return all
}

// slowest is the operation that took longest, of those that ended.
func slowest(all []Operation) (o Operation) {
	for _, x := range all {
		if x.known() && !x.Void && x.took() > o.took() {
			o = x
		}
	}
	return o
}

// took is how long an operation took. Preconditions: its end is known, or it is the zero one.
func (o Operation) took() time.Duration { return time.Duration(o.Return - o.Call) }
