package dsm

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/callsite"
	"dsmd/internal/controlpage"
	"dsmd/internal/runstats"
)

// attendant tells daemons what this program waits for and which locks it has, when they ask, and
// asks them what the other ranks do when a wait of this one has lasted long. It has the second
// socket, and keeps the clock by which it is noted since when locks are held.
type attendant struct {
	c     *Cluster
	line  *attach.Conn
	waits waits
	// clock is the time since began, up to date to beatEvery: reading it costs nothing.
	clock    atomic.Int64
	began    time.Time
	words    *[controlpage.Slots]callsite.Site // where locks were taken by their words
	computes atomic.Bool                       // a processor was used lately
	stop     chan struct{}
	running  sync.WaitGroup

	mu      sync.Mutex
	inquiry *inquiry // under way, or nil; guarded by mu
	ticket  uint64   // of the last one; guarded by mu
	ended   bool     // nobody answers any more; guarded by mu
	// otherWatched is when another rank has asked last because the job may hang, and by which right
	// it does so rather than this one: it is lower.
	otherWatched, lowerWatched time.Time // guarded by mu
}

// inquiry is a question about all ranks.
type inquiry struct {
	ranks map[int]runstats.Rank // by number; guarded by attendant.mu
	done  chan struct{}         // closed when all have answered
}

const (
	beatEvery = 100 * time.Millisecond
	// secondBeats is in how many beats it is looked at whether this program computes, and whether
	// the job hangs.
	secondBeats = 10
	// idleShare is how much of a processor a rank may use that computes nothing.
	idleShare = 0.1
	// explainAfter is how long a wait has lasted when it is worth finding out who is in its way,
	// and explainWithin bounds how long that takes.
	explainAfter  = time.Second
	explainWithin = time.Second
	// maxRanks bounds the ranks of which answers are kept.
	maxRanks = 1 << 12
)

func newAttendant(c *Cluster, line *attach.Conn) *attendant {
	a := &attendant{c: c, line: line, waits: waits{open: map[*wait]struct{}{}}, began: time.Now(), words: new([controlpage.Slots]callsite.Site), stop: make(chan struct{})}
	a.clock.Store(1)
	return a
}

func (a *attendant) start() {
	a.running.Go(a.listen)
	a.running.Go(a.beat)
}

func (a *attendant) close() {
	close(a.stop)
	a.line.Close()
	a.running.Wait()
}

// word is where the taking of a lock by its word is noted.
func (a *attendant) word(hash uint64) *callsite.Site { return &a.words[controlpage.Slot(hash)] }

// now is the time to note.
func (a *attendant) now() int64 { return a.clock.Load() }

// listen reads questions, and the answers to those of this program.
func (a *attendant) listen() {
	defer a.line.Discard()
	for {
		f, err := a.line.ReadFrame()
		if err == nil {
			err = a.heard(f)
		}
		if err != nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.ended = true
			a.finishLocked()
			return
		}
	}
}

func (a *attendant) heard(f attach.Frame) error {
	if f.Kind == attach.KindTell {
		t, err := attach.DecodeTell(f.Body)
		if err == nil {
			a.told(&t)
		}
		return err
	}
	q, err := attach.DecodeAsk(f.Body)
	switch {
	case err != nil || f.Kind != attach.KindAsk:
		return fmt.Errorf("%v: %w", f.Kind, err)
	case q.Question == attach.AskStacks:
		fd, err := a.line.TakeFD()
		if err == nil {
			a.writeStacks(fd, int(q.Blocked))
		}
		return err
	}
	a.watchedBy(int(q.Watcher))
	body := a.state(time.Now()).Encode()
	return a.line.Write(attach.AppendTell(nil, &attach.Tell{Ticket: q.Ticket, Statement: attach.Statement{Body: body}}))
}

// state is what this program does.
func (a *attendant) state(now time.Time) runstats.Rank {
	return runstats.Rank{Rank: a.c.Rank(), Waits: a.waits.list(now), Holds: a.held(now), Computes: a.computes.Load()}
}

