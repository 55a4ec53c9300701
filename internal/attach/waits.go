package attach

import (
	"fmt"
	"time"
)

// WaitKind is what threads of programs wait for.
type WaitKind uint8

const (
	WaitMemory    WaitKind = iota // pages of an allocation
	WaitLock                      // a lock
	WaitBarrier                   // a barrier
	WaitReduction                 // a barrier to which each rank brings a value

	WaitKinds
)

var waitKindNames = [WaitKinds]string{WaitMemory: "memory", WaitLock: "lock", WaitBarrier: "barrier", WaitReduction: "reduction"}

func (k WaitKind) String() string {
	if k < WaitKinds {
		return waitKindNames[k]
	}
	return fmt.Sprintf("WaitKind(%d)", uint8(k))
}

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

// Awaited is an allocation, lock, barrier or reduction that threads of a node have waited for.
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
	MaxAwaited = 45
	// MaxCalled bounds a name that a daemon keeps for a lock or barrier, in bytes: with the name of
	// a job before it, it is no longer than MaxName.
	MaxCalled = MaxName - MaxJob - 2
	// MaxNames bounds the locks and barriers whose names a daemon keeps for one program.
	MaxNames = 1 << 12

	costBytes      = 2 * 8
	waitsHeadBytes = int(WaitKinds)*costBytes + 8
	awaitedBytes   = 1 + 2 + 2 + costBytes + 8 // without its names
)

// They fit into a reply.
var _ = [MaxPayload - waitsHeadBytes - int(WaitKinds)*MaxAwaited*(awaitedBytes+MaxJob+MaxCalled)]struct{}{}

func appendCost(b []byte, c Cost) []byte {
	return le.AppendUint64(le.AppendUint64(b, c.Count), uint64(c.Time))
}

func (r *body) cost() Cost { return Cost{r.u64(), time.Duration(r.u64())} }

func (r *body) costs() (c [WaitKinds]Cost) {
	for kind := range c {
		c[kind] = r.cost()
	}
	return c
}

// AppendWaits appends the payload that answers OpWaits. It panics on a list that is too long, on a
// job's name that is too long, and on an unknown kind.
func AppendWaits(b []byte, w *Waits) []byte {
	if len(w.List) > int(WaitKinds)*MaxAwaited {
		panic(fmt.Sprintf("attach: %d things that are waited for, at most %d are allowed", len(w.List), int(WaitKinds)*MaxAwaited))
	}
	for _, c := range w.All {
		b = appendCost(b, c)
	}
	b = le.AppendUint64(b, w.Taken)
	for i := range w.List {
		x := &w.List[i]
		if x.Kind >= WaitKinds {
			panic(fmt.Sprintf("attach: unknown %v", x.Kind))
		}
		b = append(b, byte(x.Kind))
		b = appendBytes(b, x.Job, MaxJob)
		b = appendBytes(b, clip(x.Name, MaxCalled), MaxCalled)
		b = le.AppendUint64(appendCost(b, x.Cost), x.Taken)
	}
	return b
}

// DecodeWaits reads what AppendWaits wrote.
func DecodeWaits(b []byte) (Waits, error) {
	r := body{b: b}
	w := Waits{All: r.costs(), Taken: r.u64()}
	err := r.list("things that are waited for", int(WaitKinds)*MaxAwaited, func() {
		x := Awaited{Kind: WaitKind(r.u8()), Job: r.text(MaxJob), Name: r.text(MaxCalled), Cost: r.cost(), Taken: r.u64()}
		r.failed = r.failed || x.Kind >= WaitKinds
		w.List = append(w.List, x)
	})
	if err != nil {
		return Waits{}, err
	}
	return w, nil
}
