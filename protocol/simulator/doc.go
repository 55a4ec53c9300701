// Package simulator runs whole clusters of protocol engines in virtual time, from one seed.
//
// Where the explorer (protocol/modelcheck) sees everything of something small, the simulator sees
// something of everything: up to 1024 nodes, thousands of accesses, messages that take between a
// few microseconds and half a millisecond and overtake each other, page tables that answer late,
// threads that lose the processor just when their page has come, faults that are reported again or
// too late, prefetches, locks, barriers, cancelled waits, and programs that die. The nodes are
// those of package model, so the same invariants are checked at each step; in addition the history
// of each page goes through an independent linearizability checker (porcupine).
//
// A run has two parts. Until Options.InjectUntil everything above happens; then nothing is
// repeated, cancelled or killed any more, and all programs must finish before Options.Deadline:
// that is liveness.
//
// The same Options give the same trace, byte for byte. A failure names the seed; to see the trace
// of a failing run:
//
//	go test ./protocol/simulator -run 'TestFreshSeeds' -seed N -save /tmp/trace.txt
package simulator
