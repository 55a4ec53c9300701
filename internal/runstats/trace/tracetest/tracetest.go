// Package tracetest reads a trace as those who draw it do, and checks that they can.
package tracetest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Event is a trace event.
type Event struct {
	Phase    string         `json:"ph"`
	Name     string         `json:"name"`
	Category string         `json:"cat"`
	Process  *int           `json:"pid"`
	Thread   *int           `json:"tid"`
	At       *float64       `json:"ts"`  // in microseconds
	Duration *float64       `json:"dur"` // in microseconds
	Flow     uint64         `json:"id"`
	Binds    string         `json:"bp"`
	Scope    string         `json:"s"`
	Args     map[string]any `json:"args"`
}

// Row is a row of the picture.
type Row struct{ Process, Thread int }

// Row is where an event is drawn.
func (e *Event) Row() Row { return Row{*e.Process, *e.Thread} }

// end is when it ends, for one with a duration.
func (e *Event) end() float64 { return *e.At + *e.Duration }

// Trace is a trace that can be drawn.
type Trace struct {
	Events    []Event
	Processes map[int]string // their names, by number
	Threads   map[Row]string
}

// Complete are the events that take time.
func (t *Trace) Complete() (list []Event) {
	for _, e := range t.Events {
		if e.Phase == "X" {
			list = append(list, e)
		}
	}
	return list
}

// Parse reads a trace to its end. An error says what those who draw it would stumble over: what is
// no JSON, an event without what it needs, events of a row that overlap, an arrow from or to
// nowhere.
func Parse(from io.Reader) (*Trace, error) {
	var file struct {
		Events []Event `json:"traceEvents"`
	}
	d := json.NewDecoder(from)
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, fmt.Errorf("tracetest: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("tracetest: there is something behind the end: %v", err)
	}
	t := &Trace{file.Events, map[int]string{}, map[Row]string{}}
	return t, errors.Join(t.complete(), t.nest(), t.arrows())
}

// complete checks each event by itself, and notes names.
func (t *Trace) complete() error {
	for i := range t.Events {
		e := &t.Events[i]
		bad := e.Process == nil || *e.Process == 0 || e.At == nil || e.Name == "" ||
			(e.Thread == nil || *e.Thread == 0) != strings.HasPrefix(e.Name, "process_")
		switch e.Phase {
		case "X":
			bad = bad || e.Duration == nil || *e.Duration < 0 || *e.At < 0
		case "i":
			bad = bad || e.Scope != "t" || *e.At < 0
		case "s", "t", "f":
			bad = bad || e.Flow == 0 || (e.Binds == "e") != (e.Phase != "s")
		case "M":
			title, _ := e.Args["name"].(string)
			switch {
			case bad:
			case e.Name == "process_name":
				t.Processes[*e.Process] = title
			case e.Name == "thread_name":
				t.Threads[e.Row()] = title
			}
		default:
			bad = true
		}
		if bad {
			return fmt.Errorf("tracetest: event %d lacks something: %+v", i, *e)
		}
	}
	for _, e := range t.Events {
		if e.Phase != "M" && (t.Processes[*e.Process] == "" || t.Threads[e.Row()] == "") {
			return fmt.Errorf("tracetest: an event is on a row or in a process without a name: %+v", e)
		}
	}
	return nil
}

// nest checks that of two events of a row one is within the other, or that they are apart.
func (t *Trace) nest() error {
	open := map[Row][]Event{}
	list := t.Complete()
	slices.SortStableFunc(list, func(a, b Event) int { return cmp.Compare(*a.At, *b.At) })
	for _, e := range list {
		stack := open[e.Row()]
		for len(stack) > 0 && stack[len(stack)-1].end() <= *e.At {
			stack = stack[:len(stack)-1]
		}
		if n := len(stack); n > 0 && stack[n-1].end() < e.end() {
			return fmt.Errorf("tracetest: on row %v overlap %+v and %+v", e.Row(), stack[n-1], e)
		}
		open[e.Row()] = append(stack, e)
	}
	return nil
}

// arrows checks that each arrow has a beginning and an end, in this order, and that all of its
// points are in events.
func (t *Trace) arrows() error {
	rows := map[Row][]Event{}
	for _, e := range t.Complete() {
		rows[e.Row()] = append(rows[e.Row()], e)
	}
	flows := map[uint64][]Event{}
	for _, e := range t.Events {
		if e.Flow != 0 {
			flows[e.Flow] = append(flows[e.Flow], e)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(flows)) {
		points := flows[id]
		slices.SortStableFunc(points, func(a, b Event) int { return cmp.Compare(*a.At, *b.At) })
		phases := ""
		for _, p := range points {
			phases += p.Phase
			within := func(e Event) bool { return *e.At <= *p.At && *p.At <= e.end() }
			if !slices.ContainsFunc(rows[p.Row()], within) {
				return fmt.Errorf("tracetest: an arrow touches no event: %+v", p)
			}
		}
		if phases != "sf" && phases != "stf" {
			return fmt.Errorf("tracetest: arrow %d has the points %q", id, phases)
		}
	}
	return nil
}
