package dsm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/stripes"
)

// mapFixedNoreplace is MAP_FIXED_NOREPLACE (Linux 4.17): map at this address or fail with EEXIST.
const mapFixedNoreplace = 0x100000

// region is the run of addresses that all programs of a cluster share. It is reserved without
// access as a whole; each allocation maps its pages of the daemon's file over the reservation.
type region struct {
	base  unsafe.Pointer
	bytes uintptr
	files []int // the daemon's memfds, of each reactor, owned
	parts stripes.Division
	page  uintptr // bytes of one
	open  bool
}

// reservations are the regions of this process: those in use, and those of closed clusters, which
// stay reserved so that nothing else is mapped where somebody may still have a stale slice.
var reservations struct {
	sync.Mutex // nothing else is taken under it
	all        []*region
}

// reserve takes the addresses of the region, without access. It owns the files, also when it fails.
func reserve(w *attach.Welcome, files []int) (*region, error) {
	r, err := reserveAddresses(w.RegionBase, w.RegionBytes, files)
	if err != nil {
		closeAll(files)
		return nil, err
	}
	r.page, r.parts = uintptr(w.PageBytes), stripes.Of(w.StripePages, int(w.Reactors))
	return r, nil
}

func closeAll(files []int) {
	for _, fd := range files {
		unix.Close(fd)
	}
}

func reserveAddresses(base, bytes uint64, files []int) (*region, error) {
	for _, file := range files {
		var st unix.Stat_t
		if err := unix.Fstat(file, &st); err != nil {
			return nil, fmt.Errorf("the daemon's memory file: %w", os.NewSyscallError("fstat", err))
		}
		if st.Size < 0 || uint64(st.Size) < bytes {
			// A page beyond the end of the file raises SIGBUS, which would end the program without
			// a word.
			return nil, fmt.Errorf("the daemon's memory file has %d bytes, its region %d: the daemon is faulty", st.Size, bytes)
		}
	}
	if err := checkAddresses(base, bytes); err != nil {
		return nil, err
	}
	reservations.Lock()
	defer reservations.Unlock()
	if err := dropRetired(uintptr(base), uintptr(bytes)); err != nil {
		return nil, err
	}
	got, err := mmap(uintptr(base), uintptr(bytes), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|mapFixedNoreplace, -1, 0)
	if err == nil && uintptr(got) != uintptr(base) {
		// Before Linux 4.17 the flag is unknown and the address a mere hint.
		unix.MunmapPtr(got, uintptr(bytes))
		err = unix.EEXIST
	}
	if err != nil {
		return nil, reserveError(base, bytes, err)
	}
	r := &region{base: got, bytes: uintptr(bytes), files: files, open: true}
	reservations.all = append(reservations.all, r)
	return r, nil
}

// checkAddresses tells whether the numbers can be addresses in this process at all.
func checkAddresses(base, bytes uint64) error {
	const most = uint64(^uintptr(0))
	if base > most || bytes > most-base {
		return fmt.Errorf("%w: the region is %d bytes at %#x, beyond the addresses of this process; build the program for 64 bits", ErrNoSpace, bytes, base)
	}
	if page := uint64(os.Getpagesize()); (base|bytes)%page != 0 {
		return fmt.Errorf("the region of %d bytes at %#x is not whole pages of this machine, which have %d bytes; start the daemon on this machine's kernel", bytes, base, page)
	}
	return nil
}

// dropRetired gives up reservations of closed clusters in the range. It is called with reservations
// locked.
func dropRetired(base, bytes uintptr) error {
	there := func(r *region) bool {
		start := uintptr(r.base)
		return base < start+r.bytes && start < base+bytes
	}
	for _, r := range reservations.all {
		if there(r) && r.open {
			return fmt.Errorf("%w: this process has joined a cluster there already; use that Cluster, or Close it first", ErrAddressTaken)
		}
	}
	var err error
	reservations.all = slices.DeleteFunc(reservations.all, func(r *region) bool {
		if err != nil || !there(r) {
			return false
		}
		err = os.NewSyscallError("munmap", unix.MunmapPtr(r.base, r.bytes))
		return err == nil
	})
	if err != nil {
		return fmt.Errorf("give up the addresses of a closed cluster: %w", err)
	}
	return nil
}

// isReserved reports whether an address lies in a region of this process, of an open cluster or a
// closed one.
func isReserved(addr uintptr) bool {
	reservations.Lock()
	defer reservations.Unlock()
	return slices.ContainsFunc(reservations.all, func(r *region) bool { return addr-uintptr(r.base) < r.bytes })
}

func reserveError(base, bytes uint64, err error) error {
	switch {
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w: %#x to %#x is needed, and this process has %s there; start the daemons with another region address",
			ErrAddressTaken, base, base+bytes, whatIsMapped(base, base+bytes))
	case errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("%w: the region takes %d bytes of addresses, and this process may not have them (%w); raise the limit (ulimit -v unlimited) "+
			"or start the daemons with a smaller region", ErrNoSpace, bytes, err)
	case errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("%w: this process locks all memory that it will map (mlockall with MCL_FUTURE), and may not lock the %d bytes of the region (%w); "+
			"raise the limit (ulimit -l unlimited), or lock memory after Join and Alloc", ErrNoSpace, bytes, err)
	}
	return fmt.Errorf("reserve %d bytes of addresses at %#x: %w", bytes, base, os.NewSyscallError("mmap", err))
}

