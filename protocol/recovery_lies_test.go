package protocol

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

// appendRunEntry appends an entry about a run and nothing else to a report.
func appendRunEntry(b []byte, tag byte, first, count uint64) []byte {
	return AppendRun(append(b, tag), first, count)
}

// becomesAllocator is node 1 of three, which becomes the allocator after node 0, which is leaving
// and tells it this; node 1 is then ready, and says whether it believes it.
func becomesAllocator(t *testing.T, records []byte) *Engine {
	t.Helper()
	e := New(Config{Self: 1, Nodes: 3, Pages: 8, HomeStripe: 1})
	e.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{0, 1, 2}, Homes: []NodeID{1, 2}}, nil)
	for _, m := range []Message{
		EpochMarker{Epoch: 1}.To(1).SentBy(0), EpochMarker{Epoch: 1}.To(1).SentBy(2),
		ReportHeld{Epoch: 1, Pieces: 1, Records: records}.To(1).SentBy(0), ReportHeld{Epoch: 1, Pieces: 1}.To(1).SentBy(2),
	} {
		e.Step(Event{Kind: EventMessage, Message: &m}, nil)
	}
	if e.view.phase != ready {
		t.Fatalf("it is in phase %d of the recovery", e.view.phase)
	}
	return e
}

// directoryEntry begins what the former allocator reports.
func directoryEntry(since uint32) []byte {
	return binary.LittleEndian.AppendUint32([]byte{tagAllocator}, since)
}

// TestFreeAckBeforeTheEndOfARecovery: nobody was asked yet to free what a node has heard of that
// becomes the allocator.
func TestFreeAckBeforeTheEndOfARecovery(t *testing.T) {
	e := becomesAllocator(t, appendRunEntry(directoryEntry(0), tagFreeing, 0, 2))
	if len(e.registry.freeing) != 1 {
		t.Fatalf("what is being freed is %v", e.registry.freeing)
	}
	if !refuses(e, FreeAck{}.To(1, PageObject(0)).SentBy(2)) {
		t.Error("an acknowledgement of phase 0 is not rejected")
	}
}

// TestFormerAllocatorLies: it says that the same memory is being freed twice, or has a name beside.
// It is freed once.
func TestFormerAllocatorLies(t *testing.T) {
	freeing := slices.Clip(appendRunEntry(directoryEntry(1<<31), tagFreeing, 0, 2))
	named := append(appendRunEntry(freeing, tagBound, 1, 2), 0, 0, 1, 0, 0, 0, 'x')
	for what, records := range map[string][]byte{
		"freed twice": appendRunEntry(freeing, tagFreeing, 1, 3), "freed, and named": named,
		"named, and freed": appendRunEntry(append(appendRunEntry(directoryEntry(0), tagBound, 1, 2), 0, 0, 1, 0, 0, 0, 'x'), tagFreeing, 0, 2),
	} {
		t.Run(what, func(t *testing.T) {
			e := becomesAllocator(t, records)
			for _, from := range []NodeID{0, 2} {
				e.Step(Event{Kind: EventMessage, Message: new(EpochReady{Epoch: 1}.To(1).SentBy(from))}, nil)
			}
			if e.view.phase != running || len(e.registry.bound) != 0 || len(e.registry.freeing) != 1 {
				t.Errorf("in phase %d of the recovery %d names are bound, and what is being freed is %v", e.view.phase, len(e.registry.bound), e.registry.freeing)
			}
		})
	}
}

// TestParkedIsBoundedBySender: a member that says more than a recovery keeps is rejected, and
// others are not for what it has said.
func TestParkedIsBoundedBySender(t *testing.T) {
	e := New(Config{Self: 1, Nodes: 3, Pages: 8, HomeStripe: 1})
	e.limits.names, e.limits.arrivals = 2, 3
	begin := func(epoch uint32) {
		e.Step(Event{Kind: EventEpoch, Epoch: epoch, Members: []NodeID{0, 1, 2}}, nil)
		for _, from := range []NodeID{0, 2} {
			e.Step(Event{Kind: EventMessage, Message: new(EpochMarker{Epoch: epoch}.To(1).SentBy(from))}, nil)
		}
	}
	parked := func(m Message) (n int) {
		for !refuses(e, m) && n < 10 {
			n++
		}
		return n
	}
	name := NameRequest{Ticket: 1, Call: (&NameCall{Op: UnbindAll, Client: 1}).Append(nil)}.To(1)
	arrival := BarrierArrive{Parties: 9}.To(1, LockObject(4))
	begin(1)
	for _, from := range []NodeID{0, 2} {
		if names, arrivals := parked(name.SentBy(from)), parked(arrival.SentBy(from)); names != 2 || arrivals != 3 {
			t.Errorf("node %d may say %d name calls and %d arrivals, want 2 and 3", from, names, arrivals)
		}
	}
	begin(2) // which the arrivals do not outlive
	if names, arrivals := parked(name.SentBy(0)), parked(arrival.SentBy(0)); names != 0 || arrivals != 3 {
		t.Errorf("in a second epoch a node may say %d name calls more and %d arrivals, want 0 and 3", names, arrivals)
	}
}

