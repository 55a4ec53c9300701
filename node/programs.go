package node

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/controlpage"
	"dsmd/internal/netio"
	"dsmd/pagetable"
	"dsmd/protocol"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// maxPrograms bounds the programs of one node.
const maxPrograms = pagetable.MaxPrograms

// programs are the programs that have connected.
type programs struct {
	cfg    *Config
	log    *zap.Logger
	drive  *driver
	meter  *meter
	end    *ending
	net    *network
	choice *pagetable.Choice // how this node traps

	calls   *calls
	fetcher *fetcher
	pins    *pins
	intake  *intake
	losses  *losses
	usage   *usage
	members *members
	saver   *checkpointer
	origins *origins

	inquiries *inquiries

	priority *priority // the reactor's

	door    *door
	replies replies
	byID    map[protocol.ClientID]*program
	lastID  protocol.ClientID
	boxed   []*program // those with a control page
	since   time.Time  // when the daemon began
	trapped int        // programs whose faults are served
}

func (s *programs) newProgram(fd int) *program {
	// The reactor knows programs by 30 bits, and 0 is none. Nobody reconnects so often that a
	// number comes up again while anything is left of its first use but the connection itself.
	for s.lastID = (s.lastID + 1) & maxID; s.lastID == 0 || s.byID[s.lastID] != nil; {
		s.lastID = (s.lastID + 1) & maxID
	}
	closer := s.replies.closer
	return &program{
		replies: &s.replies, id: s.lastID, fd: fd, pass: -1, files: files{closer: closer}, stream: attach.Stream{Discard: closer.close},
		waiting: map[uint64]protocol.Ticket{}, called: map[uint64]string{}, fetches: map[uint64]*fetch{}, pins: map[uint64]*pin{},
	}
}

// serve reads and writes what the program's socket allows.
func (s *programs) serve(p *program, r netio.Readiness) {
	if r.Writable {
		p.writeOut()
	}
	if !r.Readable {
		return
	}
	err := attach.Receive(p.fd, &p.stream)
	// What lies in the box now may have been sent before what has just been received, so it comes
	// first.
	if s.takeCall(p) && s.byID[p.id] != p || errors.Is(err, unix.EAGAIN) {
		return
	}
	for err == nil && p.cut == nil {
		f, ok, bad := p.stream.Next()
		if bad != nil {
			err = bad
			break
		}
		if !ok {
			return
		}
		err = s.frame(p, f)
	}
	switch {
	case p.cut != nil:
		err = p.cut
	case p.bye && errors.Is(err, io.EOF):
		err = nil
	}
	s.remove(p, err)
}

func (s *programs) frame(p *program, f attach.Frame) error {
	switch {
	case p.bye:
		return fmt.Errorf("%w: %v after Bye", attach.ErrMalformed, f.Kind)
	case f.Kind == attach.KindHello && p.stage == stageNew:
		return s.hello(p, f.Body)
	case f.Kind == attach.KindTrap && p.stage == stageGreeted:
		return s.attach(p, f.Body)
	case f.Kind == attach.KindCall && p.stage != stageNew:
		c, err := attach.DecodeCall(f.Body)
		if err != nil {
			return err
		}
		if p.stage != stageTrapped && !mayObserve(c.Op) {
			return fmt.Errorf("%w: %v before Trap", attach.ErrMalformed, c.Op)
		}
		if c.Op == attach.OpFile {
			return p.keepFile(&c)
		}
		err = s.call(p, &c)
		s.drive.end()
		return err
	case f.Kind == attach.KindBye:
		p.bye = true
		return attach.DecodeEmpty(f)
	}
	return fmt.Errorf("%w: %v out of turn", attach.ErrMalformed, f.Kind)
}

// mayObserve is whether a program may make a call without attaching, as an observer.
func mayObserve(op attach.Op) bool {
	switch op {
	case attach.OpStats, attach.OpUsage, attach.OpPrograms, attach.OpWaits, attach.OpDrain, attach.OpFaultLog, attach.OpFile, attach.OpStacks:
		return true
	}
	return false
}

