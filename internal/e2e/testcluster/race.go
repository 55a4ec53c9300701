//go:build race

package testcluster

// buildFlags have dsmd built with the race detector when the tests are.
var buildFlags = []string{"-race"}
