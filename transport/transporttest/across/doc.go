// Package across runs the conformance suite of transports with nodes on two machines, or in two processes.
//
// The suite's tests play all nodes, so they run in one process. The nodes with odd numbers are made by another process, which Serve
// runs in: here each is a stand-in, a transport.Transport whose methods are called there, over a connection of its own. So
// every frame between an even and an odd node crosses the network between the machines, in both directions, and the tests are
// those of every other transport. What a stand-in checks itself, how a payload may be used, is tested where node 0 does it, which is
// never a stand-in.
package across
