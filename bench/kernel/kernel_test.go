package kernel

import (
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// TestFNV checks the definition on values worked out by hand from it.
func TestFNV(t *testing.T) {
	offset, prime := uint64(1469598103934665603), uint64(1099511628211)
	if got := FNV(Uint64s{}); got != "14650fb0739d0383" {
		t.Errorf("FNV of nothing is %s", got)
	}
	one := (offset ^ math.Float64bits(1)) * prime
	two := (one ^ math.Float64bits(-2)) * prime
	if got, want := FNV(Float64s{1, -2}), FNV(Uint64s{math.Float64bits(1), math.Float64bits(-2)}); got != want {
		t.Errorf("FNV of floats is %s, of their bits %s", got, want)
	}
	if got := FNV(Float64s{1, -2}); got != hex(two) {
		t.Errorf("FNV(1, -2) = %s, want %s", got, hex(two))
	}
	if FNV(Uint64s{1, 2}) == FNV(Uint64s{2, 1}) {
		t.Error("FNV does not depend on the order")
	}
}

func hex(v uint64) string {
	const digits = "0123456789abcdef"
	var b [16]byte
	for i := range b {
		b[i] = digits[v>>(60-4*i)&15]
	}
	return string(b[:])
}

func TestSameBits(t *testing.T) {
	want := Result{Figures: map[string]any{"fnv": "1", "sum": 2.5}, Output: Float64s{0, 1, math.NaN()}}
	if err := SameBits(want, want); err != nil {
		t.Errorf("a result differs from itself: %v", err)
	}
	for name, tc := range map[string]struct {
		got  Result
		says string
	}{
		"sign of zero":   {Result{want.Figures, Float64s{math.Copysign(0, -1), 1, math.NaN()}}, "first word 0"},
		"one word":       {Result{want.Figures, Float64s{0, 1.5, math.NaN()}}, "1 of 3 words"},
		"length":         {Result{want.Figures, Float64s{0, 1}}, "2 words"},
		"figure":         {Result{map[string]any{"fnv": "2", "sum": 2.5}, want.Output}, `"fnv" is 2`},
		"missing figure": {Result{map[string]any{"fnv": "1"}, want.Output}, `"sum" is missing`},
		"extra figure":   {Result{map[string]any{"fnv": "1", "sum": 2.5, "z": true}, want.Output}, "3 figures"},
	} {
		t.Run(name, func(t *testing.T) {
			err := SameBits(want, tc.got)
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("SameBits = %v, want an error with %q", err, tc.says)
			}
		})
	}
}

func TestBlockCoversEverythingOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, parts := rapid.IntRange(0, 5000).Draw(t, "n"), rapid.IntRange(1, 300).Draw(t, "parts")
		next := 0
		for k := range parts {
			lo, hi := Block(n, parts, k)
			if lo != next || hi < lo {
				t.Fatalf("part %d is [%d,%d), the one before ended at %d", k, lo, hi, next)
			}
			if size := hi - lo; size != n/parts && size != n/parts+1 {
				t.Fatalf("part %d has %d of %d items in %d parts", k, size, n, parts)
			}
			next = hi
		}
		if next != n {
			t.Fatalf("the parts cover %d of %d items", next, n)
		}
	})
}

func TestSizesParse(t *testing.T) {
	sizes := Sizes{Parameter: "edge", Test: 8, Default: 64, Large: 512, Min: 4, Max: 1024, Valid: func(n int) error {
		if n%4 != 0 {
			return errors.New("not a multiple of 4")
		}
		return nil
	}}
	for text, want := range map[string]int{"test": 8, "default": 64, "large": 512, "4": 4, "1024": 1024} {
		if n, err := sizes.Parse(text); err != nil || n != want {
			t.Errorf("Parse(%q) = %d, %v, want %d", text, n, err, want)
		}
	}
	for _, text := range []string{"", "huge", "3", "1025", "-8", "10", "8.0", "99999999999999999999"} {
		if n, err := sizes.Parse(text); !errors.Is(err, ErrSize) {
			t.Errorf("Parse(%q) = %d, %v, want ErrSize", text, n, err)
		}
	}
}

// TestBarrierSeparatesRounds lets each thread count, and checks between two barriers that all have.
func TestBarrierSeparatesRounds(t *testing.T) {
	const threads, rounds = 5, 200
	barrier := NewBarrier(threads)
	var count atomic.Int64
	err := Spawn(t.Context(), threads, func(self *Thread) {
		for round := range rounds {
			count.Add(1)
			self.Wait(barrier, "after counting")
			if got := count.Load(); got != int64((round+1)*threads) {
				t.Errorf("thread %d left round %d with a count of %d", self.Index, round, got)
			}
			self.Wait(barrier, "after looking")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestSpawnReleasesWaiters: a thread that fails must not leave the others at the barrier, nor a
// lock held.
func TestSpawnReleasesWaiters(t *testing.T) {
	broken := errors.New("broken")
	barrier, lock := NewBarrier(3), NewMutex()
	err := Spawn(t.Context(), 3, func(self *Thread) {
		if self.Index == 1 {
			self.Locked(lock, func() { self.Check(broken, "breaking") })
			t.Error("a thread went on after an error")
		}
		self.Locked(lock, func() {})
		self.Wait(barrier, "of all")
	})
	if !errors.Is(err, broken) || strings.Count(err.Error(), "broken") != 1 {
		t.Errorf("Spawn = %v, want %v once", err, broken)
	}
}

// TestLoop: each item is run once, by whichever thread.
func TestLoop(t *testing.T) {
	const threads, items = 4, 1000
	loop := alone(threads).Loop("loop")
	var runs [items]atomic.Int32
	if err := Spawn(t.Context(), threads, func(self *Thread) {
		loop.Run(self, items, func(i int) { runs[i].Add(1) })
	}); err != nil {
		t.Fatal(err)
	}
	for i := range runs {
		if got := runs[i].Load(); got != 1 {
			t.Errorf("item %d was run %d times", i, got)
		}
	}
}

func TestRegistryFind(t *testing.T) {
	if _, err := (Registry{}).Find("fft"); !errors.Is(err, ErrUnknown) {
		t.Errorf("Find in an empty registry = %v, want ErrUnknown", err)
	}
}
