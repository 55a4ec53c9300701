package floor

import (
	"errors"
	"fmt"
	"time"

	"dsmd/internal/uffd"
)

// PageBytes is the size of the pages that the floors move.
const PageBytes = 4096

// requestBytes is the size of a request and of a reply without data: about a protocol message.
const requestBytes = 16

// writeBytes is the size of the writes of a stream; more does not make loopback TCP faster.
const writeBytes = 64 << 10

// SpinLimit is how long a spinning process retries before it blocks. It covers a round trip, and
// longer spinning takes the processor from the program when there are as many processes as
// processors.
const SpinLimit = 50 * time.Microsecond

// WarmUps is how many operations precede the timed ones, so that the scheduler has placed the
// processes. Paths whose samples are passes over many pages need none.
const WarmUps = 100

// Bounds of a Spec, so that a wrong one fails before it fills the memory.
const (
	maxSamples = 1 << 20
	maxPages   = 1 << 18
	maxThreads = uffd.MaxFaults // of which one read brings all
)

// A Path is the chain of operations that a floor times.
type Path string

const (
	// Fetch: a fault on a missing page, a TCP round trip of 16 bytes against one page, UFFDIO_COPY.
	Fetch Path = "fetch"
	// FetchMany: the same for Threads threads at a time, which load from Pages pages in random
	// order. What is there together is read, asked for, answered and received together. One sample
	// is the time of all divided by Pages.
	FetchMany Path = "fetchmany"
	// Unprotect: a store to a write-protected page, a TCP round trip of 16 bytes against 16,
	// UFFDIO_WRITEPROTECT off.
	Unprotect Path = "unprotect"
	// RoundTrip: a TCP round trip of 16 bytes against 16.
	RoundTrip Path = "roundtrip"
	// UnixRoundTrip: the same on a Unix stream socket.
	UnixRoundTrip Path = "unixroundtrip"
	// Stream: Pages pages over one TCP connection, asked for by 16 bytes and written 64 KiB at a
	// time. One sample is the time of all divided by Pages.
	Stream Path = "stream"
	// Pipeline: the same, and what comes is installed by UFFDIO_COPY, 64 KiB at a time, while more
	// is on its way.
	Pipeline Path = "pipeline"
	// Touch: the first store to each of Pages pages of a fresh memfd mapping, with no userfaultfd.
	// One sample is the time of all divided by Pages.
	Touch Path = "touch"
)

// ErrSpec is returned for a Spec that cannot be measured.
var ErrSpec = errors.New("floor: unusable specification")

// A Spec says what to measure.
type Spec struct {
	Path Path
	// Store makes the faulting access of Fetch a store instead of a load.
	Store bool
	// Spin makes waiting processes retry for SpinLimit before they block. It changes nothing for
	// Touch.
	Spin bool
	// Gap is how long the program computes before each timed access.
	Gap time.Duration
	// Samples is how many times are taken.
	Samples int
	// Pages is the number of pages per sample, for FetchMany, Stream, Pipeline and Touch.
	Pages int
	// Threads is how many wait for a page at the same time, for FetchMany.
	Threads int
}

func (s Spec) check() error {
	switch s.Path {
	case Fetch, Unprotect, RoundTrip, UnixRoundTrip:
	case FetchMany, Stream, Pipeline, Touch:
		if s.Pages < 1 || s.Pages > maxPages {
			return fmt.Errorf("%w: %d pages per sample of %s, not 1 to %d", ErrSpec, s.Pages, s.Path, maxPages)
		}
	default:
		return fmt.Errorf("%w: there is no path %q", ErrSpec, s.Path)
	}
	if s.Samples < 1 || s.Samples > maxSamples {
		return fmt.Errorf("%w: %d samples, not 1 to %d", ErrSpec, s.Samples, maxSamples)
	}
	if (s.Path == FetchMany) != (s.Threads > 0) || s.Threads < 0 || s.Threads > maxThreads {
		return fmt.Errorf("%w: %d threads of %s; of %s 1 to %d, of others none", ErrSpec, s.Threads, s.Path, FetchMany, maxThreads)
	}
	if (s.Path == Pipeline || s.Path == FetchMany) && s.Samples*s.Pages > maxPages {
		return fmt.Errorf("%w: %d samples of %d pages, which are all kept; %d are possible", ErrSpec, s.Samples, s.Pages, maxPages)
	}
	if s.Gap < 0 {
		return fmt.Errorf("%w: a gap of %v", ErrSpec, s.Gap)
	}
	return nil
}

// warmUps is how many operations are done before the first that is timed.
func (s Spec) warmUps() int {
	if s.Pages > 0 {
		return 0
	}
	return WarmUps
}

// replyBytes is what the server sends for one request.
func (s Spec) replyBytes() int {
	switch s.Path {
	case Fetch:
		return PageBytes
	case Stream, Pipeline:
		return s.Pages * PageBytes
	default:
		return requestBytes
	}
}

// Compute keeps one processor busy for d. Benchmarks use it where a program would compute.
func Compute(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
	}
}
