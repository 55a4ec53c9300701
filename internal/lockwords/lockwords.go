// Package lockwords decides which locks the programs of a node may take on their control pages
// (package controlpage), beside the engine of that node. To the engine a program holds a lock for
// writing as long as its word is published.
//
// A lock is published to the program that has just given it back, if nobody else wants it: the
// engine gives it to that program again at once, or not at all. It is recalled as soon as somebody
// else wants it, or the node grants nothing any more (Block).
//
// Like package protocol it does nothing by itself: its Host does. The daemon and the model of a
// node (protocol/model) are Hosts, so the explorer and the simulator check the code that runs.
package lockwords

import (
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"slices"

	"dsmd/internal/controlpage"
	"dsmd/protocol"
)

// Page is the daemon's side of a program's control page: *controlpage.Page, or *controlpage.Word,
// which has one place only.
type Page interface {
	Publish(hash uint64)
	Take(hash uint64) bool
	Recall(hash uint64) controlpage.Found
	Withdraw(hash uint64) bool
}

// Host is a node: its programs' pages, and its engine. Words calls it. It does not call Words,
// except that GiveBack may lead to a Recall.
type Host interface {
	// Page is where a program has the word of a lock.
	Page(c protocol.ClientID, hash uint64) Page
	// Access is what the engine has of a lock.
	Access(id protocol.ObjectID) protocol.Access
	// Release tells the engine that a program releases a lock, and returns whether the program held
	// it.
	Release(c protocol.ClientID, id protocol.ObjectID, a protocol.Access) (held bool)
	// Reacquire asks the engine to give a program a lock for writing, at once or not at all. It
	// returns false if not.
	Reacquire(c protocol.ClientID, id protocol.ObjectID) bool
	// GiveBack tells the engine that a program releases a lock that it held for writing only in the
	// engine's eyes.
	GiveBack(c protocol.ClientID, id protocol.ObjectID)
	// Scribbled removes a program that has written to its control page what no operation writes.
	// Its locks are released then, with the mark of its death.
	Scribbled(c protocol.ClientID)
	// Published and Recalled count.
	Published()
	Recalled()
}

// Words are the words that a node has published. The zero Words has none. It is not safe for
// concurrent use.
//
// Invariants: words and places have the same locks. While blocked is set no word is published that
// is not recalled.
type Words struct {
	words   map[protocol.ObjectID]word
	places  map[place]protocol.ObjectID
	blocked bool
}

type word struct {
	client   protocol.ClientID
	hash     uint64 // as the program knows the lock
	recalled bool   // and was held then: the program will say when it gives it back
}

// place is where a word is: locks with the same Slot can't be published together.
type place struct {
	client protocol.ClientID
	slot   int
}

// Release lets a program give a lock back, and publishes it if nobody else wants it.
func (w *Words) Release(h Host, c protocol.ClientID, hash uint64, a protocol.Access) {
	id := protocol.LockObject(hash)
	if x, ok := w.words[id]; ok && x.client == c {
		w.forget(id, x)
		// whatever is on the page, the program says that it gives the lock back
		h.Page(c, x.hash).Withdraw(x.hash)
	}
	if h.Release(c, id, a) && a == protocol.Write {
		w.publish(h, c, id, hash)
	}
}

// publish lets c take a lock on its control page that it has just given back, if the lock is still
// here and nobody waits for it. The engine knows who waits.
func (w *Words) publish(h Host, c protocol.ClientID, id protocol.ObjectID, hash uint64) {
	if w.blocked || h.Access(id) != protocol.Write || !w.vacate(h, place{c, controlpage.Slot(hash)}) || !h.Reacquire(c, id) {
		return
	}
	if w.words == nil {
		w.words, w.places = map[protocol.ObjectID]word{}, map[place]protocol.ObjectID{}
	}
	w.words[id] = word{client: c, hash: hash}
	w.places[place{c, controlpage.Slot(hash)}] = id
	h.Page(c, hash).Publish(hash)
	h.Published()
}

// vacate frees a place for another lock, and returns whether it is free. If a program holds the
// lock that is there, vacate only asks for it.
func (w *Words) vacate(h Host, at place) bool {
	if id, taken := w.places[at]; taken {
		w.Recall(h, id)
	}
	_, taken := w.places[at]
	return !taken
}

