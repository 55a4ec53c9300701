package node

import (
	"reflect"
	"strings"
	"testing"

	"dsmd/protocol"
)

// TestExecutorKnowsNoEngine: from an executor no field leads to the engine, nor to a part that
// decides. So nothing that is carried out can let an event happen in the middle of another.
func TestExecutorKnowsNoEngine(t *testing.T) {
	deciding := []reflect.Type{
		reflect.TypeFor[protocol.Engine](), reflect.TypeFor[driver](), reflect.TypeFor[Node](), reflect.TypeFor[intake](),
		reflect.TypeFor[programs](), reflect.TypeFor[calls](), reflect.TypeFor[members](),
	}
	seen := map[reflect.Type]bool{}
	var follow func(reflect.Type, string)
	follow = func(x reflect.Type, way string) {
		for x.Kind() == reflect.Pointer || x.Kind() == reflect.Slice || x.Kind() == reflect.Map || x.Kind() == reflect.Array {
			x = x.Elem()
		}
		if x.Kind() != reflect.Struct || seen[x] || !strings.HasPrefix(x.PkgPath(), "dsmd") {
			return
		}
		seen[x] = true
		for _, d := range deciding {
			if x == d {
				t.Errorf("%s leads to %v", way, x)
			}
		}
		for i := range x.NumField() {
			follow(x.Field(i).Type, way+"."+x.Field(i).Name)
		}
	}
	follow(reflect.TypeFor[executor](), "executor")
	if len(seen) < 5 {
		t.Errorf("only %d types were looked at", len(seen))
	}
}

// TestNoStepWithinAnEffect: an event may not be let happen, with all that follows, while an effect
// is carried out.
func TestNoStepWithinAnEffect(t *testing.T) {
	d := newPair(t).nodes[0].drive
	d.effects, d.done = append(d.effects, protocol.Effect{}), 1 // as in drain
	defer func() {
		d.effects, d.done = nil, 0
		if recover() == nil {
			t.Error("a step from within an effect was taken")
		}
	}()
	d.step(protocol.Event{Kind: protocol.EventFault, Object: protocol.PageObject(0), Access: protocol.Read})
}
