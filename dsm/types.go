package dsm

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"dsmd/internal/attach"
)

// layout is what ranks must agree on about a type.
type layout struct {
	// text is canonical: two types have the same text if and only if they have the same size, and
	// the same fields of the same kinds, under the same names, at the same offsets. Names of types
	// are not part of it, so a type may move to another package; names of fields are, because two
	// versions of a program whose fields were swapped would otherwise agree.
	text string
	name string // the type as Go prints it, for messages
	size uintptr
	of   reflect.Type
	hash uint64 // of text
}

// String is the type for people.
func (l layout) String() string {
	if l.name == l.text || strings.HasPrefix(l.text, "[") {
		return l.name
	}
	return l.name + " = " + l.text
}

// Shareable returns nil if values of type T can be in shared memory; see the package comment. Else
// it returns an error that wraps ErrType and names the field that is wrong.
func Shareable[T any]() error {
	_, err := TypeHash[T]()
	return err
}

// TypeHash returns a number that two types have in common if values of one can be read as values of
// the other in shared memory: their fields have the same names, places and kinds. Ranks that
// exchange values by other ways than Alloc's can tell by it that they mean the same. The error is
// that of Shareable.
func TypeHash[T any]() (uint64, error) {
	l, err := layoutOf[T]()
	return l.hash, err
}

// layoutOf describes T, or says why its values can't be shared.
func layoutOf[T any]() (layout, error) {
	t := reflect.TypeFor[T]()
	var b strings.Builder
	if err := describe(&b, t, t.Name()); err != nil {
		return layout{}, fmt.Errorf("%w: %v: %s", ErrType, t, err.Error())
	}
	l := layout{text: b.String(), name: t.String(), size: t.Size(), of: t}
	l.hash = attach.NameHash(attach.NameType, l.text)
	return l, nil
}

// typeError says what is wrong with one part of a type. path is as one would select the part:
// "Body.Meta.Name", or "Body[]" for the elements of an array. Without a dot or bracket it is the
// type itself.
type typeError struct{ path, what, remedy string }

func (e *typeError) Error() string {
	where := "it"
	switch {
	case strings.HasSuffix(e.path, "[]"):
		where = "each element of " + strings.TrimSuffix(e.path, "[]")
		if e.path == "[]" {
			where = "each element"
		}
	case strings.Contains(e.path, "."):
		where = "field " + e.path
	}
	return where + " is " + e.what + "; " + e.remedy
}

const (
	noPointers = "shared memory holds no Go pointers, because they would point into the memory of one process and hide from its garbage collector; "
	useArray   = noPointers + "use a fixed-size array"
	useIndex   = noPointers + "use an index into a shared slice"
	useValue   = noPointers + "use a plain value"
)

// describe appends the canonical text of t. path names the part of the whole type that t is.
func describe(b *strings.Builder, t reflect.Type, path string) error {
	if t.PkgPath() == "sync" {
		return &typeError{path, "a " + t.String(), "it works in one process only; use dsm.Mutex, dsm.RWMutex or dsm.Barrier beside the shared memory, or sync/atomic in it"}
	}
	switch k := t.Kind(); k {
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64,
		// A uintptr is a number: the garbage collector does not follow it anyway. An address inside
		// the region even means the same in every process.
		reflect.Uintptr,
		reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		b.WriteString(k.String())
		return nil
	case reflect.Array:
		fmt.Fprintf(b, "[%d]", t.Len())
		if t.Len() == 0 {
			// nothing is stored, so anything may be the element; its alignment shows in the offsets
			// around
			return nil
		}
		return describe(b, t.Elem(), path+"[]")
	case reflect.Struct:
		return describeStruct(b, t, path)
	case reflect.String:
		return &typeError{path, "a string", useArray + " of bytes, or a heap.String"}
	case reflect.Slice:
		return &typeError{path, "a slice", useArray + ", or a heap.Slice"}
	case reflect.Map:
		return &typeError{path, "a map", noPointers + "use a collections.Map beside the shared memory"}
	case reflect.Interface:
		return &typeError{path, "an interface", useValue}
	case reflect.Chan:
		return &typeError{path, "a channel", noPointers + "use a dsm.Mutex or dsm.Barrier"}
	case reflect.Func:
		return &typeError{path, "a function", useValue}
	case reflect.UnsafePointer:
		return &typeError{path, "an unsafe.Pointer", useIndex}
	default: // reflect.Pointer
		return &typeError{path, "a pointer", useIndex + ", or a heap.Ref"}
	}
}

func describeStruct(b *strings.Builder, t reflect.Type, path string) error {
	b.WriteString("struct{")
	for i := range t.NumField() {
		f := t.Field(i)
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(f.Name + "@" + strconv.Itoa(int(f.Offset)) + " ")
		if err := describe(b, f.Type, path+"."+f.Name); err != nil {
			return err
		}
	}
	// The size tells alignment and padding at the end apart.
	b.WriteString("}#" + strconv.Itoa(int(t.Size())))
	return nil
}
