package readahead

import (
	"maps"
	"sort"

	"dsmd/pagetable"
	"dsmd/protocol"
)

const (
	// trailSteps bounds the steps that are remembered. With all that belongs to it a step takes
	// some 100 bytes.
	trailSteps = 1 << 15
	// stepAhead is how many steps are predicted beyond the one that a thread is at, and cueAhead
	// how many at a cue, where the thread is about to take them all.
	stepAhead, cueAhead = 8, 32
	// nearby is within how many steps a thread is looked for that goes on where it has been, or
	// where a cue has been.
	nearby = 64
	// mergeWithin is within how many steps a page that was missed for reading must be missed for
	// writing, to be predicted for writing at once.
	mergeWithin = 64
	// inVain is how many more times a page must be missed before it is predicted again when it was
	// predicted in vain, and mostDoubt how many times at most; so often also a page that others
	// take while threads here use it.
	inVain, mostDoubt = 2, 8
)

// Trail is the order in which a node's threads have missed pages, and have gone on from barriers
// and with locks, which are cues. A program that iterates takes much the same steps again. So when
// a step is taken that was taken before, the pages that were missed after it then are worth asking
// for, up to the next cue: what comes after that is not to be had in good order before.
//
// A page that was asked for is to be installed so that the first access of a thread is reported
// (Untouched). That costs a fault without a way to another node, and it is the only evidence that
// the prediction was right. Without it a page that is fetched each time, and taken away each time,
// would be fetched for ever.
type Trail struct {
	ring []step // of trailSteps at most; step n is at n modulo that
	next uint64 // the number of the next step, from 1
	last map[mark]uint64
	cues []uint64 // the steps that are cues
	cue  uint64   // the last of them
	// base is what the last cue was when it was taken before, with 0 if it was not, and baseAsked
	// up to which step was asked for then. cueAt is where in cues base is.
	base, baseAsked uint64
	cueAt           int
	out             map[pagetable.Page]Asked // for which no thread has come yet; at most trailSteps
	doubts          map[pagetable.Page]doubt
	threads         [maxThreads]walker
	turn            int // of threads: to be replaced
}

// mark is what a step is about: a page, or a cue.
type mark uint64

func pageMark(p pagetable.Page) mark { return mark(p) << 1 }
func cueMark(id uint64) mark         { return mark(id)<<1 | 1 }

func (m mark) isPage() bool         { return m&1 == 0 }
func (m mark) page() pagetable.Page { return pagetable.Page(m >> 1) }

// step is something that a thread has come to.
type step struct {
	mark   mark
	access protocol.Access // of a page
	reach  Reach
}

// Reach is how many pages, at which distance and for what, were asked for beyond a page that was
// missed.
type Reach struct {
	Pages  int16
	Stride int16
	Access protocol.Access
}

// Asked is a page that was asked for because it was predicted.
type Asked struct {
	Had    protocol.Access // what the node had of it then
	Access protocol.Access // what was asked for
	loaded bool            // it was to be stored to, and a thread has come to load from it
}

// doubt is how many times more a page must be missed before it is predicted, and how many times
// that was when it began. It lasts until a prediction of the page was used.
type doubt struct{ left, level uint8 }

// walker is where a thread is on the trail.
type walker struct {
	id    uint32
	at    uint64 // the step that it was at when it was there before; 0: at none
	asked uint64 // up to which step was asked for; at least at
}

// A Prediction is a page that will be missed soon, as it seems.
type Prediction struct {
	Page   pagetable.Page
	Access protocol.Access
	Reach  Reach // what to ask for beyond it
}

// NewTrail returns an empty trail.
func NewTrail() *Trail {
	return &Trail{next: 1, last: map[mark]uint64{}, out: map[pagetable.Page]Asked{}, doubts: map[pagetable.Page]doubt{}}
}

// A Miss is an access of a thread that had to wait, or would have if it had not been predicted.
type Miss struct {
	Thread uint32
	Page   pagetable.Page
	Has    protocol.Access // what the node had of the page
	Access protocol.Access
	Reach  Reach
}

// Missed notes a miss and appends what the thread will miss next.
func (t *Trail) Missed(miss Miss, to []Prediction) []Prediction {
	if d, doubted := t.doubts[miss.Page]; doubted && d.left > 0 {
		d.left--
		t.doubts[miss.Page] = d
	}
	m := pageMark(miss.Page)
	if n := t.last[m]; n > t.cue {
		switch before := t.at(n); {
		case miss.Has == protocol.None:
			t.doubt(miss.Page, mostDoubt) // others take it while threads here use it
		case before.access == protocol.Read && t.next-n <= mergeWithin:
			before.access = miss.Access
			return to
		}
	}
	w := t.walker(miss.Thread)
	w.find(t, m)
	t.add(step{m, miss.Access, miss.Reach})
	return t.follow(w, stepAhead, to)
}

