package controlpage

import (
	"fmt"
	"iter"
	"slices"
	"testing"
)

// The model runs goroutines of a program, its daemon, and another node that wants the lock, in all
// orders in which their atomic operations and messages can follow each other. They run the very
// functions of word.go; only what surrounds these is the model's.
type model struct {
	word    uint64
	calls   []call // of the program, on their way to the daemon
	granted []bool // by goroutine: the daemon has given it the lock, for its call
	byWord  []bool // by goroutine: and that by the word
	inside  []bool // by goroutine: it has the lock
	failure string

	// What the daemon and its engine know.
	published, recalled bool
	holder              int   // who has the lock: a goroutine by a call, or one of those below
	queue               []int // who waits for it: goroutines, and remote
	served              bool  // remote has had the lock
	grants              int   // of remote's and the goroutines' calls

	// The death of the program: it makes no more steps, but what it has sent arrives.
	dead, buried bool
	marked       bool // the lock passes on with the mark of it
}

// Who has the lock, if no goroutine has it by a call.
const (
	remote  = -1 - iota // another node
	program             // the program, by its word
	nobody
)

type call struct {
	from    int
	release bool
}

// step is one step of somebody: it says when the next one can be done; nil: at once.
type step func() bool

// watched is the word as one of those sees it who use it: before every operation others may go
// first.
type watched struct {
	m     *model
	yield func(step) bool
}

// stopped ends a run that is not looked at any more, wherever it is.
type stopped struct{}

func (w watched) pause() {
	if !w.yield(nil) {
		panic(stopped{})
	}
}

func (w watched) Load() uint64   { w.pause(); return w.m.word }
func (w watched) Store(v uint64) { w.pause(); w.m.word = v }
func (w watched) Swap(v uint64) (old uint64) {
	w.pause()
	old, w.m.word = w.m.word, v
	return old
}
func (w watched) CompareAndSwap(old, new uint64) bool {
	w.pause()
	if w.m.word != old {
		return false
	}
	w.m.word = new
	return true
}

const name = 0xfeed_f00d_dead_beef

func (m *model) fail(format string, args ...any) {
	if m.failure == "" {
		m.failure = fmt.Sprintf(format, args...)
	}
}

// actor makes a sequence of steps of what somebody does.
func (m *model) actor(do func(watched)) iter.Seq[step] {
	return func(yield func(step) bool) {
		defer func() {
			if r := recover(); r != nil && r != any(stopped{}) {
				panic(r)
			}
		}()
		do(watched{m, yield})
	}
}

func (w watched) wait(until step) {
	if !w.yield(until) {
		panic(stopped{})
	}
}

// goroutine locks and unlocks so many times, as package dsm does.
func (m *model) goroutine(self, rounds int) iter.Seq[step] {
	return m.actor(func(w watched) {
		for range rounds {
			byWord := take(w, name)
			if !byWord {
				w.pause()
				m.calls = append(m.calls, call{from: self})
				w.wait(func() bool { return m.granted[self] })
				m.granted[self] = false
				byWord, m.byWord[self] = m.byWord[self], false
			}
			m.enter(self)
			given := NotTaken
			if byWord {
				if given = giveBack(w, name); given == NotTaken {
					m.fail("goroutine %d took the lock by its word and can't give it back", self)
				}
				m.inside[self] = false
			}
			if given != Freed {
				w.pause()
				m.calls = append(m.calls, call{self, true})
			}
			m.inside[self] = false
		}
	})
}

func (m *model) enter(self int) {
	for other, in := range m.inside {
		if in {
			m.fail("goroutines %d and %d have the lock together", other, self)
		}
	}
	if m.holder == remote {
		m.fail("goroutine %d and another node have the lock together", self)
	}
	m.inside[self] = true
}

