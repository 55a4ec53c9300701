package torture

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
)

// heraldPause is how often a process says that all its workers are getting on.
const heraldPause = 200 * time.Millisecond

// alive is what it says then.
const alive = "alive"

// process is a program under torture.
type process struct {
	ctx     context.Context
	c       *dsm.Cluster
	stayers int  // ranks below this are not killed
	pins    bool // workers pin words, too
	memory  *reader
	book    *ledger
	all     []*worker

	over  atomic.Bool
	busy  sync.WaitGroup // all goroutines between start and rest
	wrong chan error     // the first error of any goroutine
}

// program is what the test starts: with the number of ranks that stay, a seed, and whether to pin.
// It obeys these lines: "rest" stops its workers, "check N" examines all memory after N processes
// were killed, "go" starts the workers again, "leave" ends it.
var program = testcluster.Define("torture", func(s *testcluster.Self) error {
	// SIGQUIT shows all threads, and then dumps core, which nobody wants.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return err
	}
	stayers, err := strconv.Atoi(s.Args[0])
	seed, err2 := strconv.ParseUint(s.Args[1], 10, 64)
	pins, err3 := strconv.ParseBool(s.Args[2])
	if err := errors.Join(err, err2, err3); err != nil {
		return err
	}
	// Not s.Ctx, which ends after a while: torture may take hours. The process dies with the test.
	p, err := join(context.Background(), stayers, seed)
	if err != nil {
		return err
	}
	p.pins = pins
	p.start(s)
	s.Say("begun")
	lines := make(chan string)
	go func() {
		defer close(lines)
		for {
			line, err := s.Next()
			if err != nil {
				if !errors.Is(err, io.EOF) {
					p.fail(err)
				}
				return
			}
			lines <- line
		}
	}()
	for {
		select {
		case err := <-p.wrong:
			return err
		case line := <-lines:
			if done, err := p.obey(s, line); done || err != nil {
				return err
			}
		}
	}
})

// join joins the cluster and takes over this rank's words.
func join(ctx context.Context, stayers int, seed uint64) (*process, error) {
	c, err := dsm.Join(ctx)
	if err != nil {
		return nil, err
	}
	p := &process{ctx: ctx, c: c, stayers: stayers, wrong: make(chan error, 1)}
	if err := p.allocate(); err != nil {
		return nil, err
	}
	for i := range workers {
		o := ownerOf(c.Rank(), i)
		w := &worker{process: p, owner: o, r: rand.New(rand.NewPCG(seed, uint64(o)))}
		if err := w.inherit(); err != nil {
			return nil, fmt.Errorf("what rank %d had left: %w", c.Rank(), err)
		}
		p.all = append(p.all, w)
	}
	return p, nil
}

func (p *process) allocate() error {
	owners, pageWords := p.c.Size()*workers, p.c.PageBytes()/8
	p.book = &ledger{owners: owners, pageWords: pageWords}
	values, err1 := dsm.Alloc[uint64](p.ctx, p.c, "words", wordPages*pageWords)
	announced, err2 := dsm.Alloc[atomic.Uint64](p.ctx, p.c, "announced", owners)
	var err3, err4, err5 error
	p.book.totals, err3 = dsm.Alloc[atomic.Uint64](p.ctx, p.c, "totals", p.book.totalsLen())
	p.book.tallies, err4 = dsm.Alloc[tally](p.ctx, p.c, "tallies", p.book.talliesLen())
	p.book.guarded, err5 = dsm.Alloc[uint64](p.ctx, p.c, "guarded", p.book.guardedLen())
	p.memory = newReader(&words{owners: owners, values: values, announced: announced})
	return errors.Join(err1, err2, err3, err4, err5)
}

// fail reports an error, unless there is one already.
func (p *process) fail(err error) {
	select {
	case p.wrong <- err:
	default:
	}
}

// start sets everything going.
func (p *process) start(s *testcluster.Self) {
	p.over.Store(false)
	run := func(f func() error) {
		p.busy.Go(func() {
			if err := f(); err != nil {
				p.fail(err)
			}
		})
	}
	for _, f := range unrest {
		run(func() error { return f(&p.over) })
	}
	if p.c.Rank() < p.stayers {
		run(func() error { return fork(&p.over) })
	}
	for _, w := range p.all {
		run(w.work)
	}
	run(func() error { return p.herald(s) })
}

