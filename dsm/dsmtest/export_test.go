package dsmtest

// Build is build, for tests.
var Build = build
