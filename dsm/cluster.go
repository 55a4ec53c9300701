package dsm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/controlpage"
)

// Cluster is this program's membership in a cluster. All its methods, and all functions that take
// one, may be called concurrently. After Close they return ErrClosed.
//
// Locks inside: allocating > mu. calls.mu is taken alone. None is held while something is sent or
// awaited, except the turns allocating and, outside it, mapping, which are waited for with a
// context.
type Cluster struct {
	welcome attach.Welcome
	socket  string
	job     string
	grace   time.Duration
	lost    func(error) // WithOnLoss, or nil
	*calls
	region *region
	trap   trap // kept open until Close: see the package comment, "When something breaks"
	page   *controlpage.Page

	replicated atomic.Int32  // allocations that are Replicated
	allocating turn          // to map or unmap memory
	mapping    turn          // to Map
	watch      *attach.Watch // nil before the first allocation; guarded by allocating
	tornDown   bool          // guarded by allocating
	closing    chan struct{} // closed when Close begins to give everything back

	holdings  holdings
	occupied  occupied
	called    called
	saves     saves
	account   atomic.Pointer[account] // nil: nobody wants one
	attendant *attendant

	mu     sync.Mutex
	memory []*allocation // guarded by mu
	// shared memory was allocated, so losing the cluster ends the process; guarded by mu
	mustExit bool
}

// Option is an option of Join.
type Option func(*joining) error

// joining is what Join knows before it has met the daemon.
type joining struct {
	socket string
	rank   int32
	job    string
	size   int // 0: not known
	grace  time.Duration
	lost   func(error)
	procs  *int // GOMAXPROCS from WithProcs; nil: what Join finds right
}

// WithSocket names the daemon's socket: a path, or @NAME for an abstract one. It goes before
// DSM_SOCKET.
func WithSocket(socket string) Option {
	return func(j *joining) error { j.socket = socket; return nil }
}

// WithRank asks for a rank, from 0 to Size-1. It goes before DSM_RANK. Without either the daemon
// chooses.
func WithRank(rank int) Option {
	return func(j *joining) error {
		if rank < 0 || int64(rank) > 1<<31-1 {
			return fmt.Errorf("WithRank(%d): a rank is from 0 to the number of ranks less one", rank)
		}
		j.rank = int32(rank)
		return nil
	}
}

// WithLossGrace sets how long a program that has shared memory goes on after it has lost its
// cluster, before it ends with ExitLost. In that time calls return errors that wrap ErrLost, and
// touching shared memory waits for the end. The default is 0.
func WithLossGrace(d time.Duration) Option {
	return func(j *joining) error {
		if d < 0 {
			return fmt.Errorf("WithLossGrace(%v): the time is negative", d)
		}
		j.grace = min(d, math.MaxInt64-watchMargin)
		return nil
	}
}

// WithOnLoss has f called when the cluster is lost, once, with an error that wraps ErrLost and says
// why. It is not called after Close. f runs in a goroutine of its own, at the beginning of the time
// that WithLossGrace gives; a program that has shared memory ends when f has returned and that time
// is over, and a second after that time at the latest. So whoever needs longer for f asks for a
// longer time. f must not touch shared memory. It may call Close, and then the program goes on
// without the cluster.
func WithOnLoss(f func(error)) Option {
	return func(j *joining) error { j.lost = f; return nil }
}

// The variables that `dsmd run` sets for the programs that it starts.
const (
	envSocket = "DSM_SOCKET"
	envRank   = "DSM_RANK"
	envSize   = "DSM_SIZE"
)

// envJob names the job, for programs that share a cluster with others.
const envJob = "DSM_JOB"

// fromEnvironment reads what `dsmd run` has left.
func fromEnvironment() (joining, error) {
	j := joining{socket: os.Getenv(envSocket), job: os.Getenv(envJob), rank: attach.NoRank}
	if s := os.Getenv(envRank); s != "" {
		n, err := strconv.ParseUint(s, 10, 31)
		if err != nil {
			return j, fmt.Errorf("the environment has %s=%q, which is no rank (0, 1, ...); unset it, or start the program with `dsmd run`", envRank, s)
		}
		j.rank = int32(n)
	}
	if s := os.Getenv(envSize); s != "" {
		n, err := strconv.ParseUint(s, 10, 31)
		if err != nil || n == 0 {
			return j, fmt.Errorf("the environment has %s=%q, which is no number of ranks (1, 2, ...); unset it, or start the program with `dsmd run`", envSize, s)
		}
		j.size = int(n)
	}
	return j, nil
}

