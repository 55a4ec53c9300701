package dsm

import (
	"os"
	"runtime"
	"testing"
)

// TestProcs checks what Join makes of GOMAXPROCS.
func TestProcs(t *testing.T) {
	defer runtime.SetDefaultGOMAXPROCS()
	t.Setenv("GOMAXPROCS", "") // so that it is restored
	os.Unsetenv("GOMAXPROCS")
	runtime.SetDefaultGOMAXPROCS()
	usual := runtime.GOMAXPROCS(0)
	for _, x := range []struct {
		what, env string
		before    int // 0: as Go has chosen
		opts      []Option
		want      int
	}{
		{"by default", "", 0, nil, procsPerProcessor * usual},
		{"after the program has raised it", "", usual + 1, nil, usual + 1},
		{"after another Join", "", procsPerProcessor * usual, nil, procsPerProcessor * usual},
		{"with the environment variable", "7", 7, nil, 7}, // the runtime has read it at the start
		{"with the environment variable as Go would choose", "1", 0, nil, usual},
		{"WithProcs(5)", "", 0, []Option{WithProcs(5)}, 5},
		{"WithProcs(0)", "", 0, []Option{WithProcs(0)}, usual},
		{"WithProcs(3) with the environment variable", "7", 0, []Option{WithProcs(3)}, 3},
	} {
		t.Run(x.what, func(t *testing.T) {
			if x.env != "" {
				t.Setenv("GOMAXPROCS", x.env)
			}
			runtime.SetDefaultGOMAXPROCS()
			if x.before > 0 {
				runtime.GOMAXPROCS(x.before)
			}
			f := newFake(t, 1)
			c := f.join(x.opts...)
			if got := runtime.GOMAXPROCS(0); got != x.want {
				t.Errorf("GOMAXPROCS is %d, want %d", got, x.want)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := Join(within(t), WithProcs(-1)); err == nil {
		t.Error("WithProcs(-1) is taken")
	}
}
