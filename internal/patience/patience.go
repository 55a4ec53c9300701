// Package patience says how long tests wait for what must happen. Such waits bound a run that fails, and measure nothing: they are far beyond what anything
// takes on a slow and busy machine, because a test that fails for slowness says nothing. An emulated machine, or one with a lot else to do, needs more, and says so
// once for all tests, by an environment variable.
package patience

import (
	"fmt"
	"os"
	"time"
)

// Env is the environment variable that sets all waits, as in 5m.
const Env = "DSMD_TEST_PATIENCE"

// Or is what the variable says, if it is set, and otherwise what is usual. It panics if what is set is not a time, or not a positive one.
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
