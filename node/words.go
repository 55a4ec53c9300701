package node

import (
	"errors"

	"dsmd/internal/attach"
	"dsmd/internal/lockwords"
	"dsmd/protocol"
)

// wordHost is the node as lockwords.Words sees it.
type wordHost struct{ *calls }

// errScribbled ends a program that has written to its control page what no operation writes.
var errScribbled = errors.New("node: the program has overwritten its control page")

func (n wordHost) program(c protocol.ClientID) *program { return n.programs.byID[c] }

// Page implements lockwords.Host.
func (n wordHost) Page(c protocol.ClientID, _ uint64) lockwords.Page { return n.program(c).page }

// Access implements lockwords.Host.
func (n wordHost) Access(id protocol.ObjectID) protocol.Access { return n.drive.engine.Access(id) }

// Release implements lockwords.Host.
func (n wordHost) Release(c protocol.ClientID, id protocol.ObjectID, a protocol.Access) (held bool) {
	status, _ := n.askNow(protocol.Event{Kind: protocol.EventRelease, Client: c, Rank: n.program(c).rank, Object: id, Access: a})
	return status == protocol.StatusOK
}

// Reacquire implements lockwords.Host. The engine refuses what is more than a program may hold.
func (n wordHost) Reacquire(c protocol.ClientID, id protocol.ObjectID) bool {
	status, answered := n.askNow(protocol.Event{Kind: protocol.EventAcquire, Client: c, Rank: n.program(c).rank, Object: id, Access: protocol.Write})
	if !answered {
		n.drive.step(protocol.Event{Kind: protocol.EventCancel, Client: c, Ticket: n.last})
		return false
	}
	if status == protocol.StatusUnrepaired {
		// A mark comes with a grant or an acknowledgement for which this node waits, in a recovery,
		// too, or is made by the home for a lock that no node has. While the program held the lock
		// for writing this node had it, and waited for nothing.
		panic("node: " + id.String() + " was given back by its holder and is marked with the death of one")
	}
	return status == protocol.StatusOK
}

// GiveBack implements lockwords.Host.
func (n wordHost) GiveBack(c protocol.ClientID, id protocol.ObjectID) {
	n.drive.put(protocol.Event{Kind: protocol.EventRelease, Client: c, Object: id, Access: protocol.Write})
}

// Scribbled implements lockwords.Host.
func (n wordHost) Scribbled(c protocol.ClientID) { n.program(c).cutOff(errScribbled) }

// Published implements lockwords.Host.
func (n wordHost) Published() { n.meter.count.wordsPublished.Add(1) }

// Recalled implements lockwords.Host.
func (n wordHost) Recalled() { n.meter.count.wordsRecalled.Add(1) }

// release lets a program give a lock back, and publishes it if nobody else wants it. One that is
// not repaired is not published.
func (k *calls) release(p *program, c *attach.Call) {
	k.synchronised()
	var h lockwords.Host = wordHost{k}
	delete(k.unrepaired, protocol.LockObject(c.Object))
	if c.Count != 0 {
		h = unrepairedHost{wordHost{k}, uint32(c.Count - 1)}
	}
	k.words.Release(h, p.id, c.Object, protocol.Access(c.Access))
}

// unrepairedHost is a wordHost while a program gives back a lock that it has not repaired.
type unrepairedHost struct {
	wordHost
	died uint32 // the rank that died holding the lock
}

// Release implements lockwords.Host.
func (h unrepairedHost) Release(c protocol.ClientID, id protocol.ObjectID, a protocol.Access) (held bool) {
	status, _ := h.askNow(protocol.Event{Kind: protocol.EventRelease, Client: c, Rank: h.died, Object: id, Access: a, Unrepaired: true})
	if status == protocol.StatusOK {
		if len(h.unrepaired) >= maxUnrepaired {
			clear(h.unrepaired)
		}
		h.unrepaired[id] = h.died
	}
	return status == protocol.StatusOK
}

// Reacquire implements lockwords.Host. Nobody takes such a lock by its word.
func (h unrepairedHost) Reacquire(protocol.ClientID, protocol.ObjectID) bool { return false }

// recall takes a lock back that a program may take on its control page, because somebody else asks
// for it.
func (k *calls) recall(id protocol.ObjectID) { k.words.Recall(wordHost{k}, id) }

// askNow lets an event happen that the engine answers at once or not at all.
func (k *calls) askNow(ev protocol.Event) (status protocol.Status, answered bool) {
	ev.Ticket = k.next()
	k.own = ownCall{ticket: ev.Ticket}
	k.drive.step(ev)
	own := k.own
	k.own = ownCall{}
	return own.status, own.answered
}
