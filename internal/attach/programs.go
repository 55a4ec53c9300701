package attach

import (
	"time"

	"dsmd/internal/wire"
)

// Attached is a program that is attached to a daemon.
type Attached struct {
	PID        uint32 // of its process, as the daemon sees it
	Rank, Size uint32
	Age        time.Duration // since it attached
	Job        string        // at most MaxJob bytes
	Program    string        // the name of its executable; cut to MaxProgram
	// Waits are how long its threads have waited since it attached, by what for.
	Waits [WaitKinds]Cost
}

// Programs are the programs of a node.
type Programs struct {
	PID      uint32        // the daemon's, as it sees itself
	Age      time.Duration // since the daemon began to serve
	Attached []Attached    // by age, the oldest first; at most MaxAttached
	More     uint64        // that are attached besides
}

const (
	// MaxAttached bounds the programs that one reply lists.
	MaxAttached = 280
	// MaxProgram bounds a program's name there, in bytes.
	MaxProgram = 64

	programsHeadBytes = 4 + 2*8 + 2
	attachedBytes     = 3*4 + 8 + 2 + 2 + int(WaitKinds)*costBytes // without its names
)

// They fit into a reply.
var _ = [MaxPayload - programsHeadBytes - MaxAttached*(attachedBytes+MaxJob+MaxProgram)]struct{}{}

func (x *Attached) fields() []any {
	return []any{&x.PID, &x.Rank, &x.Size, &x.Age, wire.Text(&x.Job, MaxJob), wire.Cut(&x.Program, MaxProgram), &x.Waits}
}

func (p *Programs) fields() []any {
	return []any{&p.PID, &p.Age, &p.More, wire.List(&p.Attached, MaxAttached, (*Attached).fields)}
}

// AppendPrograms appends the payload that answers OpPrograms. It panics on more than MaxAttached
// and on a job's name that is too long.
func AppendPrograms(b []byte, p *Programs) []byte { return wire.Append(b, p.fields()...) }

// DecodePrograms reads what AppendPrograms wrote.
func DecodePrograms(b []byte) (Programs, error) { return decoded(b, "programs", (*Programs).fields) }
