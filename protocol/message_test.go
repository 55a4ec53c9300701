package protocol

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

// sampleMessages has at least one message of every kind, and the extremes of every field.
func sampleMessages() []Message {
	lock := LockObject(0xfeed_beef_dead_cafe)
	page := PageObject(1<<32 - 1) // 16 TiB of pages of 4 KiB
	return []Message{
		Request{Access: Read}.To(0, page).SentBy(3),
		Request{Access: Write, HasCopy: true}.To(0, page).SentBy(MaxNodes - 1),
		Request{Access: Write, Anew: true}.To(0, page).SentBy(1),
		Request{Access: Write, Moves: true}.To(0, page).SentBy(1),
		Forward{Access: Write, Requester: 1023, Acks: MaxNodes}.To(0, page).SentBy(1),
		Forward{Access: Read, Requester: NoNode}.To(0, lock).SentBy(1),
		Forward{Access: Write, Requester: 7, Moves: true}.To(0, page).SentBy(1),
		Invalidate{Requester: 7}.To(0, page).SentBy(2),
		Invalidate{Requester: 7, Others: appendNodes(nil, []NodeID{0, MaxNodes - 1})}.To(0, page).SentBy(2),
		InvalidateAck{}.To(0, page).SentBy(9),
		Invalidate{Requester: 7, Moves: true}.To(0, page).SentBy(2),
		Verify{Requester: 7}.To(0, page).SentBy(2),
		Verify{Requester: 7, Moves: true}.To(0, page).SentBy(2),
		Grant{Access: Read, Contents: PageContents}.To(0, page).SentBy(9),
		Grant{Access: Write, Contents: ZeroContents, Acks: 1}.To(0, PageObject(0)).SentBy(9),
		Grant{Access: Read, Contents: FirstContents}.To(0, page).SentBy(9),
		Grant{Access: Write, Died: 1<<32 - 1}.To(0, lock).SentBy(9),
		Done{Access: Write}.To(0, page).SentBy(9),
		Multicast{Root: 1023}.To(0, page).SentBy(9),
		Multicast{Root: 9, Contents: PageContents}.To(0, page).SentBy(9),
		Multicast{Root: 9, Contents: FirstContents}.To(0, page).SentBy(9),
		MulticastAck{Takers: appendNodes(nil, []NodeID{0, MaxNodes - 1})}.To(0, page).SentBy(9),
		MulticastEnd{Root: 9, Served: appendNodes(nil, []NodeID{0})}.To(0, page).SentBy(9),
		Offer{Frees: 1<<32 - 1, Copies: MaxReplicas, Run: AppendRun(nil, 0, 8)}.To(0, page).SentBy(9),
		Decline{}.To(0, page).SentBy(9),
		BarrierArrive{Ticket: 1<<64 - 1, Parties: 4, Rank: 3, Contribution: []byte("sum")}.To(0, lock).SentBy(4),
		BarrierArrive{Ticket: 1, Parties: 4, Fold: FoldOf(FoldMax, NumberFloat64), Contribution: make([]byte, 16)}.To(0, lock).SentBy(4),
		BarrierCancel{Ticket: 1}.To(0, lock).SentBy(4),
		BarrierRelease{Status: StatusMismatch, Ticket: 2, Result: bytes.Repeat([]byte{0xa5}, MaxPayload)}.To(0, lock).SentBy(4),
		BarrierOpen{Status: StatusNoSpace, Releases: appendBroadcast(nil, []addressee{{4, 5}, {0, 1}}, []byte{7})}.To(0, lock).SentBy(4),
		BarrierCombine{Root: 9, Arrivals: (&relayed{node: 4, object: lock, parties: 1}).append(nil)}.To(0).SentBy(4),
		BarrierCombineAck{Root: 9}.To(0).SentBy(9),
		BarrierBroadcast{Status: StatusNoSpace, Root: 9, Serial: 1<<64 - 1, Releases: appendBroadcast(nil, []addressee{{4, 5}}, nil)}.To(0, lock).SentBy(9),
		BarrierBroadcastAck{Root: 9, Serial: 1<<64 - 1}.To(0).SentBy(4),
		NameRequest{Ticket: 8, Call: []byte{0}}.To(0).SentBy(4),
		NameReply{Status: statusEnd - 1, Ticket: 8}.To(0),
		Free{Run: make([]byte, 8)}.To(0, page),
		FreeAck{}.To(0, page).SentBy(1),
		Lost{Node: 7}.To(0, page).SentBy(1),
		Backup{Contents: PageContents, Epoch: 1<<32 - 1}.To(0, page).SentBy(1),
		BackupCopy{Contents: ZeroContents, Epoch: 7, Copies: 2, Made: 1<<32 - 1, Commits: 5}.To(0, page).SentBy(1),
		BackupCopyAck{Epoch: 7}.To(0, page).SentBy(1),
		BackupAck{Epoch: 3}.To(0, page).SentBy(2),
		Forward{Access: Write, Backup: true, Requester: 5}.To(0, page).SentBy(1),
		EpochMarker{Epoch: 1<<32 - 1}.To(0).SentBy(1),
		ReportHeld{Epoch: 1, Pieces: 2, Records: []byte{1, 2, 3}}.To(0).SentBy(1),
		ReportBound{Epoch: 1, Pieces: 1, Runs: make([]byte, 32)}.To(0).SentBy(1),
		EpochReady{Epoch: 1}.To(0).SentBy(1),
	}
}

// throughItsType makes a message anew from what the type of its kind says.
func throughItsType(m *Message) Message {
	to := reflect.ValueOf(m.Body()).MethodByName("To")
	args := []reflect.Value{reflect.ValueOf(m.To), reflect.ValueOf(m.Object)}
	return to.Call(args[:to.Type().NumIn()])[0].Interface().(Message).SentBy(m.From)
}

