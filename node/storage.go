package node

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"dsmd/internal/agreement"
	"dsmd/internal/diskio"
	"dsmd/internal/netio"
	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport"

	"go.uber.org/zap"
)

// storage reads and writes pages in files for other nodes, and has other nodes do so for this one.
// What is in a file is no matter of coherence: the home of a page has said that it is as in the
// file, or its owner writes it there. So the engine knows nothing of this, and its frames, whose
// first byte has storageMark, are no messages of the protocol. They travel over the same
// connections, and a read ends with that of its node.
//
// Pages are read past the page cache into the very buffers from which they are sent, many at a
// time (internal/diskio). The reactor sends each when it is there.
type storage struct {
	drive   *driver
	origins *origins
	out     *outbox
	poller  *netio.Poller
	log     *zap.Logger
	names   nodeNames

	// What this node has asked others for.
	fresh   []ask              // since the last flush
	asks    map[uint32]*askRun // that were sent, by ticket
	writes  map[uint32]farWrite
	tickets uint32
	control []byte // scratch for frames
	// down are nodes that are lost, and why: what was asked of them since ends with the next flush.
	down map[transport.NodeID]error

	// What others have asked this node for.
	io      *diskio.Queue // nil: nobody ever has
	waiting []readRun     // in order; begun while their file may have more of reading
	// reading divides the bytes that are read for others at a time; writing is how many pages are
	// being written for each.
	reading diskio.Shares
	writing map[transport.NodeID]int
	// lives counts how often a peer was lost: what was begun for it before is for nobody.
	lives map[transport.NodeID]int
}

const (
	// mostReading is how many bytes are read for others at a time: of one file a third.
	mostReading = 3 * 8 << 20
	// mostRun bounds the pages of a frame that asks for some.
	mostRun = 1 << 10
)

// ask is a page that another node reads for this one.
type ask struct {
	page pagetable.Page
	node protocol.NodeID
	// over gets the contents, or why they don't come, and calls done when it needs them no more.
	over func(contents []byte, why error, done func())
	// awaited: the page table awaits it, and forgets it when it is freed.
	awaited bool
}

// askRun are neighbouring pages that were asked for together.
type askRun struct {
	node  protocol.NodeID
	first pagetable.Page
	asks  []ask // without over: it has come, or nobody wants it any more
	left  int   // that have not come
}

// farWrite is a page that another node writes for this one.
type farWrite struct {
	node protocol.NodeID
	over func(error)
}

// readRun are pages that another node wants.
type readRun struct {
	peer   transport.NodeID
	ticket uint32
	next   pagetable.Page
	count  uint64
}

// service is a transfer made for another node.
type service struct {
	diskio.Transfer
	peer    transport.NodeID
	life    int          // of the peer
	frame   storageFrame // that answers
	payload transport.Payload
	own     bool // the buffer is the queue's, and not the payload's
	file    any  // is not garbage before the transfer is over
}

// bring has another node read a page, which the page table awaits.
func (s *storage) bring(page pagetable.Page, node protocol.NodeID) {
	over := func(contents []byte, why error, done func()) { s.drive.exec.store.Deliver(page, contents, why, done) }
	s.fresh = append(s.fresh, ask{page, node, over, true})
}

// read has another node read a page.
func (s *storage) read(page pagetable.Page, node protocol.NodeID, over func(contents []byte, why error, done func())) {
	s.fresh = append(s.fresh, ask{page, node, over, false})
}

// flush asks for the pages of this turn, neighbours together.
func (s *storage) flush() {
	defer s.endLost()
	if len(s.fresh) == 0 {
		return
	}
	slices.SortFunc(s.fresh, func(a, b ask) int { return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.page, b.page)) })
	for rest := s.fresh; len(rest) > 0; {
		first, n := rest[0], 1
		for n < min(len(rest), mostRun) && rest[n].page == first.page+pagetable.Page(n) && rest[n].node == first.node {
			n++
		}
		s.tickets = max(s.tickets+1, 1)
		s.asks[s.tickets] = &askRun{node: first.node, first: first.page, asks: slices.Clone(rest[:n]), left: n}
		s.out.tell(agreement.NodeID(first.node), (&storageFrame{kind: readPages, ticket: s.tickets, page: first.page, count: uint32(n)}).append(nil))
		rest = rest[n:]
	}
	clear(s.fresh)
	s.fresh = s.fresh[:0]
}

// endLost ends what was asked of nodes that were lost before.
func (s *storage) endLost() {
	if len(s.asks)+len(s.writes) > 0 {
		for peer, why := range s.down {
			s.end(peer, why)
		}
	}
}

// write has another node write a page to its file. over is called when that is done, or will not
// be; the contents are copied before write returns.
func (s *storage) write(page pagetable.Page, node protocol.NodeID, contents []byte, over func(error)) {
	s.tickets = max(s.tickets+1, 1)
	s.writes[s.tickets] = farWrite{node, over}
	f := storageFrame{kind: writePage, ticket: s.tickets, page: page, zeros: isZero(contents)}
	var payload transport.Payload
	if !f.zeros {
		payload = s.out.net.Lease(transport.NodeID(node))
		copy(payload.Bytes(), contents)
	}
	s.out.tellPage(transport.NodeID(node), f.append(nil), payload)
}

