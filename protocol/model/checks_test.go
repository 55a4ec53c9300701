package model

import (
	"strings"
	"testing"

	"dsmd/protocol"
)

// refusing is an allocator whose engine has less room than the model believes.
func refusing(pages, believed uint64) *Node {
	config := Config{Nodes: 2, HomeStripe: 1, Hold: 10, MaxHold: 10, Threads: []ThreadSpec{{Client: 1, Program: MustParseProgram("bind 0")}}}
	config.Pages = pages
	n := NewNode(&config, 0)
	config.Pages = believed
	return n
}

// TestWrongRefusals: an allocator that refuses memory has none, before and after, unless it has
// just given away the last.
func TestWrongRefusals(t *testing.T) {
	const room, none = 2 * boundPages, boundPages - 1
	answer := func(s protocol.Status) protocol.Effect {
		return protocol.Effect{Kind: protocol.EffectComplete, Client: 1, Ticket: 1, Status: s}
	}
	reply := func(s protocol.Status) protocol.Effect {
		return protocol.Effect{Kind: protocol.EffectSend, Message: protocol.NameReply{Status: s, Ticket: 1}.To(1)}
	}
	const ok, full = protocol.StatusOK, protocol.StatusNoSpace
	// what is no answer has a status of zero
	other := protocol.Effect{Kind: protocol.EffectSend, Message: protocol.Done{}.To(1, protocol.PageObject(0))}
	for name, test := range map[string]struct {
		believed uint64
		effects  []protocol.Effect
		wrong    bool
	}{
		"its own program":      {room, []protocol.Effect{answer(full)}, true},
		"another node's":       {room, []protocol.Effect{reply(full)}, true},
		"behind other effects": {room, []protocol.Effect{other, answer(full)}, true},
		"for another reason":   {room, []protocol.Effect{answer(protocol.StatusMismatch), reply(full)}, true},
		"no room":              {none, []protocol.Effect{answer(full), reply(full)}, false},
		"behind a name":        {room, []protocol.Effect{reply(ok), answer(full)}, false},
		"before a name":        {room, []protocol.Effect{reply(full), answer(ok)}, true},
		"no refusal":           {room, []protocol.Effect{answer(protocol.StatusMismatch)}, false},
	} {
		var out Outcome
		checkRefusals(refusing(room, test.believed), test.effects, &out)
		if (out.Violation != nil) != test.wrong || out.Violation != nil && out.Violation.Rule != RuleRefused {
			t.Errorf("%s: %v", name, out.Violation)
		}
	}
}

// TestRefusalIsChecked: each step of an allocator is looked at.
func TestRefusalIsChecked(t *testing.T) {
	for _, test := range []struct {
		pages, believed uint64
		wrong           bool
	}{{boundPages - 1, boundPages, true}, {boundPages - 1, boundPages - 1, false}, {boundPages, boundPages, false}} {
		n := refusing(test.pages, test.believed)
		var out Outcome
		n.step(protocol.Event{Kind: protocol.EventName, Client: 1, Ticket: 1, Payload: nameCall(n.config.Threads[0].Program[0], 1)}, nil, &out)
		if wrong := out.Violation != nil && strings.Contains(out.Violation.Rule, RuleRefused); wrong != test.wrong {
			t.Errorf("a name of %d pages, in a region of %d that is believed to have %d: %v", boundPages, test.pages, test.believed, out.Violation)
		}
	}
}
