//go:build !cgo

package sigsegvtest

// Crash panics: without cgo there is no C code that could fault.
func Crash() { panic("built without cgo") }
