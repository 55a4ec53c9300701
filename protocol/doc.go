// Package protocol decides who may read and write which page of the shared memory.
//
// It is a pure state machine: Engine.Step takes one event (a fault, a message, a completion)
// and appends the effects that follow from it (send this, install that). There is no I/O, clock,
// goroutine, randomness or iteration over a map in it, so the same code runs in three hosts: the
// daemon (package node), the seeded simulator (protocol/simulator) and the exhaustive explorer
// (protocol/modelcheck). internal/lint keeps it that way. A page's contents never enter it.
//
// # Roles
//
// Every page has a home, a fixed node that keeps its directory entry: the owner (the last writer),
// the copyset (who has a copy) and the one transaction that is under way. A node that faults is the
// requester; it asks the home, the home forwards the request to a supplier (the owner, or itself if
// it has a copy) and has other readers invalidated. The supplier sends the page straight to the
// requester, readers acknowledge straight to the requester, and the requester tells the home when
// it has the page:
//
//	requester --Request--> home --Forward-----> owner  --Grant---------> requester
//	                            --Invalidate--> reader --InvalidateAck-> requester --Done--> home
//
// When the home itself grants, sending the Grant ends the transaction, and there is no Done.
//
// Roles are often on one node; a message to oneself is handled inside Step.
//
// Locks are objects of the same protocol: a lock is a page without contents whose access cannot be
// taken while a program holds it. So a lock stays cached where it was last used, readers share it,
// and the explorer checks both at once. Barriers and the names of allocations are simple request
// and reply machines beside it.
//
// # Machines
//
// An Engine only routes: it gives each event and each message to the machine that it concerns. A
// machine has its own state, and where it has any its own clone, encoding and check. All share an
// env: the configuration, the view, the time, and where effects and messages go.
//
//	requester.go   asks for access, and lets it take effect
//	holder.go      gives up copies that others are to have; passing.go: many copies, through a tree
//	directory.go   the home's part: owners, sharers, transactions, queues; losses.go: what is lost
//	multicast.go   pages that many read at the same time
//	locks.go       who on this node holds or waits for a lock
//	pacing.go      how long a page stays that is wanted elsewhere: group leases where many fight for many
//	commits.go     replicated memory is sent to its backups
//	backups.go     the backups that this node keeps
//	reclaim.go     memory is freed on every node
//	evacuation.go  leaving members hand over what only they have
//	barriers.go    barriers with relayed payloads; relay.go, tree.go: those of large clusters
//	names.go       the names that programs of this node use
//	registry.go    the allocator; registry_rebuild.go: another node becomes it
//	recovery.go    what members say in a recovery, and which messages are let in
//
// The first ten are parts of pages (pages.go), which has what is known of each page and lock
// (object.go, copyset.go). engine.go routes; epoch.go goes through a recovery and calls.go ends
// what programs wait for, which concern several machines. inspect.go is what hosts, the simulator
// and the explorer ask.
//
// What goes in and out stands in types.go and event.go, and what engines say to each other in
// kinds.go: a type for each kind of message. slots.go and message.go put it on the wire; bundle.go,
// namecall.go and report.go encode payloads. limits.go bounds what is remembered, and states.go
// names the states of a node's parts for the tables in docs/protocol.md.
//
// # Partitions
//
// What the coherence of a page needs it shares with no other page, but the view and some bounds. So
// a node may divide its pages among several engines (Config.Partitions), each on a thread of its
// own. The engines of one number on all nodes are a partition, a cluster with messages of its own,
// for the pages that are theirs: no message and no lock goes from one partition to another. Only
// partition 0 has locks, barriers and names. What concerns the others their hosts carry over: that
// memory is bound (EventBound); that it is freed, for which all partitions of a node do their part
// of a phase before the node acknowledges it (EffectFreePhase); that a program has synchronised
// (EventSynchronised); a view (EventEpoch), for which each partition recovers by itself; and which
// memory was in use then (EffectInUse).
//
// # Order and concurrency
//
// The protocol needs every message delivered exactly once, but in no particular order, with four
// exceptions between the same two nodes: a BarrierCancel must not overtake what it withdraws, a
// NameRequest must not overtake an earlier one of the same program, what takes an object away or
// has it sent to others (a Forward, an Invalidate, a Multicast without
// contents) must not overtake a Grant of it, and an EpochMarker neither overtakes nor is overtaken.
// An Engine is not safe for concurrent use; its host serialises Step.
package protocol
