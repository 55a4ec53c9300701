package storage

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// What is read at random at a time, in bytes and in words.
const (
	pageBytes = 4096
	pageWords = pageBytes / 8
)

// ErrWrongSum is returned when what was read is not what was written.
var ErrWrongSum = errors.New("read something else than the file has")

// An Order says which pages of a file are read, and in which order.
type Order struct {
	// Pages are those of the file.
	Pages int `json:"pages"`
	// Random is how many of them are read, each once and at random; 0: all, from the first to the
	// last.
	Random int `json:"random"`
	// Threads read at a time. It is 1 if all pages are read in order.
	Threads int    `json:"threads"`
	Seed    uint64 `json:"seed"`
}

func (o Order) random() bool { return o.Random > 0 }

// pages are those that are read at random, in their order.
func (o Order) pages() []int {
	return rand.New(rand.NewPCG(1, o.Seed)).Perm(o.Pages)[:o.Random]
}

// together has threads read parts of a file, numbered from 0 or as parts says if it is not nil.
// Each thread reads by a function of its own, which returns the weighed sum of a part. It returns
// the sum of all.
func together(count int, parts []int, readers []func(part int) (uint64, error)) (uint64, error) {
	var next atomic.Int64
	var total atomic.Uint64
	var all sync.WaitGroup
	failures := make([]error, len(readers))
	for t, read := range readers {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			mine := uint64(0)
			for i := next.Add(1) - 1; i < int64(count) && failures[t] == nil; i = next.Add(1) - 1 {
				part := int(i)
				if parts != nil {
					part = parts[i]
				}
				var s uint64
				s, failures[t] = read(part)
				mine += s
			}
			total.Add(mine)
		})
	}
	all.Wait()
	return total.Load(), errors.Join(failures...)
}

// sum adds up words.
func sum(words []uint64) uint64 {
	s := uint64(0)
	for _, w := range words {
		s += w
	}
	return s
}

// weighed is what the sum of a page counts in the sum of all: what is at a wrong place changes it.
func weighed(page int, sum uint64) uint64 { return (2*uint64(page) + 1) * sum }

// sumFrom adds up the pages of a part of the file that begins with that page.
func sumFrom(page int, words []uint64) uint64 {
	s := uint64(0)
	for i := 0; i < len(words); i += pageWords {
		s += weighed(page+i/pageWords, sum(words[i:i+pageWords]))
	}
	return s
}

// Sides are the processes of either side, by their ids.
type Sides struct {
	Storage []int `json:"storage"`
	Reader  []int `json:"reader"`
}

// A Reading is what was measured of reading a file, or a part of it.
type Reading struct {
	Seconds float64 `json:"seconds"`
	// The processor time of either side's processes, user and system, in seconds.
	StorageSeconds float64 `json:"storage_processor_seconds"`
	ReaderSeconds  float64 `json:"reader_processor_seconds"`
	// Begin and End are times of CLOCK_MONOTONIC, in nanoseconds, which all processes share.
	Begin int64 `json:"begin"`
	End   int64 `json:"end"`
	// Sum is that of the words, each page's weighed with its place.
	Sum uint64 `json:"sum"`
}

// measure times how a file is read.
func (s Sides) measure(read func() (uint64, error)) (r Reading, err error) {
	runtime.GC() // what was done before is not the reading's
	storage, err := processorTime(s.Storage)
	if err != nil {
		return r, err
	}
	reader, err := processorTime(s.Reader)
	if err != nil {
		return r, err
	}
	if r.Begin, err = clock(unix.CLOCK_MONOTONIC); err != nil {
		return r, err
	}
	if r.Sum, err = read(); err != nil {
		return r, err
	}
	if r.End, err = clock(unix.CLOCK_MONOTONIC); err != nil {
		return r, err
	}
	r.Seconds = time.Duration(r.End - r.Begin).Seconds()
	storageAfter, err := processorTime(s.Storage)
	if err != nil {
		return r, err
	}
	readerAfter, err := processorTime(s.Reader)
	r.StorageSeconds = time.Duration(storageAfter - storage).Seconds()
	r.ReaderSeconds = time.Duration(readerAfter - reader).Seconds()
	return r, err
}
