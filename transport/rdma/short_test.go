package rdma

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"dsmd/transport"
	"dsmd/transport/transporttest"
)

// pair is both sides' memory of one direction of a queue pair, with a block of the receiver.
type pair struct {
	said, heard past
	block       [shortBytes]byte
}

// pairSlots is how many slots the receiver has.
const pairSlots = 3

// send brings a message to the receiver, and returns what that makes of it, and whether it was
// short.
func (p *pair) send(t interface{ Fatalf(string, ...any) }, h header, control []byte) (got header, piece []byte, short bool) {
	if h.flags&flagPage != 0 {
		if value, ok := p.said.abridge(h, control, pairSlots); ok {
			got, piece, err := p.heard.restore(value, pairSlots, p.block[:])
			if err != nil {
				t.Fatalf("%+v with %x became %#x, which is not understood: %v", h, control, value, err)
			}
			return got, piece, true
		}
	}
	p.said.remember(h, control, pairSlots)
	p.heard.remember(h, control, pairSlots)
	return h, control, false
}

// TestShortMessagesSayTheSame: whatever is said on a queue pair, a message that goes in an
// immediate value is the one that was sent.
func TestShortMessagesSayTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p pair
		h := header{}
		controls := [][]byte{make([]byte, 64), make([]byte, 40), make([]byte, 7), make([]byte, shortBytes), make([]byte, shortBytes+1), {1}}
		slot := 0
		for range rapid.IntRange(1, 200).Draw(t, "messages") {
			control := rapid.SampledFrom(controls).Draw(t, "control")
			if rapid.Bool().Draw(t, "change") {
				control[rapid.IntRange(0, len(control)-1).Draw(t, "where")] = rapid.Byte().Draw(t, "what")
			}
			h.ack += rapid.SampledFrom([]uint64{0, 1, 1, acksMax, acksMax + 1}).Draw(t, "acknowledged")
			now := header{ack: h.ack, slot: noSlot}
			piece := []byte(nil)
			if rapid.IntRange(0, 9).Draw(t, "acknowledgement") > 0 {
				h.number += rapid.SampledFrom([]uint64{1, 1, 1, 1, 1, 2}).Draw(t, "number")
				now.number, piece = h.number, control
				now.flags = rapid.SampledFrom([]uint32{flagPage, flagPage, flagPage, flagPage | flagAck, 0, flagMore}).Draw(t, "flags")
			}
			if now.flags&flagPage != 0 {
				if rapid.IntRange(0, 3).Draw(t, "first slot") == 0 {
					slot = 0
				}
				now.slot = uint32(slot)
				slot = (slot + 1) % pairSlots
			}
			got, said, short := p.send(t, now, piece)
			if got != now || !bytes.Equal(said, piece) {
				t.Fatalf("sent %+v with %x, and got (short: %v) %+v with %x", now, piece, short, got, said)
			}
		}
		if p.said != p.heard {
			t.Fatalf("the two sides remember different things:\n%+v\n%+v", p.said, p.heard)
		}
	})
}

// TestWhatIsShort: a message is short if it is like one of the last kinds but for one word, and
// comes when it is expected.
func TestWhatIsShort(t *testing.T) {
	control := func(kind byte, page uint32) []byte {
		b := make([]byte, 40)
		b[0] = kind
		binary.LittleEndian.PutUint32(b[16:], page)
		return b
	}
	h := header{number: 9, flags: flagPage}
	for name, test := range map[string]struct {
		change  func(*header)
		control []byte
		short   bool
	}{
		"the same":                   {nil, control(1, 5), true},
		"another page":               {nil, control(1, 5^(xorLimit-1)), true},
		"a page too far away":        {nil, control(1, 5^xorLimit), false},
		"another kind":               {nil, control(2, 5), true},
		"another kind and page":      {nil, control(2, 6), false},
		"longer":                     {nil, append(control(1, 5), 0), false},
		"too long":                   {nil, make([]byte, shortBytes+1), false},
		"acknowledges some":          {func(h *header) { h.ack = acksMax }, control(1, 5), true},
		"acknowledges many":          {func(h *header) { h.ack = acksMax + 1 }, control(1, 5), false},
		"a message is missing":       {func(h *header) { h.number++ }, control(1, 5), false},
		"asks for an acknowledgment": {func(h *header) { h.flags |= flagAck }, control(1, 5), false},
		"in the next slot":           {func(h *header) { h.slot = 1 }, control(1, 5), true},
		"in another slot":            {func(h *header) { h.slot = 2 }, control(1, 5), false},
	} {
		var p pair
		p.send(t, h, control(1, 5))
		next := h
		next.number++
		if test.change != nil {
			test.change(&next)
		}
		if _, _, short := p.send(t, next, test.control); short != test.short {
			t.Errorf("%s: short: %v, want %v", name, short, test.short)
		}
	}
}

