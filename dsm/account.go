package dsm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/runstats"
)

// account is what this rank waits for, and where its time goes, for `dsmd run`. A nil account
// counts nothing.
type account struct {
	to     *os.File
	closed atomic.Bool
	counts bool               // records are wanted
	giveUp context.CancelFunc // ends tells
	tells  sync.WaitGroup

	began  time.Time
	cpu    time.Duration // of this process, at the beginning
	queue  time.Duration
	marked time.Duration
	before map[string]uint64 // the daemon's counters, then

	tracer *tracer // nil: nobody wants to know of single waits

	mu    sync.Mutex
	waits map[item]*runstats.Item // guarded by mu
}

// item is what is waited for.
type item struct {
	kind runstats.Kind
	name string
}

// accountPatience bounds how long the beginning of an account, and each look at the daemon's log of
// faults, wait for the daemon.
const accountPatience = 5 * time.Second

// closePatience bounds how long the end of an account waits for the daemon, in all. Only tests
// change it.
var closePatience = 5 * time.Second

// recordEvery is how often a rank says what it has measured so far. That counts if it is ended
// before it leaves the cluster.
const recordEvery = 5 * time.Second

// reportPipe is the descriptor by which `dsmd run` is told of this rank; -1: it does not listen, or
// not any more.
func reportPipe() (fd int, err error) {
	text := os.Getenv(runstats.Env)
	if text == "" {
		return -1, nil
	}
	fd, err = strconv.Atoi(text)
	if err != nil || fd < 0 {
		return -1, fmt.Errorf("the environment has %s=%q, which is no descriptor; unset it, or start the program with `dsmd run`", runstats.Env, text)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFIFO {
		return -1, nil // it is somebody else's, or was closed on the way
	}
	return fd, nil
}

// openAccount begins an account, if `dsmd run` wants one and this process has none yet.
func openAccount(ctx context.Context, c *Cluster) error {
	fd, err := reportPipe()
	if err != nil {
		return err
	}
	os.Unsetenv(runstats.Env) // programs that this one starts are not ranks
	if fd < 0 {
		return nil
	}
	unix.CloseOnExec(fd)
	a := &account{
		to: os.NewFile(uintptr(fd), runstats.Env), counts: os.Getenv(runstats.EnvStats) != "",
		giveUp: func() {}, began: time.Now(), waits: map[item]*runstats.Item{},
	}
	ctx, cancel := context.WithTimeout(ctx, accountPatience)
	defer cancel()
	if a.counts {
		s, err := c.Stats(ctx)
		if err != nil {
			return err
		}
		a.cpu, a.queue, a.marked, a.before = processorTime(), queueTime(), markingTime(), s.counters
	}
	if a.tracer, err = openTracer(ctx, c, a.to, a.counts); err != nil {
		return err
	}
	if a.counts {
		telling, giveUp := context.WithCancel(context.Background())
		a.giveUp = giveUp
		a.tells.Go(func() { a.tell(telling, c, time.Tick(recordEvery)) })
	}
	c.account.Store(a)
	return nil
}

// tell says what was measured so far, again and again, until ctx ends or the cluster is lost. It
// says nothing while the launcher has not read what was said before. Else records would fill the
// pipe to a launcher that is suspended, and Close would wait to write the last one. (It does wait
// where Pieces fill the pipe: each of them tells something else.)
func (a *account) tell(ctx context.Context, c *Cluster, due <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.done:
			return
		case <-due:
		}
		if unread, err := unix.IoctlGetInt(int(a.to.Fd()), unix.TIOCINQ); err == nil && unread > 0 {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, accountPatience)
		r, whole := a.record(asking, c)
		cancel()
		switch {
		case ctx.Err() != nil:
			return // there will be a whole one
		case !whole:
			continue // the one before says more
		}
		r.Partial = true
		a.tracer.addProfile(&r)
		_, _ = a.to.Write(r.Encode()) // as for pieces
	}
}

// allocated notes memory that is new to this rank.
func (a *account) allocated(m *allocation) {
	if a != nil {
		a.tracer.allocated(m)
	}
}

