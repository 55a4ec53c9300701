//go:build !race

package testcluster

// buildFlags are none when the tests are built without the race detector.
var buildFlags []string
