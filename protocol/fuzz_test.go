package protocol

import (
	"bytes"
	"testing"
)

// FuzzNameCall: a name call is decoded only if it is exactly how that call is written.
func FuzzNameCall(f *testing.F) {
	for _, c := range []NameCall{{Op: Bind, Client: 7, Pages: 3, Name: "a", Signature: "s"}, {Op: Bind, Client: 7, Pages: 3, Replicas: MaxReplicas, Name: "a"}, {Op: Unbind, Name: "b"}, {Op: UnbindAll, Client: 1<<32 - 1}} {
		f.Add(c.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := DecodeNameCall(b)
		if err != nil {
			return
		}
		if again := c.Append(nil); !bytes.Equal(again, b) {
			t.Errorf("%x is %+v, and written anew %x", b, c, again)
		}
	})
}

// FuzzRelayed: what a relay has put together is decoded only if it is exactly how that is written.
func FuzzRelayed(f *testing.F) {
	arrival := relayed{node: 3, object: LockObject(7), parties: MaxParties, rank: 5, ticket: 1<<64 - 1, payload: make([]byte, MaxContribution)}
	cancel := relayed{node: 4, cancel: true, object: LockObject(7), ticket: 1}
	f.Add(arrival.append(nil))
	f.Add(arrival.append(cancel.append(nil)))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := decodeRelayed(b)
		if err != nil {
			return
		}
		var again []byte
		for i := range all {
			again = all[i].append(again)
		}
		if len(all) == 0 || !bytes.Equal(again, b) {
			t.Errorf("%x is %+v, and written anew %x", b, all, again)
		}
	})
}

// FuzzBroadcast: a release for several nodes is decoded only if it is exactly how that is written.
func FuzzBroadcast(f *testing.F) {
	f.Add(appendBroadcast(nil, []addressee{{1, 2}, {1023, 1<<64 - 1}}, []byte("sum")))
	f.Add(appendBroadcast(nil, []addressee{{1, 2}}, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		to, result, err := decodeBroadcast(b)
		if err != nil {
			return
		}
		if again := appendBroadcast(nil, to, result); len(to) == 0 || len(result) > MaxResult || !bytes.Equal(again, b) {
			t.Errorf("%x is %+v with %x, and written anew %x", b, to, result, again)
		}
	})
}

// FuzzEngine lets two peers say to an engine whatever gets through the decoder, while its host goes
// on with what hosts do. Each step takes the first byte: events of the host's own, or the length of
// what is said.
func FuzzEngine(f *testing.F) {
	for _, m := range lies(PageObject(0)) {
		b := AppendMessage(nil, &m)
		f.Add(append([]byte{0, 0, 2, 3, byte(len(b))}, b...), uint64(1))
	}
	h := newBesiegedHost(1, 0, 3)
	for range 30 {
		var b []byte
		for range 6 {
			m := h.lie()
			if wire := AppendMessage(nil, &m); len(wire) < 256 {
				b = append(append(b, 1, byte(len(wire))), wire...)
			}
		}
		f.Add(b, uint64(2))
	}
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		h := newBesiegedHost(seed, NodeID(seed%2), 3)
		for len(b) > 0 {
			n := int(b[0])
			b = b[1:]
			if n < headerBytes || n > len(b) {
				if _, err := h.step(h.own()); err != nil {
					t.Fatal(err)
				}
				continue
			}
			m, err := DecodeMessage(b[:n])
			b = b[n:]
			if err != nil || m.From == h.e.cfg.Self || !hostTakes(&m) {
				continue // its host lets none of these through
			}
			before := string(h.e.AppendState(nil))
			rejected, err := h.step(Event{Kind: EventMessage, Message: &m})
			if err != nil {
				t.Fatalf("%+v: %v", m, err)
			}
			if rejected && m.Kind != KindReportHeld && string(h.e.AppendState(nil)) != before {
				t.Fatalf("%+v was rejected, and has changed something", m)
			}
		}
	})
}
