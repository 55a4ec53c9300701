package protocol

import (
	"bytes"
	"slices"
	"testing"
)

// TestLists: a list of nodes comes back as it was, with what follows it. Part of one is none, and
// neither is an empty one or one that is not sorted.
func TestLists(t *testing.T) {
	for _, want := range [][]NodeID{{0}, {1, 2, 5}, {MaxNodes - 1}} {
		whole := appendList(nil, want)
		if len(whole) != listBytes(want) {
			t.Errorf("%v takes %d bytes, and %d are counted", want, len(whole), listBytes(want))
		}
		for _, follows := range [][]byte{nil, {7}} {
			got, rest, ok := decodeList(append(slices.Clone(whole), follows...))
			if !ok || !slices.Equal(got, want) || !bytes.Equal(rest, follows) {
				t.Errorf("%v came back as %v, %v, and %x follows", want, got, ok, rest)
			}
		}
		for n := range whole {
			if got, _, ok := decodeList(whole[:n]); ok {
				t.Errorf("%d bytes of %v are %v", n, want, got)
			}
		}
	}
	for _, bad := range [][]NodeID{{}, {2, 1}, {MaxNodes}} {
		if got, _, ok := decodeList(appendList(nil, bad)); ok {
			t.Errorf("%v is taken for a list: %v", bad, got)
		}
	}
}
