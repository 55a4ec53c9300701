// Package membership finds the nodes of a cluster and notices when one is gone.
//
// Each node is told how many nodes the cluster has, and the addresses of some. They gossip by
// github.com/hashicorp/memberlist until that many know each other. They agree on who has which
// number, and only then start. From then on the set of nodes is closed.
//
//	g, err := membership.Form(ctx, membership.Config{...})   // waits until the cluster is complete
//	t := g.Table()                                           // everybody's number and address, the same on all nodes
//	g.Watch(func(l membership.Loss) { ... })                 // a node has died or left
//	defer g.Leave(nil)                                       // tells the others that this end is meant
//
// # Who is let in
//
// What a node says of itself (member.go) travels with the gossip: its cluster, where it takes data,
// and the settings on which all nodes must agree. Two nodes that meet compare; if they differ, both
// refuse, and each says in its log or error what the difference is. A node with another gossip key
// is not understood at all, which both sides say too.
//
// # How the set of nodes is decided
//
// Every node sees others come and go at different times. If each started when it had counted
// enough, two could start with different sets. So one node decides (formation.go). The node that
// was started first proposes the set, with a number for each node, to all in it. A node that
// accepts is bound to that proposal until its author withdraws it; it accepts once it has met all
// in it, so that nobody depends on the author to find the others. When all have accepted, the
// author commits, and everybody starts with that table. An author withdraws a proposal when
// somebody in it is lost, but never once it has committed. So no two nodes that have started have
// different tables, and a node of one table is in no other. If the author dies in between, those
// that are bound to it give up, because they cannot know whether it had committed. All of this is a
// pure state machine, which a test runs under loss, reordering and crashes.
//
// A node is known by its data address and the time at which it was started, its incarnation. A node
// that was started anew is another node, and a complete cluster does not let it in. The exception
// is a node that comes back (Config.Returns) to the place of an earlier one with its address.
// Somebody who has the table tells it to the node. The table stays as it is: the incarnation in a
// name is that with which the cluster began. Once the later incarnation is known, the death of the
// earlier one is no news any more. The layers above decide whether the others want to work with it.
//
// # When a node is gone
//
// memberlist probes: a node that does not answer is suspected, and after Config.DeadAfter taken for
// dead. A node that ends in order says so first, and why (Leave), which tells the two apart. A node
// that is said to be dead is asked, and told what is said of it if it answers, so that it objects.
// It counts as lost only when it has answered nothing for a second and a half. So a node that was
// cut off, and took all others for dead meanwhile, talks nobody into giving them up when it comes
// back.
//
// Locks: Group.mu is taken alone, or inside memberlist's own, whose callbacks take it. So nothing
// of memberlist is called under it.
package membership
