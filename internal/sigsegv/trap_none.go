//go:build !cgo || !linux || !(amd64 || arm64)

package sigsegv

// Trap is nothing in this build; see ErrNoCgo.
type Trap struct{}

// Available reports whether this build has the trap: ErrNoCgo.
func Available() error { return ErrNoCgo }

// Open returns ErrNoCgo.
func Open(Config) (*Trap, error) { return nil, ErrNoCgo }

// Handover is never called, as there is no Trap.
func (t *Trap) Handover() int { return -1 }

// HandedOver is never called, as there is no Trap.
func (t *Trap) HandedOver() {}

// Register is never called, as there is no Trap.
func (t *Trap) Register(addr, bytes uintptr, readOnly bool) error { return ErrNoCgo }

// Unregister is never called, as there is no Trap.
func (t *Trap) Unregister(addr, bytes uintptr) error { return ErrNoCgo }

// Map is never called, as there is no Trap.
func (t *Trap) Map(addr, bytes uintptr) {}

// Retire is never called, as there is no Trap.
func (t *Trap) Retire() {}

// Close is never called, as there is no Trap.
func (t *Trap) Close() error { return ErrNoCgo }

// Evictions is never called, as there is no Trap.
func (t *Trap) Evictions() uint64 { return 0 }
