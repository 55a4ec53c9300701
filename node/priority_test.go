package node

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/netio"
	"dsmd/internal/require"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// schedulingFake knows whether it is raised.
type schedulingFake struct {
	raised bool
	err    error
}

func (s *schedulingFake) Raise() error { s.raised = s.err == nil; return s.err }
func (s *schedulingFake) Lower() error { s.raised = false; return s.err }

func fakePriority() (*priority, *schedulingFake) {
	s := &schedulingFake{}
	return &priority{level: netio.Nice, sched: s, log: zap.NewNop(), rests: &atomic.Uint64{}, credit: mostRaised}, s
}

// TestPriorityIsBounded: whatever a reactor does, it is not raised while it polls, and over any
// time it is awake and raised for no more than half of it, and the bound, and one step.
func TestPriorityIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, s := fakePriority()
		now, longest := time.Second, time.Duration(0)
		var excess, most time.Duration // raised time less half of the time, above its least so far
		pass := func(awake bool) {
			d := time.Duration(rapid.Int64Range(0, int64(mostRaised)/2).Draw(t, "time"))
			now, longest = now+d, max(longest, d)
			if excess -= d / 2; awake && s.raised {
				excess += d
			}
			excess = max(excess, 0)
			most = max(most, excess)
		}
		p.counted = now
		t.Repeat(map[string]func(*rapid.T){
			"work": func(*rapid.T) { pass(true); p.worked(now) },
			"poll": func(*rapid.T) {
				if p.polls(now); s.raised {
					t.Fatal("it polls, and is raised")
				}
				pass(true)
				p.worked(now)
			},
			"sleep": func(*rapid.T) { p.sleeps(now); pass(false); p.wakes(now) },
			"": func(*rapid.T) {
				if s.raised != p.raised {
					t.Fatalf("raised %v, and it believes %v", s.raised, p.raised)
				}
				if most > mostRaised+longest {
					t.Fatalf("it was raised for half of the time and %v, the bound is %v and a step of %v", most, mostRaised, longest)
				}
			},
		})
	})
}

// TestPriorityIsBackAfterARest: a reactor that has rested is raised again, and one that sleeps for
// most of the time always is.
func TestPriorityIsBackAfterARest(t *testing.T) {
	p, s := fakePriority()
	now := time.Second
	p.counted = now
	for range 100 {
		p.sleeps(now)
		if !s.raised {
			t.Fatal("it is not raised although it does little")
		}
		now += mostRaised / 4
		p.wakes(now)
		now += mostRaised / 4
		p.worked(now)
	}
	now += mostRaised
	if p.worked(now); s.raised || p.rests.Load() != 1 {
		t.Fatalf("raised %v, %d rests after it has worked for long", s.raised, p.rests.Load())
	}
	now += mostRaised / 2
	if p.sleeps(now); s.raised {
		t.Fatal("it is raised before it has rested for long")
	}
	now += mostRaised
	if p.wakes(now); s.raised {
		t.Fatal("sleep raises it")
	}
	if p.sleeps(now); !s.raised {
		t.Fatal("it is not raised after it has rested")
	}
}

// TestPriorityIsGivenUp: where the kernel does not allow it any more, the reactor goes on without.
func TestPriorityIsGivenUp(t *testing.T) {
	p, s := fakePriority()
	s.err = errors.New("forbidden")
	if p.sleeps(p.counted); p.level != netio.Normal || p.raised {
		t.Errorf("level %v, raised %v", p.level, p.raised)
	}
	p.wakes(1)
	p.worked(2)
	p.polls(3)
	p.sleeps(4)
	p.end()
}

// countersOfPriority move where a reactor is flooded, which a thread of this file plays.
var countersOfPriority = []string{"rests"}

// begun begins a priority on the calling thread, or skips the test where it is not allowed.
func begun(t *testing.T, level netio.Priority) (*priority, error) {
	p := &priority{rests: &atomic.Uint64{}}
	p.begin(level.String(), zap.NewNop())
	if p.level != level {
		return nil, unix.EPERM
	}
	return p, nil
}

