package collections

import "unsafe"

// bytesOf is the memory of one value, which stays v's.
func bytesOf[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

// textOf is a value as the string that it is. Preconditions: T is a string type.
func textOf[T any](v *T) *string { return (*string)(unsafe.Pointer(v)) }

// bytesOfText is the memory of a string, which must not be changed.
func bytesOfText(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
