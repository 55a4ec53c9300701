// Package pagetabletest holds Fake, a Table in memory for tests of the code above it. It passes the
// conformance suite of package pagetable (suite_test.go there), as every Table does.
package pagetabletest
