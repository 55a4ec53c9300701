package storage

import (
	"fmt"
	"slices"

	"dsmd/bench/table"
)

// Caches at the storage side.
const (
	Cold = "cold" // the page cache has nothing of the file
	Warm = "warm" // it has all of it
)

// A Pattern is how the file is read.
type Pattern struct {
	Name    string
	Random  bool
	Threads int
}

// Patterns are all that are measured.
var Patterns = []Pattern{{"in order", false, 1}, {"at random", true, 1}, {"at random, by 8 threads", true, 8}}

// MaxThreads read at a time, at most.
const MaxThreads = 8

// Designs are measured in turns. Those that use the page cache, or are said not to, are measured
// with a warm one, too.
var (
	Designs     = []Design{Shared, Direct, Buffered, Local}
	WarmDesigns = []Design{Shared, Buffered}
	// Disturbing are those whose reading is done beside a memory-bound program.
	Disturbing = []Design{Shared, Direct, Buffered}
)

// names are what people call them.
var names = map[Design]string{
	Shared:   "shared memory",
	Direct:   "floor: direct, sent by TCP",
	Buffered: "page cache, sent by TCP",
	Local:    "direct, on the same node",
}

// A Read is one measurement of reading.
type Read struct {
	Design  Design `json:"design"`
	Pattern string `json:"pattern"`
	Threads int    `json:"threads"`
	Cache   string `json:"cache"`
	Bytes   int    `json:"bytes"`
	Reading
}

// A Disturbance is what reading in order, again and again, does to a memory-bound program on the
// storage side, whose cores they share.
type Disturbance struct {
	Design Design `json:"design"`
	// Seconds and Bytes are of the readings, without what lies between two of them.
	Seconds float64 `json:"seconds"`
	Bytes   int     `json:"bytes"`
	// Rate is how many bytes of its arrays the program goes over in a second meanwhile, and Share
	// which part of a core it has.
	Rate  float64 `json:"triad_bytes_per_second"`
	Share float64 `json:"triad_core_share"`
	// Relative is Rate over that of the program alone, right before.
	Relative float64 `json:"relative"`
	// LostSeconds is by how many seconds the program falls behind, for each GB that is read.
	LostSeconds float64 `json:"triad_lost_seconds_per_gb"`
}

// NewDisturbance takes together what was measured of a design. alone is the program's rate without
// it.
func NewDisturbance(d Design, readings []Reading, bytes int, p *Passes, alone float64) (x Disturbance, err error) {
	x = Disturbance{Design: d, Bytes: bytes * len(readings)}
	for _, r := range readings {
		x.Seconds += r.Seconds
	}
	x.Rate, x.Share, err = p.Rate(readings)
	x.Relative = x.Rate / alone
	x.LostSeconds = (1 - x.Relative) * x.Seconds / (float64(x.Bytes) / 1e9)
	return x, err
}

// A ReadRun is what was measured in one run.
type ReadRun struct {
	Reads []Read `json:"reads"`
	// Alone is the rate of the memory-bound program while nothing is read, and AloneShare which
	// part of a core it has then.
	Alone      float64       `json:"triad_alone_bytes_per_second"`
	AloneShare float64       `json:"triad_alone_core_share"`
	Disturbed  []Disturbance `json:"disturbed"`
}

// A ReadResult is what `bench storage read` reports.
type ReadResult struct {
	Bytes       int    `json:"bytes"`        // of the file
	RandomBytes int    `json:"random_bytes"` // of what is read of it at random
	Trap        string `json:"trap"`
	Transport   string `json:"transport"`
	// Cores are all that the measurement may use, both sides together. Bound is whether they are
	// parted between the sides while a memory-bound program is disturbed; StorageCores are its
	// share then.
	Cores        int       `json:"cores"`
	Bound        bool      `json:"bound"`
	StorageCores int       `json:"storage_cores"`
	Runs         []ReadRun `json:"runs"`
}

// Text is the result for people.
func (r *ReadResult) Text() string {
	reads := table.Table{
		Title: fmt.Sprintf("Reading a file of %d MiB that another node has (at random: %.4g MiB of it), %d runs", r.Bytes>>20, float64(r.RandomBytes)/(1<<20), len(r.Runs)),
		Note: fmt.Sprintf("Trap %s, transport %s. Medians (least–most). Both sides share %d cores. Processor seconds per GB are of the processes of a side.",
			r.Trap, r.Transport, r.Cores),
		Heads: []string{"pattern", "cache", "design", "MB/s", "of the floor", "storage s/GB", "reader s/GB"}, Leading: 3,
	}
	for i, first := range r.Runs[0].Reads {
		all := make([]Read, len(r.Runs))
		for n, run := range r.Runs {
			all[n] = run.Reads[i]
		}
		reads.Add(first.Pattern, first.Cache, names[first.Design],
			spread(all, func(x Read) float64 { return float64(x.Bytes) / 1e6 / x.Seconds }), r.ratios(i),
			spread(all, func(x Read) float64 { return x.StorageSeconds / float64(x.Bytes) * 1e9 }),
			spread(all, func(x Read) float64 { return x.ReaderSeconds / float64(x.Bytes) * 1e9 }))
	}
	return table.Text([]table.Table{reads, r.disturbances()})
}

// ratios compares a measurement with the floor of the same pattern, in each run. The floor goes
// past the page cache, so that it is the same for a warm one.
func (r *ReadResult) ratios(i int) string {
	of := r.Runs[0].Reads[i]
	floor := slices.IndexFunc(r.Runs[0].Reads, func(x Read) bool { return x.Design == Direct && x.Pattern == of.Pattern })
	if floor == i {
		return table.None
	}
	return spread(r.Runs, func(run ReadRun) float64 { return run.Reads[floor].Seconds / run.Reads[i].Seconds })
}

// disturbances is the table of the memory-bound program.
func (r *ReadResult) disturbances() table.Table {
	where := "There is only one core: the program, both sides and the driver share it."
	if r.Bound {
		where = fmt.Sprintf("Meanwhile the storage side has %d of the %d cores, which the program shares with it, and the reader has the others.", r.StorageCores, r.Cores)
	}
	t := table.Table{
		Title: "A memory-bound program (STREAM triad, 64 MiB, one thread) at the storage side, while the file is read in order, cold",
		Note:  where,
		Heads: []string{"design", "MB/s read", "program's MB/s", "of alone", "its share of a core", "s lost per GB read"},
	}
	t.Add("nothing is read", table.None, spread(r.Runs, func(x ReadRun) float64 { return x.Alone / 1e6 }), table.None,
		spread(r.Runs, func(x ReadRun) float64 { return x.AloneShare }), table.None)
	for i, first := range r.Runs[0].Disturbed {
		cell := func(of func(Disturbance) float64) string {
			return spread(r.Runs, func(x ReadRun) float64 { return of(x.Disturbed[i]) })
		}
		t.Add(names[first.Design], cell(func(d Disturbance) float64 { return float64(d.Bytes) / 1e6 / d.Seconds }),
			cell(func(d Disturbance) float64 { return d.Rate / 1e6 }), cell(func(d Disturbance) float64 { return d.Relative }),
			cell(func(d Disturbance) float64 { return d.Share }), cell(func(d Disturbance) float64 { return d.LostSeconds }))
	}
	return t
}

// spread is the median of values, and the least and the most of them.
func spread[T any](all []T, of func(T) float64) string {
	var values []float64
	for _, x := range all {
		values = append(values, of(x))
	}
	return fmt.Sprintf("%s (%s–%s)", table.Significant(table.Median(values)), table.Significant(slices.Min(values)), table.Significant(slices.Max(values)))
}
