package spin

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// vain lets a budget be used up in vain, and its owner sleep for d.
func vain(b *Budget, sleeps int, d time.Duration) {
	for range sleeps {
		b.Slept(d)
	}
}

func TestBudgetLearnsNotToPoll(t *testing.T) {
	b := ForReactor(0)
	if b.Until(0) != Most {
		t.Errorf("a new reactor polls for %v, want %v", b.Until(0), Most)
	}
	vain(&b, 1, time.Second)
	if got := b.Until(0); got >= Most || got == 0 {
		t.Errorf("after one long sleep it polls for %v, want less than %v, but some", got, Most)
	}
	vain(&b, 10, time.Second)
	if got := b.Until(0); got != 0 {
		t.Errorf("after many long sleeps it still polls for %v", got)
	}
}

func TestBudgetLearnsToPoll(t *testing.T) {
	b := ForReactor(0)
	vain(&b, 10, time.Second)
	vain(&b, 1, Most/2)
	if got := b.Until(0); got < Least {
		t.Errorf("after a sleep that polling could have spared it polls for %v, want at least %v", got, Least)
	}
	vain(&b, 10, Most/2)
	if got := b.Until(0); got != Most {
		t.Errorf("after many short sleeps it polls for %v, want %v", got, Most)
	}
	vain(&b, 10, 2*Most) // neither short nor long: it stays as it is
	if got := b.Until(0); got != Most {
		t.Errorf("after middling sleeps it polls for %v, want %v", got, Most)
	}
}

// TestRepliesThatTakeLongAreNotPolledFor: where polling does not bring the reply, a program stops
// much sooner than a reactor, and begins again when replies come soon.
func TestRepliesThatTakeLongAreNotPolledFor(t *testing.T) {
	b := ForReply()
	vain(&b, 10, 4*Most)
	if got := b.Until(0); got != 0 {
		t.Errorf("after many replies that took long it still polls for %v", got)
	}
	vain(&b, 10, Most)
	if got := b.Until(0); got != Most {
		t.Errorf("after many replies that came soon it polls for %v, want %v", got, Most)
	}
}

func TestPollingPausesWhenTheCoreIsStolen(t *testing.T) {
	b := ForReactor(0)
	now := time.Second
	for range 100 { // interrupts
		now += 2 * PausePerLoss * StolenAfter
		b.Looked(now, 2*StolenAfter)
		if b.Until(now) != Most {
			t.Fatal("it paused although it has its core nearly all the time")
		}
	}
	b.Looked(now, ToleratedLoss+1)
	if b.Until(now) != 0 {
		t.Error("it polls after its core was stolen")
	}
	b = ForReactor(0)
	for range ToleratedLoss / (2 * StolenAfter) {
		b.Looked(now, 2*StolenAfter)
	}
	if b.Until(now) != Most {
		t.Error("it paused although little was lost")
	}
	b.Looked(now, 2*StolenAfter)
	if b.Until(now) != 0 {
		t.Error("it polls although small losses have become many")
	}
}

func TestPausesAreLongerTheMoreIsLost(t *testing.T) {
	for _, kept := range []time.Duration{time.Millisecond, 3 * time.Millisecond, time.Second} {
		b := ForReactor(0)
		b.Looked(time.Second, kept)
		want := min(PausePerLoss*kept, MaxPause)
		if b.Until(time.Second+want-1) != 0 || b.Until(time.Second+want) != Most {
			t.Errorf("after the core was lost for %v there is no pause for %v", kept, want)
		}
	}
}

func TestBudgetLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := time.Duration(rapid.Int64Range(-10, int64(time.Millisecond)).Draw(t, "limit"))
		b := ForReactor(limit)
		want := limit
		switch {
		case limit < 0:
			want = 0
		case limit == 0:
			want = Most
		}
		for range rapid.IntRange(0, 50).Draw(t, "sleeps") {
			b.Slept(time.Duration(rapid.Int64Range(0, int64(10*time.Millisecond)).Draw(t, "sleep")))
			if got := b.Until(0); got < 0 || got > want {
				t.Fatalf("it polls for %v, the limit is %v", got, want)
			}
		}
	})
}
