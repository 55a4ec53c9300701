package dsm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/runstats"
)

// account is where the time of this rank goes, for `dsmd run --stats`. A nil account counts
// nothing.
type account struct {
	to     *os.File
	began  time.Time
	cpu    time.Duration // of this process, at the beginning
	queue  time.Duration
	before map[string]uint64 // the daemon's counters, then

	profiler *profiler // nil: no profile is wanted

	mu    sync.Mutex
	waits map[item]*runstats.Item // guarded by mu
}

// item is what is waited for.
type item struct {
	kind runstats.Kind
	name string
}

// accountPatience bounds how long the beginning and the end of an account wait for the daemon.
const accountPatience = 5 * time.Second

// openAccount begins an account, if `dsmd run` wants one and this process has none yet.
func openAccount(ctx context.Context, c *Cluster) error {
	text := os.Getenv(runstats.Env)
	if text == "" {
		return nil
	}
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 0 {
		return fmt.Errorf("the environment has %s=%q, which is no descriptor; unset it, or start the program with `dsmd run --stats`", runstats.Env, text)
	}
	os.Unsetenv(runstats.Env) // programs that this one starts are not ranks
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil // it is somebody else's, or was closed on the way
	}
	unix.CloseOnExec(fd)
	ctx, cancel := context.WithTimeout(ctx, accountPatience)
	defer cancel()
	s, err := c.Stats(ctx)
	if err != nil {
		return err
	}
	c.account = &account{
		to: os.NewFile(uintptr(fd), runstats.Env), began: time.Now(), cpu: processorTime(), queue: queueTime(),
		before: s.counters, waits: map[item]*runstats.Item{}, profiler: openProfiler(c),
	}
	return nil
}

func nothing() {}

// waiting begins a wait. It ends when the result is called.
func (a *account) waiting(kind runstats.Kind, name string) (done func()) {
	if a == nil {
		return nothing
	}
	began := time.Now()
	var stack []uintptr
	if a.profiler != nil {
		stack = callers(1)
	}
	return func() { a.waited(item{kind, name}, time.Since(began), stack) }
}

func (a *account) waited(what item, d time.Duration, stack []uintptr) {
	if a.profiler != nil {
		a.profiler.waited(what, d, stack)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	x := a.waits[what]
	if x == nil {
		x = &runstats.Item{Kind: what.kind, Name: what.name}
		a.waits[what] = x
	}
	x.Count++
	x.Time += d
}

// close writes the account, before the cluster is left.
func (a *account) close(c *Cluster) error {
	if a == nil {
		return nil
	}
	r := runstats.Record{
		Rank: c.Rank(), Node: c.Node(), Wall: time.Since(a.began), CPU: processorTime() - a.cpu, Queue: max(0, queueTime()-a.queue),
	}
	a.mu.Lock()
	for _, x := range a.waits {
		r.Waits = append(r.Waits, *x)
	}
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), accountPatience)
	defer cancel()
	if s, err := c.Stats(ctx); err == nil { // without the daemon there is still the rest
		addCounters(&r, a.before, s.counters)
	}
	a.profiler.close(&r)
	_, err := a.to.Write(r.Encode())
	if err = errors.Join(err, a.to.Close()); err != nil && !errors.Is(err, os.ErrClosed) && !errors.Is(err, unix.EPIPE) {
		return fmt.Errorf("the account for --stats: %w", err)
	}
	return nil
}

// addCounters adds what the daemon has counted in between.
func addCounters(r *runstats.Record, before, after map[string]uint64) {
	since := func(name string) uint64 { return after[name] - min(before[name], after[name]) }
	r.Read, r.Write, r.Upgrade = since("faults_read"), since("faults_write"), since("faults_upgrade")
	r.Sent, r.Received = since("bytes_sent"), since("bytes_received")
	r.Faults, r.FaultWait = since(attach.OwnWaits), time.Duration(since(attach.OwnWait))
	for counter := range after {
		name, is := strings.CutPrefix(counter, attach.WaitIn)
		if waited := since(counter); is && waited > 0 {
			r.Memory = append(r.Memory, runstats.Item{
				Kind: runstats.Memory, Name: name, Count: since(attach.WaitsIn + name), Time: time.Duration(waited), Taken: since(attach.ContendedIn + name),
			})
		}
	}
}

// processorTime is what this process has used.
func processorTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// queueTime is how long the threads that this process has now were ready to run and had no
// processor; 0 where the kernel does not say.
func queueTime() (sum time.Duration) {
	files, _ := filepath.Glob("/proc/self/task/*/schedstat") // the pattern is good
	for _, file := range files {
		text, err := os.ReadFile(file)
		fields := strings.Fields(string(text))
		if err != nil || len(fields) < 2 {
			continue // the thread has ended
		}
		if ns, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			sum += time.Duration(ns)
		}
	}
	return sum
}
