package patience

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// hangs is the environment variable by which TestHang hangs, in which way.
const hangs = "PATIENCE_TEST_HANGS"

func TestMain(m *testing.M) {
	Beside(8)
	os.Exit(m.Run())
}

// TestHang is what TestWatched runs.
func TestHang(t *testing.T) {
	switch os.Getenv(hangs) {
	case "channel":
		<-make(chan int)
	case "pipe":
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		_, _ = r.Read(make([]byte, 1))
	case "condition":
		for os.Getenv(hangs) != "" {
			time.Sleep(time.Millisecond)
		}
	case "subtest":
		t.Run("one", func(t *testing.T) { t.Parallel(); select {} })
	case "busy": // it waits in one place after the other
		first, second := make(chan int), make(chan int)
		for range 12 {
			for _, c := range []chan int{first, second} {
				time.AfterFunc(150*time.Millisecond, func() { c <- 1 })
			}
			<-first
			time.Sleep(150 * time.Millisecond)
			<-second
		}
	}
}

// TestWatched: a test that waits without a bound ends its run, which names it; one that gets on
// does not.
func TestWatched(t *testing.T) {
	for _, way := range []string{"channel", "pipe", "condition", "subtest", "busy"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run", "^TestHang$", "-test.timeout", "5m")
			cmd.Env = append(os.Environ(), hangs+"="+way, Env+"=200ms")
			out, err := cmd.CombinedOutput()
			if hung := way != "busy"; (err != nil) != hung || hung != strings.Contains(string(out), "patience.TestHang") {
				t.Errorf("the run ended with %v and said:\n%s", err, out)
			}
		})
	}
}

// TestLimited: only a run that the go command bounds is watched, however it says so.
func TestLimited(t *testing.T) {
	for args, want := range map[string]bool{
		"-test.timeout=10m0s": true, "-test.v --test.timeout=20m": true, "-test.timeout 5m -test.v": true,
		"": false, "-test.v": false, "-test.timeout=0s": false, "-test.timeout": false, "test.timeout=5m": false,
	} {
		if got := limited(strings.Fields(args)); got != want {
			t.Errorf("%q: %v, want %v", args, got, want)
		}
	}
}
