package wire

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

type pair struct {
	A uint8
	B int64
}

type sample struct {
	number  uint16
	is      bool
	pair    pair
	id      [3]byte
	name    string
	raw     []byte
	cut     string
	line    string
	nodes   []uint16
	samples []sample
}

func (s *sample) fields() []any {
	return []any{&s.number, &s.is, &s.pair, &s.id, Text(&s.name, 5), Text(&s.raw, 300), Cut(&s.cut, 4), Line(&s.line, 200),
		List(&s.nodes, 3, Item), List(&s.samples, 2, (*sample).fields)}
}

func samples() []sample {
	inner := sample{raw: []byte{}, name: "inner"}
	return []sample{
		{raw: []byte{}},
		{number: 0x102, is: true, pair: pair{3, -4}, id: [3]byte{5, 6, 7}, name: "é", raw: bytes.Repeat([]byte{8}, 300), cut: "cut", line: "a line",
			nodes: []uint16{9, 10, 11}, samples: []sample{inner, {raw: []byte{12}}}},
	}
}

func TestRoundTrip(t *testing.T) {
	for _, want := range samples() {
		b := Append([]byte{99}, want.fields()...)[1:]
		var got sample
		if err := Decode(b, got.fields()...); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
		for n := range b {
			if err := Decode(b[:n], new(sample).fields()...); err == nil {
				t.Errorf("the first %d of %d bytes were decoded", n, len(b))
			}
		}
		if err := Decode(append(b, 0), new(sample).fields()...); err == nil || !strings.Contains(err.Error(), "1 bytes follow") {
			t.Errorf("with a byte too many: %v", err)
		}
	}
	if b := Append(nil, &pair{1, 2}); !bytes.Equal(b, []byte{1, 2, 0, 0, 0, 0, 0, 0, 0}) {
		t.Errorf("a pair is %x", b)
	}
}

func TestTextsThatAreChanged(t *testing.T) {
	cut, line, got := "12345", "a\nb\xff"+strings.Repeat("c", 10), ""
	if err := Decode(Append(nil, Cut(&cut, 4)), Cut(&got, 4)); err != nil || got != "1234" {
		t.Errorf("cut to %q, %v", got, err)
	}
	if err := Decode(Append(nil, Line(&line, 6)), Line(&got, 6)); err != nil || got != "a?b?cc" || line[1] != '\n' {
		t.Errorf("a line is %q, %v", got, err)
	}
}

func TestRefused(t *testing.T) {
	var is bool
	var text string
	var list []uint16
	for want, c := range map[string]struct {
		b     []byte
		field any
	}{
		"field that can't be so, in 1 bytes":     {[]byte{2}, &is},
		"field that can't be so, in 3 bytes":     {[]byte{1, 0, '\n'}, Line(&text, 9)},
		"a text or list of length 10":            {append([]byte{10, 0}, make([]byte, 10)...), Text(&text, 9)},
		"a text or list of length 4":             {append([]byte{4, 0}, make([]byte, 8)...), List(&list, 3, Item)},
		"it is cut short, in 1 bytes":            {[]byte{0}, List(&list, 3, Item)},
		"it is cut short, in 4 bytes":            {[]byte{3, 0, 'a', 'b'}, Text(&text, 9)},
		"it is cut short, in 5 bytes":            {[]byte{2, 0, 1, 0, 2}, List(&list, 3, Item)},
		"3 bytes follow its last field, of 4":    {[]byte{1, 1, 1, 1}, &is},
		"2 bytes follow its last field, of 6":    {[]byte{1, 0, 1, 0, 2, 0}, List(&list, 3, Item)},
		"it has a text or list of length 1, of ": {[]byte{1, 0, 'x'}, Text(&text, 0)},
	} {
		if err := Decode(c.b, c.field); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%x: %v, want %q", c.b, err, want)
		}
	}
}

func TestWhatCannotBeAppended(t *testing.T) {
	long, four, number := "long", []uint16{1, 2, 3, 4}, 5
	for name, field := range map[string]any{"text": Text(&long, 3), "list": List(&four, 3, Item), "int": &number} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: it was appended", name)
				}
			}()
			Append(nil, field)
		}()
	}
}

// FuzzDecode: an error, or a value whose encoding is the input.
func FuzzDecode(f *testing.F) {
	for _, s := range samples() {
		f.Add(Append(nil, s.fields()...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var s sample
		if err := Decode(b, s.fields()...); err == nil && !bytes.Equal(Append(nil, s.fields()...), b) {
			t.Fatalf("%+v was decoded from %x", s, b)
		}
	})
}