// TestReportOfNodesOutsideTheCluster: a node that comes is told of none, neither as a home nor as a
// member.
func TestReportOfNodesOutsideTheCluster(t *testing.T) {
	inside, outside := []NodeID{0, 2}, []NodeID{0, 3}
	suspect := func(before, after []NodeID) []byte {
		return appendList(appendList(appendRunEntry(nil, tagSuspect, 0, 2), before), after)
	}
	for _, c := range []struct {
		what    string
		records []byte
		refused bool
	}{
		{"homes before", appendList([]byte{tagBefore}, inside), false},
		{"homes before that are no nodes", appendList([]byte{tagBefore}, outside), true},
		{"a loss", suspect(inside, inside), false},
		{"a loss with homes that are no nodes", suspect(outside, inside), true},
		{"a loss with members that are no nodes", suspect(inside, outside), true},
	} {
		e := New(Config{Self: 1, Nodes: 3, Pages: 8, HomeStripe: 1, Outside: true})
		e.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{0, 1, 2}}, nil)
		for _, from := range []NodeID{0, 2} {
			e.Step(Event{Kind: EventMessage, Message: new(EpochMarker{Epoch: 1}.To(1).SentBy(from))}, nil)
		}
		if refused := refuses(e, ReportHeld{Epoch: 1, Pieces: 1, Records: c.records}.To(1).SentBy(0)); refused != c.refused {
			t.Errorf("%s: refused %v, want %v", c.what, refused, c.refused)
		}
	}
}

// TestFreedPagesAreNotCommitted: a program that allocates replicated memory, stores to it and frees
// it, again and again, leaves nothing behind, also if it commits nothing.
func TestFreedPagesAreNotCommitted(t *testing.T) {
	e := New(Config{Self: 0, Nodes: 1, Pages: 8, HomeStripe: 8})
	c := NameCall{Op: Bind, Client: 1, Pages: 4, Replicas: 1, Name: "a"}
	for round := range 3 {
		c.Op = Bind
		e.Step(Event{Kind: EventName, Client: 1, Ticket: 1, Payload: c.Append(nil)}, nil)
		e.Step(Event{Kind: EventFault, Client: 1, Thread: 1, Access: Write, Object: PageObject(1)}, nil)
		e.Step(Event{Kind: EventCompleted, Effect: EffectInstall, Object: PageObject(1)}, nil)
		if want := []ObjectID{PageObject(1)}; !slices.Equal(e.commits.written, want) {
			t.Errorf("in round %d written is %v, want %v", round, e.commits.written, want)
		}
		c.Op = Unbind
		e.Step(Event{Kind: EventName, Client: 1, Ticket: 2, Payload: c.Append(nil)}, nil)
		e.Step(Event{Kind: EventFreed, Object: PageObject(0)}, nil)
	}
	if len(e.commits.written) > 0 {
		t.Errorf("written is %v, when all memory is freed", e.commits.written)
	}
}

// TestLongestReportOfNames: an honest member was the allocator, and its programs use all names that
// there can be, of the greatest length, as often as they can. It may report all that.
func TestLongestReportOfNames(t *testing.T) {
	for _, programs := range []int{1, 2, 3, 50} {
		const names = 4
		e := New(Config{Nodes: 2, Pages: 2 * names, HomeStripe: 1})
		e.limits = limits{names: names, uses: names * programs}
		for i := range names * programs {
			c := NameCall{Op: Bind, Client: ClientID(1 + i/names), Pages: 1, Name: strings.Repeat(string(rune('a'+i%names)), MaxName), Signature: strings.Repeat("s", MaxSignature)}
			e.Step(Event{Kind: EventName, Client: c.Client, Ticket: Ticket(i + 1), Payload: c.Append(nil)}, nil)
		}
		if len(e.names.uses) != names*programs {
			t.Fatalf("%d programs use names %d times", programs, len(e.names.uses))
		}
		p := parcel{to: 1}
		e.names.report(&p, 0)
		e.registry.report(&p)
		bytes := 0
		for _, piece := range p.pieces {
			bytes += len(piece)
		}
		if most := e.recovery.maxReported(); bytes > most {
			t.Errorf("with %d programs it reports %d bytes, and may %d", programs, bytes, most)
		}
	}
}
