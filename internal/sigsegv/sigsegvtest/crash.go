//go:build cgo

// Package sigsegvtest has what tests of the sigsegv trap need and Go can't do: to fault in C. Tests
// are not allowed cgo of their own.
package sigsegvtest

/*
static void crash(void) { *(volatile int *)8 = 1; }
*/
import "C"

// Crash stores to an address that nobody has, in C code. It does not return.
func Crash() { C.crash() }
