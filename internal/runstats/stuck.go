package runstats

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Stuck is what a rank says of itself while it waits for long in a call, and computes nothing.
type Stuck struct {
	Rank  int       `json:"rank"`
	Waits []Waiting `json:"waits"` // the longest first
	Holds []string  `json:"holds"` // locks that it has, by name
}

// Waiting is a goroutine that waits.
type Waiting struct {
	Kind Kind          `json:"kind"`
	Name string        `json:"name"`
	For  time.Duration `json:"ns"`
	// At is the line of the program that waits for something of this kind; "": not known, or there
	// are several.
	At string `json:"at,omitempty"`
}

// Statement is a line that a rank writes: one of these, and the others are nil.
type Statement struct {
	Record *Record `json:"record,omitempty"`
	Stuck  *Stuck  `json:"stuck,omitempty"`
	Piece  *Piece  `json:"piece,omitempty"`
}

func encodeLine(s Statement) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // it has nothing that cannot be encoded
	}
	return append(b, '\n')
}

// Encode returns the statement as one line. It is bounded like a Record.
func (s Stuck) Encode() []byte {
	s.Waits, s.Holds = s.Waits[:min(len(s.Waits), MaxItems)], s.Holds[:min(len(s.Holds), MaxItems)]
	for i := range s.Waits {
		s.Waits[i].Name = short(s.Waits[i].Name)
	}
	for i := range s.Holds {
		s.Holds[i] = short(s.Holds[i])
	}
	return encodeLine(Statement{Stuck: &s})
}

func short(name string) string {
	return strings.ToValidUTF8(name[:min(len(name), maxName)], "\uFFFD")
}

// Decode takes a line apart.
func Decode(line []byte) (s Statement, err error) {
	if err := json.Unmarshal(line, &s); err != nil {
		return Statement{}, fmt.Errorf("runstats: %w", err)
	}
	said := 0
	for _, is := range [...]bool{s.Record != nil, s.Stuck != nil, s.Piece != nil} {
		if is {
			said++
		}
	}
	if said != 1 {
		return Statement{}, fmt.Errorf("runstats: a line that says %d things, and not one", said)
	}
	return s, nil
}

// Explain says why nothing moves: what each rank waits for, who has it or is missing there, and who
// wait for each other. stuck are all ranks that have not ended. The lines are the same as long as
// everybody waits for the same: they have no times.
func Explain(stuck []Stuck, ended []int) (lines []string) {
	stuck = slices.SortedFunc(slices.Values(stuck), func(a, b Stuck) int { return cmp.Compare(a.Rank, b.Rank) })
	slices.Sort(ended)
	for i := range stuck {
		if s := &stuck[i]; len(s.Waits) > 0 {
			w := &s.Waits[0]
			lines = append(lines, fmt.Sprintf("rank %d waits %s%s", s.Rank, what(w), because(s, w, stuck, ended)))
		}
	}
	return append(lines, cycles(stuck)...)
}

// what is what a goroutine waits for, and where.
func what(w *Waiting) string {
	text := fmt.Sprintf("for %s %q", w.Kind, w.Name)
	if w.Kind == Barrier {
		text = fmt.Sprintf("at barrier %q", w.Name)
	}
	if w.At != "" {
		text += " (" + w.At + ")"
	}
	return text
}

// because says who is in the way of a wait.
func because(s *Stuck, w *Waiting, all []Stuck, ended []int) string {
	switch w.Kind {
	case Lock:
		if h := holder(w.Name, all); h != nil {
			if h.Rank == s.Rank {
				return ", which it has itself"
			}
			return fmt.Sprintf(", which rank %d has", h.Rank)
		}
		return ", which none of those has who wait"
	case Barrier:
		var missing []string
		for i := range all {
			if x := &all[i]; !slices.ContainsFunc(x.Waits, func(y Waiting) bool { return y.Kind == Barrier && y.Name == w.Name }) {
				missing = append(missing, fmt.Sprintf("rank %d is not", x.Rank))
			}
		}
		for _, rank := range ended {
			missing = append(missing, fmt.Sprintf("rank %d has ended", rank))
		}
		if len(missing) > mostCostly {
			missing = append(missing[:mostCostly], "and others")
		}
		if len(missing) > 0 {
			return ", where " + strings.Join(missing, ", ")
		}
	}
	return ""
}

// holder is who has a lock, or nil.
func holder(lock string, all []Stuck) *Stuck {
	i := slices.IndexFunc(all, func(s Stuck) bool { return slices.Contains(s.Holds, lock) })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// cycles are ranks that wait for locks of each other, each cycle once, from its lowest rank on.
func cycles(all []Stuck) (lines []string) {
	for i := range all {
		var ranks, locks []string
		at := &all[i]
		for range all {
			if len(at.Waits) == 0 || at.Waits[0].Kind != Lock {
				break
			}
			ranks, locks = append(ranks, fmt.Sprint(at.Rank)), append(locks, fmt.Sprintf("%q", at.Waits[0].Name))
			if at = holder(at.Waits[0].Name, all); at == nil || at.Rank <= all[i].Rank {
				break
			}
		}
		if at != nil && at.Rank == all[i].Rank && len(ranks) > 1 {
			lines = append(lines, fmt.Sprintf("ranks %s wait for each other, for the locks %s: take locks in the same order everywhere",
				strings.Join(ranks, ", "), strings.Join(locks, ", ")))
		}
	}
	return lines
}
