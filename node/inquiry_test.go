package node

import (
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/faultlog"
	"dsmd/internal/netio"
	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport/sim"
)

// asked is a program that has a second socket.
type asked struct {
	*prog
	line *attach.Conn
	last uint64 // ticket of its questions
	got  []attach.Statement
	over bool // the last answer has come
}

// joinAsked starts a program with a second socket.
func (m *member) joinAsked(rank int32) *asked {
	m.Helper()
	line, theirs, err := attach.Pair()
	if err != nil {
		m.Fatal(err)
	}
	defer unix.Close(theirs)
	m.Cleanup(func() { line.Close() })
	return &asked{prog: m.joinWith(hello(rank), theirs), line: line}
}

// hear reads a question.
func (a *asked) hear(want attach.Question) attach.Ask {
	a.Helper()
	f := read(a, a.line)
	for ; f.Kind == attach.KindTell; f = read(a, a.line) {
		a.tell(f)
	}
	q, err := attach.DecodeAsk(f.Body)
	if f.Kind != attach.KindAsk || err != nil || q.Question != want {
		a.Fatalf("heard %v: %+v, %v; want question %d", f.Kind, q, err, want)
	}
	return q
}

// answer waits for a question of what the program does, and answers it.
func (a *asked) answer(body string) (q attach.Ask) {
	a.Helper()
	q = a.hear(attach.AskSelf)
	a.say(attach.AppendTell(nil, &attach.Tell{Ticket: q.Ticket, Statement: attach.Statement{Body: []byte(body)}}))
	return q
}

func (a *asked) say(frame []byte) {
	a.Helper()
	if err := a.line.Write(frame); err != nil {
		a.Fatal(err)
	}
}

// ask asks what all ranks do.
func (a *asked) ask(watcher int32) {
	a.Helper()
	a.last++
	a.say(attach.AppendAsk(nil, &attach.Ask{Ticket: a.last, Question: attach.AskRanks, Watcher: watcher}))
}

// told reads the answers about all ranks, in their order.
func (a *asked) told() []attach.Statement {
	a.Helper()
	for !a.over {
		a.tell(read(a, a.line))
	}
	all := a.got
	a.got, a.over = nil, false
	slices.SortFunc(all, func(x, y attach.Statement) int {
		return cmp.Or(cmp.Compare(x.Rank, y.Rank), cmp.Compare(x.Node, y.Node))
	})
	return all
}

// tell takes an answer.
func (a *asked) tell(f attach.Frame) {
	a.Helper()
	t, err := attach.DecodeTell(f.Body)
	if f.Kind != attach.KindTell || err != nil || t.Ticket != a.last || a.over {
		a.Fatalf("told %v: %+v, %v", f.Kind, t, err)
	}
	if a.over = t.Last; !t.Last {
		t.Body = slices.Clone(t.Body)
		a.got = append(a.got, t.Statement)
	}
}

// TestInquiry: a program is told what all ranks of its job do, on all nodes: those that answer, and
// those that cannot be asked, do not answer, or have left.
func TestInquiry(t *testing.T) {
	c := start(t, setup{nodes: 2, ranks: 5})
	a, b := c.members[0].joinAsked(0), c.members[1].joinAsked(1)
	c.members[1].joinAs(2)            // cannot be asked
	mute := c.members[0].joinAsked(3) // does not answer
	c.members[0].joinWith(attach.AppendHello(nil, &attach.Hello{Version: attach.Version, Rank: 0, Job: "other", Size: 1}))
	a.ask(0)
	a.answer("asks")
	if q := b.answer("works"); q.Watcher != 0 {
		t.Errorf("rank 1 was told that rank %d watches", q.Watcher)
	}
	late := mute.hear(attach.AskSelf)
	check(t, a.told(), "0 on 0: 0 asks", "1 on 1: 0 works", "2 on 1: 1 ", "3 on 0: 1 ")

	mute.say(attach.AppendTell(nil, &attach.Tell{Ticket: late.Ticket + 1})) // nobody asked that
	mute.say(attach.AppendTell(nil, &attach.Tell{Ticket: late.Ticket}))
	mute.leave()
	b.die()
	eventually(t, "ranks 1 and 3 are gone", func() bool {
		return c.members[0].counter("programs") == 2 && c.members[1].counter("programs") == 1
	})
	a.ask(attach.NoRank)
	if q := a.answer("asks"); q.Watcher != attach.NoRank {
		t.Errorf("rank 0 was told that rank %d watches", q.Watcher)
	}
	check(t, a.told(), "0 on 0: 0 asks", "1 on 1: 2 ", "2 on 1: 1 ", "3 on 0: 2 ")

	b = c.members[1].joinAsked(1)
	a.ask(attach.NoRank)
	a.answer("asks")
	b.answer("is back")
	check(t, a.told(), "0 on 0: 0 asks", "1 on 1: 0 is back", "2 on 1: 1 ", "3 on 0: 2 ")
	c.quiet()
}

