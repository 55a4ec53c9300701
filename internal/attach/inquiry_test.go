package attach

import (
	"bytes"
	"errors"
	"testing"
)

// TestStrangeQuestions: what no correct side asks or answers is an error.
func TestStrangeQuestions(t *testing.T) {
	ask := AppendAsk(nil, &Ask{Question: AskSelf})[HeaderBytes:]
	tell := AppendTell(nil, &Tell{Statement: Statement{Pages: make([]PageWait, 1)}})[HeaderBytes:]
	for name, spoil := range map[string]func(b []byte){
		"no question":      func(b []byte) { b[0] = 0 },
		"unknown question": func(b []byte) { b[0] = byte(questionEnd) },
		"rank below none":  func(b []byte) { b[9], b[12] = 0, 0x80 },
	} {
		b := bytes.Clone(ask)
		spoil(b)
		if _, err := DecodeAsk(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, at := range map[string]int{"last": 8, "presence": 9, "pages": 28, "stage": 28 + 2 + 2*8 + 4} {
		b := bytes.Clone(tell)
		b[at] = 0x7f
		if _, err := DecodeTell(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPair: what is said at one end is heard at the other.
func TestPair(t *testing.T) {
	own, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	defer closeAll([]int{theirs})
	if err := own.Write(AppendBye(nil)); err != nil {
		t.Fatal(err)
	}
	var s Stream
	if err := Receive(theirs, &s); err != nil {
		t.Fatal(err)
	}
	if f, ok, err := s.Next(); !ok || err != nil || f.Kind != KindBye {
		t.Errorf("heard %v, %v, %v", f.Kind, ok, err)
	}
}
