package tcp

import (
	"errors"
	"slices"
	"testing"
	"time"

	"dsmd/transport"
)

// TestUnreadFramesComeInTurn: frames that were received with others, more than are taken at a time,
// and the goodbye behind them, do not wait for the end of what another peer sends. The node has
// more peers than it asks one by one, and one of them takes nothing.
func TestUnreadFramesComeInTurn(t *testing.T) {
	const (
		stuck, leaving, flooding = 1, 2, 3
		frames, flood            = 100, 8000
		most                     = 10 // are taken at a time
	)
	tr, raw := withRawPeers(t, directPeers+2)
	r := newRecorder()
	poll := func() {
		t.Helper()
		if _, err := tr.Poll(r, most); err != nil {
			t.Fatal(err)
		}
	}
	for len(r.up) < len(raw) {
		poll()
	}
	for tr.blocked == 0 {
		if err := tr.Send(stuck, make([]byte, transport.MaxControlBytes), nil); err != nil {
			t.Fatal(err)
		}
		tr.Flush()
	}
	one := append(appendFrameHeader(nil, frameControl, 1, 0), 'x')
	say := func(peer int, frames []byte) {
		t.Helper()
		if _, err := raw[peer-1].conn.Write(frames); err != nil {
			t.Fatal(err)
		}
	}
	say(leaving, append(slices.Repeat(one, frames), appendFrameHeader(nil, frameGoodbye, 0, 0)...))
	for len(r.from) == 0 {
		poll()
	}
	say(flooding, slices.Repeat(one, flood))
	for deadline := time.Now().Add(testTimeout); r.down[leaving] == nil; poll() {
		if time.Now().After(deadline) {
			t.Fatal("the goodbye does not come")
		}
	}
	got := map[transport.NodeID]int{}
	for _, from := range r.from {
		got[from]++
	}
	if got[leaving] != frames || !errors.Is(r.down[leaving], errGoodbye) {
		t.Errorf("%d frames came before its end, want %d: %v", got[leaving], frames, r.down[leaving])
	}
	if got[flooding] > flood/4 {
		t.Errorf("they came after %d frames of another peer", got[flooding])
	}
}
