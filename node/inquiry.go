package node

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/netio"
	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport"

	"go.uber.org/zap"
)

// inquiries find out what the ranks of a job do: what they wait for, and which locks they have. A
// program asks when a call of its own has waited for long. Its node asks all nodes, each node asks
// its programs of that job, and adds what it knows itself: for which pages their threads wait. None
// of it is a matter of coherence, so the engine knows nothing of it, and the frames are no messages
// of the protocol. While nobody asks it costs nothing.
type inquiries struct {
	self     protocol.NodeID
	drive    *driver
	out      *outbox
	log      *zap.Logger
	programs *programs
	peers    func() []protocol.NodeID // the nodes, this one included

	open    map[uint32]*inquiry // of programs of this node, by number; at most one of each
	last    uint32              // number that was used
	errands []*errand           // at most maxErrands
	left    []departure         // the latest, at most maxDepartures
	overdue overdue
}

// inquiry is a program's question about its job.
type inquiry struct {
	p      *program
	ticket uint64 // the program's
	nodes  map[protocol.NodeID]bool
	until  time.Duration
}

// errand is what a node wants to know of the programs of this one.
type errand struct {
	node   protocol.NodeID
	number uint32 // that node's
	asked  []*program
	until  time.Duration
	// elsewhere is for which pages threads wait at the other reactors.
	elsewhere map[protocol.ClientID]pageWaiting
}

// pageWaiting is for which pages threads of a program wait, and how many have for long.
type pageWaiting struct {
	list    []attach.PageWait
	blocked uint32
}

// departure is a rank that has left.
type departure struct {
	rankOf
	at time.Duration
}

const (
	// answerWithin is how long a node waits for the answers of its programs.
	answerWithin = 500 * time.Millisecond
	// maxErrands bounds the questions of other nodes that wait for programs. What comes beyond is
	// answered at once, as if no program had answered.
	maxErrands    = 1 << 10
	maxDepartures = 1 << 10
)

// inquiryMark begins the frames between inquiries. Those of storages have one of its two bits only.
const inquiryMark = storageMark | 0x20

const (
	inquiryAsks  = inquiryMark | 1 // tell me of the ranks of this job
	inquiryTells = inquiryMark | 2
)

// inquiryHeader is the length of a frame that asks, without the name of the job: kind, number, and
// the rank that watches.
const inquiryHeader = 1 + 4 + 4

// ask is a program's question. The error is the program's.
func (q *inquiries) ask(p *program, a *attach.Ask) error {
	for _, x := range q.open {
		if x.p == p {
			return fmt.Errorf("%w: a question while another is open", attach.ErrMalformed)
		}
	}
	q.last++
	x := &inquiry{p: p, ticket: a.Ticket, nodes: map[protocol.NodeID]bool{}, until: q.drive.clock.now + 2*answerWithin}
	q.open[q.last] = x
	frame := binary.LittleEndian.AppendUint32([]byte{inquiryAsks}, q.last)
	frame = append(binary.LittleEndian.AppendUint32(frame, uint32(a.Watcher)), p.job...)
	peers := q.peers()
	for _, node := range peers {
		x.nodes[node] = true
	}
	for _, node := range peers {
		if node != q.self {
			q.out.tellPage(transport.NodeID(node), frame, nil)
		}
	}
	q.start(q.self, q.last, a.Watcher, p.job)
	return nil
}

// frame deals with a frame of another node. The error is the peer's.
func (q *inquiries) frame(from transport.NodeID, frame []byte, payload transport.Payload) error {
	node := protocol.NodeID(from)
	switch {
	case payload != nil:
		return fmt.Errorf("node: a question that came with a page")
	case frame[0] == inquiryAsks && len(frame) >= inquiryHeader && len(frame) <= inquiryHeader+attach.MaxJob:
		number, watcher := binary.LittleEndian.Uint32(frame[1:]), int32(binary.LittleEndian.Uint32(frame[5:]))
		q.start(node, number, max(watcher, attach.NoRank), string(frame[inquiryHeader:]))
		return nil
	case frame[0] == inquiryTells:
		t, err := attach.DecodeTell(frame[1:])
		if err == nil && t.Ticket <= 1<<32-1 {
			q.told(node, uint32(t.Ticket), &t)
		}
		return err
	}
	return fmt.Errorf("node: a question of unknown kind %#x, or of %d bytes", frame[0], len(frame))
}

