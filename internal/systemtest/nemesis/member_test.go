package nemesis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
)

const (
	// eraSpan is for how long programs work at the same places, before they go on to fresh ones.
	// Operations that may have happened at any time, of which every killed program leaves some,
	// make a place harder to check, without bound if the place were used for ever.
	eraSpan = 10 * time.Second
	// maxEras is how many eras there are memory for, which costs nothing until it is touched. It is
	// enough for hours; the last goes on for ever.
	maxEras = 1 << 10
	// restAtMost is how long a thread rests between two operations.
	restAtMost = 30 * time.Millisecond
)

// order is what a program is told when it is started.
type order struct {
	History string `json:"history"` // the file to make
	Seed    uint64 `json:"seed"`
	Start   int64  `json:"start"` // of the first era, on the clock of now
}

// The lines of the talk between the harness and a program.
const (
	sayBegun  = "begun"  // from the program: it has joined, and works
	sayFinish = "finish" // to the program: read everything once more, and leave
)

// member is a program that works under faults.
type member struct {
	ctx    context.Context
	c      *dsm.Cluster
	record *recorder
	order  order
	over   atomic.Bool // there is to be no more work
}

// era is the present one.
func (m *member) era() int {
	return int(min((now()-m.order.Start)/int64(eraSpan), maxEras-1))
}

// under does something while it holds a lock, whether its last owner died or not: what a word says
// is never half done. If that meets a page which is lost, the error says so.
func (m *member) under(lock *dsm.Mutex, something func()) error {
	if err := lock.LockRepair(m.ctx, func(*dsm.OwnerDiedError) error { return nil }); err != nil {
		return err
	}
	lost := dsm.Guard(something)
	if err := lock.Unlock(); err != nil {
		return err
	}
	return lost
}

// Workload is something that a program does on every host.
type Workload struct {
	Name    string // by what it is chosen
	Threads int    // of each program
	// Team says that all ranks need each other: when one dies all are replaced, by as many as there
	// are hosts left.
	Team    bool
	program *testcluster.Program
	// work prepares what the threads of a program do.
	work func(m *member) (job, error)
}

// job is the work of a member.
type job struct {
	// step does a few operations. Every thread calls it again and again until the member is over.
	step func(thread int, r *rand.Rand) error
	// finish reads everything once more. It is called once, when all threads have returned.
	finish func() error
}

// exitBereaved is the exit status of a program of a team that has lost a rank, or pages, with a
// node: EX_TEMPFAIL of sysexits.h.
const exitBereaved = 75

// lastThread is the thread of what a program does in the end, when its threads have returned.
const lastThread = 0

// workloads are all that there are.
var workloads = []*Workload{registerWorkload, counterWorkload, locksWorkload, sorWorkload, heapWorkload, mapWorkload, queueWorkload}

// define makes the workload's program.
func define(w *Workload) *Workload {
	w.program = testcluster.Define("nemesis-"+w.Name, func(s *testcluster.Self) error {
		err := w.run(s)
		status := 0
		switch {
		case errors.Is(err, dsm.ErrLost), errors.Is(err, dsm.ErrNoDaemon):
			// As the library ends a program that has shared memory, at whatever moment the loss
			// finds it.
			status = dsm.ExitLost
		case w.Team && (errors.Is(err, dsm.ErrNodeLost) || errors.Is(err, dsm.ErrPageLost)):
			status = exitBereaved
		default:
			return err
		}
		fmt.Fprintf(os.Stderr, "nemesis: %v\n", err)
		os.Exit(status)
		return nil
	})
	return w
}

// run is the life of a program.
func (w *Workload) run(s *testcluster.Self) error {
	// Not s.Ctx, which ends after a while: a campaign may take hours. The machine, and with it the
	// process, ends with the test.
	m := &member{ctx: context.Background()}
	if err := json.Unmarshal([]byte(s.Args[0]), &m.order); err != nil {
		return fmt.Errorf("nemesis: the order: %w", err)
	}
	var err error
	if m.record, err = newRecorder(m.order.History); err != nil {
		return err
	}
	if m.c, err = dsm.Join(m.ctx); err != nil {
		return err
	}
	work, err := w.work(m)
	if err != nil {
		return err
	}
	s.Say(sayBegun)
	// A goroutine of its own, which is left behind: the program ends by an error, too, while nobody
	// says anything.
	told := make(chan error, 1)
	go func() { told <- s.Await(sayFinish) }()
	done := make(chan error, 1)
	go func() { done <- w.toil(m, work) }()
	select {
	case err := <-done:
		return err
	case err := <-told:
		if errors.Is(err, io.EOF) {
			return nil // the test is gone
		}
		m.over.Store(true)
		return errors.Join(err, <-done, m.c.Close())
	}
}

// toil has all threads work until the member is over or one fails.
func (w *Workload) toil(m *member, work job) error {
	failed := make(chan error, w.Threads)
	for thread := range w.Threads {
		go func() { failed <- w.workAs(thread, m, work) }()
	}
	for range w.Threads {
		if err := <-failed; err != nil {
			return err // the others may hang with what has failed, and end with the program
		}
	}
	return work.finish()
}

// workAs is the life of a thread. It takes a step also if the member is told to finish before: a
// team agrees within a step on when it ends, and those who have begun one wait for all.
func (w *Workload) workAs(thread int, m *member, work job) error {
	r := rand.New(rand.NewPCG(m.order.Seed, uint64(thread)))
	for {
		if err := work.step(thread, r); err != nil || m.over.Load() {
			return err
		}
		time.Sleep(time.Duration(r.Int64N(int64(restAtMost))))
	}
}
