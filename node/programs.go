package node

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"dsmd/internal/attach"
	"dsmd/internal/controlpage"
	"dsmd/internal/netio"
	"dsmd/pagetable"
	"dsmd/protocol"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// program is a program that has connected.
type program struct {
	id      protocol.ClientID
	fd      int
	stream  attach.Stream
	out     []byte // frames not yet taken by the socket
	pass    int    // descriptor to send with the first byte of out, or -1
	stage   stage
	served  bool   // its faults are served
	job     string // "": that of all programs which say nothing
	size    uint32 // programs of the job
	rank    uint32
	ranked  bool // rank is taken by this program
	pid     int
	name    string
	bye     bool
	waiting map[uint64]protocol.Ticket // open calls that the engine answers, by the program's ticket
	fetches map[uint64]*fetch          // open prefetches, by the program's ticket
	pins    map[uint64]*pin            // what its answered Pin calls hold, by their tickets
	pinned  int                        // pages that its Pin calls hold or want, at most maxPinned
	page    *controlpage.Page          // nil before it is served
	frame   []byte                     // taken out of its box
	words   map[int]*published         // the locks on its page, by their places
	lost    map[uint32]protocol.NodeID // ranks of its job that were lost since it attached, and their nodes
	blocked bool                       // its socket has no room; epoll tells when it has
	cut     error                      // why the node has shut the connection
}

type stage uint8

const (
	stageNew     stage = iota // connected, nothing said
	stageGreeted              // has been welcomed
	stageTrapped              // has handed over its trap, and may call
)

const (
	// maxOut bounds the answers that a program leaves unread, in bytes: some of the largest. A program that
	// reads less fast than it asks is cut off.
	maxOut = 8 * attach.MaxFrame
	// maxPrograms bounds the programs of one node.
	maxPrograms = pagetable.MaxPrograms
)

// acceptPrograms takes the programs that have connected.
func (n *Node) acceptPrograms() bool {
	any := false
	for {
		fd, err := attach.Accept(n.accept)
		switch {
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
			if !n.acceptSpare() {
				return any
			}
		case errors.Is(err, unix.EAGAIN):
			return any
		case err != nil:
			n.log.Warn("cannot accept a program", zap.Error(err))
			return any
		default:
			n.addProgram(fd)
		}
		any = true
	}
}

// acceptSpare turns a program away when there is no descriptor left to accept it with, by giving up a spare one for the
// moment. If the program were left to wait, its connection would keep the reactor awake for as long as it waits.
func (n *Node) acceptSpare() bool {
	n.closeSpare()
	fd, err := attach.Accept(n.accept)
	if err == nil {
		n.turnAway(n.newProgram(fd), "this daemon has too many open files; raise the limit (ulimit -n) and start it again")
	}
	n.openSpare()
	return err == nil
}

