package attach

import "fmt"

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
	usageHeadBytes  = 2*heldBytes + 8
	allocationBytes = 2 + 2 + 8 + heldBytes // without its names
)

// They fit into a reply.
var _ = [MaxPayload - usageHeadBytes - MaxAllocations*(allocationBytes+MaxName)]struct{}{}

// Add adds an allocation to the rest.
func (u *Usage) Add(x *AllocationUsage) {
	u.More++
	u.Rest.add(x.Held)
}

func appendHeld(b []byte, h Held) []byte {
	for _, pages := range []uint64{h.Pages, h.Owned, h.Copies, h.Spilled} {
		b = le.AppendUint64(b, pages)
	}
	return b
}

func (r *body) held() Held {
	return Held{Pages: r.u64(), Owned: r.u64(), Copies: r.u64(), Spilled: r.u64()}
}

// AppendUsage appends the payload that answers OpUsage. It panics on more than MaxAllocations and
// on names that are too long.
func AppendUsage(b []byte, u *Usage) []byte {
	if len(u.Largest) > MaxAllocations {
		panic(fmt.Sprintf("attach: %d allocations, at most %d are allowed", len(u.Largest), MaxAllocations))
	}
	b = appendHeld(appendHeld(le.AppendUint64(b, u.More), u.Rest), u.Foreign)
	for i := range u.Largest {
		x := &u.Largest[i]
		b = appendBytes(b, x.Job, MaxName-len(x.Name))
		b = appendBytes(b, x.Name, MaxName)
		b = appendHeld(le.AppendUint64(b, x.First), x.Held)
	}
	return b
}

// DecodeUsage reads what AppendUsage wrote.
func DecodeUsage(b []byte) (Usage, error) {
	r := body{b: b}
	u := Usage{More: r.u64(), Rest: r.held(), Foreign: r.held()}
	err := r.list("allocations", MaxAllocations, func() {
		x := AllocationUsage{Job: r.text(MaxName)}
		x.Name = r.text(MaxName - len(x.Job))
		x.First, x.Held = r.u64(), r.held()
		u.Largest = append(u.Largest, x)
	})
	if err != nil {
		return Usage{}, err
	}
	return u, nil
}
