package attach

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// samples are frames of every kind, with the value that each decodes to.
func samples() map[string]struct {
	frame []byte
	want  any
} {
	hello := Hello{Version: Version, PID: 4711, Rank: NoRank, Size: 12, Job: "weather", Program: "sor"}
	trap := Trap{Sigsegv: true, UserModeOnly: true, Features: 1<<13 | 1}
	welcome := Welcome{Version: Version, Node: 1, Nodes: 4, Rank: 1, Size: 4, RegionBase: 0x4000_0000_0000,
		RegionBytes: 1 << 40, PageBytes: 4096, HomeStripe: 16, Reactors: 4, StripePages: 256, Trap: "uffd", Transport: "tcp"}
	refuse := Refuse{Code: RefuseRank, Reason: "rank 3 is taken"}
	reply := Reply{Ticket: 9, Status: StatusOwnerDied, Rank: 3, Payload: []byte("xyz")}
	ask := Ask{Ticket: 7, Question: AskStacks, Watcher: NoRank, Blocked: 3}
	tell := Tell{Ticket: 7, Statement: Statement{Rank: 1, Node: 2, Presence: Left, Ago: time.Minute, Body: []byte("{}"),
		Pages: []PageWait{{Page: 1 << 40, Memory: "grid", From: 3, Stage: PageParked, Waited: time.Second}, {Stage: PageBusy}}}}
	none := Tell{Ticket: 7, Last: true, Statement: Statement{Body: []byte{}}}
	all := map[string]struct {
		frame []byte
		want  any
	}{
		"hello":   {AppendHello(nil, &hello), hello},
		"trap":    {AppendTrap(nil, &trap), trap},
		"welcome": {AppendWelcome(nil, &welcome), welcome},
		"refuse":  {AppendRefuse(nil, &refuse), refuse},
		"lost":    {AppendLost(nil, "node 2 died"), "node 2 died"},
		"ready":   {AppendReady(nil), nil},
		"bye":     {AppendBye(nil), nil},
		"reply":   {AppendReply(nil, &reply), reply},
		"ask":     {AppendAsk(nil, &ask), ask},
		"tell":    {AppendTell(nil, &tell), tell},
		"no more": {AppendTell(nil, &none), none},
	}
	for _, c := range sampleCalls() {
		all["call "+c.Op.String()] = struct {
			frame []byte
			want  any
		}{AppendCall(nil, &c), c}
	}
	return all
}

func sampleCalls() []Call {
	return []Call{
		{Op: OpAcquire, Access: Write, Ticket: 1, Object: NameHash(NameLock, "queue")},
		{Op: OpRelease, Access: Read, Object: NameHash(NameLock, "queue")},
		{Op: OpRelease, Access: Write, Object: NameHash(NameLock, "queue"), Count: 1<<32 - 1},
		{Op: OpRepair, Access: Write, Ticket: 1, Object: NameHash(NameLock, "queue")},
		{Op: OpTry, Access: Read, Ticket: 1, Object: NameHash(NameLock, "queue")},
		{Op: OpArrive, Ticket: 2, Object: NameHash(NameBarrier, "step"), Parties: 4, Payload: []byte{1, 2}},
		{Op: OpArrive, Ticket: 2, Object: NameHash(NameReduce, "sum"), Parties: 4, Fold: FoldOf(FoldSum, NumberFloat64), Payload: make([]byte, 8)},
		{Op: OpBind, Ticket: 3, Object: NameHash(NameMemory, "grid"), Name: "grid", Count: 10, ElemBytes: 8, TypeHash: 77, Signature: "float64"},
		{Op: OpBind, Access: Read, Ticket: 3, Object: NameHash(NameMemory, "file"), Name: "file", Count: 10, ElemBytes: 8, TypeHash: 77, Signature: "float64"},
		{Op: OpKeep, Ticket: 3, Object: NameHash(NameMemory, "grid"), Name: "grid"},
		{Op: OpDiscard, Ticket: 3, Object: NameHash(NameMemory, "grid"), Name: "grid"},
		{Op: OpUnbind, Ticket: 4, Object: NameHash(NameMemory, "grid"), Name: "grid"},
		{Op: OpPrefetch, Ticket: 5, Access: Read, Object: 0, Count: 3},
		{Op: OpPin, Ticket: 6, Access: Write, Object: 7, Count: 1},
		{Op: OpUnpin, Object: 6},
		{Op: OpCancel, Ticket: 1},
		{Op: OpStats, Ticket: MaxTicket},
		{Op: OpUsage, Ticket: 11},
		{Op: OpPrograms, Ticket: 12},
		{Op: OpWaits, Ticket: 13},
		{Op: OpName, Ticket: 14, Object: NameHash(NameLock, "queue"), Name: "queue"},
		{Op: OpName, Ticket: 14, Object: NameHash(NameLock, "")},
		{Op: OpStacks, Ticket: 13, Object: 1, Count: 4711},
		{Op: OpArrive, Ticket: 2, Object: NameHash(NameBarrier, "step"), Parties: 3, Count: 1},
		{Op: OpLostPage, Ticket: 7, Object: 5},
		{Op: OpLostRanks, Ticket: 8},
		{Op: OpDrain, Ticket: 9},
		{Op: OpCommit, Ticket: 10},
	}
}

