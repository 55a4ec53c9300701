// Command mutation checks the checks. It makes small changes to a package, one at a time, and says
// which of its checks notices each. A change that no check notices is a blind spot, or it changes
// nothing that anybody could notice.
//
//	go run ./internal/mutation -package protocol -mutants 300 -seed 14
//	go run ./internal/mutation -named
//
// # Mutants
//
// A mutant is the package with one change: a condition negated or left out, a statement dropped,
// two arms swapped, one added to a number, and so on; operators.go has the list. Which are drawn
// depends on the seed, and on the text of the mutant alone: a change to one function leaves the
// mutants of the others as they were. A mutant that does not compile is not drawn. Nor is any in
// what people read: String and Error methods, the texts of errors and panics, tables of names. Nor
// is one in an assertion, which is an if statement that only panics.
//
// # Checks
//
// checks.go has the checks of each package, the cheap and deadly ones first. Each runs in a process
// of its own, with so much processor time and memory as the unchanged package needs, and some more.
// The first that fails kills the mutant; one that has used up its time or memory counts as killed,
// too, and is told apart.
//
// Mutants are compiled together. Each function that mutants change has a copy for each of them, and
// begins with a switch that goes to the copy of the mutant that the environment names (build.go).
//
// # Lists
//
// equivalent.txt has the mutants that nobody can tell from the original, each with the reason. They
// are not run. named.txt has changes that must be noticed for good: repairs of bugs, taken out.
// Both name a function and lines of it, not line numbers (list.go).
package main