// start asks the programs of a job for a node.
func (q *inquiries) start(node protocol.NodeID, number uint32, watcher int32, job string) {
	q.withElsewhere(func(elsewhere map[protocol.ClientID]pageWaiting) {
		q.askAll(&errand{node: node, number: number, until: q.drive.clock.now + answerWithin, elsewhere: elsewhere}, watcher, job)
	})
}

// withElsewhere calls then with for which pages threads of each program wait at other reactors.
func (q *inquiries) withElsewhere(then func(map[protocol.ClientID]pageWaiting)) {
	gather(q.drive.partition, func(o *Node) map[protocol.ClientID]pageWaiting {
		all := map[protocol.ClientID]pageWaiting{}
		for id, p := range o.programs.byID {
			all[id] = o.programs.inquiries.pagesOf(p)
		}
		return all
	}, func(said []map[protocol.ClientID]pageWaiting) {
		all := map[protocol.ClientID]pageWaiting{}
		for _, x := range said {
			for id, w := range x {
				all[id] = all[id].with(w)
			}
		}
		then(all)
	})
}

// with adds what is waited for at another reactor.
func (w pageWaiting) with(x pageWaiting) pageWaiting {
	w.list = append(slices.Clone(w.list), x.list...)
	slices.SortFunc(w.list, func(a, b attach.PageWait) int {
		return cmp.Or(cmp.Compare(b.Waited, a.Waited), cmp.Compare(a.Page, b.Page))
	})
	w.list = w.list[:min(len(w.list), attach.MaxPageWaits)]
	w.blocked += x.blocked
	return w
}

// askAll asks the programs of a job for an errand.
func (q *inquiries) askAll(e *errand, watcher int32, job string) {
	for _, p := range q.programs.byID {
		switch {
		case !p.ranked || p.job != job:
		case len(q.errands) < maxErrands && p.line.ask(watcher):
			e.asked = append(e.asked, p)
		default:
			q.report(e, q.statement(e, p, attach.Silent, nil))
		}
	}
	for _, d := range q.left {
		if d.job == job {
			q.report(e, attach.Statement{Rank: d.rank, Presence: attach.Left, Ago: q.drive.clock.now - d.at})
		}
	}
	if len(e.asked) == 0 {
		q.send(e, &attach.Tell{Last: true})
		return
	}
	q.errands = append(q.errands, e)
}

// statement is what is known of a program.
func (q *inquiries) statement(e *errand, p *program, presence attach.Presence, body []byte) attach.Statement {
	pages := q.pagesOf(p).with(e.elsewhere[p.id])
	return attach.Statement{Rank: p.rank, Presence: presence, Pages: pages.list, Body: body}
}

// answered takes what a program says of itself.
func (q *inquiries) answered(p *program, t *attach.Tell) {
	if !p.line.answers(t.Ticket) {
		return
	}
	q.settle(p, func(e *errand) attach.Statement { return q.statement(e, p, attach.Answers, t.Body) })
}

// settle tells all who wait for a program's answer.
func (q *inquiries) settle(p *program, says func(*errand) attach.Statement) {
	q.errands = slices.DeleteFunc(q.errands, func(e *errand) bool {
		i := slices.Index(e.asked, p)
		if i < 0 {
			return false
		}
		q.report(e, says(e))
		if e.asked = slices.Delete(e.asked, i, i+1); len(e.asked) == 0 {
			q.send(e, &attach.Tell{Last: true})
		}
		return len(e.asked) == 0
	})
}

func (q *inquiries) report(e *errand, s attach.Statement) { q.send(e, &attach.Tell{Statement: s}) }

