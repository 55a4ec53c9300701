package node

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"dsmd/internal/attach"
	"dsmd/protocol"
)

var liesAll = flag.Bool("lies.all", false, "tell every lie, in minutes, and not only a part of them")

// liesStride is how many lies there are for each that is told.
func liesStride() int {
	switch {
	case *liesAll:
		return 1
	case testing.Short():
		return 30
	}
	return 20
}

// situations are what node 0, of three, is in the middle of when a peer lies to it. Node 1 is the
// home of the second stripe.
var situations = map[string]func(p *prog, home *rogue){
	"at rest": func(*prog, *rogue) {},
	"as home, owner and waiting": func(p *prog, _ *rogue) {
		p.access(0, true, func([]byte) {})
		p.access(HomeStripe, true, func([]byte) {})
		p.call(attach.Call{Op: attach.OpAcquire, Object: 0, Access: attach.Write})
		p.call(attach.Call{Op: attach.OpAcquire, Object: 1, Access: attach.Read})
		p.call(attach.Call{Op: attach.OpArrive, Object: 0, Parties: 2})
		p.call(attach.Call{Op: attach.OpBind, Name: "x", Count: 5000, ElemBytes: 8, Object: attach.NameHash(attach.NameMemory, "x")})
	},
	"as reader, asking for more": func(p *prog, home *rogue) {
		load := p.access(HomeStripe, false, func([]byte) {})
		home.hear()
		home.say(protocol.Grant{Access: protocol.Read, Contents: protocol.ZeroContents}.To(0, protocol.PageObject(HomeStripe)).SentBy(1), false)
		p.settled(load)
		p.access(HomeStripe, true, func([]byte) {})
		for home.hear().Kind != protocol.KindRequest {
		}
	},
	"as home of a reader and a writer": func(p *prog, home *rogue) {
		store := p.access(0, true, func([]byte) {})
		p.settled(store)
		for _, a := range []protocol.Access{protocol.Read, protocol.Write} {
			home.say(protocol.Request{Access: a}.To(0, protocol.PageObject(0)).SentBy(1), false)
			home.hear()
		}
	},
}

// said is a message as a peer may say it, with or without a page.
type said struct {
	control []byte
	page    bool
}

func saying(m protocol.Message) said {
	return said{protocol.AppendMessage(nil, &m), m.Contents() == protocol.PageContents}
}

// edges are values at which things go wrong, by the type of the field.
var edges = map[reflect.Type][]any{
	reflect.TypeFor[protocol.Access]():   {protocol.None, protocol.Read, protocol.Write, protocol.Access(3), protocol.Access(255)},
	reflect.TypeFor[protocol.Contents](): {protocol.NoContents, protocol.PageContents, protocol.ZeroContents, protocol.FirstContents, protocol.Contents(4)},
	reflect.TypeFor[protocol.NodeID]():   {protocol.NodeID(0), protocol.NodeID(1), protocol.NodeID(3), protocol.NodeID(protocol.MaxNodes), protocol.NoNode},
	reflect.TypeFor[protocol.Status]():   {protocol.Status(0), protocol.StatusCanceled, protocol.StatusOwnerDied, protocol.StatusUnrepaired, protocol.Status(8)},
	reflect.TypeFor[protocol.Ticket]():   {protocol.Ticket(0), protocol.Ticket(2), protocol.Ticket(1<<32 - 1), protocol.Ticket(1<<64 - 1)},
	reflect.TypeFor[uint16]():            {uint16(1), uint16(2), uint16(3), uint16(protocol.MaxNodes), uint16(protocol.MaxNodes + 1), uint16(1<<16 - 1)},
	reflect.TypeFor[uint32]():            {uint32(0), uint32(2), uint32(3), uint32(1<<32 - 1)},
	reflect.TypeFor[bool]():              {true},
	reflect.TypeFor[[]byte](): {
		[]byte{0}, make([]byte, protocol.MaxContribution), make([]byte, protocol.MaxContribution+1), make([]byte, protocol.MaxPayload), make([]byte, protocol.MaxPayload+1),
		(&protocol.NameCall{Op: protocol.Bind, Client: 1<<32 - 1, Pages: 1 << 63, Name: "y", Signature: strings.Repeat("s", protocol.MaxSignature)}).Append(nil),
		protocol.AppendRun(nil, 0, 1), protocol.AppendRun(nil, 0, 0), protocol.AppendRun(nil, testPages, 1),
		protocol.AppendRun(nil, 1<<64-1, 2), protocol.AppendRun(nil, 0, 1<<64-1),
	},
}

// usual is what a field has that is not at an edge.
var usual = map[reflect.Type]any{
	reflect.TypeFor[protocol.Access](): protocol.Write, reflect.TypeFor[protocol.NodeID](): protocol.NodeID(2),
	reflect.TypeFor[protocol.Ticket](): protocol.Ticket(1), reflect.TypeFor[uint32](): uint32(1),
}