// decode reads a frame of any kind.
func decode(f Frame) (any, error) {
	switch f.Kind {
	case KindHello:
		return DecodeHello(f.Body)
	case KindTrap:
		return DecodeTrap(f.Body)
	case KindCall:
		return DecodeCall(f.Body)
	case KindWelcome:
		return DecodeWelcome(f.Body)
	case KindRefuse:
		return DecodeRefuse(f.Body)
	case KindLost:
		return DecodeLost(f.Body)
	case KindReply:
		return DecodeReply(f.Body)
	case KindAsk:
		return DecodeAsk(f.Body)
	case KindTell:
		return DecodeTell(f.Body)
	}
	return nil, DecodeEmpty(f)
}

// encode is the inverse of decode.
func encode(k Kind, v any) []byte {
	switch v := v.(type) {
	case Hello:
		return AppendHello(nil, &v)
	case Trap:
		return AppendTrap(nil, &v)
	case Call:
		return AppendCall(nil, &v)
	case Welcome:
		return AppendWelcome(nil, &v)
	case Refuse:
		return AppendRefuse(nil, &v)
	case Reply:
		return AppendReply(nil, &v)
	case Ask:
		return AppendAsk(nil, &v)
	case Tell:
		return AppendTell(nil, &v)
	case string:
		return AppendLost(nil, v)
	}
	return endFrame(beginFrame(nil, k), 0)
}

func TestRoundTrip(t *testing.T) {
	for name, s := range samples() {
		f, rest, ok, err := Next(append(bytes.Clone(s.frame), 0xee))
		if !ok || err != nil || !bytes.Equal(rest, []byte{0xee}) {
			t.Fatalf("%s: Next: ok %v, err %v, %d bytes left", name, ok, err, len(rest))
		}
		got, err := decode(f)
		if err != nil || !reflect.DeepEqual(got, s.want) {
			t.Errorf("%s: decoded %+v, %v; want %+v", name, got, err, s.want)
		}
		for n := range f.Body {
			if _, err := decode(Frame{f.Kind, f.Body[:n]}); f.Kind != KindReply && !errors.Is(err, ErrMalformed) {
				t.Errorf("%s: the first %d bytes decoded with error %v", name, n, err)
			}
		}
		if _, err := decode(Frame{f.Kind, append(bytes.Clone(f.Body), 0)}); f.Kind != KindReply && !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: with a byte too many, decoded with error %v", name, err)
		}
	}
}

