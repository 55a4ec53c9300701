//go:build invariants

package protocol

// Invariants has engines check themselves after every Step, see verify.
const Invariants = true
