package attach

import (
	"fmt"

	"dsmd/internal/wire"
)

// Held is how much of some memory is at a node, in pages.
type Held struct {
	Pages   uint64 // that the memory has
	Owned   uint64 // of them, those of which this node is the owner, or may be
	Copies  uint64 // and those that it has only for reading, and others have too
	Spilled uint64 // of Owned and Copies, those that are not in memory, but in a file
}

// add adds what is held of other memory.
func (h *Held) add(x Held) {
	h.Pages += x.Pages
	h.Owned += x.Owned
	h.Copies += x.Copies
	h.Spilled += x.Spilled
}

// AllocationUsage is how much of an allocation is at a node. Two allocations may have the same name
// in different jobs; no two have the same first page.
type AllocationUsage struct {
	Job, Name string // together at most MaxName bytes
	First     uint64 // page number in the region
	Held
}

// Usage is how much of each allocation is at a node.
type Usage struct {
	Largest []AllocationUsage // at most MaxAllocations
	More    uint64            // allocations besides
	Rest    Held              // of those, in all
	// Foreign is what the node has of memory that no program there has asked for by its name. Its
	// Pages are those that are there.
	Foreign Held
}

// MaxAllocations bounds the allocations that one reply lists.
const MaxAllocations = 160

const (
	heldBytes       = 4 * 8
	usageHeadBytes  = 2*heldBytes + 8 + 2
	allocationBytes = 2 + 2 + 8 + heldBytes // without its names
)

// They fit into a reply.
var _ = [MaxPayload - usageHeadBytes - MaxAllocations*(allocationBytes+MaxName)]struct{}{}

// Add adds an allocation to the rest.
func (u *Usage) Add(x *AllocationUsage) {
	u.More++
	u.Rest.add(x.Held)
}

func (x *AllocationUsage) fields() []any {
	return []any{wire.Text(&x.Job, MaxName), wire.Text(&x.Name, MaxName), &x.First, &x.Held}
}

func (u *Usage) fields() []any {
	return []any{&u.More, &u.Rest, &u.Foreign, wire.List(&u.Largest, MaxAllocations, (*AllocationUsage).fields)}
}

// AppendUsage appends the payload that answers OpUsage. It panics on more than MaxAllocations and
// on names that are too long.
func AppendUsage(b []byte, u *Usage) []byte { return wire.Append(b, u.fields()...) }

// DecodeUsage reads what AppendUsage wrote.
func DecodeUsage(b []byte) (Usage, error) {
	u, err := decoded(b, "usage", (*Usage).fields)
	for i := range u.Largest {
		if x := &u.Largest[i]; err == nil && len(x.Job)+len(x.Name) > MaxName {
			err = fmt.Errorf("%w: an allocation with names of %d and %d bytes", ErrMalformed, len(x.Job), len(x.Name))
		}
	}
	return u, err
}
