package torture

import (
	"strings"
	"sync/atomic"
	"testing"
)

const testPageWords = 512

// someWords is words of ordinary memory, of which each owner has written as often as given.
func someWords(t *testing.T, writes ...uint32) *words {
	t.Helper()
	w := &words{owners: len(writes), values: make([]uint64, wordPages*testPageWords), announced: make([]atomic.Uint64, len(writes))}
	for o, n := range writes {
		for seq := uint32(1); seq <= n; seq++ {
			first := w.place(owner(o), seq)
			for i := first; i < first+blockWords; i++ {
				w.values[i] = pack(i, seq)
			}
			w.announced[o].Store(uint64(seq))
		}
	}
	return w
}

// readAll reads and checks all words as a program does. between is what happens between asking what
// is due and reading.
func readAll(r *reader, between func()) error {
	values, floors := make([]uint64, len(r.values)), make([]uint32, len(r.values))
	r.floors(0, floors)
	between()
	copy(values, r.values)
	return r.check(0, values, floors)
}

func nothing() {}

// wants fails the test if an error does not say what it should.
func wants(t *testing.T, what string, err error, words string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("%s: the error is %v, want one with %q", what, err, words)
	}
}

// TestWordsInOrder checks that nothing is found wrong with words that are right, at any time.
func TestWordsInOrder(t *testing.T) {
	for _, writes := range [][]uint32{{0, 0, 0}, {1, 2, 3}, {500, 57, 56}, {55, 0, 1}} {
		w := someWords(t, writes...)
		r := newReader(w)
		for range 2 {
			if err := readAll(r, nothing); err != nil {
				t.Errorf("after %v writes: %v", writes, err)
			}
		}
		for o, n := range writes {
			if seq, complete, err := w.estate(owner(o)); err != nil || !complete || seq != n {
				t.Errorf("after %v writes owner %d has left %d, %t, %v", writes, o, seq, complete, err)
			}
		}
	}
}

// TestWordsGoneWrong plants what a memory that is not coherent would show.
func TestWordsGoneWrong(t *testing.T) {
	const o = owner(1)
	plant := func(change func(w *words, at int)) error {
		w := someWords(t, 300, 300, 300)
		r := newReader(w)
		if err := readAll(r, nothing); err != nil {
			t.Fatal(err)
		}
		change(w, w.place(o, 300))
		return readAll(r, nothing)
	}
	share := uint32(someWords(t, 0, 0, 0).share(o))
	wants(t, "a lost bit", plant(func(w *words, at int) { w.values[at] ^= 1 << 13 }), "nobody has written")
	wants(t, "a word at another place", plant(func(w *words, at int) { w.values[at] = w.values[at+1] }), "nobody has written")
	wants(t, "zeros again", plant(func(w *words, at int) { w.values[at] = 0 }), "went back")
	wants(t, "an old word", plant(func(w *words, at int) { w.values[at+3] = pack(at+3, 300-share) }), "went back")
	wants(t, "a word of another block", plant(func(w *words, at int) { w.values[at] = pack(at, 301) }), "another block")
	wants(t, "a word that nobody writes", plant(func(w *words, _ int) { w.values[len(w.values)-1] = pack(len(w.values)-1, 5) }), "which nobody writes")

	// What no one here has seen yet, but was announced.
	w := someWords(t, 300, 300, 300)
	at := w.place(o, 300)
	w.values[at] = pack(at, 300-share)
	wants(t, "an announced write that is missing", readAll(newReader(w), nothing), "went back")

	// A write that happens while it is read is none of this.
	w = someWords(t, 300, 300, 300)
	if err := readAll(newReader(w), func() {
		at := w.place(o, 301)
		w.values[at] = pack(at, 301)
	}); err != nil {
		t.Errorf("half a write that was not announced: %v", err)
	}
}

