package nemesis

import (
	"slices"
	"time"

	"dsmd/internal/systemtest/netns"
)

// host is a machine with its daemon and programs.
type host struct {
	*netns.Machine
	rank     int
	stays    int // how often it was made part of the cluster
	standing standing
	daemon   *process // nil: there is none
	heard    int      // bytes of its log
	epoch    int      // of the last view that it goes on with
	// handed is the last epoch in which its daemon has handed over all that others keep since then.
	handed int
	since  int // the first such epoch of this stay
	// programs: in the order of workloads; nil: it was killed, has ended because of a loss, or was
	// not started yet.
	programs []*resident
	// drain: dsmd drain, while the host is leaving; nil: its programs have not ended yet.
	drain   *process
	drained int64  // when that was started
	slowly  bool   // it is to leave while everybody gets little
	stray   *stray // a daemon that was started plainly; nil: there is none
	harmed  map[string]bool
	asked   time.Time // when it was told to leave, or began to come
}

// standing is what a host is to the cluster.
type standing int

const (
	belongs standing = iota
	leaving          // a member, which is told to leave; no program is started there any more
	away             // it was lost, or has left
	coming           // its daemon asks to be let in
)

// resident is a program of a host, and what it has done so far.
type resident struct {
	*process
	workload *Workload
	host     *host
	history  *history
	begun    bool
	told     bool  // to leave
	start    int64 // on the clock of now
}

// hostNames are what machines are called.
var hostNames = []string{"ann", "bob", "eve", "joe", "kim", "lee", "max"}

// of are the hosts of some standings.
func (c *campaign) of(standings ...standing) []*host {
	return slices.DeleteFunc(slices.Clone(c.hosts), func(h *host) bool { return !slices.Contains(standings, h.standing) })
}

// members are the hosts of the cluster.
func (c *campaign) members() []*host { return c.of(belongs, leaving) }

// staying are those of which none is told to leave.
func (c *campaign) staying() []*host { return c.of(belongs) }

// present are all programs that are there, on members.
func (c *campaign) present() (list []*resident) {
	for _, h := range c.members() {
		for _, p := range h.programs {
			if p != nil {
				list = append(list, p)
			}
		}
	}
	return list
}
