package protocol

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

// ofRecoveries is empty, or what it was at first, until recovery.marked is made, and left out until
// then.
var ofRecoveries = []string{"engine.view", "engine.recovery", "engine.dir.suspects", "engine.evac", "engine.registry.here"}

// sharedByClones are what an engine and its clone may have in common, because it is replaced and
// never changed in place.
var sharedByClones = []string{
	"engine.view.members", "engine.view.homes", "engine.view.before[]", "engine.recovery.reports[].payload", "engine.recovery.pieces[]", "engine.recovery.held[].Payload",
	"engine.dir.suspects[].before", "engine.dir.suspects[].after", "engine.barriers.calls[].payload", "engine.names.calls[].payload", "engine.names.undone[].payload", "engine.names.uses[].call", "engine.barriers.open[].arrivals[].payload",
	"engine.barriers.unconfirmed[].to", "engine.barriers.unconfirmed[].result", "engine.barriers.openings[].releases",
}

// open makes a field accessible that is not exported. Preconditions: the value is addressable.
func open(v reflect.Value) reflect.Value {
	return reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
}

// isShared tells fields by which a machine refers to what it shares with others from those that are
// its own. Each is looked at where it belongs.
func isShared(t reflect.Type, i int) bool {
	of := t.Field(i).Type
	return of == reflect.TypeFor[*env]() || of == reflect.TypeFor[*pages]()
}

// fill gives every field a value other than zero, every list and map one element.
func fill(v reflect.Value) {
	v = open(v)
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.String:
		v.SetString("x")
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if !isShared(v.Type(), i) {
				fill(v.Field(i))
			}
		}
	default:
		panic("a field of kind " + v.Kind().String())
	}
}

// fullEngine is an engine in all of whose fields there is something, and what it knows of one page
// on which all kinds of things are under way. It is in no state that could be.
func fullEngine() (*Engine, ObjectID) {
	e := New(Config{Nodes: 3, Pages: 8, HomeStripe: 1})
	for _, part := range []any{e, e.pages, e.env} {
		v := reflect.ValueOf(part).Elem()
		for i := range v.NumField() {
			name := "engine." + v.Type().Field(i).Name
			if !isShared(v.Type(), i) && (name == "engine.pace" || Undecisive[name] == "") {
				fill(v.Field(i))
			}
		}
	}
	o := e.objects.get(PageObject(1))
	p := e.pendingOf(o)
	pending := o.pending
	fill(reflect.ValueOf(o).Elem())
	fill(reflect.ValueOf(p).Elem())
	o.id, o.pending = PageObject(1), pending
	p.mode, p.op = homeBusyExclusive, EffectRevoke
	return e, o.id
}

// eachLeaf calls visit for all that can be changed by itself: with its path, and what changes it.
// change returns what takes that back.
func eachLeaf(path string, v reflect.Value, visit func(path string, change func() func())) {
	v = open(v)
	set := func(to reflect.Value) func() func() {
		return func() func() {
			before := reflect.New(v.Type()).Elem()
			before.Set(v)
			v.Set(to)
			return func() { v.Set(before) }
		}
	}
	other := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.Bool:
		visit(path, set(other))
	case reflect.Int, reflect.Int64:
		other.SetInt(v.Int() + 1)
		visit(path, set(other))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		other.SetUint(v.Uint() ^ 2)
		visit(path, set(other))
	case reflect.String:
		other.SetString("y")
		visit(path, set(other))
	case reflect.Pointer:
		eachLeaf(path, v.Elem(), visit)
	case reflect.Slice:
		visit(path, set(other))
		for i := range v.Len() {
			eachLeaf(path+"[]", v.Index(i), visit)
		}
	case reflect.Array:
		for i := range v.Len() {
			eachLeaf(path, v.Index(i), visit)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			value := reflect.New(v.Type().Elem()).Elem()
			value.Set(v.MapIndex(key))
			eachLeaf(path+"[]", value, func(path string, change func() func()) {
				visit(path, func() func() {
					back := change()
					v.SetMapIndex(key, value)
					return func() { back(); v.SetMapIndex(key, value) }
				})
			})
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if isShared(v.Type(), i) {
				continue
			}
			name := path + "." + v.Type().Field(i).Name
			if f := v.Type().Field(i); f.Anonymous {
				name = path
			}
			eachLeaf(name, v.Field(i), visit)
		}
	}
}

