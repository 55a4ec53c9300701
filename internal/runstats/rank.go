package runstats

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Rank is what a rank of a job does: what it says itself, and what its daemon knows.
type Rank struct {
	Rank     int     `json:"rank"`
	Waits    []Wait  `json:"waits,omitempty"`    // of its goroutines in calls, the longest first
	Holds    []Held  `json:"holds,omitempty"`    // locks
	Computes bool    `json:"computes,omitempty"` // it has used some of a processor lately
	State    State   `json:"-"`
	Pages    []Pages `json:"-"` // for which its threads wait, the longest first
}

// State is whether a rank is there.
type State int

// The states.
const (
	Here    State = iota // it has answered
	Silent               // it is there and has not answered
	Unknown              // its node has not answered, or it has not come yet
	Ended
)

// Wait is a goroutine that waits in a call.
type Wait struct {
	Kind   Kind          `json:"kind"`
	Name   string        `json:"name"`
	Object uint64        `json:"object"` // tells things of one kind apart, whatever they are called
	For    time.Duration `json:"ns"`
	At     string        `json:"at,omitempty"` // the line of the program; "": not known
	// Parties is how many meet, of a barrier or reduction, and Ranks whether that is one of each.
	Parties int  `json:"parties,omitempty"`
	Ranks   bool `json:"ranks,omitempty"`
}

// String is what is waited for, and for how long: for lock "a" since 5s.
func (w *Wait) String() string { return thing(w) + " since " + seconds(w.For) }

// Held is a lock that a rank has.
type Held struct {
	Object uint64        `json:"object"`
	For    time.Duration `json:"ns"`
	At     string        `json:"at,omitempty"`   // where it was taken; "": not known
	Read   bool          `json:"read,omitempty"` // for reading only
}

// Pages is a page for which threads wait.
type Pages struct {
	Page   uint64
	Memory string // the allocation; "": not known
	// From is, at Asked, the node that was: the page's home, or, where that is the rank's own node,
	// who has the page. -1: others have to give up their copies.
	From  int
	Stage Stage
	For   time.Duration
}

// Stage is how far a page has got for which threads wait.
type Stage int

// The stages.
const (
	Asked  Stage = iota // a node was asked for it
	Parked              // its node has not asked yet
	OnDisk              // its node has it on a disk, or waits for one
	Busy                // its node copies it to its backups, or is about to give it up
)

// Hang is what a rank tells its launcher when its job, or a part of it, does not move.
type Hang struct {
	Lines []string `json:"lines"`
	Key   string   `json:"key"` // is the same as long as everybody waits for the same
	// Ended are ranks that have ended, and for which others wait.
	Ended []int `json:"ended,omitempty"`
}

// Dump is the stacks of a rank's goroutines.
type Dump struct {
	Rank
	Text string `json:"text"` // as runtime.Stack has it; "": they could not be taken
	// Blocked is for how many pages threads have waited for long, so that nobody stops the program.
	Blocked int `json:"blocked"`
}

// Statement is a line that a rank writes: one of these, and the others are nil.
type Statement struct {
	Record *Record `json:"record,omitempty"`
	Hang   *Hang   `json:"hang,omitempty"`
	Piece  *Piece  `json:"piece,omitempty"`
}

func encodeLine(s Statement) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // it has nothing that cannot be encoded
	}
	return append(b, '\n')
}

// Encode returns a hang as one line, bounded like a Record.
func (h Hang) Encode() []byte {
	const most = 256
	h.Lines = slices.Clone(h.Lines[:min(len(h.Lines), most)])
	for i, line := range h.Lines {
		h.Lines[i] = line[:min(len(line), 8*maxName)]
	}
	h.Key = h.Key[:min(len(h.Key), most*maxName)]
	h.Ended = h.Ended[:min(len(h.Ended), most)]
	return encodeLine(Statement{Hang: &h})
}

// Decode takes a line apart.
func Decode(line []byte) (s Statement, err error) {
	if err := json.Unmarshal(line, &s); err != nil {
		return Statement{}, fmt.Errorf("runstats: %w", err)
	}
	said := 0
	for _, is := range [...]bool{s.Record != nil, s.Hang != nil, s.Piece != nil} {
		if is {
			said++
		}
	}
	if said != 1 {
		return Statement{}, fmt.Errorf("runstats: a line that says %d things, and not one", said)
	}
	return s, nil
}

// MaxRankBytes bounds an encoded Rank.
const MaxRankBytes = 16 << 10

// Encode returns what a rank says of itself, in at most MaxRankBytes: of what there is too much,
// the last is left away.
func (r Rank) Encode() []byte {
	for most := MaxItems; ; most /= 2 {
		r.Waits, r.Holds = slices.Clone(r.Waits[:min(len(r.Waits), most)]), r.Holds[:min(len(r.Holds), 2*most)]
		for i := range r.Waits {
			r.Waits[i].Name = Short(r.Waits[i].Name)
		}
		if b, err := json.Marshal(r); err != nil {
			panic(err) // it has nothing that cannot be encoded
		} else if len(b) <= MaxRankBytes {
			return b
		}
	}
}

// DecodeRank takes what Encode has returned.
func DecodeRank(b []byte) (r Rank, err error) {
	if err := json.Unmarshal(b, &r); err != nil {
		return Rank{}, fmt.Errorf("runstats: %w", err)
	}
	return r, nil
}

// Short is a name, or as much of it as a record has room for, as valid UTF-8.
func Short(name string) string {
	return strings.ToValidUTF8(name[:min(len(name), maxName)], "\uFFFD")
}
