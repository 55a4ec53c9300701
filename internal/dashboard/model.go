package dashboard

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"dsmd/internal/faultlog"
	"dsmd/internal/runstats"
)

// maxGroups bounds the rows of everything that is shown by rank, and by node: in a larger job a row
// is several neighbours.
const maxGroups = 64

// Job is what is known of a job before it says anything.
type Job struct {
	Title        string // the command, for people
	Nodes, Ranks int    // how many there are
	Began        time.Time
	// Sharing, if not nil, is asked for the sharing report whenever a State is made. Its answer is
	// the State's Sharing. It may be called from any goroutine.
	Sharing func() any
}

// Model adds up the pieces of a job. Its methods may be called from any goroutine; none waits for
// anything but for others of them.
type Model struct {
	job   Job
	ranks groups
	nodes groups

	mu       sync.Mutex
	ended    time.Time // zero: it runs; guarded by mu, as all below
	last     time.Time // when the last piece came
	faults   uint64
	lost     uint64          // what happened faster than it could be read or passed on
	gaps     []faultlog.Gaps // by node
	presence []Presence      // by node
	waits    []kinds
	faultsBy []uint64 // by group of ranks
	timeline timeline
	memory   memory
	costs    costs
	sent     matrix // who has a page from whom
	taken    matrix // who took a page that was wanted again
}

// kinds are times in nanoseconds by what was waited for, in the order of kindOrder.
type kinds [5]float64

var kindOrder = [len(kinds{})]runstats.Kind{runstats.Memory, runstats.Lock, runstats.Barrier, runstats.Reduction, runstats.Prefetch}

func indexOf(k runstats.Kind) (int, bool) {
	i := slices.Index(kindOrder[:], k)
	return max(i, 0), i >= 0
}

// groups divide numbers from 0 on into at most maxGroups groups of neighbours.
type groups struct{ total, per int }

func newGroups(total int) groups {
	total = max(total, 1)
	return groups{total, (total + maxGroups - 1) / maxGroups}
}

func (g groups) count() int         { return (g.total + g.per - 1) / g.per }
func (g groups) has(n int) bool     { return n >= 0 && n < g.total }
func (g groups) of(n int) int       { return n / g.per }
func (g groups) size(group int) int { return min(g.per, g.total-group*g.per) }

// label names a group, as "3" or "48–63".
func (g groups) label(group int) string {
	first := group * g.per
	if last := first + g.size(group) - 1; last > first {
		return fmt.Sprintf("%d–%d", first, last)
	}
	return fmt.Sprint(first)
}

// New makes a model of a job that has said nothing yet.
func New(job Job) *Model {
	m := &Model{job: job, ranks: newGroups(job.Ranks), nodes: newGroups(job.Nodes), last: job.Began}
	m.waits, m.faultsBy = make([]kinds, m.ranks.count()), make([]uint64, m.ranks.count())
	m.timeline = newTimeline(m.ranks.count())
	m.gaps, m.presence = make([]faultlog.Gaps, m.nodes.total), make([]Presence, m.nodes.total)
	m.costs, m.memory.live.Most = costs{}, maxLive
	m.sent, m.taken = newMatrix(m.nodes), newMatrix(m.nodes)
	return m
}

// Add takes a piece that has come at a time. A log that cannot be read counts as nothing.
func (m *Model) Add(p runstats.Piece, at time.Time) {
	b, _ := faultlog.Decode(p.Log)
	m.AddLog(p, b, at)
}

// AddLog is Add of a piece whose log is b. What names a rank or node that the job does not have
// counts as nothing.
func (m *Model) AddLog(p runstats.Piece, b faultlog.Batch, at time.Time) {
	if !m.ranks.has(p.Rank) || !m.nodes.has(p.Node) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = at
	m.lost += m.gaps[p.Node].Add(&b) + p.Lost
	for _, a := range p.Memory {
		m.memory.add(a)
	}
	for _, s := range p.Sites {
		m.memory.site(s)
	}
	group := m.ranks.of(p.Rank)
	for i := range b.Faults {
		m.fault(&p, group, &b.Faults[i])
	}
	for i := range p.Calls {
		if c := &p.Calls[i]; c.Kind != runstats.Memory {
			m.wait(group, c.Kind, c.Began, c.Waited)
			m.costs.add(c.Kind, c.Name, c.Waited, c.At)
		}
	}
}

func (m *Model) fault(p *runstats.Piece, group int, f *faultlog.Fault) {
	m.faults++
	m.faultsBy[group]++
	m.wait(group, runstats.Memory, f.Began, f.Waited)
	m.costs.add(runstats.Memory, m.memory.fault(group, f), f.Waited, "")
	node := uint32(p.Node)
	m.sent.add(node, f.From)
	m.taken.add(node, f.Taker)
}

// wait adds a wait to what is known by rank. Its time is by the clock of the rank's machine, which
// may be another than ours: the end of a wait is never after the piece that has it.
func (m *Model) wait(group int, kind runstats.Kind, began int64, waited time.Duration) {
	k, known := indexOf(kind)
	if !known || waited <= 0 {
		return
	}
	m.waits[group][k] += float64(waited)
	now := m.last.Sub(m.job.Began)
	end := min(time.Duration(began-m.job.Began.UnixNano())+waited, now)
	m.timeline.add(group, k, end-waited, end)
}

// Presence is what is known of a node's daemon.
type Presence string

// The presences.
const (
	Here        Presence = "" // as far as is known
	Unreachable Presence = "unreachable"
	Gone        Presence = "gone" // its process has ended
)

// Is takes note of the presence of a node. One that the job does not have counts as nothing.
func (m *Model) Is(node int, p Presence) {
	if !m.nodes.has(node) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.presence[node] = p
}

// End says when the job has ended. Later pieces still count.
func (m *Model) End(at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = at
}
