package perf

import (
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSamplesOnLastProcessor: a process that may run on the last processor only is sampled there.
func TestSamplesOnLastProcessor(t *testing.T) {
	const env = "PERF_TEST_BOUND"
	if os.Getenv(env) != "" {
		TestSamples(t)
		return
	}
	var all, last unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for n := range 1024 {
		if all.IsSet(n) {
			last.Zero()
			last.Set(n)
		}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestSamplesOnLastProcessor$", "-test.v")
	cmd.Env = append(os.Environ(), env+"=1")
	// A child has the processors of the thread that starts it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.SchedSetaffinity(0, &last); err != nil {
		t.Fatal(err)
	}
	err := cmd.Start()
	if back := unix.SchedSetaffinity(0, &all); back != nil {
		t.Fatal(back)
	}
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		t.Error(err)
	}
}
