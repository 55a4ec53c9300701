package node

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"dsmd/internal/attach"
	"dsmd/internal/diskio"
	"dsmd/pagetable"
	"dsmd/transport"
	"dsmd/transport/sim"
)

// sayAbout says something about files to node 0, with a page that is zeros if so wanted.
func (r *rogue) sayAbout(f storageFrame, page bool) {
	r.Helper()
	r.sayBytes(f.append(nil), page)
}

// hearAbout waits for the next so many things that node 0 says about files.
func (r *rogue) hearAbout(count int) []storageFrame {
	r.Helper()
	r.files = nil
	eventually(r, "node 0 says something about files", func() bool {
		if _, err := r.net.Poll(r, 1); err != nil {
			r.Fatal(err)
		}
		return len(r.files) >= count
	})
	return r.files
}

// amongFiles is among, with three files of 16 pages at node 0. The first is read by others, the
// second is at node 1 besides, and the third is written to, too. Node 0 is the home of the first
// pages of the second.
func amongFiles(t testing.TB) (c *cluster, rogues []*rogue, p *prog, first [3]pagetable.Page, files [3]*os.File) {
	c, rogues = among(t)
	p = c.members[0].join()
	all := []attach.Contents{{Readers: []uint16{0}}, {Readers: []uint16{0, 1}, Stripe: 1}, {Readers: []uint16{0}, Written: true}}
	for _, i := range []int{1, 0, 2} {
		what := all[i]
		what.Bytes = 16 * 4096
		files[i] = laid(t, 16*4096, same)
		count := 16 * uint64(len(what.Readers))
		first[i] = p.bind(string(rune('a'+i)), count)
		p.ok(p.beginsCall(first[i], count, what, files[i]))
	}
	return c, rogues, p, first, files
}

// wantUntouched checks that nothing was written to files.
func wantUntouched(t testing.TB, files ...*os.File) {
	t.Helper()
	for i, f := range files {
		got, err := os.ReadFile(f.Name())
		if err != nil || len(got) != 16*4096 {
			t.Errorf("file %d has %d bytes, %v", i, len(got), err)
			continue
		}
		for p := range uint64(16) {
			if !bytes.Equal(got[p*4096:][:4096], pageOf(p)) {
				t.Errorf("page %d of file %d was written", p, i)
			}
		}
	}
}

// TestStrangeFramesAboutFiles: whatever is no frame about files, or asks for more than a node may
// want, ends the connection to the peer, which is named.
func TestStrangeFramesAboutFiles(t *testing.T) {
	frame := func(f storageFrame) []byte { return f.append(nil) }
	for name, is := range map[string]struct {
		raw    []byte
		page   bool
		reason string
	}{
		"no frame":                   {raw: []byte{storageMark | 1}, reason: "of 1 bytes"},
		"short":                      {raw: frame(storageFrame{kind: readPages, count: 1})[:storageHeader-1], reason: "of 17 bytes"},
		"no kind":                    {raw: frame(storageFrame{}), reason: "unknown kind 0"},
		"unknown kind":               {raw: frame(storageFrame{kind: storageKindEnd}), reason: "unknown kind 5"},
		"another mark":               {raw: frame(storageFrame{kind: 0x10 | readPages, count: 1}), reason: "unknown kind 17"},
		"page beyond the region":     {raw: frame(storageFrame{kind: readPages, page: testPages, count: 1}), reason: "region of 2048"},
		"page far beyond the region": {raw: frame(storageFrame{kind: pageWritten, page: 1<<64 - 1}), reason: "region of 2048"},
		"pages beyond the region":    {raw: frame(storageFrame{kind: readPages, page: testPages - 1, count: 2}), reason: "2 pages"},
		"no pages":                   {raw: frame(storageFrame{kind: readPages}), reason: "0 pages"},
		"too many pages":             {raw: frame(storageFrame{kind: readPages, count: mostRun + 1}), reason: "1025 pages"},
		"a page with a read":         {raw: frame(storageFrame{kind: readPages, count: 1}), page: true, reason: "whether a page came"},
		"a page with an answer":      {raw: frame(storageFrame{kind: pageWritten}), page: true, reason: "whether a page came"},
		"a page and zeros":           {raw: frame(storageFrame{kind: writePage, zeros: true}), page: true, reason: "whether a page came"},
		"a page and a failure":       {raw: frame(storageFrame{kind: pageRead, failed: "no"}), page: true, reason: "whether a page came"},
		"a write without a page":     {raw: frame(storageFrame{kind: writePage}), reason: "whether a page came"},
		"a read without a page":      {raw: frame(storageFrame{kind: pageRead}), reason: "whether a page came"},
	} {
		t.Run(name, func(t *testing.T) {
			c, rogues, p, _, files := amongFiles(t)
			rogues[1].sayBytes(is.raw, is.page)
			p.wantLost(is.reason)
			if err := c.members[0].ended(); err == nil || !strings.Contains(err.Error(), "node 2") || !strings.Contains(err.Error(), is.reason) {
				t.Errorf("the node ended with %v, want one about node 2 that says %q", err, is.reason)
			}
			wantUntouched(t, files[:]...)
		})
	}
}