// Cue notes that a program goes on from where it has waited for others, and appends what its
// threads will miss next. id tells the place from others.
func (t *Trail) Cue(id uint64, to []Prediction) []Prediction {
	m := cueMark(id)
	t.base = t.last[m]
	if next := t.cueAt + 1; next < len(t.cues) && t.alive(t.cues[next]) && t.at(t.cues[next]).mark == m {
		t.base = t.cues[next]
	}
	t.cueAt = len(t.cues) // where this one will be, if it is new
	if t.base != 0 {
		t.cueAt = sort.Search(len(t.cues), func(i int) bool { return t.cues[i] >= t.base })
	}
	if len(t.cues) == trailSteps {
		old := len(t.cues) / 2
		t.cues = append(t.cues[:0], t.cues[old:]...)
		t.cueAt = max(t.cueAt-old, 0)
	}
	t.cue, t.cues = t.next, append(t.cues, t.next)
	w := walker{at: t.base, asked: t.base}
	t.add(step{mark: m})
	to = t.follow(&w, cueAhead, to)
	t.baseAsked = w.asked
	return to
}

// at is a step that is remembered.
func (t *Trail) at(n uint64) *step { return &t.ring[n%trailSteps] }

// alive is whether a step is still remembered.
func (t *Trail) alive(n uint64) bool { return n != 0 && n+trailSteps > t.next }

// follow appends the steps that followed when a thread was where it is, at most so many.
func (t *Trail) follow(w *walker, most uint64, to []Prediction) []Prediction {
	if !t.alive(w.at) || w.asked > w.at+most/2 {
		return to
	}
	for w.asked < w.at+most && w.asked+2 < t.next {
		next := t.at(w.asked + 1)
		if !next.mark.isPage() {
			break
		}
		w.asked++
		if t.doubts[next.mark.page()].left == 0 {
			to = append(to, Prediction{next.mark.page(), next.access, next.reach})
		}
	}
	return to
}

// find moves to where a thread was when it took a step before: a little further on than it is, or
// than the last cue, or where that was last.
func (w *walker) find(t *Trail, m mark) {
	for _, from := range [...]uint64{w.at, t.base} {
		if !t.alive(from) {
			continue
		}
		for n := from + 1; n < t.next && n <= from+nearby; n++ {
			if t.at(n).mark != m {
				continue
			}
			if n > w.asked || n <= w.at {
				w.asked = n
			}
			if t.base < n && n <= t.baseAsked {
				w.asked = max(w.asked, t.baseAsked)
			}
			w.at = n
			return
		}
	}
	w.at = t.last[m]
	w.asked = w.at
}

// add appends a step to the trail.
func (t *Trail) add(s step) {
	if len(t.ring) == 0 {
		t.ring = make([]step, trailSteps)
	}
	old := t.at(t.next)
	if t.next > trailSteps && t.last[old.mark] == t.next-trailSteps {
		delete(t.last, old.mark)
		if old.mark.isPage() {
			delete(t.doubts, old.mark.page())
		}
	}
	*old = s
	t.last[s.mark] = t.next
	t.next++
}

// walker is where a thread is.
func (t *Trail) walker(id uint32) *walker {
	for i := range t.threads {
		if t.threads[i].id == id {
			return &t.threads[i]
		}
	}
	w := &t.threads[t.turn]
	t.turn = (t.turn + 1) % maxThreads
	*w = walker{id: id}
	return w
}

// MayAsk is whether a page may be asked for because it was predicted: it is not Untouched already.
func (t *Trail) MayAsk(page pagetable.Page) bool {
	_, untouched := t.out[page]
	return !untouched && len(t.out) < trailSteps
}

// Ask notes that a page is asked for because it was predicted.
func (t *Trail) Ask(page pagetable.Page, a Asked) { t.out[page] = a }

// Untouched is what was asked for of a page for which no thread has come yet.
func (t *Trail) Untouched(page pagetable.Page) (a Asked, untouched bool) {
	a, untouched = t.out[page]
	return a, untouched
}

// Touched notes that a thread comes for an Untouched page. A page that was asked for to store to
// it, and is only loaded from, goes on being so for stores.
func (t *Trail) Touched(page pagetable.Page, access protocol.Access) {
	a := t.out[page]
	delete(t.doubts, page)
	if access < a.Access {
		a.Had, a.loaded = protocol.Read, true
		t.out[page] = a
		return
	}
	delete(t.out, page)
}

// Forget forgets that a page is Untouched.
func (t *Trail) Forget(page pagetable.Page) { delete(t.out, page) }

// Freed forgets pages whose memory is free.
func (t *Trail) Freed(first pagetable.Page, count uint64) {
	maps.DeleteFunc(t.out, func(p pagetable.Page, _ Asked) bool { return p >= first && uint64(p-first) < count })
}

// Gone notes that a page leaves this node, or is for reading only from now on. It returns whether
// it was asked for in vain.
func (t *Trail) Gone(page pagetable.Page, altogether bool) (vain bool) {
	a, untouched := t.out[page]
	if !untouched || !altogether && a.Had == protocol.None {
		return false
	}
	delete(t.out, page)
	if !a.loaded {
		t.doubt(page, max(2*t.doubts[page].level, inVain))
	}
	return !a.loaded
}

// Contended notes that others take a page while threads here use it.
func (t *Trail) Contended(page pagetable.Page) { t.doubt(page, mostDoubt) }

// doubt has a page not be predicted before it was missed so many times, if it could be at all.
func (t *Trail) doubt(page pagetable.Page, times uint8) {
	if times = min(times, mostDoubt); t.last[pageMark(page)] != 0 {
		t.doubts[page] = doubt{times, times}
	}
}
