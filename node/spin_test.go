package node

import (
	"testing"
	"time"

	"dsmd/internal/netio"
	"dsmd/protocol"

	"pgregory.net/rapid"
)

// vain lets a spinner poll in vain for its whole budget, then sleep for d.
func vain(s *spinner, sleeps int, d time.Duration) {
	for range sleeps {
		s.slept(d)
	}
}

func TestSpinnerLearnsNotToPoll(t *testing.T) {
	s := newSpinner(0, 0)
	if s.until(0) != DefaultSpin {
		t.Errorf("a new spinner polls for %v, want %v", s.until(0), DefaultSpin)
	}
	vain(&s, 1, time.Second)
	if got := s.until(0); got >= DefaultSpin || got == 0 {
		t.Errorf("after one long sleep it polls for %v, want less than %v, but some", got, DefaultSpin)
	}
	vain(&s, 10, time.Second)
	if got := s.until(0); got != 0 {
		t.Errorf("after many long sleeps it still polls for %v", got)
	}
}

func TestSpinnerLearnsToPoll(t *testing.T) {
	s := newSpinner(0, 0)
	vain(&s, 10, time.Second)
	vain(&s, 1, DefaultSpin/2)
	if got := s.until(0); got < minSpin {
		t.Errorf("after a sleep that polling could have spared it polls for %v, want at least %v", got, minSpin)
	}
	vain(&s, 10, DefaultSpin/2)
	if got := s.until(0); got != DefaultSpin {
		t.Errorf("after many short sleeps it polls for %v, want %v", got, DefaultSpin)
	}
	vain(&s, 10, 2*DefaultSpin) // neither short nor long: it stays as it is
	if got := s.until(0); got != DefaultSpin {
		t.Errorf("after middling sleeps it polls for %v, want %v", got, DefaultSpin)
	}
}

func TestSpinnerPausesWhenItsCoreIsStolen(t *testing.T) {
	s := newSpinner(0, 0)
	now := time.Second
	for range 100 { // interrupts
		now += 2 * pausePerLoss * stolenAfter
		s.looked(now, 2*stolenAfter, none)
		if s.until(now) != DefaultSpin {
			t.Fatal("it paused although it has its core nearly all the time")
		}
	}
	s.looked(now, toleratedLoss+1, none)
	if s.until(now) != 0 {
		t.Error("it polls after its core was stolen")
	}
	s = newSpinner(0, 0)
	for range toleratedLoss / (2 * stolenAfter) {
		s.looked(now, 2*stolenAfter, none)
	}
	if s.until(now) != DefaultSpin {
		t.Error("it paused although little was lost")
	}
	s.looked(now, 2*stolenAfter, none)
	if s.until(now) != 0 {
		t.Error("it polls although small losses have become many")
	}
}

func TestSpinnerPausesLongerTheMoreItLoses(t *testing.T) {
	for _, kept := range []time.Duration{time.Millisecond, 3 * time.Millisecond, time.Second} {
		s := newSpinner(0, 0)
		s.looked(time.Second, kept, none)
		want := min(pausePerLoss*kept, maxPause)
		if s.until(time.Second+want-1) != 0 || s.until(time.Second+want) != DefaultSpin {
			t.Errorf("after it lost its core for %v it does not pause for %v", kept, want)
		}
	}
}

// none is a core that nobody else takes.
func none() int64 { return 0 }

// crowd lets somebody take the core at each of enough vain looks to notice, and says whether the spinner moves.
func crowd(s *spinner, now time.Duration) (move bool) {
	taken := int64(0)
	for range 1 + s.window {
		move = s.looked(now, minSpin, func() int64 { taken++; return taken * s.window })
	}
	return move
}

func TestSpinnerMovesFromACrowdedCore(t *testing.T) {
	s := newSpinner(0, 0)
	now := time.Second
	taken := int64(0)
	for look := range 10 * s.window { // a program that runs between two events takes the core only now and then
		if look%2 == 0 {
			taken++
		}
		if s.looked(now, minSpin, func() int64 { return taken }) {
			t.Fatal("it moves although it has its core most of the time")
		}
	}
	s.vain = 0
	if !crowd(&s, now) {
		t.Fatal("it stays on a core that it lost at each look")
	}
	if s.until(now) != DefaultSpin {
		t.Error("it does not poll on its new core")
	}
	if crowd(&s, now+settle-1) {
		t.Error("it moves again at once")
	}
	if s.until(now+settle-1) != DefaultSpin {
		t.Error("one move in vain stops its polling")
	}
	if !crowd(&s, now+settle) {
		t.Error("it stays for ever on its new core")
	}
}

