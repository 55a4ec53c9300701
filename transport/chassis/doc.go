// Package chassis has what every transport is built on: payloads and who owns them, the gate
// between the reactor and Close, what a reactor sleeps on, and the counters.
//
// It knows nothing of frames on the wire, of connections or of peers. transport/tcp, transport/rdma
// and transport/sim use it, and nobody else does.
package chassis