// Join makes this program part of a cluster: it connects to the daemon of this node, reserves the
// region of addresses, and hands over the trapping of page faults. The daemon is found at
// DSM_SOCKET, which `dsmd run` sets along with DSM_RANK and DSM_SIZE, or where WithSocket says. It
// may join at any time, and with DSM_JOB or WithJob it joins beside programs that know nothing of
// it.
//
// It raises GOMAXPROCS, so that more goroutines than there are processors can wait for pages; see
// WithProcs.
//
// It does not wait for the other ranks; Cluster.Barrier does. It does wait until all daemons are
// there, and says so when that takes more than ten seconds. ctx bounds Join alone, not the life of
// the Cluster.
//
// Errors: ErrNoDaemon, ErrRefused, ErrVersion, ErrAddressTaken, ErrNoSpace (no room for the
// region's addresses), ErrNoTrap, and ctx's.
func Join(ctx context.Context, opts ...Option) (*Cluster, error) {
	j, err := fromEnvironment()
	for i := 0; err == nil && i < len(opts); i++ {
		err = opts[i](&j)
	}
	if err == nil {
		err = checkJob(j.job)
	}
	if err != nil {
		return nil, failure("Join", err)
	}
	overdue := time.AfterFunc(joinPatience, j.sayOverdue)
	c, err := j.join(ctx)
	overdue.Stop()
	if err != nil {
		return nil, failure("Join", err)
	}
	if err := errors.Join(c.saves.fromEnvironment(ctx, c), openAccount(ctx, c)); err != nil {
		return nil, errors.Join(failure("Join", err), c.Close())
	}
	return c, nil
}

func (j *joining) join(ctx context.Context) (*Cluster, error) {
	conn, err := j.connect(ctx)
	if err != nil {
		return nil, err
	}
	// Reading has no context: closing the connection ends it.
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	c, err := j.shakeHands(conn)
	if !stop() && err == nil {
		// ctx ended just when all was done; the connection is closed or soon will be.
		c.trap.retire()
		c.attendant.line.Close()
		err = errors.Join(ctx.Err(), c.region.retire(), c.trap.close())
	}
	if err != nil {
		conn.Close()
		conn.Discard()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("waiting for the daemon at %s: %w", j.socket, ctx.Err())
		}
		return nil, err
	}
	if err := conn.Unpoll(); err != nil {
		c.trap.retire()
		c.attendant.line.Close()
		err = errors.Join(err, c.page.Retire(), c.region.retire(), c.trap.close())
		conn.Close()
		conn.Discard()
		return nil, err
	}
	c.calls = newCalls(conn, c.page, c.onLost)
	c.calls.explain = c.attendant.explain
	c.attendant.start()
	joined.Lock()
	joined.all = append(joined.all, c)
	joined.Unlock()
	setProcs(j.procs)
	return c, nil
}

func (j *joining) connect(ctx context.Context) (*attach.Conn, error) {
	if j.socket == "" {
		return nil, fmt.Errorf("%w: %s is not set; start the program with `dsmd run -n N -- PROGRAM`, or name the socket of a daemon (`dsmd serve`) with dsm.WithSocket", ErrNoDaemon, envSocket)
	}
	conn, err := attach.Dial(ctx, j.socket)
	if err == nil {
		if err := conn.CheckDaemon(); err != nil {
			conn.Close()
			return nil, fmt.Errorf("%w can be trusted at %s: %w", ErrNoDaemon, j.socket, err)
		}
		return conn, nil
	}
	if ctx.Err() != nil {
		return nil, err
	}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("%w listens at %s; start one with `dsmd serve`, or start the program with `dsmd run -n N -- PROGRAM` (%w)", ErrNoDaemon, j.socket, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("%w can be reached at %s: the socket belongs to the user who started the daemon; run the program as that user (%w)", ErrNoDaemon, j.socket, err)
	}
	return nil, fmt.Errorf("%w can be reached at %s: %w", ErrNoDaemon, j.socket, err)
}

