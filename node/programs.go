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
		replies: &s.replies, id: s.lastID, fd: fd, files: files{closer: closer}, stream: attach.Stream{Discard: closer.close},
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
	if max(len(p.waiting)+len(p.fetches), len(p.joint)) >= maxCalls && !ends {
		return fmt.Errorf("%w: more than %d calls are open", attach.ErrMalformed, maxCalls)
	}
	if c.Op != attach.OpCancel && c.Ticket != 0 && s.isOpen(p, c.Ticket) {
		return fmt.Errorf("%w: ticket %d is open already", attach.ErrMalformed, c.Ticket)
	}
	spread{s}.share(p, c)
	switch c.Op {
	case attach.OpRelease:
		s.calls.release(p, c)
	case attach.OpPrefetch:
		s.fetcher.start(p, c)
	case attach.OpPin:
		s.fetcher.startPin(p, c)
	case attach.OpUnpin:
		if p.pins[c.Object] == nil {
			return fmt.Errorf("%w: unpin of call %d, which pins nothing", attach.ErrMalformed, c.Object)
		}
		spread{s}.unpinAll(p, c.Object)
	case attach.OpCancel:
		spread{s}.cancelAll(p, c.Ticket)
		if !s.fetcher.cancel(p, c.Ticket) && !s.usage.cancel(p, c.Ticket) && !s.saver.cancel(p, c.Ticket) {
			s.calls.cancel(p, c.Ticket)
		}
	case attach.OpStats:
		s.drive.gauge()
		counters := slices.Concat(s.meter.counterList(), s.meter.tolls.counters(pagetable.ProcID(p.id)))
		p.answer(&attach.Reply{Ticket: c.Ticket, Payload: attach.AppendCounters(nil, counters)})
	case attach.OpFaultLog:
		return spread{s}.faultLog(p, c)
	case attach.OpUsage:
		return s.usage.ask(p, c)
	case attach.OpPrograms:
		p.answer(&attach.Reply{Ticket: c.Ticket, Payload: attach.AppendPrograms(nil, s.list(time.Now()))})
	case attach.OpWaits:
		p.answer(&attach.Reply{Ticket: c.Ticket, Payload: attach.AppendWaits(nil, s.meter.tolls.waits(s.drive.clock.now))})
	case attach.OpName:
		p.call(c)
		p.answer(&attach.Reply{Ticket: c.Ticket})
	case attach.OpStacks:
		return s.inquiries.stacks(p, c)
	case attach.OpCheckpoint, attach.OpSaved, attach.OpContents, attach.OpFallback:
		return s.filesCall(p, c)
	case attach.OpLostPage:
		spread{s}.lostPage(p, c)
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

// filesCall lets a call happen that is about files with pages. The error is the program's.
func (s *programs) filesCall(p *program, c *attach.Call) error {
	switch c.Op {
	case attach.OpCheckpoint:
		return s.saver.begin(p, c)
	case attach.OpSaved:
		return s.saver.await(p, c)
	case attach.OpContents:
		return s.origins.add(p, c)
	default:
		return s.origins.fallbacks.begin(p, c)
	}
}

// isOpen is whether a program's ticket stands for something.
func (s *programs) isOpen(p *program, ticket uint64) bool {
	_, waits := p.waiting[ticket]
	return waits || p.joint[ticket] != nil || p.fetches[ticket] != nil || p.pins[ticket] != nil || s.usage.ticketOf(p) == ticket || s.saver.isOpen(p, ticket)
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

// list lists the programs that are attached, the oldest first.
func (s *programs) list(now time.Time) *attach.Programs {
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
	bye := p.bye
	s.drive.partition.tellOthers(func(o *Node) {
		if p := o.programs.byID[id]; p != nil {
			p.bye = bye
			o.programs.untrap(id)
		}
	})
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
	id := p.id
	delete(s.byID, id)
	s.drive.partition.tellOthers(func(o *Node) { spread{o.programs}.leave(id) })
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
			p.write(attach.AppendLost(nil, lost.Error()))
		}
		p.close()
	}
}
