package lockwords

import (
	"testing"

	"dsmd/internal/controlpage"
	"dsmd/protocol"
)

// host is a node of one engine that grants all, and of programs with one place each for locks that
// have the same Slot.
type host struct {
	cells               map[protocol.ClientID]*controlpage.Word
	held                map[protocol.ObjectID]protocol.ClientID
	wanted              bool // somebody waits for every lock
	scribbled           protocol.ClientID
	published, tookBack int
}

func newHost() *host {
	return &host{cells: map[protocol.ClientID]*controlpage.Word{}, held: map[protocol.ObjectID]protocol.ClientID{}}
}

func (h *host) cell(c protocol.ClientID) *controlpage.Word {
	if h.cells[c] == nil {
		h.cells[c] = new(controlpage.Word)
	}
	return h.cells[c]
}

func (h *host) Page(c protocol.ClientID, _ uint64) Page { return h.cell(c) }

func (h *host) Access(protocol.ObjectID) protocol.Access { return protocol.Write }

func (h *host) Release(c protocol.ClientID, id protocol.ObjectID, _ protocol.Access) bool {
	if h.held[id] != c {
		return false
	}
	delete(h.held, id)
	return true
}

func (h *host) Reacquire(c protocol.ClientID, id protocol.ObjectID) bool {
	if !h.wanted {
		h.held[id] = c
	}
	return !h.wanted
}

func (h *host) GiveBack(c protocol.ClientID, id protocol.ObjectID) { h.Release(c, id, protocol.Write) }

func (h *host) Scribbled(c protocol.ClientID) { h.scribbled = c }

func (h *host) Published() { h.published++ }
func (h *host) Recalled()  { h.tookBack++ }

const (
	one   = 7
	other = one + controlpage.Slots // has the same place
)

// had publishes a lock to a program that has had it.
func had(w *Words, h *host, c protocol.ClientID, hash uint64) {
	h.held[protocol.LockObject(hash)] = c
	w.Release(h, c, hash, protocol.Write)
}

// TestBlock: while nothing is granted no word is free, whatever is given back meanwhile; what is
// held is marked. Afterwards words are published again.
func TestBlock(t *testing.T) {
	var w Words
	h := newHost()
	had(&w, h, 1, one)
	had(&w, h, 2, one+1)
	if !h.cell(2).Take(one + 1) {
		t.Fatal("a lock that is published is not free")
	}
	w.Block(h)
	if h.cell(1).Take(one) || w.Take(h, 2, one+1, protocol.Write) || h.held[protocol.LockObject(one)] != 0 {
		t.Error("a lock can be taken, or is the program's in the engine's eyes")
	}
	if h.cell(2).GiveBack(one+1) != controlpage.Recalled {
		t.Error("a lock that is held is given back without a call")
	}
	w.Release(h, 2, one+1, protocol.Write)
	had(&w, h, 1, one)
	if w.Len() != 0 || h.published != 2 || h.tookBack != 2 || w.Check() != nil {
		t.Errorf("%d words, %d published and %d recalled: %v", w.Len(), h.published, h.tookBack, w.Check())
	}
	w.Unblock()
	if had(&w, h, 1, one); !w.Take(h, 1, one, protocol.Write) {
		t.Error("no word is published any more")
	}
}

// TestOnePlace: of two locks with the same place one is published: the later, if the first is not
// held.
func TestOnePlace(t *testing.T) {
	var w Words
	h := newHost()
	had(&w, h, 1, one)
	if had(&w, h, 1, other); h.cell(1).Take(one) || !h.cell(1).Take(other) {
		t.Error("the place is not the later lock's")
	}
	if had(&w, h, 1, one); w.Len() != 1 || h.cell(1).GiveBack(other) != controlpage.Recalled {
		t.Error("a lock that is held was moved out of its place, or not asked for")
	}
}

// TestNotPublished: a lock that somebody waits for, that a program did not have, or had for
// reading, is not published.
func TestNotPublished(t *testing.T) {
	var w Words
	h := newHost()
	w.Release(h, 1, one, protocol.Write)
	h.held[protocol.LockObject(one)] = 1
	w.Release(h, 1, one, protocol.Read)
	h.wanted = true
	had(&w, h, 1, one)
	if w.Len() != 0 || h.published != 0 {
		t.Errorf("%d words, %d published", w.Len(), h.published)
	}
}

// TestLies: what a program scribbles on its page, and what it says of others' locks, does nothing
// to these.
func TestLies(t *testing.T) {
	var w Words
	h := newHost()
	had(&w, h, 1, one)
	had(&w, h, 2, one+1)
	w.Release(h, 2, one, protocol.Write) // it is not its own
	if w.Take(h, 2, one, protocol.Write) || w.Take(h, 1, one, protocol.Read) || w.Take(h, 1, other, protocol.Write) {
		t.Error("a lock is taken by whom it is not published to, for reading, or by another's word")
	}
	h.cell(1).Store(99)
	if w.Recall(h, protocol.LockObject(one)); h.scribbled != 1 || w.Len() != 1 {
		t.Errorf("client %d has scribbled; %d words are left", h.scribbled, w.Len())
	}
	if w.Gone(h, 2); w.Len() != 0 || len(h.held) != 1 { // that of the one who has scribbled
		t.Errorf("of a program that has ended %d words are left, and locks of %v", w.Len(), h.held)
	}
}