func TestStreamByteByByte(t *testing.T) {
	var all []byte
	var want []any
	for _, s := range samples() {
		all = append(all, s.frame...)
		want = append(want, s.want)
	}
	var s Stream
	var got []any
	for _, c := range all {
		s.Space()[0] = c
		s.Advance(1)
		f, ok, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			v, err := decode(f)
			if err != nil {
				t.Fatal(err)
			}
			if c, ok := v.(Call); ok && c.Payload != nil {
				c.Payload = bytes.Clone(c.Payload) // Space invalidates it
				v = c
			}
			if r, ok := v.(Reply); ok {
				r.Payload = bytes.Clone(r.Payload)
				v = r
			}
			if t, ok := v.(Tell); ok {
				t.Body = bytes.Clone(t.Body)
				v = t
			}
			got = append(got, v)
		}
	}
	if !reflect.DeepEqual(got, want) || s.Buffered() != 0 {
		t.Errorf("got %+v\nwant %+v\nand %d bytes are left", got, want, s.Buffered())
	}
}

// TestStreamIsBounded feeds the largest frame in pieces and looks at the buffer.
func TestStreamIsBounded(t *testing.T) {
	frame := AppendReply(nil, &Reply{Ticket: 1, Payload: make([]byte, MaxPayload)})
	if len(frame) != MaxFrame {
		t.Fatalf("the largest reply has %d bytes, MaxFrame is %d", len(frame), MaxFrame)
	}
	var s Stream
	for round := range 3 {
		taken := 0
		for rest := frame; len(rest) > 0; {
			n := copy(s.Space(), rest)
			s.Advance(n)
			rest = rest[n:]
			if _, ok, err := s.Next(); err != nil {
				t.Fatal(err)
			} else if ok {
				taken++
			}
		}
		if taken != 1 {
			t.Fatalf("round %d: took %d frames, want 1", round, taken)
		}
	}
	if cap(s.buf) > 2*MaxFrame+readAhead {
		t.Errorf("the buffer has grown to %d bytes for frames of %d", cap(s.buf), MaxFrame)
	}
}

func TestNextRefuses(t *testing.T) {
	for name, b := range map[string][]byte{
		"kind 0":        {0, 0, 0, 0, 0, 0, 0, 0},
		"kind too high": {0, 0, 0, 0, byte(kindEnd), 0, 0, 0},
		"reserved":      {0, 0, 0, 0, byte(KindBye), 0, 1, 0},
		"too long":      {0xff, 0xff, 0xff, 0xff, byte(KindReply), 0, 0, 0},
	} {
		if _, _, ok, err := Next(b); ok || !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: ok %v, error %v", name, ok, err)
		}
	}
}

func TestOldHelloStillTellsItsVersion(t *testing.T) {
	f, _, _, _ := Next(AppendHello(nil, &Hello{Version: Version + 1, Rank: 0}))
	if v, err := HelloVersion(f.Body); v != Version+1 || err != nil {
		t.Errorf("version %d, %v", v, err)
	}
	if _, err := DecodeHello(f.Body); !errors.Is(err, ErrMalformed) {
		t.Errorf("DecodeHello of another version: %v", err)
	}
	if _, err := HelloVersion([]byte{1, 2, 3}); !errors.Is(err, ErrMalformed) {
		t.Errorf("HelloVersion of three bytes: %v", err)
	}
}