// held are the locks that this program has.
func (a *attendant) held(now time.Time) (list []runstats.Held) {
	add := func(hash uint64, s callsite.Site, read bool) {
		list = append(list, runstats.Held{Object: hash, For: max(0, now.Sub(a.began.Add(time.Duration(s.At)))), At: cmp.Or(s.Line(isOwn), s.Line(isOutside)), Read: read})
	}
	for slot := range a.words {
		if s := a.words[slot].Load(); s.At != 0 {
			if hash, held := a.c.page.HeldIn(slot); held {
				add(hash, s, false)
			}
		}
	}
	a.c.holdings.each(func(hash uint64, h *holding) { add(hash, h.site.Load(), !h.writer) })
	return list
}

// inquire asks what all ranks do. It returns what is known when all have answered, or after a time.
// watcher is this rank if it asks because the job may hang.
func (a *attendant) inquire(within time.Duration, watcher int32) []runstats.Rank {
	a.mu.Lock()
	q, ask := a.inquiry, false
	if q == nil && !a.ended {
		q, ask = &inquiry{ranks: map[int]runstats.Rank{}, done: make(chan struct{})}, true
		a.inquiry = q
		a.ticket++
	}
	ticket := a.ticket
	a.mu.Unlock()
	if q == nil {
		return nil
	}
	if ask {
		// If this fails listen learns of it, too.
		_ = a.line.Write(attach.AppendAsk(nil, &attach.Ask{Ticket: ticket, Question: attach.AskRanks, Watcher: watcher}))
	}
	select {
	case <-q.done:
	case <-time.After(within):
	case <-a.stop:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(q.ranks))
}

// told takes an answer.
func (a *attendant) told(t *attach.Tell) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch q := a.inquiry; {
	case q == nil || t.Ticket != a.ticket:
	case t.Last:
		a.finishLocked()
	case int(t.Rank) < a.c.Size():
		if r, known := a.rank(t); known {
			q.add(r)
		}
	}
}

// add keeps what is said of a rank. Of one that has left a node, and has come back at another, each
// node says something: that it is there counts more than that it has left.
func (q *inquiry) add(r runstats.Rank) {
	before, known := q.ranks[r.Rank]
	if known && r.State < before.State || !known && len(q.ranks) < maxRanks {
		q.ranks[r.Rank] = r
	}
}

func (a *attendant) finishLocked() {
	if a.inquiry != nil {
		close(a.inquiry.done)
		a.inquiry = nil
	}
}

// rank is what an answer says about a rank; known is false if that is nothing. What one says that
// makes no sense is as if it had not answered.
func (a *attendant) rank(t *attach.Tell) (r runstats.Rank, known bool) {
	r.State = runstats.Silent
	switch t.Presence {
	case attach.Answers:
		if said, err := runstats.DecodeRank(t.Body); err == nil {
			r = said
		}
	case attach.Left:
		if a.c.account.Load() == nil && t.Ago > time.Since(a.began) {
			return r, false // of an earlier run, perhaps; the daemons of dsmd run have none
		}
		r.State = runstats.Ended
	case attach.Gone:
		return r, false
	}
	r.Rank = int(t.Rank)
	for _, p := range t.Pages {
		from := int(p.From)
		if p.From == t.Node {
			from = -1
		}
		r.Pages = append(r.Pages, runstats.Pages{Page: p.Page, Memory: p.Memory, From: from, Stage: stages[p.Stage], For: p.Waited})
	}
	return r, true
}

// stages are those of pages, as runstats has them.
var stages = [...]runstats.Stage{attach.PageAsked: runstats.Asked, attach.PageParked: runstats.Parked, attach.PageHere: runstats.OnDisk, attach.PageBusy: runstats.Busy}

// explain says who is in the way of a wait; "": it has not lasted long, or nobody knows.
func (a *attendant) explain(w *wait) string {
	now := time.Now()
	if now.Sub(w.began) < explainAfter {
		return ""
	}
	ranks := a.inquire(explainWithin, attach.NoRank)
	if len(ranks) == 0 {
		return ""
	}
	stated := w.stated(now)
	return runstats.Because(&stated, a.c.Rank(), ranks, a.c.Size())
}

