package pagetable

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Check panics on a run that only a bug of the caller can produce, in a region of so many pages.
func (r *Run) Check(outcomes []Outcome, pages uint64, pageBytes int) {
	checkCount(r.Op.String(), r.First, r.Count, pages, pageBytes)
	switch {
	case r.Op != OpInstall && r.Op != OpMakeWritable && r.Op != OpDowngrade && r.Op != OpRevoke:
		panic(fmt.Sprintf("pagetable: %v of a run of pages", r.Op))
	case len(outcomes) != r.Count:
		panic(fmt.Sprintf("pagetable: %v of %d pages from page %d with %d outcomes", r.Op, r.Count, r.First, len(outcomes)))
	case r.Data != nil && len(r.Data) != r.Count*pageBytes:
		panic(fmt.Sprintf("pagetable: %v of %d pages from page %d with %d bytes; a page has %d", r.Op, r.Count, r.First, len(r.Data), pageBytes))
	case r.Into != nil && len(r.Into) != r.Count:
		panic(fmt.Sprintf("pagetable: %v of %d pages from page %d into %d buffers", r.Op, r.Count, r.First, len(r.Into)))
	}
	for i, b := range r.Into {
		if len(b) != pageBytes {
			panic(fmt.Sprintf("pagetable: %v of page %d into %d bytes; a page has %d", r.Op, r.First+Page(i), len(b), pageBytes))
		}
	}
}

// CheckRead does the same for the arguments of Table.Read.
func CheckRead(first Page, into [][]byte, pages uint64, pageBytes int) {
	checkCount("read", first, len(into), pages, pageBytes)
	for i, b := range into {
		if len(b) != pageBytes {
			panic(fmt.Sprintf("pagetable: read of page %d into %d bytes; a page has %d", first+Page(i), len(b), pageBytes))
		}
	}
}

// checkCount panics if no operation can have so many pages.
func checkCount(what string, first Page, count int, pages uint64, pageBytes int) {
	if most := MaxRunBytes / pageBytes; count < 1 || count > most || uint64(first) >= pages || uint64(count) > pages-uint64(first) {
		panic(fmt.Sprintf("pagetable: %s of %d pages from page %d of a region of %d; 1 to %d can be done at once", what, count, first, pages, most))
	}
}

// OneByOne is Table.Operate for tables that have no better way: it operates on one page after the
// other.
func OneByOne(t Table, r *Run, outcomes []Outcome) (err error) {
	r.Check(outcomes, t.Pages(), t.PageBytes())
	for i := range outcomes {
		o := r.At(i, t.PageBytes())
		if outcomes[i], err = Perform(t, &o); err != nil {
			return err
		}
	}
	return nil
}

// data is what is to be in page i of a run, nil if it is zeros.
func (r *Run) data(i, pageBytes int) []byte {
	if r.Data == nil {
		return nil
	}
	return r.Data[i*pageBytes:][:pageBytes]
}

// Operate does an operation on a run of pages; see Table. Programs are told page by page, because
// each page that a program has not touched needs none of them.
func (s *Sigsegv) Operate(r *Run, outcomes []Outcome) error {
	return OneByOne(s, r, outcomes)
}

// Operate does an operation on a run of pages; see Table. It takes as many system calls as for one
// page, unless an address space is changing or a program has mapped the run in part. Then it
// operates on one page after the other.
func (u *Uffd) Operate(r *Run, outcomes []Outcome) error {
	r.Check(outcomes, u.pages, int(u.pageBytes))
	if r.Count == 1 || u.closed || r.Op == OpInstall && u.lost.HasSome(r.First, uint64(r.Count)) {
		return OneByOne(u, r, outcomes)
	}
	clear(outcomes) // Done
	errno := unix.Errno(0)
	switch r.Op {
	case OpInstall:
		return u.installRun(r, outcomes)
	case OpRevoke:
		return u.revokeRun(r, outcomes)
	case OpMakeWritable:
		errno = u.programs.protect(r.First, r.Count, false)
	case OpDowngrade:
		errno = u.programs.protect(r.First, r.Count, true)
	}
	if errno != 0 {
		return OneByOne(u, r, outcomes) // What was done already is found so.
	}
	return nil
}

// installRun installs several pages by one ioctl. If that stops at a page, it installs this page
// and those behind it one by one.
func (u *Uffd) installRun(r *Run, outcomes []Outcome) (err error) {
	pr := u.programs.living(r.Proc)
	filled, errno := u.programs.fill(pr, r.First, r.Count, r.Data, r.Writable)
	full := filled / int(u.pageBytes)
	if full > 0 {
		u.programs.wake(r.First, uint64(full), pr)
	}
	if errno == 0 {
		return nil
	}
	stopped := r.First + Page(full)
	outcomes[full], err = u.installRest(pr, job{op: OpInstall, page: stopped, writable: r.Writable}, r.data(full, int(u.pageBytes)), filled%int(u.pageBytes), errno)
	if full++; err != nil || full == r.Count {
		return err
	}
	rest := Run{Op: OpInstall, First: stopped + 1, Count: r.Count - full, Writable: r.Writable, Proc: r.Proc}
	if r.Data != nil {
		rest.Data = r.Data[full*int(u.pageBytes):]
	}
	return OneByOne(u, &rest, outcomes[full:])
}

// revokeRun revokes several pages; see revoke. Once their contents are read nothing may be
// repeated: some may be gone.
func (u *Uffd) revokeRun(r *Run, outcomes []Outcome) error {
	if r.Into != nil && u.programs.protect(r.First, r.Count, true) != 0 {
		return OneByOne(u, r, outcomes)
	}
	if errno := u.takeOut(r.First, r.Count, r.Into...); errno != 0 {
		return fail(r.Op, r.First, errno)
	}
	return nil
}
