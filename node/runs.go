package node

import (
	"errors"
	"fmt"

	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport"
)

// Runs of pages. What the engine decides it decides page by page, and so it is told when something is done. But programs go over arrays, so that
// what comes in one turn of the reactor is often the same for many neighbours: a system call for all of them costs little more than
// for one. So within a turn (between gather and settle) an operation on a page waits for those that follow. To the engine it is one that takes a while,
// as any operation may. It is performed, with its neighbours, when an operation comes that does not continue the run, when the run is full, or
// when the turn ends.
//
// In the same way page contents that are to be sent wait for each other, to be read by one system call. No operation is performed before
// they are sent: it could change what is to be read. And no other message overtakes them.

// maxRunPages bounds a run, where pages have the least size.
const maxRunPages = pagetable.MaxRunBytes / (4 << 10)

// longRun is how many pages take about as long as a system call that sends: before so many are operated on what waits to be sent leaves, and the peer need not
// wait. Before fewer it waits for what will follow from them: mostly for the same peer, which gets both together.
const longRun = 4

// runs is what waits in the current turn.
type runs struct {
	gathering bool
	most      int // how many pages a run can have
	pageBytes int

	op       pagetable.Run // what waits: none if its Count is 0
	now      pagetable.Run // what is being performed; here, because a variable would be allocated for each
	data     []byte        // what op.Data is a part of
	into     [maxRunPages][]byte
	outcomes [maxRunPages]pagetable.Outcome

	grants  []grant // in the order in which they are to be sent
	buffers [maxRunPages][]byte
}

// grant is a message that goes with a page.
type grant struct {
	message protocol.Message
	payload transport.Payload
	filled  bool // the payload has the contents already
}

func newRuns(pageBytes int) runs {
	most := max(pagetable.MaxRunBytes/pageBytes, 1)
	return runs{most: most, pageBytes: pageBytes, data: make([]byte, most*pageBytes), grants: make([]grant, 0, most)}
}

// gather begins a turn.
func (n *Node) gather() { n.runs.gathering = true }

// settle ends a turn: it does what waits, and what follows from that.
func (n *Node) settle() {
	r := &n.runs
	for r.op.Count > 0 || len(r.grants) > 0 {
		if r.op.Count >= longRun {
			n.flush()
		}
		n.perform()
		n.sendGrants()
	}
	r.gathering = false
}

// operate starts an operation on a page, now or at the end of the run that it is part of. data is of an install, and valid until
// operate returns; into is of a revoke.
func (n *Node) operate(op pagetable.Op, page pagetable.Page, writable bool, proc pagetable.ProcID, data, into []byte) {
	r := &n.runs
	if !r.gathering || data != nil && r.op.Count == 0 && n.engine.Pending() <= 1 {
		// Nothing follows, and to wait for it would cost a copy of the page.
		n.sendGrants()
		n.perform()
		n.operateAlone(op, page, writable, proc, data, into)
		return
	}
	if !r.continues(op, page, writable, proc, data, into) {
		n.perform()
		r.op = pagetable.Run{Op: op, First: page, Writable: writable, Proc: proc}
	}
	r.add(data, into)
	if r.op.Count == r.most {
		n.perform()
	}
}

// operateAlone does an operation on one page.
func (n *Node) operateAlone(op pagetable.Op, page pagetable.Page, writable bool, proc pagetable.ProcID, data, into []byte) {
	var out pagetable.Outcome
	var err error
	switch op {
	case pagetable.OpInstall:
		out, err = n.table.Install(page, data, writable, proc)
	case pagetable.OpMakeWritable:
		out, err = n.table.MakeWritable(page)
	case pagetable.OpDowngrade:
		out, err = n.table.Downgrade(page)
	case pagetable.OpRevoke:
		out, err = n.table.Revoke(page, into)
	}
	n.operated(page, effectOf[op], out, err)
}

// continues says whether an operation can be part of the run that waits.
func (r *runs) continues(op pagetable.Op, page pagetable.Page, writable bool, proc pagetable.ProcID, data, into []byte) bool {
	o := &r.op
	return o.Count > 0 && o.Op == op && page == o.First+pagetable.Page(o.Count) && o.Writable == writable && o.Proc == proc &&
		(o.Data == nil) == (data == nil) && (o.Into == nil) == (into == nil)
}

func (r *runs) add(data, into []byte) {
	o := &r.op
	if data != nil {
		copy(r.data[o.Count*r.pageBytes:], data)
		o.Data = r.data[:(o.Count+1)*r.pageBytes]
	}
	if into != nil {
		r.into[o.Count] = into
		o.Into = r.into[:o.Count+1]
	}
	o.Count++
}

