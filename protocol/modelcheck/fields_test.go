package modelcheck

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

// Whenever a node is reached, its engine is compared, field by field, with the first one of the
// same encoding. So where the encoding lacks a field, two engines that differ in it alone show
// that, whether or not they ever behave differently. Fields that are listed as undecisive may
// differ.

// compareFields compares the engine of a node that was just reached with one of the same encoding.
func (x *explorer) compareFields(first *nodeState, reached *twin) {
	if field := x.compare.unequal(model.EngineOf(first.node), model.EngineOf(reached.node)); field != "" {
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

// comparer compares engines. It remembers which fields there are to compare: by name and type of
// what they are in.
type comparer map[place][]field

type place struct {
	path string
	of   reflect.Type
}

type field struct {
	index int
	path  string
}

// unequal names a field in which two engines differ, and what they have there; "" if none. Lists
// are equal if their elements are: a list that is nil is one that is empty. An engine of a node
// that has crashed is nil.
func (c comparer) unequal(a, b *protocol.Engine) string {
	if a == nil || b == nil {
		return unless(a == b, "engine", a, b)
	}
	mine, other := protocol.Parts(a), protocol.Parts(b)
	known := func(p protocol.Part, q protocol.Part) bool { return p.Name == q.Name && p.Object == q.Object }
	if !slices.EqualFunc(mine, other, known) {
		return "the pages and locks that they know, or where something is pending"
	}
	for i, part := range mine {
		found := c.values(part.Name, reflect.ValueOf(part.Of).Elem(), reflect.ValueOf(other[i].Of).Elem())
		if found != "" && part.Name != "engine" {
			found = fmt.Sprintf("%s (of %v)", found, part.Object)
		}
		if found != "" {
			return found
		}
	}
	return ""
}

// values compares one value of each engine, called path. It only reads them, which is allowed in
// fields that are not exported.
func (c comparer) values(path string, a, b reflect.Value) string {
	switch a.Kind() {
	case reflect.Struct:
		return c.structs(path, a, b)
	case reflect.Slice, reflect.Array:
		return c.lists(path, a, b)
	case reflect.Map:
		return c.maps(path, a, b)
	case reflect.Pointer:
		if a.IsNil() || b.IsNil() {
			return unless(a.IsNil() == b.IsNil(), path, a, b)
		}
		return c.values(path, a.Elem(), b.Elem())
	case reflect.Uint16:
		return packed(path, a.Uint(), b.Uint())
	}
	return unless(a.Equal(b), path, a, b)
}

func (c comparer) structs(path string, a, b reflect.Value) string {
	at := place{path, a.Type()}
	fields, known := c[at]
	if !known {
		fields = fieldsOf(at)
		c[at] = fields
	}
	for _, f := range fields {
		if found := c.values(f.path, a.Field(f.index), b.Field(f.index)); found != "" {
			return found
		}
	}
	return ""
}

// fieldsOf leaves out what is undecisive, and embedded pointers: they lead to other parts.
func fieldsOf(at place) []field {
	var all []field
	for i := range at.of.NumField() {
		f := at.of.Field(i)
		path := at.path
		if !f.Anonymous {
			path += "." + f.Name
		}
		if protocol.Undecisive[path] == "" && !(f.Anonymous && f.Type.Kind() == reflect.Pointer) {
			all = append(all, field{i, path})
		}
	}
	return all
}

func (c comparer) lists(path string, a, b reflect.Value) string {
	if a.Len() != b.Len() {
		return unless(false, path, a, b)
	}
	for i := range a.Len() {
		if found := c.values(path+"[]", a.Index(i), b.Index(i)); found != "" {
			return found
		}
	}
	return ""
}

func (c comparer) maps(path string, a, b reflect.Value) string {
	if a.Len() != b.Len() {
		return unless(false, path, a, b)
	}
	for _, key := range a.MapKeys() {
		other := b.MapIndex(key)
		if !other.IsValid() {
			return unless(false, path, a, b)
		}
		if found := c.values(path+"[]", a.MapIndex(key), other); found != "" {
			return found
		}
	}
	return ""
}

// packed compares a number, which may be several values in its bits.
func packed(path string, a, b uint64) string {
	if a == b || protocol.Packed[path] == nil {
		return unless(a == b, path, a, b)
	}
	bits := protocol.Packed[path]
	for _, name := range slices.Sorted(maps.Keys(bits)) {
		full := path + "." + name
		if protocol.Undecisive[full] == "" && (a^b)&bits[name] != 0 {
			return unless(false, full, a&bits[name], b&bits[name])
		}
	}
	return ""
}

// unless is "" if two values are equal, else which they are.
func unless(equal bool, path string, a, b any) string {
	if equal {
		return ""
	}
	return fmt.Sprintf("%s: %v and %v", path, a, b)
}
