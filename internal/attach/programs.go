package attach

import (
	"fmt"
	"time"
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
	MaxAttached = 300
	// MaxProgram bounds a program's name there, in bytes.
	MaxProgram = 64

	programsHeadBytes = 4 + 2*8
	attachedBytes     = 3*4 + 8 + 2 + 2 + int(WaitKinds)*costBytes // without its names
)

// They fit into a reply.
var _ = [MaxPayload - programsHeadBytes - MaxAttached*(attachedBytes+MaxJob+MaxProgram)]struct{}{}

// AppendPrograms appends the payload that answers OpPrograms. It panics on more than MaxAttached
// and on a job's name that is too long.
func AppendPrograms(b []byte, p *Programs) []byte {
	if len(p.Attached) > MaxAttached {
		panic(fmt.Sprintf("attach: %d programs, at most %d are allowed", len(p.Attached), MaxAttached))
	}
	b = le.AppendUint64(le.AppendUint64(le.AppendUint32(b, p.PID), uint64(p.Age)), p.More)
	for i := range p.Attached {
		x := &p.Attached[i]
		b = le.AppendUint32(le.AppendUint32(le.AppendUint32(b, x.PID), x.Rank), x.Size)
		b = le.AppendUint64(b, uint64(x.Age))
		b = appendBytes(b, x.Job, MaxJob)
		b = appendBytes(b, clip(x.Program, MaxProgram), MaxProgram)
		for _, c := range x.Waits {
			b = appendCost(b, c)
		}
	}
	return b
}

// DecodePrograms reads what AppendPrograms wrote.
func DecodePrograms(b []byte) (Programs, error) {
	r := body{b: b}
	p := Programs{PID: r.u32(), Age: time.Duration(r.u64()), More: r.u64()}
	err := r.list("programs", MaxAttached, func() {
		p.Attached = append(p.Attached, Attached{
			PID: r.u32(), Rank: r.u32(), Size: r.u32(), Age: time.Duration(r.u64()), Job: r.text(MaxJob), Program: r.text(MaxProgram),
			Waits: r.costs(),
		})
	})
	if err != nil {
		return Programs{}, err
	}
	return p, nil
}