// onLost is called when the cluster is lost.
func (c *Cluster) onLost(reason error) {
	c.mu.Lock()
	exit := c.mustExit
	c.mu.Unlock()
	over := time.After(c.grace)
	if c.lost != nil {
		c.lost(fmt.Errorf("dsm: %w", reason))
	}
	if !exit {
		return
	}
	select {
	case <-c.closing: // nothing of the memory is left that a thread could wait for
		return
	default:
	}
	select {
	case <-over:
	case <-c.closing:
		return
	}
	c.account.Load().finish(watchMargin / 2)
	fmt.Fprint(os.Stderr, lostMessage(c.Rank(), reason))
	os.Exit(ExitLost)
}

func lostMessage(rank int, reason error) string {
	return fmt.Sprintf("dsm: rank %d: %v; without it the shared memory can't be used, so this program ends with status %d\n", rank, reason, ExitLost)
}

// Rank is the number of this program in its job, from 0 to Size-1.
func (c *Cluster) Rank() int { return int(c.welcome.Rank) }

// Size is the number of programs of the job.
func (c *Cluster) Size() int { return int(c.welcome.Size) }

// Node is the number of this program's node, from 0 to Nodes-1. Several programs may share a node.
func (c *Cluster) Node() int { return int(c.welcome.Node) }

// Nodes is the number of nodes, that is of daemons.
func (c *Cluster) Nodes() int { return int(c.welcome.Nodes) }

// PageBytes is the unit in which memory moves, in bytes: what different ranks write should not
// share a page.
func (c *Cluster) PageBytes() int { return int(c.welcome.PageBytes) }

// Trap is how accesses to pages that are not here are caught, for people: "uffd" or "sigsegv".
func (c *Cluster) Trap() string { return c.welcome.Trap }

// Transport is how nodes talk to each other, for people: "tcp", for example.
func (c *Cluster) Transport() string { return c.welcome.Transport }

// Close leaves the cluster. Do not touch the shared memory any more: a load or store there raises
// SIGSEGV, also that of a goroutine that waits for a page at this moment. In Guard it is an error
// that wraps ErrClosed. Calls that wait return ErrClosed. Locks that are still held pass on as if
// this program had died. It does not wait until all nodes know: an Alloc elsewhere may find no room
// for a moment, where this program had memory. A second Close returns ErrClosed.
func (c *Cluster) Close() error {
	told := c.account.Load().close(c)
	ended := c.end(ErrClosed)
	err := errors.Join(told, c.conn.Interrupt())
	if ended != ErrClosed {
		err = errors.Join(failure("Close", ended), err)
	}
	return errors.Join(err, c.tearDown())
}

// byePatience bounds how long Close waits until a daemon takes what is sent to it.
const byePatience = time.Second

// tearDown gives everything back, once.
func (c *Cluster) tearDown() error {
	// What is being mapped is finished first. Who maps or unmaps may just send to a daemon that is
	// stopped, and does so no longer than the Bye below.
	stuck := time.AfterFunc(byePatience, c.conn.ShutdownStuck)
	c.allocating <- struct{}{}
	stuck.Stop()
	defer c.allocating.give()
	if c.tornDown {
		return failure("Close", ErrClosed)
	}
	c.tornDown = true
	joined.Lock()
	joined.all = slices.DeleteFunc(joined.all, func(x *Cluster) bool { return x == c })
	joined.Unlock()
	close(c.closing)
	saved := c.saves.end()
	if c.watch != nil {
		c.watch.Stop()
	}
	// While a trap is retired and not closed, nobody does what the daemon tells it to, and who
	// wants a page of this rank waits. So nothing that may take long comes between.
	c.trap.retire()
	err := errors.Join(c.page.Retire(), c.region.retire(), c.trap.close())
	// If the daemon is gone, nobody minds that this fails. If it is stopped, nobody waits for it.
	stopped := time.AfterFunc(byePatience, c.conn.Shutdown)
	c.conn.Write(attach.AppendBye(nil))
	stopped.Stop()
	c.conn.Close()
	<-c.reader
	c.attendant.close()
	if err = errors.Join(err, saved); err != nil {
		return failure("Close", err)
	}
	return nil
}
