package node

import (
	"sync/atomic"
	"time"

	"dsmd/internal/netio"

	"go.uber.org/zap"
)

// PriorityNames are the values of Core.Priority. "auto" is nice where that is allowed, and normal
// elsewhere.
var PriorityNames = []string{"auto", netio.Normal.String(), netio.Nice.String(), netio.RealTime.String()}

// mostRaised is for how long the reactor is awake at most before programs that compute. What a
// fault takes is some 10 µs, and what waits at a node whose programs all miss at the same time some
// 100. When it is lowered the kernel may owe it a tick, 4 ms, and gives it that first: so it has to
// rest for longer, or programs would get nothing of the rest.
const mostRaised = 10 * time.Millisecond

// priority has the reactor answer at once on a machine that computes, and keeps it from starving
// those who do: the reactor is raised from when it goes to sleep until it has done what it was
// woken for. It never polls so. And it may be raised for mostRaised without sleep, and for half of
// the time: then it rests, scheduled as everybody else, for as long.
type priority struct {
	level  netio.Priority // what is in use
	sched  scheduling     // nil: normal
	log    *zap.Logger
	rests  *atomic.Uint64
	raised bool
	// credit is for how long the reactor may yet be raised while it is awake, as of the clock
	// reading counted. It grows while the reactor sleeps or is not raised, up to mostRaised.
	credit, counted time.Duration
	resting         bool // until the credit is mostRaised again
}

// scheduling is netio.Scheduling: a seam for tests.
type scheduling interface {
	Raise() error
	Lower() error
}

// begin prepares the calling thread, which is the reactor's, for the priority of a name, or for the
// next lower one that is allowed.
func (p *priority) begin(name string, log *zap.Logger) {
	p.log, p.credit = log, mostRaised
	wanted, asked := netio.Nice, name != "" && name != PriorityNames[0]
	switch name {
	case netio.Normal.String():
		wanted = netio.Normal
	case netio.RealTime.String():
		wanted = netio.RealTime
	}
	for ; ; wanted-- {
		sched, err := netio.NewScheduling(wanted)
		switch {
		case wanted == netio.Normal && err == nil:
			return
		case wanted == netio.Normal:
			log.Debug("the reactor waits for a whole slice of a program that computes", zap.Error(err))
			return
		case err == nil:
			p.level, p.sched = wanted, sched
			return
		case asked:
			log.Warn("programs that compute may keep the reactor from its core: it may not have the priority that it was asked to have",
				zap.String("priority", wanted.String()), zap.Error(err), zap.String("remedy", netio.PriorityRemedy))
		default:
			log.Debug("no priority", zap.Error(err))
		}
	}
}

// end leaves the thread as it was.
func (p *priority) end() { p.lower() }

// count brings the credit up to date. The reactor was awake since the last time, or was not raised.
func (p *priority) count(now time.Duration) {
	if d := now - p.counted; p.raised {
		p.credit -= d
	} else {
		p.credit = min(p.credit+d, mostRaised)
	}
	p.counted = now
}

// worked has the reactor rest when it has been raised for long enough.
func (p *priority) worked(now time.Duration) {
	if !p.raised {
		return
	}
	if p.count(now); p.credit <= 0 {
		p.resting = true
		p.rests.Add(1)
		p.lower()
	}
}

// polls has the reactor polled for as an equal of those who may want its core.
func (p *priority) polls(now time.Duration) {
	if p.raised {
		p.count(now)
		p.lower()
	}
}

// sleeps raises the reactor, which goes to sleep.
func (p *priority) sleeps(now time.Duration) {
	if p.sched == nil {
		return
	}
	p.count(now)
	if p.resting = p.resting && p.credit < mostRaised; p.resting || p.raised {
		return
	}
	p.raised = true
	if p.level == netio.Nice { // in real time it is Poller.WaitRealTime that raises
		p.failed(p.sched.Raise())
	}
}

// wakes notes that the reactor has slept.
func (p *priority) wakes(now time.Duration) {
	p.credit = min(p.credit+now-p.counted, mostRaised)
	p.counted = now
}

// wait is poller.Wait, in real time where that is in use.
func (p *priority) wait(poller *netio.Poller, timeout time.Duration) int {
	if s, is := p.sched.(*netio.Scheduling); is && p.raised && p.level == netio.RealTime {
		ready, err := poller.WaitRealTime(timeout, s)
		p.failed(err)
		return ready
	}
	return poller.Wait(timeout)
}

func (p *priority) lower() {
	if p.raised {
		p.raised = false
		p.failed(p.sched.Lower())
	}
}

// failed gives the priority up if the kernel, which has allowed it, does not allow it any more.
func (p *priority) failed(err error) {
	if err == nil {
		return
	}
	p.log.Warn("programs that compute may keep the reactor from its core from now on", zap.Error(err))
	_ = p.sched.Lower() // it is what it is
	p.level, p.sched, p.raised = netio.Normal, nil, false
}
