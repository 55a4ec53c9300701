// Package sim is a network in memory, with delays and faults that follow from a seed.
//
// It stands in for transport/tcp in tests of whole clusters. Frames of one node to another arrive
// in the order of sending, those of different nodes in any order: which one is next is drawn from
// the seed.
//
// # Time
//
// The network has no clock. A delay is a number of calls of Poll on the receiving node: a frame
// delayed by three is there at the third Poll after it was flushed. So a test that drives several
// nodes by hand, from one goroutine, has the same trace each time, and one that gives each node a
// goroutine and lets it sleep on WaitFD needs nobody to advance a clock: Arm tells a node that
// frames are under way to it, and it polls on. Real time would make the one depend on the machine,
// a clock of its own would leave the other asleep.
//
// # Faults
//
// Network.Cut ends the connection of two nodes and loses a random part of what is under way.
// Network.Stall and Network.Resume hold a link back, Network.Delay changes how slow it is. They act
// from outside: nodes under test see them only through transport.Transport. Network.Restart kills a
// node and starts it anew, as another incarnation.
//
// # Misuse
//
// A payload that is released, and a control part whose handler has returned, are overwritten
// with a pattern, and a payload is never used for a second frame. Whoever holds on to one
// too long therefore panics or reads nonsense at once.
//
// # Concurrency and locks
//
// Methods of Network may be called from any goroutine, those of a node as transport.Transport says.
// The lock order is node.gate, Network.mu, a node's inbox. Two inboxes are locked together only
// under Network.mu, and none while a Handler runs.
package sim