// within says which of these names a path is, or is in: "" if none.
func within(path string, names func(yield func(string) bool)) string {
	for name := range names {
		if path == name || strings.HasPrefix(path, name+".") || strings.HasPrefix(path, name+"[]") {
			return name
		}
	}
	return ""
}

// TestStateHasEveryField: the explorer takes two engines for one that AppendState encodes alike. So
// it has to encode every field, unless there is a reason.
func TestStateHasEveryField(t *testing.T) {
	e, id := fullEngine()
	o := e.objects.find(id)
	used := map[string]bool{}
	names := func(yield func(string) bool) {
		for name := range Undecisive {
			if !yield(name) {
				return
			}
		}
	}
	visit := func(path string, change func() func()) {
		before := e.AppendState(nil)
		back := change()
		after := e.AppendState(nil)
		back()
		exempt := within(path, names)
		used[exempt] = true
		if exempt == "" && bytes.Equal(before, after) {
			t.Errorf("AppendState does not have %s: two engines that differ in it count as one. Encode it, or say in Undecisive why it decides nothing", path)
		}
	}
	all := func(path string, change func() func()) {
		if name := within(path, slices.Values([]string{"engine.objects", "engine.pendings", "engine.freePendings"})); name != "" {
			used[name] = true
			return // these hold together
		}
		visit(path, change)
	}
	eachLeaf("engine", reflect.ValueOf(e).Elem(), all)
	eachLeaf("engine", reflect.ValueOf(e.pages).Elem(), all)
	eachLeaf("engine", reflect.ValueOf(e.env).Elem(), all)
	eachLeaf("object", reflect.ValueOf(o).Elem(), func(path string, change func() func()) {
		if path != "object.id" && path != "object.access" && path != "object.pending" {
			visit(path, change)
		}
	})
	named := uint16(0)
	for name, bits := range Packed["object.access"] {
		mask := uint16(bits)
		named |= mask
		visit("object.access."+name, func() func() {
			before := o.access
			o.access ^= mask & -mask
			return func() { o.access = before }
		})
	}
	if named != ^uint16(0) {
		t.Errorf("Packed names the bits %016b of object.access, and not the others", named)
	}
	eachLeaf("pending", reflect.ValueOf(e.peek(o)).Elem(), visit)
	used["object.pending"] = true
	for name := range Undecisive {
		if !used[name] {
			t.Errorf("%s is no field any more", name)
		}
	}
}

// TestStateHasEveryFieldAlone: nor may a field be left out because there is nothing in another one.
func TestStateHasEveryFieldAlone(t *testing.T) {
	config := Config{Nodes: 3, Pages: 8, HomeStripe: 1}
	empty := New(config).AppendState(nil)
	var alone func(path string, at func(*Engine) reflect.Value)
	alone = func(path string, at func(*Engine) reflect.Value) {
		e := New(config)
		v := open(at(e))
		switch {
		case Undecisive[path] != "" || slices.Contains(ofRecoveries, path):
		case v.Kind() == reflect.Struct:
			for i := range v.NumField() {
				if !isShared(v.Type(), i) {
					alone(path+"."+v.Type().Field(i).Name, func(e *Engine) reflect.Value { return open(at(e)).Field(i) })
				}
			}
		default:
			if fill(v); path == "engine.backups.store" {
				e.backups.kept = []ObjectID{1}
			}
			if bytes.Equal(empty, e.AppendState(nil)) {
				t.Errorf("AppendState leaves out %s where there is nothing else", path)
			}
		}
	}
	alone("engine", func(e *Engine) reflect.Value { return reflect.ValueOf(e).Elem() })
	alone("engine", func(e *Engine) reflect.Value { return reflect.ValueOf(e.pages).Elem() })
	alone("engine", func(e *Engine) reflect.Value { return reflect.ValueOf(e.env).Elem() })
}

