package micro

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"dsmd/bench/floor"
)

const (
	// samplesPerRun is how many operations a benchmark of single ones times in a run, and its floor too. As many as for the floor precede them.
	samplesPerRun = 1000
	// pagesPerRun is the number of pages of a benchmark that times single accesses.
	pagesPerRun = floor.WarmUps + samplesPerRun
	// pagesPerPass is the number of pages of one sample of a benchmark that times passes: 4 MiB.
	pagesPerPass = 1024
	// passesPerRun is how many passes a run makes. Each needs its own pages.
	passesPerRun = 4
	// callsPerRun is how often a benchmark of single calls locks a lock or comes to a barrier.
	callsPerRun = floor.WarmUps + samplesPerRun
	// overlapReaders is the number of goroutines that read at the same time in the benchmarks of Overlaps: more than any GOMAXPROCS there.
	overlapReaders = 64
	// gap is the computing between two accesses of read_miss_spaced.
	gap = 100 * time.Microsecond
)

// Overlap is the name that stands for all benchmarks of Overlaps.
const Overlap = "overlap"

// MinNodes is how many nodes the microbenchmarks need: one that has a page and one that wants it.
const MinNodes = 2

// ErrUnknown is returned for a microbenchmark that does not exist.
var ErrUnknown = errors.New("no such microbenchmark")

// A Micro is one microbenchmark.
type Micro struct {
	// Name is a contract with those who read the JSON output.
	Name string
	// Summary says in one line what is timed.
	Summary string
	// Unit is "µs", for one operation, or "µs/page", for a pass over many pages divided by their number.
	Unit string
	// Busy says that every processor computes meanwhile, also while the floor is measured.
	Busy bool
	// Floor is what it is compared with. Measure it with Spin both false and true, and take the better.
	Floor floor.Spec

	measure func(*place) ([]float64, error)
}

// All lists the microbenchmarks in the order in which they are run.
func All() []Micro {
	single := func(path floor.Path) floor.Spec { return floor.Spec{Path: path, Samples: samplesPerRun} }
	pass := func(path floor.Path) floor.Spec {
		return floor.Spec{Path: path, Samples: passesPerRun, Pages: pagesPerPass}
	}
	fetch, storing, spaced := single(floor.Fetch), single(floor.Fetch), single(floor.Fetch)
	storing.Store = true
	spaced.Gap = gap
	return []Micro{
		{Name: "read_miss", Unit: "µs", Floor: fetch, measure: readMiss(0),
			Summary: "rank 1 loads from pages that rank 0 has written, back to back"},
		{Name: "read_miss_spaced", Unit: "µs", Floor: spaced, measure: readMiss(gap),
			Summary: "the same with 100 µs of computing before each load"},
		{Name: "read_miss_busy", Unit: "µs", Floor: fetch, Busy: true, measure: readMiss(0),
			Summary: "the same back to back while another process computes on every core"},
		{Name: "write_miss", Unit: "µs", Floor: storing, measure: writeMiss,
			Summary: "rank 1 stores to pages that rank 0 has written"},
		{Name: "upgrade", Unit: "µs", Floor: single(floor.Unprotect), measure: upgrade,
			Summary: "rank 1 stores to pages that it and rank 0 have read-only"},
		{Name: "invalidate", Unit: "µs", Floor: single(floor.Unprotect), measure: invalidate,
			Summary: "rank 0 stores to its pages, of which every other node has a read-only copy"},
		{Name: "scan", Unit: "µs/page", Floor: pass(floor.Stream), measure: scan,
			Summary: "rank 1 reads 4 MiB that rank 0 has written, in order"},
		{Name: "first_touch", Unit: "µs/page", Floor: pass(floor.Touch), measure: firstTouch,
			Summary: "rank 1 stores to 4 MiB of pages that no node has touched, in order"},
		{Name: "lock_local", Unit: "µs", Floor: floor.Spec{Path: floor.UnixRoundTrip, Samples: samplesPerRun}, measure: lockLocal,
			Summary: "rank 1 locks and unlocks a mutex that it held last"},
		{Name: "lock_handoff", Unit: "µs", Floor: floor.Spec{Path: floor.RoundTrip, Samples: samplesPerRun}, measure: lockHandoff,
			Summary: "rank 1 locks a free mutex that rank 0 held last"},
		{Name: "barrier", Unit: "µs", Floor: floor.Spec{Path: floor.RoundTrip, Samples: samplesPerRun}, measure: barrier,
			Summary: "all ranks meet at a barrier, back to back; rank 0 takes the time"},
	}
}

// Overlaps lists the microbenchmarks of how waiting for pages overlaps, one for each GOMAXPROCS of the reader, with and without
// Prefetch. They are run on demand only.
func Overlaps() []Micro {
	var list []Micro
	for _, prefetch := range []bool{false, true} {
		for _, procs := range []int{1, 2, 8, 32} {
			m := Micro{
				Name: fmt.Sprintf("overlap_%d", procs), Unit: "µs/page", Floor: floor.Spec{Path: floor.Fetch, Samples: samplesPerRun},
				Summary: fmt.Sprintf("%d goroutines of rank 1 load from random pages of rank 0 with GOMAXPROCS=%d", overlapReaders, procs),
				measure: overlap(procs, prefetch),
			}
			if prefetch {
				m.Name = fmt.Sprintf("overlap_prefetch_%d", procs)
				m.Summary = fmt.Sprintf("the same with GOMAXPROCS=%d and a Prefetch of each page before its load", procs)
			}
			list = append(list, m)
		}
	}
	return list
}

// Names lists the names of the microbenchmarks that are run when none is named.
func Names() []string { return names(All()) }

func names(list []Micro) (names []string) {
	for _, m := range list {
		names = append(names, m.Name)
	}
	return names
}

// Choose returns the microbenchmarks of the given names, in the order of All and then of Overlaps; All if there are no names.
// Overlap names all of Overlaps. A name that does not exist gets an ErrUnknown that lists those that do.
func Choose(wanted []string) ([]Micro, error) {
	if len(wanted) == 0 {
		return All(), nil
	}
	overlaps := names(Overlaps())
	if slices.Contains(wanted, Overlap) {
		wanted = slices.DeleteFunc(slices.Concat(wanted, overlaps), func(name string) bool { return name == Overlap })
	}
	all := slices.Concat(All(), Overlaps())
	for _, name := range wanted {
		if !slices.Contains(names(all), name) {
			return nil, fmt.Errorf("%w: %q; there are: %s", ErrUnknown, name, strings.Join(slices.Concat(Names(), []string{Overlap}, overlaps), ", "))
		}
	}
	return slices.DeleteFunc(all, func(m Micro) bool { return !slices.Contains(wanted, m.Name) }), nil
}
