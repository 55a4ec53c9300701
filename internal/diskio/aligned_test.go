package diskio

import "testing"

// TestAligned: direct input and output can use what a queue makes, and of other memory what begins
// at a block and has whole ones.
func TestAligned(t *testing.T) {
	q, err := New(8192)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	b, err := q.Buffer()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		b  []byte
		is bool
	}{{b, true}, {b[:4096], true}, {b[4096:], true}, {b[1:4097], false}, {b[512 : 512+4096], false}, {b[:512], false}, {b[:4097], false}, {b[:0], false}, {nil, false}} {
		if got := Aligned(c.b); got != c.is {
			t.Errorf("%d bytes, %d before the end of the buffer: %t", len(c.b), cap(c.b), got)
		}
	}
}
