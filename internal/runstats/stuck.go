package runstats

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// LongWait is how long a rank waits before it counts as one that waits. HangAfter is how long some
// rank has waited when a job in which all wait hangs, or when it waits for a rank that has ended,
// and how long something may be done for a rank before that counts as a wait; PartAfter is how long
// it has waited when it waits while others go on.
const (
	LongWait  = time.Second
	HangAfter = 10 * time.Second
	PartAfter = 60 * time.Second
)

// waited is how long a rank has waited for what it waits for longest, with what is announced and
// without. Announced may be a wait for work, which is no fault as long as others go on.
func (r *Rank) waited() (longest, unannounced time.Duration) {
	for _, w := range r.Waits {
		longest = max(longest, w.For)
		if w.Kind != Announced {
			unannounced = max(unannounced, w.For)
		}
	}
	if len(r.Pages) > 0 {
		longest, unannounced = max(longest, r.Pages[0].For), max(unannounced, r.Pages[0].For)
	}
	return longest, unannounced
}

// mainWait is the wait that says most of what a rank waits for, which has some. It is the longest;
// but if that is at a barrier of some parties, or at the line of an announced wait, it may only be
// how the announced wait is done, and then it is that.
func (r *Rank) mainWait() *Wait {
	w := &r.Waits[0]
	some := w.Kind == Barrier && !w.Ranks
	i := slices.IndexFunc(r.Waits, func(x Wait) bool { return x.Kind == Announced && (some || x.At != "" && x.At == w.At) })
	if i > 0 {
		return &r.Waits[i]
	}
	return w
}

// behind is the meeting of all ranks by which an announced wait is done, at the same line, if there
// is one; else it is the wait itself.
func (r *Rank) behind(w *Wait) *Wait {
	i := slices.IndexFunc(r.Waits, func(x Wait) bool { return x.Ranks && x.At != "" && x.At == w.At })
	if w.Kind == Announced && i >= 0 {
		return &r.Waits[i]
	}
	return w
}

// works is whether something may be done for a rank that waits: memory is given to it, filled or
// freed, or pages are fetched or copied. Nobody has to move for that, and much of it takes a while.
func (r *Rank) works() bool {
	return slices.ContainsFunc(r.Waits, func(w Wait) bool {
		return (w.Kind == Allocating || w.Kind == Committing || w.Kind == Prefetch) && w.For < HangAfter
	})
}

// Find is why a job, or a part of it, does not move: no lines if it does. ranks are those that are
// known of; a job of size ranks may have others.
func Find(ranks []Rank, size int) Hang {
	e := explainer{ranks: inOrder(ranks), size: size}
	all, longest := true, time.Duration(0)
	var late []int
	for i := range e.ranks {
		r := &e.ranks[i]
		switch waited, unannounced := r.waited(); {
		case r.State == Ended:
		case waited < LongWait || r.State == Unknown || r.Computes || r.works():
			all = false
		default:
			longest = max(longest, waited)
			if unannounced >= PartAfter || unannounced >= HangAfter && len(e.ended(r)) > 0 {
				late = append(late, i)
			}
		}
	}
	switch {
	case all && longest >= HangAfter:
		return e.hang(nil)
	case len(late) > 0:
		return e.hang(late)
	}
	return Hang{}
}

// hang explains the waits of some ranks, of which others go on; of all: nil.
func (e *explainer) hang(which []int) (h Hang) {
	say := func(timed bool) (lines []string) {
		e.timed = timed
		if which == nil {
			lines = append(lines, e.headline())
		}
		for i := range e.ranks {
			if r := &e.ranks[i]; r.State <= Silent && (which == nil || slices.Contains(which, i)) {
				lines = append(lines, e.line(r, which != nil))
			}
		}
		return append(lines, e.cycles()...)
	}
	h = Hang{Lines: say(true), Key: strings.Join(say(false), "\n")}
	for i := range e.ranks {
		if which == nil || slices.Contains(which, i) {
			h.Ended = append(h.Ended, e.ended(&e.ranks[i])...)
		}
	}
	slices.Sort(h.Ended)
	h.Ended = slices.Compact(h.Ended)
	return h
}

// headline says that nothing moves, and of whom that is not known.
func (e *explainer) headline() string {
	var unknown []int
	for rank := range e.size {
		if e.of(rank).State == Unknown {
			unknown = append(unknown, rank)
		}
	}
	if len(unknown) == 0 {
		return "nothing moves: no rank computes, and all wait"
	}
	return fmt.Sprintf("nothing moves, as far as is known: nothing is known of %s, no other computes, and all others wait", named(unknown))
}

