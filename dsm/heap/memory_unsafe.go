package heap

import "unsafe"

// Get is the value, or nil. It costs nothing: a Ref is an address.
func (r Ref[T]) Get() *T { return *(**T)(unsafe.Pointer(&r.addr)) }

// Get is the slice itself, not a copy, with no more capacity than length.
func (s Slice[T]) Get() []T { return unsafe.Slice(Ref[T]{s.addr}.Get(), s.length) }

// Get is the string itself, not a copy: it must not be used when it has been freed. See
// strings.Clone.
func (s String) Get() string { return unsafe.String(Ref[byte]{s.addr}.Get(), s.length) }

func sizeOf[T any]() uintptr {
	var zero T
	return unsafe.Sizeof(zero)
}

// addressOf is where a slice begins.
func addressOf[T any](s []T) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(s))) }

// goroutine is a number that goroutines that run at the same time mostly have different ones of,
// and each mostly keeps: about where its stack is.
func goroutine() uint {
	var here byte
	return uint(uintptr(unsafe.Pointer(&here)) >> 12 * 0x9E3779B97F4A7C15 >> 40)
}