// daemon takes the program's calls, and at some moment the other node's wish, as package node does.
func (m *model) daemon(asked *bool) iter.Seq[step] {
	return m.actor(func(w watched) {
		pending := *asked
		for {
			w.wait(func() bool { return len(m.calls) > 0 || pending != *asked || m.dead && !m.buried })
			if pending != *asked {
				pending = *asked
				m.recall(w)
				m.queue = append(m.queue, remote)
				m.grant()
				continue
			}
			if len(m.calls) == 0 {
				m.bury(w)
				continue
			}
			c := m.calls[0]
			m.calls = m.calls[1:]
			m.call(w, c)
		}
	})
}

func (m *model) call(w watched, c call) {
	if !c.release {
		if m.published && !m.recalled && take(w, name) {
			m.granted[c.from], m.byWord[c.from] = true, true
			return
		}
		m.recall(w)
		m.queue = append(m.queue, c.from)
		m.grant()
		return
	}
	if m.published {
		m.published, m.recalled = false, false
		withdraw(w, name)
	}
	m.holder = nobody
	if m.grant(); m.holder == nobody {
		m.published, m.holder = true, program
		publish(w, name)
	}
}

// bury is the end of the program's connection.
func (m *model) bury(w watched) {
	m.buried = true
	m.queue = slices.DeleteFunc(m.queue, func(w int) bool { return w != remote })
	// to the daemon somebody of the program has the lock, or had it until a message that was not
	// sent
	known := m.holder >= 0 || m.recalled || slices.Contains(m.byWord, true)
	if m.published {
		m.marked = !withdraw(w, name)
		m.published, m.recalled, m.holder = false, false, nobody
	} else if m.holder >= 0 {
		m.marked, m.holder = true, nobody
	}
	has := slices.Contains(m.inside, true)
	if has && !m.marked {
		m.fail("the lock passes on unmarked, and the program died holding it")
	}
	if m.marked && !has && !known {
		m.fail("the lock is marked, and nobody had it")
	}
	clear(m.inside)
	m.grant()
}

func (m *model) recall(w watched) {
	if !m.published || m.recalled {
		return
	}
	switch recall(w, name) {
	case FoundFree:
		m.published, m.holder = false, nobody
	case FoundHeld:
		m.recalled = true
	case FoundWrong:
		m.fail("the program was found to have written what no operation writes")
	}
}

// grant is the engine: the lock goes to who has waited longest. The other node gives it back at
// once, by another message.
func (m *model) grant() {
	for m.holder == nobody && len(m.queue) > 0 {
		m.grants++
		m.holder, m.queue = m.queue[0], m.queue[1:]
		if m.holder != remote {
			m.granted[m.holder] = true
			return
		}
		for self, in := range m.inside {
			if in {
				m.fail("another node got the lock while goroutine %d had it", self)
			}
		}
		m.served, m.holder = true, nobody
	}
}

// wish is the other node: it wants the lock at some moment.
func (m *model) wish(asked *bool) iter.Seq[step] {
	return m.actor(func(w watched) {
		w.pause()
		*asked = true
	})
}

// death is the end of the program, at some moment.
func (m *model) death(w watched) {
	w.pause()
	m.dead = true
}

// play runs one order. At each step choose says who of n that can go on does.
func play(goroutines, rounds int, mortal bool, choose func(n int) int) *model {
	m := &model{granted: make([]bool, goroutines), byWord: make([]bool, goroutines), inside: make([]bool, goroutines), published: true, holder: program, word: word(name, free)}
	asked := false
	var next []func() (step, bool)
	add := func(a iter.Seq[step]) func() {
		n, stop := iter.Pull(a)
		next = append(next, n)
		return stop
	}
	for i := range goroutines {
		defer add(m.goroutine(i, rounds))()
	}
	defer add(m.wish(&asked))()
	defer add(m.daemon(&asked))()
	if mortal {
		defer add(m.actor(m.death))()
	}
	can := make([]step, len(next))
	done := make([]bool, len(next))
	advance := func(i int) {
		var more bool
		can[i], more = next[i]()
		done[i] = !more
	}
	for i := range next {
		advance(i) // to its first step
	}
	for m.failure == "" {
		var ready []int
		for i := range next {
			if !done[i] && !(m.dead && i < goroutines) && (can[i] == nil || can[i]()) {
				ready = append(ready, i)
			}
		}
		if len(ready) == 0 {
			break
		}
		advance(ready[choose(len(ready))])
	}
	for i := range goroutines {
		if m.failure == "" && !done[i] && !m.dead {
			m.fail("goroutine %d waits for ever", i)
		}
	}
	if m.failure == "" && !m.served {
		m.fail("the other node waits for ever")
	}
	return m
}

