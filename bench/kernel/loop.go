package kernel

import (
	"context"
	"sync"
	"sync/atomic"

	"dsmd/dsm/parallel"
)

// A Loop runs items by all threads of a team, each as it gets on; on a cluster that is a loop of
// parallel.Team. It runs once.
type Loop struct {
	team *parallel.Team // nil: ordinary memory
	next atomic.Int64   // the first item that nobody has begun, on ordinary memory
	done atomic.Int64   // items, of this process
	mu   sync.Mutex     // held by who reports progress
}

// Loop returns a loop of that name. On a cluster every rank calls it.
func (t *Team) Loop(name string) *Loop {
	if t.cluster == nil {
		return &Loop{}
	}
	team, err := parallel.New(t.ctx, t.cluster, name, parallel.Threads(t.Threads))
	t.allocated(name, err, func() error { return team.Close(context.Background()) })
	return &Loop{team: team}
}

// Run runs body for the items from 0 to n-1. Every thread calls it. Processes begin with equal
// parts, in order. body is called by any goroutine of the process, and knows nothing of threads.
// Items of others may still run when Run returns.
func (l *Loop) Run(t *Thread, n int, body func(i int)) {
	if l.team == nil {
		for i := l.next.Add(1) - 1; i < int64(n); i = l.next.Add(1) - 1 {
			t.GoOn()
			body(int(i))
			if t.Index == t.First {
				t.Done(int(i)+1, n)
			}
		}
		return
	}
	if t.Index != t.First {
		return
	}
	t.Check(l.team.For(t.ctx, n, func(i int) error {
		body(i)
		if done := l.done.Add(1); l.mu.TryLock() {
			t.Done(int(done), n)
			l.mu.Unlock()
		}
		return nil
	}), "running a loop of %d items", n)
}
