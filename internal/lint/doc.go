// Package lint holds the rules of this repository that a compiler does not check: which package may
// import which, that protocol is pure, where unsafe code and system calls may stand, what lies at
// the top, and how much may stand in one place. It has only tests; go test ./internal/lint runs
// them.
//
// A new import between packages is a change of architecture: it starts with a change to the table
// in lint_test.go, where a reviewer sees it.
package lint