// check compares statements: rank, node, presence, and words.
func check(t *testing.T, got []attach.Statement, want ...string) {
	t.Helper()
	var texts []string
	for _, s := range got {
		texts = append(texts, text(&s))
	}
	if !slices.Equal(texts, want) {
		t.Errorf("told %q, want %q", texts, want)
	}
}

func text(s *attach.Statement) string {
	digit := func(n uint32) string { return string(rune('0' + n)) }
	return digit(s.Rank) + " on " + digit(s.Node) + ": " + digit(uint32(s.Presence)) + " " + string(s.Body)
}

// TestInquiryOfLostNode: a node that does not answer is named, and not waited for.
func TestInquiryOfLostNode(t *testing.T) {
	t.Parallel()
	c := start(t, setup{nodes: 2, ranks: 2})
	a := c.members[0].joinAsked(0)
	c.net.Stall(1, 0)
	a.ask(attach.NoRank)
	a.answer("asks")
	check(t, a.told(), "0 on 0: 0 asks", "0 on 1: 3 ")
	c.net.Resume(1, 0)
	c.quiet()
}

// TestInquiryAboutPages: it is told for which pages the threads of a program wait.
func TestInquiryAboutPages(t *testing.T) {
	t.Parallel()
	c := start(t, setup{nodes: 2, ranks: 2})
	b := c.members[1].joinAsked(1)
	page := b.bind("counts", 4*HomeStripe)
	for protocol.NodeID(0) != (&protocol.Config{Nodes: 2, HomeStripe: HomeStripe}).Home(protocol.PageObject(uint64(page))) {
		page++
	}
	c.net.Stall(0, 1)
	waits := b.access(page, false, func([]byte) {})
	eventually(t, "the fault has come", func() bool { return c.members[1].counter("faults_read") > 0 })
	b.ask(attach.NoRank)
	b.answer("waits")
	all := b.told()
	i := slices.IndexFunc(all, func(s attach.Statement) bool { return s.Rank == 1 && s.Presence == attach.Answers })
	if i < 0 || len(all[i].Pages) != 1 || all[i].Pages[0].Page != uint64(page) || all[i].Pages[0].From != 0 || all[i].Pages[0].Memory != "counts" {
		t.Errorf("told %+v", all)
	}
	c.net.Resume(0, 1)
	b.settled(waits)
	c.quiet()
}

// pagesOf is for which pages the threads of a rank wait, as another is told.
func (a *asked) pagesOf(rank uint32) map[uint64]attach.PageStage {
	a.Helper()
	a.ask(attach.NoRank)
	a.answer("asks")
	all := a.told()
	pages := map[uint64]attach.PageStage{}
	for _, s := range all {
		if s.Rank == rank {
			for _, p := range s.Pages {
				pages[p.Page] = p.Stage
			}
		}
	}
	return pages
}

// TestInquiryAboutParkedFaults: a thread whose page its node does not ask for yet waits, too, and
// is counted once. One of a program that dies waits no more.
func TestInquiryAboutParkedFaults(t *testing.T) {
	t.Parallel()
	c := start(t, setup{nodes: 2, ranks: 3, before: func(n *Node) { n.intake.window.most = 1 }})
	m := c.members[1]
	a, b, d := c.members[0].join(), m.joinAsked(1), m.joinAs(2)
	a.fill(0, 4)
	c.net.Stall(0, 1)
	loads := []chan error{b.access(0, false, func([]byte) {})}
	eventually(t, "a page is asked for", func() bool { return m.counter("faults_read") == 1 })
	loads = append(loads, b.access(1, false, func([]byte) {}), b.access(2, true, func([]byte) {}))
	d.access(3, false, func([]byte) {})
	eventually(t, "no other may be", func() bool { return m.counter("faults_held_back") == 3 })
	want := map[uint64]attach.PageStage{0: attach.PageAsked, 1: attach.PageParked, 2: attach.PageParked}
	if got := b.pagesOf(1); !maps.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
	if got := b.pagesOf(2); len(got) != 1 {
		t.Errorf("told %v of the program that dies", got)
	}
	d.die()
	eventually(t, "the program is gone", func() bool { return m.counter("programs") == 1 })
	c.net.Resume(0, 1)
	for _, load := range loads {
		b.settled(load)
	}
	if paid := m.waits().All[attach.WaitMemory].Count; paid != uint64(len(loads)) {
		t.Errorf("%d waits are counted, want %d", paid, len(loads))
	}
	c.quiet()
}

