package modelcheck

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

// When a node is reached, its engine is compared, field by field, with the first one of the same
// encoding. So where the encoding lacks a field, two engines that differ in it alone show that,
// whether or not they ever behave differently. Fields that are listed as undecisive may differ.

const (
	// Of a configuration the first fieldsAlways nodes are compared, and then one in fieldsShare.
	fieldsAlways = 1 << 12
	fieldsShare  = 8
)

// compareFields compares the engine of a node that was just reached with one of the same encoding.
func (x *explorer) compareFields(first *nodeState, reached *twin) {
	if x.twins.met++; x.twins.met > fieldsAlways && x.twins.met%fieldsShare != 0 {
		return
	}
	if field := unequal(model.EngineOf(first.node), model.EngineOf(reached.node)); field != "" {
		x.differ(first, reached, ruleFields, "they differ in %s", field)
	}
}

// meetEngine does that for a node of which nothing is known. The engine may be: what the model has
// beside it is part of a node's encoding, and may happen to tell what the engine's should.
func (x *explorer) meetEngine(ns *nodeState) {
	e := model.EngineOf(ns.node)
	if e == nil {
		return
	}
	x.encoded = x.encodeEngine(e, append(x.encoded[:0], byte(ns.node.Self())))
	if first, known := x.engines[string(x.encoded)]; known {
		x.compareFields(first, &twin{ns.origin, ns.node})
	} else {
		x.engines[string(x.encoded)] = ns
	}
}

// layouts are of all parts of engines: *layout by place.
var layouts sync.Map

// place is a part of an engine, or what is in it, by name and type.
type place struct {
	path string
	of   reflect.Type
}

// layout is what there is to compare in values of one type, called path.
type layout struct {
	path   string
	kind   reflect.Kind
	fields []field // of a struct
	in     *layout // of a list, a map or a pointer: of what is in it
}

type field struct {
	index int
	*layout
}

// unequal names a field in which two engines differ, and what they have there; "" if none. Lists
// are equal if their elements are: a list that is nil is one that is empty. An engine of a node
// that has crashed is nil.
func unequal(a, b *protocol.Engine) string {
	if a == nil || b == nil {
		if a == b {
			return ""
		}
		return differing("engine", a, b)
	}
	mine, other := protocol.Parts(a), protocol.Parts(b)
	known := func(p protocol.Part, q protocol.Part) bool { return p.Name == q.Name && p.Object == q.Object }
	if !slices.EqualFunc(mine, other, known) {
		return "the pages and locks that they know, or where something is pending"
	}
	for i, part := range mine {
		found := unequalParts(part.Name, reflect.ValueOf(part.Of).Elem(), reflect.ValueOf(other[i].Of).Elem())
		if found != "" && part.Name != "engine" {
			found = fmt.Sprintf("%s (of %v)", found, part.Object)
		}
		if found != "" {
			return found
		}
	}
	return ""
}

func unequalParts(name string, a, b reflect.Value) string {
	at := place{name, a.Type()}
	l, known := layouts.Load(at)
	if !known {
		l, _ = layouts.LoadOrStore(at, layoutOf(at))
	}
	return l.(*layout).unequal(a, b)
}

// layoutOf leaves out what is undecisive, and embedded pointers: they lead to other parts.
func layoutOf(at place) *layout {
	l := &layout{path: at.path, kind: at.of.Kind()}
	switch l.kind {
	case reflect.Slice, reflect.Array, reflect.Map:
		l.in = layoutOf(place{at.path + "[]", at.of.Elem()})
	case reflect.Pointer:
		l.in = layoutOf(place{at.path, at.of.Elem()})
	case reflect.Struct:
		for i := range at.of.NumField() {
			f := at.of.Field(i)
			path := at.path
			if !f.Anonymous {
				path += "." + f.Name
			}
			if protocol.Undecisive[path] == "" && !(f.Anonymous && f.Type.Kind() == reflect.Pointer) {
				l.fields = append(l.fields, field{i, layoutOf(place{path, f.Type})})
			}
		}
	}
	return l
}

// unequal compares one value of each engine. It only reads them, which is allowed in fields that
// are not exported.
func (l *layout) unequal(a, b reflect.Value) string {
	switch l.kind {
	case reflect.Struct:
		for _, f := range l.fields {
			if found := f.unequal(a.Field(f.index), b.Field(f.index)); found != "" {
				return found
			}
		}
		return ""
	case reflect.Slice, reflect.Array:
		return l.lists(a, b)
	case reflect.Map:
		return l.maps(a, b)
	case reflect.Pointer:
		if !a.IsNil() && !b.IsNil() {
			return l.in.unequal(a.Elem(), b.Elem())
		}
	case reflect.Uint16:
		return packed(l.path, a.Uint(), b.Uint())
	}
	if a.Equal(b) {
		return ""
	}
	return differing(l.path, a, b)
}

func (l *layout) lists(a, b reflect.Value) string {
	if a.Len() != b.Len() {
		return differing(l.path, a, b)
	}
	for i := range a.Len() {
		if found := l.in.unequal(a.Index(i), b.Index(i)); found != "" {
			return found
		}
	}
	return ""
}

func (l *layout) maps(a, b reflect.Value) string {
	if a.Len() != b.Len() {
		return differing(l.path, a, b)
	}
	for _, key := range a.MapKeys() {
		other := b.MapIndex(key)
		if !other.IsValid() {
			return differing(l.path, a, b)
		}
		if found := l.in.unequal(a.MapIndex(key), other); found != "" {
			return found
		}
	}
	return ""
}

// packed compares a number, which may be several values in its bits.
func packed(path string, a, b uint64) string {
	if a == b {
		return ""
	}
	bits := protocol.Packed[path]
	if bits == nil {
		return differing(path, a, b)
	}
	for _, name := range slices.Sorted(maps.Keys(bits)) {
		full := path + "." + name
		if protocol.Undecisive[full] == "" && (a^b)&bits[name] != 0 {
			return differing(full, a&bits[name], b&bits[name])
		}
	}
	return ""
}

// differing says what two engines have in a field.
func differing(path string, a, b any) string { return fmt.Sprintf("%s: %v and %v", path, a, b) }
