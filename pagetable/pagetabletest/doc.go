// Package pagetabletest holds what tests of and around package pagetable share: the conformance suite Run, which
// every Table passes, and Fake, a Table in memory for tests of the code above it.
//
// The suite needs programs whose loads and stores it can order. A fixture supplies them: for a back end that works on real
// address spaces they are child processes, because a fault must never be served by the process that takes it; for
// Fake they are goroutines that call its Load and Store.
package pagetabletest
