// Package sharing finds out why pages travel between the nodes of a run: whether nodes store to the
// same words of a page, to different ones, or read what one of them writes, in which elements, and
// at which lines. It is for pages what `perf c2c` is for cache lines. A Collector takes what ranks
// pass on while they run, and makes a Sharing of it, which has a text for people.
package sharing

import "time"

// Kind is why a page travels.
type Kind string

// The kinds.
const (
	// False: nodes use different words of the page.
	False Kind = "false sharing"
	// True: several nodes store to the same words.
	True Kind = "true sharing"
	// Communication: one node reads what another stores.
	Communication Kind = "communication"
)

// Sharing is why the pages of a run travel.
type Sharing struct {
	// Groups are pages with the same reason, those that cost most first.
	Groups []Group `json:"groups"`
	// Faults and Waited are those of all pages, also of those that do not travel.
	Faults uint64        `json:"faults"`
	Waited time.Duration `json:"waited_ns"`
	// Forgotten are pages that cost so little that the collector has not kept them.
	Forgotten uint64 `json:"forgotten"`
	// Lost are faults and departures that nobody has read in time.
	Lost uint64 `json:"lost"`
}

// Group is pages of one allocation that travel for the same reason.
type Group struct {
	Kind Kind `json:"kind"`
	// Memory is the name of the allocation; "" if it is not known. Type is that of an element, as
	// Go writes it.
	Memory string `json:"memory"`
	Type   string `json:"type,omitempty"`
	Pages  int    `json:"pages"`
	// Example is the page that costs most, counted from the allocation's first. Parties are its.
	Example uint64  `json:"example"`
	Parties []Party `json:"parties"`
	// Guards are locks that guard different words of the page, if that is the reason.
	Guards []Guard `json:"guards,omitempty"`

	// Costs are what all of the pages cost, by rank.
	Costs  []Cost        `json:"costs"`
	Faults uint64        `json:"faults"`
	Waited time.Duration `json:"waited_ns"`
	Advice string        `json:"advice"`
}

// Party is a node that uses a page.
type Party struct {
	Node  int   `json:"node"`
	Ranks []int `json:"ranks"` // of the node
	// Writes and Reads are elements, as counts[0..7]; "" if it does not, or nobody knows which.
	// Of reads, only those are known that have fetched the page.
	Writes string `json:"writes,omitempty"`
	Reads  string `json:"reads,omitempty"`
	// WriteAt and ReadAt are lines, as file.go:12, those that fault most first.
	WriteAt []string `json:"write_at,omitempty"`
	ReadAt  []string `json:"read_at,omitempty"`
	// Stores are faults that needed the page for writing, Loads those for reading.
	Stores uint64 `json:"stores"`
	Loads  uint64 `json:"loads"`
}

// Guard is a lock, and what ranks have used of a page when they had taken it last.
type Guard struct {
	Lock string `json:"lock"`
	Uses string `json:"uses"` // elements
}

// Cost is what pages have cost a rank.
type Cost struct {
	Rank    int           `json:"rank"` // -1: others
	Read    uint64        `json:"read"` // faults
	Write   uint64        `json:"write"`
	Upgrade uint64        `json:"upgrade"`
	Waited  time.Duration `json:"waited_ns"` // in all of them
}
