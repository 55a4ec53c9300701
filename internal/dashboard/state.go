package dashboard

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"time"

	"dsmd/internal/faultlog"
	"dsmd/internal/runstats"
)

// format is the first member of a State, by which a file of one is known.
const format = "dsmd dashboard 1"

// maxFileBytes bounds a file with a State. None that Write makes is larger.
const maxFileBytes = 64 << 20

// State is what is shown. Times are in seconds. What is by rank is by group of ranks, and what is
// by node by group of nodes: a group is one, unless the job has more than 64.
type State struct {
	Format  string  `json:"format"`
	Title   string  `json:"title"`
	Running bool    `json:"running"`
	Began   int64   `json:"began"`   // in milliseconds since 1970
	Seconds float64 `json:"seconds"` // since it began, until now or the end
	Nodes   int     `json:"nodes"`
	Ranks   int     `json:"ranks"`
	Faults  uint64  `json:"faults"`
	Lost    uint64  `json:"lost"` // entries of the log that were not read in time

	// Away are the nodes of which nothing new is known.
	Away []Away `json:"away,omitempty"`

	ByRank []ByRank `json:"by_rank"`
	// BinSeconds is the time between two values of Shares.
	BinSeconds float64  `json:"bin_seconds"`
	Costs      []Cost   `json:"costs"`  // those that cost most
	Memory     []Memory `json:"memory"` // with those first for which most was waited
	ByNode     ByNode   `json:"by_node"`
	// Sharing is why pages travel, a Sharing of internal/runstats/sharing; nil: nobody has found
	// out.
	Sharing any `json:"sharing,omitempty"`
}

// Away is a node that is not here.
type Away struct {
	Node int      `json:"node"`
	Is   Presence `json:"is"`
}

// ByRank is where a group of ranks has waited.
type ByRank struct {
	Ranks  string `json:"ranks"` // "3", or "48–63"
	Count  int    `json:"count"` // of ranks
	Faults uint64 `json:"faults"`
	// Waited is the sum of all waits of all threads, by what they waited for.
	Waited map[runstats.Kind]float64 `json:"waited"`
	// Shares are how many threads of a rank have waited at a time, on average, in bins of time from
	// the beginning on. There is no value after the last wait, and none at all if there was no
	// wait.
	Shares map[runstats.Kind][]float64 `json:"shares"`
}

// Cost is what was waited for one thing.
type Cost struct {
	Kind    runstats.Kind `json:"kind"`
	Name    string        `json:"name"`
	Count   uint64        `json:"count"` // waits
	Seconds float64       `json:"seconds"`
	Longest float64       `json:"longest"`
	At      string        `json:"at,omitempty"` // the line of the longest wait
}

// Memory is an allocation, and the faults at its pages.
type Memory struct {
	Name      string  `json:"name"`
	Type      string  `json:"type,omitempty"` // of an element
	ElemBytes uint64  `json:"elem_bytes"`     // 0: not known
	PageBytes uint64  `json:"page_bytes"`
	Pages     uint64  `json:"pages"`
	CellPages uint64  `json:"cell_pages"` // pages of a cell
	Read      uint64  `json:"read"`       // faults by what they needed
	Write     uint64  `json:"write"`      // …
	Upgrade   uint64  `json:"upgrade"`    // …
	Seconds   float64 `json:"seconds"`    // waited for its pages
	Cells     []Cell  `json:"cells"`      // those with faults, in order
	Sites     []Site  `json:"sites,omitempty"`
}

// Cell is the faults at some neighbouring pages.
type Cell struct {
	At      uint64  `json:"at"` // its number in the allocation, from 0
	Read    uint64  `json:"read"`
	Write   uint64  `json:"write"`
	Upgrade uint64  `json:"upgrade"`
	Seconds float64 `json:"seconds"`
	// Ranks are pairs: a place in State.ByRank, and how many of the faults were there.
	Ranks [][2]uint64 `json:"ranks"`
}

// Site is a line of the program whose accesses to an allocation fault.
type Site struct {
	At    string `json:"at"`
	Write bool   `json:"write"`
	Count uint64 `json:"count"` // samples
}

// ByNode are the pages that went between nodes. The first index is the group of nodes that had to
// wait for them.
type ByNode struct {
	Nodes []string   `json:"nodes"` // labels of the groups
	Sent  [][]uint64 `json:"sent"`  // by the node that sent the page, or the right to write it
	// Taken is by the node that had taken the page, or the right to write it, before.
	Taken [][]uint64 `json:"taken"`
}

// State is what the model knows at a time.
func (m *Model) State(now time.Time) State {
	s := m.state(now)
	if m.job.Sharing != nil {
		s.Sharing = m.job.Sharing()
	}
	return s
}

