package torture

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"dsmd/dsm"
)

// worker is one goroutine that owns words. It belongs to itself, except steps.
type worker struct {
	*process
	owner owner
	r     *rand.Rand
	seq   uint32        // of the last write
	steps atomic.Uint64 // what it has got done
}

// inherit takes over the words of whoever was this owner before, and completes the write that was
// interrupted.
func (w *worker) inherit() error {
	seq, complete, err := w.memory.estate(w.owner)
	if err != nil {
		return err
	}
	if w.seq = seq; !complete {
		w.put(w.memory.place(w.owner, seq), seq)
		w.memory.announced[w.owner].Store(uint64(seq))
	}
	return nil
}

// work takes steps until it is told to rest.
func (w *worker) work() error {
	for !w.over.Load() {
		if err := w.step(); err != nil {
			return fmt.Errorf("owner %d, step %d: %w", w.owner, w.steps.Load(), err)
		}
		w.steps.Add(1)
	}
	return nil
}

func (w *worker) step() error {
	switch n := w.r.IntN(100); {
	case n < 28:
		return w.write()
	case n < 52:
		return w.read()
	case n < 58:
		return w.descend(w.r.IntN(len(w.memory.values)), 0)
	case n < 68:
		w.book.count(w.owner, n%counters)
		return nil
	case n < 72:
		return w.book.between(n%counters, w.book.total(n%counters).Load)
	case n < 84:
		return w.guarded(firstOne + n%2)
	case n < 94:
		return w.shared()
	case n < 97:
		return w.prefetch()
	case n < 99 && w.pins:
		return w.pinned()
	default:
		return w.scratch(fmt.Sprintf("scratch %d", w.r.IntN(3)))
	}
}

// write finds what it wrote last time to the block that is due, and writes the next.
func (w *worker) write() error {
	seq := w.seq + 1
	first := w.memory.place(w.owner, seq)
	old := uint32(0)
	if share := uint32(w.memory.share(w.owner)); seq > share {
		old = seq - share
	}
	for i := first; i < first+blockWords; i++ {
		if v := w.memory.values[i]; v != pack(i, old) {
			return fmt.Errorf("word %d, my own, is %#x, and I wrote %#x", i, v, pack(i, old))
		}
	}
	w.put(first, seq)
	w.seq = seq
	w.memory.announced[w.owner].Store(uint64(seq))
	return nil
}

// put writes a block in one of several ways.
func (w *worker) put(first int, seq uint32) {
	block := w.memory.values[first:][:blockWords]
	var private [blockWords]uint64
	for k := range private {
		private[k] = pack(first+k, seq)
	}
	switch w.r.IntN(4) {
	case 0:
		copy(block, private[:])
	case 1:
		for k := range block {
			atomic.StoreUint64(&block[k], private[k])
		}
	case 2:
		for k := len(block) - 1; k >= 0; k-- {
			block[k] = private[k]
		}
	case 3:
		done := make(chan struct{})
		go func() { // on a stack that is as small as it can be
			defer close(done)
			putDeep(block, private[:])
		}()
		<-done
	}
}

// putDeep writes one word in each of its frames, which are larger than what a goroutine's stack
// begins with.
func putDeep(block, private []uint64) {
	var frame [256]uint64
	if len(block) == 0 {
		return
	}
	frame[len(block)] = private[0]
	putDeep(block[1:], private[1:])
	block[0] = frame[len(block)]
}

// read reads words by copy, up to two pages of them.
func (w *worker) read() error {
	first := w.r.IntN(len(w.memory.values))
	n := min(1+w.r.IntN(1+w.r.IntN(2*w.book.pageWords)), len(w.memory.values)-first)
	values, floors := make([]uint64, n), make([]uint32, n)
	w.memory.floors(first, floors)
	copy(values, w.memory.values[first:])
	return w.memory.check(first, values, floors)
}

// descend reads words into its frame and then goes deeper, so that the stack grows, and is copied,
// in functions that fault.
func (w *worker) descend(first, depth int) error {
	if depth == 0 {
		done := make(chan error)
		go func() { done <- w.descend(first, 1) }()
		return <-done
	}
	var values [200]uint64
	var floors [len(values)]uint32
	n := min(len(values), len(w.memory.values)-first)
	if n <= 0 || depth > 8 {
		return nil
	}
	w.memory.floors(first, floors[:n])
	for k := range n {
		values[k] = atomic.LoadUint64(&w.memory.values[first+k])
	}
	if err := w.descend(first+n, depth+1); err != nil {
		return err
	}
	return w.memory.check(first, values[:n], floors[:n])
}

// patience bounds some of the waits for locks. The others wait as long as it takes.
func (w *worker) patience() (context.Context, context.CancelFunc) {
	if w.r.IntN(3) > 0 {
		return context.WithCancel(w.ctx)
	}
	return context.WithTimeout(w.ctx, time.Duration(w.r.IntN(2000))*time.Microsecond)
}

// takes takes a lock, or gives up waiting for it.
func (w *worker) takes(take func(context.Context) error) (got bool, err error) {
	ctx, cancel := w.patience()
	defer cancel()
	if err = take(ctx); errors.Is(err, context.DeadlineExceeded) {
		return false, nil
	}
	return err == nil, err
}

