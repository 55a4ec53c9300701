package dsm

import "unsafe"

// addressOf is where a value lies.
func addressOf[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// overlong is s with one element more than there is.
func overlong(s []byte) []byte { return unsafe.Slice(&s[0], len(s)+1) }

// unsafePointer is a type that can't be shared.
type unsafePointer = unsafe.Pointer
