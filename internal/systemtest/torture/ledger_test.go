package torture

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// Subjects are what is counted: additions to the counters, and changes of the memory under each
// lock.
const (
	added    = iota // by atomic addition
	swapped         // by compare-and-swap
	firstOne        // and what lies under a mutex
	secondOne
	sharedOne // and under a reader-writer lock, which only processes that are not killed write
	subjects

	counters = firstOne
	locks    = subjects - firstOne
)

// guardedWords is how many words each lock protects: enough for two pages, with the page boundary
// in the middle.
const guardedWords = 40

// tally is how often one owner has counted one subject: Before is raised first, After when it is
// done. Whoever is killed leaves them apart by one.
type tally struct{ Before, After atomic.Uint64 }

// ledger is the memory that everybody writes, and the notes of who wrote how often.
type ledger struct {
	owners    int
	pageWords int
	totals    []atomic.Uint64 // of counters; each on its own page
	tallies   []tally         // subjects of the first owner, then of the next
	guarded   []uint64        // versions of words under locks
}

func (l *ledger) total(subject int) *atomic.Uint64 { return &l.totals[subject*l.pageWords] }

func (l *ledger) tally(o owner, subject int) *tally { return &l.tallies[int(o)*subjects+subject] }

// totalsLen, talliesLen and guardedLen are the lengths of the shared slices.
func (l *ledger) totalsLen() int  { return counters * l.pageWords }
func (l *ledger) talliesLen() int { return l.owners * subjects }
func (l *ledger) guardedLen() int { return (locks + 1) * l.pageWords }

// under is where the words under a lock begin: half of them lie on one page and half on the next,
// which they share with those of other locks.
func (l *ledger) under(subject int) int { return (subject-firstOne+1)*l.pageWords - guardedWords/2 }

// between tells whether a subject was counted as often as the owners say. actual reads its count.
func (l *ledger) between(subject int, actual func() uint64) error {
	var least, most uint64
	for o := range l.owners {
		least += l.tally(owner(o), subject).After.Load()
	}
	count := actual()
	for o := range l.owners {
		most += l.tally(owner(o), subject).Before.Load()
	}
	if count < least || count > most {
		return fmt.Errorf("subject %d was counted %d times; the owners say at least %d and at most %d", subject, count, least, most)
	}
	return nil
}

// count adds one to a counter.
func (l *ledger) count(o owner, subject int) {
	t, total := l.tally(o, subject), l.total(subject)
	t.Before.Add(1)
	if subject == added {
		total.Add(1)
	} else {
		for old := total.Load(); !total.CompareAndSwap(old, old+1); {
			old = total.Load()
		}
	}
	t.After.Add(1)
}

// errTorn is the error of version when the words have several.
var errTorn = errors.New("the words under the lock have several versions")

// version is the version of the words under a lock, the newest if they have several; then the error
// wraps errTorn. Preconditions: the lock is held, in either mode.
func (l *ledger) version(subject int) (uint32, error) {
	first := l.under(subject)
	var got [guardedWords]uint64
	copy(got[:], l.guarded[first:])
	var oldest, newest uint32
	for k, v := range got {
		seq, ok := unpack(first+k, v)
		if !ok {
			return 0, fmt.Errorf("word %d under lock %d is %#x, which nobody has written there", k, subject, v)
		}
		if k == 0 {
			oldest = seq
		}
		oldest, newest = min(oldest, seq), max(newest, seq)
	}
	if oldest != newest {
		return newest, fmt.Errorf("%w: %d to %d under lock %d", errTorn, oldest, newest, subject)
	}
	return newest, nil
}

// revise gives the words under a lock a version. half is called in the middle. Preconditions: the
// lock is held for writing.
func (l *ledger) revise(o owner, subject int, version uint32, half func()) {
	first := l.under(subject)
	t := l.tally(o, subject)
	t.Before.Add(1)
	for k := range guardedWords {
		// From the middle to both ends, so that both pages change by turns.
		at := first + guardedWords/2 + k/2
		if k%2 == 1 {
			at = first + guardedWords/2 - 1 - k/2
		}
		l.guarded[at] = pack(at, version)
		if k == guardedWords/2 {
			half()
		}
	}
	t.After.Add(1)
}
