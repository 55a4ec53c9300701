package dsm

import (
	"errors"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

type meta struct {
	ID   int32
	Name string
}

type body struct {
	Pos  [3]float64
	Meta meta
}

type node struct{ Next *node }

type grid struct{ Rows [4][]float64 }

type withLock struct {
	mu sync.Mutex
	N  int
}

type good struct {
	A bool
	B atomic.Int64
	C [2]struct{ X, Y complex64 }
	D uintptr
	_ [0]func()
}

func TestTypesThatCannotBeShared(t *testing.T) {
	check := func(_ layout, err error, parts ...string) {
		t.Helper()
		if !errors.Is(err, ErrType) {
			t.Errorf("error %v for a type with %v", err, parts)
			return
		}
		for _, p := range parts {
			if !strings.Contains(err.Error(), p) {
				t.Errorf("error %q does not say %q", err, p)
			}
		}
	}
	l, err := layoutOf[body]()
	check(l, err, "dsm.body", "field body.Meta.Name is a string", "no Go pointers", "fixed-size array")
	l, err = layoutOf[node]()
	check(l, err, "field node.Next is a pointer", "index")
	l, err = layoutOf[grid]()
	check(l, err, "each element of grid.Rows is a slice")
	l, err = layoutOf[[3]string]()
	check(l, err, "each element is a string")
	l, err = layoutOf[withLock]()
	check(l, err, "field withLock.mu is a sync.Mutex", "one process only", "dsm.Mutex")
	l, err = layoutOf[struct{ M map[int]int }]()
	check(l, err, "field .M is a map")
	l, err = layoutOf[any]()
	check(l, err, "it is an interface")
	l, err = layoutOf[chan int]()
	check(l, err, "it is a channel")
	l, err = layoutOf[func()]()
	check(l, err, "it is a function")
	l, err = layoutOf[unsafePointer]()
	check(l, err, "unsafe.Pointer")
	l, err = layoutOf[atomic.Pointer[int]]()
	check(l, err, "unsafe.Pointer")
	l, err = layoutOf[time.Time]()
	check(l, err, "field Time.loc is a pointer")
}

// TestShareable: others are told what Alloc refuses.
func TestShareable(t *testing.T) {
	if err := Shareable[body](); !errors.Is(err, ErrType) || !strings.Contains(err.Error(), "field body.Meta.Name is a string") {
		t.Errorf("a type with a string: %v", err)
	}
	if err := Shareable[good](); err != nil {
		t.Error(err)
	}
}

func TestTypesThatCanBeShared(t *testing.T) {
	l, err := layoutOf[good]()
	if err != nil || l.size != reflect.TypeFor[good]().Size() {
		t.Fatalf("%+v, %v", l, err)
	}
	if want := "dsm.good = struct{A@0 bool; B@8 struct{"; !strings.HasPrefix(l.String(), want) {
		t.Errorf("described as %q, want %q...", l, want)
	}
	if l, err := layoutOf[struct{}](); err != nil || l.size != 0 {
		t.Errorf("struct{}: %+v, %v", l, err)
	}
	type celsius float64
	a, _ := layoutOf[celsius]()
	b, _ := layoutOf[float64]()
	if a.hash != b.hash {
		t.Error("the name of a type changes its layout")
	}
	type xy struct{ X, Y int }
	type yx struct{ Y, X int }
	c, _ := layoutOf[xy]()
	d, _ := layoutOf[yx]()
	if c.hash == d.hash {
		t.Error("swapped fields have the same layout")
	}
}

// genType makes any type out of a few kinds, with pointers in some. It says whether the type may be
// shared.
func genType(depth int) *rapid.Generator[reflect.Type] {
	return rapid.Custom(func(t *rapid.T) reflect.Type {
		kinds := []string{"int", "float64", "bool", "uint8", "uintptr", "pointer", "string"}
		if depth > 0 {
			kinds = append(kinds, "array", "struct", "struct")
		}
		switch rapid.SampledFrom(kinds).Draw(t, "kind") {
		case "int":
			return reflect.TypeFor[int]()
		case "float64":
			return reflect.TypeFor[float64]()
		case "bool":
			return reflect.TypeFor[bool]()
		case "uint8":
			return reflect.TypeFor[uint8]()
		case "uintptr":
			return reflect.TypeFor[uintptr]()
		case "pointer":
			return reflect.TypeFor[*int]()
		case "string":
			return reflect.TypeFor[string]()
		case "array":
			return reflect.ArrayOf(rapid.IntRange(1, 3).Draw(t, "length"), genType(depth-1).Draw(t, "element"))
		default:
			fields := make([]reflect.StructField, rapid.IntRange(0, 3).Draw(t, "fields"))
			for i := range fields {
				fields[i] = reflect.StructField{Name: string(rune('A' + i)), Type: genType(depth-1).Draw(t, "field")}
			}
			return reflect.StructOf(fields)
		}
	})
}

// hasPointers is what the garbage collector would have to follow.
func hasPointers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.String:
		return true
	case reflect.Array:
		return hasPointers(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if hasPointers(t.Field(i).Type) {
				return true
			}
		}
	}
	return false
}

// TestLayoutIsCanonical: a type is refused if and only if it has pointers, and two types have the
// same text if and only if they are identical. (reflect makes identical types equal.)
func TestLayoutIsCanonical(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := genType(3).Draw(t, "a"), genType(3).Draw(t, "b")
		var ta, tb strings.Builder
		errA, errB := describe(&ta, a, ""), describe(&tb, b, "")
		if (errA != nil) != hasPointers(a) {
			t.Fatalf("%v: error %v, has pointers: %v", a, errA, hasPointers(a))
		}
		if errA == nil && errB == nil && (ta.String() == tb.String()) != (a == b) {
			t.Fatalf("%v is described as %s, and %v as %s", a, &ta, b, &tb)
		}
	})
}
