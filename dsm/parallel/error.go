package parallel

import "fmt"

// Error is the error of a loop one of whose items has failed. Every rank gets it.
type Error struct {
	Index int    // of the item
	Rank  int    // that has run it
	Text  string // the item's error, or what it has panicked with and where; at most 3,000 bytes
	err   error
}

func (e *Error) Error() string {
	return fmt.Sprintf("parallel: item %d, on rank %d: %s", e.Index, e.Rank, e.Text)
}

// Unwrap is the item's own error, on the rank that has run it; else it is nil.
func (e *Error) Unwrap() error { return e.err }

// fail notes that an item has failed here, and stops the loop.
func (l *loop) fail(index int, err error) {
	text := err.Error()
	l.mu.Lock()
	if l.first == nil || index < l.first.Index {
		l.first = &Error{Index: index, Rank: l.t.c.Rank(), Text: text[:min(len(text), maxText)], err: err}
	}
	l.mu.Unlock()
	l.stop()
}

// tell puts the failure of this rank where others see it, and returns it as an outcome has it.
func (l *loop) tell() (failed int64, index int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == nil {
		return 0, 0
	}
	own := l.t.own()
	own.rank, own.lenText = l.first.Rank, copy(own.text[:], l.first.Text)
	return int64(l.first.Index) + 1, int32(l.t.index)
}

// failed is the loop's error, for the item that was run by the rank of the given index. It waits
// until all have read it, since the next loop may have another.
func (l *loop) failed(item, index int) error {
	from := l.t.slots.At(index)
	e := &Error{Index: item, Rank: from.rank, Text: string(from.text[:from.lenText])}
	if l.mu.Lock(); index == l.t.index {
		e.err = l.first.err
	}
	l.mu.Unlock()
	if err := l.t.meet(l.ctx); err != nil {
		return err
	}
	return e
}