// call lets a program's call happen.
func (s *programs) call(p *program, c *attach.Call) error {
	ends := c.Op == attach.OpCancel || c.Op == attach.OpRelease || c.Op == attach.OpUnpin
	if len(p.waiting)+len(p.fetches) >= maxCalls && !ends {
		return fmt.Errorf("%w: more than %d calls are open", attach.ErrMalformed, maxCalls)
	}
	if c.Op != attach.OpCancel && c.Ticket != 0 && s.isOpen(p, c.Ticket) {
		return fmt.Errorf("%w: ticket %d is open already", attach.ErrMalformed, c.Ticket)
	}
	switch c.Op {
	case attach.OpRelease:
		s.calls.release(p, c)
	case attach.OpPrefetch:
		s.fetcher.start(p, c)
	case attach.OpPin:
		s.fetcher.startPin(p, c)
	case attach.OpUnpin:
		return s.pins.unpin(p, c.Object)
	case attach.OpCancel:
		if !s.fetcher.cancel(p, c.Ticket) && !s.usage.cancel(p, c.Ticket) && !s.saver.cancel(p, c.Ticket) {
			s.calls.cancel(p, c.Ticket)
		}
	case attach.OpStats:
		s.drive.gauge()
		counters := slices.Concat(s.meter.counterList(), s.meter.tolls.counters(pagetable.ProcID(p.id)))
		p.answer(&attach.Reply{Ticket: c.Ticket, Payload: attach.AppendCounters(nil, counters)})
	case attach.OpFaultLog:
		p.answer(&attach.Reply{Ticket: c.Ticket, Payload: s.meter.log.batch(c, s.meter.clock, p.maySee)})
	case attach.OpUsage:
		return s.usage.ask(p, c)
	case attach.OpPrograms:
		p.answer(&attach.Reply{Ticket: c.Ticket, Payload: attach.AppendPrograms(nil, s.attached(time.Now()))})
	case attach.OpWaits:
		p.answer(&attach.Reply{Ticket: c.Ticket, Payload: attach.AppendWaits(nil, s.meter.tolls.waits(s.drive.clock.now))})
	case attach.OpName:
		p.call(c)
		p.answer(&attach.Reply{Ticket: c.Ticket})
	case attach.OpStacks:
		return s.inquiries.stacks(p, c)
	case attach.OpCheckpoint:
		return s.saver.begin(p, c)
	case attach.OpSaved:
		return s.saver.await(p, c)
	case attach.OpContents:
		return s.origins.add(p, c)
	case attach.OpFallback:
		return s.origins.fallbacks.begin(p, c)
	case attach.OpLostPage:
		s.losses.answer(p, c)
	case attach.OpLostRanks:
		ranks := slices.Sorted(maps.Keys(p.lost))
		p.answer(&attach.Reply{Ticket: c.Ticket, Payload: attach.AppendRanks(nil, ranks)})
	case attach.OpDrain:
		s.members.leaving.start(p, c)
	default:
		s.calls.ask(p, c)
	}
	return nil
}

// isOpen is whether a program's ticket stands for something.
func (s *programs) isOpen(p *program, ticket uint64) bool {
	_, waits := p.waiting[ticket]
	return waits || p.fetches[ticket] != nil || p.pins[ticket] != nil || s.usage.ticketOf(p) == ticket || s.saver.isOpen(p, ticket)
}

func (s *programs) hello(p *program, body []byte) error {
	if v, err := attach.HelloVersion(body); err != nil {
		return err
	} else if v != attach.Version {
		return p.refuse(attach.RefuseVersion, fmt.Sprintf("the program speaks version %d to its daemon, and this daemon version %d; build both from the same release", v, attach.Version))
	}
	h, err := attach.DecodeHello(body)
	if err != nil {
		return err
	}
	p.name = h.Program
	if s.end.gone != nil {
		return p.refuse(attach.RefuseOther, s.end.gone.Error())
	}
	p.job, p.size = h.Job, h.Size
	if p.size == 0 {
		p.size = uint32(s.cfg.Ranks)
	}
	switch {
	case p.size > MaxRanks:
		return p.refuse(attach.RefuseRank, fmt.Sprintf("a job of %d programs; 1 to %d are possible", p.size, MaxRanks))
	case h.Rank == attach.NoRank:
		p.rank = s.freeRank(p)
	case uint32(h.Rank) >= p.size:
		return p.refuse(attach.RefuseRank, fmt.Sprintf("rank %d in a job of %d programs; ranks are 0 to %d", h.Rank, p.size, p.size-1))
	default:
		p.rank = uint32(h.Rank)
	}
	p.stage = stageGreeted
	table := s.drive.exec.table
	p.write(attach.AppendWelcome(nil, &attach.Welcome{
		Version: attach.Version, Node: uint32(s.cfg.Self), Nodes: uint32(s.cfg.Nodes), Rank: p.rank, Size: p.size,
		RegionBase: s.cfg.RegionBase, RegionBytes: s.cfg.RegionBytes, PageBytes: uint32(table.PageBytes()),
		HomeStripe: HomeStripe, Trap: s.choice.Trap, Transport: s.net.name(), Priority: s.priority.level.String(),
	}), table.MemFD())
	return nil
}