// herald says alive whenever every worker has got something done since the last time.
func (p *process) herald(s *testcluster.Self) error {
	last := make([]uint64, len(p.all))
	for !p.over.Load() {
		time.Sleep(heraldPause)
		all := true
		for i, w := range p.all {
			all = all && w.steps.Load() > last[i]
		}
		if all {
			for i, w := range p.all {
				last[i] = w.steps.Load()
			}
			s.Say(alive)
		}
	}
	return nil
}

// rest stops everything, and lets the memory that was used for it go.
func (p *process) rest() {
	p.over.Store(true)
	p.busy.Wait()
	runtime.GC()
	debug.FreeOSMemory()
}

func (p *process) obey(s *testcluster.Self, line string) (done bool, err error) {
	var killed uint64
	switch {
	case line == "rest":
		p.rest()
		select {
		case err := <-p.wrong:
			return true, err
		default:
		}
		s.Say("resting")
	case line == "go":
		p.start(s)
		s.Say("going")
	case line == "" || line == "leave": // the test has ended, or wants an end
		p.rest()
		return true, p.c.Close()
	default:
		if _, err := fmt.Sscanf(line, "check %d", &killed); err != nil {
			return true, fmt.Errorf("the test said %q: %w", line, err)
		}
		sum, steps, err := p.examine(killed)
		if err != nil {
			return true, err
		}
		s.Say("sum %x steps %d", sum, steps)
	}
	return false, nil
}

// examine checks all memory. Preconditions: all processes rest, and so many were killed before. It
// returns a checksum, which is the same in all processes, and how many steps the workers of this
// one have taken.
func (p *process) examine(killed uint64) (sum, steps uint64, err error) {
	for _, w := range p.all {
		steps += w.steps.Load()
		if seq, complete, err := p.memory.estate(w.owner); err != nil || !complete || seq != w.seq {
			return 0, 0, fmt.Errorf("owner %d has made %d writes, and its words show %d, complete: %t (%v)", w.owner, w.seq, seq, complete, err)
		}
	}
	for o := range p.book.owners {
		if _, _, err := p.memory.estate(owner(o)); err != nil {
			return 0, 0, err
		}
		for subject := range subjects {
			t := p.book.tally(owner(o), subject)
			apart := t.Before.Load() - t.After.Load()
			if stays := owner(o).rank() < p.stayers; apart > killed || stays && apart > 0 {
				return 0, 0, fmt.Errorf("owner %d has begun to count subject %d %d times, and done so %d times; %d processes were killed",
					o, subject, t.Before.Load(), t.After.Load(), killed)
			}
		}
	}
	for subject := range counters {
		if err := p.book.between(subject, p.book.total(subject).Load); err != nil {
			return 0, 0, err
		}
	}
	for subject := firstOne; subject < subjects; subject++ {
		if err := p.examineLock(subject); err != nil {
			return 0, 0, err
		}
	}
	return p.checksum(), steps, nil
}

// examineLock takes a lock that nobody holds, and repairs what a dead holder has left.
func (p *process) examineLock(subject int) error {
	m := dsm.NewMutex(p.c, lockName(subject)) // the same lock as the RWMutex of that name
	if err := m.LockRepair(p.ctx, p.all[0].repair(subject)); err != nil {
		return fmt.Errorf("lock %d, which nobody holds: %w", subject, err)
	}
	version, err := p.book.version(subject)
	if err != nil {
		return err
	}
	if err := p.book.between(subject, func() uint64 { return uint64(version) }); err != nil {
		return err
	}
	return m.Unlock()
}

// checksum is of all shared memory but the scratch.
func (p *process) checksum() uint64 {
	h := fnv.New64a()
	add := func(v uint64) {
		var b [8]byte
		for i := range b {
			b[i] = byte(v >> (8 * i))
		}
		h.Write(b[:])
	}
	for _, s := range [][]uint64{p.memory.values, p.book.guarded} {
		for _, v := range s {
			add(v)
		}
	}
	for _, s := range [][]atomic.Uint64{p.memory.announced, p.book.totals} {
		for i := range s {
			add(s[i].Load())
		}
	}
	for i := range p.book.tallies {
		add(p.book.tallies[i].Before.Load())
		add(p.book.tallies[i].After.Load())
	}
	return h.Sum64()
}
