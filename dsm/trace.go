package dsm

import (
	"cmp"
	"context"
	"os"
	"reflect"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/faultlog"
	"dsmd/internal/perf"
	"dsmd/internal/runstats"
	"dsmd/internal/sigsegv"
)

// tracer follows what threads of this process wait for, one by one: it reads the daemon's log of
// faults, takes samples of where in the program they are, and notes the waits in calls. It makes of
// them the pieces that `dsmd run` wants, and the profile. A nil tracer does nothing.
type tracer struct {
	c       *Cluster
	pieces  *os.File  // where pieces go; nil: nowhere
	profile *profiler // nil: no profile is wanted
	depth   int       // of the stacks of calls
	stop    chan struct{}
	giveUp  context.CancelFunc // what is being read before stop
	stopped sync.WaitGroup

	// Of the goroutine that reads, and then of close:

	places  []uint64 // in the logs of the daemon's reactors
	turn    int      // whose log is read next
	detail  faultlog.Detail
	windows *windows
	samples samples
	lines   lines

	mu    sync.Mutex
	fresh []*allocation // that no piece has; guarded by mu
	calls []endedWait   // that no piece has; guarded by mu
	lost  uint64        // for which there was no room; guarded by mu
	lacks string        // what the profile lacks; guarded by mu
}

// endedWait is a wait in a call.
type endedWait struct {
	*wait
	waited time.Duration
}

const (
	// traceEvery is how often the log is read where faults cannot be sampled; else it is read with
	// the samples, at the ends of windows, and every 2 * traceEvery in the pauses between them. The
	// kernel has room for more than a thousand samples of each processor, and the daemon for some
	// tens of thousands of faults.
	traceEvery = 50 * time.Millisecond
	// traceDepth is how many frames of a stack are looked at for a line outside this package.
	traceDepth = 16
	// maxUntold bounds the allocations and the calls that wait for a piece, each.
	maxUntold = 1 << 12
)

// openTracer begins to follow, if `dsmd run` wants a profile or pieces.
func openTracer(ctx context.Context, c *Cluster, pieces *os.File, counts bool) (*tracer, error) {
	t := &tracer{c: c, depth: traceDepth, stop: make(chan struct{}), lines: lines{}}
	for range c.welcome.Reactors {
		t.places = append(t.places, faultlog.End)
	}
	if os.Getenv(runstats.EnvTrace) != "" {
		t.pieces, t.detail = pieces, faultlog.OfDepartures
		if os.Getenv(runstats.EnvWords) != "" {
			t.detail = faultlog.OfWords
		}
	}
	if counts && os.Getenv(runstats.EnvProfile) != "" {
		t.profile, t.depth = newProfiler(c), maxDepth
	}
	if t.pieces == nil && t.profile == nil {
		return nil, nil
	}
	for range t.places { // from here on the daemon keeps them
		if _, _, err := t.readLog(ctx); err != nil {
			return nil, err
		}
	}
	t.windows = newWindows(
		func(period uint64) (sampler, error) { return perf.Open(period) },
		func(period uint64) (sampler, error) { return perf.Watch(period, sigsegv.Mark) },
	)
	reading, giveUp := context.WithCancel(context.Background())
	t.giveUp = giveUp
	t.stopped.Go(func() { t.run(reading) })
	return t, nil
}

// run reads until close, or until the cluster is lost, when there is still what this process has
// noted.
func (t *tracer) run(ctx context.Context) {
	next := time.NewTimer(t.windows.turn())
	defer next.Stop()
	for {
		select {
		case <-t.stop:
			return
		case <-t.c.done:
			t.read(ctx)
			t.windows.close()
			return
		case <-next.C:
			t.read(ctx)
			next.Reset(t.windows.turn())
		}
	}
}

// finish waits until run has passed on what there was when the cluster was lost. It does not wait
// for long: who reads may be stopped.
func (t *tracer) finish(within time.Duration) {
	if t == nil {
		return
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		t.stopped.Wait()
	}()
	select {
	case <-finished:
	case <-time.After(within):
	}
}