// TestLiesAboutFiles: what a peer may not have, or was never asked for, it does not get, and is
// told so or not answered. Nothing is written, and the node goes on.
func TestLiesAboutFiles(t *testing.T) {
	c, rogues, p, first, files := amongFiles(t)
	r := rogues[1]
	last := first[2] + 16 // no allocation
	for name, is := range map[string]struct {
		say  storageFrame
		page bool
	}{
		"a page of no file":                    {say: storageFrame{kind: readPages, page: last, count: 1}},
		"a page of another's file":             {say: storageFrame{kind: readPages, page: first[1] + 1, count: 1}},
		"a write to no file":                   {say: storageFrame{kind: writePage, page: last}, page: true},
		"a write to a file that is only read":  {say: storageFrame{kind: writePage, page: first[0]}, page: true},
		"zeros for a file that is only read":   {say: storageFrame{kind: writePage, page: first[0], zeros: true}},
		"a write to another's file":            {say: storageFrame{kind: writePage, page: first[1] + 1}, page: true},
		"a write to a file that others have":   {say: storageFrame{kind: writePage, page: first[1]}, page: true},
		"a read of the last page of a region":  {say: storageFrame{kind: readPages, page: testPages - 1, count: 1}},
		"a write to the last page of a region": {say: storageFrame{kind: writePage, page: testPages - 1, zeros: true}},
	} {
		is.say.ticket = 77
		r.sayAbout(is.say, is.page)
		got := r.hearAbout(1)[0]
		want := storageFrame{kind: is.say.kind + 1, ticket: 77, page: is.say.page, failed: "no file of this node has the page"}
		if got != want {
			t.Errorf("%s is answered with %+v", name, got)
		}
	}
	for _, page := range []pagetable.Page{0, first[0], testPages - 1} {
		for _, ticket := range []uint32{0, 1, 1<<32 - 1} {
			r.sayAbout(storageFrame{kind: pageRead, ticket: ticket, page: page}, true)
			r.sayAbout(storageFrame{kind: pageRead, ticket: ticket, page: page, zeros: true}, false)
			r.sayAbout(storageFrame{kind: pageRead, ticket: ticket, page: page, failed: "no"}, false)
			r.sayAbout(storageFrame{kind: pageWritten, ticket: ticket, page: page}, false)
			r.sayAbout(storageFrame{kind: pageWritten, ticket: ticket, page: page, failed: "no"}, false)
		}
	}
	// A run that begins in a file and ends behind it is answered page by page.
	r.sayAbout(storageFrame{kind: readPages, ticket: 5, page: last - 2, count: 4}, false)
	got := map[pagetable.Page]string{}
	for _, f := range r.hearAbout(4) {
		got[f.page] = f.failed
	}
	if got[last-2] != "" || got[last-1] != "" || got[last] == "" || got[last+1] == "" || len(got) != 4 {
		t.Errorf("a run over the end of a file is answered with %v", got)
	}
	if waitEnd(c.members[0], p) {
		t.Fatalf("the node ended with %v", c.members[0].ended())
	}
	wantUntouched(t, files[:]...)
	c.members[0].want(map[string]uint64{"pages_read_for_others": 2, "pages_written_for_others": 0})
}

