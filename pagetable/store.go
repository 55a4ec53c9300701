package pagetable

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// store is what both back ends have: the file with the bytes of the pages, its dimensions, and the
// checks of arguments.
type store struct {
	region
	mem    memfd
	lost   PageSet // absent pages whose contents nobody has, see Table.Lose
	closed bool
	// discard closes descriptors of which nobody knows what they are: Config.Discard.
	discard func(fds ...int)
}

// region is the dimensions of the pages together.
type region struct {
	pages     uint64
	pageBytes uintptr
}

// newStore makes the store of a table, checked. A page has the operating system's size if pageBytes
// is 0.
func newStore(cfg Config) (store, error) {
	pages, pageBytes, osPage := cfg.Pages, cfg.PageBytes, os.Getpagesize()
	if pageBytes == 0 {
		pageBytes = osPage
	}
	if pageBytes < osPage || pageBytes&(pageBytes-1) != 0 {
		return store{}, fmt.Errorf("pagetable: a page of %d bytes: it must be a power of two and at least %d, the page size of this machine", pageBytes, osPage)
	}
	if pageBytes > MaxPageBytes {
		return store{}, fmt.Errorf("pagetable: a page of %d bytes: at most %d are allowed", pageBytes, MaxPageBytes)
	}
	if pages == 0 || pages > MaxRegionBytes/uint64(pageBytes) {
		return store{}, fmt.Errorf("pagetable: a region of %d pages of %d bytes: it must have at least one page and at most %d bytes",
			pages, pageBytes, uint64(MaxRegionBytes))
	}
	mem, err := newMemfd(pages * uint64(pageBytes))
	if err != nil {
		return store{}, err
	}
	if err := mem.checkFolios(pageBytes); err != nil {
		mem.close()
		return store{}, err
	}
	if cfg.Discard == nil {
		cfg.Discard = closeAll
	}
	return store{region: region{pages, uintptr(pageBytes)}, mem: mem, discard: cfg.Discard}, nil
}

// closeAll closes descriptors at once.
func closeAll(fds ...int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// isAnonymous reports whether a descriptor is one of the kernel's own kinds, such as an eventfd.
// Other questions to a file are its file system's, which a program may serve and not answer.
func isAnonymous(fd int, kind string) bool {
	is, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	return err == nil && is == "anon_inode:["+kind+"]"
}

// PageBytes is the size of a page in bytes.
func (r region) PageBytes() int { return int(r.pageBytes) }

// Pages is the number of pages in the region.
func (r region) Pages() uint64 { return r.pages }

// MemFD is the descriptor that programs map: page p lies at offset p × PageBytes. Its size is
// sealed.
func (s *store) MemFD() int { return s.mem.given }

// Read copies present pages; see Table. Only a writer's stores of the moment can make one a mixture
// of old and new.
func (s *store) Read(first Page, into ...[]byte) error {
	if s.closed {
		return ErrClosed
	}
	CheckRead(first, into, s.pages, int(s.pageBytes))
	if errno := s.readRun(first, into); errno != 0 {
		return fmt.Errorf("pagetable: read %d pages from page %d: %w", len(into), first, errno)
	}
	return nil
}

// readRun copies neighbouring pages.
func (s *store) readRun(first Page, into [][]byte) unix.Errno {
	if len(into) == 1 {
		return s.mem.readAt(into[0], s.offset(first))
	}
	return s.mem.scatterAt(into, s.offset(first))
}

// offset is where the file has page p.
func (r region) offset(p Page) uint64 { return uint64(p) * uint64(r.pageBytes) }

// check panics on arguments that only a bug of the caller can produce: acting on them would hand
// out other memory.
func (r region) check(op Op, p Page) {
	if uint64(p) >= r.pages {
		panic(fmt.Sprintf("pagetable: %v of page %d of a region of %d pages", op, p, r.pages))
	}
}

// checkBytes does the same for the contents of a page, which may be nil.
func (r region) checkBytes(op Op, p Page, b []byte) {
	if b != nil && uintptr(len(b)) != r.pageBytes {
		panic(fmt.Sprintf("pagetable: %v of page %d with %d bytes; a page has %d", op, p, len(b), r.pageBytes))
	}
}

// checkRun does the same for a run of pages that is dropped.
func (r region) checkRun(first Page, count uint64) {
	if uint64(first) > r.pages || count > r.pages-uint64(first) {
		panic(fmt.Sprintf("pagetable: drop of %d pages from page %d of a region of %d", count, first, r.pages))
	}
}

// lose notes that an absent page is lost. It removes what a program may have put into the file
// there: that is no copy.
func (s *store) lose(p Page) error {
	if errno := s.mem.punch(s.offset(p), uint64(s.pageBytes)); errno != 0 {
		return fail(OpLose, p, errno)
	}
	s.lost.Add(p)
	return nil
}

// punchRun makes a run of pages absent in the file.
func (s *store) punchRun(first Page, count uint64) error {
	if errno := s.mem.punch(s.offset(first), count*uint64(s.pageBytes)); errno != 0 {
		return fmt.Errorf("pagetable: drop %d pages from page %d: %w", count, first, errno)
	}
	return nil
}
