package dsm

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/runstats"
)

// allocation is shared memory that this process has mapped.
type allocation struct {
	name     string
	scoped   string  // what the cluster calls it
	offset   uintptr // in the region, in whole pages
	bytes    uintptr // mapped, whole pages
	what     layout
	count    int           // elements
	copies   uint8         // Replicated
	stays    bool          // StaysLost
	unsaved  bool          // Unsaved
	file     *mapping      // nil: it begins with zeros
	readOnly bool          // stores fault
	uses     int           // Allocs less Frees; guarded by Cluster.allocating
	pins     int           // Pins of parts of it that are not over; guarded by Cluster.mu
	held     chan struct{} // closed when nothing holds it any more; or nil; guarded by Cluster.mu
}

// AllocOption is an option of Alloc and Isolate.
type AllocOption func(*allocating)

type allocating struct {
	keep    bool
	copies  uint8
	stays   bool     // StaysLost
	unsaved bool     // Unsaved
	file    *mapping // that it begins with; nil: zeros
	// from is the checkpoint that it begins with. Only programs that restore the same one share the
	// memory: to the node of another its pages would begin with zeros.
	from *restored
}

// Keep lets the memory stay, with its contents, when no program uses it any more, until Discard. A
// program that comes later finds it by its name; so does one of another job, if the name begins
// with Everywhere. The memory stays as long as the daemons do. It is enough that one of the
// programs says so. Memory that began with a checkpoint is found only by programs that restore the
// same one; to others it is a mismatch.
func Keep() AllocOption {
	return func(a *allocating) { a.keep = true }
}

// Alloc returns n zeroed values of type T in shared memory, at the same address in every program
// that calls it with this name. The first call anywhere makes the memory; it does not wait for the
// others. All calls must agree on T and n. The slice starts on a page of its own; its capacity is
// n.
//
// A second call in the same process returns the same slice; it needs a second Free. The memory
// lives until every program that has called Alloc has freed it or has ended; with Keep, until
// Discard. So let all ranks meet at a barrier before the first one ends: who comes later would get
// new memory. Each job has its own names, but for those that begin with Everywhere: they are the
// same in all programs of the cluster.
//
// It waits for a message to the node that keeps the names, and back, and for memory that is being
// freed just now if there is no other. When ctx ends first, nothing is allocated.
//
// n may be 0 and T may have no size; the slice then has no memory, but the name is taken until Free
// of it, as any other. The name has 1 to MaxName bytes.
//
// Errors: ErrType (T has pointers, strings or other things that can't be shared: the error names
// the field), ErrMismatch (another rank gave another type, n or Replicated, or this process another
// StaysLost), ErrNoSpace (n is negative, or the memory does not fit into the region, or is more
// than all nodes may have together), ctx's, ErrClosed, ErrLost.
func Alloc[T any](ctx context.Context, c *Cluster, name string, n int, opts ...AllocOption) ([]T, error) {
	var a allocating
	for _, opt := range opts {
		opt(&a)
	}
	l, err := layoutOf[T]()
	var m *allocation
	if err == nil {
		m, err = c.allocate(ctx, &a, name, l, n)
	}
	if err != nil {
		return nil, failure(fmt.Sprintf("Alloc %q", name), err)
	}
	return sliceAt[T](c.region.at(m.offset), n), nil
}

// Isolate returns a zeroed T in shared memory that shares its pages with nothing else, so that no
// other use makes its page travel. It is Alloc of one value; names, options and errors are the
// same.
func Isolate[T any](ctx context.Context, c *Cluster, name string, opts ...AllocOption) (*T, error) {
	s, err := Alloc[T](ctx, c, name, 1, opts...)
	if err != nil {
		return nil, err
	}
	return &s[0], nil
}

// allocate finds or maps the memory called name.
func (c *Cluster) allocate(ctx context.Context, a *allocating, name string, l layout, n int) (*allocation, error) {
	if err := c.checkRequest(name, l, n); err != nil {
		return nil, err
	}
	defer c.attendant.end(c.attendant.begin(&wait{item: item{runstats.Allocating, name}, uncounted: true}))
	if err := c.allocating.take(ctx, c.calls); err != nil {
		return nil, err
	}
	defer c.allocating.give()
	if m := c.memoryCalled(name); m != nil {
		if err := m.differs(a, l, n); err != nil {
			return nil, err
		}
		if a.keep {
			if err := c.aboutName(ctx, attach.OpKeep, name); err != nil {
				return nil, err
			}
		}
		m.uses++
		return m, nil
	}
	from, image, err := c.saves.image(a, name, l, n)
	if err == nil {
		err = a.file.restores(from)
	}
	if err != nil {
		return nil, err
	}
	a.from = from
	m, err := c.bind(ctx, a, name, l, n)
	if err != nil {
		return nil, err
	}
	if a.file != nil && (image == nil || image.Memory.Begins != "") {
		err = m.beginWithFile(ctx, c)
	}
	if err == nil && image != nil {
		err = m.beginWith(ctx, c, from, image, false)
	}
	if err == nil && a.keep {
		err = c.aboutName(ctx, attach.OpKeep, name)
	}
	if err == nil {
		err = m.enter(c)
	}
	if err != nil {
		return nil, m.giveUp(c, err)
	}
	c.saves.begun(from, m)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.memory = append(c.memory, m)
	c.account.Load().allocated(m)
	if m.copies > 0 {
		c.replicated.Add(1)
	}
	return m, nil
}

