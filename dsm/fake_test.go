package dsm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/controlpage"
	"dsmd/internal/faultlog"
	"dsmd/internal/uffd"

	"dsmd/internal/uffd/uffdtest"

	patient "dsmd/internal/patience"
)

// patience bounds every wait of these tests.
var patience = patient.Or(20 * time.Second)

const (
	testPage   = 4096
	testRegion = 1 << 30
	testBase   = 0x4000_0000_0000
)

// fake is a daemon, or all daemons of a cluster, without pages: it keeps names, locks and barriers.
// It serves page faults only when told to (serve), and that only for programs in other processes.
type fake struct {
	t      *testing.T
	socket string
	listen *net.UnixListener

	// Set by the configuration given to newFake, later only with mu held.
	welcome  attach.Welcome // Rank is filled in
	refuse   *attach.Refuse
	pageless bool               // sends no control page
	first    func(*attach.Conn) // speaks in place of Welcome
	// comes before the fake's own answers
	answer func(attach.Call) (reply attach.Reply, mine bool)
	// has each userfaultfd until stop is closed
	trapped func(fd *uffd.FD, stop <-chan struct{})

	mu       sync.Mutex // guards all below, and the fields of programs; held while frames are sent
	programs []*fakeProgram
	names    map[string]*fakeName
	next     uint64 // page
	locks    map[uint64]*fakeLock
	barriers map[uint64][]fakeArrival
	calls    []attach.Call // all that came
	came     *sync.Cond    // signalled with each
	log      *faultlog.Ring
}

type fakeProgram struct {
	conn  *attach.Conn
	rank  uint32
	hello attach.Hello
	trap  attach.Trap
	fd    *uffd.FD
	page  *controlpage.Page
	stop  chan struct{} // closed when fd is to be given up
	using sync.WaitGroup
	bye   bool
	ended bool
}

type fakeName struct {
	identity     string
	first, pages uint64
	users        int
	kept         bool
}

type fakeLock struct {
	writer  *fakeProgram
	readers []*fakeProgram
	queue   []fakeWaiter
	died    *uint32
}

type fakeWaiter struct {
	p    *fakeProgram
	call attach.Call
}

type fakeArrival struct {
	fakeWaiter
	payload []byte
}

// newFake starts a daemon of a cluster of size ranks, after it was configured. The test's end stops
// it. If there is more than one rank, each has its own region, so that all fit into this process.
// It wants the uffd trap; with the other one package e2e tests dsm.
func newFake(t *testing.T, size int, configure ...func(*fake)) *fake {
	t.Helper()
	uffdtest.Require(t)
	f := &fake{
		t: t, socket: fmt.Sprintf("@dsm-test-%d-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-")),
		welcome: attach.Welcome{Version: attach.Version, Nodes: 1, Size: uint32(size), RegionBase: testBase, RegionBytes: testRegion,
			PageBytes: testPage, HomeStripe: 1, Reactors: 1, StripePages: 1, Trap: "uffd", Transport: "fake"},
		names: make(map[string]*fakeName), locks: make(map[uint64]*fakeLock), barriers: make(map[uint64][]fakeArrival),
		log: faultlog.NewRing(8, 5),
	}
	f.came = sync.NewCond(&f.mu)
	for _, c := range configure {
		c(f)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: f.socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	f.listen = l
	file, err := unix.MemfdCreate("fake", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(file, testRegion); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			all.Go(func() { f.attend(attach.NewConn(c), file) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		f.die()
		all.Wait()
		unix.Close(file)
	})
	return f
}

// die closes all connections, as the kernel does for a daemon that is killed.
func (f *fake) die() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.programs {
		p.conn.Shutdown()
		p.closeTrapLocked()
	}
}

