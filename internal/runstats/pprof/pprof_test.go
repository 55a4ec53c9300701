package pprof

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"dsmd/internal/runstats"

	"github.com/google/pprof/profile"
)

func here() []uintptr {
	pcs := make([]uintptr, 8)
	return pcs[:runtime.Callers(2, pcs)]
}

// TestMerge: what ranks have waited for becomes one profile, with its things, lines and ranks, also
// on the way that records take. A function that ranks have in common stands there once.
func TestMerge(t *testing.T) {
	var records []runstats.Record
	for rank := range 2 {
		s := runstats.NewStacks()
		for range 3 {
			s.Add(runstats.Waits{Kind: runstats.Lock, Name: "a", Stack: here(), Count: 1, Time: 10})
		}
		s.Add(runstats.Waits{Kind: runstats.Memory, Name: "x", Access: "read", Cause: "first touch", Stack: here(), Count: 30, Bytes: 4096, Time: 300})
		s.Add(runstats.Waits{Kind: runstats.Memory, Name: "x", Access: "write", Count: 10, Time: 100})
		x, err := runstats.Decode(runstats.Record{Rank: rank, Profile: s.Profile()}.Encode())
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, *x.Record)
	}
	merged, err := Merge(append(records, runstats.Record{Rank: 7, Note: "is away"}))
	if err != nil {
		t.Fatal(err)
	}
	p, err := profile.ParseData(merged)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]int64{}
	for _, s := range p.Sample {
		key := fmt.Sprint(s.Label["rank"], s.Label["kind"], s.Label["cause"], s.Location[0].Line[0].Function.Name)
		if len(s.Location) > 1 {
			line := s.Location[1].Line[0]
			key += fmt.Sprint(" in ", line.Function.Name, " ", strings.HasSuffix(line.Function.Filename, "pprof_test.go"), line.Line > 0)
		}
		got[key] = s.Value
	}
	const where = " in dsmd/internal/runstats/pprof.TestMerge true true"
	want := map[string][]int64{}
	for rank := range 2 {
		want[fmt.Sprintf("[%d] [lock] [][lock \"a\"]%s", rank, where)] = []int64{3, 30, 0}
		want[fmt.Sprintf("[%d] [read] [first touch][memory \"x\"]%s", rank, where)] = []int64{30, 300, 4096}
		want[fmt.Sprintf("[%d] [write] [][memory \"x\"]", rank)] = []int64{10, 100, 0}
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("the profile has %v, want %v", got, want)
	}
	names := map[string]int{}
	for _, f := range p.Function {
		if names[f.Name]++; names[f.Name] > 1 {
			t.Errorf("%s is there %d times", f.Name, names[f.Name])
		}
	}
}

// TestBadProfiles: one that is none, or none at all, is an error that says whose.
func TestBadProfiles(t *testing.T) {
	for _, frame := range []int{-1, 1} {
		bad := &runstats.Profile{Frames: make([]runstats.Frame, 1), Waits: []runstats.WaitsAt{{Stack: []int{0, frame}}}}
		if _, err := Merge([]runstats.Record{{Rank: 3, Profile: bad}}); err == nil || !strings.Contains(err.Error(), "rank 3") {
			t.Errorf("with frame %d of one: %v", frame, err)
		}
	}
	if _, err := Merge([]runstats.Record{{}}); err == nil {
		t.Error("there is a profile of nothing")
	}
}