func TestCallsThatMakeNoSense(t *testing.T) {
	for name, c := range map[string]Call{
		"release with ticket":    {Op: OpRelease, Access: Read, Ticket: 1},
		"repair for reading":     {Op: OpRepair, Access: Read, Ticket: 1},
		"acquire with a count":   {Op: OpAcquire, Access: Read, Ticket: 1, Count: 1},
		"reader has to repair":   {Op: OpRelease, Access: Read, Count: 1},
		"release for no rank":    {Op: OpRelease, Access: Write, Count: 1 << 32},
		"acquire without ticket": {Op: OpAcquire, Access: Read},
		"acquire for nothing":    {Op: OpAcquire, Ticket: 1},
		"barrier of nobody":      {Op: OpArrive, Ticket: 1},
		"prefetch of nothing":    {Op: OpPrefetch, Access: Read, Ticket: 1},
		"pin of nothing":         {Op: OpPin, Access: Read, Ticket: 1},
		"pin without access":     {Op: OpPin, Ticket: 1, Count: 1},
		"unpin with a ticket":    {Op: OpUnpin, Ticket: 1, Object: 2},
		"bind without name":      {Op: OpBind, Ticket: 1},
		"bind under wrong hash":  {Op: OpBind, Ticket: 1, Name: "a", Object: NameHash(NameMemory, "b")},
		"bind to be written":     {Op: OpBind, Ticket: 1, Name: "a", Object: NameHash(NameMemory, "a"), Access: Write},
		"keep for reading":       {Op: OpKeep, Ticket: 1, Name: "a", Object: NameHash(NameMemory, "a"), Access: Read},
		"cancel with a name":     {Op: OpCancel, Ticket: 1, Name: "a"},
		"stats with a payload":   {Op: OpStats, Ticket: 1, Payload: []byte{1}},
		"stats with a type":      {Op: OpStats, Ticket: 1, Signature: "int"},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: the encoder took it", name)
				}
			}()
			AppendCall(nil, &c)
		}()
	}
}

