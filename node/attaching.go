package node

import (
	"fmt"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/controlpage"
	"dsmd/pagetable"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

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
		HomeStripe: HomeStripe, Reactors: uint32(s.drive.partition.division.Partitions()), StripePages: s.cfg.Core.StripePages, Trap: s.choice.Trap, Transport: s.net.name(), Priority: s.priority.level.String(),
	}), s.memory()...)
	return nil
}

// memory is the files that programs map, of all reactors.
func (s *programs) memory() []int {
	fds := []int{s.drive.exec.table.MemFD()}
	for _, o := range s.drive.partition.others() {
		fds = append(fds, o.drive.exec.table.MemFD()) // which any goroutine may call
	}
	return fds
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

// attach attaches a program whose trap has come, when all reactors serve its faults.
func (s *programs) attach(p *program, body []byte) error {
	traps, err := p.takeTraps(s.drive.partition.division.Partitions())
	if err != nil {
		return err
	}
	if err = s.mayAttach(p, body); err == nil {
		err = p.openLine(s.log)
	}
	if err != nil {
		p.files.closer.close(traps...)
		return err
	}
	if err := s.drive.exec.table.Attach(pagetable.ProcID(p.id), traps[0], uintptr(s.cfg.RegionBase)); err != nil {
		p.files.closer.close(traps[1:]...)
		return p.refuse(attach.RefuseTrap, err.Error())
	}
	p.ranked, p.since = true, time.Now()
	p.stage = stageTrapped
	s.end.attached++
	s.begin(p)
	var refused error
	spread{s}.enrol(p, traps[1:], func(err error) {
		switch {
		case s.byID[p.id] != p: // it has gone meanwhile
		case err != nil:
			refused = p.refuse(attach.RefuseTrap, err.Error())
			p.cut = refused
			_ = unix.Shutdown(p.fd, unix.SHUT_RDWR) // the next receive removes it
		default:
			s.attached(p)
		}
	})
	return refused
}

// takeTraps takes the descriptors that have come with a Trap.
func (p *program) takeTraps(n int) (fds []int, err error) {
	for range n {
		fd, err := p.stream.TakeFD()
		if err != nil {
			p.files.closer.close(fds...)
			return nil, err
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// begin begins to serve the faults of a program.
func (s *programs) begin(p *program) {
	p.served = true
	s.trapped++
	s.intake.waiters.attached(pagetable.ProcID(p.id))
	s.meter.tolls.attached(pagetable.ProcID(p.id))
}

// attached tells a program, and the others, that it is.
func (s *programs) attached(p *program) {
	s.boxed = append(s.boxed, p)
	p.page.Calls().Watch()
	s.members.roster.introduce(p)
	s.inquiries.arrived(p)
	s.meter.count.programs.Store(int64(s.end.attached))
	s.meter.count.programsSeen.Add(1)
	s.members.roster.announce(p, rankAttached)
	p.write(attach.AppendReady(nil), p.page.FD())
	s.log.Info("program attached", zap.String("job", p.job), zap.Uint32("rank", p.rank), zap.Int("pid", p.pid), zap.String("program", p.name))
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
