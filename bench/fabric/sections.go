package fabric

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"dsmd/bench/table"
	"dsmd/internal/verbs"
)

// Section is a part of the benchmark.
type Section string

// The sections.
const (
	Latencies     Section = "latency"
	Bandwidths    Section = "bandwidth"
	Queues        Section = "queues"
	RegisterCosts Section = "registration"
	Designs       Section = "designs"
	Fetches       Section = "fetch"
)

// Sections are all of them with what they measure, in the order in which they are measured.
var Sections = []struct {
	Section Section
	Summary string
}{
	{Latencies, "latency by message size (TCP)"},
	{Bandwidths, "bandwidth by message size (TCP)"},
	{Queues, "bandwidth over 1 to 64 connections (TCP)"},
	{RegisterCosts, "cost of registering memory and of ending that, by size (RDMA)"},
	{Designs, "page fetches with a pool of registered slots, registration per transfer, and a registration cache (RDMA)"},
	{Fetches, "a page fetch through the transport, beside the operations that it is made of"},
}

// SectionNames lists the sections.
func SectionNames() []Section {
	var names []Section
	for _, s := range Sections {
		names = append(names, s.Section)
	}
	return names
}

const (
	// cachedPages is how many registrations the cache of Designs holds.
	cachedPages = 256
	// minRegistration and maxRegistration are the sizes between which registration is measured,
	// each four times the one before.
	minRegistration, maxRegistration = 4 << 10, 64 << 20
)

// workingSets are those of the cache: one that fits, and one of which half does. A pool, and
// registration per transfer, don't depend on it.
var workingSets = []int{cachedPages / 2, 2 * cachedPages}

// DefaultSizes of messages.
var DefaultSizes = []int{8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20}

// Options say what is measured.
type Options struct {
	Sections []Section
	Sizes    []int         // of messages, in bytes
	Page     int           // bytes of a page
	Control  int           // bytes of the messages about one
	Time     time.Duration // of each measurement
	Runs     int           // how often everything is measured
	TCP      bool
	RDMA     bool
	// Perftest says that Fetches measures the two operations that RDMA's page fetches are compared
	// with by perftest's own programs, too, and compares with those. Both ends must be on this
	// machine.
	Perftest bool
}

func (o Options) check() error {
	for _, size := range slices.Concat(o.Sizes, []int{o.Page}) {
		if size < MinBytes || size > MaxBytes {
			return fmt.Errorf("messages of %d bytes: use %d to %d", size, MinBytes, MaxBytes)
		}
	}
	for _, s := range o.Sections {
		if !slices.Contains(SectionNames(), s) {
			return fmt.Errorf("there is no section %q; there are %v", s, SectionNames())
		}
	}
	if most := min(o.Page, MaxControl); o.Control < MinBytes || o.Control > most {
		return fmt.Errorf("messages about a page of %d bytes: use %d to %d, and no more than the page has", o.Control, MinBytes, most)
	}
	if o.Time <= 0 || o.Time > MaxTime {
		return fmt.Errorf("measuring for %v: use up to %v", o.Time, MaxTime)
	}
	if o.Perftest && !(o.RDMA && slices.Contains(o.Sections, Fetches)) {
		return fmt.Errorf("perftest is for the section %q, of RDMA", Fetches)
	}
	if o.Runs < 1 {
		return fmt.Errorf("%d runs: use 1 or more", o.Runs)
	}
	return nil
}

// A Result is all that was measured.
type Result struct {
	Origin        table.Origin       `json:"origin"`
	Devices       []verbs.DeviceInfo `json:"devices,omitempty"`
	Notes         []string           `json:"notes,omitempty"`
	Points        []Point            `json:"points,omitempty"`
	Registrations []Registration     `json:"registrations,omitempty"`
	Fetches       []Fetch            `json:"fetches,omitempty"`
}