// send tells a node, which may be this one.
func (q *inquiries) send(e *errand, t *attach.Tell) {
	t.Ticket, t.Node = uint64(e.number), uint32(q.self)
	if e.node == q.self {
		q.told(q.self, e.number, t)
		return
	}
	q.out.tellPage(transport.NodeID(e.node), attach.AppendTellBody([]byte{inquiryTells}, t), nil)
}

// told passes on to a program what a node says.
func (q *inquiries) told(node protocol.NodeID, number uint32, t *attach.Tell) {
	x := q.open[number]
	if x == nil || !x.nodes[node] {
		return // it comes too late
	}
	if !t.Last {
		t.Ticket, t.Node = x.ticket, uint32(node)
		x.p.line.send(attach.AppendTell(nil, t))
		return
	}
	if delete(x.nodes, node); len(x.nodes) == 0 {
		q.finish(number)
	}
}

// finish ends a program's question, and says which nodes have not answered.
func (q *inquiries) finish(number uint32) {
	x := q.open[number]
	delete(q.open, number)
	for node := range x.nodes {
		x.p.line.send(attach.AppendTell(nil, &attach.Tell{Ticket: x.ticket, Statement: attach.Statement{Node: uint32(node), Presence: attach.Gone}}))
	}
	x.p.line.send(attach.AppendTell(nil, &attach.Tell{Ticket: x.ticket, Last: true}))
}

// tick ends what has waited for long enough, and returns whether there was any such thing.
func (q *inquiries) tick() (busy bool) {
	now := q.drive.clock.now
	if len(q.errands)+len(q.open) > 0 {
		for _, e := range q.errands {
			if now < e.until {
				continue
			}
			busy = true
			for _, p := range e.asked {
				q.report(e, q.statement(e, p, attach.Silent, nil))
			}
			e.asked = nil
			q.send(e, &attach.Tell{Last: true})
		}
		q.errands = slices.DeleteFunc(q.errands, func(e *errand) bool { return len(e.asked) == 0 })
		for number, x := range q.open {
			if now >= x.until {
				busy = true
				q.finish(number)
			}
		}
	}
	q.warn(now)
	return busy
}

// tickIn is for how long the reactor may sleep for the sake of tick.
func (q *inquiries) tickIn(now time.Duration) time.Duration {
	in := netio.Forever
	for _, e := range q.errands {
		in = sooner(in, max(0, e.until-now))
	}
	for _, x := range q.open {
		in = sooner(in, max(0, x.until-now))
	}
	if q.waits().some() {
		in = sooner(in, max(0, q.overdue.next-now))
	}
	return in
}

func (q *inquiries) waits() *pageWaits { return q.drive.exec.meter.waits }

// arrived notes that a rank is here.
func (q *inquiries) arrived(p *program) {
	q.left = slices.DeleteFunc(q.left, func(d departure) bool { return d.rankOf == rankOf{p.job, p.rank} })
}

// dropProgram ends what a program has asked and was asked, and notes that its rank has left.
func (q *inquiries) dropProgram(p *program) {
	for number, x := range q.open {
		if x.p == p {
			delete(q.open, number)
		}
	}
	q.settle(p, func(*errand) attach.Statement { return attach.Statement{Rank: p.rank, Presence: attach.Left} })
	if p.ranked {
		if len(q.left) >= maxDepartures {
			q.left = q.left[1:]
		}
		q.left = append(q.left, departure{rankOf{p.job, p.rank}, q.drive.clock.now})
	}
}

// stacks has a program of this node write its stacks to a file of another program, an observer. The
// error is the observer's.
func (q *inquiries) stacks(observer *program, c *attach.Call) error {
	if c.Object > 1<<32-1 {
		return fmt.Errorf("%w: file %d, which was not given", attach.ErrMalformed, c.Object)
	}
	fd, err := observer.files.take(uint32(c.Object))
	if err != nil {
		return err
	}
	p := q.programs.any(func(p *program) bool { return p.ranked && uint64(p.pid) == c.Count })
	if p == nil {
		observer.files.closer.close(fd)
		observer.refuseCall(c, fmt.Errorf("no program of process %d is attached", c.Count))
		return nil
	}
	ticket := c.Ticket
	q.withElsewhere(func(elsewhere map[protocol.ClientID]pageWaiting) {
		waits := q.pagesOf(p).with(elsewhere[p.id])
		statement := attach.Statement{Node: uint32(q.self), Rank: p.rank, Presence: attach.Answers, Pages: waits.list}
		if !p.line.askStacks(waits.blocked, fd) {
			statement.Presence = attach.Silent
		}
		observer.files.closer.close(fd)
		if q.programs.byID[observer.id] == observer {
			observer.answer(&attach.Reply{Ticket: ticket, Payload: attach.AppendTellBody(nil, &attach.Tell{Statement: statement})})
		}
	})
	return nil
}

