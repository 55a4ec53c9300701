package protocol

import "encoding/binary"

// What the encodings of states (Engine.AppendState) are made of. Lists and texts begin with their
// length, and every number ends by itself, so two states are never encoded alike because one reads
// the bytes of the other in another way.

// appendNumbers appends numbers.
func appendNumbers(b []byte, list ...uint64) []byte {
	for _, n := range list {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

// appendEach appends a list, by what appends one of it.
func appendEach[T any](b []byte, list []T, one func(b []byte, x T) []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, x := range list {
		b = one(b, x)
	}
	return b
}

// appendInts appends a list of numbers.
func appendInts[T ~uint16 | ~uint32 | ~uint64](b []byte, list []T) []byte {
	return appendEach(b, list, func(b []byte, n T) []byte { return binary.AppendUvarint(b, uint64(n)) })
}

// appendText appends bytes.
func appendText[T ~string | ~[]byte](b []byte, text T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}
