package floor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dsmd/internal/patience"
	"dsmd/internal/uffd/uffdtest"
)

func TestMain(m *testing.M) {
	if IsProcess(os.Args) {
		Main(os.Args)
	}
	os.Exit(m.Run())
}

// TestEveryPath runs every floor both ways of waiting. It asserts nothing about the times but that
// time passed.
func TestEveryPath(t *testing.T) {
	uffdtest.Require(t)
	for _, spec := range []Spec{
		{Path: Fetch},
		{Path: Fetch, Store: true},
		{Path: Fetch, Gap: 100 * time.Microsecond},
		{Path: FetchMany, Threads: 4, Pages: 64},
		{Path: Unprotect},
		{Path: RoundTrip},
		{Path: UnixRoundTrip},
		{Path: Stream, Pages: 256},
		{Path: Pipeline, Pages: 256},
		{Path: Touch, Pages: 64},
	} {
		for _, spin := range []bool{false, true} {
			spec.Samples, spec.Spin = 20, spin
			t.Run(fmt.Sprintf("%s/store=%t/gap=%v/spin=%t", spec.Path, spec.Store, spec.Gap, spin), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), patience.Or(20*time.Second))
				defer cancel()
				samples, err := Measure(ctx, spec)
				if err != nil {
					t.Fatal(err)
				}
				if len(samples) != spec.Samples {
					t.Fatalf("%d samples, want %d", len(samples), spec.Samples)
				}
				for i, s := range samples {
					if !(s > 0) {
						t.Errorf("sample %d is %v µs", i, s)
					}
				}
			})
		}
	}
}

// TestBlockedSleeps: while the program computes, processes that do not spin take no processor.
func TestBlockedSleeps(t *testing.T) {
	uffdtest.Require(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience.Or(20*time.Second))
	defer cancel()
	g := &group{spec: Spec{Path: Fetch, Samples: 20, Gap: 5 * time.Millisecond}}
	err := onThread(func() error {
		defer g.end()
		timer, err := g.start()
		if err != nil {
			return err
		}
		_, err = timer.wait(ctx, g)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	taken := make(map[role]time.Duration)
	for _, p := range g.members {
		taken[p.role] = p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
	}
	for _, waits := range []role{roleDaemon, roleServer} {
		if taken[waits] > taken[roleProgram]/2 {
			t.Errorf("the %s took %v of a processor, the program, which computed, %v", waits, taken[waits], taken[roleProgram])
		}
	}
}

func TestBadSpecs(t *testing.T) {
	for _, spec := range []Spec{
		{},
		{Path: "teleport", Samples: 1},
		{Path: Fetch},
		{Path: Fetch, Samples: maxSamples + 1},
		{Path: Stream, Samples: 1},
		{Path: Touch, Samples: 1, Pages: maxPages + 1},
		{Path: Pipeline, Samples: 2, Pages: maxPages},
		{Path: FetchMany, Samples: 2, Pages: maxPages, Threads: 1},
		{Path: FetchMany, Samples: 1, Pages: 1},
		{Path: FetchMany, Samples: 1, Pages: 1, Threads: maxThreads + 1},
		{Path: FetchMany, Samples: 1, Pages: 1, Threads: -1},
		{Path: Fetch, Samples: 1, Threads: 1},
		{Path: Fetch, Samples: 1, Gap: -time.Second},
	} {
		if _, err := Measure(t.Context(), spec); !errors.Is(err, ErrSpec) {
			t.Errorf("Measure(%+v) = %v, want ErrSpec", spec, err)
		}
	}
}

// TestCancelEndsProcesses cancels a measurement that would take very long.
func TestCancelEndsProcesses(t *testing.T) {
	uffdtest.Require(t)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, errors.New("enough"))
	defer cancel()
	_, err := Measure(ctx, Spec{Path: Fetch, Samples: 1000, Gap: time.Minute})
	if err == nil || !strings.Contains(err.Error(), "enough") {
		t.Fatalf("Measure = %v, want the context's cause", err)
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestLoadStops(t *testing.T) {
	stop, err := Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(children(t)) == 0 {
		t.Error("the load is no process")
	}
	stop()
	stop()
	if left := children(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// children lists the processes that this one has started and not waited for.
func children(t *testing.T) []string {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil || len(tasks) == 0 {
		t.Fatalf("listing this process's children: %v, %d threads", err, len(tasks))
	}
	var pids []string
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // The thread has ended meanwhile.
		}
		pids = append(pids, strings.Fields(string(text))...)
	}
	return pids
}

// TestFailureIsTold: a process that cannot do its part says so, and the measurement ends.
func TestFailureIsTold(t *testing.T) {
	cmd := exec.Command(os.Args[0], processMark, string(roleDaemon), `{"Path":"fetch","Samples":1}`)
	out, err := cmd.CombinedOutput()
	if err == nil || len(strings.TrimSpace(string(out))) == 0 {
		t.Errorf("a daemon without its connections ended with %v and said %q", err, out)
	}
}
