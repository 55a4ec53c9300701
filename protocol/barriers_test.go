package protocol

import (
	"bytes"
	"testing"
)

// TestBarrierMismatch: who comes to a barrier with another number of parties or other bytes than
// those before is told so, and the others meet all the same.
func TestBarrierMismatch(t *testing.T) {
	e, barrier := New(Config{Nodes: 3, Pages: 8, HomeStripe: 1}), LockObject(0)
	arrive := func(from NodeID, k BarrierArrive) []Message {
		sent, rejected := said(e, k.To(0, barrier).SentBy(from))
		if rejected {
			t.Errorf("rejected: %+v", k)
		}
		return sent
	}
	if sent := arrive(1, BarrierArrive{Ticket: 1, Parties: 2, Contribution: []byte{1}}); len(sent) > 0 {
		t.Errorf("one of two has come: %v", sent)
	}
	const likeOthers = " than others: all have to bring as many values of the same type"
	for _, test := range []struct {
		comes BarrierArrive
		why   string
	}{
		{BarrierArrive{Ticket: 2, Parties: 3, Rank: 1, Contribution: []byte{2}}, "rank 1 came with 3 parties, others with 2 parties: all have to give the same number"},
		{BarrierArrive{Ticket: 3, Parties: 2, Rank: 1}, "rank 1 brings 1 bytes less" + likeOthers},
		{BarrierArrive{Ticket: 4, Parties: 2, Rank: 1, Contribution: make([]byte, 9)}, "rank 1 brings 8 bytes more" + likeOthers},
	} {
		k := test.comes
		sent := arrive(2, k)
		if len(sent) != 1 || sent[0].To != 2 || sent[0].Kind != KindBarrierRelease {
			t.Fatalf("it comes with something else, and is told %v", sent)
		}
		if said := sent[0].AsBarrierRelease(); said.Status != StatusMismatch || said.Ticket != k.Ticket || string(said.Result) != test.why {
			t.Errorf("it comes with something else, and is told %+v: %q, want %q", said, said.Result, test.why)
		}
	}
	sent := arrive(2, BarrierArrive{Ticket: 4, Parties: 2, Rank: 1, Contribution: []byte{2}})
	if told := answers(sent); len(sent) != 2 || len(told) != 2 || told[0].Status != StatusOK || told[0].Ticket == told[1].Ticket {
		t.Errorf("both have come: %v", sent)
	}
}

// answers are what messages of a barrier's home tell tickets of the nodes that they go to.
func answers(sent []Message) (told []BarrierRelease) {
	for _, m := range sent {
		if m.Kind == KindBarrierRelease {
			told = append(told, m.AsBarrierRelease())
			continue
		}
		to, result, _ := decodeBroadcast(m.Payload)
		for _, a := range to {
			if a.node == m.To {
				told = append(told, BarrierRelease{m.status, a.ticket, result})
			}
		}
	}
	return told
}

// TestLongestResult: as many parties as find room in a result get what all have brought, in the
// order of ranks; one more, and nobody gets anything, but all are told.
func TestLongestResult(t *testing.T) {
	for parties, want := range map[int]Status{MaxResult / MaxContribution: StatusOK, MaxResult/MaxContribution + 1: StatusNoSpace} {
		e, barrier := New(Config{Nodes: 3, Pages: 8, HomeStripe: 1}), LockObject(0)
		var sent []Message
		for i := range parties {
			rank := parties - 1 - i
			m := BarrierArrive{Ticket: Ticket(i), Parties: uint32(parties), Rank: uint32(rank), Contribution: bytes.Repeat([]byte{byte(rank)}, MaxContribution)}
			sent, _ = said(e, m.To(0, barrier).SentBy(1))
		}
		told := answers(sent)
		if len(told) != parties {
			t.Fatalf("%d parties: %d are told", parties, len(told))
		}
		for _, k := range told {
			bytes := 0
			if want == StatusOK {
				bytes = MaxResult
			}
			if k.Status != want || len(k.Result) != bytes {
				t.Fatalf("%d parties: status %d and %d bytes, want status %d", parties, k.Status, len(k.Result), want)
			}
			for rank := range len(k.Result) / MaxContribution {
				if part := k.Result[rank*MaxContribution:][:MaxContribution]; part[0] != byte(rank) || part[MaxContribution-1] != byte(rank) {
					t.Fatalf("rank %d's part is another's", rank)
				}
			}
		}
	}
}

// TestBarrierIsNoLock: what only a wait for a lock can come to is no release of a barrier.
func TestBarrierIsNoLock(t *testing.T) {
	for status := range statusEnd {
		e, barrier := New(Config{Self: 1, Nodes: 3, Pages: 8, HomeStripe: 1}), LockObject(0)
		out := e.Step(Event{Kind: EventArrive, Object: barrier, Client: 1, Ticket: 9, Parties: 2}, nil)
		_, rejected := said(e, BarrierRelease{Status: status, Ticket: out[0].Message.AsBarrierArrive().Ticket}.To(1, barrier).SentBy(0))
		if ofLock := status == StatusOwnerDied || status == StatusUnrepaired; rejected != ofLock {
			t.Errorf("status %d: rejected %v", status, rejected)
		}
	}
}

// TestOnlyTheHomeTakes: what the home does not say, or cannot want, takes no page away, and is
// reported.
func TestOnlyTheHomeTakes(t *testing.T) {
	page := PageObject(0)
	for name, m := range map[string]Message{
		"an invalidation of another node": Invalidate{Requester: 2}.To(1, page).SentBy(2),
		"a forward of another node":       Forward{Requester: 2, Access: Write}.To(1, page).SentBy(2),
		"an invalidation for this node":   Invalidate{Requester: 1}.To(1, page).SentBy(0),
		"a forward for this node":         Forward{Requester: 1, Access: Write}.To(1, page).SentBy(0),
	} {
		e := New(Config{Self: 1, Nodes: 3, Pages: 8, HomeStripe: 1})
		if sent, rejected := said(e, m); !rejected || len(sent) > 0 {
			t.Errorf("%s: rejected %v, and said %v", name, rejected, sent)
		}
	}
}
