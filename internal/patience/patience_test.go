package patience

import (
	"testing"
	"time"
)

func TestOr(t *testing.T) {
	for text, want := range map[string]time.Duration{"": time.Second, "5m": 5 * time.Minute} {
		t.Setenv(Env, text)
		if got := Or(time.Second); got != want {
			t.Errorf("with %s=%q the patience is %v, want %v", Env, text, got, want)
		}
	}
	for _, text := range []string{"soon", "0s", "-1s"} {
		t.Setenv(Env, text)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s=%q is taken for a time", Env, text)
				}
			}()
			Or(time.Second)
		}()
	}
}
