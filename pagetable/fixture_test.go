package pagetable_test

import (
	"testing"

	"dsmd/pagetable"
	"dsmd/pagetable/pagetabletest"
)

// RegionPages is the size of the region that the suite asks its fixtures for.
const RegionPages = 64

// Fixture is a table under test and the way to get programs for it.
type Fixture struct {
	// Table has RegionPages pages, all absent, and no program. The suite closes it.
	Table pagetable.Table
	// Start starts a program under a number that was not used before, and attaches it to Table.
	Start func(t testing.TB, proc pagetable.ProcID) Program
}

// ErrLost is how an access ends that met a page which is lost, for Fake and for programs alike.
var ErrLost = pagetabletest.ErrLost

// Program is a program attached to the table: something that loads and stores. Each access is
// made by a thread of its own, so any number can wait at a time. Methods don't wait for the access.
type Program interface {
	// Load loads the 8-byte word at byte offset off of page p.
	Load(p pagetable.Page, off int) *Access
	// Store stores v there.
	Store(p pagetable.Page, off int, v uint64) *Access
	// Restart makes every access that waits start over, as a signal does: each faults once more.
	Restart()
	// Remap maps the whole region anew, as a program does with memory that was freed and is given
	// to it again. It returns when that is done.
	Remap()
	// Lock locks all memory of the program into RAM (mlockall), what it has mapped and what it will
	// map. Where the kernel's own faults trap, the access ends when all pages of the region have
	// come; otherwise it ends at once.
	Lock() *Access
	// Kill ends the program at once, also its accesses that wait. It returns when the program is
	// gone.
	Kill()
}

// Access is a load or store under way.
type Access struct{ done chan result }

type result struct {
	value uint64
	err   error
}

// NewAccess makes an access that the fixture finishes later.
func NewAccess() *Access { return &Access{done: make(chan result, 1)} }

// Await waits for the end of the access. It does not poll the table: somebody else must.
func (a *Access) Await() (uint64, error) {
	r := <-a.done
	return r.value, r.err
}

// Finish ends the access: with the value loaded, or, for an access that could not be made, with an
// error. Called once, by any goroutine.
func (a *Access) Finish(value uint64, err error) { a.done <- result{value, err} }
