package attach

import (
	"fmt"
	"slices"
	"time"

	"dsmd/internal/wire"
)

// WaitKind is what threads of programs wait for.
type WaitKind uint8

const (
	WaitMemory    WaitKind = iota // pages of an allocation
	WaitLock                      // a lock
	WaitBarrier                   // a barrier
	WaitReduction                 // a barrier to which each rank brings a value
	WaitCommit                    // replicated memory to be where it survives losses

	WaitKinds
)

var waitKindNames = [WaitKinds]string{WaitMemory: "memory", WaitLock: "lock", WaitBarrier: "barrier", WaitReduction: "reduction", WaitCommit: "commit"}

func (k WaitKind) String() string { return nameOf(k, "WaitKind", waitKindNames[:]) }

// Cost is what waiting has cost.
type Cost struct {
	Count uint64        // waits
	Time  time.Duration // summed over threads, and for those that wait still, until now
}

// Add adds what other waits have cost.
func (c *Cost) Add(x Cost) {
	c.Count += x.Count
	c.Time += x.Time
}

// Awaited is an allocation, lock, barrier, reduction or commit that threads of a node have waited
// for.
type Awaited struct {
	Kind WaitKind
	// Job is "" where the programs name none, and where the name means the same in every job.
	Job  string // at most MaxJob bytes
	Name string // cut to MaxCalled
	Cost
	// Taken is how often writers on other nodes have taken pages of an allocation that had been
	// gained by programs of this node which had not synchronised since.
	Taken uint64
}

// Waits are what threads of a node have waited for since its start.
type Waits struct {
	All   [WaitKinds]Cost // with what List leaves out
	Taken uint64          // pages, of all memory
	List  []Awaited       // of each kind those that cost most, at most MaxAwaited
}

const (
	// MaxAwaited bounds what one reply lists of each kind.
	MaxAwaited = 36
	// MaxCalled bounds a name that a daemon keeps for a lock or barrier, in bytes: with the name of
	// a job before it, it is no longer than MaxName.
	MaxCalled = MaxName - MaxJob - 2
	// MaxNames bounds the locks and barriers whose names a daemon keeps for one program.
	MaxNames = 1 << 12

	costBytes      = 2 * 8
	waitsHeadBytes = int(WaitKinds)*costBytes + 8 + 2
	awaitedBytes   = 1 + 2 + 2 + costBytes + 8 // without its names
)

// They fit into a reply.
var _ = [MaxPayload - waitsHeadBytes - int(WaitKinds)*MaxAwaited*(awaitedBytes+MaxJob+MaxCalled)]struct{}{}

func (x *Awaited) fields() []any {
	return []any{&x.Kind, wire.Text(&x.Job, MaxJob), wire.Cut(&x.Name, MaxCalled), &x.Cost, &x.Taken}
}

func (w *Waits) fields() []any {
	return []any{&w.All, &w.Taken, wire.List(&w.List, int(WaitKinds)*MaxAwaited, (*Awaited).fields)}
}

// AppendWaits appends the payload that answers OpWaits. It panics on a list that is too long, and
// on a job's name that is too long.
func AppendWaits(b []byte, w *Waits) []byte { return wire.Append(b, w.fields()...) }

// DecodeWaits reads what AppendWaits wrote.
func DecodeWaits(b []byte) (Waits, error) {
	w, err := decoded(b, "waits", (*Waits).fields)
	if err == nil && slices.ContainsFunc(w.List, func(x Awaited) bool { return x.Kind >= WaitKinds }) {
		err = fmt.Errorf("%w: waits for an unknown kind", ErrMalformed)
	}
	return w, err
}