// TestKindsAreRemembered: kinds of messages that alternate are all short, as many as are
// remembered.
func TestKindsAreRemembered(t *testing.T) {
	var p pair
	for n := range 5 * pastParts {
		control := make([]byte, 40)
		// two words differ between the kinds
		control[0], control[8] = byte(n%pastParts), byte(n%pastParts)
		control[16] = byte(n)
		_, _, short := p.send(t, header{number: uint64(n + 1), flags: flagPage}, control)
		if short != (n >= pastParts) {
			t.Errorf("message %d: short: %v", n, short)
		}
	}
}

// FuzzShort: any value gives an error, or a message that makes sense.
func FuzzShort(f *testing.F) {
	f.Add([]byte("control part"), uint32(shortMark|1<<acksShift|2<<wordShift|77))
	f.Add([]byte("x"), uint32(shortMark|1<<partShift))
	f.Add([]byte("control part"), uint32(5))
	f.Fuzz(func(t *testing.T, control []byte, value uint32) {
		var p pair
		p.heard.remember(header{number: 1, flags: flagPage}, control, pairSlots)
		for range 2 {
			h, piece, err := p.heard.restore(value, pairSlots, p.block[:])
			switch {
			case err != nil && !errors.Is(err, ErrMalformed):
				t.Errorf("%#x: %v is no ErrMalformed", value, err)
			case err == nil && (h.slot >= pairSlots || h.flags != flagPage || len(piece) == 0 || len(piece) > shortBytes):
				t.Errorf("%#x: %+v with %x", value, h, piece)
			}
		}
	})
}

// grants is a Handler that checks that pages come with the messages that were sent about them, in
// order.
type grants struct {
	t    *testing.T
	up   bool
	next uint64
}

func (g *grants) PeerUp(transport.NodeID)              { g.up = true }
func (g *grants) PeerDown(_ transport.NodeID, e error) { g.t.Error(e) }
func (g *grants) Frame(_ transport.NodeID, control []byte, payload transport.Payload) {
	if want := grant(g.next); !bytes.Equal(control, want) || !bytes.Equal(payload.Bytes()[:8], want[16:24]) {
		g.t.Errorf("message %d: got %x with page %x, want %x", g.next, control, payload.Bytes()[:8], want)
	}
	g.next++
}

// grant is the message about one of a series of pages, of two kinds.
func grant(n uint64) []byte {
	b := make([]byte, 40)
	b[0], b[1] = 5, byte(n/3%2)
	binary.LittleEndian.PutUint64(b[16:], n*2654435761%(1<<20))
	return b
}

// TestPagesGoAlone: of messages as the protocol's, nearly all are in the immediate value of their
// page's write; also after the queue pair was made anew, which forgets what was said on it, and
// with pages meanwhile that went another way.
func TestPagesGoAlone(t *testing.T) {
	all := newFakeFabrics(t, false)
	tr := newCluster(t, transporttest.Options{Nodes: 2, PageBytes: 4096, MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, func(int) fabric { return all.device() })
	ends := [2]*grants{{t: t}, {t: t}}
	poll := func() {
		for i := range tr {
			if _, err := tr[i].Poll(ends[i], 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	const pages = 1000
	for sent := uint64(0); ends[1].next < pages; poll() {
		if !ends[0].up || !ends[1].up || sent == pages || sent > ends[1].next+40 {
			continue
		}
		if sent == pages/2 {
			tr[0].gate.Enter()
			tr[0].breakLink(tr[0].peers[1], errInjected, true)
			tr[0].gate.Leave()
		}
		control, page := grant(sent), tr[0].Lease(1)
		copy(page.Bytes(), control[16:24])
		if err := tr[0].Send(1, control, page); err != nil {
			t.Fatal(err)
		}
		if sent++; sent == pages/2+10 { // The others go on the new queue pair.
			for tr[0].LinkStats().Links == 0 || tr[1].LinkStats().Links == 0 {
				poll()
			}
		}
		tr[0].Flush()
	}
	s := tr[0].LinkStats()
	if s.LinksTried+tr[1].LinkStats().LinksTried < 4 || s.ShortSent < pages-50 || s.ShortSent > s.PayloadsSent {
		t.Errorf("%d of %d pages went alone, and there were %d queue pairs: %+v", s.ShortSent, pages, s.LinksTried, s)
	}
}