// frame deals with a frame of another node. The error is the peer's.
func (s *storage) frame(from transport.NodeID, control []byte, payload transport.Payload) error {
	f, err := decodeStorage(control, s.drive.exec.table.Pages(), payload != nil)
	if err != nil {
		return err
	}
	switch f.kind {
	case readPages:
		return s.want(readRun{from, f.ticket, f.page, uint64(f.count)})
	case pageRead:
		s.came(from, &f, payload)
	case writePage:
		return s.store(from, &f, payload)
	case pageWritten:
		if w, is := s.writes[f.ticket]; is && transport.NodeID(w.node) == from {
			delete(s.writes, f.ticket)
			w.over(s.failure(from, &f))
		}
	}
	return nil
}

// failure is what another node has met, or nil.
func (s *storage) failure(from transport.NodeID, f *storageFrame) error {
	if f.failed == "" {
		return nil
	}
	return fmt.Errorf("%s, which has the file, says: %s", s.names.of(protocol.NodeID(from)), f.failed)
}

// came takes a page that another node has read.
func (s *storage) came(from transport.NodeID, f *storageFrame, payload transport.Payload) {
	run := s.asks[f.ticket]
	if run == nil || transport.NodeID(run.node) != from || f.page < run.first || f.page-run.first >= pagetable.Page(len(run.asks)) {
		return
	}
	a := &run.asks[f.page-run.first]
	over := a.over
	if a.over = nil; over == nil {
		return // it was freed meanwhile
	}
	if run.left--; run.left == 0 {
		delete(s.asks, f.ticket)
	}
	contents, done := zeros[:s.drive.exec.table.PageBytes()], func() {}
	if payload != nil {
		payload.Keep()
		contents, done = payload.Bytes(), payload.Release
	}
	over(contents, s.failure(from, f), done)
}

// drop forgets what was asked for pages that are freed.
func (s *storage) drop(first pagetable.Page, count uint64) {
	freed := func(a *ask) bool { return a.over != nil && a.page >= first && uint64(a.page-first) < count }
	var told []ask
	for ticket, run := range s.asks {
		for i := range run.asks {
			if a := &run.asks[i]; freed(a) {
				if !a.awaited {
					told = append(told, *a)
				}
				a.over = nil
				run.left--
			}
		}
		if run.left == 0 {
			delete(s.asks, ticket)
		}
	}
	s.fresh = slices.DeleteFunc(s.fresh, func(a ask) bool {
		if freed(&a) && !a.awaited {
			told = append(told, a)
		}
		return freed(&a)
	})
	for _, a := range told {
		a.over(nil, errors.New("it was freed"), func() {})
	}
}

// peerDown ends what depends on a node that is lost.
func (s *storage) peerDown(peer transport.NodeID, why error) {
	s.down[peer] = why
	s.end(peer, why)
	s.waiting = slices.DeleteFunc(s.waiting, func(r readRun) bool { return r.peer == peer })
	s.lives[peer]++
}

// end ends what was asked of a node that is lost.
func (s *storage) end(peer transport.NodeID, why error) {
	node := protocol.NodeID(peer)
	lost := fmt.Errorf("%s, which has the file, is lost: %w", s.names.of(node), why)
	for ticket, run := range s.asks {
		if run.node != node {
			continue
		}
		delete(s.asks, ticket)
		for _, a := range run.asks {
			if a.over != nil {
				a.over(nil, lost, func() {})
			}
		}
	}
	for ticket, w := range s.writes {
		if w.node == node {
			delete(s.writes, ticket)
			w.over(lost)
		}
	}
}

// errGreedy is why a peer is expelled that asks for more than it could have room for, or has more
// written than a checkpointer has on its way.
var errGreedy = errors.New("node: a peer has asked for more pages of files than it may at a time")

// want reads pages for another node, when their turn comes.
func (s *storage) want(r readRun) error {
	open := r.count
	for _, w := range s.waiting {
		if w.peer == r.peer {
			open += w.count
		}
	}
	if open > uint64(mostReads*s.drive.intake.window.most) {
		return errGreedy
	}
	s.waiting = append(s.waiting, r)
	s.more()
	return nil
}

// more begins reads, as many as there is room for. Those of a file that has its share wait on.
func (s *storage) more() {
	pageBytes := s.drive.exec.table.PageBytes()
	var list []*diskio.Transfer
	for i := 0; i < len(s.waiting) && s.reading.Free() > 0; {
		r := &s.waiting[i]
		at, is := s.origins.here(r.next)
		if is && !s.reading.May(at.FD) {
			i++
			continue
		}
		if v := s.begin(r.peer, storageFrame{kind: pageRead, ticket: r.ticket, page: r.next}, nil); v != nil {
			list = append(list, &v.Transfer)
			s.reading.Take(v.FD, pageBytes)
		}
		if r.next, r.count = r.next+1, r.count-1; r.count == 0 {
			copy(s.waiting[1:], s.waiting[:i])
			s.waiting = s.waiting[1:]
		}
	}
	if len(list) > 0 {
		s.io.Submit(list...)
	}
}

