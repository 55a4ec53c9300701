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
	// samplesPerRun is how many operations a benchmark of single ones times in a run, and its floor
	// too. As many as for the floor precede them.
	samplesPerRun = 1000
	// pagesPerRun is the number of pages of a benchmark that times single accesses.
	pagesPerRun = floor.WarmUps + samplesPerRun
	// pagesPerPass is the number of pages of one sample of a benchmark that times passes: 4 MiB.
	pagesPerPass = 1024
	// passesPerRun is how many passes a run makes. Each needs its own pages.
	passesPerRun = 4
	// callsPerRun is how often a benchmark of single calls locks a lock or comes to a barrier.
	callsPerRun = floor.WarmUps + samplesPerRun
	// scanPages and touchPages are the pages of the one pass of the benchmarks of bulk movement:
	// 256 MiB and 1 GiB.
	scanPages, touchPages = 64 << 10, 256 << 10
	// readsAtATime is how many single reads a sample of reads_idle and reads_busy has, and
	// readsPerRun how many a run times.
	readsAtATime, readsPerRun = 64, 1024
	// overlapReaders is the number of goroutines that read at the same time in the benchmarks of
	// the group Overlap: more than any GOMAXPROCS there.
	overlapReaders = 64
	// gap is the computing between two accesses of read_miss_spaced.
	gap = 100 * time.Microsecond
)

// The groups of microbenchmarks that are run on demand only; each name stands for all of its group.
const (
	Overlap = "overlap"
	Bulk    = "bulk"
)

// MinNodes is how many nodes the microbenchmarks need: one that has a page and one that wants it.
const MinNodes = 2

// perPage is the unit of passes.
const perPage = "µs/page"

// ErrUnknown is returned for a microbenchmark that does not exist.
var ErrUnknown = errors.New("no such microbenchmark")

// A Micro is one microbenchmark.
type Micro struct {
	// Name is a contract with those who read the JSON output.
	Name string
	// Summary says in one line what is timed.
	Summary string
	// Unit is "µs", for one operation, or "µs/page", for a pass over many pages divided by their
	// number.
	Unit string
	// Busy says that every processor computes meanwhile, also while the floor is measured.
	Busy bool
	// Floor is what it is compared with. Measure it with Spin both false and true, and take the
	// better.
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
		{Name: "scan", Unit: perPage, Floor: pass(floor.Stream), measure: scan(pagesPerPass*passesPerRun, passesPerRun),
			Summary: "rank 1 reads 4 MiB that rank 0 has written, in order"},
		{Name: "first_touch", Unit: perPage, Floor: pass(floor.Touch), measure: firstTouch(pagesPerPass*passesPerRun, passesPerRun),
			Summary: "rank 1 stores to 4 MiB of pages that no node has touched, in order"},
		{Name: "lock_local", Unit: "µs", Floor: floor.Spec{Path: floor.UnixRoundTrip, Samples: samplesPerRun}, measure: lockLocal,
			Summary: "rank 1 locks and unlocks a mutex that it held last; the floor is a round trip to its daemon"},
		{Name: "lock_handoff", Unit: "µs", Floor: floor.Spec{Path: floor.RoundTrip, Samples: samplesPerRun}, measure: lockHandoff,
			Summary: "rank 1 locks a free mutex that rank 0 held last"},
		{Name: "barrier", Unit: "µs", Floor: floor.Spec{Path: floor.RoundTrip, Samples: samplesPerRun}, measure: barrier,
			Summary: "all ranks meet at a barrier, back to back; rank 0 takes the time"},
	}
}

// A Group is microbenchmarks that are run on demand only.
type Group struct {
	Name   string // stands for all of them
	Micros []Micro
}

// Groups lists the groups.
func Groups() []Group { return []Group{{Overlap, overlaps()}, {Bulk, bulk()}} }

// bulk lists the microbenchmarks that move more memory than those which are always run, or keep
// every core busy.
func bulk() []Micro {
	whole := func(path floor.Path, pages int) floor.Spec { return floor.Spec{Path: path, Samples: 1, Pages: pages} }
	fetch := floor.Spec{Path: floor.Fetch, Samples: samplesPerRun}
	return []Micro{
		{Name: "scan_256m", Unit: perPage, Floor: whole(floor.Stream, scanPages), measure: scan(scanPages, 1),
			Summary: "rank 1 reads 256 MiB that rank 0 has written, in order"},
		{Name: "scan_pipeline", Unit: perPage, Floor: whole(floor.Pipeline, scanPages), measure: scan(scanPages, 1),
			Summary: "the same; its floor is a stream whose pages are installed as they come"},
		{Name: "first_touch_1g", Unit: perPage, Floor: whole(floor.Touch, touchPages), measure: firstTouch(touchPages, 1),
			Summary: "rank 1 stores to 1 GiB of pages that no node has touched, in order"},
		{Name: "reads_idle", Unit: perPage, Floor: fetch, measure: reads(false),
			Summary: fmt.Sprintf("rank 1 loads from pages of rank 0, which does nothing, in random order; %d loads a sample", readsAtATime)},
		{Name: "reads_busy", Unit: perPage, Floor: fetch, measure: reads(true),
			Summary: "the same while the program of rank 0 computes on every core; its floor is without that load"},
	}
}

// overlaps lists the microbenchmarks of how waiting for pages overlaps, one for each GOMAXPROCS of
// the reader, with and without Prefetch.
func overlaps() []Micro {
	var list []Micro
	for _, prefetch := range []bool{false, true} {
		for _, procs := range []int{1, 2, 8, 32} {
			m := Micro{
				Name: fmt.Sprintf("overlap_%d", procs), Unit: perPage,
				Floor:   floor.Spec{Path: floor.FetchMany, Samples: passesPerRun, Pages: pagesPerPass, Threads: procs},
				Summary: fmt.Sprintf("%d goroutines of rank 1 load from random pages of rank 0 with GOMAXPROCS=%d", overlapReaders, procs),
				measure: overlap(procs, prefetch),
			}
			if prefetch {
				m.Name = fmt.Sprintf("overlap_prefetch_%d", procs)
				m.Floor.Threads = overlapReaders // who waits so does not keep a P
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

// Choose returns the microbenchmarks of the given names, in the order of All and then of Groups;
// All if there are no names. The name of a group names all of it. A name that does not exist gets
// an ErrUnknown that lists those that do.
func Choose(wanted []string) ([]Micro, error) {
	if len(wanted) == 0 {
		return All(), nil
	}
	all, known := All(), Names()
	for _, g := range Groups() {
		known = append(known, g.Name)
		if slices.Contains(wanted, g.Name) {
			wanted = slices.Concat(wanted, names(g.Micros))
		}
		all, known = append(all, g.Micros...), append(known, names(g.Micros)...)
	}
	for _, name := range wanted {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%w: %q; there are: %s", ErrUnknown, name, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(all, func(m Micro) bool { return !slices.Contains(wanted, m.Name) }), nil
}
