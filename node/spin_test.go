package node

import (
	"testing"
	"time"

	"dsmd/internal/netio"
	"dsmd/internal/spin"
	"dsmd/protocol"

	"pgregory.net/rapid"
)

// crowd lets somebody take the core at each of enough vain looks to notice. It returns whether the
// spinner moves.
func crowd(s *spinner, now time.Duration) (move bool) {
	taken := int64(0)
	for range 1 + s.window {
		move = s.looked(now, spin.Least, false, func() int64 { taken++; return taken * s.window })
	}
	return move
}

func TestSpinnerMovesFromACrowdedCore(t *testing.T) {
	s := newSpinner(0, 0)
	now := time.Second
	taken := int64(0)
	// a program that runs between two events takes the core only now and then
	for look := range 10 * s.window {
		if look%2 == 0 {
			taken++
		}
		if s.looked(now, spin.Least, false, func() int64 { return taken }) {
			t.Fatal("it moves although it has its core most of the time")
		}
	}
	s.vain = 0
	if !crowd(&s, now) {
		t.Fatal("it stays on a core that it lost at each look")
	}
	if s.Until(now) != DefaultSpin {
		t.Error("it does not poll on its new core")
	}
	if crowd(&s, now+leastStay-1) {
		t.Error("it moves again at once")
	}
	if s.Until(now+leastStay-1) != DefaultSpin {
		t.Error("one move in vain stops its polling")
	}
	if !crowd(&s, now+leastStay) {
		t.Error("it stays for ever on its new core")
	}
}

func TestSpinnersDoNotLeaveOneCoreTogether(t *testing.T) {
	first, second := newSpinner(0, 0), newSpinner(0, 1)
	taken, turns := int64(0), 0
	for ; ; turns++ { // they look in turns, and each takes the core from the other
		taken++
		now := time.Second + time.Duration(turns)*spin.Least
		if first.looked(now, spin.Least, false, func() int64 { return taken }) {
			break
		}
		if second.looked(now, spin.Least, false, func() int64 { return taken }) {
			t.Fatal("the second moves before the first, which is quicker to notice")
		}
	}
	for range 10 * second.window { // now it is alone
		if second.looked(time.Second, spin.Least, false, func() int64 { return taken }) {
			t.Fatalf("the second left the core too, after the first had left it at turn %d", turns)
		}
	}
}

func TestSpinnerPausesWhereAllCoresAreCrowded(t *testing.T) {
	s := newSpinner(0, 0)
	now := time.Second
	crowd(&s, now)
	for range movesInVain {
		now += leastStay
		if !crowd(&s, now) {
			t.Fatal("it gives up after too few moves")
		}
	}
	crowd(&s, now+1)
	if s.Until(now+1) != 0 || s.Until(now+crowdedPause) != 0 {
		t.Error("it polls although moving did not help")
	}
	now += crowdedPause + 1
	if s.Until(now) != DefaultSpin {
		t.Error("it never polls again")
	}
	crowd(&s, now) // moves, after a long quiet time
	crowd(&s, now+1)
	if s.Until(now+1) != DefaultSpin {
		t.Error("old moves count for ever")
	}
}

// TestSpinnerStaysWithItsProgram: a program of the node that polls for its reply takes the core at
// each look, which is no reason to leave it.
func TestSpinnerStaysWithItsProgram(t *testing.T) {
	s := newSpinner(0, 0)
	taken := int64(0)
	for range 10 * s.window {
		taken++
		if s.looked(time.Second, spin.Least, true, func() int64 { return taken }) {
			t.Fatal("it left the core on which its program waits for it")
		}
	}
	if s.Until(time.Second) != DefaultSpin {
		t.Error("it does not poll while its program does")
	}
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