// Run measures what the options say. step is called before each measurement, with how many there
// are. It takes some seconds for each section, and should run between Quiet and its restore.
func Run(ctx context.Context, s *Session, o Options, step func(what string, done, total int)) (Result, error) {
	var r Result
	if err := o.check(); err != nil {
		return r, err
	}
	var err error
	if o.RDMA {
		if r.Devices, err = Devices(); err != nil {
			return r, err
		}
		r.Notes = o.notes()
	}
	if r.Points, err = s.points(ctx, o.plan(), o.Runs, step); err != nil {
		return r, err
	}
	if o.RDMA && slices.Contains(o.Sections, RegisterCosts) {
		step("registrations", 0, 1)
		if r.Registrations, err = s.Registrations(registrationSizes()); err != nil {
			return r, err
		}
		if !slices.ContainsFunc(r.Registrations, func(r Registration) bool { return r.Huge }) {
			r.Notes = append(r.Notes, "no huge pages are reserved (vm.nr_hugepages), so their registration was not measured")
		}
	}
	if slices.Contains(o.Sections, Fetches) {
		fetches, notes, err := s.fetches(ctx, o, step)
		r.Fetches, r.Notes = fetches, append(r.Notes, notes...)
		if err != nil {
			return r, cmp.Or(context.Cause(ctx), err)
		}
	}
	return r, nil
}

// points makes all measurements of a plan several times, and keeps the best of each. The whole plan
// is repeated, so that a while in which the machine does something else does not fall on all runs
// of one measurement.
func (s *Session) points(ctx context.Context, plan []planned, runs int, step func(string, int, int)) ([]Point, error) {
	best := make([]Point, len(plan))
	for run := range runs {
		for i, p := range plan {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			step(p.spec.String(), run*len(plan)+i, runs*len(plan))
			point, err := s.Measure(p.spec)
			if err != nil {
				return nil, cmp.Or(context.Cause(ctx), err)
			}
			if point.Section = p.section; run == 0 || point.better(best[i]) {
				best[i] = point
			}
		}
	}
	return best, nil
}

// planned is a measurement and the section that it belongs to.
type planned struct {
	section Section
	spec    Spec
}

// plan lists the measurements of all sections that consist of independent ones.
func (o Options) plan() []planned {
	var all []planned
	add := func(section Section, spec Spec) {
		spec.Time = o.Time
		all = append(all, planned{section, spec})
	}
	for _, section := range o.Sections {
		switch {
		case (section == Latencies || section == Bandwidths) && o.TCP:
			measure := map[Section]Measure{Latencies: Latency, Bandwidths: Bandwidth}[section]
			for _, size := range o.Sizes {
				add(section, Spec{Kind: TCP, Operation: Send, Measure: measure, Bytes: size, Connections: 1})
			}
		case section == Queues && o.TCP:
			for n := 1; n <= MaxConnections; n *= 2 {
				add(section, Spec{Kind: TCP, Operation: Send, Measure: Bandwidth, Bytes: o.Page, Connections: n})
			}
		case section == Designs && o.RDMA:
			spec := Spec{Kind: RC, Measure: Latency, Bytes: o.Page, Connections: 1, Pages: workingSets[0]}
			for _, spec.Operation = range []Operation{Pool, EachTransfer} {
				add(section, spec)
			}
			for _, pages := range workingSets {
				spec.Operation, spec.Pages, spec.Cached = Cache, pages, cachedPages
				add(section, spec)
			}
		}
	}
	return all
}

// notes says by what RDMA is measured in the sections that leave it out.
func (o Options) notes() (notes []string) {
	for _, x := range []struct {
		section  Section
		programs string
	}{
		{Latencies, "ib_write_lat, ib_read_lat, ib_send_lat and ib_atomic_lat"},
		{Bandwidths, "ib_write_bw, ib_read_bw, ib_send_bw and ib_atomic_bw"},
		{Queues, "ib_write_bw -q"},
	} {
		if slices.Contains(o.Sections, x.section) {
			notes = append(notes, fmt.Sprintf("%s of RDMA: perftest measures it (%s), also over UC and UD (-c)", x.section, x.programs))
		}
	}
	return notes
}

func registrationSizes() []int {
	var sizes []int
	for size := minRegistration; size <= maxRegistration; size *= 4 {
		sizes = append(sizes, size)
	}
	return sizes
}