// freeRank is the first rank of this node that no program of p's job has or was offered: ranks are
// dealt to nodes in turn. When all were offered, one is offered again that nobody has taken yet; an
// observer, for one, never takes its own.
func (s *programs) freeRank(p *program) uint32 {
	again := uint32(s.cfg.Self) % p.size
	found := false
	for r := uint32(s.cfg.Self); r < p.size; r += uint32(s.cfg.Nodes) {
		switch {
		case s.holderOf(p.job, r) != nil:
		case !s.offered(p.job, r):
			return r
		case !found:
			again, found = r, true
		}
	}
	return again
}

// offered is whether a program was welcomed with a rank of a job and has not attached yet.
func (s *programs) offered(job string, rank uint32) bool {
	return s.any(func(p *program) bool { return p.stage == stageGreeted && !p.ranked && p.job == job && p.rank == rank }) != nil
}

// holderOf is the program that has a rank of a job, or nil.
func (s *programs) holderOf(job string, rank uint32) *program {
	return s.any(func(p *program) bool { return p.ranked && p.job == job && p.rank == rank })
}

// otherSize is a program of p's job that believes the job to have another size, or nil.
func (s *programs) otherSize(p *program) *program {
	return s.any(func(other *program) bool { return other.ranked && other.job == p.job && other.size != p.size })
}

// pidOf is the process of a program, 0 if that has gone.
func (s *programs) pidOf(id pagetable.ProcID) uint32 {
	if p := s.byID[protocol.ClientID(id)]; p != nil {
		return uint32(p.pid)
	}
	return 0
}

// maxLooks bounds the words that are looked at for one fault.
const maxLooks = 256

// lockOf is the one lock that a program has by a word on its control page; 0: none, or several, or
// so many words are published that looking would hold up others.
func (s *programs) lockOf(id pagetable.ProcID) (hash uint64) {
	p := s.byID[protocol.ClientID(id)]
	if p == nil || s.calls.words.Len() > maxLooks {
		return 0
	}
	for lock := range s.calls.words.Of(p.id) {
		if !p.page.Held(lock) {
			continue
		}
		if hash != 0 {
			return 0
		}
		hash = lock
	}
	return hash
}

// any is a program of which something is true, or nil.
func (s *programs) any(is func(*program) bool) *program {
	for _, p := range s.byID {
		if is(p) {
			return p
		}
	}
	return nil
}

// attach attaches a program whose trap has come.
func (s *programs) attach(p *program, body []byte) error {
	fd, err := p.stream.TakeFD()
	if err != nil {
		return err
	}
	if err = s.mayAttach(p, body); err == nil {
		err = p.openLine(s.log)
	}
	if err != nil {
		p.files.closer.close(fd)
		return err
	}
	if err := s.drive.exec.table.Attach(pagetable.ProcID(p.id), fd, uintptr(s.cfg.RegionBase)); err != nil {
		return p.refuse(attach.RefuseTrap, err.Error())
	}
	s.boxed = append(s.boxed, p)
	p.page.Calls().Watch()
	p.ranked, p.since = true, time.Now()
	s.end.attached++
	s.members.roster.introduce(p)
	s.inquiries.arrived(p)
	p.stage, p.served = stageTrapped, true
	s.trapped++
	s.intake.waiters.attached(pagetable.ProcID(p.id))
	s.meter.tolls.attached(pagetable.ProcID(p.id))
	s.meter.count.programs.Store(int64(s.end.attached))
	s.meter.count.programsSeen.Add(1)
	s.members.roster.announce(p, rankAttached)
	p.write(attach.AppendReady(nil), p.page.FD())
	s.log.Info("program attached", zap.String("job", p.job), zap.Uint32("rank", p.rank), zap.Int("pid", p.pid), zap.String("program", p.name))
	return nil
}

// mayAttach refuses a program that cannot attach, and makes the control page of one that can.
func (s *programs) mayAttach(p *program, body []byte) error {
	t, err := attach.DecodeTrap(body)
	if err != nil {
		return err
	}
	if wants := s.choice.Trap == pagetable.TrapSigsegv; t.Sigsegv != wants {
		return p.refuse(attach.RefuseTrap, fmt.Sprintf("this node traps by %s, as it said, and the program by another way", s.choice.Trap))
	}
	if why := s.members.closed(); why != nil {
		return p.refuse(attach.RefuseOther, why.Error())
	}
	if other := s.otherSize(p); other != nil {
		return p.refuse(attach.RefuseRank, fmt.Sprintf("job %q has %d programs for process %d, which is attached, and %d for this one", p.job, other.size, other.pid, p.size))
	}
	if other := s.holderOf(p.job, p.rank); other != nil {
		return p.refuse(attach.RefuseRank, fmt.Sprintf("rank %d is attached already, as process %d; a program that has nothing to do with it needs a job of its own (DSM_JOB)", p.rank, other.pid))
	}
	if p.page, err = controlpage.Create(); err != nil {
		return p.refuse(attach.RefuseOther, err.Error())
	}
	return nil
}

