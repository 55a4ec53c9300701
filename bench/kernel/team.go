package kernel

import (
	"context"
	"errors"
	"fmt"

	"dsmd/dsm"
)

// A Team is the threads of one run, and what they share. The threads of this process are numbers
// First to First+Threads-1 of Total. They share ordinary memory if the process is alone, and that
// of a cluster else: a kernel is written once for both. A Team belongs to one goroutine; its
// threads may call Block and PageBytes.
type Team struct {
	First, Threads, Total int

	cluster *dsm.Cluster    // nil: ordinary memory
	ctx     context.Context // while the run is prepared
	free    []func() error
	err     error // the first allocation that has failed
}

// alone is a team on ordinary memory.
func alone(threads int) *Team {
	return &Team{Threads: threads, Total: threads, ctx: context.Background()}
}

// onCluster is a team that has so many threads in each process of a cluster.
func onCluster(ctx context.Context, c *dsm.Cluster, threads int) *Team {
	return &Team{First: threads * c.Rank(), Threads: threads, Total: threads * c.Size(), cluster: c, ctx: ctx}
}

// ordinaryPage is what counts as a page of ordinary memory, in bytes; the usual one.
const ordinaryPage = 4096

// PageBytes is the size of a page of the memory that the threads share.
func (t *Team) PageBytes() int {
	if t.cluster == nil {
		return ordinaryPage
	}
	return t.cluster.PageBytes()
}

// Shared reports whether the memory is a cluster's.
func (t *Team) Shared() bool { return t.cluster != nil }

// Block is the half-open range of n items that a thread works on.
func (t *Team) Block(n, thread int) (lo, hi int) { return Block(n, t.Total, thread) }

// Share allocates n elements that all threads share, zeros. Like dsm.Alloc it is collective. What
// fails is the run's error: Each does nothing any more.
func Share[T any](t *Team, name string, n int) []T {
	if t.cluster == nil {
		return make([]T, n)
	}
	elements, err := dsm.Alloc[T](t.ctx, t.cluster, name, n)
	t.allocated(name, err, func() error { return dsm.Free(context.Background(), t.cluster, elements) })
	return elements
}

// ShareAlone is Share of one value that lies alone on its page, as dsm.Isolate puts it.
func ShareAlone[T any](t *Team, name string) *T {
	if t.cluster == nil {
		return new(T)
	}
	value, err := dsm.Isolate[T](t.ctx, t.cluster, name)
	t.allocated(name, err, func() error { return dsm.FreeIsolated(context.Background(), t.cluster, value) })
	return value
}

func (t *Team) allocated(name string, err error, free func() error) {
	if err == nil {
		t.free = append(t.free, free)
		return
	}
	t.err = errors.Join(t.err, fmt.Errorf("allocating %s: %w", name, err))
}

// Barrier returns the barrier of that name of all threads.
func (t *Team) Barrier(name string) Barrier {
	if t.cluster == nil {
		return NewBarrier(t.Threads)
	}
	return dsm.NewBarrier(t.cluster, name, dsm.Team(t.Threads))
}

// Pair returns a barrier of any two threads.
func (t *Team) Pair(name string) Barrier {
	if t.cluster == nil {
		return NewBarrier(2)
	}
	return dsm.NewBarrier(t.cluster, name, dsm.Parties(2))
}

// Mutex returns the lock of that name.
func (t *Team) Mutex(name string) Mutex {
	if t.cluster == nil {
		return NewMutex()
	}
	return dsm.NewMutex(t.cluster, name)
}

// Mutexes returns n locks, of the names NAME/0 and so on.
func (t *Team) Mutexes(name string, n int) []Mutex {
	all := make([]Mutex, n)
	for i := range all {
		all[i] = t.Mutex(fmt.Sprintf("%s/%d", name, i))
	}
	return all
}

// Each runs body once for each thread of this process, before the computing, so that pages start
// where they will be used.
func (t *Team) Each(body func(t *Thread)) error {
	if t.err != nil {
		return t.err
	}
	return t.run(t.ctx, nil, body)
}

// Close gives the memory back, all of it also if that fails for a part. On a cluster every rank
// calls it.
func (t *Team) Close() error {
	var errs []error
	for _, free := range t.free {
		errs = append(errs, free())
	}
	t.free = nil
	return errors.Join(errs...)
}

// Block is the half-open range of n items that part k of parts works on. The ranges of all parts
// cover 0 to n without gaps, in order, and their lengths differ by at most one.
func Block(n, parts, k int) (lo, hi int) {
	return n * k / parts, n * (k + 1) / parts
}
