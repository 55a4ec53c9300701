//go:build !invariants

package protocol

// Invariants is false without the tag invariants: the compiler removes the call.
const Invariants = false