// TestCloneHasEveryField: a clone has all that the engine has, and nothing in common with it that
// either changes.
func TestCloneHasEveryField(t *testing.T) {
	e, id := fullEngine()
	c := e.Clone()
	// compared below: a clone's slabs are shorter
	pages := []string{"engine.objects", "engine.pendings"}
	compareClone(t, "engine", reflect.ValueOf(e).Elem(), reflect.ValueOf(c).Elem(), nil)
	compareClone(t, "engine", reflect.ValueOf(e.pages).Elem(), reflect.ValueOf(c.pages).Elem(), pages)
	compareClone(t, "engine", reflect.ValueOf(e.env).Elem(), reflect.ValueOf(c.env).Elem(), nil)
	compareClone(t, "object", reflect.ValueOf(e.objects.find(id)).Elem(), reflect.ValueOf(c.objects.find(id)).Elem(), nil)
	compareClone(t, "pending", reflect.ValueOf(e.peek(e.objects.find(id))).Elem(), reflect.ValueOf(c.peek(c.objects.find(id))).Elem(), nil)
	if e.objects.find(id) == c.objects.find(id) || e.peek(e.objects.find(id)) == c.peek(c.objects.find(id)) {
		t.Error("an engine and its clone have an object in common")
	}
}

// TestMachinesShareTheirOwn: the machines of a clone refer to what that clone has, not to the
// engine's.
func TestMachinesShareTheirOwn(t *testing.T) {
	c := New(Config{Nodes: 3, Pages: 8, HomeStripe: 1}).Clone()
	found := 0
	for _, part := range []any{c, c.pages} {
		v := reflect.ValueOf(part).Elem()
		for i := range v.NumField() {
			machine := open(v.Field(i))
			if machine.Kind() != reflect.Struct || machine.NumField() == 0 || !isShared(machine.Type(), 0) {
				continue
			}
			found++
			if at := open(machine.Field(0)).UnsafePointer(); at != unsafe.Pointer(c.env) && at != unsafe.Pointer(c.pages) {
				t.Errorf("%s of a clone refers to something else", v.Type().Field(i).Name)
			}
		}
	}
	if found < 12 {
		t.Errorf("only %d machines were looked at", found)
	}
}

// compareClone compares a and b, which is of the clone.
func compareClone(t *testing.T, path string, a, b reflect.Value, but []string) {
	t.Helper()
	if slices.Contains(but, path) {
		return
	}
	a, b = open(a), open(b)
	may := within(path, slices.Values(sharedByClones)) != ""
	switch a.Kind() {
	case reflect.Struct:
		for i := range a.NumField() {
			if isShared(a.Type(), i) {
				continue // see TestMachinesShareTheirOwn
			}
			name := path + "." + a.Type().Field(i).Name
			if a.Type().Field(i).Anonymous {
				name = path
			}
			compareClone(t, name, a.Field(i), b.Field(i), but)
		}
	case reflect.Slice, reflect.Array:
		if a.Len() != b.Len() {
			t.Errorf("%s has %d elements, and in a clone %d", path, a.Len(), b.Len())
			return
		}
		if a.Kind() == reflect.Slice && a.Len() > 0 && a.Pointer() == b.Pointer() && !may {
			t.Errorf("%s is one list in an engine and its clone", path)
		}
		for i := range a.Len() {
			compareClone(t, path+"[]", a.Index(i), b.Index(i), but)
		}
	case reflect.Pointer:
		if a.Pointer() == b.Pointer() && !may {
			t.Errorf("%s is one in an engine and its clone", path)
		}
		compareClone(t, path, a.Elem(), b.Elem(), but)
	case reflect.Map:
		if a.Pointer() == b.Pointer() && !may {
			t.Errorf("%s is one map in an engine and its clone", path)
		}
		fallthrough
	default:
		if !reflect.DeepEqual(a.Interface(), b.Interface()) {
			t.Errorf("%s is %v, and in a clone %v", path, a, b)
		}
	}
}