// TestFloodedReactorLetsProgramsGoOn: a thread that does what a reactor does which never finds
// nothing, with its priority, shares a core with one that computes. Without the bound that one
// would get a 87th of what the reactor gets. On a busy machine others want their share, too, and it
// takes longer.
func TestFloodedReactorLetsProgramsGoOn(t *testing.T) {
	var allowed, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	for core := 0; one.Count() == 0; core++ {
		if allowed.IsSet(core) {
			one.Set(core)
		}
	}
	for _, level := range []netio.Priority{netio.Nice, netio.RealTime} {
		t.Run(level.String(), func(t *testing.T) {
			var over atomic.Bool
			var used atomic.Int64 // by the program, in nanoseconds
			hasShare := func(reactor time.Duration) bool { return time.Duration(used.Load()) >= reactor/25 }
			reactor, program := make(chan result, 1), make(chan result, 1)
			ready := make(chan struct{})
			go onCore(&one, reactor, func() error { defer over.Store(true); return flooded(t, level, ready, hasShare) })
			go onCore(&one, program, func() error {
				<-ready
				for begun := onThread(); !over.Load(); {
					used.Store(int64(onThread() - begun))
				}
				return nil
			})
			r, p := <-reactor, <-program
			if errors.Is(r.err, unix.EPERM) {
				require.Missing(t, "root", "%v", netio.PriorityRemedy)
			}
			if err := errors.Join(r.err, p.err); err != nil {
				t.Fatal(err)
			}
			if p.used < r.used/30 {
				t.Errorf("a program got %v of a core, and the reactor %v; want a 30th at least", p.used, r.used)
			}
		})
	}
}

// result is how much of a core a thread has used, and what went wrong.
type result struct {
	used time.Duration
	err  error
}

// onCore does something on a thread of its own, on one core.
func onCore(core *unix.CPUSet, into chan<- result, do func() error) {
	runtime.LockOSThread() // never unlocked: the thread ends with its core and its priority
	before := onThread()
	err := errors.Join(unix.SchedSetaffinity(0, core), do())
	into <- result{onThread() - before, err}
}

// onThread is for how long this thread has had a core.
func onThread() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &u) // can't fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// flooded is a reactor that always finds something, for half a second, and then until others have
// their share of what it has used of its core, or have waited for too long.
func flooded(t *testing.T, level netio.Priority, ready chan<- struct{}, haveShare func(used time.Duration) bool) error {
	defer close(ready)
	poller, err := netio.NewPoller()
	if err != nil {
		return err
	}
	defer poller.Close()
	bell, err := netio.NewEvent()
	if err != nil {
		return err
	}
	defer bell.Close()
	bell.Signal()
	p, err := begun(t, level)
	if err = errors.Join(err, poller.Add(bell.FD(), 1)); err != nil {
		return err
	}
	ready <- struct{}{}
	start, before := time.Now(), onThread()
	for time.Since(start) < 500*time.Millisecond || !haveShare(onThread()-before) && time.Since(start) < patience {
		p.sleeps(time.Since(start))
		if p.wait(poller, netio.Forever) != 1 {
			continue // by a signal
		}
		p.wakes(time.Since(start))
		for woken := time.Since(start); time.Since(start)-woken < mostRaised/10; {
			p.worked(time.Since(start))
		}
	}
	if p.end(); p.rests.Load() == 0 {
		return fmt.Errorf("it has never rested")
	}
	return nil
}

// TestPriorityOfANode: a node has the priority that it was asked to have, tells its programs, and
// rests when it has much to do.
func TestPriorityOfANode(t *testing.T) {
	for _, name := range PriorityNames {
		t.Run(name, func(t *testing.T) {
			c := start(t, setup{nodes: 2, change: func(cfg *Config) { cfg.Core.Priority = name }})
			m := c.members[0]
			p := m.join()
			level := p.welcome.Priority
			conn := m.dial()
			greet(t, conn, hello(attach.NoRank))
			switch {
			case name == "auto":
			case level != name:
				require.Missing(t, "root", "the priority is %s: %s", level, netio.PriorityRemedy)
			}
			p.wantLoad(0, 0, 0)
			if level != netio.Normal.String() {
				eventually(t, "the reactor rests", func() bool {
					flood(t, conn)
					return m.counter("rests") > 0
				})
			} else if flood(t, conn); m.counter("rests") != 0 {
				t.Error("a reactor of normal priority has rested")
			}
			conn.Close()
			c.quiet()
		})
	}
}

// flood makes many calls at a time.
func flood(t *testing.T, conn *attach.Conn) {
	t.Helper()
	const calls = 300 // more than a socket holds, less than maxOut
	for ticket := range uint64(calls) {
		write(t, conn, attach.AppendCall(nil, &attach.Call{Op: attach.OpStats, Ticket: 1<<40 + ticket}))
	}
	for range calls {
		read(t, conn)
	}
}
