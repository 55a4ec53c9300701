// Package modelcheck explores small clusters exhaustively: every order in which messages can
// arrive, threads can run, faults can repeat, page tables can change and engines can hear of it.
// The engine is the real one; its surroundings are package model.
//
// # How
//
// Explore goes breadth first from the state in which nothing has happened. A state is what package
// model calls a cluster, in canonical form: two states with the same encoding are one state. In
// every state it makes every enabled action happen. So the first violation found is one of the
// shortest there are.
//
// When all states are known it looks for cycles. Retired accesses do not come back, so a cycle is a
// way for the cluster to be busy for ever without any thread getting through: a livelock. Without
// the hold window there are such cycles; with it there must be none.
//
// A state without any action but optional ones (a repeated fault, a cancellation) must be
// quiescent: no thread waits, no message is left, directories and page tables agree. So "no fault
// waits for ever" is the absence of other ends, and of cycles.
//
// # Speed
//
// What an action does depends on one node only, and the same node state meets the same action in
// very many global states. So states of nodes, messages and ledgers are numbered, a global state is
// a short vector of such numbers, and the engine runs once for each pair of node state and action.
// All else is copying a few words and looking them up.
//
// # Reading the output
//
// `go test -v ./protocol/modelcheck` prints a line for each family of configurations: how many
// configurations, states and transitions, and the depth, which is the length of the longest of the
// shortest ways to a state. A violation is printed as a scenario, which is a file for testdata:
// TestScenarios replays those, and rewrites their results with -update. The flag -bound says how
// much is explored: short, default, full or deep.
package modelcheck
