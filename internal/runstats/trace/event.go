package trace

import (
	"encoding/json"
	"strconv"
)

// micros is a time in nanoseconds, since the job's start or of something. In a trace it is in
// microseconds.
type micros int64

// MarshalJSON implements json.Marshaler. It writes all digits, which a float64 may not have.
func (m micros) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, 24)
	if m < 0 {
		b, m = append(b, '-'), -m
	}
	b = strconv.AppendInt(b, int64(m)/1000, 10)
	if part := int64(m) % 1000; part != 0 {
		b = append(b, '.', byte('0'+part/100), byte('0'+part/10%10), byte('0'+part%10))
	}
	return b, nil
}

// The phases of events.
const (
	complete  = "X"
	instant   = "i"
	metadata  = "M"
	flowStart = "s"
	flowStep  = "t"
	flowEnd   = "f"
)

// event is a trace event.
type event struct {
	Phase    string  `json:"ph"`
	Name     string  `json:"name"`
	Category string  `json:"cat,omitempty"`
	Process  int     `json:"pid"`
	Thread   int     `json:"tid,omitempty"` // from 1; 0 is the kernel's idle loop
	At       micros  `json:"ts"`
	Duration *micros `json:"dur,omitempty"` // of a complete event
	Flow     uint64  `json:"id,omitempty"`  // which arrow an event of a flow belongs to
	// Binds is "e" for the end of an arrow in the event that it lies in, rather than in the next.
	Binds string `json:"bp,omitempty"`
	Scope string `json:"s,omitempty"` // of an instant: "t" is its row
	Args  any    `json:"args,omitempty"`
}

// name is the argument of metadata that name something, and order that of those that sort.
type (
	name struct {
		Name string `json:"name"`
	}
	order struct {
		Index int `json:"sort_index"`
	}
	labels struct {
		Labels string `json:"labels"`
	}
)

// emit writes an event. After an error nothing is written any more.
func (w *Writer) emit(e event) {
	if w.err != nil {
		return
	}
	b, err := json.Marshal(e)
	if err != nil {
		w.err = err
		return
	}
	if w.events > 0 {
		w.write([]byte(",\n"))
	}
	w.events++
	w.write(b)
}

func (w *Writer) write(b []byte) {
	if w.err == nil {
		_, w.err = w.out.Write(b)
	}
}