// whatIsMapped describes the first mapping of this process in a range of addresses.
func whatIsMapped(from, to uint64) string {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return "something (" + err.Error() + ")"
	}
	defer f.Close()
	return firstMapping(f, from, to)
}

// firstMapping looks for a range of addresses in a listing as /proc/PID/maps has it.
func firstMapping(maps io.Reader, from, to uint64) string {
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		var start, end uint64
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x", &start, &end); n == 2 && start < to && from < end {
			return strings.Join(strings.Fields(lines.Text()), " ")
		}
	}
	return "something"
}

// mapRun maps a run of the file's pages at its place, without access: the trap allows accesses when
// it sees them. With access from the start, the kernel would fill pages untrapped in a program that
// locks its memory (mlockall with MCL_FUTURE). Children do not inherit the run: they would share
// pages whose state nobody tracks for them. Core dumps leave it out: dumping would fetch every page
// of the cluster.
func (r *region) mapRun(offset, bytes uintptr) error {
	addr := uintptr(r.base) + offset
	err := r.eachPart(addr, bytes, func(reactor int, addr, bytes uintptr) error {
		_, err := mmap(addr, bytes, unix.PROT_NONE, unix.MAP_SHARED|unix.MAP_FIXED|unix.MAP_NORESERVE, r.files[reactor], addr-uintptr(r.base))
		return err
	})
	if err != nil {
		return errors.Join(fmt.Errorf("map %d bytes at %#x: %w", bytes, addr, os.NewSyscallError("mmap", err)), r.unmapRun(offset, bytes))
	}
	for _, advice := range [...]uintptr{unix.MADV_DONTFORK, unix.MADV_DONTDUMP} {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, addr, bytes, advice); errno != 0 {
			return errors.Join(fmt.Errorf("set up %d bytes at %#x: %w", bytes, addr, os.NewSyscallError("madvise", errno)), r.unmapRun(offset, bytes))
		}
	}
	return nil
}

// eachPart calls f for each part of a run that one reactor serves, until there is an error.
func (r *region) eachPart(addr, bytes uintptr, f func(reactor int, addr, bytes uintptr) error) error {
	first := (addr - uintptr(r.base)) / r.page
	for at, n := range r.parts.Parts(uint64(first), uint64(bytes/r.page)) {
		if err := f(r.parts.Of(at), uintptr(r.base)+uintptr(at)*r.page, uintptr(n)*r.page); err != nil {
			return err
		}
	}
	return nil
}

// unmapRun takes a run back to a reservation without access.
func (r *region) unmapRun(offset, bytes uintptr) error {
	addr := uintptr(r.base) + offset
	_, err := mmap(addr, bytes, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED, -1, 0)
	if err != nil {
		return fmt.Errorf("unmap %d bytes at %#x: %w", bytes, addr, os.NewSyscallError("mmap", err))
	}
	return nil
}

// retire takes all access away and closes the file. The addresses stay reserved.
func (r *region) retire() error {
	err := r.unmapRun(0, r.bytes)
	closeAll(r.files)
	reservations.Lock()
	defer reservations.Unlock()
	r.open = false
	return err
}

// at is the address at an offset into the region.
func (r *region) at(offset uintptr) unsafe.Pointer { return unsafe.Add(r.base, offset) }

// touch makes one access to each page of a run, of pageBytes each: a load, or an addition of
// nothing, which to the processor is a store.
func (r *region) touch(offset, bytes, pageBytes uintptr, write bool) {
	for end := offset + bytes; offset < end; offset += pageBytes {
		word := (*uint32)(r.at(offset))
		if write {
			atomic.AddUint32(word, 0)
		} else {
			atomic.LoadUint32(word)
		}
	}
}

// offsetOf is where p lies in the region; at least r.bytes if it does not.
func (r *region) offsetOf(p unsafe.Pointer) uintptr { return uintptr(p) - uintptr(r.base) }

// mmap is the plain system call. x/sys takes the address as a pointer, which it is not yet.
func mmap(addr, bytes uintptr, prot, flags, fd int, offset uintptr) (unsafe.Pointer, error) {
	got, _, errno := unix.Syscall6(unix.SYS_MMAP, addr, bytes, uintptr(prot), uintptr(flags), uintptr(fd), offset)
	if errno != 0 {
		return nil, errno
	}
	// Not memory of Go's: reading the result through its own address tells vet so.
	return *(*unsafe.Pointer)(unsafe.Pointer(&got)), nil
}

// sliceAt is n values of T at p. Preconditions: they are mapped, p is aligned for T.
func sliceAt[T any](p unsafe.Pointer, n int) []T { return unsafe.Slice((*T)(p), n) }

// memoryExtent is a stretch of memory.
type memoryExtent struct {
	start unsafe.Pointer
	bytes uintptr
}

// extent is the memory of a slice.
func extent[T any](s []T) memoryExtent {
	var zero T
	return memoryExtent{unsafe.Pointer(unsafe.SliceData(s)), uintptr(len(s)) * unsafe.Sizeof(zero)}
}

// bytesOf is the memory of one value, which stays v's.
func bytesOf[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

// bytesOfAll is what the elements of a slice are made of.
func bytesOfAll[T any](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}

// single is the slice of one value.
func single[T any](p *T) []T { return unsafe.Slice(p, 1) }