// differs tells in what this process asks for other memory than it has of that name.
func (m *allocation) differs(a *allocating, l layout, n int) error {
	switch {
	case m.what.hash != l.hash || m.count != n:
		return fmt.Errorf("%w: this process has allocated it as %d elements of %v, and now asks for %d elements of %v",
			ErrMismatch, m.count, m.what, n, l)
	case m.copies != a.copies:
		return fmt.Errorf("%w: this process has allocated it to survive the loss of %d nodes, and now of %d", ErrMismatch, m.copies, a.copies)
	case m.stays != a.stays:
		return fmt.Errorf("%w: this process has allocated it with StaysLost once, and once without", ErrMismatch)
	case m.unsaved != a.unsaved:
		return fmt.Errorf("%w: this process has allocated it with Unsaved once, and once without", ErrMismatch)
	case (m.file == nil) != (a.file == nil) || m.file != nil && m.file.mapOptions != a.file.mapOptions:
		return fmt.Errorf("%w: this process has allocated it, or mapped it with other options", ErrMismatch)
	}
	return nil
}

// checkRequest returns what is wrong with an allocation, before anybody is asked.
func (c *Cluster) checkRequest(name string, l layout, n int) error {
	if err := c.err(); err != nil {
		return err
	}
	if err := checkName(name); err != nil {
		return err
	}
	if n < 0 {
		return fmt.Errorf("%w: the number of elements is %d, which is negative", ErrNoSpace, n)
	}
	hi, total := bits.Mul64(uint64(n), uint64(l.size))
	if hi != 0 {
		return fmt.Errorf("%w: %d elements of %d bytes are more bytes than 64 bits can count", ErrNoSpace, n, l.size)
	}
	if total > c.welcome.RegionBytes {
		return fmt.Errorf("%w: %d elements of %d bytes are %s, and the whole region has %s; %s",
			ErrNoSpace, n, l.size, inUnits(total), inUnits(c.welcome.RegionBytes), largerRegion(total, total/8))
	}
	return nil
}

// largerRegion says how to get a region of a and b bytes together.
func largerRegion(a, b uint64) string {
	bytes, carry := bits.Add64(a, b, 0)
	if carry != 0 || bytes > attach.MaxRegionBytes {
		return "none can have more than " + inUnits(attach.MaxRegionBytes)
	}
	return fmt.Sprintf("start the daemons with a larger one (--region %s)", inUnits(bytes))
}

func checkName(name string) error {
	if len(name) == 0 || len(name) > MaxName {
		return fmt.Errorf("the name has %d bytes; 1 to %d are allowed", len(name), MaxName)
	}
	if strings.HasPrefix(name, jobMark) {
		return fmt.Errorf("the name %q begins with a zero byte, as only those do that the library makes", name)
	}
	return nil
}

func (c *Cluster) memoryCalled(name string) *allocation {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.memory {
		if m.name == name {
			return m
		}
	}
	return nil
}

// bind asks the cluster for the pages of a name. What began with a checkpoint here, and was freed,
// may be there still, as others have it, or it is kept.
func (c *Cluster) bind(ctx context.Context, a *allocating, name string, l layout, n int) (*allocation, error) {
	m, err := c.bindAs(ctx, a, name, l, n)
	if from := c.saves.began(name); from != nil && a.from == nil && errors.Is(err, ErrMismatch) {
		a.from = from
		if again, failed := c.bindAs(ctx, a, name, l, n); failed == nil {
			return again, nil
		}
	}
	return m, err
}

// bindAs is bind with what the memory is to be.
func (c *Cluster) bindAs(ctx context.Context, a *allocating, name string, l layout, n int) (*allocation, error) {
	signature := l.String()
	if a.from != nil {
		signature = fmt.Sprintf("restored (%x) %s", a.from.id[:4], signature)
	}
	scoped := c.scoped(name)
	if a.file != nil && a.file.own {
		scoped = c.own(name)
	}
	call := attach.Call{
		Op: attach.OpBind, Replicas: a.copies, Object: attach.NameHash(attach.NameMemory, scoped), Name: scoped,
		Access: a.access(), Count: uint64(n), ElemBytes: uint64(l.size), TypeHash: l.hash, Signature: signature[:min(len(signature), attach.MaxSignature)],
	}
	r, err := c.do(ctx, call)
	if err != nil {
		return nil, err
	}
	switch r.Status {
	case attach.StatusOK:
	case attach.StatusMismatch:
		return nil, fmt.Errorf("%w: this program asks for %s, and another has allocated %s", ErrMismatch, call.Identity(), r.Payload)
	case attach.StatusNoSpace:
		if len(r.Payload) > 0 { // the daemon says what there is too much of
			return nil, fmt.Errorf("%w: %s", ErrNoSpace, r.Payload)
		}
		bytes := uint64(n) * uint64(l.size)
		return nil, fmt.Errorf("%w: %d elements of %d bytes are %s, and the region of %s has no such gap left until something is freed; %s",
			ErrNoSpace, n, l.size, inUnits(bytes), inUnits(c.welcome.RegionBytes), largerRegion(c.welcome.RegionBytes, bytes))
	default:
		return nil, fmt.Errorf("the daemon answered with %v", r.Status)
	}
	first, count, err := attach.DecodePages(r.Payload)
	if err != nil {
		return nil, err
	}
	page := uint64(c.welcome.PageBytes)
	all := c.welcome.RegionBytes / page
	if want, _ := call.Pages(c.welcome.PageBytes); count != want || first > all || count > all-first {
		return nil, fmt.Errorf("the daemon gave pages %d to %d of a region of %d for %d pages: it is faulty", first, first+count, all, want)
	}
	return &allocation{name: name, scoped: scoped, offset: uintptr(first * page), bytes: uintptr(count * page), what: l, count: n, copies: a.copies, stays: a.stays, unsaved: a.unsaved, uses: 1,
		file: a.file, readOnly: a.file != nil && a.file.mode == forReading}, nil
}

