package checkpoint

import (
	"errors"
	"fmt"
	"strings"
)

// Errors that callers may want to tell apart, with errors.Is.
var (
	// ErrNone: the directory has no checkpoint.
	ErrNone = errors.New("checkpoint: there is none")
	// ErrDamaged: a checkpoint is not as it was written, or parts of it are missing or cannot be
	// read.
	ErrDamaged = errors.New("checkpoint: damaged")
	// ErrVersion: a checkpoint has a format that this program does not know.
	ErrVersion = errors.New("checkpoint: unknown version")
	// ErrLocked: another job writes to the directory.
	ErrLocked = errors.New("checkpoint: another job writes here")
	// ErrNotLocked: Next, Commit or Sweep was called without Lock.
	ErrNotLocked = errors.New("checkpoint: the directory is not locked by this Store")
)

// maxDamage is how many pages and files a DamageError names. More help nobody, and a disk that is
// gone would have millions.
const maxDamage = 16

// Damage is a page or a file of a checkpoint that is not as it was written.
type Damage struct {
	File string `json:"file"` // its name in the directory
	What string `json:"what"`
	// Memory is the name of the memory that the page is of. "": it is the file as a whole, and what
	// follows is 0.
	Memory string `json:"memory,omitempty"`
	Page   uint64 `json:"page"` // in that memory, from 0
	// The elements that lie on the page, in whole or in part. Elements is false if there are none,
	// because they have no bytes.
	Elements bool   `json:"elements"`
	First    uint64 `json:"first_element"`
	Last     uint64 `json:"last_element"`

	cause error // nil, or why the file could not be read
}

// String is one line, of printable text.
func (d Damage) String() string {
	if d.Memory == "" {
		return d.What // names the file
	}
	elements := ""
	if d.Elements {
		elements = fmt.Sprintf(", elements %d to %d", d.First, d.Last)
	}
	return fmt.Sprintf("page %d of %q%s, in %s: %s", d.Page, d.Memory, elements, d.File, d.What)
}

// DamageError is what is damaged of a checkpoint. It wraps ErrDamaged, and why files could not be
// read.
type DamageError struct {
	Manifest string   // its path
	List     []Damage // of Total, the first 16
	Total    uint64
	// Older is the path of the newest older manifest that needs none of the damaged files, or "".
	// Its pages were not checked.
	Older string
}

// Error is one line.
func (e *DamageError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "checkpoint: %s is damaged: ", e.Manifest)
	for i, d := range e.List {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(d.String())
	}
	if more := e.Total - uint64(len(e.List)); more > 0 {
		fmt.Fprintf(&b, "; and %d more", more)
	}
	b.WriteString(instead(e.Older))
	return b.String()
}

// Unwrap is for errors.Is and errors.As.
func (e *DamageError) Unwrap() []error {
	all := []error{ErrDamaged}
	for _, d := range e.List {
		if d.cause != nil {
			all = append(all, d.cause)
		}
	}
	return all
}

// add adds damage, as far as there is room.
func (e *DamageError) add(list ...Damage) {
	e.Total += uint64(len(list))
	e.List = append(e.List, list[:min(len(list), maxDamage-len(e.List))]...)
}

// addAll adds what another error says.
func (e *DamageError) addAll(other *DamageError) {
	rest := other.Total - uint64(len(other.List))
	e.add(other.List...)
	e.Total += rest
}

// instead says what to do without a checkpoint. older is the path of another, or "".
func instead(older string) string {
	if older == "" {
		return "; the directory has no older checkpoint that could be tried: if there is a copy, get the files from there"
	}
	return "; what could be tried is " + older
}
