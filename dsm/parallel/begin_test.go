package parallel

import "testing"

// TestBeginFails: when a rank's own slot cannot be touched as tasks begin, no goroutine stays.
func TestBeginFails(t *testing.T) {
	r := &run[int]{loop: &loop{t: &crew{threads: 2}}, wake: make(chan struct{}, 2), look: make(chan struct{}, 1), over: make(chan struct{})}
	func() {
		defer func() { _ = recover() }()
		err := r.conclude(nil, nil) // the crew has no slots
		t.Error("it has begun, and ended with ", err)
	}()
	select {
	case <-r.over:
	default:
		t.Error("goroutines wait for tasks")
	}
}
