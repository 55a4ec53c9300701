package node

import (
	"errors"
	"fmt"

	"dsmd/internal/attach"
	"dsmd/internal/controlpage"
	"dsmd/protocol"
)

// published is a lock that a program can take and give back on its control page. To the engine the program holds it for writing as long as it
// is published.
type published struct {
	p        *program
	object   protocol.ObjectID
	hash     uint64 // as the program knows it
	recalled bool   // and was held then: the program will say when it gives it back
}

// errScribbled ends a program that has written to its control page what no operation writes.
var errScribbled = errors.New("node: the program has overwritten its control page")

// releaseCall lets a program give a lock back, and publishes it if nobody else wants it.
func (n *Node) releaseCall(p *program, c *attach.Call) {
	object := protocol.LockObject(c.Object)
	if w := n.published[object]; w != nil && w.p == p {
		n.forgetWord(w)
		p.page.Withdraw(w.hash) // whatever stands there, the program says that it gives the lock back
	}
	status, _ := n.askItself(protocol.Event{Kind: protocol.EventRelease, Client: p.id, Rank: p.rank, Object: object, Access: protocol.Access(c.Access)})
	if status == protocol.StatusOK && protocol.Access(c.Access) == protocol.Write {
		n.publish(p, object, c.Object)
	}
}

// publish makes a lock that p has just given back one that it can take on its control page, if the lock is still here and nobody waits for
// it. The engine knows who does: it gives the lock to p again at once, or else not at all.
func (n *Node) publish(p *program, object protocol.ObjectID, hash uint64) {
	if n.engine.Access(object) != protocol.Write || !n.vacate(p, controlpage.Slot(hash)) {
		return
	}
	ev := protocol.Event{Kind: protocol.EventAcquire, Client: p.id, Rank: p.rank, Object: object, Access: protocol.Write}
	switch status, answered := n.askItself(ev); {
	case !answered:
		n.step(protocol.Event{Kind: protocol.EventCancel, Client: p.id, Ticket: n.lastTicket})
		return
	case status == protocol.StatusOwnerDied:
		// A mark comes with a grant or an acknowledgement for which this node waits, in a recovery, too, or is made by the home for a lock that no node has. While p held the lock for
		// writing this node had it, and waited for nothing.
		panic(fmt.Sprintf("node: %v was given back by its holder and is marked with the death of one", object))
	case status != protocol.StatusOK: // the program is at the limit of what it may hold
		return
	}
	w := &published{p: p, object: object, hash: hash}
	n.published[object] = w
	p.words[controlpage.Slot(hash)] = w
	p.page.Publish(hash)
	n.count.wordsPublished.Add(1)
}

// takeWord takes a lock for the program that could have taken it itself, and says whether it has. A program that locks again right after it has
// unlocked asks before the lock is published; were the word taken back for it, it would do so each time.
func (n *Node) takeWord(p *program, c *attach.Call) bool {
	w := n.published[protocol.LockObject(c.Object)]
	return w != nil && w.p == p && !w.recalled && w.hash == c.Object && c.Access == attach.Write && p.page.Take(w.hash)
}

// vacate makes a place on a control page free for another lock, and says whether it is. A lock that is held there is only asked for.
func (n *Node) vacate(p *program, slot int) bool {
	if w := p.words[slot]; w != nil {
		n.recall(w.object)
	}
	return p.words[slot] == nil
}

// recall takes a lock back that a program may take on its control page, because somebody else asks for it.
func (n *Node) recall(object protocol.ObjectID) {
	w := n.published[object]
	if w == nil || w.recalled {
		return
	}
	n.count.wordsRecalled.Add(1)
	switch w.p.page.Recall(w.hash) {
	case controlpage.FoundFree:
		n.forgetWord(w)
		n.releaseWord(w)
	case controlpage.FoundHeld:
		w.recalled = true
	case controlpage.FoundWrong:
		n.forgetWord(w)
		n.cutOff(w.p, errScribbled) // its end releases the lock, marked
	}
}

// withdrawWords takes back the words of a program that has ended. What it has not given back stays its own in the engine's eyes, which passes
// it on with the mark of its death.
func (n *Node) withdrawWords(p *program) {
	for _, w := range p.words {
		n.forgetWord(w)
		if p.page.Withdraw(w.hash) {
			n.releaseWord(w)
		}
	}
}

func (n *Node) forgetWord(w *published) {
	delete(n.published, w.object)
	delete(w.p.words, controlpage.Slot(w.hash))
}

func (n *Node) releaseWord(w *published) {
	n.step(protocol.Event{Kind: protocol.EventRelease, Client: w.p.id, Rank: w.p.rank, Object: w.object, Access: protocol.Write})
}

// ownCall is a call that the node makes of its engine in a program's name.
type ownCall struct {
	ticket   protocol.Ticket // 0: none is under way
	status   protocol.Status
	answered bool
}

// askItself lets an event happen that the engine answers at once or not at all. Preconditions: no effects are being carried out.
func (n *Node) askItself(ev protocol.Event) (status protocol.Status, answered bool) {
	if n.carrying {
		panic("node: a call from within an effect")
	}
	n.lastTicket++
	ev.Ticket = n.lastTicket
	n.own = ownCall{ticket: ev.Ticket}
	n.step(ev)
	own := n.own
	n.own = ownCall{}
	return own.status, own.answered
}
