package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"dsmd/dsm"
	"dsmd/internal/runstats/trace/tracetest"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// cell is what the program shares.
type cell struct{ Count, Sum uint64 }

// alternating is a program of two ranks that write one cell in turn, under a lock, and then do what
// the argument says.
var alternating = testcluster.Define("alternating", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	cells, err := dsm.Alloc[cell](s.Ctx, c, "cells", 1024)
	if err != nil {
		return err
	}
	m, turn := dsm.NewMutex(c, "cells"), dsm.NewBarrier(c, "turn")
	for i := range 20 {
		if err := turn.Wait(s.Ctx); err != nil {
			return err
		}
		if i%2 == c.Rank() {
			if err := m.Lock(s.Ctx); err != nil {
				return err
			}
			cells[7].Sum++
			if err := m.Unlock(); err != nil {
				return err
			}
		}
	}
	switch s.Args[0] {
	case "wait":
		s.Say("waiting")
		<-s.Ctx.Done()
	case "fail":
		if c.Rank() == 1 {
			return errors.New("fails")
		}
		return turn.Wait(s.Ctx)
	}
	return c.Close()
})

// TestTrace: --trace has what the ranks have waited for, with names, and arrows to the daemons that
// sent the pages. Nothing is predicted: a page that was sent before its thread came has no arrow.
func TestTrace(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	file := filepath.Join(t.TempDir(), "trace.json")
	job := testcluster.Job{Nodes: 2, Program: alternating, Flags: []string{"--trace", file, "--predict", "off"}, Args: []string{"close"}}.Run(t)
	job.Succeed(t)
	if strings.Contains(job.Errors(), "the clock of node") {
		t.Errorf("nodes of one machine have one clock:\n%s", job.Errors())
	}
	x := traceIn(t, file, job)
	for _, rank := range []string{"rank 0 on node 0", "rank 1 on node 1"} {
		var faults, sent, locks, barriers int
		for _, e := range x.Complete() {
			if x.Processes[*e.Process] != rank {
				continue
			}
			switch {
			case e.Name == `write "cells"` || e.Name == `upgrade "cells"` || e.Name == `read "cells"`:
				faults++
				if e.Args["element"] != "cells[7].Sum" && e.Args["element"] != "cells[0].Count" {
					// The latter is what one gets where the kernel does not say.
					t.Errorf("a wait for another element: %v", e.Args)
				}
				if arrowFrom(x, e) {
					sent++
				}
			case e.Name == `lock "cells"`:
				locks++
			case e.Name == `barrier "turn"`:
				barriers++
			}
		}
		if faults < 5 || sent < 5 || locks < 1 || barriers != 20 {
			t.Errorf("%s: %d faults, of which %d have arrows, %d waits for locks, %d for barriers", rank, faults, sent, locks, barriers)
		}
	}
	for _, daemon := range []string{"daemon of node 0", "daemon of node 1"} {
		if !slices.ContainsFunc(x.Events, func(e tracetest.Event) bool { return e.Phase == "i" && x.Processes[*e.Process] == daemon }) {
			t.Errorf("no page was taken from the %s", daemon)
		}
	}
}

// arrowFrom reports whether an arrow begins at an event.
func arrowFrom(x *tracetest.Trace, e tracetest.Event) bool {
	return slices.ContainsFunc(x.Events, func(a tracetest.Event) bool {
		return a.Phase == "s" && a.Row() == e.Row() && *a.At == *e.At
	})
}

// TestTraceOfAnEnd: however a job ends, there is a trace of what was before.
func TestTraceOfAnEnd(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	for does, end := range map[string]func(*testcluster.Process){
		"fail": func(*testcluster.Process) {},
		"wait": func(job *testcluster.Process) {
			testcluster.Eventually(t, "both ranks wait", func() bool { return strings.Count(job.Output(), "waiting") == 2 })
			job.SignalAlone(syscall.SIGINT)
		},
	} {
		t.Run(does, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "trace.json")
			job := testcluster.Job{Nodes: 2, Program: alternating, Flags: []string{"--trace", file}, Args: []string{does}}.Run(t)
			end(job)
			if job.Wait(t) == 0 {
				t.Error("it has succeeded")
			}
			traceIn(t, file, job)
		})
	}
}

// traceIn reads the trace of a job that has ended.
func traceIn(t *testing.T, file string, job *testcluster.Process) *tracetest.Trace {
	t.Helper()
	if !strings.Contains(job.Errors(), "dsmd: the trace is in "+file) {
		t.Errorf("nobody says that there is a trace:\n%s", job.Errors())
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, err := tracetest.Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	return x
}