// begins notes that a caller's caller of it waits from now on.
func (a *account) begins(w *wait) {
	if a != nil {
		a.tracer.begins(w)
	}
}

// waited counts a wait that has ended.
func (a *account) waited(w *wait, d time.Duration) {
	if a == nil {
		return
	}
	a.tracer.ended(w, d)
	if !a.counts {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	x := a.waits[w.item]
	if x == nil {
		x = &runstats.Item{Kind: w.kind, Name: w.name}
		a.waits[w.item] = x
	}
	x.Count++
	x.Time += d
}

// finish passes on what is noted, in a program that ends because the cluster is lost.
func (a *account) finish(within time.Duration) {
	if a != nil {
		a.tracer.finish(within)
	}
}

// close writes the account, before the cluster is left.
func (a *account) close(c *Cluster) error {
	if a == nil || !a.closed.CompareAndSwap(false, true) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	a.giveUp()
	a.tells.Wait()
	if !a.counts {
		a.tracer.close(ctx, nil)
		return a.to.Close()
	}
	r, _ := a.record(ctx, c) // without the daemon there is still the rest
	a.tracer.close(ctx, &r)
	_, err := a.to.Write(r.Encode())
	if err = errors.Join(err, a.to.Close()); err != nil && !errors.Is(err, os.ErrClosed) && !errors.Is(err, unix.EPIPE) {
		return fmt.Errorf("the account for --stats: %w", err)
	}
	return nil
}

// record is what was measured so far, without the profile. It is not whole if the daemon does not
// say what it has counted.
func (a *account) record(ctx context.Context, c *Cluster) (r runstats.Record, whole bool) {
	cpu := processorTime() - a.cpu
	r = runstats.Record{
		Rank: c.Rank(), Node: c.Node(), Wall: time.Since(a.began), CPU: cpu,
		Queue: programsQueue(max(0, queueTime()-a.queue), cpu, markingTime()-a.marked),
	}
	all := map[item]runstats.Item{}
	a.mu.Lock()
	for of, x := range a.waits {
		all[of] = *x
	}
	a.mu.Unlock()
	for _, w := range c.attendant.waits.counted(time.Now()) {
		x := all[w.item]
		x.Kind, x.Name, x.Count, x.Time = w.kind, w.name, x.Count+1, x.Time+w.waited
		all[w.item] = x
	}
	r.Waits = slices.Collect(maps.Values(all))
	s, err := c.Stats(ctx)
	if err == nil {
		addCounters(&r, a.before, s.counters)
	}
	return r, err == nil
}

// addCounters adds what the daemon has counted in between.
func addCounters(r *runstats.Record, before, after map[string]uint64) {
	since := func(name string) uint64 { return after[name] - min(before[name], after[name]) }
	r.Read, r.Write, r.Upgrade = since("faults_read"), since("faults_write"), since("faults_upgrade")
	r.Sent, r.Received = since("bytes_sent"), since("bytes_received")
	r.SpillWrites, r.SpillReads = since("spill_writes"), since("spill_reads")
	r.FaultWait = time.Duration(since(attach.OwnWait))
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

// markingTime is for how long workers of Go's garbage collector have run so far, or were ready to.
func markingTime() (sum time.Duration) {
	samples := []metrics.Sample{{Name: "/cpu/classes/gc/mark/dedicated:cpu-seconds"}, {Name: "/cpu/classes/gc/mark/idle:cpu-seconds"}}
	metrics.Read(samples)
	for _, s := range samples {
		if s.Value.Kind() == metrics.KindFloat64 { // else this version of Go has no such metric
			sum += time.Duration(s.Value.Float64() * float64(time.Second))
		}
	}
	return sum
}

// programsQueue is which part of queue the goroutines of the program have waited. The garbage
// collector has a worker on each P that has nothing else to do. There are more of them than
// processors (WithProcs), so that they mostly wait for each other, and hold up no goroutine. All
// threads get processors alike: so a worker has waited for the same share of its time as others.
func programsQueue(queue, cpu, marking time.Duration) time.Duration {
	all := (queue + cpu).Seconds()
	if all <= 0 {
		return 0
	}
	return time.Duration(float64(queue) * (1 - min(marking.Seconds()/all, 1)))
}
