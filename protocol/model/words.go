package model

import (
	"cmp"
	"encoding/binary"
	"slices"

	"dsmd/internal/controlpage"
	"dsmd/internal/lockwords"
	"dsmd/protocol"
)

// controlPages is the control pages of the clients of a node, and what it knows of the locks that
// it has lent to them by their words.
type controlPages struct {
	pageTable
	words lockwords.Words
	cells []cell // ascending
}

// cell is a place on the control page of a client.
type cell struct {
	client protocol.ClientID
	slot   int
	word   controlpage.Word
}

// cell is the place of a lock on a client's control page. It is valid until the next call.
func (n *controlPages) cell(c protocol.ClientID, hash uint64) *controlpage.Word {
	want := cell{client: c, slot: controlpage.Slot(hash)}
	i, ok := slices.BinarySearchFunc(n.cells, want, func(a, b cell) int { return cmp.Or(cmp.Compare(a.client, b.client), a.slot-b.slot) })
	if !ok {
		n.cells = slices.Insert(n.cells, i, want)
	}
	return &n.cells[i].word
}

// mayTake reports whether a thread can take the lock of its operation by its word.
func (n *controlPages) mayTake(t *thread) bool {
	c, hash := t.spec.Client, t.op().Number
	return t.op().takesLock() && t.op().Access() == protocol.Write && slices.ContainsFunc(n.cells, func(x cell) bool {
		return x.client == c && x.slot == controlpage.Slot(hash) && x.word.Free(hash)
	})
}

// take has a thread take a lock by its word.
func (n *controlPages) take(t *thread, out *Outcome) {
	if op := t.op(); !n.cell(t.spec.Client, op.Number).Take(op.Number) {
		out.violate(RuleAnswer, "node %d: %v, whose word is free, is not taken", n.self, op)
	}
	n.lockTaken(t, out)
}

func (n *controlPages) lockTaken(t *thread, out *Outcome) {
	out.Retired = append(out.Retired, n.retirement(RetireLock, t, Retirement{Status: protocol.StatusOK}))
	n.advance(t, out)
}

// appendWords appends a canonical encoding.
func (n *controlPages) appendWords(b []byte) []byte {
	b = n.words.AppendState(b)
	for _, x := range n.cells {
		if x.word == 0 {
			continue
		}
		b = binary.LittleEndian.AppendUint32(append(b, 'w'), uint32(x.client))
		b = binary.LittleEndian.AppendUint16(b, uint16(x.slot))
		b = binary.LittleEndian.AppendUint64(b, x.word.Load())
	}
	return b
}

// wordHost is a node as lockwords.Words sees it, in the course of one action.
type wordHost struct {
	n   *Node
	now protocol.Time
	out *Outcome
}

// ownTicket is that of calls which a node makes of its engine in a client's name. They are answered
// at once, or cancelled.
const ownTicket protocol.Ticket = 1 << 63

// ask lets the engine have a call of the node's own.
func (h wordHost) ask(kind protocol.EventKind, c protocol.ClientID, id protocol.ObjectID, a protocol.Access) (status protocol.Status, answered bool) {
	h.n.own = nil
	h.n.step(protocol.Event{Kind: kind, Now: h.now, Client: c, Object: id, Access: a, Ticket: ownTicket}, nil, h.out)
	if h.n.own == nil {
		return 0, false
	}
	return *h.n.own, true
}

func (h wordHost) Page(c protocol.ClientID, hash uint64) lockwords.Page { return h.n.cell(c, hash) }

func (h wordHost) Access(id protocol.ObjectID) protocol.Access { return h.n.engine.Access(id) }

func (h wordHost) Release(c protocol.ClientID, id protocol.ObjectID, a protocol.Access) (held bool) {
	status, _ := h.ask(protocol.EventRelease, c, id, a)
	return status == protocol.StatusOK
}

func (h wordHost) Reacquire(c protocol.ClientID, id protocol.ObjectID) bool {
	if h.n.config.Plant == PublishedUnasked {
		return true
	}
	status, answered := h.ask(protocol.EventAcquire, c, id, protocol.Write)
	if !answered {
		h.ask(protocol.EventCancel, c, id, protocol.None)
	} else if status == protocol.StatusUnrepaired {
		h.out.violate(RuleLock, "node %d: %v was given back by its holder and is marked with the death of one", h.n.self, id)
	}
	return answered && status == protocol.StatusOK
}

func (h wordHost) GiveBack(c protocol.ClientID, id protocol.ObjectID) {
	h.n.step(protocol.Event{Kind: protocol.EventRelease, Now: h.now, Client: c, Object: id, Access: protocol.Write}, nil, h.out)
}

func (h wordHost) Scribbled(c protocol.ClientID) {
	h.out.violate(RuleEngine, "node %d: client %d is said to have overwritten its control page", h.n.self, c)
}

func (wordHost) Published() {}
func (wordHost) Recalled()  {}

// askForLock has a thread ask for a lock. It may be given to it by its word.
func (h wordHost) askForLock(t *thread) (byWord bool) {
	n, op := h.n, t.op()
	if n.words.Take(h, t.spec.Client, op.Number, op.Access()) {
		n.lockTaken(t, h.out)
		return true
	}
	n.words.Recall(h, op.Object())
	return false
}

// giveBack has a thread give back a lock, by its word or by a call.
func (h wordHost) giveBack(t *thread) {
	n, op := h.n, t.op()
	h.out.Retired = append(h.out.Retired, n.retirement(RetireUnlock, t, Retirement{}))
	n.advance(t, h.out)
	if op.Kind == OpUnlock && n.cell(t.spec.Client, op.Number).GiveBack(op.Number) == controlpage.Freed {
		return
	}
	n.words.Release(h, t.spec.Client, op.Number, op.Access())
}

// recallFor takes back the word of a lock about which a message has come.
func (h wordHost) recallFor(f *Flight) {
	c := h.n.config
	if o := f.Message.Object; c.Words && o.IsLock() && c.Plant != KeptWord {
		h.n.words.Recall(h, o)
	}
}

// withdraw takes back the words of a client that has ended.
func (h wordHost) withdraw(c protocol.ClientID) {
	h.n.words.Gone(h, c)
	h.n.cells = slices.DeleteFunc(h.n.cells, func(x cell) bool { return x.client == c })
}