func TestMessageRoundTripOfEveryKind(t *testing.T) {
	seen := map[Kind]bool{}
	for _, want := range sampleMessages() {
		seen[want.Kind] = true
		wire := AppendMessage(nil, &want)
		if len(wire) != headerBytes+len(want.Payload) {
			t.Errorf("%v takes %d bytes, want %d", want.Kind, len(wire), headerBytes+len(want.Payload))
		}
		got, err := DecodeMessage(wire)
		if err != nil {
			t.Errorf("%v: %v", want.Kind, err)
			continue
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%v came back as\n%+v, went out as\n%+v", want.Kind, got, want)
		}
		if same := throughItsType(&want); !reflect.DeepEqual(same, want) {
			t.Errorf("%+v says %+v, which makes %+v", want, want.Body(), same)
		}
	}
	for k := Kind(1); k < kindEnd; k++ {
		if !seen[k] {
			t.Errorf("no sample of %v: add one", k)
		}
		if strings.HasPrefix(k.String(), "Kind(") {
			t.Errorf("kind %d has no name", k)
		}
	}
}

// TestAppendMessageKeepsThePrefix: hosts append several messages to one buffer.
func TestAppendMessageKeepsThePrefix(t *testing.T) {
	m := Done{Access: Read}.To(0, 5).SentBy(1)
	wire := AppendMessage([]byte("prefix"), &m)
	if !bytes.HasPrefix(wire, []byte("prefix")) {
		t.Fatalf("the prefix was overwritten: %q", wire)
	}
	if _, err := DecodeMessage(wire[len("prefix"):]); err != nil {
		t.Fatal(err)
	}
}

// TestFirstPage: a host that need not send a page says so instead, and nothing else changes.
func TestFirstPage(t *testing.T) {
	says := func(c Contents) []Message {
		return []Message{
			Grant{Access: Read, Contents: c, Acks: 3}.To(1, 5), Grant{Access: Write, Contents: c, Acks: 3}.To(1, 5),
			Multicast{Root: 3, Contents: c}.To(1, 5), Backup{Contents: c, Epoch: 1, Copies: 2}.To(1, 5),
			BackupCopy{Contents: c, Epoch: 2, Copies: 2, Made: 1, Commits: 4}.To(1, 5),
		}
	}
	for i, m := range says(PageContents) {
		m.FirstPage()
		want := says(FirstContents)[i]
		got, err := DecodeMessage(AppendMessage(nil, &m))
		if err != nil || !reflect.DeepEqual(m, want) || got.Contents() != FirstContents || got.Body() != want.Body() {
			t.Errorf("it says %+v, and arrives as %+v, %v", m, got, err)
		}
	}
}

func TestDecodeMessageRefuses(t *testing.T) {
	valid := AppendMessage(nil, new(BarrierArrive{Contribution: []byte("abc")}.To(0, 0).SentBy(1)))
	change := func(at int, v byte) []byte {
		b := bytes.Clone(valid)
		b[at] = v
		return b
	}
	for name, wire := range map[string][]byte{
		"nothing":             nil,
		"a short header":      valid[:headerBytes-1],
		"a short payload":     valid[:len(valid)-1],
		"a long payload":      append(bytes.Clone(valid), 0),
		"kind zero":           change(0, 0),
		"kind too large":      change(0, byte(kindEnd)),
		"unknown access":      change(1, byte(Write)+1),
		"unknown flags":       change(2, byte(2*flagBackup)),
		"unknown status":      change(3, byte(statusEnd)),
		"too many acks":       change(9, 0xff),
		"reserved low":        change(10, 1),
		"reserved high":       change(11, 1),
		"payload beyond max":  append(change(38, 0xff), make([]byte, 0xff<<16)...),
		"payload length wrap": change(39, 0xff),
	} {
		t.Run(name, func(t *testing.T) {
			m, err := DecodeMessage(wire)
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("decoded to %+v with error %v, want ErrMalformed", m, err)
			}
			if !reflect.DeepEqual(m, Message{}) {
				t.Fatalf("an error came with a message: %+v", m)
			}
		})
	}
}

// FuzzDecodeMessage: whatever comes off the wire, DecodeMessage answers with an error or with a
// message that AppendMessage writes as the very same bytes. So there is one encoding of each
// message, and nothing that a peer sends is silently dropped.
func FuzzDecodeMessage(f *testing.F) {
	for _, m := range sampleMessages() {
		if len(m.Payload) <= 1024 {
			f.Add(AppendMessage(nil, &m))
		}
	}
	f.Add([]byte{})
	f.Add(make([]byte, headerBytes))
	f.Add(bytes.Repeat([]byte{0xff}, headerBytes))
	f.Fuzz(func(t *testing.T, wire []byte) {
		m, err := DecodeMessage(wire)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("error %v does not wrap ErrMalformed", err)
			}
			return
		}
		if back := AppendMessage(nil, &m); !bytes.Equal(back, wire) {
			t.Fatalf("%s encodes as\n%x, came as\n%x", fmt.Sprintf("%+v", m), back, wire)
		}
		if same := throughItsType(&m); !reflect.DeepEqual(same, m) {
			t.Fatalf("%+v says %+v, which makes %+v", m, m.Body(), same)
		}
	})
}

// TestDocumentationNamesEveryMessage: docs/protocol.md has a table of messages, which a new kind
// would be missing from.
func TestDocumentationNamesEveryMessage(t *testing.T) {
	text, err := os.ReadFile("../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	for k := Kind(1); k < kindEnd; k++ {
		if !bytes.Contains(text, []byte("`"+k.String()+"`")) {
			t.Errorf("docs/protocol.md does not name %v", k)
		}
	}
}
