package main

import (
	"maps"
	"sync"
	"testing"
)

// threaded is the program as it was before, with threads that share a map.
func threaded(text []string, threads int) map[string]int {
	var mu sync.Mutex
	counts := map[string]int{} // guarded by mu
	var team sync.WaitGroup
	for i := range threads {
		team.Go(func() {
			own := map[string]int{}
			for _, word := range text[len(text)*i/threads : len(text)*(i+1)/threads] {
				own[word]++
			}
			mu.Lock()
			defer mu.Unlock()
			for word, n := range own {
				counts[word] += n
			}
		})
	}
	team.Wait()
	return counts
}

// TestThreads: any number of threads counts the same, and each word of the text.
func TestThreads(t *testing.T) {
	some := text(3000)
	want, sum := threaded(some, 1), 0
	for _, n := range want {
		sum += n
	}
	if got := threaded(some, 3); !maps.Equal(got, want) || sum != len(some) {
		t.Errorf("%d words are counted, want %d; of %d in the text %d", len(got), len(want), len(some), sum)
	}
}
