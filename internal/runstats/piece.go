package runstats

import (
	"slices"
	"time"
)

// EnvTrace, set to anything, asks a rank for Pieces while it runs.
const EnvTrace = "DSM_TRACE"

// EnvWords, set to anything, asks for the words that were written besides, in the logs of pieces.
const EnvWords = "DSM_WORDS"

// Piece is what has happened at a rank since its last piece.
type Piece struct {
	Rank int `json:"rank"`
	Node int `json:"node"`
	PID  int `json:"pid"`

	Memory []Allocation `json:"memory,omitempty"` // that are new to this rank
	Calls  []Call       `json:"calls,omitempty"`  // that have ended
	Sites  []Site       `json:"sites,omitempty"`  // sampled since the last piece
	// Lost is how many Calls, Sites and Memory there were that this piece has no room for.
	Lost uint64 `json:"lost,omitempty"`

	// Log is an encoded faultlog.Batch: this program's faults, and the node's departures. Programs
	// of one node send the same departures; their numbers tell.
	Log []byte `json:"log,omitempty"`
	// Locks has the names of locks that are in the log, by their hash.
	Locks map[uint64]string `json:"locks,omitempty"`
}

// MaxPieceItems bounds the Calls of a piece, its Sites, and its Locks; MaxPieceMemory its Memory;
// MaxFields the fields of an Allocation.
const (
	MaxPieceItems  = 1 << 10
	MaxPieceMemory = 32
	MaxFields      = 64
)

// Encode returns the piece as one line. It is bounded like a Record: what there is too much of is
// left away, and counted in Lost.
func (p Piece) Encode() []byte {
	p.Memory = first(&p, p.Memory, MaxPieceMemory)
	p.Calls = first(&p, p.Calls, MaxPieceItems)
	p.Sites = first(&p, p.Sites, MaxPieceItems)
	for i := range p.Memory {
		m := &p.Memory[i]
		m.Name, m.Type, m.Fields = Short(m.Name), Short(m.Type), slices.Clone(m.Fields[:min(len(m.Fields), MaxFields)])
		for j := range m.Fields {
			m.Fields[j].Name = Short(m.Fields[j].Name)
		}
	}
	for i := range p.Calls {
		c := &p.Calls[i]
		c.Name, c.At = Short(c.Name), Short(c.At)
	}
	for i := range p.Sites {
		s := &p.Sites[i]
		s.Func, s.At = Short(s.Func), Short(s.At)
	}
	if len(p.Locks) > 0 {
		locks := map[uint64]string{}
		for hash, name := range p.Locks {
			if len(locks) < MaxPieceItems {
				locks[hash] = Short(name)
			}
		}
		p.Locks = locks
	}
	b := encodeLine(Statement{Piece: &p})
	if len(b) > MaxBytes { // names of control characters
		p.Lost += uint64(len(p.Memory) + len(p.Calls) + len(p.Sites))
		p.Memory, p.Calls, p.Sites, p.Locks = nil, nil, nil, nil
		b = encodeLine(Statement{Piece: &p})
	}
	return b
}

// first is a copy of as many items as a piece has room for.
func first[T any](p *Piece, all []T, most int) []T {
	n := min(len(all), most)
	p.Lost += uint64(len(all) - n)
	return slices.Clone(all[:n])
}

// Allocation is memory that a rank uses, with what is known of its type.
type Allocation struct {
	Name      string `json:"name"`
	First     uint64 `json:"first"` // page number
	Pages     uint64 `json:"pages"`
	PageBytes uint64 `json:"page_bytes"`
	ElemBytes uint64 `json:"elem_bytes"`
	Type      string `json:"type"` // of an element, as Go writes it
	// Fields are those of an element, in order, nested ones as "a.b"; empty if it is no struct.
	Fields []Field `json:"fields,omitempty"`
}

// Field is a part of an element.
type Field struct {
	Name   string `json:"name"`
	Offset uint64 `json:"offset"` // in bytes
	Bytes  uint64 `json:"bytes"`
}

// Call is a wait in a call for a lock, at a barrier or in Prefetch.
type Call struct {
	Kind   Kind          `json:"kind"`
	Name   string        `json:"name"`
	Began  int64         `json:"began"` // in nanoseconds since 1970 by this machine's clock
	Waited time.Duration `json:"ns"`
	Thread int           `json:"thread"`       // as the kernel numbers it, when the wait began
	At     string        `json:"at,omitempty"` // the line of the program, as file.go:12
}

// Site is a line of the program whose accesses to a page have faulted.
type Site struct {
	Page   uint64 `json:"page"`
	Offset uint32 `json:"offset"` // of the access, in the page
	Write  bool   `json:"write"`  // a store; false: a load, or not known
	Func   string `json:"func"`   // as runtime.Frame names it
	At     string `json:"at"`     // file.go:12
	Count  uint64 `json:"count"`  // samples
}