// Because says who is in the way of a wait of a rank, as the end of a sentence: for lock "a", held
// by rank 2.
func Because(w *Wait, self int, ranks []Rank, size int) string {
	e := explainer{ranks: inOrder(ranks), size: size, timed: true}
	return thing(w) + e.because(w, self)
}

func inOrder(ranks []Rank) []Rank {
	return slices.SortedFunc(slices.Values(ranks), func(a, b Rank) int { return cmp.Compare(a.Rank, b.Rank) })
}

// explainer makes sentences about ranks, which are in order.
type explainer struct {
	ranks []Rank
	size  int
	timed bool // with times
}

func (e *explainer) of(rank int) *Rank {
	i, found := slices.BinarySearchFunc(e.ranks, rank, func(r Rank, n int) int { return cmp.Compare(r.Rank, n) })
	if !found {
		return &Rank{Rank: rank, State: Unknown}
	}
	return &e.ranks[i]
}

// line is about a rank that waits.
func (e *explainer) line(r *Rank, part bool) string {
	if len(r.Waits) == 0 || r.State == Silent {
		return fmt.Sprintf("rank %d %s", r.Rank, e.doing(r))
	}
	w := r.mainWait()
	waits := "waits"
	if part {
		waits = "has waited"
		if e.timed {
			waits += " " + seconds(w.For)
		}
	}
	return fmt.Sprintf("rank %d %s %s%s%s", r.Rank, waits, thing(w), line(w), e.because(w, r.Rank))
}

// thing is what is waited for.
func thing(w *Wait) string {
	switch w.Kind {
	case Barrier:
		return fmt.Sprintf("at barrier %q", w.Name)
	case Reduction:
		return fmt.Sprintf("in reduction %q", w.Name)
	case Announced:
		return w.Name
	}
	return fmt.Sprintf("for %s %q", w.Kind, w.Name)
}

// line is where a goroutine waits.
func line(w *Wait) string {
	if w.At == "" {
		return ""
	}
	return " (" + w.At + ")"
}

func seconds(d time.Duration) string { return d.Round(100 * time.Millisecond).String() }

// doing is what a rank does, as the end of a sentence whose subject it is.
func (e *explainer) doing(r *Rank) string {
	switch {
	case r.State == Ended:
		return "has ended"
	case r.State == Unknown:
		return "is not here, or its node does not answer"
	case len(r.Pages) > 0 && (r.Pages[0].For >= LongWait || r.State == Silent):
		return e.pages(r)
	case r.State == Silent:
		return "does not answer"
	case len(r.Waits) > 0:
		return "waits " + thing(r.mainWait()) + line(r.mainWait())
	case r.Computes:
		return "computes"
	}
	return "neither computes nor waits for anything shared"
}

// pages is for which page a rank waits.
func (e *explainer) pages(r *Rank) string {
	p := &r.Pages[0]
	text := fmt.Sprintf("waits for page %d", p.Page)
	if p.Memory != "" {
		text = fmt.Sprintf("waits for page %d, of %q", p.Page, p.Memory)
	}
	since := ""
	if e.timed {
		since = " since " + seconds(p.For)
	}
	switch p.Stage {
	case Parked:
		return text + since + ", which its node does not ask for yet, for want of room or a quorum, or in a recovery"
	case OnDisk:
		return text + since + ", which its node has on a disk, or waits for one"
	case Busy:
		return text + since + ", which its node copies to its backups first, or gives up, or which is pinned"
	}
	if p.From < 0 {
		return text + since + ", of which other nodes have not given up their copies"
	}
	text += fmt.Sprintf(", which it has asked node %d for", p.From)
	if e.timed {
		text += " " + seconds(p.For) + " ago"
	}
	return text
}

// because says who is in the way of a wait.
func (e *explainer) because(w *Wait, self int) string {
	switch w = e.of(self).behind(w); w.Kind {
	case Lock:
		return e.holders(w, self)
	case Barrier, Reduction:
		return e.missing(w)
	}
	return ""
}

// holders says who has a lock.
func (e *explainer) holders(w *Wait, self int) string {
	has := e.holding(w.Object)
	if len(has) == 0 {
		if silent := e.in(Silent); len(silent) > 0 {
			return fmt.Sprintf(", which none has who answers; %s %s", named(silent), do("does not", "do not", silent))
		}
		return ", which no rank of the job has now"
	}
	r := e.of(has[0])
	h := r.Holds[slices.IndexFunc(r.Holds, func(h Held) bool { return h.Object == w.Object })]
	text := fmt.Sprintf(", held by rank %d", r.Rank)
	switch {
	case r.Rank == self:
		text = ", held by this rank itself"
	case h.Read:
		text = ", held for reading by " + named(has)
	}
	if e.timed {
		text += " since " + seconds(h.For)
	}
	if h.At != "" {
		text += " at " + h.At
	}
	if r.Rank != self && (len(r.Waits) > 0 || len(r.Pages) > 0 || r.Computes) {
		text += ", which " + e.doing(r)
	}
	return text
}