// TestAnswersOfOthers: who asks one peer for a page takes it from no other, and takes no other page
// for it. A peer that can't read it, or write it, is named.
func TestAnswersOfOthers(t *testing.T) {
	c, rogues, p, first, _ := amongFiles(t)
	load := p.access(first[1]+1, false, func(b []byte) {
		if b[0] != 0 {
			t.Errorf("the page begins with %d", b[0])
		}
	})
	asked := rogues[0].hearAbout(1)[0]
	if asked.kind != readPages || asked.page != first[1]+1 || asked.count != 1 {
		t.Fatalf("node 1 is asked %+v", asked)
	}
	wrong := storageFrame{kind: pageRead, ticket: asked.ticket, page: asked.page, failed: "this is a lie"}
	rogues[1].sayAbout(wrong, false)
	for _, other := range []pagetable.Page{asked.page - 1, asked.page + 1, 0, testPages - 1} {
		wrong.page = other
		rogues[0].sayAbout(wrong, false)
	}
	wrong.page, wrong.ticket = asked.page, asked.ticket+1
	rogues[0].sayAbout(wrong, false)
	rogues[0].sayAbout(storageFrame{kind: pageWritten, ticket: asked.ticket, page: asked.page, failed: "this is a lie"}, false)
	if waitEnd(c.members[0], p) {
		t.Fatalf("the node ended with %v", c.members[0].ended())
	}
	rogues[0].sayAbout(storageFrame{kind: pageRead, ticket: asked.ticket, page: asked.page, zeros: true}, false)
	p.settled(load)
	rogues[0].sayAbout(storageFrame{kind: pageRead, ticket: asked.ticket, page: asked.page, failed: "twice"}, false)
	p.wantPage(first[1], pageOf(0))
	p.access(first[1]+3, false, func([]byte) {})
	asked = rogues[0].hearAbout(1)[0]
	rogues[0].sayAbout(storageFrame{kind: pageRead, ticket: asked.ticket, page: asked.page, failed: "input/output error"}, false)
	p.wantLost("node 1, which has the file, says: input/output error")
	if err := c.members[0].ended(); err == nil || !strings.Contains(err.Error(), "node 1, which has the file, says: input/output error") {
		t.Errorf("the node ended with %v", err)
	}
}

// TestGreedyPeer: who asks for more pages than fit is expelled, however it asks.
func TestGreedyPeer(t *testing.T) {
	s := setup{nodes: 3, before: func(n *Node) { n.intake.window.most = 16 }}
	c := &cluster{TB: t, net: sim.NewNetwork(s.nodes, 4096, s.net)}
	c.members = append(c.members, c.startNode(0, s))
	t.Cleanup(c.stop)
	r := &rogue{TB: t, net: c.net.Node(1), host: c, self: 1}
	if _, err := r.net.Poll(r, 1); err != nil {
		t.Fatal(err)
	}
	p := c.members[0].join()
	r.sayAbout(storageFrame{kind: readPages, count: mostReads * 16}, false)
	r.hearAbout(mostReads * 16)
	if waitEnd(c.members[0], p) {
		t.Fatal("as many pages as a node may ask for are too many")
	}
	r.sayAbout(storageFrame{kind: readPages, count: mostReads*16 + 1}, false)
	if err := c.members[0].ended(); !errors.Is(err, errGreedy) || !strings.Contains(err.Error(), "node 1") {
		t.Errorf("the node ended with %v", err)
	}
}

