package kernel

import (
	"context"
	"errors"
	"io"

	"dsmd/dsm"
)

// A Kernel is one benchmark program. Its functions may be called from any goroutine.
type Kernel struct {
	// Name is what the command line calls it: lower-case letters, digits and hyphens.
	Name string
	// Summary says in one line what it computes and how it is divided.
	Summary string
	// Sizes says what its size means and which there are.
	Sizes Sizes
	// Problem makes an instance of the given size, which lies within Sizes. It allocates nothing
	// large.
	Problem func(n int) Problem
	// Read, if not nil, reads a problem from a file in the original program's format, and returns
	// it with the number that stands for its size in results. The error says where the file is
	// wrong, and what is expected there.
	Read func(from io.Reader) (p Problem, n int, err error)
}

// A Problem is a kernel of one size. Its versions may not run at the same time.
type Problem interface {
	// Prepare allocates the memory that the threads share, and fills it with the input. On a
	// cluster every rank calls it. It may leave errors of allocating to the team.
	Prepare(t *Team) (Program, error)
	// Verify says why got is not a correct result, given the sequential one; nil if it is.
	Verify(sequential, got Result) error
}

// A Program is a problem prepared for a team of threads.
type Program interface {
	// Compute is what each thread does in the timed part. On a cluster all ranks begin at the same
	// time.
	Compute(t *Thread)
	// Result is what was computed. On a cluster only rank 0 calls it, after every rank has
	// computed, and it may read the whole shared memory. The result stays valid until the memory is
	// given back.
	Result() Result
}

// A Run is one prepared execution. Compute, Result and Close are called once each, in this order,
// by one goroutine.
type Run struct {
	Program Program
	team    *Team
}

// Sequential prepares a run by one thread on ordinary memory. It waits for nobody at its barriers,
// and its locks are free: they cost nothing beside the computing.
func Sequential(p Problem) (*Run, error) { return Goroutines(p, 1) }

// Goroutines prepares a run by so many goroutines, at least 1, on ordinary memory.
func Goroutines(p Problem, threads int) (*Run, error) { return prepare(p, alone(threads)) }

// OnCluster prepares this rank's part of a run on all nodes of a cluster, with so many goroutines,
// at least 1, on each. It is collective: every rank calls it with the same threads.
func OnCluster(ctx context.Context, p Problem, c *dsm.Cluster, threads int) (*Run, error) {
	return prepare(p, onCluster(ctx, c, threads))
}

func prepare(p Problem, t *Team) (*Run, error) {
	program, err := p.Prepare(t)
	if err == nil {
		err = t.err
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return &Run{Program: program, team: t}, nil
}

// Compute is the timed part. It returns when this rank's part is finished or ctx is done; progress
// may be nil.
func (r *Run) Compute(ctx context.Context, progress Progress) error {
	return r.team.run(ctx, progress, r.Program.Compute)
}

// Result is what was computed.
func (r *Run) Result() Result { return r.Program.Result() }

// Close gives the run's memory back. On a cluster every rank calls it.
func (r *Run) Close() error { return r.team.Close() }

// Progress is told how many of the total steps a Run has finished. It must be cheap and must not
// block: it is called in the timed part, by one of the threads.
type Progress func(done, total int)

// Report calls p if there is one.
func (p Progress) Report(done, total int) {
	if p != nil {
		p(done, total)
	}
}

// A Result is what a run computed.
type Result struct {
	// Figures are the program's own figures under the names that the original program's reference
	// output gives them, for instance fnv. Values are string, bool or float64, so that they survive
	// JSON unchanged.
	Figures map[string]any
	// Output is the whole output, in the order that the kernel documents.
	Output Words
}
