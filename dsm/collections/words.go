package collections

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"sync/atomic"

	"dsmd/dsm"
)

// page is a page of shared memory, in words. Accesses to it are of whole words, or copy several, in
// the order of the program. So a page that changes meanwhile is a matter of its version, not of the
// compiler.
type page []atomic.Uint64

func (p page) store(at int, words []uint64) {
	for i, w := range words {
		p.set(at+i, w)
	}
}

func (p page) copyTo(own page) {
	for i := range p {
		own.set(i, p[i].Load())
	}
}

// pack stores b in the words from there on, with zeros at the end.
func (p page) pack(at int, b []byte) {
	if whole := len(b) / wordBytes; inOrder && whole > 1 {
		b = b[copy(p.bytes(at), b[:whole*wordBytes]):]
		at += whole
	}
	for ; len(b) >= wordBytes; at++ {
		p.set(at, binary.LittleEndian.Uint64(b))
		b = b[wordBytes:]
	}
	if len(b) > 0 {
		p.set(at, lastWord(b))
	}
}

// unpack fills b with what the words from there on hold.
func (p page) unpack(at int, b []byte) {
	if inOrder {
		copy(b, p.bytes(at))
		return
	}
	for ; len(b) > 0; at++ {
		b = unpackWord(p[at].Load(), b)
	}
}

// unpack fills b with what words hold, of which there may be more.
func unpack(words []uint64, b []byte) {
	for _, w := range words[:wordsFor(len(b))] {
		b = unpackWord(w, b)
	}
}

// unpackWord fills the first bytes of b, and returns the others.
func unpackWord(w uint64, b []byte) []byte {
	if len(b) >= wordBytes {
		binary.LittleEndian.PutUint64(b, w)
		return b[wordBytes:]
	}
	var last [wordBytes]byte
	binary.LittleEndian.PutUint64(last[:], w)
	return b[copy(b, last[:]):]
}

const wordBytes = 8

func wordsFor(bytes int) int { return (bytes + wordBytes - 1) / wordBytes }

// coder turns keys of a type into bytes, and back. Two are equal if and only if their bytes are, so
// it leaves out padding.
type coder[T any] struct {
	text  bool   // T is a string type
	parts []span // of T that have a meaning, in its order
	len   int    // their bytes, of what is no text
}

// span is the bytes from lo up to hi.
type span struct{ lo, hi int }

func newCoder[T any]() (coder[T], error) {
	t := reflect.TypeFor[T]()
	if t.Kind() == reflect.String {
		return coder[T]{text: true}, nil
	}
	var c coder[T]
	if err := dsm.Shareable[T](); err != nil {
		return c, err
	}
	if err := c.include(t, 0); err != nil {
		return c, fmt.Errorf("%w: a key of type %v: %s", dsm.ErrType, t, err.Error())
	}
	for _, p := range c.parts {
		c.len += p.hi - p.lo
	}
	return c, nil
}

// include adds what has a meaning in a value of type t at an offset.
func (c *coder[T]) include(t reflect.Type, at int) error {
	switch t.Kind() {
	case reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return fmt.Errorf("it has a %v, which may be equal and have other bits; use math.Float64bits", t)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.Name != "_" {
				if err := c.include(f.Type, at+int(f.Offset)); err != nil {
					return err
				}
			}
		}
		return nil
	case reflect.Array:
		for i := range t.Len() {
			if err := c.include(t.Elem(), at+i*int(t.Elem().Size())); err != nil {
				return err
			}
		}
		return nil
	}
	if last := len(c.parts) - 1; last >= 0 && c.parts[last].hi == at {
		c.parts[last].hi += int(t.Size())
	} else {
		c.parts = append(c.parts, span{at, at + int(t.Size())})
	}
	return nil
}

// bytesOf is the bytes of a key. They may be its own memory.
func (c *coder[T]) bytesOf(v *T) []byte {
	switch all := bytesOf(v); {
	case c.text:
		return bytesOfText(*textOf(v))
	case len(c.parts) == 1:
		return all[c.parts[0].lo:c.parts[0].hi]
	default:
		var some []byte
		for _, p := range c.parts {
			some = append(some, all[p.lo:p.hi]...)
		}
		return some
	}
}

// pack appends bytes to words, with zeros at the end.
func pack(words []uint64, b []byte) []uint64 {
	for ; len(b) >= wordBytes; b = b[wordBytes:] {
		words = append(words, binary.LittleEndian.Uint64(b))
	}
	if len(b) > 0 {
		words = append(words, lastWord(b))
	}
	return words
}

// lastWord is the word of less than wordBytes bytes.
func lastWord(b []byte) uint64 {
	var last [wordBytes]byte
	copy(last[:], b)
	return binary.LittleEndian.Uint64(last[:])
}

// value is what the bytes say.
func (c *coder[T]) value(b []byte) (v T) {
	if c.text {
		*textOf(&v) = string(b)
		return v
	}
	all := bytesOf(&v)
	for _, p := range c.parts {
		b = b[copy(all[p.lo:p.hi], b):]
	}
	return v
}