// attached lists the programs that are attached, the oldest first.
func (s *programs) attached(now time.Time) *attach.Programs {
	all := &attach.Programs{PID: uint32(os.Getpid()), Age: now.Sub(s.since)}
	waits := s.meter.tolls.ownWaits(s.drive.clock.now)
	for _, p := range s.byID {
		if p.ranked {
			all.Attached = append(all.Attached, attach.Attached{PID: uint32(p.pid), Rank: p.rank, Size: p.size, Age: now.Sub(p.since), Job: p.job, Program: p.name,
				Waits: waits(pagetable.ProcID(p.id))})
		}
	}
	slices.SortFunc(all.Attached, func(a, b attach.Attached) int { return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(a.PID, b.PID)) })
	if more := len(all.Attached) - attach.MaxAttached; more > 0 {
		all.Attached, all.More = all.Attached[:attach.MaxAttached], uint64(more)
	}
	return all
}

// whoIsAttached names the processes that are attached, for people.
func (s *programs) whoIsAttached() string {
	var pids []string
	for _, p := range s.byID {
		if p.ranked {
			pids = append(pids, fmt.Sprintf("process %d", p.pid))
		}
	}
	slices.Sort(pids)
	return strings.Join(pids, ", ")
}

// untrap ends the serving of a program's faults. What the program has said and was not read yet
// still counts: the page table may notice the end of a program before its last words are read.
func (s *programs) untrap(id protocol.ClientID) {
	p := s.byID[id]
	if p == nil || !p.served {
		return
	}
	p.served = false
	s.trapped--
	s.drive.exec.table.Detach(pagetable.ProcID(id), p.bye)
	s.intake.waiters.detached(pagetable.ProcID(id))
	s.meter.tolls.detached(pagetable.ProcID(id))
}

// gone deals with a program whose faults the page table does not serve any more. If the program has
// ended its socket ends too, and tells whether it left in order.
func (s *programs) gone(id protocol.ClientID, why error) {
	s.untrap(id)
	if p := s.byID[id]; p != nil && why != nil {
		p.cutOff(why)
	}
}

// remove ends a connection, for whatever reason; err is nil if the program left in order.
func (s *programs) remove(p *program, err error) {
	if s.byID[p.id] != p {
		return
	}
	if err != nil && p.cut == nil && !errors.Is(err, errRefused) && !hasDied(err) {
		p.sayCut(err)
	}
	s.untrap(p.id)
	s.boxed = slices.DeleteFunc(s.boxed, func(q *program) bool { return q == p })
	// From here on nothing is written to it: what the end of its words and pins brings about may
	// end a call, and the number of its socket may soon be somebody else's.
	s.calls.forget(p)
	delete(s.byID, p.id)
	if p.ranked {
		s.end.attached--
	}
	s.meter.count.programs.Store(int64(s.end.attached))
	s.fetcher.dropProgram(p)
	s.usage.dropProgram(p)
	s.inquiries.dropProgram(p)
	s.saver.dropProgram(p)
	s.origins.fallbacks.dropProgram(p)
	s.calls.dropProgram(p)
	s.intake.dropProgram(p.id)
	// Removing comes before closing: the child of a fork may still hold the socket.
	_ = s.door.poller.Remove(p.fd)
	p.close()
	s.logEnd(p, err)
	if !p.ranked {
		return
	}
	s.members.roster.announce(p, rankLeft)
	s.members.idleWithoutQuorum()
	s.drive.put(protocol.Event{Kind: protocol.EventClientGone, Client: p.id, Rank: p.rank})
	s.drive.end()
}

func (s *programs) logEnd(p *program, err error) {
	switch {
	case !p.ranked:
		s.log.Debug("connection ended", zap.Int("pid", p.pid), zap.Error(err))
	case err == nil:
		s.log.Info("program left", zap.Uint32("rank", p.rank), zap.Int("pid", p.pid))
	case hasDied(err):
		level := zap.WarnLevel
		if s.cfg.Launched {
			level = zap.InfoLevel
		}
		s.log.Log(level, "program died; its pages stay, its locks pass on", zap.Uint32("rank", p.rank), zap.Int("pid", p.pid))
	default:
		s.log.Warn("program cut off", zap.Uint32("rank", p.rank), zap.Int("pid", p.pid), zap.Error(err))
	}
}

// close ends all connections. lost (nil: none) is told to the programs: why the cluster is broken.
func (s *programs) close(lost error) {
	s.calls.words.Shut(wordHost{s.calls})
	for _, p := range s.byID {
		if lost != nil {
			p.write(attach.AppendLost(nil, lost.Error()), -1)
		}
		p.close()
	}
}