// attend is the conversation with one program.
func (f *fake) attend(conn *attach.Conn, file int) {
	defer conn.Close()
	defer conn.Discard()
	p := &fakeProgram{conn: conn}
	defer func() {
		if p.page != nil {
			p.page.Close()
		}
	}()
	if !f.greet(p, file) {
		return
	}
	for {
		fr, err := conn.ReadFrame()
		if err != nil {
			f.gone(p)
			return
		}
		switch fr.Kind {
		case attach.KindBye:
			f.mu.Lock()
			p.bye = true
			f.came.Broadcast()
			f.mu.Unlock()
		case attach.KindCall:
			call, err := attach.DecodeCall(fr.Body)
			if err != nil {
				f.t.Errorf("the program sent: %v", err)
				return
			}
			call.Payload = slices.Clone(call.Payload)
			if call.Op == attach.OpFile { // it is for an answer of the test's to say what is in it
				fd, err := conn.TakeFD()
				if err != nil {
					f.t.Error(err)
					return
				}
				unix.Close(fd)
			}
			f.handle(p, call)
		default:
			f.t.Errorf("the program sent %v", fr.Kind)
			return
		}
	}
}

func (f *fake) greet(p *fakeProgram, file int) bool {
	fr, err := p.conn.ReadFrame()
	if err != nil {
		return false
	}
	if p.hello, err = attach.DecodeHello(fr.Body); err != nil || fr.Kind != attach.KindHello {
		f.t.Errorf("the program began with %v: %v", fr.Kind, err)
		return false
	}
	f.mu.Lock()
	w, refuse, first := f.welcome, f.refuse, f.first
	f.mu.Unlock()
	if refuse != nil {
		p.conn.Write(attach.AppendRefuse(nil, refuse))
		return false
	}
	if first != nil {
		first(p.conn)
		return false
	}
	if p.hello.Size != 0 {
		w.Size = p.hello.Size
	}
	f.mu.Lock()
	w.Rank = uint32(len(f.programs)) % w.Size
	if p.hello.Rank != attach.NoRank && uint32(p.hello.Rank) < w.Size {
		w.Rank = uint32(p.hello.Rank)
	}
	if w.Size > 1 {
		w.RegionBase += uint64(w.Rank) << 36
	}
	p.rank = w.Rank
	f.programs = append(f.programs, p)
	f.mu.Unlock()
	p.conn.Write(attach.AppendWelcome(nil, &w), file)
	if fr, err = p.conn.ReadFrame(); err != nil {
		return false
	}
	if p.trap, err = attach.DecodeTrap(fr.Body); err != nil || fr.Kind != attach.KindTrap {
		f.t.Errorf("the program sent %v for its trap: %v", fr.Kind, err)
		return false
	}
	fd, err := p.conn.TakeFD()
	if err != nil {
		f.t.Error(err)
		return false
	}
	f.mu.Lock()
	p.fd, p.stop = uffd.From(fd), make(chan struct{})
	if f.trapped != nil {
		p.using.Go(func() { f.trapped(p.fd, p.stop) })
	}
	f.mu.Unlock()
	page, err := controlpage.Create()
	if err != nil {
		f.t.Error(err)
		return false
	}
	f.mu.Lock()
	p.page = page
	f.mu.Unlock()
	if f.pageless {
		p.conn.Write(attach.AppendReady(nil))
		return true
	}
	p.conn.Write(attach.AppendReady(nil), page.FD())
	return true
}

// closeTrapLocked gives up the program's userfaultfd. Whoever serves it does not take f.mu.
func (p *fakeProgram) closeTrapLocked() {
	if p.stop == nil {
		return
	}
	close(p.stop)
	p.using.Wait()
	p.fd.Close()
	p.stop = nil
}

func (f *fake) gone(p *fakeProgram) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p.ended = true
	p.closeTrapLocked()
	for _, l := range f.locks {
		l.queue = slices.DeleteFunc(l.queue, func(w fakeWaiter) bool { return w.p == p })
		l.readers = slices.DeleteFunc(l.readers, func(r *fakeProgram) bool { return r == p })
		if l.writer == p {
			l.writer, l.died = nil, &p.rank
		}
		f.pump(l)
	}
	for hash, in := range f.barriers {
		f.barriers[hash] = slices.DeleteFunc(in, func(a fakeArrival) bool { return a.p == p })
	}
	f.came.Broadcast()
}

func (f *fake) reply(p *fakeProgram, r attach.Reply) {
	frame := attach.AppendReply(nil, &r)
	if p.page.Replies().Put(frame) {
		return
	}
	p.page.AddSent()
	p.conn.Write(frame) // a program that has ended needs no answer
}

