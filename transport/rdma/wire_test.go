package rdma

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// TestHeaderChecks: what no sender sends is refused.
func TestHeaderChecks(t *testing.T) {
	message := func(h header, piece int) []byte {
		b := make([]byte, headerBytes+piece)
		h.put(b)
		return b
	}
	for name, b := range map[string][]byte{
		"too short":                  make([]byte, headerBytes-1),
		"unknown flag":               message(header{number: 1, slot: noSlot, flags: 8}, 1),
		"page before the end":        message(header{number: 1, slot: 0, flags: flagMore | flagPage}, 1),
		"acknowledgement with piece": message(header{slot: noSlot}, 1),
		"acknowledgement with page":  message(header{flags: flagPage}, 0),
		"no piece":                   message(header{number: 1, slot: noSlot}, 0),
		"long piece":                 message(header{number: 1, slot: noSlot}, pieceBytes+1),
		"slot without a page":        message(header{number: 1, slot: 3}, 1),
	} {
		if _, _, err := readHeader(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v, want ErrMalformed", name, err)
		}
	}
}

// FuzzHeader: any input gives an error or a header that is written the same way again.
func FuzzHeader(f *testing.F) {
	for _, h := range []header{{slot: noSlot}, {number: 3, ack: 2, slot: 1, flags: flagPage}, {number: 1, slot: noSlot, flags: flagMore}, {slot: noSlot, flags: flagAck}} {
		b := make([]byte, headerBytes, headerBytes+4)
		h.put(b)
		f.Add(b)
		f.Add(append(b, "text"...))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		h, piece, err := readHeader(input)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Errorf("%v is no ErrMalformed", err)
			}
			return
		}
		b := make([]byte, headerBytes)
		h.put(b)
		if !bytes.Equal(append(b, piece...), input) {
			t.Errorf("%x was read as %+v, which is written as %x", input, h, b)
		}
	})
}

// FuzzTerms: any input gives an error or terms that are written the same way again.
func FuzzTerms(f *testing.F) {
	f.Add(appendTerms(nil, noteOffer, terms{generation: 1, window: 2, slots: 3, address: 4, key: 5, device: []byte("device")}))
	f.Fuzz(func(t *testing.T, input []byte) {
		if len(input) == 0 {
			return // it has no note
		}
		read, err := readTerms(input)
		if err != nil {
			return
		}
		if b := appendTerms(nil, note(input[0]), read); !bytes.Equal(b, input) {
			t.Errorf("%x was read as %+v, which is written as %x", input, read, b)
		}
	})
}

// FuzzGeneration: any input gives an error or a text that is short and printable.
func FuzzGeneration(f *testing.F) {
	f.Add(appendGeneration(nil, noteBroken, 7, "why"))
	f.Add(appendGeneration(nil, noteBroken, 7, strings.Repeat("x", 2*maxTextBytes)))
	f.Add(appendGeneration(nil, noteBroken, 7, "a\nb\x00"))
	f.Fuzz(func(t *testing.T, input []byte) {
		_, text, err := readGeneration(input)
		if err != nil {
			return
		}
		if len(text) > maxTextBytes || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%x was read as %q", input, text)
		}
	})
}
