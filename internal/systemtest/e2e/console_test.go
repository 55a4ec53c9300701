package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

func TestMain(m *testing.M) { testcluster.Main(m) }

// unlessShort is how much a test does: less with -short, which is for builds that are many times
// slower, and for runs with another trap or as another user.
func unlessShort(much, little int) int {
	if testing.Short() {
		return little
	}
	return much
}

var (
	longToo  = flag.Bool("e2e.long", false, "the tests that take long, too")
	allDrawn = flag.Bool("drawn.all", false, "try all that tests draw by chance")
)

// long leaves a test to runs that have time, as .ci/run.
func long(t *testing.T) {
	t.Helper()
	if !*longToo {
		t.Skip("it takes long: with -e2e.long, as .ci/run has it")
	}
}

// once leaves a test out of runs that are there for something else, in which it would be the same:
// on machines, or with many daemons.
func once(t *testing.T) {
	t.Helper()
	if testing.Short() || os.Getenv(testcluster.FlagsEnv) != "" {
		t.Skip("it is for the whole tests, without further flags")
	}
}

// drawn are some of a list, by chance.
func drawn(list []string, n int) []string {
	if *allDrawn {
		return list
	}
	list = slices.Clone(list)
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:n]
}

// serve starts daemons, if this machine can trap page faults at all.
func serve(t *testing.T, nodes, ranks int, flags ...string) *testcluster.Cluster {
	t.Helper()
	uffdtest.Require(t)
	return testcluster.Serve(t, nodes, ranks, flags...)
}

// console joins the cluster, says so, and then obeys the test's lines, each with a line of answer.
// It closes the cluster when there are no more lines.
var console = testcluster.Define("console", func(s *testcluster.Self) error {
	return converse(s, func(d desk) obedient { return &d })
})

// obedient does what a line says, and answers.
type obedient interface{ obey(line []string) string }

// converse is a program that does at its desk what the test's lines say.
func converse(s *testcluster.Self, at func(desk) obedient) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		s.Say("error: %v", err)
		return err
	}
	s.Say("rank %d of %d", c.Rank(), c.Size())
	worker := at(desk{ctx: s.Ctx, c: c, memory: map[string][]uint64{}})
	for {
		line, err := s.Next()
		if errors.Is(err, io.EOF) {
			return c.Close()
		}
		if err != nil {
			return err
		}
		s.Say("%s", worker.obey(strings.Fields(line)))
	}
}

// join starts a console and waits until it has joined.
func join(t *testing.T, c *testcluster.Cluster, node, rank, ranks int) *testcluster.Process {
	t.Helper()
	p := c.Program(t, console, node, rank)
	p.Expect(t, fmt.Sprintf("rank %d of %d", rank, ranks))
	return p
}

// desk is what a console works with.
type desk struct {
	ctx    context.Context
	c      *dsm.Cluster
	memory map[string][]uint64
}

// obey does what a line says: a verb, most often the name of something, and numbers.
func (d *desk) obey(line []string) string {
	verb, name, n := line[0], "", [2]uint64{}
	if len(line) > 1 {
		name = line[1]
	}
	for i := 2; i < len(line); i++ {
		var err error
		if n[i-2], err = strconv.ParseUint(line[i], 10, 64); err != nil {
			return "error: " + err.Error()
		}
	}
	var answer string
	var err error
	if caught := dsm.Guard(func() { answer, err = d.memoryVerb(verb, name, n) }); caught != nil {
		err = caught
	}
	if err == errNotMine {
		answer, err = d.syncVerb(verb, name, n)
	}
	var died *dsm.OwnerDiedError
	var lost *dsm.PageLostError
	switch {
	case errors.As(err, &lost):
		return fmt.Sprintf("lost with node %d: byte %d of %s", lost.Node, lost.Offset, lost.Name)
	case errors.As(err, &died):
		return fmt.Sprintf("owner died: rank %d", died.Rank)
	case errors.Is(err, context.DeadlineExceeded):
		return "too late"
	case err != nil:
		return "error: " + err.Error()
	case answer == "":
		return "ok"
	}
	return answer
}

var errNotMine = errors.New("no such verb")