// variations are a message of a kind, and all that differ from it in one field which has a value at
// an edge, or in a byte of the header.
func variations(kind any) []said {
	object := protocol.PageObject(0)
	if strings.HasPrefix(reflect.TypeOf(kind).Name(), "Barrier") {
		object = protocol.LockObject(0)
	}
	base := reflect.New(reflect.TypeOf(kind)).Elem()
	for i := range base.NumField() {
		if v, ok := usual[base.Field(i).Type()]; ok {
			base.Field(i).Set(reflect.ValueOf(v))
		}
	}
	message := func(says reflect.Value) protocol.Message {
		to := says.MethodByName("To")
		args := []reflect.Value{reflect.ValueOf(protocol.NodeID(0)), reflect.ValueOf(object)}
		return to.Call(args[:to.Type().NumIn()])[0].Interface().(protocol.Message).SentBy(1)
	}
	honest := message(base)
	all := []said{saying(honest)}
	for i := range base.NumField() {
		for _, v := range edges[base.Field(i).Type()] {
			says := reflect.New(base.Type()).Elem()
			says.Set(base)
			says.Field(i).Set(reflect.ValueOf(v))
			all = append(all, saying(message(says)))
		}
	}
	for _, n := range []protocol.NodeID{0, 2, 3, protocol.MaxNodes, protocol.NoNode} {
		all = append(all, saying(honest.SentBy(n)))
	}
	for _, o := range []protocol.ObjectID{
		protocol.PageObject(HomeStripe), protocol.PageObject(2 * HomeStripe), protocol.PageObject(testPages - 1), protocol.PageObject(testPages),
		protocol.PageObject(1<<63 - 1), protocol.LockObject(0), protocol.LockObject(1), protocol.LockObject(2), protocol.LockObject(1<<64 - 1),
	} {
		m := honest
		m.Object = o
		all = append(all, saying(m))
	}
	for at := range all[0].control {
		control := slices.Clone(all[0].control)
		control[at] ^= 0xff
		all = append(all, said{control, all[0].page})
	}
	return all
}

// kinds has one of each kind.
var kinds = []any{
	protocol.Request{}, protocol.Forward{}, protocol.Invalidate{}, protocol.InvalidateAck{}, protocol.Verify{}, protocol.Grant{}, protocol.Done{},
	protocol.BarrierArrive{}, protocol.BarrierCancel{}, protocol.BarrierRelease{}, protocol.BarrierOpen{}, protocol.BarrierCombine{}, protocol.BarrierCombineAck{},
	protocol.BarrierBroadcast{}, protocol.BarrierBroadcastAck{}, protocol.NameRequest{}, protocol.NameReply{}, protocol.Free{}, protocol.FreeAck{},
	protocol.Lost{}, protocol.Backup{}, protocol.BackupAck{}, protocol.BackupCopy{}, protocol.BackupCopyAck{},
	protocol.EpochMarker{}, protocol.ReportHeld{}, protocol.ReportBound{}, protocol.EpochReady{},
}

// TestEveryFieldOfEveryLie says to a node, in several situations, every kind of message with every
// field at its edges, with a page where it says so. The node goes on serving its program, or ends
// with an error that names a peer. Which part of the lies is told is chosen anew for each run; with
// -lies.all each can be told again by its name.
func TestEveryFieldOfEveryLie(t *testing.T) {
	t.Parallel()
	said, ended := 0, 0
	stride := liesStride()
	begin := rand.IntN(stride)
	for name, prepare := range situations {
		for k, kind := range kinds {
			for i, s := range variations(kind) {
				if i%stride != (begin+k)%stride {
					continue
				}
				t.Run(fmt.Sprintf("%s/%T/%d", name, kind, i), func(t *testing.T) {
					said++
					if lie(t, prepare, s) {
						ended++
					}
				})
			}
		}
	}
	t.Logf("%d lies, of which %d ended the node", said, ended)
	if ended == 0 || ended == said {
		t.Errorf("%d of %d lies ended the node: they are all of a kind", ended, said)
	}
}

// lie has node 1 say a message. It returns whether that has ended the node.
func lie(t *testing.T, prepare func(*prog, *rogue), s said) (ended bool) {
	t.Helper()
	c, rogues := among(t)
	defer c.stop()
	node := c.members[0]
	p := node.join()
	prepare(p, rogues[0])
	rogues[0].sayBytes(s.control, s.page)
	if waitEnd(node, p) {
		if err := node.ended(); err == nil || !strings.Contains(err.Error(), "node 1") && !strings.Contains(err.Error(), "node 2") {
			t.Errorf("%x: the node ended with %v, which names no peer", s.control, err)
		}
		return true
	}
	return false
}

// TestTooLongAnswer: what a program has asked a peer for does not fit into one answer.
func TestTooLongAnswer(t *testing.T) {
	c, rogues := among(t)
	node := c.members[0]
	p := node.join()
	p.call(attach.Call{Op: attach.OpArrive, Object: 1, Parties: 2})
	arrival := rogues[0].hear()
	release := protocol.BarrierRelease{Ticket: arrival.AsBarrierArrive().Ticket, Result: make([]byte, protocol.MaxResult+1)}
	rogues[0].say(release.To(0, arrival.Object).SentBy(1), false)
	if err := node.ended(); err == nil || !strings.Contains(err.Error(), "node 1") {
		t.Errorf("the node ended with %v", err)
	}
}

// waitEnd waits until the node has dealt with all that was sent to it. It returns whether it has
// ended.
func waitEnd(m *member, p *prog) bool {
	m.Helper()
	// an answer to the second question proves that the reactor has looked at the network since the
	// first
	for range 2 {
		p.mu.Lock()
		p.ticket++
		ticket, done := p.ticket, make(chan attach.Reply, 1)
		p.open[ticket] = done
		p.mu.Unlock()
		// the node may have ended
		_ = p.conn.Write(attach.AppendCall(nil, &attach.Call{Op: attach.OpStats, Ticket: ticket}))
		select {
		case <-done:
		case <-p.ended:
			return true
		}
	}
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}
