// Package pprof writes the profiles of ranks as one file, in the format of pprof. It is apart from
// package runstats, which every program has in it: what writes the format would make each of them
// larger, and start later.
package pprof

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strconv"

	"dsmd/internal/runstats"

	"github.com/google/pprof/profile"
)

// Merge makes one profile of those of all ranks that have one. The innermost frame of each stack is
// what was waited for.
func Merge(records []runstats.Record) ([]byte, error) {
	m := merged{at: map[runstats.Frame]*profile.Location{}, functions: map[function]*profile.Function{}, p: profile.Profile{
		SampleType: []*profile.ValueType{
			{Type: "waits", Unit: "count"}, {Type: "time", Unit: "nanoseconds"}, {Type: "bytes", Unit: "bytes"},
		},
		DefaultSampleType: "time",
		PeriodType:        &profile.ValueType{Type: "waits", Unit: "count"}, Period: 1,
	}}
	some := false
	for i := range records {
		if r := &records[i]; r.Profile != nil {
			some = true
			if err := m.add(r); err != nil {
				return nil, fmt.Errorf("pprof: the profile of rank %d: %w", r.Rank, err)
			}
		}
	}
	if !some {
		return nil, errors.New("pprof: no rank has a profile: none has left the cluster by Close, or has run for five seconds")
	}
	var b bytes.Buffer
	if err := m.p.Write(&b); err != nil {
		return nil, fmt.Errorf("pprof: %w", err)
	}
	return b.Bytes(), nil
}

// merged is a profile that comes into being.
type merged struct {
	p         profile.Profile
	at        map[runstats.Frame]*profile.Location
	functions map[function]*profile.Function
}

type function struct{ name, file string }

// add adds the profile of a rank, who may have said anything.
func (m *merged) add(r *runstats.Record) error {
	for i := range r.Profile.Waits {
		w := &r.Profile.Waits[i]
		locations := []*profile.Location{m.location(runstats.Frame{Function: fmt.Sprintf("[%s %q]", w.Kind, w.Name)})}
		for _, frame := range w.Stack {
			if frame < 0 || frame >= len(r.Profile.Frames) {
				return fmt.Errorf("it has no frame %d", frame)
			}
			locations = append(locations, m.location(r.Profile.Frames[frame]))
		}
		m.p.Sample = append(m.p.Sample, &profile.Sample{
			Location: locations, Value: []int64{w.Count, int64(w.Time), w.Bytes}, Label: labels(r.Rank, &w.Waits),
		})
	}
	return nil
}

// labels are what pprof can choose waits by.
func labels(rank int, w *runstats.Waits) map[string][]string {
	labels := map[string][]string{"rank": {strconv.Itoa(rank)}, "kind": {cmp.Or(w.Access, string(w.Kind))}, "name": {w.Name}}
	if w.Cause != "" {
		labels["cause"] = []string{w.Cause}
	}
	return labels
}

func (m *merged) location(f runstats.Frame) *profile.Location {
	l := m.at[f]
	if l == nil {
		l = &profile.Location{ID: uint64(len(m.p.Location) + 1), Line: []profile.Line{{Function: m.function(f), Line: int64(f.Line)}}}
		m.p.Location, m.at[f] = append(m.p.Location, l), l
	}
	return l
}

func (m *merged) function(f runstats.Frame) *profile.Function {
	key := function{f.Function, f.File}
	x := m.functions[key]
	if x == nil {
		x = &profile.Function{ID: uint64(len(m.p.Function) + 1), Name: f.Function, SystemName: f.Function, Filename: f.File}
		m.p.Function, m.functions[key] = append(m.p.Function, x), x
	}
	return x
}
