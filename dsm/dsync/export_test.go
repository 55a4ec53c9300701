package dsync

import "time"

// In tests nobody looks again by itself, nor leaves a gate at which nobody comes: so who is not
// woken waits until the test fails.
func init() { SetPatience(time.Hour, time.Hour) }

// SetPatience sets when a rank looks again, and for how long it is waited for at its gate.
func SetPatience(relook, gate time.Duration) {
	relookAfter, watchAfter, gatePatience = relook, relook, gate
}
