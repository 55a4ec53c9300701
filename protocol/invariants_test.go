package protocol

import (
	"fmt"
	"strings"
	"testing"
)

// TestInvariantsAreChecked: what contradicts itself ends a program that was built with the tag
// invariants: at once where the step was about it, or where there is little; else before long.
func TestInvariantsAreChecked(t *testing.T) {
	verify := func(e *Engine, ev Event, out ...Effect) (said string) {
		defer func() {
			if r := recover(); r != nil {
				said = fmt.Sprint(r)
			}
		}()
		e.verify(ev, out)
		return ""
	}
	engine := func(objects uint64) (*Engine, *object) {
		e := New(Config{Nodes: 2, Pages: 1000, HomeStripe: 1})
		for p := range objects {
			e.objects.get(PageObject(p))
		}
		return e, e.objects.find(PageObject(0))
	}
	fault := func(p uint64) Event { return Event{Kind: EventFault, Object: PageObject(p)} }
	for _, objects := range []uint64{2, everyStep / 2, everyStep + 1, 5 * everyStep} {
		e, o := engine(objects)
		if said := verify(e, fault(0)); said != "" {
			t.Fatal(said)
		}
		e.now = 1
		o.set(exclusiveFlag, true) // and nobody owns it
		if said := verify(e, fault(0)); !strings.Contains(said, "page:0: exclusive without an owner") {
			t.Errorf("of %d objects, one that the step was about is broken: %q", objects, said)
		}
		most := Time(1)
		if objects > everyStep {
			most = 20 * Time(objects)
		}
		for e.now = 1; verify(e, fault(1)) == ""; e.now++ {
			if e.now == most {
				t.Errorf("of %d objects one was broken, and %d steps did not notice", objects, most)
				break
			}
		}
	}
	e, _ := engine(1)
	for want, f := range map[string]Effect{
		"of kind Request from 0 to 0": {Kind: EffectSend, Message: Request{}.To(0, 0)},
		"was ordered":                 {Kind: EffectInstall, Object: PageObject(0)},
		"a hold of page:0":            {Kind: EffectHold, Object: PageObject(0)},
	} {
		if said := verify(e, fault(0), f); !strings.Contains(said, want) {
			t.Errorf("effect %+v: %q, want %q", f, said, want)
		}
	}
}
