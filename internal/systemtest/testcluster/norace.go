//go:build !race

package testcluster

// RaceDetector tells whether the tests are built with the race detector.
const RaceDetector = false

// buildFlags have dsmd built so that its engines check themselves after every step.
var buildFlags = []string{"-tags", "invariants"}
