package model

import (
	"fmt"
	"slices"

	"dsmd/protocol"
)

// Cluster is a whole modelled cluster: its nodes, the messages between them, and the observer.
// It is not safe for concurrent use.
type Cluster struct {
	Config *Config
	Nodes  []*Node
	Ledger *Ledger
	// InFlight are the messages on their way, in the order in which they were sent. Any may arrive
	// next that need not follow another (see Flight.MustFollow).
	InFlight []Flight
	// Begun is what went wrong in Config.Before, or nil. Then the cluster may be in any state.
	Begun *Violation
}

// NewCluster returns a cluster in which nothing has happened but what Config.Before says.
func NewCluster(config *Config) *Cluster {
	c := &Cluster{Config: config, Ledger: NewLedger(config)}
	c.Nodes = NewNodes(config)
	c.Begun = c.begin()
	return c
}

// Enabled lists the actions that can happen now. Equal messages in flight give one action.
func (c *Cluster) Enabled() []Action {
	var all []Action
	for _, n := range c.Nodes {
		all = n.Local(all)
	}
	for i := range c.Nodes {
		all = Membership(c.Nodes, i, all)
	}
	var seen []string
	for i := range c.InFlight {
		f := c.InFlight[i]
		if !c.Nodes[f.Message.To].Hears(&f) || slices.ContainsFunc(c.InFlight, func(g Flight) bool { return f.MustFollow(&g) }) {
			continue
		}
		if key := string(f.Append(nil)); !slices.Contains(seen, key) {
			seen = append(seen, key)
			all = append(all, Action{Kind: ActDeliver, Node: f.Message.To, Flight: &f})
		}
	}
	return all
}

// Do makes one action happen at time now, moves the messages, and checks all invariants but those
// of quiescence. The first violation is in out and is returned.
func (c *Cluster) Do(a Action, now protocol.Time, out *Outcome) *Violation {
	if a.Kind == ActDeliver {
		c.take(a.Flight)
	}
	c.Nodes[a.Node].Do(a, now, out)
	c.InFlight = append(slices.DeleteFunc(c.InFlight, func(f Flight) bool { return a.Forgets(&f.Message) }), out.Sent...)
	out.Violation = CheckOutcome(c.Ledger, c.Nodes, out, func(*Retirement) {})
	return out.Violation
}

// take removes one message from the network.
func (c *Cluster) take(f *Flight) {
	key := string(f.Append(nil))
	i := slices.IndexFunc(c.InFlight, func(g Flight) bool { return string(g.Append(nil)) == key })
	if i < 0 {
		panic(fmt.Sprintf("model: %v is not in flight", f))
	}
	c.InFlight = slices.Delete(c.InFlight, i, i+1)
}

// Stuck checks what must hold when no action is enabled that is not optional. It returns nil while
// there is one.
func (c *Cluster) Stuck() *Violation {
	for _, a := range c.Enabled() {
		if !a.Kind.Optional() {
			return nil
		}
	}
	return CheckQuiescent(c.Config, c.Nodes, c.Ledger, len(c.InFlight))
}