func (f *fake) handle(p *fakeProgram, call attach.Call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
	defer f.came.Broadcast()
	if f.answer != nil {
		if r, mine := f.answer(call); mine {
			if r.Ticket != 0 {
				f.reply(p, r)
			}
			return
		}
	}
	switch call.Op {
	case attach.OpAcquire, attach.OpRepair, attach.OpTry:
		l := f.lock(call.Object)
		l.queue = append(l.queue, fakeWaiter{p, call})
		f.pump(l)
		if call.Op == attach.OpTry && l.writer != nil && l.writer.rank%2 == p.rank%2 {
			// as on the same node
			f.endTry(l, p, call.Ticket)
		}
	case attach.OpRelease:
		l := f.lock(call.Object)
		if call.Access == attach.Write {
			l.writer = nil
			if call.Count != 0 {
				died := uint32(call.Count - 1)
				l.died = &died
			}
		} else if i := slices.Index(l.readers, p); i >= 0 {
			l.readers = slices.Delete(l.readers, i, i+1)
		}
		f.pump(l)
	case attach.OpArrive:
		f.arrive(p, call)
	case attach.OpBind:
		f.reply(p, f.bind(call))
	case attach.OpUnbind:
		r := attach.Reply{Ticket: call.Ticket, Status: attach.StatusUnknown}
		if n := f.names[call.Name]; n != nil {
			n.users--
			f.dropUnused(call.Name)
			r.Status = attach.StatusOK
		}
		f.reply(p, r)
	case attach.OpKeep, attach.OpDiscard:
		r := attach.Reply{Ticket: call.Ticket, Status: attach.StatusUnknown}
		if n := f.names[call.Name]; n != nil {
			n.kept = call.Op == attach.OpKeep
			f.dropUnused(call.Name)
			r.Status = attach.StatusOK
		}
		f.reply(p, r)
	case attach.OpPrefetch, attach.OpName:
		f.reply(p, attach.Reply{Ticket: call.Ticket})
	case attach.OpStats:
		f.reply(p, attach.Reply{Ticket: call.Ticket, Payload: attach.AppendCounters(nil, []attach.Counter{{Name: "faults_read", Value: 7}})})
	case attach.OpFaultLog:
		log := f.log.Append(nil, call.Object, func(*faultlog.Fault) bool { return true })
		if call.Object == faultlog.End { // from here on the program's faults are logged
			f.log.AddFault(&faultlog.Fault{Page: 1, Access: faultlog.Read})
			f.log.AddFault(&faultlog.Fault{Page: 2, Access: faultlog.Write})
		}
		f.reply(p, attach.Reply{Ticket: call.Ticket, Payload: log})
	case attach.OpCancel:
		f.cancel(p, call.Ticket)
	}
}

// dropUnused forgets a name that nobody uses, unless it is kept.
func (f *fake) dropUnused(name string) {
	if n := f.names[name]; n.users == 0 && !n.kept {
		delete(f.names, name)
	}
}

func (f *fake) bind(call attach.Call) attach.Reply {
	r := attach.Reply{Ticket: call.Ticket}
	n := f.names[call.Name]
	if n == nil {
		pages, _ := call.Pages(testPage)
		if f.next+pages > testRegion/testPage {
			r.Status = attach.StatusNoSpace
			return r
		}
		n = &fakeName{identity: call.Identity(), first: f.next, pages: pages}
		f.next += pages
		f.names[call.Name] = n
	}
	if n.identity != call.Identity() {
		r.Status, r.Payload = attach.StatusMismatch, []byte(n.identity)
		return r
	}
	n.users++
	r.Payload = attach.AppendPages(nil, n.first, n.pages)
	return r
}

func (f *fake) lock(hash uint64) *fakeLock {
	if f.locks[hash] == nil {
		f.locks[hash] = new(fakeLock)
	}
	return f.locks[hash]
}

func (f *fake) pump(l *fakeLock) {
	for len(l.queue) > 0 {
		w := l.queue[0]
		if l.died != nil && w.call.Op != attach.OpRepair {
			l.queue = l.queue[1:]
			f.reply(w.p, attach.Reply{Ticket: w.call.Ticket, Status: attach.StatusUnrepaired, Rank: *l.died})
			continue
		}
		if l.writer != nil || (w.call.Access == attach.Write && len(l.readers) > 0) {
			return
		}
		l.queue = l.queue[1:]
		if w.call.Access == attach.Write {
			l.writer = w.p
		} else {
			l.readers = append(l.readers, w.p)
		}
		r := attach.Reply{Ticket: w.call.Ticket}
		if l.died != nil {
			r.Status, r.Rank, l.died = attach.StatusOwnerDied, *l.died, nil
		}
		f.reply(w.p, r)
	}
}

