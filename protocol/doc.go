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
// requester; it asks the home, the home forwards the request to a supplier (the owner, or itself if it has a copy)
// and has other readers invalidated. The supplier sends the page straight to the requester, readers
// acknowledge straight to the requester, and the requester tells the home when it has the page:
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
// and reply state machines beside it.
//
// # Files
//
//	types.go, message.go, event.go   what goes in and out
//	engine.go                        Step: dispatch, sending, messages to oneself
//	object.go, copyset.go            the state of one page or lock, and the table of them
//	home.go                          the directory: transactions, queues
//	holder.go                        requesting, installing, holding, giving up copies
//	turn.go                          when many nodes fight for many pages
//	lock.go                          who on this node holds or waits for a lock
//	barrier.go, names.go             barriers with gathered payloads; names of allocations
//	tree.go, relay.go, bundle.go     barriers of large clusters: arrivals are put together on their way, and releases divided
//	epoch.go, rebuild.go             when nodes are lost: recovery, and the directory made anew
//	limits.go, nodeset.go            how much is remembered at most; exact sets of nodes
//	inspect.go                       Clone, AppendState, Check: for explorer, simulator and status
//
// # Order and concurrency
//
// The protocol needs every message delivered exactly once, but in no particular order, with three exceptions
// between the same two nodes: what withdraws (a BarrierCancel, an unbinding NameRequest) must not
// overtake what it withdraws, what takes an object away (a Forward, an Invalidate) must not overtake a
// Grant of it, and an EpochMark neither overtakes nor is overtaken. An Engine is not safe for concurrent use; its host serialises Step.
package protocol
