package node

import (
	"strings"
	"testing"

	"dsmd/internal/attach"
	"dsmd/internal/diskio"
)

// TestRetriedCheckpoints: another node's disk hangs, and programs try to make checkpoints of pages
// that are there, again and again, and give up. They are refused, and their node does not ask for
// more than it may, for which it would be expelled.
func TestRetriedCheckpoints(t *testing.T) {
	const pages = 64
	c := start(t, setup{nodes: 2, ranks: 20, before: func(n *Node) {
		n.intake.window.most = 16
		n.drive.storage.reading = diskio.NewShares(0) // none are begun
	}})
	first, all := c.mapped("x", pages, attach.Contents{Bytes: pages * 4096, Readers: []uint16{1}, Written: true}, nil, laid(t, pages*4096, same))
	p := all[0]
	for try := range byte(8) {
		s := p.save(try+1, 0, first, pages)
		if r := s.do(s.call(true, true)); (r.Status == attach.StatusOK) != (try == 0) || try > 0 && !strings.Contains(string(r.Payload), "other nodes have not sent yet") {
			t.Errorf("checkpoint %d: %v %q", try, r.Status, r.Payload)
		}
		p.sync()
		p.die()
		p = c.members[0].join()
		p.bind("x", pages)
	}
	all[1].sync()
}

// TestLateReadsOfCheckpoint: a checkpoint is given up, and others are refused until another node
// has sent what it was asked for. Then one is whole that needs more than it may ask for at a time.
func TestLateReadsOfCheckpoint(t *testing.T) {
	const pages = 128
	c := start(t, setup{nodes: 2, ranks: 4, before: func(n *Node) { n.intake.window.most = 16 }})
	first, all := c.mapped("x", pages, attach.Contents{Bytes: pages * 4096, Readers: []uint16{1}, Written: true}, nil, laid(t, pages*4096, same))
	other := c.members[0].join()
	other.bind("x", pages)
	c.net.Stall(1, 0)
	c.giveUp(all[0].save(1, 0, first, pages))
	next := other.save(2, 0, first, pages)
	if r := next.do(next.call(true, true)); r.Status == attach.StatusOK {
		t.Error("a checkpoint begins while the last one's pages are on their way")
	}
	c.net.Resume(1, 0)
	eventually(t, "a checkpoint begins", func() bool { return next.do(next.call(true, true)).Status == attach.StatusOK })
	saved := next.finish()
	for i, v := range saved {
		if v != word(i, 0) {
			t.Errorf("page %d is saved as %x", i, v)
		}
	}
	if len(saved) != pages/2 { // which have their home here
		t.Errorf("%d pages are saved", len(saved))
	}
	c.quiet()
}