// memoryVerb does what is about memory. Memory is counted in words of 8 bytes, but allocated in
// pages.
func (d *desk) memoryVerb(verb, name string, n [2]uint64) (answer string, err error) {
	m := d.memory[name]
	switch verb {
	case "alloc": // n[0] pages, within n[1] milliseconds
		ctx, cancel := d.within(n[1])
		defer cancel()
		d.memory[name], err = dsm.Alloc[uint64](ctx, d.c, name, int(n[0])*d.c.PageBytes()/8)
	case "keep":
		d.memory[name], err = dsm.Alloc[uint64](d.ctx, d.c, name, int(n[0])*d.c.PageBytes()/8, dsm.Keep())
	case "replicate": // n[0] pages that survive the loss of n[1] nodes
		d.memory[name], err = dsm.Alloc[uint64](d.ctx, d.c, name, int(n[0])*d.c.PageBytes()/8, dsm.Replicated(int(n[1])))
	case "discard":
		err = dsm.Discard(d.ctx, d.c, name)
	case "free":
		err = dsm.Free(d.ctx, d.c, m)
		delete(d.memory, name)
	case "get":
		return fmt.Sprint(atomic.LoadUint64(&m[n[0]])), nil
	case "put":
		atomic.StoreUint64(&m[n[0]], n[1])
	case "add":
		return fmt.Sprint(atomic.AddUint64(&m[n[0]], n[1])), nil
	case "fill": // each word with a value of its own
		for i := range m {
			m[i] = n[0] + uint64(i)
		}
	case "check":
		for i, v := range m {
			if v != n[0]+uint64(i) {
				return fmt.Sprintf("word %d is %d", i, v), nil
			}
		}
	case "zero":
		for i, v := range m {
			if v != 0 {
				return fmt.Sprintf("word %d is %d", i, v), nil
			}
		}
	case "address":
		return fmt.Sprintf("%p", m), nil
	case "pipe":
		err = pipe(m, n[0])
	case "mlock": // all pages of it
		err = unix.Mlock(unsafe.Slice((*byte)(unsafe.Pointer(&m[0])), 8*len(m)))
	case "mlockall": // of the whole process; n[0] is MCL_CURRENT, MCL_FUTURE and MCL_ONFAULT
		err = unix.Mlockall(int(n[0]))
	case "prefetch": // for access n[0], within n[1] milliseconds
		ctx, cancel := d.within(n[1])
		defer cancel()
		err = dsm.Prefetch(ctx, d.c, m, dsm.Access(n[0]))
	default:
		return "", errNotMine
	}
	return "", err
}

// syncVerb does what is about locks, barriers and counters. Times are in milliseconds.
func (d *desk) syncVerb(verb, name string, n [2]uint64) (answer string, err error) {
	ctx, cancel := d.within(n[0])
	defer cancel()
	switch verb {
	case "lock":
		err = dsm.NewMutex(d.c, name).Lock(ctx)
	case "repair":
		err = dsm.NewMutex(d.c, name).LockRepair(ctx, func(died *dsm.OwnerDiedError) error {
			answer = fmt.Sprintf("repaired after rank %d", died.Rank)
			return nil
		})
	case "trylock", "tryrlock":
		try := dsm.NewRWMutex(d.c, name).TryLock
		if verb == "tryrlock" {
			try = dsm.NewRWMutex(d.c, name).TryRLock
		}
		var held bool
		held, err = try(ctx)
		answer = fmt.Sprint(held)
	case "unlock":
		err = dsm.NewMutex(d.c, name).Unlock()
	case "rlock":
		err = dsm.NewRWMutex(d.c, name).RLock(ctx)
	case "runlock":
		err = dsm.NewRWMutex(d.c, name).RUnlock()
	case "barrier":
		err = d.c.Barrier(ctx)
	case "commit":
		err = d.c.Commit(ctx)
	case "sum":
		var v int
		v, err = dsm.Reduce(ctx, d.c, name, 1<<(8*d.c.Rank()), dsm.Sum)
		answer = fmt.Sprintf("%x", v)
	case "survivors": // meet, and add up ones
		return d.survivors(ctx)
	case "counter":
		stats, err := d.c.Stats(ctx)
		value, ok := stats.Counter(name)
		if err == nil && !ok {
			err = fmt.Errorf("the daemon counts no %s", name)
		}
		return fmt.Sprint(value), err
	case "pid":
		return fmt.Sprint(os.Getpid()), nil
	default:
		return "", fmt.Errorf("verb %q: %w", verb, errNotMine)
	}
	if err != nil {
		answer = ""
	}
	return answer, err
}

// survivors meets those that are left, and says who they are and what they add up to.
func (d *desk) survivors(ctx context.Context) (string, error) {
	left, err := d.c.Survivors(ctx)
	if err != nil {
		return "", err
	}
	if err := left.Barrier(ctx); err != nil {
		return "", err
	}
	sum, err := dsm.Reduce(ctx, left, "ones", 1, dsm.Sum)
	return fmt.Sprint(left.Ranks(), sum), err
}

// within is a context that ends after some milliseconds, or with the program for 0.
func (d *desk) within(ms uint64) (context.Context, context.CancelFunc) {
	if ms == 0 {
		return d.ctx, func() {}
	}
	return context.WithTimeout(d.ctx, time.Duration(ms)*time.Millisecond)
}

// pipe writes memory that was filled with the given value into a pipe, and checks what arrives. The
// kernel reads the memory, in write(2).
func pipe(m []uint64, value uint64) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	defer w.Close()
	if _, err := w.Write(unsafe.Slice((*byte)(unsafe.Pointer(&m[0])), 8*len(m))); err != nil {
		return err
	}
	got := make([]byte, 8*len(m))
	if _, err := io.ReadFull(r, got); err != nil {
		return err
	}
	for i := range m {
		if v := binary.NativeEndian.Uint64(got[8*i:]); v != value+uint64(i) {
			return fmt.Errorf("word %d arrives as %d", i, v)
		}
	}
	return nil
}

// counter asks a console for a counter of its daemon.
func counter(t *testing.T, p *testcluster.Process, name string) uint64 {
	t.Helper()
	text := p.Ask(t, "counter %s", name)
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("counter %s: %q", name, text)
	}
	return n
}
