package kernel

import (
	"context"
	"io"

	"dsmd/dsm"
)

// A Kernel is one benchmark program. Its methods may be called from any goroutine.
type Kernel interface {
	// Name is what the command line calls it: lower-case letters, digits and hyphens.
	Name() string
	// Summary says in one line what it computes and how it is divided.
	Summary() string
	// Sizes says what its size means and which there are.
	Sizes() Sizes
	// Problem makes an instance of the given size, which lies within Sizes. It allocates nothing large.
	Problem(n int) Problem
}

// An InputReader is a Kernel that also solves problems which it reads from a file, in the original program's format.
type InputReader interface {
	Kernel
	// ReadProblem returns the problem in a file, and the number that stands for its size in results. The error says where
	// the file is wrong, and what is expected there.
	ReadProblem(from io.Reader) (p Problem, n int, err error)
}

// A Problem is a kernel of one size. The three versions may not run at the same time.
type Problem interface {
	// Sequential prepares a run by one thread that synchronises with nobody.
	Sequential() (Run, error)
	// Goroutines prepares a run by the given number of goroutines (at least 1) on ordinary memory.
	Goroutines(threads int) (Run, error)
	// Cluster prepares this rank's part of a run on all nodes of c with the given number of
	// goroutines (at least 1) on each. It is collective: every rank calls it with the same threads.
	Cluster(ctx context.Context, c *dsm.Cluster, threads int) (Run, error)
	// Verify says why got is not a correct result, given the sequential one; nil if it is.
	Verify(sequential, got Result) error
}

// A Run is one prepared execution. Its methods are called once each, in this order, by one goroutine.
type Run interface {
	// Compute is the timed part. On a cluster all ranks call it at the same time. It returns when
	// this rank's part is finished or ctx is done; progress may be nil.
	Compute(ctx context.Context, progress Progress) error
	// Result is what was computed. On a cluster only rank 0 calls it, after every rank has
	// computed, and it may read the whole shared memory. The result stays valid until Close.
	Result(ctx context.Context) (Result, error)
	// Close gives the run's memory back. On a cluster every rank calls it.
	Close() error
}

// Progress is told how many of the total steps a Run has finished. It must be cheap and must not block:
// it is called in the timed part, by one of the threads.
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
	// output gives them, for instance fnv. Values are string, bool or float64, so that they survive JSON unchanged.
	Figures map[string]any
	// Output is the whole output, in the order that the kernel documents.
	Output Words
}