// close reads what there is still, as long as ctx allows. What is said of the profile goes to the
// record.
func (t *tracer) close(ctx context.Context, r *runstats.Record) {
	if t == nil {
		return
	}
	close(t.stop)
	late := context.AfterFunc(ctx, t.giveUp)
	t.stopped.Wait()
	late()
	t.giveUp()
	t.read(ctx)
	t.windows.close()
	t.noteLacks()
	t.addProfile(r)
}

// addProfile adds the profile to a record, if one is wanted, with what it lacks.
func (t *tracer) addProfile(r *runstats.Record) {
	if t == nil || t.profile == nil {
		return
	}
	t.profile.addTo(r)
	t.mu.Lock()
	defer t.mu.Unlock()
	r.Note = cmp.Or(r.Note, t.lacks)
}

// noteLacks notes what the profile lacks by now.
func (t *tracer) noteLacks() {
	lacks := ""
	switch {
	case t.windows.givenUp():
		lacks = "waits for pages have no stacks in the profile: " + t.windows.err.Error()
	case t.windows.err != nil:
		lacks = "waits for pages have the line that waited in the profile, and not who has called it: " + t.windows.err.Error()
	case t.windows.lost || t.samples.lost:
		lacks = "some samples were lost, as there were more of them than the profile could take"
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lacks = lacks
}

// read takes what there is, and passes it on, in as many pieces as that needs. The log comes first:
// the sample of a fault that has ended is there. A daemon that does not answer is asked again at
// the next call only.
func (t *tracer) read(ctx context.Context) {
	defer t.noteLacks()
	for more, silent := true, false; more; {
		var p runstats.Piece
		more = false
		if !silent {
			p.Log, more, silent = t.readSome(ctx)
		}
		t.drain()
		x, err := faultlog.Decode(p.Log)
		if err != nil {
			p.Log = nil
		}
		p.Sites = t.match(&x)
		p.Locks = t.locks(&x)
		more = t.addUntold(&p) || more
		if t.pieces != nil && (len(x.Faults)+len(x.Departures)+len(p.Memory)+len(p.Calls)+len(p.Sites) > 0 || x.Lost+p.Lost > 0) {
			p.Rank, p.Node, p.PID = t.c.Rank(), t.c.Node(), os.Getpid()
			// A launcher that does not read makes this goroutine wait, and nobody else; then the
			// daemon's log says how much it has overwritten. One that is gone needs nothing.
			_, _ = t.pieces.Write(p.Encode())
		}
	}
}

// readSome reads from the log, and tells whether it seems to have more, and whether the daemon did
// not answer.
func (t *tracer) readSome(ctx context.Context) (log []byte, more, silent bool) {
	ctx, cancel := context.WithTimeout(ctx, accountPatience)
	defer cancel()
	log, more, err := t.readLog(ctx)
	return log, more, err != nil
}

// readLog reads from the log, and goes on behind that the next time.
func (t *tracer) readLog(ctx context.Context) (log []byte, more bool, err error) {
	reactor := t.turn
	t.turn = (t.turn + 1) % len(t.places)
	r, err := t.c.query(ctx, attach.Call{Op: attach.OpFaultLog, Object: t.places[reactor], Count: attach.FaultLogOf(reactor, uint8(t.detail))})
	if err != nil {
		return nil, false, failure("reading the log of faults", err)
	}
	x, err := faultlog.Decode(r.Payload)
	if err != nil {
		return nil, false, failure("reading the log of faults", err)
	}
	t.places[reactor] = x.Next
	return r.Payload, len(r.Payload) > faultlog.MaxBytes/2 || t.turn != 0, nil
}

// match gives the faults to the profile, with their stacks, and returns the lines of those that
// were sampled.
func (t *tracer) match(x *faultlog.Batch) []runstats.Site {
	var sites siteList
	for i := range x.Faults {
		f := &x.Faults[i]
		stack := t.samples.take(f)
		if stack != nil && t.pieces != nil {
			sites.add(f, t.lines.of(stack))
		}
		if t.profile != nil {
			t.profile.faulted(f, stack)
		}
	}
	t.samples.expire()
	return sites.list
}

// locks are the names of locks that faults were under.
func (t *tracer) locks(x *faultlog.Batch) (names map[uint64]string) {
	if t.pieces == nil {
		return nil
	}
	for i := range x.Faults {
		hash := x.Faults[i].Lock
		if hash == 0 || names[hash] != "" {
			continue
		}
		if name := t.c.called.of(hash); name != "" {
			if names == nil {
				names = map[uint64]string{}
			}
			names[hash] = name
		}
	}
	return names
}

// drain takes the samples of accesses to shared memory.
func (t *tracer) drain() {
	t.windows.drain(func(f *perf.Fault) {
		offset := uint64(uintptr(f.Address) - uintptr(t.c.region.base))
		switch {
		case f.Address == 0:
			t.samples.add(somewhere, f)
		case offset < t.c.welcome.RegionBytes:
			t.samples.add(offset/uint64(t.c.welcome.PageBytes), f)
		}
	})
}

// addUntold adds to a piece what waits for one, as much as it has room for, and reports whether
// there is more.
func (t *tracer) addUntold(p *runstats.Piece) (more bool) {
	if t.pieces == nil {
		return false
	}
	t.mu.Lock()
	fresh := t.fresh[:min(len(t.fresh), runstats.MaxPieceMemory)]
	calls := t.calls[:min(len(t.calls), runstats.MaxPieceItems)]
	t.fresh, t.calls = t.fresh[len(fresh):], t.calls[len(calls):]
	p.Lost, t.lost = t.lost, 0
	more = len(t.fresh)+len(t.calls) > 0
	t.mu.Unlock()
	for _, m := range fresh {
		p.Memory = append(p.Memory, m.described(uint64(t.c.welcome.PageBytes)))
	}
	for _, w := range calls {
		p.Calls = append(p.Calls, runstats.Call{
			Kind: w.kind, Name: w.name, Began: w.began.UnixNano(), Waited: w.waited, Thread: w.thread, At: t.lines.of(w.stack).at,
		})
	}
	return more
}

// allocated notes memory that is new.
func (t *tracer) allocated(m *allocation) {
	if t == nil || t.pieces == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.fresh) == maxUntold {
		t.lost++
		return
	}
	t.fresh = append(t.fresh, m)
}

