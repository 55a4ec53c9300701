package membership

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func sampleMember() member {
	return member{incarnation: 1 << 62, id: 3, sealed: digest{1, 2, 3}, cluster: "blue", data: "node-a.example.org:7400", transports: "tcp", reactors: 4,
		agree: []Agreement{{"region", "64GiB"}, {"page size", "4KiB"}}}
}

func sampleMessage() message {
	nodes := []Node{{ID: 0, Data: "10.0.0.1:7400", name: "10.0.0.1:7400#5", reactors: 2}, {ID: 1, Data: "[fd00::1]:7400", name: "[fd00::1]:7400#6"}}
	return message{kind: propose, round: 7, from: nodes[0].name, digest: newTable("blue", nodes).digest, nodes: nodes}
}

func TestWireForms(t *testing.T) {
	told := sampleMessage()
	told.kind = tell
	for _, m := range []member{sampleMember(), {id: Auto, data: "a:1"}, {id: 2, returns: true, data: "a:1"}} {
		if got, err := decodeMember(appendMember(nil, &m)); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%+v, %v; want %+v", got, err, m)
		}
	}
	for _, m := range []message{sampleMessage(), {kind: accept, round: 1, from: "a:1#2"}, {kind: leaving, from: "b", reason: "enough"}, {kind: ask, from: "a:1#2"}, told} {
		if got, err := decodeMessage(appendMessage(nil, &m)); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%+v, %v; want %+v", got, err, m)
		}
	}
	long := sampleMember()
	long.cluster = strings.Repeat("x", MaxCluster)
	if err := long.fits(); err != nil {
		t.Error(err)
	}
	for range 8 {
		long.agree = append(long.agree, Agreement{strings.Repeat("n", 20), strings.Repeat("v", 20)})
	}
	if err := long.fits(); err == nil || !strings.Contains(err.Error(), "shorter name") {
		t.Error(err)
	}
}

// TestOtherVersions: what a future version says is refused by its number, whatever follows.
func TestOtherVersions(t *testing.T) {
	m, msg := sampleMember(), sampleMessage()
	b := appendMember(nil, &m)
	b[0]++
	if _, err := decodeMember(b); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), "version 5, this node knows version 4") {
		t.Error(err)
	}
	b = appendMessage(nil, &msg)
	b[0]++
	if _, err := decodeMessage(b); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
}

// TestMismatch names the setting that differs.
func TestMismatch(t *testing.T) {
	mine := sampleMember()
	for want, change := range map[string]func(*member){
		"": func(m *member) { m.id, m.data, m.incarnation = Auto, "elsewhere:1", 5 },
		`it belongs to cluster "red", this node to "blue"`: func(m *member) { m.cluster = "red" },
		"its region is 1GiB, this node's is 64GiB":         func(m *member) { m.agree = []Agreement{{"region", "1GiB"}, {"page size", "4KiB"}} },
		"it says nothing of its page size":                 func(m *member) { m.agree = m.agree[:1] },
	} {
		theirs := sampleMember()
		change(&theirs)
		if got := mismatch(&mine, &theirs); !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func FuzzMember(f *testing.F) {
	m := sampleMember()
	f.Add(appendMember(nil, &m))
	f.Add([]byte{metaVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMember(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Error(err)
			}
			return
		}
		if again := appendMember(nil, &m); !bytes.Equal(again, b) {
			t.Errorf("%x is read as %+v, which is written %x", b, m, again)
		}
		choose(map[string]member{m.name(): m}, 3)
	})
}

func FuzzMessage(f *testing.F) {
	m := sampleMessage()
	f.Add(appendMessage(nil, &m))
	f.Add(appendMessage(nil, &message{kind: commit, from: "a"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMessage(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Error(err)
			}
			return
		}
		if again := appendMessage(nil, &m); !bytes.Equal(again, b) {
			t.Errorf("%x is read as %+v, which is written %x", b, m, again)
		}
		// Whatever it says, a node that hears it goes on.
		self := member{incarnation: 2, id: Auto, cluster: "blue", data: "10.0.0.2:7400"}
		formation := newFormation(self, 2, 1)
		formation.join(member{incarnation: 1, id: Auto, cluster: "blue", data: "10.0.0.1:7400"})
		m.from = "10.0.0.1:7400#1"
		formation.receive(&m)
		formation.tick()
	})
}
