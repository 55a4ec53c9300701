package node

import (
	"flag"
	"fmt"
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
		return 11
	}
	return 4
}

// situations are what node 0, of three, is in the middle of when a peer lies to it. Node 1 is the home of the second stripe.
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
		home.say(protocol.Message{Kind: protocol.Grant, From: 1, Object: protocol.PageObject(HomeStripe), Access: protocol.Read, Flags: protocol.FlagZero}, false)
		p.settled(load)
		p.access(HomeStripe, true, func([]byte) {})
		for home.hear().Kind != protocol.Request {
		}
	},
	"as home of a reader and a writer": func(p *prog, home *rogue) {
		store := p.access(0, true, func([]byte) {})
		p.settled(store)
		for _, a := range []protocol.Access{protocol.Read, protocol.Write} {
			home.say(protocol.Message{Kind: protocol.Request, From: 1, Object: protocol.PageObject(0), Access: a}, false)
			home.hear()
		}
	},
}

// variations are a message of a kind, and all that differ from it in one field which has a value at an edge.
func variations(kind protocol.Kind) []protocol.Message {
	base := protocol.Message{Kind: kind, Access: protocol.Write, From: 1, Requester: 2, Object: protocol.PageObject(0), Ticket: 1, Aux: 1}
	if kind >= protocol.BarrierArrive && kind <= protocol.BarrierSpreadAck {
		base.Object = protocol.LockObject(0)
	}
	all := []protocol.Message{base}
	with := func(change func(*protocol.Message)) {
		m := base
		change(&m)
		all = append(all, m)
	}
	for a := range protocol.Access(5) {
		with(func(m *protocol.Message) { m.Access = a })
	}
	for f := range protocol.Flags(32) {
		with(func(m *protocol.Message) { m.Flags = f })
	}
	for _, n := range []protocol.NodeID{0, 1, 2, 3, protocol.MaxNodes, protocol.NoNode} {
		with(func(m *protocol.Message) { m.From = n })
		with(func(m *protocol.Message) { m.Requester = n })
	}
	for _, n := range []uint16{1, 2, 3, protocol.MaxNodes, protocol.MaxNodes + 1, 1<<16 - 1} {
		with(func(m *protocol.Message) { m.Acks = n })
	}
	for s := range protocol.Status(8) {
		with(func(m *protocol.Message) { m.Status = s })
	}
	for _, o := range []protocol.ObjectID{
		protocol.PageObject(HomeStripe), protocol.PageObject(2 * HomeStripe), protocol.PageObject(testPages - 1), protocol.PageObject(testPages),
		protocol.PageObject(1<<63 - 1), protocol.LockObject(0), protocol.LockObject(1), protocol.LockObject(2), protocol.LockObject(1<<64 - 1),
	} {
		with(func(m *protocol.Message) { m.Object = o })
	}
	for _, v := range []uint64{0, 2, 3, 1<<32 - 1, 1<<64 - 1} {
		with(func(m *protocol.Message) { m.Ticket = protocol.Ticket(v) })
		with(func(m *protocol.Message) { m.Aux = uint32(v) })
		with(func(m *protocol.Message) { m.Rank = uint32(v) })
	}
	name := protocol.NameCall{Op: protocol.Bind, Client: 1<<32 - 1, Pages: 1 << 63, Name: "y", Signature: strings.Repeat("s", protocol.MaxSignature)}
	for _, p := range [][]byte{
		{0}, make([]byte, protocol.MaxContribution), make([]byte, protocol.MaxContribution+1), make([]byte, protocol.MaxPayload), make([]byte, protocol.MaxPayload+1),
		name.Append(nil), protocol.AppendRun(nil, 0, 1), protocol.AppendRun(nil, 0, 0), protocol.AppendRun(nil, testPages, 1),
		protocol.AppendRun(nil, 1<<64-1, 2), protocol.AppendRun(nil, 0, 1<<64-1),
	} {
		with(func(m *protocol.Message) { m.Payload = p })
	}
	return all
}

// TestEveryFieldOfEveryLie says to a node, in several situations, every kind of message with every field at its edges, with a page where the
// flags say so. The node goes on serving its program, or ends with an error that names a peer.
func TestEveryFieldOfEveryLie(t *testing.T) {
	said, ended := 0, 0
	for name, prepare := range situations {
		for kind := protocol.Request; kind <= protocol.ForgetAck+1; kind++ {
			for i, m := range variations(kind) {
				if stride := liesStride(); i%stride != int(kind)%stride {
					continue
				}
				t.Run(fmt.Sprintf("%s/%v/%d", name, kind, i), func(t *testing.T) {
					said++
					if lie(t, prepare, m) {
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

// lie has node 1 say a message, and says whether that has ended the node.
func lie(t *testing.T, prepare func(*prog, *rogue), m protocol.Message) (ended bool) {
	t.Helper()
	c, rogues := among(t)
	defer c.stop()
	node := c.members[0]
	p := node.join()
	prepare(p, rogues[0])
	rogues[0].say(m, m.Flags&protocol.FlagData != 0)
	if waitEnd(node, p) {
		if err := node.ended(); err == nil || !strings.Contains(err.Error(), "node 1") && !strings.Contains(err.Error(), "node 2") {
			t.Errorf("%+v: the node ended with %v, which names no peer", m, err)
		}
		return true
	}
	return false
}

// waitEnd waits until the node has dealt with all that was sent to it, and says whether it has ended.
func waitEnd(m *member, p *prog) bool {
	m.Helper()
	for range 2 { // an answer to the second question proves that the reactor has looked at the network since the first
		p.mu.Lock()
		p.ticket++
		ticket, done := p.ticket, make(chan attach.Reply, 1)
		p.open[ticket] = done
		p.mu.Unlock()
		_ = p.conn.Write(attach.AppendCall(nil, &attach.Call{Op: attach.OpStats, Ticket: ticket})) // the node may have ended
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
