package readahead

import (
	"dsmd/pagetable"
	"dsmd/protocol"
)

// A Cause is why a thread waits for another node. Each fault that does has exactly one.
type Cause uint8

const (
	// Cold is a page that this node has never had. Nothing that it could have learned foretells it.
	Cold Cause = iota
	// Retaken is a page that another node has taken, or has come to read, since the last cue, where
	// a program here went on from a barrier or with a lock. No prediction at the cue would have
	// spared the fault.
	Retaken
	// Late is a page that was on its way when the first thread came for it: it was asked for
	// because a thread would want it, as it seemed, or because another node had no room for it.
	Late
	// Unpredicted is any other page, which nothing has asked for: it had left before the last cue,
	// or it is here for reading, has never left, and is to be stored to.
	Unpredicted

	// CauseCount is how many causes there are.
	CauseCount = int(iota)
)

// Causes knows why pages are missed. It keeps a bit, or two, of each page that has left its node or
// was asked for ahead. The zero Causes has no page. It is not safe for concurrent use.
type Causes struct {
	left    pagetable.PageSet // have been here, and have left
	taken   pagetable.PageSet // by others, since the last cue
	guessed pagetable.PageSet // asked for last when no thread waited for them
}

// Cue notes that a program goes on from where it has waited for others.
func (c *Causes) Cue() { c.taken.Clear() }

// Guessed notes that a page is asked for that no thread waits for.
func (c *Causes) Guessed(page pagetable.Page) { c.guessed.Add(page) }

// Left notes that a page leaves this node.
func (c *Causes) Left(page pagetable.Page) { c.left.Add(page) }

// Taken notes that another node takes a page from this one, or comes to read it.
func (c *Causes) Taken(page pagetable.Page) { c.taken.Add(page) }

// Freed forgets pages whose memory is free: they are new when they come again.
func (c *Causes) Freed(first pagetable.Page, count uint64) {
	for _, set := range [...]*pagetable.PageSet{&c.left, &c.taken, &c.guessed} {
		set.RemoveRun(first, count)
	}
}

// Waited notes that a thread waits for a page. It returns whether the page was asked for when none
// did: then this thread is the first.
func (c *Causes) Waited(page pagetable.Page) (first bool) { return c.guessed.Remove(page) }

// Of is why a page is missed of which this node has some access, and that it asks for only now.
func (c *Causes) Of(page pagetable.Page, has protocol.Access) Cause {
	switch {
	case c.taken.Has(page):
		return Retaken
	case has == protocol.None && !c.left.Has(page):
		return Cold
	}
	return Unpredicted
}
