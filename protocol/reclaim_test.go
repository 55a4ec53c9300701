package protocol

import (
	"slices"
	"testing"
)

// TestFreeingGoesStepByStep: a node frees pages in the phases in which the allocator goes through
// them with all nodes, and none out of turn, twice, or about other pages.
func TestFreeingGoesStepByStep(t *testing.T) {
	const last, count = lastPhase, 2
	e, first := New(Config{Self: 1, Nodes: 2, Pages: 8, HomeStripe: 1}), PageObject(4)
	free := func(phase uint32, count uint64) ([]Message, bool) {
		return said(e, Free{Phase: phase, Run: AppendRun(nil, first.Page(), count)}.To(1, first).SentBy(0))
	}
	refused := func(when string, phases ...uint32) {
		for _, phase := range phases {
			if sent, rejected := free(phase, count); !rejected || len(sent) > 0 {
				t.Errorf("%s phase %d is taken, and said is %v", when, phase, sent)
			}
		}
		if _, rejected := free(last, count+1); !rejected {
			t.Errorf("%s the last phase of more pages is taken", when)
		}
	}
	confirmed := func(phase uint32, sent []Message, rejected bool) {
		if rejected || !slices.Equal(kindsOf(sent), []Kind{KindFreeAck}) || sent[0].AsFreeAck().Phase != phase {
			t.Errorf("phase %d is over, and said is %v; rejected: %v", phase, sent, rejected)
		}
	}
	refused("at first", 2, last)
	sent, rejected := free(1, count)
	confirmed(1, sent, rejected)
	refused("after phase 1", 1, last)
	if sent, rejected := free(2, count); rejected || len(sent) > 0 {
		t.Fatalf("phase 2 is rejected: %v; or over at once: %v", rejected, sent)
	}
	refused("in phase 2", 1, 2, last)
	out := e.Step(Event{Kind: EventFreed, Object: first}, nil)
	if len(out) != 1 {
		t.Fatalf("the pages are forgotten: %v", out)
	}
	confirmed(2, []Message{out[0].Message}, false)
	refused("after phase 2", 1, 2)
	sent, rejected = free(last, count)
	confirmed(last, sent, rejected)
	refused("in the end", 2, last)
}
