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
		{Kind: Request, Access: Read, From: 3, Object: page},
		{Kind: Request, Access: Write, Flags: FlagHasCopy, From: MaxNodes - 1, Object: page},
		{Kind: Forward, Access: Write, From: 1, Requester: 1023, Acks: MaxNodes, Object: page},
		{Kind: Forward, Access: Read, From: 1, Requester: NoNode, Object: lock},
		{Kind: Invalidate, From: 2, Requester: 7, Object: page},
		{Kind: InvalidateAck, From: 9, Object: page},
		{Kind: Grant, Access: Read, Flags: FlagData, From: 9, Object: page},
		{Kind: Grant, Access: Write, Flags: FlagZero, Acks: 1, From: 9, Object: PageObject(0)},
		{Kind: Grant, Access: Write, Flags: FlagOwnerDied, Aux: 1<<32 - 1, From: 9, Object: lock},
		{Kind: Done, Access: Write, From: 9, Object: page},
		{Kind: BarrierArrive, From: 4, Object: lock, Ticket: 1<<64 - 1, Aux: 4, Rank: 3, Payload: []byte("sum")},
		{Kind: BarrierCancel, From: 4, Object: lock, Ticket: 1},
		{Kind: BarrierRelease, Status: StatusMismatch, From: 4, Object: lock, Ticket: 2, Payload: bytes.Repeat([]byte{0xa5}, MaxPayload)},
		{Kind: BarrierGather, From: 4, Requester: 9, Payload: (&gathered{node: 4, object: lock, parties: 1}).append(nil)},
		{Kind: BarrierGatherAck, From: 9, Requester: 9},
		{Kind: BarrierSpread, Status: StatusNoSpace, From: 9, Requester: 9, Object: lock, Ticket: 1<<64 - 1, Payload: appendSpread(nil, []addressee{{4, 5}}, nil)},
		{Kind: BarrierSpreadAck, From: 4, Requester: 9, Ticket: 1<<64 - 1},
		{Kind: NameRequest, From: 4, Ticket: 8, Payload: []byte{0}},
		{Kind: NameReply, Status: statusEnd - 1, Object: page, Ticket: 8},
		{Kind: Forget, Object: page, Payload: make([]byte, 8)},
		{Kind: ForgetAck, Object: page, From: 1},
		{Kind: Lost, Object: page, From: 1, Rank: 7},
		{Kind: Backup, Flags: FlagData, Object: page, From: 1, Aux: 1<<32 - 1},
		{Kind: BackupAck, Object: page, From: 2, Aux: 3},
		{Kind: Forward, Access: Write, Flags: FlagBackup, From: 1, Requester: 5, Object: page},
		{Kind: EpochMark, From: 1, Aux: 1<<32 - 1},
		{Kind: ReportHeld, From: 1, Aux: 1, Ticket: 2, Payload: []byte{1, 2, 3}},
		{Kind: ReportBound, From: 1, Aux: 1, Ticket: 1, Payload: make([]byte, 32)},
		{Kind: EpochReady, From: 1, Aux: 1},
	}
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
	m := Message{Kind: Done, Access: Read, From: 1, Object: 5}
	wire := AppendMessage([]byte("prefix"), &m)
	if !bytes.HasPrefix(wire, []byte("prefix")) {
		t.Fatalf("the prefix was overwritten: %q", wire)
	}
	if _, err := DecodeMessage(wire[len("prefix"):]); err != nil {
		t.Fatal(err)
	}
}

func TestDecodeMessageRefuses(t *testing.T) {
	valid := AppendMessage(nil, &Message{Kind: BarrierArrive, From: 1, Payload: []byte("abc")})
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
		"unknown flags":       change(2, byte(flagsAll)+1),
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

// FuzzDecodeMessage: whatever comes off the wire, DecodeMessage answers with an error or with a message
// that AppendMessage writes as the very same bytes. So there is one encoding of each message, and nothing that a
// peer sends is silently dropped.
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
	})
}

// TestDocumentationNamesEveryMessage: docs/protocol.md has a table of messages, which a new kind would be missing from.
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
