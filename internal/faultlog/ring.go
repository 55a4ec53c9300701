package faultlog

// Ring is the last entries of a log. It belongs to one goroutine.
type Ring struct {
	entries []entry
	next    uint64 // the number of the next entry
	count   int    // entries that there are, at most len(entries)
}

// entry is a departure, if there is one, or else a fault.
type entry struct {
	fault     Fault
	departure *Departure
}

// End is the place behind all entries that there are.
const End = 1<<64 - 1

// NewRing makes an empty ring for so many entries, whose first one has the number first. The ring
// takes its memory at once.
func NewRing(capacity int, first uint64) *Ring {
	return &Ring{entries: make([]entry, capacity), next: first}
}

// Next is the number of the next entry.
func (r *Ring) Next() uint64 { return r.next }

// AddFault adds a fault, in the place of the oldest entry if the ring is full.
func (r *Ring) AddFault(f *Fault) { r.slot().fault = *f }

// AddDeparture is AddFault for a departure, and numbers it.
func (r *Ring) AddDeparture(d *Departure) {
	d.Place = r.next
	r.slot().departure = d
}

func (r *Ring) slot() *entry {
	at := &r.entries[r.next%uint64(len(r.entries))]
	*at = entry{}
	r.next++
	r.count = min(r.count+1, len(r.entries))
	return at
}

// Append appends an encoded batch to b: what there is from a place on, as much as a batch holds, of
// faults only those that the reader may see. A place that no entry has yet counts as End.
func (r *Ring) Append(b []byte, from uint64, maySee func(*Fault) bool) []byte {
	oldest := r.next - uint64(r.count)
	from = min(from, r.next)
	first := max(from, oldest)
	w := beginBatch(b, first, first-from)
	next := first
	for ; next < r.next; next++ {
		e := &r.entries[next%uint64(len(r.entries))]
		switch {
		case e.departure != nil:
			if !w.departure(e.departure) {
				return w.end(next)
			}
		case maySee(&e.fault):
			if !w.fault(&e.fault) {
				return w.end(next)
			}
		}
	}
	return w.end(next)
}