// holding are the ranks that have a lock.
func (e *explainer) holding(lock uint64) (ranks []int) {
	for i := range e.ranks {
		if slices.ContainsFunc(e.ranks[i].Holds, func(h Held) bool { return h.Object == lock }) {
			ranks = append(ranks, e.ranks[i].Rank)
		}
	}
	return ranks
}

func (e *explainer) in(state State) (ranks []int) {
	for i := range e.ranks {
		if e.ranks[i].State == state {
			ranks = append(ranks, e.ranks[i].Rank)
		}
	}
	return ranks
}

// missing says who is not at a barrier or reduction.
func (e *explainer) missing(w *Wait) string {
	there := 0
	for i := range e.ranks {
		for _, x := range e.ranks[i].Waits {
			if x.Kind == w.Kind && x.Object == w.Object {
				there++
			}
		}
	}
	if !w.Ranks {
		return fmt.Sprintf(", where %d of %d parties are", there, w.Parties)
	}
	absent := e.absent(w)
	switch len(absent) {
	case 0:
		return "" // it opens just now
	case 1:
		return fmt.Sprintf(" for rank %d of %d, which %s", absent[0], e.size, e.doing(e.of(absent[0])))
	}
	var does []string
	for _, rank := range absent[:min(len(absent), mostCostly)] {
		does = append(does, fmt.Sprintf("rank %d %s", rank, e.doing(e.of(rank))))
	}
	if more := len(absent) - len(does); more > 0 {
		does = append(does, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf(" for %d of %d ranks: %s", len(absent), e.size, strings.Join(does, "; "))
}

// absent are the ranks that are not at a barrier or reduction of all ranks.
func (e *explainer) absent(w *Wait) (ranks []int) {
	for rank := range e.size {
		if !slices.ContainsFunc(e.of(rank).Waits, func(x Wait) bool { return x.Kind == w.Kind && x.Object == w.Object }) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// ended are the ranks that have ended and for which a rank waits.
func (e *explainer) ended(r *Rank) []int {
	if r.State == Ended {
		return nil
	}
	return slices.DeleteFunc(e.blockers(r), func(rank int) bool { return e.of(rank).State != Ended })
}

// blockers are the ranks that a rank waits for.
func (e *explainer) blockers(r *Rank) []int {
	if len(r.Waits) == 0 {
		return nil
	}
	switch w := r.behind(r.mainWait()); {
	case w.Kind == Lock:
		return e.holding(w.Object)
	case (w.Kind == Barrier || w.Kind == Reduction) && w.Ranks:
		return e.absent(w)
	}
	return nil
}

// cycles are ranks that wait for each other, each cycle once, from its lowest rank on.
func (e *explainer) cycles() (lines []string) {
	told := map[int]bool{}
	for i := range e.ranks {
		cycle := e.cycle(e.ranks[i].Rank)
		if len(cycle) < 2 || slices.ContainsFunc(cycle, func(rank int) bool { return told[rank] }) {
			continue
		}
		var locks []string
		for _, rank := range cycle {
			told[rank] = true
			if w := e.of(rank).mainWait(); w.Kind == Lock {
				locks = append(locks, fmt.Sprintf("%q", w.Name))
			}
		}
		text := named(cycle) + " wait for each other"
		if len(locks) == len(cycle) {
			text += ", for the locks " + strings.Join(locks, ", ") + ": take locks in the same order everywhere"
		}
		lines = append(lines, text)
	}
	return lines
}

// cycle is a shortest way from a rank to itself, by who waits for whom, through higher ranks only.
func (e *explainer) cycle(first int) []int {
	from := map[int]int{}
	for queue := []int{first}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, next := range e.blockers(e.of(at)) {
			if next == first {
				way := []int{at}
				for ; at != first; way = append(way, at) {
					at = from[at]
				}
				slices.Reverse(way)
				return way
			}
			if _, seen := from[next]; next > first && !seen {
				from[next] = at
				queue = append(queue, next)
			}
		}
	}
	return nil
}

// named are ranks for people.
func named(ranks []int) string {
	text := strings.Trim(strings.ReplaceAll(fmt.Sprint(ranks[:min(len(ranks), mostCostly)]), " ", ", "), "[]")
	if more := len(ranks) - mostCostly; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return do("rank ", "ranks ", ranks) + text
}

// do is a word about one rank, or several.
func do(one, several string, ranks []int) string {
	if len(ranks) == 1 {
		return one
	}
	return several
}