// beat keeps the clock, and looks from time to time at what this program does.
func (a *attendant) beat() {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	before, then := processorTime(), time.Now()
	var look watch
	for n := 1; ; n++ {
		select {
		case <-a.stop:
			return
		case <-a.c.done:
			return
		case <-tick.C:
		}
		now := time.Now()
		a.clock.Store(max(1, int64(now.Sub(a.began))))
		if n%secondBeats != 0 {
			continue
		}
		used := processorTime()
		a.computes.Store((used - before).Seconds() >= idleShare*now.Sub(then).Seconds())
		before, then = used, now
		look.second(a, now)
	}
}

// watch looks whether the job hangs, as long as this rank waits.
type watch struct {
	next    time.Time   // not before
	looking atomic.Bool // in a goroutine
	said    string      // last; of who looks
}

const (
	// lookEvery is how often is looked at least; the longer nothing moves the less often.
	lookEvery = 3 * time.Second
	// rankDelay is by how much later each rank looks than the one before, so that not all do, and
	// mostDelay bounds it.
	rankDelay = 20 * time.Millisecond
	mostDelay = 5 * time.Second
)

// second is called every second.
func (w *watch) second(a *attendant, now time.Time) {
	began := a.waits.longest()
	delay := min(time.Duration(a.c.Rank())*rankDelay, mostDelay)
	if began.IsZero() || now.Sub(began) < runstats.HangAfter+delay || now.Before(w.next) || w.looking.Load() {
		return
	}
	every := max(lookEvery, now.Sub(began)/8)
	if a.isWatched(now, 3*every, w.said != "") {
		return
	}
	w.next = now.Add(every)
	w.looking.Store(true)
	a.running.Go(func() {
		defer w.looking.Store(false)
		h := runstats.Find(a.inquire(2*explainWithin, int32(a.c.Rank())), a.c.Size())
		if h.Key != w.said {
			w.said = h.Key
			a.say(h)
		}
	})
}

// watchedBy notes that another rank looks whether the job hangs.
func (a *attendant) watchedBy(rank int) {
	if rank < 0 || rank == a.c.Rank() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.otherWatched = time.Now()
	if rank < a.c.Rank() {
		a.lowerWatched = a.otherWatched
	}
}

// isWatched is whether another rank does what this one need not do: the first that has begun goes
// on, and of two the lower.
func (a *attendant) isWatched(now time.Time, within time.Duration, begun bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := a.otherWatched
	if begun {
		last = a.lowerWatched
	}
	return now.Sub(last) < within
}

// say says what hangs: to the launcher, and else on standard error.
func (a *attendant) say(h runstats.Hang) {
	if len(h.Lines) == 0 {
		return
	}
	if account := a.c.account.Load(); account != nil {
		// A launcher that does not read it is stuck itself, or gone.
		_, _ = account.to.Write(h.Encode())
		return
	}
	sayHere(h)
}

// sayHere says what hangs on standard error.
func sayHere(h runstats.Hang) { fmt.Fprintf(os.Stderr, "dsm: %s\n", strings.Join(h.Lines, "\ndsm: ")) }

// joinPatience is how long the daemon has not answered when Join says so. Only tests change it.
var joinPatience = runstats.HangAfter

// sayOverdue says that the daemon has not let this program in yet. Daemons do that when they are
// all there. What they say themselves they say to their logs, which is not where a program's user
// looks. All ranks of a job wait alike, so the launcher passes on what the first one says.
func (j *joining) sayOverdue() {
	who := "this program"
	if j.rank != attach.NoRank {
		who = fmt.Sprintf("rank %d", j.rank)
	}
	h := runstats.Hang{Key: "Join", Lines: []string{fmt.Sprintf("%s has waited %v for the daemon at %s, which waits for its peers, as its log says then, or is stuck", who, joinPatience, j.socket)}}
	if fd, err := reportPipe(); err == nil && fd >= 0 {
		_, _ = unix.Write(fd, h.Encode()) // as in say
		return
	}
	sayHere(h)
}