// perform performs the operation that waits, if there is one, and tells the engine of each page that it is done with.
func (n *Node) perform() {
	r := &n.runs
	if r.op.Count == 0 {
		return
	}
	n.sendGrants()
	r.now, r.op = r.op, pagetable.Run{}
	run, outcomes := &r.now, r.outcomes[:r.now.Count]
	if run.Count == 1 {
		var into []byte
		if run.Into != nil {
			into = run.Into[0]
		}
		n.operateAlone(run.Op, run.First, run.Writable, run.Proc, run.Data, into)
		return
	}
	n.count.runs.Add(1)
	n.count.runPages.Add(uint64(run.Count))
	err := n.table.Operate(run, outcomes)
	n.together(func() {
		for i, out := range outcomes {
			n.operated(run.First+pagetable.Page(i), effectOf[run.Op], out, err)
		}
	})
}

// sendPage sends a message with the page that it is about, now or together with those that follow.
func (n *Node) sendPage(m *protocol.Message) {
	r := &n.runs
	page := pagetable.Page(m.Object.Page())
	g := grant{message: *m}
	if g.payload, g.filled = n.saved[page]; g.filled {
		delete(n.saved, page)
	} else {
		g.payload = n.net.Lease(transport.NodeID(m.To))
	}
	r.grants = append(r.grants, g)
	if !r.gathering {
		n.sendGrants()
	} else if len(r.grants) == r.most {
		n.sendGrants()
		n.net.Flush() // so that the peer deals with them while this node deals with those that follow
	}
}

// sendGrants sends the pages that wait to be sent.
func (n *Node) sendGrants() {
	r := &n.runs
	if len(r.grants) == 0 {
		return
	}
	if err := n.readGrants(); err != nil {
		for i := range r.grants {
			r.grants[i].payload.Release()
		}
		n.breakDown(err)
	} else {
		for i := range r.grants {
			g := &r.grants[i]
			n.post(&g.message, n.unlessZero(&g.message, g.payload))
		}
	}
	clear(r.grants)
	r.grants = r.grants[:0]
}

// readGrants fills the payloads that have no contents yet, neighbours together.
func (n *Node) readGrants() error {
	r := &n.runs
	for i := 0; i < len(r.grants); {
		if r.grants[i].filled {
			i++
			continue
		}
		first, count := pagetable.Page(r.grants[i].message.Object.Page()), 0
		for i < len(r.grants) && !r.grants[i].filled && pagetable.Page(r.grants[i].message.Object.Page()) == first+pagetable.Page(count) {
			r.buffers[count] = r.grants[i].payload.Bytes()
			i, count = i+1, count+1
		}
		err := n.table.Read(first, r.buffers[:count]...)
		clear(r.buffers[:count])
		if err != nil {
			return fmt.Errorf("node: read page %d: %w", first, err)
		}
	}
	return nil
}

// unlessZero returns the page that goes with a message. A page of zeros is not sent; the message says so instead, and nil is returned.
func (n *Node) unlessZero(m *protocol.Message, payload transport.Payload) transport.Payload {
	if isZero(payload.Bytes()) {
		n.count.zeroPages.Add(1)
		payload.Release()
		m.Flags = m.Flags&^protocol.FlagData | protocol.FlagZero
		return nil
	}
	n.count.pagesSent.Add(1)
	return payload
}

// post gives a message to the network, with a page or nil.
func (n *Node) post(m *protocol.Message, payload transport.Payload) {
	n.passedBy(m, StagePosted)
	n.control = protocol.AppendMessage(n.control[:0], m)
	err := n.net.Send(transport.NodeID(m.To), n.control, payload)
	switch {
	case err == nil:
		// Nobody waits for a Done but others who want the same object.
		n.unsent = true
		n.urgent = n.urgent || m.Kind != protocol.Done
	case n.survives():
		n.unsendable(transport.NodeID(m.To), fmt.Errorf("node: send %v to node %d: %w", m.Kind, m.To, err))
	case errors.Is(err, transport.ErrPeerDown) && m.Kind != protocol.Forward && m.Kind != protocol.Invalidate:
		// What is lost was for that peer alone. A third node waits for what follows from the other two kinds; it learns from this
		// node's end that it waits in vain.
		n.lose(transport.NodeID(m.To), fmt.Errorf("node: send %v to node %d: %w", m.Kind, m.To, err))
	default:
		n.breakDown(fmt.Errorf("node: send %v to node %d: %w", m.Kind, m.To, err))
	}
}