// TestEstates checks what is inferred from the words of an owner that was killed.
func TestEstates(t *testing.T) {
	const o = owner(0)
	w := someWords(t, 300, 10)
	at := w.place(o, 301)
	for i := at; i < at+blockWords; i++ {
		w.values[i] = pack(i, 301)
		if seq, complete, err := w.estate(o); err != nil || complete || seq != 301 {
			t.Errorf("in write 301, after %d words: %d, %t, %v", i-at+1, seq, complete, err)
		}
	}
	wrong := func(what, words string, change func(w *words)) {
		t.Helper()
		w := someWords(t, 300, 10)
		change(w)
		_, _, err := w.estate(o)
		wants(t, what, err, words)
	}
	last := w.place(o, 300)
	wrong("a word of the last write", "want write 300", func(w *words) { w.values[last] = 0 })
	wrong("a word of an older write", "want write 299", func(w *words) { w.values[w.place(o, 299)+2] = 0 })
	wrong("two writes begun", "before it announced", func(w *words) { at := w.place(o, 302); w.values[at] = pack(at, 302) })
	wrong("rubbish", "nobody has written", func(w *words) { w.values[last] = 12345 })
}

func someLedger(owners int) *ledger {
	l := &ledger{owners: owners, pageWords: testPageWords}
	l.totals, l.tallies, l.guarded = make([]atomic.Uint64, l.totalsLen()), make([]tally, l.talliesLen()), make([]uint64, l.guardedLen())
	return l
}

// TestLedger checks what is counted, and that it is noticed if not.
func TestLedger(t *testing.T) {
	l := someLedger(3)
	for n := range 12 {
		l.count(owner(n%3), added)
		l.count(owner(n%2), swapped)
	}
	for _, subject := range []int{added, swapped} {
		actual := l.total(subject).Load
		if err := l.between(subject, actual); err != nil || actual() != 12 {
			t.Errorf("subject %d was counted %d times (%v), want 12", subject, actual(), err)
		}
		wants(t, "a lost addition", l.between(subject, func() uint64 { return actual() - 1 }), "at least 12")
		wants(t, "an addition too many", l.between(subject, func() uint64 { return actual() + 1 }), "at most 12")
		l.tally(0, subject).Before.Add(1) // and then it was killed
		for n := range uint64(2) {
			if err := l.between(subject, func() uint64 { return actual() + n }); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestVersions checks what is seen of memory under locks, in the middle of a change and after it.
func TestVersions(t *testing.T) {
	l := someLedger(2)
	for version := uint32(1); version <= 3; version++ {
		for subject := firstOne; subject < subjects; subject++ {
			l.revise(0, subject, version, func() {
				if got, err := l.version(subject); got != version {
					t.Errorf("lock %d has version %d in the middle of %d", subject, got, version)
				} else {
					wants(t, "in the middle", err, errTorn.Error())
				}
			})
			if got, err := l.version(subject); err != nil || got != version {
				t.Errorf("lock %d has version %d, %v, want %d", subject, got, err, version)
			}
		}
	}
	l.guarded[l.under(firstOne)]++
	_, err := l.version(firstOne)
	wants(t, "rubbish", err, "nobody has written")
}

// TestPlaces checks that blocks of different owners never meet, and that the memory under locks
// crosses pages.
func TestPlaces(t *testing.T) {
	w := someWords(t, make([]uint32, 24)...)
	writer := map[int]owner{}
	for o := range owner(w.owners) {
		for seq := range uint32(w.share(o)) {
			first := w.place(o, seq)
			for i := first; i < first+blockWords; i++ {
				if other, taken := writer[i]; taken {
					t.Fatalf("word %d is of owner %d and of owner %d", i, o, other)
				}
				writer[i] = o
				if who, turn := w.belongs(i); who != o || turn != int(seq) {
					t.Fatalf("word %d belongs to owner %d, turn %d, want %d, %d", i, who, turn, o, seq)
				}
			}
		}
	}
	if len(writer) != w.blocks()*blockWords {
		t.Errorf("%d words have a writer, want %d", len(writer), w.blocks()*blockWords)
	}
	l := someLedger(1)
	for subject := firstOne; subject < subjects; subject++ {
		first := l.under(subject)
		if first/testPageWords == (first+guardedWords-1)/testPageWords || first+guardedWords > len(l.guarded) {
			t.Errorf("lock %d protects words %d to %d", subject, first, first+guardedWords)
		}
	}
}
