// Package sim says what the protocol costs in clusters that are larger than the machine at hand: it
// runs the real protocol.Engine of every node, up to protocol.MaxNodes of them, in virtual time
// over a network whose costs are given, and counts messages, bytes and microseconds.
//
// # What is real and what is modelled
//
// The engines are the daemon's own, hosted by protocol/model as in the tests of the protocol: so
// every message is one that a real cluster would send, and every load is checked to see the last
// store. A run that breaks the protocol ends with an error and gives no figures. What is modelled
// is everything around the engines (Costs):
//
//   - Each node has one reactor, which does one thing after the other: it takes faults and calls
//     from programs, receives and sends messages, and changes pages. Each of them takes it a fixed
//     time, but for messages to or from the same node, of which several go in one system call. What
//     comes while it is at work waits in line. (Section Wide has several reactors, each for some of
//     the pages. Daemons have one.)
//   - Each node has a link with a bandwidth each way. Messages queue for the sender's link, travel
//     for a latency, and queue for the receiver's.
//   - Each node runs one thread, or in section Wide up to 64, which faults, waits, and computes for
//     a while between its accesses.
//
// Left out are the node's reading ahead (docs/decisions/0013), sleeping reactors, and losses in the
// network. So the figures are those of single faults, and say how costs grow with the number of
// nodes rather than how long a program takes.
//
// # Order
//
// A simulation is a heap of events in virtual nanoseconds; events of the same time happen in the
// order in which they were scheduled. The same Options give the same Result. Nothing here is safe
// for concurrent use.
//
// # Files
//
//	costs.go        what messages and operations cost
//	simulation.go   the events; machine.go: one node's reactors and link
//	counts.go       what is counted, in phases
//	pattern.go      programs by the way they share pages
//	section.go      which experiments there are; faults.go, sync.go, hot.go, wide.go: each of them
//	table.go, plots.go, write.go   results for people
//	memory.go       what an engine's knowledge of pages takes in memory; that one is measured, not simulated
package sim
