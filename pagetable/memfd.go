package pagetable

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"dsmd/internal/memfile"

	"golang.org/x/sys/unix"
)

// rawCopyBytes is the longest read or write of the memfd that bypasses the Go scheduler; see
// package uffd for why that is sound. Copying 64 KiB takes some 10 µs.
const rawCopyBytes = 64 << 10

// minPageBytes is the smallest page that any system has.
const minPageBytes = 4 << 10

// memfd is the file that holds the bytes of this node's pages. Pages that are absent are holes:
// they cost nothing.
type memfd struct {
	fd int // the table's own
	// for programs: another open file, so that none can change the flags or the position of the
	// table's file (with O_APPEND the table would write to the end)
	given int
}

// noMemfd has numbers by which nothing is reached.
var noMemfd = memfd{-1, -1}

// newMemfd makes a sparse file of the given size, whose descriptor programs get.
func newMemfd(bytes uint64) (memfd, error) {
	fd, err := memfile.Create("dsmd-pages", bytes)
	if err != nil {
		return noMemfd, fmt.Errorf("pagetable: %w", err)
	}
	m := memfd{fd, -1}
	if m.given, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		m.close()
		return noMemfd, fmt.Errorf("pagetable: open the memory file for programs at /proc/self/fd: %w (is /proc mounted?)", err)
	}
	return m, nil
}

// errLargeFolios: the kernel backs the memory file with pages larger than one page of the table.
var errLargeFolios = errors.New("pagetable: this kernel fills memory files by huge pages, so writing one page makes its neighbours present; " +
	"set /sys/kernel/mm/transparent_hugepage/shmem_enabled to advise or never, " +
	"and likewise hugepages-*/shmem_enabled beside it to inherit, advise or never")

// checkFolios writes one page and checks that no other became present: the table would take a page
// that appears unasked for this node's copy. It leaves the file empty. Preconditions: nobody has
// mapped the file.
func (m memfd) checkFolios(pageBytes int) error {
	if errno := m.writeAt(make([]byte, pageBytes), 0); errno != 0 {
		return fmt.Errorf("pagetable: try out the memory file: %w", errno)
	}
	var st unix.Stat_t
	if err := unix.Fstat(m.fd, &st); err != nil {
		return fmt.Errorf("pagetable: measure the memory file: %w", err)
	}
	if errno := m.punch(0, uint64(pageBytes)); errno != 0 {
		return fmt.Errorf("pagetable: punch a hole in the memory file: %w", errno)
	}
	if st.Blocks*512 > int64(pageBytes) {
		return errLargeFolios
	}
	return nil
}

// readAt fills b from offset off. Holes read as zeros.
func (m memfd) readAt(b []byte, off uint64) unix.Errno { return m.move(unix.SYS_PREAD64, b, off) }

// writeAt writes b at offset off. It makes the pages present without mapping them anywhere.
func (m memfd) writeAt(b []byte, off uint64) unix.Errno { return m.move(unix.SYS_PWRITE64, b, off) }

func (m memfd) move(call uintptr, b []byte, off uint64) unix.Errno {
	for len(b) > 0 {
		part := b[:min(len(b), rawCopyBytes)]
		n, _, errno := unix.RawSyscall6(call, uintptr(m.fd), uintptr(unsafe.Pointer(unsafe.SliceData(part))), uintptr(len(part)), uintptr(off), 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return errno
		}
		if n == 0 {
			// past the end of the file: the callers check the page number, and the size is sealed
			return unix.EIO
		}
		b, off = b[n:], off+uint64(n)
	}
	return 0
}

// scatterAt fills the slices from offset off on. None of them is empty, and all together are short
// enough to bypass the scheduler.
func (m memfd) scatterAt(into [][]byte, off uint64) unix.Errno {
	var vector [MaxRunBytes / minPageBytes]unix.Iovec
	for i, b := range into {
		vector[i].Base = unsafe.SliceData(b)
		vector[i].SetLen(len(b))
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_PREADV, uintptr(m.fd), uintptr(unsafe.Pointer(&vector)), uintptr(len(into)), uintptr(off), 0, 0)
	if errno != 0 && errno != unix.EINTR {
		return errno
	}
	// The kernel may stop early, at a signal for instance. Read what is left piece by piece.
	done := 0
	if errno == 0 {
		done = int(n)
	}
	for _, b := range into {
		skip := min(done, len(b))
		done -= skip
		if errno := m.readAt(b[skip:], off+uint64(skip)); errno != 0 {
			return errno
		}
		off += uint64(len(b))
	}
	return 0
}

// punch makes a range absent: the kernel unmaps it in every program, waits until no processor can
// use an old translation, and frees the memory.
func (m memfd) punch(off, length uint64) unix.Errno {
	const mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	for {
		var errno unix.Errno
		if length <= rawCopyBytes {
			_, _, errno = unix.RawSyscall6(unix.SYS_FALLOCATE, uintptr(m.fd), mode, uintptr(off), uintptr(length), 0, 0)
		} else {
			_, _, errno = unix.Syscall6(unix.SYS_FALLOCATE, uintptr(m.fd), mode, uintptr(off), uintptr(length), 0, 0)
		}
		if errno != unix.EINTR {
			return errno
		}
	}
}

// present reports whether the page at offset off is in the file.
func (m memfd) present(off uint64) bool {
	at, err := unix.Seek(m.fd, int64(off), unix.SEEK_DATA)
	return err == nil && uint64(at) < off+uint64(os.Getpagesize())
}

func (m memfd) close() error {
	err := unix.Close(m.fd)
	if m.given >= 0 {
		err = errors.Join(err, unix.Close(m.given))
	}
	return err
}