// endTry tells a program that the lock which it tries to take is held, if it still waits.
func (f *fake) endTry(l *fakeLock, p *fakeProgram, ticket uint64) {
	before := len(l.queue)
	l.queue = slices.DeleteFunc(l.queue, func(w fakeWaiter) bool { return w.p == p && w.call.Ticket == ticket })
	if len(l.queue) < before {
		f.reply(p, attach.Reply{Ticket: ticket, Status: attach.StatusHeld})
	}
}

func (f *fake) arrive(p *fakeProgram, call attach.Call) {
	in := f.barriers[call.Object]
	if len(in) > 0 && in[0].call.Parties != call.Parties {
		text := fmt.Sprintf("rank %d came with %d parties, others with %d", p.rank, call.Parties, in[0].call.Parties)
		f.reply(p, attach.Reply{Ticket: call.Ticket, Status: attach.StatusMismatch, Payload: []byte(text)})
		return
	}
	in = append(in, fakeArrival{fakeWaiter{p, call}, call.Payload})
	f.barriers[call.Object] = in
	if len(in) < int(call.Parties) {
		return
	}
	delete(f.barriers, call.Object)
	slices.SortStableFunc(in, func(a, b fakeArrival) int { return cmp.Compare(a.p.rank, b.p.rank) })
	var all []byte
	for _, a := range in {
		all = append(all, a.payload...)
	}
	for _, a := range in {
		f.reply(a.p, attach.Reply{Ticket: a.call.Ticket, Payload: all})
	}
}

func (f *fake) cancel(p *fakeProgram, ticket uint64) {
	found := false
	for _, l := range f.locks {
		l.queue = slices.DeleteFunc(l.queue, func(w fakeWaiter) bool {
			mine := w.p == p && w.call.Ticket == ticket
			found = found || mine
			return mine
		})
		f.pump(l)
	}
	for hash, in := range f.barriers {
		f.barriers[hash] = slices.DeleteFunc(in, func(a fakeArrival) bool {
			mine := a.p == p && a.call.Ticket == ticket
			found = found || mine
			return mine
		})
	}
	if found {
		f.reply(p, attach.Reply{Ticket: ticket, Status: attach.StatusCanceled})
	}
}

// await waits until what holds; f.mu is held while it is asked.
func (f *fake) await(what string, holds func() bool) {
	f.t.Helper()
	deadline := time.Now().Add(patience)
	late := time.AfterFunc(patience, func() { f.came.Broadcast() })
	defer late.Stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	for !holds() {
		if !time.Now().Before(deadline) {
			f.t.Fatalf("waited in vain for %s", what)
		}
		f.came.Wait()
	}
}

// awaitCalls waits until n calls of a kind have come.
func (f *fake) awaitCalls(op attach.Op, n int) {
	f.t.Helper()
	f.await(fmt.Sprintf("%d calls %v", n, op), func() bool { return f.countLocked(op) >= n })
}

func (f *fake) count(op attach.Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.countLocked(op)
}

func (f *fake) countLocked(op attach.Op) int {
	n := 0
	for _, c := range f.calls {
		if c.Op == op {
			n++
		}
	}
	return n
}

// join makes a program of this process; the test's end closes it.
func (f *fake) join(opts ...Option) *Cluster {
	f.t.Helper()
	c, err := Join(within(f.t), append([]Option{WithSocket(f.socket)}, opts...)...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrLost) {
			f.t.Error(err)
		}
	})
	return c
}

// program is the i-th that has joined.
func (f *fake) program(i int) *fakeProgram {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.programs[i]
}

// joinAll makes one program for each rank, in their order.
func (f *fake) joinAll() []*Cluster {
	f.t.Helper()
	all := make([]*Cluster, int(f.welcome.Size))
	for rank := range all {
		all[rank] = f.join(WithRank(rank))
	}
	return all
}

// within is a context that ends with the test, or when it takes too long.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}
