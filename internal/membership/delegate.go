package membership

import (
	"errors"
	"fmt"
	"log"
	"math"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
)

// maxRefusals bounds Group.refusals: as many as conversations that can end at the same time.
const maxRefusals = 16

// gossip has the methods of Group that memberlist calls, apart from those that others see.
// memberlist calls them from its goroutines, some with its lock held, so none of them calls
// memberlist.
type gossip struct{ *Group }

func (g *Group) setDelegates(c *memberlist.Config) {
	d := gossip{g}
	c.Delegate, c.Events, c.Merge, c.Alive = d, d, d, d
	c.LogOutput = nil
	c.Logger = log.New(&translator{g}, "", 0)
}

// probing is how often a node asks one of the others whether it is alive, and the multiplier by
// which memberlist suspects one for the rest of deadAfter after the first vain probe. memberlist
// multiplies that by the interval and by the logarithm of the number of nodes, so the interval is
// one with which all of it is deadAfter, unless it would be out of its bounds.
func probing(deadAfter time.Duration, nodes int) (every time.Duration, suspicionMult int) {
	scale := max(1, math.Log10(max(1, float64(nodes))))
	mult := max(1, math.Round((probes-1)/scale))
	every = time.Duration(float64(deadAfter) / (mult*scale + 1))
	if bounded := min(max(every, leastProbeInterval), mostProbeInterval); bounded != every {
		every = bounded
		mult = max(1, math.Round((deadAfter-every).Seconds()/(scale*every.Seconds())))
	}
	return every, int(mult)
}

// NodeMeta implements memberlist.Delegate.
func (g gossip) NodeMeta(int) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return appendMember(nil, &g.self)
}

// NotifyMsg implements memberlist.Delegate.
func (g gossip) NotifyMsg(b []byte) {
	m, err := decodeMessage(b)
	if err != nil {
		g.log.Warn("a message was not understood", zap.Error(err))
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if d := g.doubtful[m.from]; d != nil {
		d.since, d.silent = time.Now(), 0 // who says something is there
	}
	switch {
	case m.kind == leaving:
		g.noteDeparture(m.from, m.reason)
		g.goodbye(m.from, m.reason)
		g.gone(m.from)
	case len(g.inbox) < maxInbox:
		g.inbox = append(g.inbox, m)
	}
	g.signal()
}

// noteDeparture remembers that a node has said that it leaves. Called with mu.
func (g gossip) noteDeparture(name, why string) {
	if _, known := g.formation.known[name]; !known && g.ends[name] == nil && len(g.ends) >= maxEnds {
		return
	}
	e := g.ends.of(name)
	e.said, e.why = true, why
}

// GetBroadcasts implements memberlist.Delegate.
func (gossip) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (gossip) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (gossip) MergeRemoteState([]byte, bool) {}

// NotifyMerge implements memberlist.MergeDelegate: two nodes meet, each with all that it knows.
// Both sides are asked, so both find the same fault.
func (g gossip) NotifyMerge(peers []*memberlist.Node) error {
	for _, peer := range peers {
		if peer.State == memberlist.StateDead || peer.State == memberlist.StateLeft {
			continue
		}
		if why := g.unfit(peer); why != "" {
			err := fmt.Errorf("the node at %s: %s", peer.Address(), why)
			g.refuse(err.Error())
			return err
		}
	}
	return nil
}

// refuse notes and logs that somebody was turned down.
func (g gossip) refuse(text string) {
	g.count.refusals.Inc()
	g.log.Warn("refused", zap.String("reason", text))
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.refusals) == maxRefusals {
		g.refusals = slices.Delete(g.refusals, 0, 1)
	}
	g.refusals = append(g.refusals, text)
}

// NotifyAlive implements memberlist.AliveDelegate: it keeps out unfit nodes that come by way of
// others.
func (g gossip) NotifyAlive(peer *memberlist.Node) error {
	if why := g.unfit(peer); why != "" {
		return errors.New(why)
	}
	return nil
}

// unfit is why a node cannot be in this node's cluster: "" if it can.
func (g gossip) unfit(peer *memberlist.Node) string {
	m, err := decodeMember(peer.Meta)
	if err != nil {
		return err.Error()
	}
	if m.name() != peer.Name {
		return fmt.Sprintf("it is called %q and says that it is %q", peer.Name, m.name())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if why := mismatch(&g.self, &m); why != "" {
		return why
	}
	t := g.formation.table
	switch {
	case t == nil && g.self.returns:
		return "" // it waits for whoever knows the cluster
	case t == nil && m.returns:
		return fmt.Sprintf("it comes back to a cluster (--rejoin), and %q is not complete yet; start all of its nodes without that", m.cluster)
	case t == nil && m.sealed != (digest{}) && (g.formation.bound == nil || g.formation.bound.table.digest != m.sealed):
		g.complete = true
		if _, met := g.formation.known[peer.Name]; met && !g.formation.ended() {
			// They met before either was part of a cluster: no attempt to join will end this.
			g.formation.sealed(&m)
			g.signal()
		}
		return fmt.Sprintf("its cluster %q is complete with %d nodes, and this node at %s is none of them; "+
			"one that takes the place of a former one is started with --rejoin, if the others survive losses; else stop a node, or start all with a larger --nodes",
			m.cluster, g.cfg.Nodes, g.self.data)
	case t != nil && t.find(peer.Name) == nil && !m.returns:
		// who returns is told the table, and finds out
		return fmt.Sprintf("it takes data at %s, and this cluster %q is complete with %d nodes, of which it is none", m.data, m.cluster, g.cfg.Nodes)
	}
	return ""
}

// NotifyJoin implements memberlist.EventDelegate.
func (g gossip) NotifyJoin(n *memberlist.Node) { g.heard(n) }

// NotifyUpdate implements memberlist.EventDelegate.
func (g gossip) NotifyUpdate(n *memberlist.Node) { g.heard(n) }

func (g gossip) heard(n *memberlist.Node) {
	m, err := decodeMember(n.Meta)
	if err != nil {
		return // NotifyAlive has said so
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, left := g.ends.hasSaid(n.Name); left {
		return // what it said before is still going round
	}
	if _, known := g.formation.known[n.Name]; !known {
		g.log.Info("node found", zap.String("data", m.data), zap.String("gossip", n.Address()), zap.String("transports", m.transports))
	}
	if d, said := g.doubtful[n.Name]; said && !d.unmet() {
		g.log.Info("a node that was said to be dead is there", zap.String("data", m.data))
	}
	delete(g.doubtful, n.Name)
	g.addresses[n.Name] = n.FullAddress()
	if n.Name != g.self.name() {
		g.formation.join(m)
	}
	g.signal()
}

// NotifyLeave implements memberlist.EventDelegate: the node has left or is dead.
func (g gossip) NotifyLeave(n *memberlist.Node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gone(n.Name)
	g.signal()
}

// gone notes that a node is said to have ended: it has said so itself, or is dead, and may object.
// Called with mu.
func (g gossip) gone(name string) {
	m, known := g.formation.known[name]
	if !known || name == g.self.name() || g.closed {
		return
	}
	if why, left := g.ends.hasSaid(name); left {
		g.lose(name, &m, Loss{Left: true, Why: why})
	} else {
		g.doubtful[name] = &doubtful{member: m, address: g.addresses[name], since: time.Now()}
	}
	delete(g.addresses, name)
}