func (m *Model) state(now time.Time) State {
	m.mu.Lock()
	defer m.mu.Unlock()
	running := m.ended.IsZero()
	if !running {
		now = m.ended
	}
	elapsed := max(now.Sub(m.job.Began), 0)
	s := State{
		Format: format, Title: m.job.Title, Running: running, Began: m.job.Began.UnixMilli(), Seconds: elapsed.Seconds(),
		Nodes: m.nodes.total, Ranks: m.ranks.total, Faults: m.faults, Lost: m.lost,
		BinSeconds: m.timeline.width.Seconds(), Costs: []Cost{}, Memory: []Memory{},
		ByNode: ByNode{Sent: clone(m.sent.counts), Taken: clone(m.taken.counts)},
	}
	for node, p := range m.presence {
		if p != Here {
			s.Away = append(s.Away, Away{node, p})
		}
	}
	for g := range m.nodes.count() {
		s.ByNode.Nodes = append(s.ByNode.Nodes, m.nodes.label(g))
	}
	for g := range m.ranks.count() {
		s.ByRank = append(s.ByRank, m.byRank(g, elapsed))
	}
	sorted := m.costs.sorted()
	for _, key := range sorted[:min(len(sorted), mostCostly)] {
		c := m.costs[key]
		s.Costs = append(s.Costs, Cost{key.kind, key.name, c.count, c.time.Seconds(), c.longest.Seconds(), c.at})
	}
	for _, a := range slices.SortedStableFunc(slices.Values(m.memory.mapped), func(a, b *allocation) int { return cmp.Compare(b.waited, a.waited) }) {
		s.Memory = append(s.Memory, a.show())
	}
	return s
}

func (m *Model) byRank(group int, elapsed time.Duration) ByRank {
	r := ByRank{
		Ranks: m.ranks.label(group), Count: m.ranks.size(group), Faults: m.faultsBy[group],
		Waited: map[runstats.Kind]float64{}, Shares: map[runstats.Kind][]float64{},
	}
	width := m.timeline.width
	for k, kind := range kindOrder {
		r.Waited[kind] = m.waits[group][k] / float64(time.Second)
		shares := []float64{}
		if m.waits[group][k] == 0 {
			r.Shares[kind] = shares
			continue
		}
		for i, bin := range m.timeline.bins[group] {
			// The last bin has not ended yet.
			passed := min(max(elapsed-time.Duration(i)*width, time.Millisecond), width)
			shares = append(shares, rounded(bin[k]/float64(passed)/float64(r.Count)))
		}
		r.Shares[kind] = shares
	}
	return r
}

func (a *allocation) show() Memory {
	x := Memory{
		Name: a.Name, Type: a.Type, ElemBytes: a.ElemBytes, PageBytes: a.PageBytes, Pages: a.Pages, CellPages: a.pagesPerCell,
		Read: a.faults[faultlog.Read], Write: a.faults[faultlog.Write], Upgrade: a.faults[faultlog.Upgrade],
		Seconds: a.waited.Seconds(), Cells: []Cell{},
	}
	for i := range a.cells {
		c := &a.cells[i]
		if len(c.ranks) == 0 {
			continue
		}
		cell := Cell{uint64(i), c.faults[faultlog.Read], c.faults[faultlog.Write], c.faults[faultlog.Upgrade], rounded(c.waited.Seconds()), nil}
		for _, r := range c.ranks {
			cell.Ranks = append(cell.Ranks, [2]uint64{uint64(r.group), r.count})
		}
		slices.SortFunc(cell.Ranks, func(a, b [2]uint64) int { return cmp.Or(cmp.Compare(b[1], a[1]), cmp.Compare(a[0], b[0])) })
		x.Cells = append(x.Cells, cell)
	}
	sites := slices.SortedFunc(maps.Keys(a.sites), func(p, q siteKey) int {
		return cmp.Or(cmp.Compare(a.sites[q], a.sites[p]), cmp.Compare(p.at, q.at))
	})
	for _, key := range sites[:min(len(sites), mostSites)] {
		x.Sites = append(x.Sites, Site{key.at, key.write, a.sites[key]})
	}
	return x
}

// rounded keeps the text of a number short.
func rounded(x float64) float64 { return math.Round(x*1e6) / 1e6 }

func clone(counts [][]uint64) (copied [][]uint64) {
	for _, row := range counts {
		copied = append(copied, slices.Clone(row))
	}
	return copied
}

// Write puts a state into a file, for Read.
func (s *State) Write(file string) error {
	text, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(file, append(text, '\n'), 0o666)
	}
	if err != nil {
		return fmt.Errorf("dashboard: %w", err)
	}
	return nil
}

// errNoState is wrapped by the refusal of a file that Write has not made.
var errNoState = errors.New("it is no dashboard: dsmd run --dashboard-file writes one")

// Read takes a state from a file that Write has made.
func Read(file string) (s State, err error) {
	f, err := os.Open(file)
	if err != nil {
		return s, fmt.Errorf("dashboard: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	switch {
	case err != nil:
		return s, fmt.Errorf("dashboard: %w", err)
	case len(text) > maxFileBytes:
		return s, fmt.Errorf("dashboard: %s: %w (it has more than %d bytes)", file, errNoState, maxFileBytes)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("dashboard: %s: %w (%w)", file, errNoState, err)
	}
	if s.Format != format {
		return s, fmt.Errorf("dashboard: %s: %w (its format is %q, and should be %q)", file, errNoState, s.Format, format)
	}
	return s, nil
}