func TestWelcomeToAnImpossibleCluster(t *testing.T) {
	good := Welcome{Version: Version, Nodes: 1, Size: 1, RegionBase: 4096, RegionBytes: 4096, PageBytes: 4096, HomeStripe: 1, Reactors: 1, StripePages: 1}
	for name, spoil := range map[string]func(*Welcome){
		"no nodes":       func(w *Welcome) { w.Nodes = 0 },
		"node too high":  func(w *Welcome) { w.Node = 1 },
		"rank too high":  func(w *Welcome) { w.Rank = 1 },
		"page size":      func(w *Welcome) { w.PageBytes = 4097 },
		"base":           func(w *Welcome) { w.RegionBase = 4097 },
		"empty":          func(w *Welcome) { w.RegionBytes = 0 },
		"beyond the end": func(w *Welcome) { w.RegionBytes = 1<<64 - 4096 },
		"no stripe":      func(w *Welcome) { w.HomeStripe = 0 },
	} {
		w := good
		spoil(&w)
		f, _, _, _ := Next(AppendWelcome(nil, &w))
		if _, err := DecodeWelcome(f.Body); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestPagesAndCounters(t *testing.T) {
	first, count, err := DecodePages(AppendPages(nil, 7, 1<<40))
	if first != 7 || count != 1<<40 || err != nil {
		t.Errorf("pages %d, %d, %v", first, count, err)
	}
	if _, _, err := DecodePages(make([]byte, 15)); !errors.Is(err, ErrMalformed) {
		t.Errorf("15 bytes of pages: %v", err)
	}
	want := []Counter{{"faults_read", 12}, {"faults_write", 1 << 63}}
	b := AppendCounters(nil, want)
	if got, err := DecodeCounters(b); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("counters %v, %v", got, err)
	}
	if _, err := DecodeCounters(b[:len(b)-1]); !errors.Is(err, ErrMalformed) {
		t.Errorf("counters cut short: %v", err)
	}
	most := make([]Counter, MaxCounters)
	for i := range most {
		most[i].Name = strings.Repeat("n", 255)
	}
	if n := len(AppendCounters(nil, most)); n > MaxPayload {
		t.Errorf("MaxCounters counters take %d bytes, a reply holds %d", n, MaxPayload)
	}
}

func TestUsage(t *testing.T) {
	want := Usage{
		Largest: []AllocationUsage{{Job: "j", Name: "a", First: 7, Held: Held{5, 3, 1 << 40, 2}}, {Name: strings.Repeat("n", MaxName)}, {Job: strings.Repeat("j", MaxName)}},
		More:    1, Rest: Held{2, 3, 4, 5}, Foreign: Held{5, 6, 7, 8},
	}
	b := AppendUsage([]byte{9}, &want)[1:]
	if got, err := DecodeUsage(b); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("usage %+v, %v", got, err)
	}
	none := AppendUsage(nil, &Usage{})
	if got, err := DecodeUsage(none); err != nil || !reflect.DeepEqual(got, Usage{}) {
		t.Errorf("no usage is %+v, %v", got, err)
	}
	name := func(job, name int) []byte {
		b := append(bytes.Clone(none[:usageHeadBytes-2]), 1, 0)
		b = appendBytes(appendBytes(b, strings.Repeat("j", job), 1<<16-1), strings.Repeat("n", name), 1<<16-1)
		return append(b, make([]byte, 5*8)...)
	}
	if _, err := DecodeUsage(name(100, MaxName-100)); err != nil {
		t.Errorf("the longest names: %v", err)
	}
	most := Usage{Largest: make([]AllocationUsage, MaxAllocations)}
	for i := range most.Largest {
		most.Largest[i].Name = strings.Repeat("n", MaxName)
	}
	full := AppendUsage(nil, &most)
	if len(full) > MaxPayload {
		t.Errorf("MaxAllocations allocations take %d bytes, a reply holds %d", len(full), MaxPayload)
	}
	for what, b := range map[string][]byte{
		"nothing": nil, "cut short": b[:len(b)-1], "with a byte too many": append(bytes.Clone(b), 0), "names that are too long": name(100, MaxName-99),
		"too many allocations": oneMore(full, usageHeadBytes, name(0, 0)),
	} {
		if got, err := DecodeUsage(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
}

func TestPrograms(t *testing.T) {
	want := Programs{PID: 7, Age: 5 * time.Second, More: 9, Attached: []Attached{
		{PID: 1, Rank: 2, Size: 3, Age: time.Hour, Job: "night", Program: "fft"}, {}, {Job: strings.Repeat("j", MaxJob), Program: strings.Repeat("p", MaxProgram)},
	}}
	b := AppendPrograms([]byte{9}, &want)[1:]
	if got, err := DecodePrograms(b); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("programs %+v, %v", got, err)
	}
	most := Programs{Attached: make([]Attached, MaxAttached)}
	for i := range most.Attached {
		most.Attached[i] = Attached{Job: strings.Repeat("j", MaxJob), Program: strings.Repeat("p", 2*MaxProgram)}
	}
	full := AppendPrograms(nil, &most)
	if len(full) > MaxPayload {
		t.Errorf("MaxAttached programs take %d bytes, a reply holds %d", len(full), MaxPayload)
	}
	if got, err := DecodePrograms(full); err != nil || len(got.Attached[0].Program) != MaxProgram {
		t.Errorf("a long name is %q, %v", got.Attached[0].Program, err)
	}
	for what, b := range map[string][]byte{
		"nothing": nil, "cut short": b[:len(b)-1], "with a byte too many": append(bytes.Clone(b), 0),
		"too many programs": oneMore(full, programsHeadBytes, AppendPrograms(nil, &Programs{Attached: make([]Attached, 1)})),
	} {
		if got, err := DecodePrograms(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
}

// oneMore is a payload with a list at its end, behind so many bytes, with one more item, which is
// the only one of another such payload.
func oneMore(b []byte, head int, other []byte) []byte {
	b = append(bytes.Clone(b), other[head:]...)
	b[head-2]++
	return b
}

// sampleContents are Contents of every kind.
func sampleContents() []Contents {
	return []Contents{
		{Files: 1, First: 1},
		{Files: 1, First: 1<<32 - 1, Offset: 1 << 62, Bytes: 1 << 62, Stripe: 1 << 62, ID: [16]byte{1, 15: 2}, Written: true},
		{Table: 3, Files: MaxFiles, First: 4, ID: [16]byte{7}},
		{Table: 1, ID: [16]byte{7}, Fallback: true},
		{Readers: []uint16{1<<16 - 1}, Bytes: 5},
		{Files: 1, First: 9, Readers: []uint16{2, 0, 1}, Stripe: 1, Written: true},
	}
}

func TestContents(t *testing.T) {
	for _, want := range sampleContents() {
		b := AppendContents([]byte{9}, &want)[1:]
		if got, err := DecodeContents(b); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v became %+v, %v", want, got, err)
		}
		for n := range b {
			if got, err := DecodeContents(b[:n]); err == nil && (len(want.Readers) == 0 || len(got.Readers) >= len(want.Readers)) {
				t.Errorf("the first %d of %d bytes of %+v became %+v", n, len(b), want, got)
			}
		}
		if got, err := DecodeContents(append(bytes.Clone(b), 0)); !errors.Is(err, ErrMalformed) {
			t.Errorf("with a byte too many %+v became %+v, %v", want, got, err)
		}
	}
	flag, other := AppendContents(nil, &Contents{Files: 1}), AppendContents(nil, &Contents{Files: 1})
	flag[contentsBytes-3], other[contentsBytes-4] = 2, 2
	for what, b := range map[string][]byte{
		"a flag that is neither":    flag,
		"another that is neither":   other,
		"a fallback without an ID":  AppendContents(nil, &Contents{Table: 1, Files: 1, Fallback: true}),
		"a fallback in order":       AppendContents(nil, &Contents{Files: 1, ID: [16]byte{7}, Fallback: true}),
		"no file and no reader":     AppendContents(nil, &Contents{}),
		"two files, and no table":   AppendContents(nil, &Contents{Files: 2}),
		"too many files":            AppendContents(nil, &Contents{Table: 1, Files: MaxFiles + 1}),
		"nothing of each in turn":   AppendContents(nil, &Contents{Readers: []uint16{0, 1}}),
		"a table and readers":       AppendContents(nil, &Contents{Table: 1, Files: 1, Readers: []uint16{0}}),
		"a table, written":          AppendContents(nil, &Contents{Table: 1, Files: 1, Written: true}),
		"an offset beyond all":      AppendContents(nil, &Contents{Files: 1, Offset: 1<<62 + 1}),
		"a length beyond all":       AppendContents(nil, &Contents{Files: 1, Bytes: 1 << 63}),
		"a stripe beyond all":       AppendContents(nil, &Contents{Files: 1, Stripe: 1<<64 - 1}),
		"two files with one reader": AppendContents(nil, &Contents{Files: 2, Readers: []uint16{0}}),
	} {
		if got, err := DecodeContents(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s became %+v, %v", what, got, err)
		}
	}
}

func TestCheckpointCalls(t *testing.T) {
	for _, want := range []Checkpoint{{}, {ID: [16]byte{1}, Base: [16]byte{15: 2}, Copies: true}, {ID: [16]byte{3}, InPlace: true}, {Copies: true, InPlace: true}} {
		b := AppendCheckpoint([]byte{9}, &want)[1:]
		if got, err := DecodeCheckpoint(b); err != nil || got != want {
			t.Errorf("%+v became %+v, %v", want, got, err)
		}
		for _, at := range []int{len(b) - 2, len(b) - 1} {
			other := bytes.Clone(b)
			other[at] = 2
			if got, err := DecodeCheckpoint(other); !errors.Is(err, ErrMalformed) {
				t.Errorf("%x became %+v, %v", other, got, err)
			}
		}
		for _, other := range [][]byte{nil, b[:len(b)-1], append(bytes.Clone(b), 0)} {
			if got, err := DecodeCheckpoint(other); !errors.Is(err, ErrMalformed) {
				t.Errorf("%d bytes became %+v, %v", len(other), got, err)
			}
		}
	}
}

func TestRanks(t *testing.T) {
	for _, want := range [][]uint32{nil, {0}, {7, 8}, {1, 2, 63, 64, 1000}, {0, MaxRank}} {
		b := AppendRanks([]byte{9}, want)
		if got, err := DecodeRanks(b[1:]); err != nil || !slices.Equal(got, want) {
			t.Errorf("%v became %v, %v", want, got, err)
		}
	}
	for name, b := range map[string][]byte{"zeros at its end": {1, 0}, "too many ranks": append(make([]byte, (MaxRank+1)/8), 1)} {
		if got, err := DecodeRanks(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("a set with %s became %v, %v", name, got, err)
		}
	}
	if node, lost := OwnerNode(1<<31 | 5); node != 5 || !lost {
		t.Errorf("the owner's node is %d, %v", node, lost)
	}
	if _, lost := OwnerNode(MaxRank); lost {
		t.Error("a rank is taken for a node")
	}
}

func TestBindPagesAndIdentity(t *testing.T) {
	for _, c := range []struct {
		count, elem, pages uint64
		ok                 bool
	}{{0, 8, 1, true}, {5, 0, 1, true}, {512, 8, 1, true}, {513, 8, 2, true}, {1 << 62, 8, 1, false}} {
		call := Call{Count: c.count, ElemBytes: c.elem}
		if pages, ok := call.Pages(4096); ok != c.ok || (ok && pages != c.pages) {
			t.Errorf("%d × %d bytes: %d pages, %v; want %d, %v", c.count, c.elem, pages, ok, c.pages, c.ok)
		}
	}
	a := Call{Count: 1 << 60, ElemBytes: 1 << 60, TypeHash: 1, Signature: strings.Repeat("x", MaxSignature)}
	b := a
	b.TypeHash = 2
	if n := len(a.Identity()); n > 4096 || a.Identity() == b.Identity() {
		t.Errorf("identity of %d bytes; types that differ late have the same: %v", n, a.Identity() == b.Identity())
	}
}

func TestNameHash(t *testing.T) {
	// The empty name under kind k is one round of FNV-1a of k; "a" alone is in the reference's test
	// vectors.
	if h := NameHash('a', ""); h != 0xaf63dc4c8601ec8c {
		t.Errorf("FNV-1a of \"a\" is %#x", h)
	}
	if h := NameHash('f', "oobar"); h != 0x85944171f73967e8 {
		t.Errorf("FNV-1a of \"foobar\" is %#x", h)
	}
	if NameHash(NameLock, "x") == NameHash(NameBarrier, "x") {
		t.Error("a lock and a barrier of the same name have the same hash")
	}
}

func FuzzNext(f *testing.F) {
	for _, s := range samples() {
		f.Add(s.frame)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		whole := b
		for {
			fr, rest, ok, err := Next(b)
			if err != nil && !errors.Is(err, ErrMalformed) {
				t.Fatalf("error %v is not ErrMalformed", err)
			}
			if !ok {
				break
			}
			if HeaderBytes+len(fr.Body)+len(rest) != len(b) {
				t.Fatalf("a frame of %d bytes was taken from %d and %d are left", len(fr.Body), len(b), len(rest))
			}
			b = rest
		}
		// The incremental parser finds the same end.
		var s Stream
		for left := whole; ; {
			if _, ok, err := s.Next(); err != nil || (!ok && len(left) == 0) {
				break
			} else if !ok {
				n := copy(s.Space()[:min(3, readAhead)], left)
				s.Advance(n)
				left = left[n:]
			}
		}
	})
}

// FuzzDecode holds every decoder to: an error, or a value whose encoding is the input.
func FuzzDecode(f *testing.F) {
	for _, s := range samples() {
		fr, _, _, _ := Next(s.frame)
		f.Add(byte(fr.Kind), fr.Body)
	}
	f.Fuzz(func(t *testing.T, k byte, b []byte) {
		fr := Frame{Kind(k), b}
		v, err := decode(fr)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("error %v is not ErrMalformed", err)
			}
			return
		}
		if len(b) > MaxFrame-HeaderBytes {
			t.Skip() // Next never hands it on
		}
		if got := encode(fr.Kind, v); !bytes.Equal(got[HeaderBytes:], b) {
			t.Fatalf("%v %+v encodes to %x, was decoded from %x", fr.Kind, v, got[HeaderBytes:], b)
		}
	})
}

