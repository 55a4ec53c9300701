package runstats

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/pprof/profile"
)

// EnvProfile, set to anything, asks a rank for a profile in its Record.
const EnvProfile = "DSM_PROFILE"

// maxStacks bounds the different stacks of a rank's profile; those that cost least are left away.
const maxStacks = 4096

// Stacks are the waits of one rank by where in the program they were. It belongs to one goroutine.
type Stacks struct{ by map[string]*wait }

// wait is the waits for one thing at one stack.
type wait struct {
	kind  Kind
	name  string
	stack []uintptr // return addresses
	count int64
	time  time.Duration
}

// NewStacks makes an empty one.
func NewStacks() *Stacks { return &Stacks{map[string]*wait{}} }

// Add adds waits. stack has return addresses as those of runtime.Callers, the innermost first.
func (s *Stacks) Add(kind Kind, name string, stack []uintptr, count int64, waited time.Duration) {
	key := make([]byte, 0, 8*len(stack)+len(name)+8)
	for _, pc := range stack {
		key = binary.NativeEndian.AppendUint64(key, uint64(pc))
	}
	key = append(append(key, kind...), name...)
	w := s.by[string(key)]
	if w == nil {
		w = &wait{kind: kind, name: name, stack: slices.Clone(stack)}
		s.by[string(key)] = w
	}
	w.count += count
	w.time += waited
}

// Divide gives the waits for a kind of thing, whose times are not known one by one, their parts of
// what was waited in all for each.
func (s *Stacks) Divide(kind Kind, times map[string]time.Duration) {
	counts := map[string]int64{}
	for _, w := range s.by {
		if w.kind == kind {
			counts[w.name] += w.count
		}
	}
	for _, w := range s.by {
		if w.kind == kind {
			w.time = time.Duration(float64(times[w.name]) * float64(w.count) / float64(counts[w.name]))
		}
	}
}

// Profile is the profile of a rank, in the format of pprof. The innermost frame of each stack is
// what was waited for.
func (s *Stacks) Profile(rank int) ([]byte, error) {
	p := &profile.Profile{
		SampleType:        []*profile.ValueType{{Type: "waits", Unit: "count"}, {Type: "time", Unit: "nanoseconds"}},
		DefaultSampleType: "time",
		PeriodType:        &profile.ValueType{Type: "waits", Unit: "count"}, Period: 1,
	}
	f := frames{p: p, at: map[uintptr]*profile.Location{}, of: map[string]*profile.Location{}, functions: map[string]*profile.Function{}}
	list := slices.SortedFunc(maps.Values(s.by), func(a, b *wait) int {
		return cmp.Or(cmp.Compare(b.time, a.time), cmp.Compare(b.count, a.count), slices.Compare(a.stack, b.stack), cmp.Compare(a.name, b.name))
	})
	for _, w := range list[:min(len(list), maxStacks)] {
		locations := []*profile.Location{f.thing(w)}
		for _, pc := range w.stack {
			locations = append(locations, f.location(pc))
		}
		p.Sample = append(p.Sample, &profile.Sample{
			Location: locations, Value: []int64{w.count, int64(w.time)},
			Label: map[string][]string{"rank": {strconv.Itoa(rank)}, "kind": {string(w.kind)}, "name": {w.name}},
		})
	}
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		return nil, fmt.Errorf("runstats: %w", err)
	}
	return b.Bytes(), nil
}

// frames makes the locations of a profile.
type frames struct {
	p         *profile.Profile
	at        map[uintptr]*profile.Location
	of        map[string]*profile.Location // things that are waited for
	functions map[string]*profile.Function
}

func (f *frames) add(pc uintptr, lines []profile.Line) *profile.Location {
	l := &profile.Location{ID: uint64(len(f.p.Location) + 1), Address: uint64(pc), Line: lines}
	f.p.Location = append(f.p.Location, l)
	return l
}

// thing is the frame of what is waited for.
func (f *frames) thing(w *wait) *profile.Location {
	name := fmt.Sprintf("[%s %q]", w.kind, w.name)
	if f.of[name] == nil {
		f.of[name] = f.add(0, []profile.Line{{Function: f.function(name, "")}})
	}
	return f.of[name]
}

// location has all frames of an address, also those that were inlined there.
func (f *frames) location(pc uintptr) *profile.Location {
	if l := f.at[pc]; l != nil {
		return l
	}
	var lines []profile.Line
	for walk := runtime.CallersFrames([]uintptr{pc}); ; {
		frame, more := walk.Next()
		name := frame.Function
		if name == "" {
			name = fmt.Sprintf("%#x", pc)
		}
		lines = append(lines, profile.Line{Function: f.function(name, frame.File), Line: int64(frame.Line)})
		if !more {
			break
		}
	}
	f.at[pc] = f.add(pc, lines)
	return f.at[pc]
}

func (f *frames) function(name, file string) *profile.Function {
	key := name + "\x00" + file
	x := f.functions[key]
	if x == nil {
		x = &profile.Function{ID: uint64(len(f.p.Function) + 1), Name: name, SystemName: name, Filename: file}
		f.p.Function, f.functions[key] = append(f.p.Function, x), x
	}
	return x
}

// Merge makes one profile of those of all ranks that have one.
func Merge(records []Record) ([]byte, error) {
	var all []*profile.Profile
	for i := range records {
		if r := &records[i]; len(r.Profile) > 0 {
			p, err := profile.ParseData(r.Profile)
			if err != nil {
				return nil, fmt.Errorf("runstats: the profile of rank %d: %w", r.Rank, err)
			}
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("runstats: no rank has a profile: none has left the cluster by Close")
	}
	merged, err := profile.Merge(all)
	if err != nil {
		return nil, fmt.Errorf("runstats: %w", err)
	}
	var b bytes.Buffer
	if err := merged.Write(&b); err != nil {
		return nil, fmt.Errorf("runstats: %w", err)
	}
	return b.Bytes(), nil
}

// Notes are what the profiles of ranks lack, and whose, each once.
func Notes(records []Record) (notes []string) {
	by := map[string][]string{}
	for _, r := range slices.SortedFunc(slices.Values(records), func(a, b Record) int { return cmp.Compare(a.Rank, b.Rank) }) {
		if r.Note != "" {
			by[r.Note] = append(by[r.Note], strconv.Itoa(r.Rank))
		}
	}
	for _, note := range slices.Sorted(maps.Keys(by)) {
		notes = append(notes, fmt.Sprintf("rank %s: %s", strings.Join(by[note], ", "), note))
	}
	return notes
}