func TestSpinnersDoNotLeaveOneCoreTogether(t *testing.T) {
	first, second := newSpinner(0, 0), newSpinner(0, 1)
	taken, turns := int64(0), 0
	for ; ; turns++ { // they look in turns, and each takes the core from the other
		taken++
		now := time.Second + time.Duration(turns)*minSpin
		if first.looked(now, minSpin, func() int64 { return taken }) {
			break
		}
		if second.looked(now, minSpin, func() int64 { return taken }) {
			t.Fatal("the second moves before the first, which is quicker to notice")
		}
	}
	for range 10 * second.window { // now it is alone
		if second.looked(time.Second, minSpin, func() int64 { return taken }) {
			t.Fatalf("the second left the core too, after the first had left it at turn %d", turns)
		}
	}
}

func TestSpinnerPausesWhereAllCoresAreCrowded(t *testing.T) {
	s := newSpinner(0, 0)
	now := time.Second
	crowd(&s, now)
	for range movesInVain {
		now += settle
		if !crowd(&s, now) {
			t.Fatal("it gives up after too few moves")
		}
	}
	crowd(&s, now+1)
	if s.until(now+1) != 0 || s.until(now+crowdedPause) != 0 {
		t.Error("it polls although moving did not help")
	}
	now += crowdedPause + 1
	if s.until(now) != DefaultSpin {
		t.Error("it never polls again")
	}
	crowd(&s, now) // moves, after a long quiet time
	crowd(&s, now+1)
	if s.until(now+1) != DefaultSpin {
		t.Error("old moves count for ever")
	}
}

func TestSpinnerLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := time.Duration(rapid.Int64Range(-10, int64(time.Millisecond)).Draw(t, "limit"))
		s := newSpinner(limit, 0)
		want := limit
		switch {
		case limit < 0:
			want = 0
		case limit == 0:
			want = DefaultSpin
		}
		for range rapid.IntRange(0, 50).Draw(t, "sleeps") {
			s.slept(time.Duration(rapid.Int64Range(0, int64(10*time.Millisecond)).Draw(t, "sleep")))
			if got := s.until(0); got < 0 || got > want {
				t.Fatalf("it polls for %v, the limit is %v", got, want)
			}
		}
	})
}

// TestTimers compares the timers with a plain list.
func TestTimers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tested timers
		model := map[protocol.ObjectID]time.Duration{}
		now, next := time.Duration(0), protocol.ObjectID(0)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				at := now + time.Duration(rapid.Int64Range(-5, 200_000).Draw(t, "in"))
				tested.add(at, next)
				model[next] = at
				next++
			},
			"pass": func(t *rapid.T) {
				now += time.Duration(rapid.Int64Range(0, 100_000).Draw(t, "time"))
				last := time.Duration(-1 << 62)
				for {
					id, ok := tested.due(now)
					if !ok {
						break
					}
					at, known := model[id]
					if !known || at > now || at < last {
						t.Fatalf("at %v timer %v fired, which was set to %v (%v), after one of %v", now, id, at, known, last)
					}
					last = at
					delete(model, id)
				}
			},
			"": func(t *rapid.T) { agree(t, &tested, model, now) },
		})
	})
}

// agree checks what the reactor asks timers before it sleeps, after all that were due have fired.
func agree(t *rapid.T, tested *timers, model map[protocol.ObjectID]time.Duration, now time.Duration) {
	first, any := time.Duration(0), false
	for _, at := range model {
		if !any || at < first {
			first, any = at, true
		}
	}
	if any && first <= now {
		return // due() has not been asked since it was set
	}
	if got, want := tested.soon(now), any && first-now < spinForTimer; got != want {
		t.Fatalf("at %v the first timer is at %v (%v), and soon is %v", now, first, any, got)
	}
	switch got := tested.timeout(now); {
	case !any && got != netio.Forever, any && got < 0:
		t.Fatalf("at %v the first timer is at %v (%v), and the timeout is %v", now, first, any, got)
	case any && now+got > first:
		t.Fatalf("at %v the reactor may sleep for %v and miss the timer at %v", now, got, first)
	}
}