// TestInquiryWithoutQuorum: a thread that waits for a quorum waits, also for a page that is here.
func TestInquiryWithoutQuorum(t *testing.T) {
	t.Parallel()
	s := surviving(3, sim.Options{})
	s.ranks = 4
	c := start(t, s)
	m := c.members[2]
	a, b := m.join(), m.joinAsked(1)
	page := c.pageAt(2, 0)
	a.store(page, 0, 7)
	c.sever(2)
	eventually(t, "the node that is cut off knows it", func() bool { return m.counter("no_quorum") == 1 })
	b.access(page, false, func([]byte) {})
	eventually(t, "the wait is known", func() bool {
		return maps.Equal(b.pagesOf(1), map[uint64]attach.PageStage{uint64(page): attach.PageParked})
	})
	c.without(2)
}

// heldMaps is a page table whose Maps end when they are let.
type heldMaps struct {
	pagetable.Table
	hold atomic.Bool
	held []pagetable.Operation
}

func (h *heldMaps) Map(p pagetable.Page, writable bool, proc pagetable.ProcID) (pagetable.Outcome, error) {
	if !h.hold.Load() {
		return h.Table.Map(p, writable, proc)
	}
	h.held = append(h.held, pagetable.Operation{Op: pagetable.OpMap, Page: p, Writable: writable, Proc: proc})
	return pagetable.Pending, nil
}

func (h *heldMaps) Poll(events []pagetable.Event) (int, error) {
	if h.hold.Load() || len(h.held) == 0 {
		return h.Table.Poll(events)
	}
	o := h.held[0]
	h.held = h.held[1:]
	_, err := h.Table.Map(o.Page, o.Writable, o.Proc)
	events[0] = pagetable.Event{Kind: pagetable.Completed, Op: o.Op, Page: o.Page, Err: err}
	return 1, nil
}

// TestInquiryAboutPagesThatAreHere: a thread waits for a page that its node has, but not in memory,
// or not yet in its program. That is counted once, and no matter of the log between nodes.
func TestInquiryAboutPagesThatAreHere(t *testing.T) {
	h := &heldMaps{}
	c := start(t, setup{nodes: 1, ranks: 2, table: func(_ int, table pagetable.Table) pagetable.Table {
		h.Table = table
		return h
	}})
	m := c.members[0]
	a, b := m.joinAs(0), m.joinAsked(1)
	m.log(0)
	a.store(7, 0, 1)
	paid := m.waits().All[attach.WaitMemory].Count
	h.hold.Store(true)
	load := b.access(7, false, func([]byte) {})
	eventually(t, "the wait is known", func() bool {
		return maps.Equal(b.pagesOf(1), map[uint64]attach.PageStage{7: attach.PageHere})
	})
	h.hold.Store(false)
	eventually(t, "it has ended", func() bool { return len(b.pagesOf(1)) == 0 })
	b.settled(load)
	if now := m.waits().All[attach.WaitMemory].Count; now != paid+1 {
		t.Errorf("%d waits are counted, want %d", now, paid+1)
	}
	for _, f := range m.log(0).Faults {
		if f.Page == 7 && f.Access == faultlog.Read {
			t.Errorf("the log has %+v", f)
		}
	}
	c.quiet()
}

// TestStacks: an observer's file comes to the program that it names.
func TestStacks(t *testing.T) {
	c := start(t, setup{nodes: 1, ranks: 1})
	a := c.members[0].joinAsked(0)
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	stacks := func(pid int) attach.Reply {
		return a.do(attach.Call{Op: attach.OpStacks, Object: uint64(a.give(to)), Count: uint64(pid)})
	}
	if r := stacks(1 << 30); r.Status != attach.StatusUnknown || !strings.Contains(string(r.Payload), "1073741824") {
		t.Errorf("of a process that is not there: %v %q", r.Status, r.Payload)
	}
	r := stacks(os.Getpid())
	to.Close()
	if tell, err := attach.DecodeTell(r.Payload); err != nil || r.Status != attach.StatusOK || tell.Presence != attach.Answers || tell.Rank != 0 {
		t.Fatalf("%v: %+v, %v", r.Status, tell, err)
	}
	a.hear(attach.AskStacks)
	fd, err := a.line.TakeFD()
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "stacks")
	_, err = file.WriteString("stacks")
	file.Close()
	if got, readErr := io.ReadAll(from); err != nil || readErr != nil || string(got) != "stacks" {
		t.Errorf("the observer reads %q, %v, %v", got, err, readErr)
	}
}

