package membership

import (
	"fmt"
	"time"

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
// A node that was cut off takes all others for dead. When it is no longer cut off it says so to
// whoever it reaches, and they would give each other up. Each of them objects when it hears that,
// and is believed.
type doubtful struct {
	Loss
	member member
	unmet  bool // this node has never met it, see doubtUnmet
	since  time.Time
}

// objectionTime is how long a node may object that is said to be dead: many rounds of gossip.
const objectionTime = 10 * newsInterval

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
		g.doubtful[n.name] = doubtful{
			Loss: Loss{Node: n, After: g.cfg.DeadAfter}, member: member{data: n.Data},
			unmet: true, since: time.Now().Add(g.cfg.DeadAfter - objectionTime),
		}
		if why, left := g.hasSaid(n.name); left {
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

// endOf is what is known of a node's end from now on. Called with mu.
func (g *Group) endOf(name string) *end {
	e := g.ends[name]
	if e == nil {
		if len(g.ends) >= maxEnds {
			for other := range g.ends {
				delete(g.ends, other)
				break
			}
		}
		e = new(end)
		g.ends[name] = e
	}
	return e
}

// hasSaid reports whether a node has said that it leaves, and why. Called with mu.
func (g *Group) hasSaid(name string) (why string, said bool) {
	if e := g.ends[name]; e != nil {
		return e.why, e.said
	}
	return "", false
}

// counted counts the end of a node. Called with mu.
func (g *Group) counted(name string, left bool) {
	e := g.endOf(name)
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
		if time.Since(d.since) >= objectionTime {
			g.lose(name, &d.member, d.Loss)
		}
	}
}

// goodbye takes the word of a node that is said to be dead: it has ended, and said so. Of its end
// and its word, which come by different ways, either may come first. Called with mu.
func (g *Group) goodbye(name, why string) {
	d, said := g.doubtful[name]
	if !said {
		return
	}
	g.lose(name, &d.member, Loss{Node: d.Node, Left: true, Why: why})
}

// lose counts the end of a node, and notes its loss, unless a later incarnation of it is known.
// Called with mu.
func (g *Group) lose(name string, m *member, l Loss) {
	delete(g.doubtful, name)
	g.counted(name, l.Left)
	e := g.endOf(name)
	if e.told || g.formation.hasSuccessor(m) {
		return
	}
	e.told = true
	g.lost = append(g.lost, l)
	g.log.Warn("node lost", zap.Int("id", l.Node.ID), zap.String("data", l.Node.Data), zap.Bool("left", l.Left), zap.String("why", l.Why))
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
