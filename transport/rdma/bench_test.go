package rdma

import (
	"testing"

	"dsmd/internal/verbs"
	"dsmd/transport"
	"dsmd/transport/transporttest"
)

// answerer answers each frame with a page, from inside Poll, as the daemon does; at one side, and
// counts at the other.
type answerer struct {
	tr      transport.Transport
	control []byte
	answers bool
	up      bool
	pages   int
}

func (a *answerer) PeerUp(transport.NodeID)          { a.up = true }
func (a *answerer) PeerDown(transport.NodeID, error) {}

func (a *answerer) Frame(from transport.NodeID, _ []byte, payload transport.Payload) {
	if payload != nil {
		a.pages++
	}
	if !a.answers {
		return
	}
	if err := a.tr.Send(from, a.control, a.tr.Lease(from)); err != nil {
		panic(err)
	}
	a.tr.Flush()
}

// bareFabric is a device of two that does no more than it must: it copies, and believes everything.
type bareFabric struct {
	*fakeFabric
	peer *bareFabric
	end  uint32
	// receives is a ring, of which taken to posted are there.
	receives []verbs.RecvRequest
	// completions is one too, of which polled to completed are there.
	completions                      []verbs.Completion
	taken, posted, polled, completed uint32
}

const bareRing = 1 << 10

func (f *bareFabric) endpoint() (endpoint, error) {
	e, err := f.fakeFabric.endpoint()
	if err == nil {
		f.end = e.number()
	}
	return bareEnd{e, f}, err
}

func (f *bareFabric) postRecv(requests []verbs.RecvRequest) error {
	for i := range requests {
		f.receives[f.posted%bareRing] = requests[i]
		f.posted++
	}
	return nil
}

func (f *bareFabric) poll(out []verbs.Completion) (int, error) {
	n := 0
	for f.polled != f.completed && n < len(out) {
		out[n] = f.completions[f.polled%bareRing]
		f.polled++
		n++
	}
	return n, nil
}

// memory is what a request names; the lower half of an address is where in its region it is.
func (f *bareFabric) memory(address uint64, bytes uint32) []byte {
	return f.all.regions[uint32(address>>32)].bytes[uint32(address):][:bytes]
}

// bareEnd is one side of the only connection.
type bareEnd struct {
	endpoint
	f *bareFabric
}

func (e bareEnd) maxInline() int { return 256 }

func (e bareEnd) post(requests []verbs.SendRequest) error {
	to := e.f.peer
	for i := range requests {
		r := &requests[i]
		if r.Flags&verbs.Signaled != 0 {
			e.f.completions[e.f.completed%bareRing] = verbs.Completion{ID: r.ID, QPN: e.f.end}
			e.f.completed++
		}
		c := verbs.Completion{Op: verbs.WCRecv, QPN: to.end}
		target := r.RemoteAddr
		if r.Op != verbs.OpWrite {
			c.ID = to.receives[to.taken%bareRing].ID
			if r.Op == verbs.OpSend {
				target = to.receives[to.taken%bareRing].SGE.Addr
			} else {
				c.Op, c.Imm = verbs.WCRecvImm, r.Imm
			}
			to.taken++
		}
		for _, s := range r.SGE[:r.SGEs] {
			c.Bytes += uint32(copy(e.f.memory(target, s.Length), e.f.memory(s.Addr, s.Length)))
			target += uint64(s.Length)
		}
		if r.Op != verbs.OpWrite {
			to.completions[to.completed%bareRing] = c
			to.completed++
		}
	}
	return nil
}

// BenchmarkFetch is what this package itself costs in a fetch of a page: the device is a fake,
// which copies the page.
func BenchmarkFetch(b *testing.B) {
	all := newFakeFabrics(b, false)
	var bare [2]*bareFabric
	for i := range bare {
		bare[i] = &bareFabric{fakeFabric: all.device(), receives: make([]verbs.RecvRequest, bareRing), completions: make([]verbs.Completion, bareRing)}
	}
	bare[0].peer, bare[1].peer = bare[1], bare[0]
	nodes := newCluster(b, transporttest.Options{Nodes: 2, PageBytes: 4096, MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, func(i int) fabric { return bare[i] })
	var ends [2]*answerer
	for i, tr := range nodes {
		ends[i] = &answerer{tr: tr, control: make([]byte, 64), answers: i == 1}
	}
	poll := func() {
		for i, e := range ends {
			if _, err := nodes[i].Poll(e, 64); err != nil {
				b.Fatal(err)
			}
		}
	}
	for !ends[0].up || !ends[1].up {
		poll()
	}
	b.ReportAllocs()
	for b.Loop() {
		want := ends[0].pages + 1
		if err := nodes[0].Send(1, ends[0].control, nil); err != nil {
			b.Fatal(err)
		}
		nodes[0].Flush()
		for ends[0].pages < want {
			poll()
		}
	}
}
