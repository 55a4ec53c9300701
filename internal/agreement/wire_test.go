package agreement

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// samples has one message of each form.
func samples() []message {
	first, second := makeBallot(1, 0), makeBallot(2, MaxNodes-1)
	var all []NodeID
	for n := range NodeID(MaxNodes) {
		all = append(all, n)
	}
	return []message{
		{kind: prepare, epoch: 1, ballot: first},
		{kind: promise, epoch: 1, ballot: second},
		{kind: promise, epoch: 1, ballot: second, voted: first, view: view{members: []NodeID{0, 1, MaxNodes - 1}}},
		{kind: accept, epoch: 1 << 31, ballot: second, view: view{members: []NodeID{5}}},
		{kind: accepted, epoch: 2, ballot: second},
		{kind: refuse, epoch: 2, ballot: 1<<64 - 1},
		{kind: decided, epoch: 3, view: view{members: []NodeID{0, 1, 2}}},
		{kind: decided, epoch: 3, view: view{members: []NodeID{0, 1, 2}, leaving: []NodeID{0, 2}}},
		{kind: decided, epoch: 3, view: view{members: all}},
		{kind: decided, epoch: 3, view: view{members: []NodeID{0, 2, 5}, leaving: []NodeID{5}, processes: []process{{2, 1}, {5, 1<<64 - 1}}}},
		{kind: query, epoch: 3},
	}
}

func TestWireForm(t *testing.T) {
	for _, m := range samples() {
		b := appendMessage(nil, &m)
		if got, err := decodeMessage(b); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%+v, %v; want %+v", got, err, m)
		}
		for cut := range b {
			if _, err := decodeMessage(b[:cut]); !errors.Is(err, ErrMalformed) {
				t.Errorf("%v cut to %d bytes: %v", m.kind, cut, err)
			}
		}
		if _, err := decodeMessage(append(b, 0)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%v with a byte more: %v", m.kind, err)
		}
	}
}

func TestMalformed(t *testing.T) {
	b := makeBallot(1, 1)
	for want, m := range map[string]message{
		"kind 0":               {kind: 0, epoch: 1},
		"kind 8":               {kind: kindEnd, epoch: 1},
		"for epoch 0":          {kind: query},
		"prepare with ballot":  {kind: prepare, epoch: 1},
		"query with ballot":    {kind: query, epoch: 1, ballot: b},
		"decided with ballot":  {kind: decided, epoch: 1},
		"promise with ballot":  {kind: promise, epoch: 1, ballot: b, voted: b, view: view{members: []NodeID{1}}},
		"accept with ballot":   {kind: accept, epoch: 1, ballot: b, voted: 1, view: view{members: []NodeID{1}}},
		"not in order":         {kind: decided, epoch: 1, view: view{members: []NodeID{1, 1}}},
		"accept with members":  {kind: accept, epoch: 1, ballot: b, view: view{members: []NodeID{MaxNodes}}},
		"vote 0 and 1 members": {kind: decided, epoch: 1, view: view{members: []NodeID{1}, leaving: []NodeID{1}}},
	} {
		if _, err := decodeMessage(appendMessage(nil, &m)); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; want %q", m, err, want)
		}
	}
}

// TestTooManyMembers: as many nodes as there can't be are not even read.
func TestTooManyMembers(t *testing.T) {
	m := message{kind: decided, epoch: 1, view: view{members: make([]NodeID, MaxNodes)}}
	b := appendMessage(nil, &m)
	at := bytes.Index(b, binary.LittleEndian.AppendUint16(nil, MaxNodes))
	binary.LittleEndian.PutUint16(b[at:], MaxNodes+1)
	if _, err := decodeMessage(b); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), "1025") {
		t.Errorf("%d members: %v", MaxNodes+1, err)
	}
}

// FuzzMessage: any bytes from anybody are either refused, changing nothing, or handled; and they
// are the only form of what they say.
func FuzzMessage(f *testing.F) {
	for _, m := range samples() {
		f.Add(uint16(1), appendMessage(nil, &m))
	}
	f.Fuzz(func(t *testing.T, from uint16, b []byte) {
		m, err := decodeMessage(b)
		if err == nil && !bytes.Equal(appendMessage(nil, &m), b) {
			t.Fatalf("%x says %+v, which is written otherwise", b, m)
		}
		for _, suspect := range []NodeID{3, 4} {
			// as a node that proposes, and as one that does not
			s := New(0, []NodeID{0, 1, 2, 3})
			s.Suspect(suspect, nil)
			out, err := s.Message(NodeID(from), b, nil)
			if err != nil && (len(out) > 0 || s.Epoch() != 0) {
				t.Fatalf("%+v after %v", out, err)
			}
			for range 100 {
				s.Tick(nil)
			}
			if !contains(s.members, 0) || !isSubset(s.leaving, s.members) || len(s.voters()) == 0 {
				t.Fatalf("the members are %v", s.members)
			}
		}
	})
}
