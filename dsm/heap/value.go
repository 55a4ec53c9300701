package heap

import (
	"fmt"
	"math/bits"
	"reflect"

	"dsmd/dsm"
)

// Ref refers to a value in a heap. It means the same in all programs, and may itself be in shared
// memory, in values of the heap or of dsm.Alloc. It has 8 bytes. The zero Ref is nil. A Ref is of
// use while the heap is open.
type Ref[T any] struct{ addr uintptr }

// Slice is a slice of values in a heap, which may be in shared memory as a Ref may. It has 16
// bytes. The zero Slice is empty.
type Slice[T any] struct {
	addr   uintptr
	length int
}

// Len is the number of values.
func (s Slice[T]) Len() int { return s.length }

// String is a string in a heap, which may be in shared memory as a Ref may. It has 16 bytes. The
// zero String is empty. Its bytes never change.
type String struct {
	addr   uintptr
	length int
}

// Len is the number of bytes.
func (s String) Len() int { return s.length }

// Value is what Free frees: a Ref, a Slice or a String.
type Value interface{ address() uintptr }

// IsNil reports whether r refers to nothing.
func (r Ref[T]) IsNil() bool { return r.addr == 0 }

func (r Ref[T]) address() uintptr   { return r.addr }
func (s Slice[T]) address() uintptr { return s.addr }
func (s String) address() uintptr   { return s.addr }

// New allocates a zeroed T. T must be shareable as for dsm.Alloc; it may have Refs, Slices and
// Strings. Any number of goroutines may call it. It waits as a memory access may, and has no
// context either.
//
// Errors: dsm.ErrType, dsm.ErrNoSpace (the heap is full), dsm.ErrPageLost,
// dsm.ErrClosed (Close was called), dsm.ErrNotShared (another program has freed a value twice, or
// what is none).
func New[T any](h *Heap) (Ref[T], error) {
	addr, err := allocate[T](h, 1)
	return Ref[T]{addr}, err
}

// NewSlice allocates n zeroed values of type T, next to each other. Where they are more than a
// page, pages that were never used come into being at the node that touches them first. If n is 0
// nothing is allocated. Errors are those of New; dsm.ErrNoSpace also if n is negative.
func NewSlice[T any](h *Heap, n int) (Slice[T], error) {
	addr, err := allocate[T](h, n)
	if err != nil {
		return Slice[T]{}, err
	}
	return Slice[T]{addr, n}, nil
}

// NewString copies a string into the heap. Errors are those of New.
func NewString(h *Heap, s string) (String, error) {
	addr, err := allocate[byte](h, len(s))
	if err != nil || len(s) == 0 {
		return String{}, err
	}
	v := String{addr, len(s)}
	if lost := dsm.Guard(func() { copy(Slice[byte]{addr, len(s)}.Get(), s) }); lost != nil {
		_ = Free(h, v) // if that fails, too, it is for the same reason
		return String{}, fmt.Errorf("heap: %w", lost)
	}
	return v, nil
}

// Free gives back a value that New, NewSlice or NewString has returned, in any program that has the
// heap open. Nobody may use it any more. What the value refers to is not freed. To free what is nil
// or empty does nothing. Any number of goroutines may call Free. It waits as a memory access may.
//
// Errors: dsm.ErrNotShared (there is no such value in the heap, or it was freed already; if another
// program has allocated the value, that is found out later, and then every call of that program
// returns it), dsm.ErrPageLost (the value, and perhaps others, stay allocated), dsm.ErrClosed.
func Free[V Value](h *Heap, v V) error {
	addr := v.address()
	if addr == 0 {
		return nil
	}
	err := h.err()
	if lost := dsm.Guard(func() {
		if err == nil {
			err = h.free(addr)
		}
	}); lost != nil {
		err = lost
	}
	if err != nil {
		return fmt.Errorf("heap: Free: %w", err)
	}
	return nil
}

// allocate allocates n values of type T, for its caller's caller.
func allocate[T any](h *Heap, n int) (addr uintptr, err error) {
	of := reflect.TypeFor[T]()
	known, ok := h.types.Load(of)
	if !ok {
		known, _ = h.types.LoadOrStore(of, dsm.Shareable[T]())
	}
	high, bytes := bits.Mul64(uint64(n), uint64(sizeOf[T]()))
	switch {
	case known != nil:
		err = known.(error)
	case n < 0:
		err = fmt.Errorf("%w: the number of values is %d", dsm.ErrNoSpace, n)
	case n == 0:
		return 0, nil
	case high > 0 || bytes > uint64(h.total)*uint64(h.blockBytes):
		err = fmt.Errorf("%w: %d values of %d bytes, in a heap of %d blocks of %d bytes", dsm.ErrNoSpace, n, sizeOf[T](), h.total, h.blockBytes)
	default:
		addr, err = h.allocate(uintptr(bytes))
	}
	if err != nil {
		return 0, fmt.Errorf("heap: %v: %w", of, err)
	}
	if h.tracking.Load() {
		h.note(addr, of)
	}
	return addr, nil
}
