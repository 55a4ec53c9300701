package node

import (
	"slices"

	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport"
)

// contents are the contents of pages apart from the page table: on their way into it or out of it,
// and backups.
type contents struct {
	// arrived is the page that came with the frame being dealt with; nil: none came.
	arrived transport.Payload
	// saved are those that a Revoke has saved for the message that takes them along.
	saved map[pagetable.Page]transport.Payload
	// stash are those that have come, and wait until the page can be installed.
	stash map[pagetable.Page]transport.Payload
	// loaded are those of pages in the spill file that have come in this turn: see loads.
	loaded  map[pagetable.Page][]byte
	backups backups
}

func newContents() contents {
	return contents{saved: map[pagetable.Page]transport.Payload{}, stash: map[pagetable.Page]transport.Payload{},
		loaded: map[pagetable.Page][]byte{}}
}

// put keeps the page that came with this frame for later.
func (c *contents) put(page pagetable.Page) {
	c.unstash(page)
	c.arrived.Keep()
	c.stash[page] = c.arrived
}

// unstash gives up what was kept for a grant that a recovery has cut short, when a later one comes.
func (c *contents) unstash(page pagetable.Page) {
	if kept := c.stash[page]; kept != nil {
		kept.Release()
		delete(c.stash, page)
	}
}

// dropStash gives up the stash of pages for which nobody waits any more.
func (c *contents) dropStash(waiting func(pagetable.Page) bool) {
	for page := range c.stash {
		if !waiting(page) {
			c.unstash(page)
		}
	}
}

// take returns the contents that an effect needs, from where it says that they are: nil for zeros.
// Who has used them releases kept, if there is one. ok is false if they never came.
func (c *contents) take(page pagetable.Page, from protocol.Source) (data []byte, kept transport.Payload, ok bool) {
	switch from {
	case protocol.SourceZeros, protocol.SourceFirst:
		return nil, nil, true
	case protocol.SourceMessage:
		if c.arrived == nil {
			return nil, nil, false
		}
		c.unstash(page)
		return c.arrived.Bytes(), nil, true
	case protocol.SourceBackup:
		return slices.Clone(c.backups.pages[page]), nil, true
	case protocol.SourceStash:
		kept = c.stash[page]
		delete(c.stash, page)
	case protocol.SourceSaved:
		kept = c.saved[page]
		delete(c.saved, page)
	}
	if kept == nil {
		return nil, nil, false
	}
	return kept.Bytes(), kept, true
}

// backups are the contents of pages of replicated memory as they were last committed: memory of
// this node's own, apart from the pages that programs can touch. There are no more of them than
// pages are in use, and none where nothing is replicated.
type backups struct {
	pages map[pagetable.Page][]byte // nil: zeros, or what they begin with
	first pagetable.PageSet         // of those, which have what they begin with
	spare [][]byte                  // of pages that were freed, at most maxSpareBackups
}

// maxSpareBackups bounds the buffers that wait to be used again: 4 MiB of pages of the least size.
const maxSpareBackups = 1 << 10

// keep notes a new backup of a page, and returns where its contents go, if they need room.
func (b *backups) keep(page pagetable.Page, pageBytes int, from protocol.Source) []byte {
	if b.pages == nil {
		b.pages = map[pagetable.Page][]byte{}
	}
	buf := b.pages[page]
	b.first.Remove(page)
	switch last := len(b.spare) - 1; {
	case from == protocol.SourceZeros || from == protocol.SourceFirst:
		if from == protocol.SourceFirst {
			b.first.Add(page)
		}
		b.recycle(buf)
		buf = nil
	case buf == nil && last >= 0:
		buf, b.spare = b.spare[last], b.spare[:last]
	case buf == nil:
		buf = make([]byte, pageBytes)
	}
	b.pages[page] = buf
	return buf
}

func (b *backups) recycle(buf []byte) {
	if buf != nil && len(b.spare) < maxSpareBackups {
		b.spare = append(b.spare, buf)
	}
}

// forget drops the backups of pages that are freed.
func (b *backups) forget(first pagetable.Page, count uint64) {
	for page, buf := range b.pages {
		if page >= first && uint64(page-first) < count {
			b.recycle(buf)
			delete(b.pages, page)
		}
	}
	b.first.RemoveRun(first, count)
}