// openSpare sets a descriptor aside for acceptSpare. If there is none, n.spare is -1 and the next acceptSpare does without.
func (n *Node) openSpare() {
	fd, err := unix.FcntlInt(uintptr(n.wake.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		fd = -1
	}
	n.spare = fd
}

func (n *Node) closeSpare() {
	if n.spare >= 0 {
		unix.Close(n.spare)
		n.spare = -1
	}
}

func (n *Node) newProgram(fd int) *program {
	// The reactor knows programs by 31 bits, and 0 is none. Nobody reconnects so often that a number comes up again while
	// anything is left of its first use but the connection itself.
	for n.nextID = (n.nextID + 1) & (1<<31 - 1); n.nextID == 0 || n.programs[n.nextID] != nil; {
		n.nextID = (n.nextID + 1) & (1<<31 - 1)
	}
	return &program{
		id: n.nextID, fd: fd, pass: -1, waiting: map[uint64]protocol.Ticket{}, fetches: map[uint64]*fetch{}, pins: map[uint64]*pin{},
		words: map[int]*published{},
	}
}

func (n *Node) addProgram(fd int) {
	p := n.newProgram(fd)
	pid, uid, err := n.peer(fd)
	p.pid = pid
	switch {
	case err != nil:
		n.turnAway(p, "the daemon cannot tell whose process this is: "+err.Error())
		return
	case int(uid) != os.Geteuid() && uid != 0:
		// Whoever attaches reads and writes the memory of everybody else in the job.
		n.turnAway(p, fmt.Sprintf("this daemon belongs to user %d and you are user %d; run the program as the same user", os.Geteuid(), uid))
		return
	case len(n.programs) >= maxPrograms && !n.makeRoom():
		n.turnAway(p, fmt.Sprintf("%d programs are attached already", len(n.programs)))
		return
	}
	if err := n.poller.Add(fd, int32(p.id)); err != nil {
		n.turnAway(p, err.Error())
		return
	}
	n.programs[p.id] = p
	n.serveProgram(p, netio.Readiness{Readable: true})
}

// makeRoom ends the oldest of the connections that have not attached, if there is one: whoever connects and says nothing, or
// not all that it should, must not keep others out for ever.
func (n *Node) makeRoom() bool {
	var oldest *program
	for _, p := range n.programs {
		if !p.ranked && (oldest == nil || p.id < oldest.id) {
			oldest = p
		}
	}
	if oldest == nil {
		return false
	}
	n.removeProgram(oldest, fmt.Errorf("%d connections are open, and this one is the oldest of those that are not attached", len(n.programs)))
	return true
}

// turnAway refuses a program that was not added.
func (n *Node) turnAway(p *program, reason string) {
	const code = attach.RefuseOther
	n.log.Warn("program refused", zap.Int("pid", p.pid), zap.String("reason", reason))
	// A fresh socket takes one small frame; if not, the program sees the end of the connection.
	_, _ = attach.Send(p.fd, attach.AppendRefuse(nil, &attach.Refuse{Code: code, Reason: reason}), -1)
	p.close()
}

// serveProgram reads and writes what the program's socket allows.
func (n *Node) serveProgram(p *program, r netio.Readiness) {
	if r.Writable {
		n.writeOut(p)
	}
	if !r.Readable {
		return
	}
	err := attach.Receive(p.fd, &p.stream)
	// What lies in the box now may have been sent before what has just been received, so it comes first.
	if n.takeCall(p) && n.programs[p.id] != p || errors.Is(err, unix.EAGAIN) {
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
		err = n.programFrame(p, f)
	}
	switch {
	case p.cut != nil:
		err = p.cut
	case p.bye && errors.Is(err, io.EOF):
		err = nil
	}
	n.removeProgram(p, err)
}

// errRefused ends the connection of a program that was told why.
var errRefused = errors.New("refused")

func (n *Node) refuse(p *program, code attach.RefuseCode, reason string) error {
	n.write(p, attach.AppendRefuse(nil, &attach.Refuse{Code: code, Reason: reason}), -1)
	return fmt.Errorf("%w: %s", errRefused, reason)
}

func (n *Node) programFrame(p *program, f attach.Frame) error {
	switch {
	case p.bye:
		return fmt.Errorf("%w: %v after Bye", attach.ErrMalformed, f.Kind)
	case f.Kind == attach.KindHello && p.stage == stageNew:
		return n.hello(p, f.Body)
	case f.Kind == attach.KindTrap && p.stage == stageGreeted:
		return n.trap(p, f.Body)
	case f.Kind == attach.KindCall && p.stage != stageNew:
		c, err := attach.DecodeCall(f.Body)
		if err != nil {
			return err
		}
		if p.stage != stageTrapped && c.Op != attach.OpStats && c.Op != attach.OpDrain {
			return fmt.Errorf("%w: %v before Trap", attach.ErrMalformed, c.Op)
		}
		return n.call(p, &c)
	case f.Kind == attach.KindBye:
		p.bye = true
		return attach.DecodeEmpty(f)
	}
	return fmt.Errorf("%w: %v out of turn", attach.ErrMalformed, f.Kind)
}

func (n *Node) hello(p *program, body []byte) error {
	if v, err := attach.HelloVersion(body); err != nil {
		return err
	} else if v != attach.Version {
		return n.refuse(p, attach.RefuseVersion, fmt.Sprintf("the program speaks version %d to its daemon, and this daemon version %d; build both from the same release", v, attach.Version))
	}
	h, err := attach.DecodeHello(body)
	if err != nil {
		return err
	}
	p.name = h.Program
	if n.gone != nil {
		return n.refuse(p, attach.RefuseOther, n.gone.Error())
	}
	p.job, p.size = h.Job, h.Size
	if p.size == 0 {
		p.size = uint32(n.cfg.Ranks)
	}
	switch {
	case p.size > MaxRanks:
		return n.refuse(p, attach.RefuseRank, fmt.Sprintf("a job of %d programs; 1 to %d are possible", p.size, MaxRanks))
	case h.Rank == attach.NoRank:
		p.rank = n.freeRank(p)
	case uint32(h.Rank) >= p.size:
		return n.refuse(p, attach.RefuseRank, fmt.Sprintf("rank %d in a job of %d programs; ranks are 0 to %d", h.Rank, p.size, p.size-1))
	default:
		p.rank = uint32(h.Rank)
	}
	p.stage = stageGreeted
	n.write(p, attach.AppendWelcome(nil, &attach.Welcome{
		Version: attach.Version, Node: uint32(n.cfg.Self), Nodes: uint32(n.cfg.Nodes), Rank: p.rank, Size: p.size,
		RegionBase: n.cfg.RegionBase, RegionBytes: n.cfg.RegionBytes, PageBytes: uint32(n.table.PageBytes()),
		HomeStripe: HomeStripe, Trap: n.choice.Trap, Transport: n.net.name(),
	}), n.table.MemFD())
	return nil
}

// freeRank is the first rank of this node that no program of p's job has or was offered: ranks are dealt to nodes in turn. When all were
// offered, one is offered again that nobody has taken yet; an observer, for one, never takes its own.
func (n *Node) freeRank(p *program) uint32 {
	again := uint32(n.cfg.Self) % p.size
	found := false
	for r := uint32(n.cfg.Self); r < p.size; r += uint32(n.cfg.Nodes) {
		switch {
		case n.holderOf(p.job, r) != nil:
		case !n.offered(p.job, r):
			return r
		case !found:
			again, found = r, true
		}
	}
	return again
}

// offered says whether a program was welcomed with a rank of a job and has not attached yet.
func (n *Node) offered(job string, rank uint32) bool {
	for _, p := range n.programs {
		if p.stage == stageGreeted && !p.ranked && p.job == job && p.rank == rank {
			return true
		}
	}
	return false
}

func (n *Node) holderOf(job string, rank uint32) *program {
	for _, p := range n.programs {
		if p.ranked && p.job == job && p.rank == rank {
			return p
		}
	}
	return nil
}

// otherSize is a program of p's job that believes the job to have another size, or nil.
func (n *Node) otherSize(p *program) *program {
	for _, other := range n.programs {
		if other.ranked && other.job == p.job && other.size != p.size {
			return other
		}
	}
	return nil
}

// attached is how many programs have a rank. Others only ask questions, or are about to attach.
func (n *Node) attached() int {
	count := 0
	for _, p := range n.programs {
		if p.ranked {
			count++
		}
	}
	return count
}

func (n *Node) trap(p *program, body []byte) error {
	fd, err := p.stream.TakeFD()
	if err != nil {
		return err
	}
	t, err := attach.DecodeTrap(body)
	if err != nil {
		unix.Close(fd)
		return err
	}
	if wants := n.choice.Trap == pagetable.TrapSigsegv; t.Sigsegv != wants {
		unix.Close(fd)
		return n.refuse(p, attach.RefuseTrap, fmt.Sprintf("this node traps by %s, as it said, and the program by another way", n.choice.Trap))
	}
	if why := n.closed(); why != nil {
		unix.Close(fd)
		return n.refuse(p, attach.RefuseOther, why.Error())
	}
	if other := n.otherSize(p); other != nil {
		unix.Close(fd)
		return n.refuse(p, attach.RefuseRank, fmt.Sprintf("job %q has %d programs for process %d, which is attached, and %d for this one", p.job, other.size, other.pid, p.size))
	}
	if other := n.holderOf(p.job, p.rank); other != nil {
		unix.Close(fd)
		return n.refuse(p, attach.RefuseRank, fmt.Sprintf("rank %d is attached already, as process %d; a program that has nothing to do with it needs a job of its own (DSM_JOB)", p.rank, other.pid))
	}
	if p.page, err = controlpage.Create(); err != nil {
		unix.Close(fd)
		return n.refuse(p, attach.RefuseOther, err.Error())
	}
	if err := n.table.Attach(pagetable.ProcID(p.id), fd, uintptr(n.cfg.RegionBase)); err != nil {
		return n.refuse(p, attach.RefuseTrap, err.Error())
	}
	n.boxed = append(n.boxed, p)
	p.page.Calls().Watch()
	p.ranked = true
	for rank := range n.survival.dead {
		p.loseAlone(rank)
	}
	p.stage, p.served = stageTrapped, true
	n.trapped++
	n.waiters.attached(pagetable.ProcID(p.id))
	n.count.programs.Store(int64(n.attached()))
	n.count.programsSeen.Add(1)
	n.announce(p, rankAttached)
	n.write(p, attach.AppendReady(nil), p.page.FD())
	n.log.Info("program attached", zap.String("job", p.job), zap.Uint32("rank", p.rank), zap.Int("pid", p.pid), zap.String("program", p.name))
	return nil
}

// untrap ends the serving of a program's faults. What the program has said and was not read yet still counts: the page table may notice the
// end of a program before its last words are read.
func (n *Node) untrap(id protocol.ClientID) {
	p := n.programs[id]
	if p == nil || !p.served {
		return
	}
	p.served = false
	n.trapped--
	n.table.Detach(pagetable.ProcID(id))
	n.waiters.detached(pagetable.ProcID(id))
}

// removeProgram ends a connection, for whatever reason; err is nil if the program left in order.
func (n *Node) removeProgram(p *program, err error) {
	if n.programs[p.id] != p {
		return
	}
	attached := p.ranked
	n.untrap(p.id)
	n.boxed = slices.DeleteFunc(n.boxed, func(q *program) bool { return q == p })
	delete(n.programs, p.id)
	n.count.programs.Store(int64(n.attached()))
	// From here on nothing is written to it: what the end of its pins brings about may end a call, and the number of its
	// socket may soon be somebody else's.
	for _, ticket := range p.waiting {
		delete(n.calls, ticket)
	}
	n.withdrawWords(p)
	n.dropPins(p)
	n.fetching.dropProgram(p)
	n.dropHeld(p.id)
	// Removing comes before closing: the child of a fork may still hold the socket.
	_ = n.poller.Remove(p.fd)
	p.close()
	switch {
	case !attached:
		n.log.Debug("connection ended", zap.Int("pid", p.pid), zap.Error(err))
		return
	case err == nil:
		n.log.Info("program left", zap.Uint32("rank", p.rank), zap.Int("pid", p.pid))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		n.log.Warn("program died; its pages stay, its locks pass on", zap.Uint32("rank", p.rank), zap.Int("pid", p.pid))
	default:
		n.log.Warn("program cut off", zap.Uint32("rank", p.rank), zap.Int("pid", p.pid), zap.Error(err))
	}
	n.announce(p, rankLeft)
	n.idleWithoutQuorum()
	n.step(protocol.Event{Kind: protocol.EventClientGone, Client: p.id, Rank: p.rank})
}

func (p *program) close() {
	if p.page != nil {
		p.page.Close()
		p.page = nil
	}
	unix.Close(p.fd)
	p.stream.Close()
}

// lost tells a program that the cluster is broken.
func (n *Node) lost(p *program) {
	n.write(p, attach.AppendLost(nil, n.broken.Error()), -1)
}

// write sends a frame to a program, now or when its socket has room. fd (-1: none) goes with it.
func (n *Node) write(p *program, frame []byte, fd int) {
	if len(p.out)+len(frame) > maxOut {
		n.cutOff(p, fmt.Errorf("it leaves more than %d bytes of answers unread", maxOut))
		return
	}
	if p.page != nil {
		p.page.AddSent()
	}
	if fd >= 0 {
		p.pass = fd
	}
	p.out = append(p.out, frame...)
	n.writeOut(p)
}

func (n *Node) writeOut(p *program) {
	for len(p.out) > 0 {
		sent, err := attach.Send(p.fd, p.out, p.pass)
		if errors.Is(err, unix.EAGAIN) {
			n.watch(p, true)
			return
		}
		if err != nil {
			p.out = p.out[:0] // the receive will tell why
			return
		}
		p.pass = -1
		p.out = append(p.out[:0], p.out[sent:]...)
	}
	n.watch(p, false)
}

// watch asks to be told when the program's socket has room.
func (n *Node) watch(p *program, writable bool) {
	if p.blocked == writable {
		return
	}
	p.blocked = writable
	if err := n.poller.Watch(p.fd, int32(p.id), writable); err != nil {
		n.cutOff(p, err)
	}
}

// cutOff ends the conversation with a program from within. The next receive finds the socket shut, and removes the program.
func (n *Node) cutOff(p *program, why error) {
	if p.cut == nil {
		p.cut = why
		_ = unix.Shutdown(p.fd, unix.SHUT_RDWR)
	}
}