// Take takes a lock for the program that could have taken it itself, and returns whether it did. A
// program that locks again right after it has unlocked asks before the lock is published. If the
// word were taken back for that call, the program would ask each time.
func (w *Words) Take(h Host, c protocol.ClientID, hash uint64, a protocol.Access) bool {
	x, ok := w.words[protocol.LockObject(hash)]
	return ok && x.client == c && !x.recalled && x.hash == hash && a == protocol.Write && h.Page(c, hash).Take(hash)
}

// Recall takes a lock back that a program may take on its control page, because somebody else asks
// for it.
func (w *Words) Recall(h Host, id protocol.ObjectID) {
	x, ok := w.words[id]
	if !ok || x.recalled {
		return
	}
	h.Recalled()
	switch h.Page(x.client, x.hash).Recall(x.hash) {
	case controlpage.FoundFree:
		w.forget(id, x)
		h.GiveBack(x.client, id)
	case controlpage.FoundHeld:
		x.recalled = true
		w.words[id] = x
	case controlpage.FoundWrong:
		w.forget(id, x)
		h.Scribbled(x.client)
	}
}

// Block recalls all words, and publishes none until Unblock: from here on no program takes a lock
// that it does not hold. A program keeps what it holds, and tells when it gives that back.
func (w *Words) Block(h Host) {
	w.blocked = true
	for _, id := range w.ids() {
		w.Recall(h, id)
	}
}

// Unblock allows words again.
func (w *Words) Unblock() { w.blocked = false }

// Shut ends the taking of locks by programs, and tells the engine nothing: the node ends.
func (w *Words) Shut(h Host) {
	w.blocked = true
	for _, x := range w.words {
		if !x.recalled {
			h.Page(x.client, x.hash).Recall(x.hash)
		}
	}
}

// Gone takes back the words of a program that has ended. The engine still believes that the program
// holds what it has not given back, and passes that on with the mark of its death.
func (w *Words) Gone(h Host, c protocol.ClientID) {
	for _, id := range w.ids() {
		x, ok := w.words[id]
		if !ok || x.client != c {
			continue
		}
		w.forget(id, x)
		if h.Page(c, x.hash).Withdraw(x.hash) {
			h.GiveBack(c, id)
		}
	}
}

func (w *Words) forget(id protocol.ObjectID, x word) {
	delete(w.words, id)
	delete(w.places, place{x.client, controlpage.Slot(x.hash)})
}

// Len is how many locks are published.
func (w *Words) Len() int { return len(w.words) }

// Of are the locks whose words are published to a program, as it knows them, in any order.
func (w *Words) Of(c protocol.ClientID) iter.Seq[uint64] {
	return func(yield func(hash uint64) bool) {
		for _, x := range w.words {
			if x.client == c && !yield(x.hash) {
				return
			}
		}
	}
}

// ids are the locks that are published, in ascending order.
func (w *Words) ids() []protocol.ObjectID { return slices.Sorted(maps.Keys(w.words)) }

// Clone makes an independent copy.
func (w *Words) Clone() Words {
	return Words{words: maps.Clone(w.words), places: maps.Clone(w.places), blocked: w.blocked}
}

// AppendState appends a canonical encoding.
func (w *Words) AppendState(b []byte) []byte {
	b = append(b, bit(w.blocked), byte(len(w.words)))
	for _, id := range w.ids() {
		x := w.words[id]
		b = binary.LittleEndian.AppendUint64(b, uint64(id))
		b = binary.LittleEndian.AppendUint32(b, uint32(x.client))
		b = binary.LittleEndian.AppendUint64(b, x.hash)
		b = append(b, bit(x.recalled))
	}
	return b
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// Check says what contradicts itself.
func (w *Words) Check() error {
	if len(w.words) != len(w.places) {
		return fmt.Errorf("lockwords: %d words in %d places", len(w.words), len(w.places))
	}
	for _, id := range w.ids() {
		x := w.words[id]
		if at, ok := w.places[place{x.client, controlpage.Slot(x.hash)}]; !ok || at != id {
			return fmt.Errorf("lockwords: the word of %v is not in its place", id)
		}
		if w.blocked && !x.recalled {
			return fmt.Errorf("lockwords: %v is published by a node that grants nothing", id)
		}
	}
	return nil
}
