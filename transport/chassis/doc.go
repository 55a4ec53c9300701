// Package chassis has what every transport is built on: payloads and who owns them, the gate
// between the reactor and Close, what a reactor sleeps on, and the counters.
//
// It knows nothing of frames on the wire, of connections or of peers. The transports use it
// (transport/tcp, rdma, sim and emulated), and nobody else does.
package chassis
