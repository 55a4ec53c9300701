package membership

import (
	"fmt"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
)

// Loss is the end of a node that was part of the complete cluster.
type Loss struct {
	Node  Node
	Left  bool          // it has said that it ends
	Why   string        // if Left: why it ends by itself; "": it was told to
	After time.Duration // for how long it had been silent, about; 0 if Left
}

// Error says it for people.
func (l Loss) Error() string {
	if l.Left && l.Why != "" {
		return fmt.Sprintf("membership: node %d at %s has ended: %s", l.Node.ID, l.Node.Data, l.Why)
	}
	if l.Left {
		return fmt.Sprintf("membership: node %d at %s has left: it was told to end", l.Node.ID, l.Node.Data)
	}
	return fmt.Sprintf("membership: node %d at %s is dead: it has answered nobody for %v", l.Node.ID, l.Node.Data, l.After)
}

// Watch calls tell for each node that is lost, also for those that were lost before, each once,
// from one goroutine. Call Watch once.
func (g *Group) Watch(tell func(Loss)) {
	g.mu.Lock()
	g.watch = tell
	g.mu.Unlock()
	g.signal()
}

// doubtful is a node that is said to be dead, and may object.
//
// A node that was cut off, or had no processor, takes others for dead. When it is back it says so
// to whoever it reaches, and they would give each other up. So who hears that asks the node itself,
// and one that answers is told what is said of it. Then it objects, and is believed.
//
// That is so while the cluster is formed, too: a node that has no processor for a while would else
// end the formation for all that are bound to its plan.
type doubtful struct {
	member  member             // of one that was never met, only the address for data
	address memberlist.Address // of gossip; none: this node has never met it, see doubtUnmet
	since   time.Time          // it was said to be dead, or has answered
	asked   time.Time          // when, last
	asking  bool               // an answer may come
	silent  int                // how often it has not answered since
}

// unmet reports whether this node has never met it.
func (d *doubtful) unmet() bool { return d.address.Addr == "" }

const (
	// objectionTime is how long a node may object at least that is said to be dead: many rounds of
	// gossip. It is asked questions meanwhile, and until it has not answered so many.
	objectionTime = 10 * newsInterval
	questions     = 3
)

// overdue reports whether it must be dead: it has neither objected nor answered.
func (d *doubtful) overdue() bool {
	return time.Since(d.since) >= objectionTime && (d.unmet() || d.silent >= questions)
}

// answered notes whether it has answered a question.
func (d *doubtful) answered(is bool) {
	d.asking = false
	if is {
		d.since, d.silent = time.Now(), 0
	} else {
		d.silent++
	}
}

// askDoubtful asks the nodes that are said to be dead whether they are. What is said of one that
// answers comes to it with an exchange of states, and its objection comes back: what was gossiped
// may be lost, or have been told to others so often that it is told no more.
func (g *Group) askDoubtful() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, d := range g.doubtful {
		if d.unmet() || d.asking || time.Since(d.asked) < probeTimeout {
			continue
		}
		d.asking, d.asked = true, time.Now()
		go func() { // Leave does not wait for it
			is := ping(g.list, d.address)
			g.mu.Lock()
			d.answered(is)
			g.mu.Unlock()
			if is {
				g.exchangeWith(d.address)
			}
		}()
	}
}

// doubted are the addresses of the nodes that are said to be dead, and may be there.
func (g *Group) doubted() (list []memberlist.Address) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, d := range g.doubtful {
		if !d.unmet() {
			list = append(list, d.address)
		}
	}
	return list
}

// doubtUnmet notes the nodes of the table that this node has never met, now that the cluster is
// complete. memberlist never tells the end of a node that it has not told before: who has heard
// nothing of such a node after Config.DeadAfter takes it for lost, and at once if its goodbye was
// heard. One that comes back knows places of nodes that ended long ago, and asks nobody for them.
func (g *Group) doubtUnmet() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.formation.table == nil || g.self.returns {
		return
	}
	for _, n := range g.formation.table.Nodes {
		if g.formation.metAt(n.Data) {
			continue
		}
		g.doubtful[n.name] = &doubtful{member: member{data: n.Data}, since: time.Now().Add(g.cfg.DeadAfter - objectionTime)}
		if why, left := g.ends.hasSaid(n.name); left {
			g.goodbye(n.name, why)
		}
	}
}

// end is what is known of the end of a node. It is counted once and told once, whichever of the
// ways by which it is heard comes first, and also if the node was there again in between.
type end struct {
	said    bool   // the node has said that it leaves
	why     string // and why, see Loss
	counted bool   // among the deaths or the departures
	told    bool   // its loss is in the log, and with Group.lost
}

// ends are what is known of nodes' ends, by name, of maxEnds at most. Guarded by Group.mu.
type ends map[string]*end

// of is what is known of a node's end from now on.
func (all ends) of(name string) *end {
	e := all[name]
	if e == nil {
		if len(all) >= maxEnds {
			for other := range all {
				delete(all, other)
				break
			}
		}
		e = new(end)
		all[name] = e
	}
	return e
}

// hasSaid reports whether a node has said that it leaves, and why.
func (all ends) hasSaid(name string) (why string, said bool) {
	if e := all[name]; e != nil {
		return e.why, e.said
	}
	return "", false
}

// countEnd counts the end of a node, once. Called with mu.
func (g *Group) countEnd(e *end, left bool) {
	switch {
	case e.counted:
		return
	case left:
		g.count.departures.Inc()
	default:
		g.count.deaths.Inc()
	}
	e.counted = true
}

// loseDoubtful takes the nodes for lost that have not objected. Called with mu.
func (g *Group) loseDoubtful() {
	for name, d := range g.doubtful {
		if d.overdue() {
			g.lose(name, &d.member, Loss{After: g.cfg.DeadAfter})
		}
	}
}

// goodbye takes the word of a node that is said to be dead: it has ended, and said so. Of its end
// and its word, which come by different ways, either may come first. Called with mu.
func (g *Group) goodbye(name, why string) {
	if d, said := g.doubtful[name]; said {
		g.lose(name, &d.member, Loss{Left: true, Why: why})
	}
}

// lose ends a node for this one: the formation goes on without it, or, if it was of the complete
// cluster and no later incarnation of it is known, its loss is noted. l says all but which node.
// Called with mu.
func (g *Group) lose(name string, m *member, l Loss) {
	delete(g.doubtful, name)
	g.formation.leave(name)
	e := g.ends.of(name)
	g.countEnd(e, l.Left)
	t := g.formation.table
	if t == nil {
		g.log.Info("node gone before the cluster was complete", zap.String("node", name), zap.Bool("left", l.Left))
		return
	}
	switch n := t.at(m.data); {
	case n == nil || e.told:
		return
	case g.formation.hasSuccessor(m):
		g.log.Info("a node has ended that was started again since", zap.Int("id", n.ID), zap.String("data", n.Data))
	default:
		e.told, l.Node = true, *n
		g.lost = append(g.lost, l)
		g.log.Warn("node lost", zap.Int("id", n.ID), zap.String("data", n.Data), zap.Bool("left", l.Left), zap.String("why", l.Why))
	}
}

func (g *Group) tellLosses() {
	g.mu.Lock()
	g.loseDoubtful()
	tell := g.watch
	var lost []Loss
	if tell != nil {
		lost, g.lost = g.lost, nil
	}
	g.mu.Unlock()
	for _, l := range lost {
		tell(l)
	}
}