// TestStrangeSecondSocket: a program that says there what makes no sense cannot be asked any more,
// and goes on.
func TestStrangeSecondSocket(t *testing.T) {
	ask := attach.AppendAsk(nil, &attach.Ask{Ticket: 1, Question: attach.AskRanks, Watcher: attach.NoRank})
	for name, frames := range map[string][]byte{
		"no frame":          []byte("GET / HTTP/1.1\r\n\r\n"),
		"a call":            attach.AppendCall(nil, &attach.Call{Op: attach.OpStats, Ticket: 1}),
		"another question":  attach.AppendAsk(nil, &attach.Ask{Ticket: 1, Question: attach.AskSelf, Watcher: attach.NoRank}),
		"two questions":     append(slices.Clone(ask), ask...),
		"half an answer":    attach.AppendTell(nil, &attach.Tell{})[:9],
		"an answer too big": append(binary.LittleEndian.AppendUint32(nil, 1<<31), byte(attach.KindTell), 0, 0, 0),
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, setup{nodes: 1, ranks: 2})
			a := c.members[0].joinAsked(0)
			a.say(frames)
			if name == "half an answer" {
				a.line.Close()
			} else {
				for {
					if _, err := a.line.ReadFrame(); err != nil {
						break
					}
				}
			}
			a.sync()
			b := c.members[0].joinAsked(1)
			b.ask(attach.NoRank)
			b.answer("asks")
			check(t, b.told(), "0 on 0: 1 ", "1 on 0: 0 asks")
			c.quiet()
		})
	}
}

// TestStrangeInquiries: whatever is no question or answer of a node ends the connection to it.
func TestStrangeInquiries(t *testing.T) {
	for name, is := range map[string]struct {
		raw  []byte
		page bool
	}{
		"no kind":         {raw: []byte{inquiryMark}},
		"unknown kind":    {raw: append([]byte{inquiryMark | 3}, make([]byte, 8)...)},
		"short question":  {raw: append([]byte{inquiryAsks}, make([]byte, 7)...)},
		"a long job":      {raw: append([]byte{inquiryAsks}, make([]byte, 9+attach.MaxJob)...)},
		"half an answer":  {raw: attach.AppendTellBody([]byte{inquiryTells}, &attach.Tell{})[:12]},
		"with a page too": {raw: append([]byte{inquiryAsks}, make([]byte, 8)...), page: true},
	} {
		t.Run(name, func(t *testing.T) {
			c, rogues := among(t)
			p := c.members[0].join()
			rogues[1].sayBytes(is.raw, is.page)
			p.wantLost("node 2")
			if err := c.members[0].ended(); err == nil || !strings.Contains(err.Error(), "node 2") {
				t.Errorf("the node ended with %v", err)
			}
		})
	}
}

// TestUnaskedAnswers: an answer that nobody waits for, or about what was never asked, is ignored,
// and more questions than a node keeps are answered at once.
func TestUnaskedAnswers(t *testing.T) {
	c, rogues := among(t)
	a := c.members[0].joinAsked(0)
	rogues[1].sayBytes(attach.AppendTellBody([]byte{inquiryTells}, &attach.Tell{Ticket: 77, Last: true}), false)
	rogues[1].sayBytes(attach.AppendTellBody([]byte{inquiryTells}, &attach.Tell{Ticket: 1 << 40}), false)
	question := binary.LittleEndian.AppendUint32([]byte{inquiryAsks}, 1)
	question = binary.LittleEndian.AppendUint32(question, ^uint32(0))
	for range maxErrands + 10 {
		rogues[1].sayBytes(question, false)
	}
	a.answer("once for all")
	a.sync()
}

// TestLineOfWhoDoesNotRead: of a program that asks and does not read, a bounded part is kept. Then
// its second socket ends, which the program sees when it reads.
func TestLineOfWhoDoesNotRead(t *testing.T) {
	own, theirs, err := attach.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	poller, err := netio.NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer poller.Close()
	cut := 0
	l := &line{poller: poller, id: 1, fd: theirs, stream: attach.Stream{Discard: new(closer).close}, cut: func(unread int) { cut = unread }}
	defer l.close()
	if err := poller.Add(theirs, lineToken(l.id)); err != nil {
		t.Fatal(err)
	}
	frame := attach.AppendTell(nil, &attach.Tell{Ticket: 1, Statement: attach.Statement{Body: make([]byte, attach.MaxBody)}})
	sent := 0
	for ; l.fd >= 0; sent++ {
		if sent*len(frame) > 4*maxLineOut {
			t.Fatalf("of %d bytes that nobody reads %d are kept, and the socket is open", sent*len(frame), len(l.out))
		}
		l.send(frame)
	}
	if cut <= maxLineOut || cut > maxLineOut+len(frame) {
		t.Errorf("the log has %d bytes, of %d that are kept", cut, maxLineOut)
	}
	if len(l.out) > 0 || l.ask(attach.NoRank) {
		t.Errorf("%d bytes are kept of a socket that is closed, or it is asked", len(l.out))
	}
	read := 0
	for ; ; read++ {
		if _, err = readFrame(own); err != nil {
			break
		}
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) || read == 0 || read >= sent {
		t.Errorf("the program reads %d of %d frames, and then %v", read, sent, err)
	}
}
