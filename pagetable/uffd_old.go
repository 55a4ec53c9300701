package pagetable

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// What kernels before 6.4 need, which can map a page that is in the file only writable.

const (
	// leastRest is how long a page stays where it was mapped last before another program may take
	// it. On an idle machine a woken thread runs within that time.
	leastRest = 200 * time.Microsecond
	// mostRest is what that grows to, twofold each time, while a page goes back and forth. On a
	// busy machine a thread waits that long for a processor.
	mostRest = 25 * time.Millisecond
	// maxRests bounds the pages whose rest is known. Beyond that all are forgotten, and rests are
	// short again.
	maxRests = 4096
)

// old is what a Uffd keeps for such a kernel.
type old struct {
	noContinueWP bool   // set once the kernel has refused to map a page write-protected
	scratch      []byte // one page, allocated at first use by mapByCopy
	rests        rests  // of pages that mapByCopy has mapped
}

// rests says where pages were mapped last, and for how long they stay.
type rests map[Page]rest

type rest struct {
	proc  ProcID
	until time.Time
	span  time.Duration
}

// keeps reports whether a page stays where it is, and not with proc.
func (r rests) keeps(proc ProcID, p Page, now time.Time) bool {
	last, known := r[p]
	return known && last.proc != proc && now.Before(last.until)
}

// begin notes that a page was mapped in a program. Its rest is longer than the last if it was taken
// from another soon after that.
func (r *rests) begin(proc ProcID, p Page, now time.Time) {
	if *r == nil {
		*r = make(rests)
	}
	last, known := (*r)[p]
	span := leastRest
	if known && last.proc != proc && now.Before(last.until.Add(last.span)) {
		span = min(2*last.span, mostRest)
	}
	if len(*r) >= maxRests {
		clear(*r)
	}
	(*r)[p] = rest{proc, now.Add(span), span}
}

// mapByCopy is mapIn, read-only, for kernels that can map a page from the file only writable
// (before 6.4). To map it so and protect it afterwards would let stores of other threads through in
// between. Instead the page is taken out of the file and copied in again, by the operation that can
// map read-only. Other programs lose their mapping and fault again, so a page rests where it was
// mapped last.
func (u *Uffd) mapByCopy(pr *program, p Page) unix.Errno {
	off, now := u.offset(p), time.Now()
	if !u.mem.present(off) {
		u.programs.wakeIn(pr, p, 1)
		return 0
	}
	if u.old.rests.keeps(pr.id, p, now) {
		return unix.EAGAIN
	}
	if u.old.scratch == nil {
		u.old.scratch = make([]byte, u.pageBytes)
	}
	if errno := u.mem.readAt(u.old.scratch, off); errno != 0 {
		return errno
	}
	if errno := u.mem.punch(off, uint64(u.pageBytes)); errno != 0 {
		return errno
	}
	done, errno := u.programs.fill(pr, p, 1, u.old.scratch, false)
	if errno != 0 {
		if back := u.mem.writeAt(u.old.scratch[done:], off+uint64(done)); back != 0 {
			panic(fmt.Sprintf("pagetable: page %d is lost: it can't be put back into the file: %v", p, back))
		}
	}
	u.programs.wake(p, 1, pr)
	u.old.rests.begin(pr.id, p, now)
	switch errno {
	case unix.ENOENT:
		u.programs.wakeIn(pr, p, 1)
		return 0
	case unix.ESRCH:
		u.programs.markEnded(pr)
		return 0
	case unix.EEXIST:
		return unix.EAGAIN // it was written back: try again from the start
	}
	return errno
}