// pagesOf is the pages for which threads of a program wait, those for which they wait longest, and
// for how many they have waited for long. How many threads that are, nobody knows: the Go runtime
// may take a goroutine that waits for a page to another thread, where it faults again.
func (q *inquiries) pagesOf(p *program) (x pageWaiting) {
	const long = 100 * time.Millisecond
	since := map[pagetable.Page]time.Duration{}
	for page, w := range q.waits().all() {
		if first, is := since[page]; w.proc == pagetable.ProcID(p.id) && (!is || w.first < first) {
			since[page] = w.first
		}
	}
	for page, first := range since {
		waited := q.drive.clock.now - first
		if waited >= long {
			x.blocked++
		}
		x.list = append(x.list, attach.PageWait{Page: uint64(page), Waited: waited})
	}
	x = pageWaiting{}.with(x)
	for i := range x.list {
		w := &x.list[i]
		page := pagetable.Page(w.Page)
		progress, from := q.programs.intake.progressOf(page)
		w.Memory, w.From, w.Stage = plainName(q.programs.intake.extents.Of(page).Name), uint32(from), progress.stage()
	}
	return x
}

// overdue is the pages for which threads have waited for very long, and what was logged of it.
type overdue struct {
	next   time.Duration // when they are looked at
	logged map[pagetable.Page]bool
}

const (
	// overdueAfter is how long a thread waits for a page before that is worth a line in the log,
	// and overdueEvery how often that is looked at.
	overdueAfter = 10 * time.Second
	overdueEvery = time.Second
)

// becauseOf is why a page has not come, in the log.
var becauseOf = [...]string{
	attach.PageAsked:  "its home was asked for it, or where that is this node, who has it; and it has not come",
	attach.PageParked: "this node has not asked for it: as many pages as may be are on their way, or there is no room, or no quorum, or a recovery is under way",
	attach.PageHere:   "it is on a disk of this node, or waits for one",
	attach.PageBusy:   "this node copies it to its backups, or is about to give it up, or a program has it pinned",
}

// warn logs, once each, that threads have waited for a page for very long.
func (q *inquiries) warn(now time.Duration) {
	waiting := q.waits()
	if now < q.overdue.next || !waiting.some() && len(q.overdue.logged) == 0 {
		return
	}
	q.overdue.next = now + overdueEvery
	for page := range q.overdue.logged {
		if !waiting.are(page) {
			delete(q.overdue.logged, page)
		}
	}
	for page, w := range waiting.all() {
		if q.overdue.logged[page] || now-w.first < overdueAfter {
			continue
		}
		q.overdue.logged[page] = true
		rank := uint32(0)
		if p := q.programs.byID[protocol.ClientID(w.proc)]; p != nil {
			rank = p.rank
		}
		in := q.programs.intake.extents.Of(page)
		progress, from := q.programs.intake.progressOf(page)
		because := becauseOf[progress.stage()]
		if progress.stage() == attach.PageAsked && from == q.self {
			because = "other nodes have not given up their copies of it"
		}
		q.log.Warn("a thread has waited long for a page", zap.Duration("waited", now-w.first), zap.Uint32("rank", rank),
			zap.Uint64("page", uint64(page)), zap.String("allocation", plainName(in.Name)), zap.Uint64("page_of_allocation", uint64(page-in.First)),
			zap.String("from", q.programs.losses.names.of(from)), zap.String("because", because))
	}
}
