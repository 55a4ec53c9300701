//go:build race

package testcluster

// RaceDetector tells whether the tests, and the daemons that they start, are built with the race
// detector. Its shadow of all memory that was ever touched is memory of the process, too.
const RaceDetector = true

// buildFlags have dsmd built with the race detector when the tests are, and its engines check
// themselves after every step.
var buildFlags = []string{"-race", "-tags", "invariants"}