// access is that of OpBind.
func (a *allocating) access() attach.Access {
	if a.file != nil {
		return attach.Read
	}
	return 0
}

// enter maps an allocation and puts it under the daemon's control.
func (m *allocation) enter(c *Cluster) error {
	if err := c.region.mapRun(m.offset, m.bytes); err != nil {
		return err
	}
	addr := uintptr(c.region.at(m.offset))
	err := c.trap.register(addr, m.bytes, m.readOnly)
	if err == nil {
		if err = c.endWithDaemon(); err != nil {
			err = errors.Join(err, c.trap.unregister(addr, m.bytes))
		}
	}
	if err != nil {
		return errors.Join(err, c.region.unmapRun(m.offset, m.bytes))
	}
	return nil
}

// endWithDaemon makes losing the daemon end the process from here on: it has memory, and nobody has
// touched any yet.
func (c *Cluster) endWithDaemon() error {
	if c.watch == nil {
		w, err := attach.WatchDaemon(c.conn, c.grace+watchMargin, ExitLost, lostMessage(c.Rank(), fmt.Errorf(
			"%w: the daemon at %s has closed the connection, and every processor of the program waits for a page", ErrLost, c.socket)))
		if err != nil {
			return err
		}
		c.watch = w
	}
	c.mu.Lock()
	c.mustExit = true
	c.mu.Unlock()
	// Lost before this: the reading goroutine may have seen mustExit unset.
	return c.err()
}

// watchMargin is how much later than the reading goroutine the death watch ends the process: long
// enough for a goroutine to be scheduled on a busy machine, short enough for a person.
const watchMargin = time.Second

// giveUp lets go of a name that was bound and could not be mapped.
func (m *allocation) giveUp(c *Cluster, why error) error {
	if err := m.unbind(context.Background(), c); err != nil {
		return fmt.Errorf("%w (and the name stays bound: %w)", why, err)
	}
	return why
}

func (m *allocation) unbind(ctx context.Context, c *Cluster) error {
	call := callAbout(attach.OpUnbind, m.scoped)
	r, err := c.doAnyway(ctx, call) // the memory is unmapped already
	return nameError(&r, err, m.name)
}

// aboutName makes a call that has nothing but the name of memory.
func (c *Cluster) aboutName(ctx context.Context, op attach.Op, name string) error {
	r, err := c.do(ctx, callAbout(op, c.scoped(name)))
	return nameError(&r, err, name)
}

func callAbout(op attach.Op, scoped string) attach.Call {
	return attach.Call{Op: op, Object: attach.NameHash(attach.NameMemory, scoped), Name: scoped}
}

// nameError is how a call about a name has failed, or nil.
func nameError(r *attach.Reply, err error, name string) error {
	switch {
	case err != nil:
		return err
	case r.Status == attach.StatusUnknown:
		return fmt.Errorf("%w: nothing is called %q", ErrUnknown, name)
	case r.Status != attach.StatusOK:
		return fmt.Errorf("the daemon answered with %v", r.Status)
	}
	return nil
}

// Discard takes back what Keep asked for: the memory called name ends with the last program that
// uses it, at once if none does. Any program may call it, also one that has not allocated the
// memory. It waits until the pages are free. If ctx ends first, nobody knows whether the memory was
// discarded.
//
// Errors: ErrUnknown (there is no memory of that name), ErrClosed, ErrLost, ctx's.
func Discard(ctx context.Context, c *Cluster, name string) error {
	err := checkName(name)
	if err == nil {
		err = c.aboutName(ctx, attach.OpDiscard, name)
	}
	if err != nil {
		return failure(fmt.Sprintf("Discard %q", name), err)
	}
	return nil
}

// memoryAt is the allocation that an offset in the region lies in, or nil.
func (c *Cluster) memoryAt(offset uintptr) *allocation {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.memory {
		if offset-m.offset < m.bytes {
			return m
		}
	}
	return nil
}