func FuzzDecodePayloads(f *testing.F) {
	f.Add(AppendPages(nil, 1, 2))
	f.Add(AppendCounters(nil, []Counter{{"a", 1}}))
	f.Add(AppendRanks(nil, []uint32{0, 3, 17}))
	f.Add(AppendUsage(nil, &Usage{Largest: []AllocationUsage{{Job: "j", Name: "a", First: 1, Held: Held{2, 1, 1, 1}}, {}}, More: 1}))
	f.Add(AppendPrograms(nil, &Programs{PID: 1, Age: 2, More: 3, Attached: []Attached{{PID: 1, Rank: 2, Size: 3, Age: 4, Job: "j", Program: "p"}, {}}}))
	f.Add(AppendWaits(nil, &Waits{All: [WaitKinds]Cost{{1, 2}, {3, 4}}, Taken: 5, List: []Awaited{{Kind: WaitLock, Job: "j", Name: "queue", Cost: Cost{6, 7}}, {Taken: 8}}}))
	for _, c := range sampleContents() {
		f.Add(AppendContents(nil, &c))
	}
	f.Add(AppendContents(nil, &Contents{Readers: []uint16{0, 1}}))
	for _, c := range []Checkpoint{{}, {ID: [16]byte{1}, Base: [16]byte{15: 2}, Copies: true}, {ID: [16]byte{3}, InPlace: true}} {
		f.Add(AppendCheckpoint(nil, &c))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := DecodeContents(b); err == nil && !bytes.Equal(AppendContents(nil, &c), b) {
			t.Fatalf("contents %+v from %x", c, b)
		} else if err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatalf("error %v is not ErrMalformed", err)
		}
		if c, err := DecodeCheckpoint(b); err == nil && !bytes.Equal(AppendCheckpoint(nil, &c), b) {
			t.Fatalf("a checkpoint %+v from %x", c, b)
		} else if err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatalf("error %v is not ErrMalformed", err)
		}
		if first, count, err := DecodePages(b); err == nil && !bytes.Equal(AppendPages(nil, first, count), b) {
			t.Fatalf("pages %d, %d from %x", first, count, b)
		}
		if c, err := DecodeCounters(b); err == nil && !bytes.Equal(AppendCounters(nil, c), b) {
			t.Fatalf("counters %v from %x", c, b)
		}
		if ranks, err := DecodeRanks(b); err == nil && !bytes.Equal(AppendRanks(nil, ranks), b) {
			t.Fatalf("ranks %v from %x", ranks, b)
		}
		if u, err := DecodeUsage(b); err == nil && !bytes.Equal(AppendUsage(nil, &u), b) {
			t.Fatalf("usage %+v from %x", u, b)
		} else if err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatalf("error %v is not ErrMalformed", err)
		}
		if p, err := DecodePrograms(b); err == nil && !bytes.Equal(AppendPrograms(nil, &p), b) {
			t.Fatalf("programs %+v from %x", p, b)
		} else if err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatalf("error %v is not ErrMalformed", err)
		}
		if w, err := DecodeWaits(b); err == nil && !bytes.Equal(AppendWaits(nil, &w), b) {
			t.Fatalf("waits %+v from %x", w, b)
		} else if err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatalf("error %v is not ErrMalformed", err)
		}
		if _, err := HelloVersion(b); err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatalf("error %v is not ErrMalformed", err)
		}
	})
}
