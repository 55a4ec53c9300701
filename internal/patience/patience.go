// Package patience tells how long tests wait for what must happen. Such waits bound a run that
// fails, and measure nothing. They are far longer than anything takes on a slow and busy machine,
// because a test that fails for slowness tells nothing. An emulated machine, or one with a lot else
// to do, needs more. An environment variable says so once for all tests.
package patience

import (
	"fmt"
	"os"
	"time"
)

// Env is the environment variable that sets all waits, as in 5m.
const Env = "DSMD_TEST_PATIENCE"

// Or is the wait that the variable sets, or else the usual one. It panics if what is set is not a
// time, or not a positive one.
func Or(usual time.Duration) time.Duration {
	text := os.Getenv(Env)
	if text == "" {
		return usual
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		panic(fmt.Sprintf("patience: %s is %q, want a time as in 5m", Env, text))
	}
	return d
}
