// Package wire writes and reads messages that are rare: what is sent to say hello, to answer a
// question, to agree on something. A message is a list of fields, which is said once, and from
// which both its encoding and its decoder follow. Messages of which there are many, about pages and
// locks, have codecs of their own.
//
// A field is a pointer to a value of fixed size, as encoding/binary has it (little-endian), or what
// Text, Cut, Line or List makes. Fields follow each other without anything between. No text or list
// may be longer than 65535.
package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Errors of Decode.
var (
	errShort = errors.New("it is cut short")
	errForm  = errors.New("it has a field that can't be so")
)

// field is a field of a length of its own.
type field interface {
	append(b []byte) []byte
	// take reads what append wrote, and returns what follows.
	take(b []byte) (rest []byte, err error)
}

// Append appends fields. It panics on texts and lists that are too long, and on pointers to what
// has no fixed size.
func Append(b []byte, fields ...any) []byte {
	for _, f := range fields {
		if own, is := f.(field); is {
			b = own.append(b)
			continue
		}
		var err error
		if b, err = binary.Append(b, binary.LittleEndian, f); err != nil {
			panic(fmt.Sprintf("wire: %T is no field: %v", f, err))
		}
	}
	return b
}

// Decode reads what Append wrote, and nothing else: no two encodings say the same. It allocates no
// more than b is long, but for a small factor. After an error the fields may have any values.
func Decode(b []byte, fields ...any) error {
	rest, err := take(b, fields)
	switch {
	case err != nil:
		return fmt.Errorf("%w, in %d bytes", err, len(b))
	case len(rest) > 0:
		return fmt.Errorf("%d bytes follow its last field, of %d", len(rest), len(b))
	case !bytes.Equal(Append(make([]byte, 0, len(b)), fields...), b):
		return fmt.Errorf("%w, in %d bytes", errForm, len(b))
	}
	return nil
}

func take(b []byte, fields []any) (rest []byte, err error) {
	for _, f := range fields {
		if own, is := f.(field); is {
			if b, err = own.take(b); err != nil {
				return nil, err
			}
			continue
		}
		n, err := binary.Decode(b, binary.LittleEndian, f)
		if err != nil {
			return nil, errShort
		}
		b = b[n:]
	}
	return b, nil
}

// takeLength reads the length of a text or a list.
func takeLength(b []byte, most int) (length int, rest []byte, err error) {
	if len(b) < 2 {
		return 0, nil, errShort
	}
	if length = int(binary.LittleEndian.Uint16(b)); length > most {
		return 0, nil, fmt.Errorf("it has a text or list of length %d, of at most %d", length, most)
	}
	return length, b[2:], nil
}

// text is a text with its length before it, in two bytes.
type text[T ~string | ~[]byte] struct {
	at   *T
	most int
	cut  bool // Append shortens it to most
	line bool // and it is printable
}

// Text is a field of at most so many bytes. Decoded bytes point into the message.
func Text[T ~string | ~[]byte](at *T, most int) any { return text[T]{at: at, most: most} }

// Cut is a text of which Append takes no more than so many bytes.
func Cut(at *string, most int) any { return text[string]{at: at, most: most, cut: true} }

// Line is a text for people and logs, of printable ASCII. Append has a ? for what is not, and takes
// no more than so many bytes.
func Line(at *string, most int) any {
	return text[string]{at: at, most: most, cut: true, line: true}
}

func (t text[T]) append(b []byte) []byte {
	n := len(*t.at)
	if n > t.most {
		if !t.cut {
			panic(fmt.Sprintf("wire: a text of %d bytes, at most %d are allowed", n, t.most))
		}
		n = t.most
	}
	b = append(binary.LittleEndian.AppendUint16(b, uint16(n)), (*t.at)[:n]...)
	for i, c := range b[len(b)-n:] {
		if t.line && (c < ' ' || c > '~') {
			b[len(b)-n+i] = '?'
		}
	}
	return b
}

func (t text[T]) take(b []byte) ([]byte, error) {
	n, b, err := takeLength(b, t.most)
	if err != nil {
		return nil, err
	}
	if n > len(b) {
		return nil, errShort
	}
	*t.at = T(b[:n:n])
	return b[n:], nil
}

// list is a list with its length before it, in two bytes.
type list[T any] struct {
	at     *[]T
	most   int
	fields func(*T) []any
}

// List is a field of at most so many items, each of which has these fields. An empty one is decoded
// as nil.
func List[T any](at *[]T, most int, fields func(*T) []any) any { return list[T]{at, most, fields} }

// Item is the fields of an item of fixed size.
func Item[T any](x *T) []any { return []any{x} }

func (l list[T]) append(b []byte) []byte {
	if len(*l.at) > l.most {
		panic(fmt.Sprintf("wire: a list of %d items, at most %d are allowed", len(*l.at), l.most))
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(len(*l.at)))
	for i := range *l.at {
		b = Append(b, l.fields(&(*l.at)[i])...)
	}
	return b
}

func (l list[T]) take(b []byte) ([]byte, error) {
	n, b, err := takeLength(b, l.most)
	*l.at = nil
	for ; n > 0 && err == nil; n-- {
		var x T
		if b, err = take(b, l.fields(&x)); err == nil {
			*l.at = append(*l.at, x)
		}
	}
	return b, err
}
