package trace

import "dsmd/internal/faultlog"

// The phases of events.
const (
	complete  = "X"
	instant   = "i"
	metadata  = "M"
	flowStart = "s"
	flowStep  = "t"
	flowEnd   = "f"
)

// event is a trace event. What is zero of it is left away, but for times, which the phase decides.
type event struct {
	phase    string
	name     string
	category string
	process  int
	thread   int   // from 1; 0 is the kernel's idle loop
	at       int64 // in nanoseconds since the job's start
	duration int64 // of a complete event, in nanoseconds
	flow     uint64
	// binds is "e" for the end of an arrow in the event that it lies in, rather than in the next.
	binds string
	scope string    // of an instant: "t" is its row
	args  arguments // nil: there are none
}

// arguments are what is said of an event besides.
type arguments interface{ appendTo(o *object) }

func (e *event) appendTo(o *object) {
	o.text("ph", e.phase)
	o.text("name", e.name)
	o.optional("cat", e.category)
	o.int("pid", int64(e.process))
	if e.thread != 0 {
		o.int("tid", int64(e.thread))
	}
	o.micros("ts", e.at)
	if e.phase == complete {
		o.micros("dur", e.duration)
	}
	if e.flow != 0 {
		o.uint("id", e.flow)
	}
	o.optional("bp", e.binds)
	o.optional("s", e.scope)
	if e.args != nil {
		o.begin("args")
		e.args.appendTo(o)
		o.end()
	}
}

// title is the argument of metadata that name something, label of those that say more, and order
// of those that sort.
type (
	title string
	label string
	order int
)

func (t title) appendTo(o *object) { o.text("name", string(t)) }
func (l label) appendTo(o *object) { o.text("labels", string(l)) }
func (i order) appendTo(o *object) { o.int("sort_index", int64(i)) }

// appendTo implements arguments: of a call it says the line of the program, and of a wait for a
// page what is known of that.
func (x *wait) appendTo(o *object) {
	if f := x.fault; f != nil {
		o.uint("page", f.Page)
		o.optional("element", x.element)
		if f.From != faultlog.NoNode {
			o.uint("from node", uint64(f.From))
		}
		if f.Taker != faultlog.NoNode {
			o.uint("taken by node", uint64(f.Taker))
			o.text("taken for", f.TakerAccess.String())
		}
		if f.Granted > 0 {
			o.micros("granted after µs", int64(f.Granted))
		}
	}
	o.optional("line", x.line)
}

// departure is the arguments of a page that another node has taken.
type departure faultlog.Departure

func (d *departure) appendTo(o *object) {
	o.uint("page", d.Page)
	o.uint("by node", uint64(d.By))
	if d.Written != nil { // words of 8 bytes, since it was written last
		o.int("words changed here", int64(changed(d.Written)))
	}
}