// begins notes where a wait begins, in a caller of this package's.
func (t *tracer) begins(w *wait) {
	if t != nil {
		w.thread, w.stack = unix.Gettid(), callers(3, t.depth)
	}
}

// ended notes a wait in a call.
func (t *tracer) ended(w *wait, d time.Duration) {
	if t == nil {
		return
	}
	if t.profile != nil {
		t.profile.waited(w.item, d, w.stack)
	}
	if t.pieces == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.calls) == maxUntold {
		t.lost++
		return
	}
	t.calls = append(t.calls, endedWait{w, d})
}

// described is the allocation as a piece has it.
func (m *allocation) described(pageBytes uint64) runstats.Allocation {
	a := runstats.Allocation{
		Name: m.name, First: uint64(m.offset) / pageBytes, Pages: uint64(m.bytes) / pageBytes, PageBytes: pageBytes,
		ElemBytes: uint64(m.what.size), Type: m.what.name,
	}
	appendFields(&a.Fields, m.what.of, "", 0)
	return a
}

// appendFields adds the fields of a struct, as many as a piece tells of, those of structs in it
// among them.
func appendFields(to *[]runstats.Field, t reflect.Type, within string, at uintptr) {
	if t == nil || t.Kind() != reflect.Struct {
		return
	}
	for i := range t.NumField() {
		f := t.Field(i)
		switch {
		case len(*to) == runstats.MaxFields:
			return
		case f.Type.Kind() == reflect.Struct && f.Type.NumField() > 0:
			appendFields(to, f.Type, within+f.Name+".", at+f.Offset)
		case f.Type.Size() > 0:
			*to = append(*to, runstats.Field{Name: within + f.Name, Offset: uint64(at + f.Offset), Bytes: uint64(f.Type.Size())})
		}
	}
}

// siteList collects lines, each once.
type siteList struct {
	list []runstats.Site
	at   map[runstats.Site]int
}

func (s *siteList) add(f *faultlog.Fault, at line) {
	x := runstats.Site{Page: f.Page, Offset: f.Offset, Write: f.Access != faultlog.Read, Func: at.function, At: at.at}
	i, known := s.at[x]
	if !known {
		if s.at == nil {
			s.at = map[runstats.Site]int{}
		}
		i = len(s.list)
		s.at[x] = i
		s.list = append(s.list, x)
	}
	s.list[i].Count++
}