// store writes a page for another node.
func (s *storage) store(from transport.NodeID, f *storageFrame, payload transport.Payload) error {
	// a successor has nothing on its way yet, but what its predecessor had may be
	if s.writing[from] >= 2*inPlaceOnTheWay/s.drive.exec.table.PageBytes() {
		return errGreedy
	}
	if payload != nil {
		payload.Keep()
	}
	if v := s.begin(from, storageFrame{kind: pageWritten, ticket: f.ticket, page: f.page}, payload); v != nil {
		s.writing[from]++
		s.io.Submit(&v.Transfer)
	} else if payload != nil {
		payload.Release()
	}
	return nil
}

// begin prepares a transfer for another node, or answers why there is none. It takes payload over
// if it returns one.
func (s *storage) begin(peer transport.NodeID, answer storageFrame, payload transport.Payload) *service {
	v := &service{peer: peer, life: s.lives[peer], frame: answer, payload: payload}
	at, is := s.origins.here(answer.page)
	writes := answer.kind == pageWritten
	err := s.open()
	if err == nil && (!is || writes && !s.origins.isWritten(answer.page)) {
		err = errors.New("no file of this node has the page")
	}
	v.Transfer = diskio.Transfer{FD: at.FD, Offset: at.Offset, Least: at.Least, Write: writes, Owner: v}
	v.file = at.Keep
	if err == nil {
		err = s.buffer(v)
	}
	if err == nil {
		return v
	}
	answer.failed = err.Error()
	s.out.tellPage(peer, answer.append(nil), nil)
	return nil
}

// open makes the queue of transfers, once.
func (s *storage) open() (err error) {
	if s.io != nil {
		return nil
	}
	if s.io, err = diskio.New(s.drive.exec.table.PageBytes()); err != nil {
		return err
	}
	if err = s.poller.Add(s.io.FD(), tokenStorage); err != nil {
		err = errors.Join(err, s.io.Close())
		s.io = nil
	}
	return err
}

// buffer gives a transfer the memory of a payload, so that the page is not copied, if direct input
// and output can use that. The payload of a read is given back when it fails.
func (s *storage) buffer(v *service) (err error) {
	if v.payload == nil && !v.Write {
		v.payload = s.out.net.Lease(v.peer)
	}
	if v.payload != nil && diskio.Aligned(v.payload.Bytes()) {
		v.Buf = v.payload.Bytes()
		return nil
	}
	v.Buf, err = s.io.Buffer()
	switch v.own = err == nil; {
	case err != nil && !v.Write:
		v.payload.Release()
	case err != nil:
	case v.Write && v.payload != nil:
		copy(v.Buf, v.payload.Bytes())
	case v.Write:
		clear(v.Buf)
	}
	return err
}

// heard answers for the transfers that are over. It returns whether there were any.
func (s *storage) heard() bool {
	if s.io == nil {
		return false
	}
	list := s.io.Take()
	for _, t := range list {
		v := t.Owner.(*service)
		if v.Write {
			s.writing[v.peer]--
		} else {
			s.reading.GiveBack(v.FD, len(v.Buf))
		}
		s.answer(v)
		if v.own {
			s.io.Recycle(v.Buf)
		}
	}
	if len(list) > 0 {
		s.more()
	}
	return len(list) > 0
}

// answer tells another node what has become of a transfer.
func (s *storage) answer(v *service) {
	count := &s.drive.exec.meter.count
	there := v.life == s.lives[v.peer]
	sends := there && !v.Write && v.Err == nil
	if sends && v.own {
		copy(v.payload.Bytes(), v.Buf)
	}
	switch {
	case v.Err != nil:
		v.frame.failed = v.Err.Error()
		s.log.Error("a file can't be read or written for another node", zap.Uint64("page", uint64(v.frame.page)), zap.Error(v.Err))
	case sends && isZero(v.payload.Bytes()):
		v.frame.zeros, sends = true, false
	}
	var payload transport.Payload
	switch {
	case sends:
		payload = v.payload
	case v.payload != nil:
		v.payload.Release()
	}
	if !there {
		return
	}
	if v.Write {
		count.writtenForOthers.Add(1)
	} else {
		count.readForOthers.Add(1)
	}
	s.control = v.frame.append(s.control[:0])
	s.out.tellPage(v.peer, s.control, payload)
}

// close waits for the transfers that have begun.
func (s *storage) close() {
	if s.io != nil {
		if err := s.io.Close(); err != nil {
			s.log.Error("the queue that reads and writes files", zap.Error(err))
		}
		s.io = nil
	}
}
