package collective

import "unsafe"

// bytesOf is the memory of the values, which stays v's.
func bytesOf[T any](v []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), sizeOf[T]()*len(v))
}

func sizeOf[T any]() int {
	var v T
	return int(unsafe.Sizeof(v))
}