// TestGreedyPeerBitByBit: what was asked for before counts as long as it has not begun.
func TestGreedyPeerBitByBit(t *testing.T) {
	n := newPair(t).nodes[0]
	s := n.drive.storage
	s.reading = diskio.NewShares(0) // none are begun
	n.intake.window.most = 16
	for i := range 2 * mostReads {
		if err := s.want(readRun{transport.NodeID(1), uint32(i), 0, 8}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.want(readRun{transport.NodeID(1), 99, 0, 1}); !errors.Is(err, errGreedy) {
		t.Errorf("a page more than a node may ask for: %v", err)
	}
	if err := s.want(readRun{transport.NodeID(2), 99, 0, 32}); err != nil {
		t.Errorf("another peer: %v", err)
	}
	if len(s.waiting) != 2*mostReads+1 {
		t.Errorf("%d runs wait", len(s.waiting))
	}
	s.peerDown(1, errors.New("gone"))
	if len(s.waiting) != 1 || s.waiting[0].peer != 2 {
		t.Errorf("after the loss of one %v wait", s.waiting)
	}
}

// FuzzFramesAboutFiles: a frame is refused, or is what append makes of what was read, and names
// pages of the region.
func FuzzFramesAboutFiles(f *testing.F) {
	for _, s := range []storageFrame{
		{kind: readPages, ticket: 1, page: 5, count: 3}, {kind: readPages, ticket: 1<<32 - 1, page: testPages - mostRun, count: mostRun},
		{kind: pageRead, ticket: 2, page: testPages - 1}, {kind: pageRead, zeros: true}, {kind: pageRead, failed: "input/output error"},
		{kind: writePage, ticket: 3}, {kind: writePage, zeros: true}, {kind: pageWritten, ticket: 3, page: 9}, {kind: pageWritten, failed: "no"},
		{kind: storageKindEnd}, {}, {kind: readPages, page: 1<<64 - 1, count: 1<<32 - 1}, {kind: pageRead, failed: strings.Repeat("x", 2000)},
	} {
		f.Add(s.append(nil), false)
		f.Add(s.append(nil), true)
	}
	f.Add([]byte{storageMark}, false)
	f.Fuzz(func(t *testing.T, b []byte, page bool) {
		s, err := decodeStorage(b, testPages, page)
		if err != nil {
			return
		}
		carries := (s.kind == pageRead && s.failed == "" || s.kind == writePage) && !s.zeros
		if s.kind == 0 || s.kind >= storageKindEnd || s.page >= testPages || carries != page ||
			s.kind == readPages && (s.count == 0 || s.count > mostRun || s.page+pagetable.Page(s.count) > testPages) {
			t.Errorf("%x with a page, %t, is taken for %+v", b, page, s)
		}
		again, err := decodeStorage(s.append(nil), testPages, page)
		if s.failed = s.failed[:min(len(s.failed), 1<<10)]; err != nil || again != s {
			t.Errorf("%+v becomes %+v, %v", s, again, err)
		}
	})
}

// TestLateAnswers: an answer about memory that was freed is not taken for one about what is in its
// place, though the same page was asked for again. Nor is a second answer.
func TestLateAnswers(t *testing.T) {
	n := newPair(t).nodes[0]
	s, store := n.drive.storage, n.drive.exec.store
	ask := func() (ticket uint32) {
		if err := store.Await(5, false, 1); err != nil {
			t.Fatal(err)
		}
		s.bring(5, 1)
		s.flush()
		return s.tickets
	}
	answer := func(ticket uint32) (events int) {
		f := storageFrame{kind: pageRead, ticket: ticket, page: 5, zeros: true}
		if err := s.frame(1, f.append(nil), nil); err != nil {
			t.Fatal(err)
		}
		got, err := store.Poll(make([]pagetable.Event, 4))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	late := ask()
	s.drop(4, 3)
	if _, err := store.Drop(4, 3); err != nil {
		t.Fatal(err)
	}
	if n := answer(0); n != 1 { // the end of what was freed
		t.Errorf("%d events of a page that is freed", n)
	}
	ticket := ask()
	if n := answer(late); n != 0 || len(s.asks) != 1 {
		t.Errorf("%d events of a late answer, and %d are asked", n, len(s.asks))
	}
	if n := answer(ticket); n != 1 || len(s.asks) != 0 {
		t.Errorf("%d events of the answer, and %d are asked", n, len(s.asks))
	}
	if n := answer(ticket); n != 0 {
		t.Errorf("%d events of a second answer", n)
	}
	store.Drop(5, 1)
	if err := store.Await(5, false, 1); err != nil {
		t.Fatal(err)
	}
	s.bring(5, 1)
	s.drop(5, 1) // before it is asked for
	if s.flush(); len(s.asks) != 0 {
		t.Errorf("%d are asked that are freed", len(s.asks))
	}
}

// TestGreedyWriter: who has more written than a node has on its way is expelled.
func TestGreedyWriter(t *testing.T) {
	n := newPair(t).nodes[0]
	s := n.drive.storage
	first, file := pagetable.Page(0), laid(t, 16*4096, same)
	n.drive.origins.list = []*origin{{first: first, end: first + 16, files: []*given{{fd: int(file.Fd())}}, fileBytes: 16 * 4096, written: true}}
	const most = 2 * inPlaceOnTheWay / 4096
	for i := range most {
		if err := s.store(1, &storageFrame{kind: writePage, ticket: uint32(i), page: first + pagetable.Page(i%16), zeros: true}, nil); err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
	}
	if err := s.store(1, &storageFrame{kind: writePage, page: first, zeros: true}, nil); !errors.Is(err, errGreedy) {
		t.Errorf("a page more than a node has on its way: %v", err)
	}
	if free := s.reading.Free(); free != mostReading {
		t.Errorf("writes leave %d of %d bytes to reads", free, mostReading)
	}
	if err := s.store(2, &storageFrame{kind: writePage, page: first, zeros: true}, nil); err != nil {
		t.Errorf("another peer: %v", err)
	}
	for s.writing[1]+s.writing[2] > 0 {
		s.heard()
	}
	if err := s.store(1, &storageFrame{kind: writePage, page: first, zeros: true}, nil); err != nil {
		t.Errorf("when all is written: %v", err)
	}
}
