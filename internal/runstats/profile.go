package runstats

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// EnvProfile, set to anything, asks a rank for a profile in its Record.
const EnvProfile = "DSM_PROFILE"

// maxStacks bounds the different stacks of a rank's profile; those that cost least are left away.
const maxStacks = 4096

// Profile is where in the program a rank has waited, and for what. The launcher makes a file of
// those of all ranks (package pprof), so that programs need not have what writes it.
type Profile struct {
	Frames []Frame   `json:"frames"`
	Waits  []WaitsAt `json:"waits"`
}

// Frame is a line of a program.
type Frame struct {
	Function string `json:"function"`
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
}

// WaitsAt is waits at one place.
type WaitsAt struct {
	Waits
	Stack []int `json:"stack,omitempty"` // of numbers of Frames, the innermost first
}

// Waits are waits of one rank for the same thing, at the same place.
type Waits struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	// Of Memory, what was needed of its pages and why they were not here; "": not known.
	Access string `json:"access,omitempty"`
	Cause  string `json:"cause,omitempty"`
	// Stack has return addresses as those of runtime.Callers, the innermost first; nil: not known.
	Stack []uintptr     `json:"-"`
	Count int64         `json:"count"`
	Bytes int64         `json:"bytes,omitempty"` // that have come
	Time  time.Duration `json:"ns"`
}

func (w *Waits) key(stack []uintptr) string {
	key := make([]byte, 0, 8*len(stack)+64)
	for _, pc := range stack {
		key = binary.NativeEndian.AppendUint64(key, uint64(pc))
	}
	for _, text := range [...]string{string(w.Kind), w.Name, w.Access, w.Cause} {
		key = append(append(key, text...), 0)
	}
	return string(key)
}

// Stacks are the waits of one rank by where in the program they were. Of waits for Memory all are
// known, and the stacks of some: these stand for the others that are alike but for the stack. It
// belongs to one goroutine.
type Stacks struct {
	by  map[string]*Waits
	all map[string]*Waits // for Memory, without stacks
}

// NewStacks makes an empty one.
func NewStacks() *Stacks { return &Stacks{map[string]*Waits{}, map[string]*Waits{}} }

// Clone is a copy, which can be changed apart.
func (s *Stacks) Clone() *Stacks {
	c := NewStacks()
	for key, w := range s.by {
		x := *w
		c.by[key] = &x
	}
	for key, w := range s.all {
		x := *w
		c.all[key] = &x
	}
	return c
}

// Add adds waits.
func (s *Stacks) Add(w Waits) {
	if w.Kind == Memory {
		add(s.all, w, nil)
	}
	if w.Kind != Memory || w.Stack != nil {
		add(s.by, w, w.Stack)
	}
}

func add(to map[string]*Waits, w Waits, stack []uintptr) {
	key := w.key(stack)
	x := to[key]
	if x == nil {
		y := w
		y.Stack, y.Count, y.Bytes, y.Time = slices.Clone(stack), 0, 0, 0
		x = &y
		to[key] = x
	}
	x.Count += w.Count
	x.Bytes += w.Bytes
	x.Time += w.Time
}

// Waited is the time of all waits for Memory.
func (s *Stacks) Waited() (sum time.Duration) {
	for _, w := range s.all {
		sum += w.Time
	}
	return sum
}

// Scale makes total the time of all waits for Memory, each being longer or shorter by the same
// factor, because some could not be added.
func (s *Stacks) Scale(total time.Duration) {
	if sum := s.Waited(); sum > 0 {
		for _, w := range s.all {
			w.Time = time.Duration(float64(w.Time) * float64(total) / float64(sum))
		}
	}
}

// list is all waits, those with stacks being so many, and as long, as they stand for.
func (s *Stacks) list() (list []Waits) {
	sampled := map[string][]*Waits{}
	for _, w := range s.by {
		if w.Kind != Memory {
			list = append(list, *w)
			continue
		}
		key := w.key(nil)
		sampled[key] = append(sampled[key], w)
	}
	for key, all := range s.all {
		some := sampled[key]
		if len(some) == 0 {
			list = append(list, *all)
			continue
		}
		slices.SortFunc(some, func(a, b *Waits) int { return slices.Compare(a.Stack, b.Stack) })
		count := func(w *Waits) int64 { return w.Count }
		counts, sizes := apportion(all.Count, some, count), apportion(all.Bytes, some, count)
		times := apportion(int64(all.Time), some, func(w *Waits) int64 { return int64(w.Time) })
		for i, w := range some {
			x := *w
			x.Count, x.Bytes, x.Time = counts[i], sizes[i], time.Duration(times[i])
			list = append(list, x)
		}
	}
	slices.SortFunc(list, func(a, b Waits) int {
		return cmp.Or(cmp.Compare(b.Time, a.Time), cmp.Compare(b.Count, a.Count), cmp.Compare(a.key(a.Stack), b.key(b.Stack)))
	})
	return list
}

// apportion divides a total into parts, as large in proportion as some waits are.
func apportion(total int64, some []*Waits, of func(*Waits) int64) []int64 {
	var sum float64
	for _, w := range some {
		sum += float64(of(w))
	}
	if sum == 0 {
		of, sum = func(*Waits) int64 { return 1 }, float64(len(some))
	}
	parts, upTo, given := make([]int64, len(some)), 0.0, int64(0)
	for i, w := range some {
		upTo += float64(of(w))
		parts[i] = int64(float64(total)*upTo/sum) - given
		given += parts[i]
	}
	return parts
}

// Profile is the profile of the rank.
func (s *Stacks) Profile() *Profile {
	p := &Profile{}
	at := map[uintptr]int{} // the frame of an address
	list := s.list()
	for _, w := range list[:min(len(list), maxStacks)] {
		x := WaitsAt{Waits: w}
		for _, pc := range w.Stack {
			i, known := at[pc]
			if !known {
				i, at[pc] = len(p.Frames), len(p.Frames)
				p.Frames = append(p.Frames, frameOf(pc))
			}
			x.Stack = append(x.Stack, i)
		}
		p.Waits = append(p.Waits, x)
	}
	return p
}

// frameOf is the line of an address.
func frameOf(pc uintptr) Frame {
	// Functions that were inlined have addresses of their own in the stack, as in one of
	// runtime.Callers.
	f, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return Frame{cmp.Or(f.Function, fmt.Sprintf("%#x", pc)), f.File, f.Line}
}

// Notes are what the profiles of a job of so many ranks lack, and whose, each once.
func Notes(records []Record, ranks int) (notes []string) {
	const byClose = ": the program has not left the cluster by Close"
	of := map[int]*Record{}
	for i := range records {
		of[records[i].Rank] = &records[i]
	}
	by := map[string][]string{}
	for rank := range ranks {
		note := func(text string) { by[text] = append(by[text], strconv.Itoa(rank)) }
		r := of[rank]
		if r == nil {
			note("nothing is in the profile" + byClose)
			continue
		}
		if r.Note != "" {
			note(r.Note)
		}
		if r.Partial {
			note("the last seconds are not in the profile" + byClose)
		}
	}
	for _, note := range slices.Sorted(maps.Keys(by)) {
		notes = append(notes, fmt.Sprintf("rank %s: %s", strings.Join(by[note], ", "), note))
	}
	return notes
}