// repair makes what a dead holder has left whole again.
func (w *worker) repair(subject int) func(*dsm.OwnerDiedError) error {
	return func(gone *dsm.OwnerDiedError) error {
		if gone.Rank < w.stayers || gone.Rank >= w.c.Size() {
			return fmt.Errorf("this program was not killed: %w", gone)
		}
		version, err := w.book.version(subject)
		if err != nil && !errors.Is(err, errTorn) {
			return err
		}
		// Counted as often as somebody says: with the lock held nobody else is counting, but for
		// the dead.
		if err := w.book.between(subject, func() uint64 { return uint64(version) }); err != nil {
			return err
		}
		w.book.revise(w.owner, subject, version+1, func() {})
		return nil
	}
}

// guarded changes the memory under a mutex.
func (w *worker) guarded(subject int) error {
	m := dsm.NewMutex(w.c, lockName(subject))
	got, err := false, error(nil)
	if w.r.IntN(4) == 0 {
		got, err = m.TryLock(w.ctx)
	} else {
		got, err = w.takes(m.Lock)
	}
	if errors.Is(err, dsm.ErrOwnerDied) {
		got, err = w.takes(func(ctx context.Context) error { return m.LockRepair(ctx, w.repair(subject)) })
	}
	if !got {
		return err
	}
	version, err := w.book.version(subject)
	if err != nil {
		return err
	}
	if err := w.book.between(subject, func() uint64 { return uint64(version) }); err != nil {
		return err
	}
	w.book.revise(w.owner, subject, version+1, w.dawdle)
	return m.Unlock()
}

// dawdle does what others would rather not wait for.
func (w *worker) dawdle() {
	switch w.r.IntN(8) {
	case 0:
		runtime.Gosched()
	case 1:
		time.Sleep(time.Duration(w.r.IntN(300)) * time.Microsecond)
	}
}

// shared reads the memory under the reader-writer lock, or changes it. Only processes that stay may
// change it, so there is never anything to repair.
func (w *worker) shared() error {
	m := dsm.NewRWMutex(w.c, lockName(sharedOne))
	write := w.c.Rank() < w.stayers && w.r.IntN(3) == 0
	take, try, release := m.RLock, m.TryRLock, m.RUnlock
	if write {
		take, try, release = m.Lock, m.TryLock, m.Unlock
	}
	got, err := false, error(nil)
	if w.r.IntN(4) == 0 {
		got, err = try(w.ctx)
	} else {
		got, err = w.takes(take)
	}
	if !got {
		return err // also if the last writer is said to have died: no writer was killed
	}
	version, err := w.book.version(sharedOne)
	if err != nil {
		return err
	}
	w.dawdle()
	if again, err := w.book.version(sharedOne); err != nil || again != version {
		return fmt.Errorf("under the lock the version went from %d to %d (%v)", version, again, err)
	}
	if write {
		w.book.revise(w.owner, sharedOne, version+1, w.dawdle)
	}
	return release()
}

func lockName(subject int) string { return fmt.Sprint("lock ", subject) }

// prefetch makes some calls at once, each for any run of the memory.
func (w *worker) prefetch() error {
	calls := 1
	if w.r.IntN(4) == 0 {
		calls = 64
	}
	errs := make(chan error, calls)
	for range calls {
		first := w.r.IntN(len(w.memory.values))
		run := w.memory.values[first:][:1+w.r.IntN(len(w.memory.values)-first)]
		access := dsm.Read
		if w.r.IntN(3) == 0 {
			access = dsm.Write
		}
		go func() { errs <- dsm.Prefetch(w.ctx, w.c, run, access) }()
	}
	var all []error
	for range calls {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// pinned pins some words for reading and has the kernel read them, in a system call. Nobody on
// another node can store to them meanwhile.
func (w *worker) pinned() error {
	first := w.r.IntN(len(w.memory.values) - 2*blockWords)
	run := w.memory.values[first:][:2*blockWords]
	from, to, err := os.Pipe()
	if err != nil {
		return err
	}
	defer from.Close()
	defer to.Close()
	var floors [2 * blockWords]uint32
	var before, piped [2 * blockWords]uint64
	w.memory.floors(first, floors[:]) // nothing but what is pinned may be touched after Pin
	begun := time.Now()
	unpin, err := dsm.Pin(w.ctx, w.c, run, dsm.Read)
	if err != nil {
		return err
	}
	copy(before[:], run)
	_, err = to.Write(unsafe.Slice((*byte)(unsafe.Pointer(&run[0])), 8*len(run)))
	if time.Since(begun) > dsm.PinPatience {
		return unpin() // others may have waited too long, and the pin was broken
	}
	if err := errors.Join(err, unpin()); err != nil {
		return fmt.Errorf("write(2) of pinned words: %w", err)
	}
	if err := binary.Read(from, binary.NativeEndian, &piped); err != nil {
		return err
	}
	for i := range piped {
		if o, _ := w.memory.belongs(first + i); piped[i] != before[i] && o.rank()%w.c.Nodes() != w.c.Node() {
			return fmt.Errorf("word %d, of owner %d on another node, changed from %x to %x while it was pinned", first+i, o, before[i], piped[i])
		}
	}
	return w.memory.check(first, piped[:], floors[:])
}

// scratch allocates memory that others allocate too, marks it, and frees it.
func (w *worker) scratch(name string) error {
	marks, err := dsm.Alloc[atomic.Uint64](w.ctx, w.c, name, 2*w.book.pageWords)
	if err != nil {
		return err
	}
	for page := range 2 {
		mark := &marks[page*w.book.pageWords+int(w.owner)]
		if v := mark.Load(); v != 0 && v != uint64(w.owner)+1 {
			return fmt.Errorf("%s: the word of owner %d is %d", name, w.owner, v)
		}
		mark.Store(uint64(w.owner) + 1)
	}
	return dsm.Free(w.ctx, w.c, marks)
}
