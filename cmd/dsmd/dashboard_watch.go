package main

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/certs"
	"dsmd/internal/dashboard"
	"dsmd/internal/faultlog"
	"dsmd/internal/runstats"
)

const (
	// logEvery is how often daemons are asked what is new in their logs, and memoryEvery how often
	// which allocations there are. That takes a daemon with much memory some time, so it has a
	// connection of its own.
	logEvery    = 100 * time.Millisecond
	memoryEvery = 2 * time.Second
	// maxInRow bounds how often a daemon that has more to say is asked without a pause.
	maxInRow = 32
	// firstRetry is how long after a failed answer a daemon is asked again, and lastRetry how long
	// at most after many.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// answerTime is how long a daemon has for its answers. Tests change it.
var answerTime = 10 * time.Second

// watch has a model follow the daemons of a cluster until ctx ends. The model ends when they have.
func watch(ctx context.Context, j *job) *dashboard.Model {
	shown := dashboard.Job{Title: j.cluster, Began: time.Now()}
	if program := j.program(); program != "" {
		shown.Title = program + " (" + j.cluster + ")"
	}
	for _, d := range j.daemons {
		shown.Nodes, shown.Ranks = max(shown.Nodes, int(d.Nodes)), max(shown.Ranks, int(d.Ranks))
	}
	for _, p := range j.programs {
		shown.Ranks = max(shown.Ranks, int(p.Size)) // a job may have more than the daemons say
	}
	m := dashboard.New(shown)
	var reading sync.WaitGroup
	for i := range j.daemons {
		d := &j.daemons[i]
		is := func(p dashboard.Presence) { m.Is(int(d.Node), p) }
		w := watcher{socket: d.Socket, model: m, node: int(d.Node), is: is, within: answerTime}
		log := &logReader{watcher: w, ranks: map[uint32]uint32{}}
		asked := make(chan struct{}) // closed when the first answer, or none, has come
		known := sync.OnceFunc(func() { close(asked) })
		w.is = func(dashboard.Presence) { known() }
		memory := &memoryReader{w, uint64(d.PageBytes)}
		// They end with the daemon, or with ctx.
		go func() {
			defer known()
			memory.every(ctx, memoryEvery, memory.read)
		}()
		reading.Go(func() {
			<-asked
			log.every(ctx, logEvery, log.read)
		})
	}
	go func() {
		reading.Wait()
		m.End(time.Now())
	}()
	return m
}

// watcher asks one daemon, over a connection of its own. It belongs to one goroutine.
type watcher struct {
	socket string
	model  *dashboard.Model
	node   int
	is     func(dashboard.Presence) // is told what is known of the node
	within time.Duration            // answerTime
	conn   *attach.Conn
	// reactors is how many the daemon has.
	reactors int
	ticket   uint64
}

// every asks again and again, with pauses, until the daemon or ctx has ended. A connection that
// fails is made again: who is not reached is not gone yet. The machine says who is: nothing listens
// at the socket of a daemon that has ended.
func (w *watcher) every(ctx context.Context, pause time.Duration, ask func() error) {
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		err := w.converse(ctx, pause, func() error {
			err := ask()
			if err == nil {
				retry = firstRetry
				w.is(dashboard.Here)
			}
			return err
		})
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT), errors.Is(err, errForeign):
			w.is(dashboard.Gone)
			return
		}
		w.is(dashboard.Unreachable)
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return
		}
	}
}

// converse asks again and again, with pauses, over one connection, until ctx has ended, ask fails,
// or the daemon does not answer.
func (w *watcher) converse(ctx context.Context, pause time.Duration, ask func() error) error {
	c, welcome, err := meetInTime(ctx, w.socket, "dsmd dashboard")
	if err != nil {
		return err
	}
	w.conn, w.reactors = c, int(welcome.Reactors)
	defer c.Close()
	defer c.Discard()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	ticks := time.NewTicker(pause)
	defer ticks.Stop()
	for {
		late := time.AfterFunc(w.within, func() { c.Close() })
		err := ask()
		if late.Stop(); err != nil {
			return err
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// answerOf makes a call to the daemon, the only one that is open.
func answerOf[T any](w *watcher, c attach.Call, decode func([]byte) (T, error)) (T, error) {
	w.ticket++
	c.Ticket = w.ticket
	return call(w.conn, c, decode)
}

// memoryReader takes note of allocations.
type memoryReader struct {
	watcher
	pageBytes uint64
}

func (r *memoryReader) read() error {
	usage, err := answerOf(&r.watcher, attach.Call{Op: attach.OpUsage}, attach.DecodeUsage)
	if err != nil {
		return err
	}
	p := runstats.Piece{Node: r.node}
	for _, a := range usage.Largest {
		p.Memory = append(p.Memory, runstats.Allocation{Name: certs.Printable(a.Name), First: a.First, Pages: a.Pages, PageBytes: r.pageBytes})
	}
	r.model.Add(p, time.Now())
	return nil
}

// logReader reads the log of faults.
type logReader struct {
	watcher
	// next is the place in the log of each reactor to go on from; 0: none was read.
	next  [attach.MaxReactors]uint64
	ranks map[uint32]uint32 // by process
}

// read takes what is new in the logs of all reactors.
func (r *logReader) read() error {
	for reactor := range r.reactors {
		if err := r.readOne(reactor); err != nil {
			return err
		}
	}
	return nil
}

// readOne takes what is new in the log of one reactor.
func (r *logReader) readOne(reactor int) error {
	next := &r.next[reactor]
	for range maxInRow {
		b, err := answerOf(&r.watcher, attach.Call{Op: attach.OpFaultLog, Object: *next, Count: attach.FaultLogOf(reactor, 0)}, faultlog.Decode)
		if err != nil {
			return err
		}
		if *next == 0 {
			b.Lost = 0 // before we came
		}
		if err := r.pass(&b); err != nil {
			return err
		}
		*next = b.Next
		if len(b.Faults)+len(b.Departures) == 0 {
			break
		}
	}
	return nil
}

// pass gives the model the faults of each program.
func (r *logReader) pass(b *faultlog.Batch) error {
	by := map[uint32][]faultlog.Fault{} // by rank
	for _, f := range b.Faults {
		rank, known := r.ranks[f.PID]
		if !known {
			if err := r.learn(f.PID); err != nil {
				return err
			}
			rank = r.ranks[f.PID]
		}
		by[rank] = append(by[rank], f)
	}
	now := time.Now()
	for rank, faults := range by {
		r.model.AddLog(runstats.Piece{Rank: int(rank), Node: r.node}, faultlog.Batch{Faults: faults}, now)
	}
	r.model.AddLog(runstats.Piece{Node: r.node}, faultlog.Batch{First: b.First, Lost: b.Lost}, now)
	return nil
}

// learn asks which program a process is. One that has ended meanwhile counts as the rank that has
// the node's number.
func (r *logReader) learn(pid uint32) error {
	programs, err := answerOf(&r.watcher, attach.Call{Op: attach.OpPrograms}, attach.DecodePrograms)
	if err != nil {
		return err
	}
	clear(r.ranks) // of processes that are no more
	r.ranks[pid] = uint32(r.node)
	for _, p := range programs.Attached {
		r.ranks[p.PID] = p.Rank
	}
	return nil
}