// everyOrder plays all orders, and returns how many there are, and how many of them had each number
// of grants by messages.
func everyOrder(t *testing.T, goroutines, rounds int, mortal bool) (orders int, grants map[int]int) {
	t.Helper()
	grants = map[int]int{}
	var path, of []int
	for {
		at := 0
		m := play(goroutines, rounds, mortal, func(n int) int {
			if at == len(path) {
				path, of = append(path, 0), append(of, n)
			}
			at++
			return path[at-1]
		})
		if m.failure != "" {
			t.Fatalf("%s, in the order %v", m.failure, path)
		}
		orders++
		grants[m.grants]++
		last := len(path) - 1
		for ; last >= 0 && path[last]+1 == of[last]; last-- {
		}
		if last < 0 {
			return orders, grants
		}
		path, of = path[:last+1], of[:last+1]
		path[last]++
	}
}

// TestEveryOrder: whatever the order of their steps, two holders never have the lock together, and
// everybody gets it.
func TestEveryOrder(t *testing.T) {
	for _, size := range []struct{ goroutines, rounds int }{{1, 1}, {1, 2}, {1, 3}, {2, 1}} {
		t.Run(fmt.Sprintf("%d goroutines, %d rounds", size.goroutines, size.rounds), func(t *testing.T) {
			orders, grants := everyOrder(t, size.goroutines, size.rounds, false)
			t.Logf("%d orders; grants by messages: %v", orders, grants)
			if grants[1] == 0 || len(grants) < 2 {
				t.Errorf("no order in which all locks are taken by the word, or none in which one is not: %v", grants)
			}
		})
	}
}

// TestEveryDeath: if the program dies at any moment, the lock passes on, marked if it was held, and
// not if it was only published.
func TestEveryDeath(t *testing.T) {
	for _, size := range []struct{ goroutines, rounds int }{{1, 1}, {1, 2}, {2, 1}} {
		t.Run(fmt.Sprintf("%d goroutines, %d rounds", size.goroutines, size.rounds), func(t *testing.T) {
			orders, grants := everyOrder(t, size.goroutines, size.rounds, true)
			t.Logf("%d orders; grants by messages: %v", orders, grants)
		})
	}
}

// TestWords: what a program scribbles is found out, whatever it is, and stays no word.
func TestWords(t *testing.T) {
	for what, value := range map[string]uint64{
		"nothing": none, "another lock's": word(name^1<<40, free), "wanted before it is": word(name, wanted), "no state": word(name, 17), "ones": 1<<64 - 1,
	} {
		m := &model{word: value}
		quiet := watched{m, func(step) bool { return true }}
		if found := recall(quiet, name); found != FoundWrong || m.word != none {
			t.Errorf("%s: recall finds %d and leaves %#x", what, found, m.word)
		}
		m.word = value
		if withdraw(quiet, name) || m.word != none {
			t.Errorf("%s: passes for a free lock, or stays: %#x", what, m.word)
		}
		m.word = value
		if take(quiet, name) || m.word != value {
			t.Errorf("%s: is taken", what)
		}
		if given := giveBack(quiet, name); given != NotTaken && value != word(name, wanted) {
			t.Errorf("%s: is given back: %d", what, given)
		}
	}
}
